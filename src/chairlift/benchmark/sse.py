"""Server-sent events out of bytes that come in pieces of any size.

Knows nothing of what the events say.
"""


class EventDecoder:
    """Collects bytes and gives back the data of each event that is complete; other fields and comments are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the data of the events that they complete."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        return events

    def finish(self) -> list[bytes]:
        """Return what is left at the end: servers exist that leave out the last empty line."""
        events: list[bytes] = []
        self._take(self._rest.removesuffix(b"\r"), events)
        self._take(b"", events)
        self._rest = b""
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
