"""Makes the plans of a decision log again, and says where they differ.

Knows nothing of files.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from chairlift.core.decision_log import Entry, plan_entry, read_changes, read_configs, read_request, read_result
from chairlift.core.logged_scheduler import fitted_values
from chairlift.core.request import FinishReason
from chairlift.core.scheduler import Scheduler
from chairlift.errors import ConfigurationError


class Difference(NamedTuple):
    """Where a replay left the log: number of the entry from 0, what was done, and both sides in words."""

    entry: int
    what: str
    logged: str
    replayed: str


class ReplayReport(NamedTuple):
    """How far a replay came. ``num_runs`` counts fresh schedulers: an engine that restarts goes on in the same file."""

    num_entries: int
    num_plans: int
    num_runs: int
    difference: Difference | None


def replay(entries: Iterable[Entry]) -> ReplayReport:
    """Give a fresh scheduler everything that the log's scheduler was told, and compare all decisions.

    Stops at the first difference: what comes after it follows from it.

    Raises:
        ConfigurationError: the log does not begin with its settings, or they are of another version.
    """
    run: _Run | None = None
    number = num_plans = num_runs = 0
    for number, entry in enumerate(entries, start=1):
        if entry.get("kind") == "start":
            run = _Run(entry)
            num_runs += 1
            continue
        if run is None:
            raise ConfigurationError("this is no decision log: it does not begin with the scheduler's settings")
        num_plans += entry.get("kind") == "plan"
        found = run.take(entry)
        if found is not None:
            return ReplayReport(number, num_plans, num_runs, Difference(number - 1, *found))
    if run is None:
        raise ConfigurationError("there is no entry of a decision log in it")
    return ReplayReport(number, num_plans, num_runs, None)


_Found = tuple[str, str, str]


class _Run:
    """One scheduler, from its start to the end of the log or the next start."""

    def __init__(self, start: Entry) -> None:
        self._keyer = _ReplayKeyer()
        try:
            self._scheduler = Scheduler(*read_configs(start), keyer=self._keyer)
        except (TypeError, ValueError, ArithmeticError, AttributeError, MemoryError) as error:
            raise ConfigurationError(f"no scheduler can have the log's settings: {error!r}") from error
        self._handlers: dict[str, Callable[[Entry], _Found | None]] = {
            "add": self._add,
            "end": self._end,
            "expire": self._expire,
            "plan": self._plan,
            "commit": self._commit,
            "reconfigure": self._reconfigure,
            "fail_all": self._fail_all,
            "reset": self._reset,
        }

    def take(self, entry: Entry) -> _Found | None:
        """Do what the entry says, and return what differed."""
        kind = entry.get("kind")
        handler = self._handlers.get(str(kind))
        if handler is None:
            raise ConfigurationError(f"the log has an entry of kind {kind!r}, which this Chairlift does not know")
        try:
            self._keyer.expect(entry.get("keys", ()))
            found = handler(entry)
        except KeyError as error:
            raise ConfigurationError(f"the log has an entry of kind {kind!r} without {error}") from error
        except Exception as error:  # noqa: BLE001 - any failure that the log does not have is a difference
            return (
                None if entry.get("error") == repr(error) else (str(kind), entry.get("error", "went well"), repr(error))
            )
        if found is None and self._keyer.mismatch:
            return (str(kind), *self._keyer.mismatch)
        return found

    def _add(self, entry: Entry) -> None:
        self._scheduler.add(read_request(entry), entry["t"])

    def _end(self, entry: Entry) -> _Found | None:
        reason = FinishReason(entry["reason"])
        if self._scheduler.finish(entry["id"], reason, entry.get("keep")):
            return None
        return f"end of request {entry['id']}", "it was alive", "it had ended before"

    def _expire(self, entry: Entry) -> None:
        self._scheduler.expire(entry["t"])

    def _plan(self, entry: Entry) -> _Found | None:
        plan = self._scheduler.plan(entry["t"])
        if "error" in entry:
            return "plan", entry["error"], "went well"
        made = plan_entry(entry["t"], plan, self._scheduler.num_waiting, self._scheduler.num_running)
        logged = entry["plan"]
        if (made["plan"] is None) != (logged is None):
            step = (logged or made["plan"])["step"]
            return f"plan of step {step}", _or_none(logged), _or_none(made["plan"])
        for name in sorted({*(logged or {}), *(made["plan"] or {})}):
            ours, theirs = made["plan"].get(name, []), logged.get(name, [])
            if ours != theirs:
                return f"plan of step {logged['step']}, {name}", str(theirs), str(ours)
        for name in ("waiting", "running"):
            if made[name] != entry[name]:
                return f"requests {name} after the plan", str(entry[name]), str(made[name])
        return None

    def _commit(self, entry: Entry) -> _Found | None:
        in_flight = self._scheduler.state.in_flight
        if not in_flight:
            return f"result of step {entry['step']}", "the step was in flight", "no step is in flight"
        step = in_flight[0]
        rows = step.decodes + [request for request, chunk in step.chunks if chunk.samples]
        self._scheduler.commit(entry["step"], read_result(entry, rows))
        if "fit" in entry:
            fit = fitted_values(self._scheduler)
            if fit != entry["fit"]:
                return f"fitted values after step {entry['step']}", str(entry["fit"]), str(fit)
        return None

    def _reconfigure(self, entry: Entry) -> None:
        self._scheduler.reconfigure(read_changes(entry["changes"]), entry["t"])

    def _fail_all(self, entry: Entry) -> None:
        del entry
        self._scheduler.fail_all()

    def _reset(self, entry: Entry) -> _Found | None:
        del entry
        if self._scheduler.reset_prefix_cache():
            return None
        return "reset of the prefix cache", "it was done", "something was alive"


class _ReplayKeyer:
    """Names pages as the log does: the same scheduler asks for keys in the same order."""

    def __init__(self) -> None:
        self._expected: deque[Sequence[Hashable]] = deque()
        self._num_invented = 0
        self._difference: tuple[str, str] | None = None

    @property
    def mismatch(self) -> tuple[str, str] | None:
        """What differed between the keys logged for an entry and those asked for, both in words."""
        if self._difference is None and self._expected:
            return f"{len(self._expected)} more lists of page keys", "not asked for"
        return self._difference

    def expect(self, keys: Sequence[Sequence[Hashable]]) -> None:
        """These are the keys of the next entry."""
        self._expected = deque(keys)
        self._difference = None

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Logged keys hold salt and adapter already."""
        del salt, adapter
        return 0

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the next logged keys, or, if others were asked for, keys that equal no others."""
        del parent
        num_pages = len(token_ids) // page_size
        logged = self._expected.popleft() if self._expected else None
        if logged is not None and len(logged) == num_pages:
            return list(logged)
        found = "none" if logged is None else str(len(logged))
        self._difference = (f"{found} page keys", f"{num_pages} page keys")
        self._num_invented += 1
        return [("invented", self._num_invented, index) for index in range(num_pages)]

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the next logged keys: what was recalled then is not known otherwise."""
        del parent
        num_pages = len(token_ids) // page_size
        logged = self._expected.popleft() if self._expected else None
        if logged is not None and len(logged) <= num_pages:
            return list(logged)
        found = "no page keys" if logged is None else f"{len(logged)} page keys"
        self._difference = (found, f"{num_pages} page keys at most")
        return []


def _or_none(plan: Entry | None) -> str:
    return "none" if plan is None else str(plan)
