"""A ``chairlift serve`` process of its own for tests. Knows nothing of pytest."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import httpx

_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 30.0


class ServerProcess:
    """The server on the fake executor and a free port. Use as a context manager; it is ready inside."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "chairlift", "serve", "--executor", "fake", "--port", "0", *flags]
        self._command = command
        self._env = {**os.environ, **(env or {})}
        self.url = ""
        self.announcement: list[str] = []
        self.log: list[str] = []

    def __enter__(self) -> "ServerProcess":
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env
        )
        ready = threading.Event()
        self._readers = [
            threading.Thread(target=self._read_announcement, args=(ready,)),
            threading.Thread(target=self._read_log),
        ]
        for reader in self._readers:
            reader.start()
        if not ready.wait(_START_TIMEOUT_S) or not self.url:
            self.process.kill()
            self._wait()
            raise AssertionError("the server did not start:\n" + "\n".join(self.log))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _read_announcement(self, ready: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.announcement.append(line.rstrip("\n"))
            if match := re.search(r"serves .* at (http://\S+)$", line):
                self.url = match[1]
            if line.startswith("curl"):
                ready.set()
        ready.set()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Exit status, once the process has ended by itself."""
        return self.process.wait(_END_TIMEOUT_S)

    def metric(self, name: str) -> float:
        """Value of a metric; 0 if it has no sample yet."""
        text = httpx.get(f"{self.url}/metrics").text
        match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    def is_idle(self) -> bool:
        """Whether nothing runs or waits and no page is in use."""
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "swap_space_usage_ratio")
        return all(self.metric(f"chairlift_{gauge}") == 0 for gauge in gauges)

    def engine_process_id(self) -> int:
        """Process id of the engine: the only child of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])


def wait_until(condition: Callable[[], bool], within_s: float) -> float:
    """Poll until a condition holds; fails when the time is over. Returns how long it took."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < within_s, f"not within {within_s} s"
        time.sleep(0.01)
    return time.monotonic() - start_s
