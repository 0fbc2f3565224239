"""Tells a hung engine process from a busy one: by its silence, and by whether it was stopped.

Knows nothing of processes or sockets; whoever watches one brings what was seen. Time is counted in looks, so that a
machine that slept, or a parent that was stopped itself, is not taken for a silent engine.
"""

SLOWEST_STEPS = 10
"""Silence as long as so many of the slowest steps so far is none."""
STOPPED_S = 5.0
"""How long a process may be stopped, as by SIGSTOP: nobody does that for a moment."""

_LOOKS = 8
_MIN_LOOK_S, _MAX_LOOK_S = 0.05, 1.0


class Watchdog:
    """What is known of one engine process.

    Args:
        timeout_s: how long it may be silent.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._silent_s = self._stopped_s = self._slowest_step_s = 0.0
        self._was_heard = False
        self.look_every_s = min(max(timeout_s / _LOOKS, _MIN_LOOK_S), _MAX_LOOK_S)

    def heard(self) -> None:
        """The process said something."""
        self._was_heard = True

    def stepped(self, duration_s: float) -> None:
        """A step took so long."""
        self._slowest_step_s = max(self._slowest_step_s, duration_s)

    def look(self, *, is_stopped: bool, is_asked: bool) -> str | None:
        """Take note that :attr:`look_every_s` has passed; what is wrong with the process, ``None`` if nothing is.

        Args:
            is_stopped: whether the process is stopped now.
            is_asked: whether it has something to answer; who was asked nothing may be silent.
        """
        self._stopped_s = self._stopped_s + self.look_every_s if is_stopped else 0.0
        self._silent_s = 0.0 if self._was_heard or not is_asked else self._silent_s + self.look_every_s
        self._was_heard = False
        if self._stopped_s >= min(STOPPED_S, self._timeout_s):
            return f"the engine process was stopped for {self._stopped_s:.3g} s"
        if self._silent_s >= max(self._timeout_s, SLOWEST_STEPS * self._slowest_step_s):
            return f"the engine process was silent for {self._silent_s:.3g} s (--watchdog-timeout)"
        return None
