"""How evenly tokens went to tenants while all of them wanted some.

Knows nothing of latencies. Seen from outside, a tenant wants tokens while a request of it is on its way or held back by
``--max-concurrency``; what tenants get while others want nothing says nothing about fairness.

::

    tenant a   [=======]   [=================]
    tenant b        [====================]
    counted         [==]   [=============]
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chairlift.benchmark.clock import NS_PER_S
from chairlift.benchmark.records import CallRecord
from chairlift.report.statistics import jain_index

Span = tuple[int, int]
"""Half-open, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What tenants got while all of them wanted something."""

    contended_s: float
    tokens: Mapping[str, int]
    jain_index: float | None
    """Of the tokens by weight; ``None`` with fewer than two tenants or without such a time."""


def shares_of(records: Sequence[CallRecord], weights: Mapping[str, float]) -> Shares:
    """Count output tokens of each tenant while requests of all tenants were there."""
    by_tenant: dict[str, list[CallRecord]] = defaultdict(list)
    for record in records:
        by_tenant[record.tenant].append(record)
    spans = _contended([_union([(r.due_ns, r.end_ns) for r in mine if r.sent_ns]) for mine in by_tenant.values()])
    tokens = {tenant: sum(_tokens_within(record, spans) for record in mine) for tenant, mine in by_tenant.items()}
    seconds = sum(end - start for start, end in spans) / NS_PER_S
    is_meant = len(tokens) > 1 and seconds > 0
    shares = [count / weights.get(tenant, 1.0) for tenant, count in tokens.items()]
    return Shares(contended_s=seconds, tokens=tokens, jain_index=jain_index(shares) if is_meant else None)


def _union(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _contended(unions: Sequence[list[Span]]) -> list[Span]:
    common = unions[0] if unions else []
    for other in unions[1:]:
        common = _intersect(common, other)
    return common


def _intersect(left: list[Span], right: list[Span]) -> list[Span]:
    found: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def _tokens_within(record: CallRecord, spans: Sequence[Span]) -> int:
    times, counts = record.tally.times_ns, record.tally.counts
    total = 0
    for start, end in spans:
        first, after = bisect_left(times, start), bisect_left(times, end)
        total += sum(counts[first:after])
    return total
