"""What the scheduler was told and what it decided, as plain dicts that JSON can hold.

Knows nothing of files. An entry holds all that a fresh scheduler needs to make the same plan again, and nothing of what
was said: prompts are lengths, full pages are the keyed digests by which the prefix tree compares them, and of sampled
tokens only those are known that ended a request.

::

    start        version, scheduler, cache                      the settings, and a fresh scheduler
    add          id, t, prompt, ...                             a request
    end          id, reason, keep                               abort or finish from outside
    expire       t                                              whose time ran out ends, where no plan did that
    plan         t, plan (or none), waiting, running            the decision, without token ids
    commit       step, ns, swap_ns, stopped, failed, pooled,    a step's duration, and who ended by a stop token or
                 fit                                            got a vector
    reconfigure  t, changes
    fail_all, reset

``keys`` in any of them are the page keys that were made within the call, one list for each time they were asked for.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from chairlift.config.resolved import CacheConfig, SchedulerConfig, TenantConfig
from chairlift.core.ports import PageKeyer
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import StepPlan, StepResult
from chairlift.errors import ConfigurationError

Entry: TypeAlias = dict[str, Any]
"""One line of the log: ``kind`` and what the table above says."""

VERSION = 1
STOP_TOKEN = 1
"""What a sampled token that ended its request is called in a replay; all others are 0."""

_DIGEST_BYTES = 8


class RecordingKeyer:
    """Passes on what another keyer says, and keeps it in a shorter form, for the log.

    Args:
        keyer: who names the pages.
        secret: makes digests worthless to whoever has the log and guesses prompts; not in the log.
    """

    def __init__(self, keyer: PageKeyer, secret: bytes) -> None:
        self._keyer = keyer
        self._secret = secret
        self._recorded: list[list[int | str]] = []

    def root(self, salt: str | None, adapter: str | None) -> Hashable:
        """Return the other keyer's root."""
        return self._keyer.root(salt, adapter)

    def extend(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return the other keyer's keys, and record them."""
        return self._record(self._keyer.extend(parent, token_ids, page_size))

    def recall(self, parent: Hashable, token_ids: Sequence[int], page_size: int) -> list[Hashable]:
        """Return what the other keyer recalls, and record it."""
        return self._record(self._keyer.recall(parent, token_ids, page_size))

    def take(self) -> list[list[int | str]]:
        """Remove and return what was recorded since the last call."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def _record(self, keys: list[Hashable]) -> list[Hashable]:
        self._recorded.append([self._shorten(key) for key in keys])
        return keys

    def _shorten(self, key: Hashable) -> int | str:
        if isinstance(key, bytes):
            return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).hexdigest()
        return key if isinstance(key, int) else repr(key)


def start_entry(scheduler: SchedulerConfig, cache: CacheConfig) -> Entry:
    """A fresh scheduler with these settings."""
    return {"kind": "start", "version": VERSION, "scheduler": _plain(scheduler), "cache": _plain(cache)}


def add_entry(request: Request, now_ns: int) -> Entry:
    """A request was taken in."""
    entry: Entry = {
        "kind": "add",
        "t": now_ns,
        "id": request.request_id,
        "prompt": request.num_prompt_tokens,
        "max_tokens": request.sampling.max_tokens,
        "tier": request.priority,
        "tenant": request.tenant,
        "ttft_deadline": request.ttft_deadline_ns,
        "deadline": request.deadline_ns,
        "prompt_logprobs": request.sampling.prompt_logprobs,
        "pooling": request.sampling.pooling,
    }
    return _without_nothing(entry)


def plan_entry(now_ns: int, plan: StepPlan | None, num_waiting: int, num_running: int) -> Entry:
    """A step was planned, or there was none to plan; what waits and runs afterwards shows differences early."""
    described = None if plan is None else describe_plan(plan)
    return {"kind": "plan", "t": now_ns, "plan": described, "waiting": num_waiting, "running": num_running}


def commit_entry(result: StepResult, stopped: Sequence[int]) -> Entry:
    """A step's result was taken in, and ended these requests by a stop token."""
    entry: Entry = {
        "kind": "commit",
        "step": result.step,
        "ns": result.duration_ns,
        "swap_ns": result.swap_duration_ns or None,
        "stopped": list(stopped),
        "failed": list(result.failed_rows),
        "pooled": list(result.embeddings),
    }
    return _without_nothing(entry)


def describe_plan(plan: StepPlan) -> Entry:
    """Everything that a plan decides, without the tokens of new requests; empty parts are left out."""
    described: Entry = {
        "new": [
            [new.request_id, len(new.token_ids), new.num_prompt_tokens, new.num_computed_tokens, list(new.pages)]
            for new in plan.new
        ],
        "ended": list(plan.ended),
        "grown": [[growth.request_id, list(growth.pages)] for growth in plan.grown],
        "joined": list(plan.decodes_joined),
        "left": list(plan.decodes_left),
        "chunks": [[c.request_id, c.start, c.length, int(c.samples), c.padding] for c in plan.chunks],
        "copies": [[copy.source, copy.target] for copy in plan.copies],
        "swapped_out": [[copy.source, copy.target] for copy in plan.swapped_out],
        "swapped_in": [[copy.source, copy.target] for copy in plan.swapped_in],
    }
    return {
        "step": plan.step,
        "epoch": plan.epoch,
        "tokens": plan.num_tokens,
        "decodes": plan.num_decodes,
        **_without_nothing(described),
    }


def reconfigure_entry(changes: Mapping[str, object], now_ns: int) -> Entry:
    """Settings were changed."""
    return {"kind": "reconfigure", "t": now_ns, "changes": _plain(changes)}


def read_configs(entry: Entry) -> tuple[SchedulerConfig, CacheConfig]:
    """Make the settings of a ``start`` entry again.

    Raises:
        ConfigurationError: the log is of another version.
    """
    if entry.get("version") != VERSION:
        raise ConfigurationError(f"the log has version {entry.get('version')!r}, and this Chairlift reads {VERSION}")
    try:
        return SchedulerConfig(**read_changes(entry["scheduler"])), CacheConfig(**entry["cache"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"the log's settings are not those of this Chairlift: {error}") from error


def read_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Make values of scheduler settings again, by name."""
    read = dict(changes)
    if "tenants" in read:
        read["tenants"] = {name: TenantConfig(**terms) for name, terms in read["tenants"].items()}
    if "default_tenant" in read:
        read["default_tenant"] = TenantConfig(**read["default_tenant"])
    return read


def read_request(entry: Entry) -> Request:
    """Make a request of an ``add`` entry again: as long, as urgent and as patient, with other tokens."""
    return Request(
        entry["id"],
        bytearray(entry["prompt"]),
        SamplingParams(
            max_tokens=entry.get("max_tokens"),
            prompt_logprobs=entry.get("prompt_logprobs"),
            pooling=entry.get("pooling"),
        ),
        stop_token_ids=frozenset([STOP_TOKEN]),
        priority=entry["tier"],
        tenant=entry["tenant"],
        ttft_deadline_ns=entry.get("ttft_deadline"),
        deadline_ns=entry.get("deadline"),
    )


def read_result(entry: Entry, sampling_rows: Sequence[Request]) -> StepResult:
    """Make the result of a ``commit`` entry again, for the requests of the step's sampling rows."""
    stopped = set(entry.get("stopped", ()))
    return StepResult(
        entry["step"],
        tuple(STOP_TOKEN if request.request_id in stopped else 0 for request in sampling_rows),
        entry["ns"],
        swap_duration_ns=entry.get("swap_ns", 0),
        failed_rows=tuple(entry.get("failed", ())),
        embeddings=dict.fromkeys(entry.get("pooled", ()), b""),
    )


def _without_nothing(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if value is not None and value != []}


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in cast("Mapping[str, object]", value).items()}
    return value
