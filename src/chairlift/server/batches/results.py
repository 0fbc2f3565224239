"""The lines that a batch has as its results, as OpenAI writes them. Knows nothing of how they come about."""

import secrets
from pathlib import Path

import msgspec


class _Answer(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Result(msgspec.Struct):
    id: str
    custom_id: str
    response: _Answer | None
    error: _Error | None = None


class _Done(msgspec.Struct):
    custom_id: str


_EXPIRED = _Error("batch_expired", "the completion window ended before this request was answered")
_AFTER_ID = b',"response":'
"""What comes after the ``custom_id`` of a result; in a JSON text it is found outside of strings only."""


def result_line(custom_id: str, status: int, body: bytes) -> bytes:
    """One result; the answer's body is copied as it is."""
    return _line(custom_id, _Answer(status, secrets.token_hex(12), msgspec.Raw(body)))


def expired_line(custom_id: str) -> bytes:
    """What is written of a line that was not answered within the window."""
    return _line(custom_id, None, _EXPIRED)


def _line(custom_id: str, answer: _Answer | None, error: _Error | None = None) -> bytes:
    return msgspec.json.encode(_Result(f"batch_req_{secrets.token_hex(12)}", custom_id, answer, error))


def find_done(path: Path) -> set[str]:
    """Ids of the lines that have a result; one that a crash cut off has none, and is taken away.

    Raises:
        OSError: the file cannot be read.
    """
    ids: set[str] = set()
    if not path.exists():
        return ids
    num_whole_bytes = 0
    with path.open("r+b") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            num_whole_bytes += len(raw)
            beginning = raw[: raw.index(_AFTER_ID)] + b"}"
            ids.add(msgspec.json.decode(beginning, type=_Done).custom_id)
        file.truncate(num_whole_bytes)
    return ids
