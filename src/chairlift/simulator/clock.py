"""Simulated time. Knows nothing of what happens in it."""


class Clock:
    """Nanoseconds since the start of the simulation; only ever moves on."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0

    def advance_to(self, moment_ns: int) -> None:
        """Move on to a moment, unless it has passed."""
        self.now_ns = max(self.now_ns, moment_ns)
