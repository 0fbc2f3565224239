"""Passes on to requests what a step's report says of each of them. Knows nothing of tokens or streams."""

from collections.abc import Mapping

from chairlift.engine.request_tracker import RequestTracker
from chairlift.observability.step_stats import StepStats


def pass_on_admissions(stats: StepStats, trackers: Mapping[int, RequestTracker]) -> None:
    """Tell requests how long they waited for their first slot; before they are told of their first token."""
    for request_id, queue_ns in zip(stats.queued_request_ids, stats.queue_times_ns, strict=True):
        if (tracker := trackers.get(request_id)) is not None:
            tracker.admitted(request_id, queue_ns)
