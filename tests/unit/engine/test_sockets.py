"""The private folder of the sockets, and what goes through them."""

import stat
from pathlib import Path

import pytest
import zmq

from chairlift.engine import sockets
from chairlift.engine.sockets import EngineSockets, limit_messages, make_socket_dir, remove_socket_dir, socket_addresses


def test_folder_is_private_and_can_be_removed() -> None:
    folder = make_socket_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "1.in").touch()
    remove_socket_dir(folder)
    remove_socket_dir(folder)
    assert not folder.exists()


def test_folder_too_deep_for_a_socket_is_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = make_socket_dir()
    try:
        assert len(str(folder)) < 90
        assert list(deep.iterdir()) == []
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        remove_socket_dir(folder)


def test_generations_never_share_an_address(tmp_path: Path) -> None:
    addresses = [address for generation in (1, 2) for address in socket_addresses(tmp_path, generation)]
    assert len(set(addresses)) == 4


def test_messages_pass_and_too_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_MESSAGE_BYTES", 1000)
    folder = make_socket_dir()
    inbound, outbound = socket_addresses(folder, 1)
    context = zmq.Context()
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    limit_messages(pull)
    push.bind(inbound)
    pull.bind(outbound)
    engine = EngineSockets(inbound, outbound)
    try:
        push.send(b"in")
        assert engine.receive(5000) == b"in"
        assert engine.receive(0) is None
        engine.send(b"out")
        assert pull.poll(5000)
        assert pull.recv() == b"out"
        push.send(b"x" * 1001)
        assert engine.receive(200) is None
    finally:
        engine.close()
        push.close(linger=0)
        pull.close(linger=0)
        context.term()
        remove_socket_dir(folder)
