"""An event sink that draws steps and requests as a Chrome trace, to be opened in Perfetto or chrome://tracing.

Knows nothing of the scheduler's state: everything is read off the events.

Steps are one track of slices; each request is an asynchronous span per phase (``waiting``, ``running``) under its id,
with an instant mark where it was preempted.
"""

import json
from pathlib import Path
from typing import Any

from chairlift.core.events import Admitted, Event, Finished, Preempted, Queued, Scheduled, StepCommitted

_NS_PER_US = 1000


class TimelineSink:
    """Collects events in memory; :meth:`write` makes the file. Meant for tests and short runs."""

    def __init__(self) -> None:
        self.trace_events: list[dict[str, Any]] = []
        self._now_ns = 0
        self._planned: dict[int, Scheduled] = {}
        self._open_span: dict[int, str] = {}

    def emit(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Queued():
                self._now_ns = event.now_ns
                self._begin(event.request_id, "waiting", num_prompt_tokens=event.num_prompt_tokens)
            case Admitted():
                self._now_ns = event.now_ns
                self._begin(event.request_id, "running", step=event.step, num_cached_tokens=event.num_cached_tokens)
            case Preempted():
                self._now_ns = event.now_ns
                self._add("preempted", "i", self._now_ns, s="g", args={"request": event.request_id})
                self._begin(event.request_id, "waiting", num_lost_tokens=event.num_lost_tokens)
            case Scheduled():
                self._now_ns = event.now_ns
                self._planned[event.step] = event
            case StepCommitted():
                self._end_step(event)
            case Finished():
                self._end(event.request_id)
            case _:
                pass

    def write(self, path: Path) -> None:
        """Write the trace as JSON."""
        path.write_text(json.dumps({"traceEvents": self.trace_events, "displayTimeUnit": "ms"}), encoding="utf-8")

    def _end_step(self, event: StepCommitted) -> None:
        planned = self._planned.pop(event.step, None)
        start_ns = planned.now_ns if planned is not None else self._now_ns
        self._now_ns = max(self._now_ns, start_ns + event.duration_ns)
        args: dict[str, object] = {
            "prefill_tokens": event.num_prefill_tokens,
            "decode_tokens": event.num_decode_tokens,
            "padding_tokens": event.num_padding_tokens,
            "wasted_rows": event.num_wasted_rows,
        }
        if planned is not None:
            args["chunks"] = [[chunk.request_id, chunk.start, chunk.length] for chunk in planned.chunks]
        self._add(f"step {event.step}", "X", start_ns, dur=event.duration_ns / _NS_PER_US, args=args)

    def _begin(self, request_id: int, name: str, **args: object) -> None:
        self._end(request_id)
        self._open_span[request_id] = name
        self._add(name, "b", self._now_ns, cat="request", id=request_id, args=args)

    def _end(self, request_id: int) -> None:
        name = self._open_span.pop(request_id, None)
        if name is not None:
            self._add(name, "e", self._now_ns, cat="request", id=request_id)

    def _add(self, name: str, phase: str, time_ns: int, **fields: object) -> None:
        self.trace_events.append({"name": name, "ph": phase, "ts": time_ns / _NS_PER_US, "pid": 1, "tid": 1, **fields})
