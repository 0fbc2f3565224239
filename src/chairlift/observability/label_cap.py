"""Few enough label values, whatever clients call themselves.

Knows nothing of what the values mean; callers bring the time.
"""

from collections.abc import Callable, Iterable

OTHER = "other"
"""The label of everybody beyond the cap."""

_NS_PER_S = 1_000_000_000


class LabelCap:
    """Gives names labels: known names always their own, others while there is room, and the rest share ``other``.

    A name that nobody used for a while makes room for a new one.

    Args:
        known: names that always have a label.
        max_others: further names with a label of their own at most.
        idle_s: how long a name must be unused to lose its label.
        is_needed: whether a name is still needed, however long ago it was looked up.
        on_removed: told of a label that is given up, so that its series can be dropped.
    """

    def __init__(
        self,
        known: Iterable[str],
        max_others: int,
        *,
        idle_s: float = 600.0,
        is_needed: Callable[[str], bool] = lambda label: False,
        on_removed: Callable[[str], None] = lambda label: None,
    ) -> None:
        self._known = set(known)
        self._max_others = max_others
        self._idle_ns = int(idle_s * _NS_PER_S)
        self._is_needed = is_needed
        self._on_removed = on_removed
        self._last_used_ns: dict[str, int] = {}
        """Names with a label that are not known, least recently used first."""

    def add_known(self, names: Iterable[str]) -> None:
        """Give further names a label of their own for ever."""
        for name in names:
            self._known.add(name)
            self._last_used_ns.pop(name, None)

    def label(self, name: str, now_ns: int) -> str:
        """The label of a name that is used now."""
        if name in self._known:
            return name
        if name in self._last_used_ns or len(self._last_used_ns) < self._max_others or self._make_room(now_ns):
            self._last_used_ns.pop(name, None)
            self._last_used_ns[name] = now_ns
            return name
        return OTHER

    def _make_room(self, now_ns: int) -> bool:
        name, last_used_ns = next(iter(self._last_used_ns.items()), ("", now_ns))
        if not self._last_used_ns or now_ns - last_used_ns < self._idle_ns:
            return False
        del self._last_used_ns[name]
        if self._is_needed(name):
            self._last_used_ns[name] = now_ns
            return False
        self._on_removed(name)
        return True
