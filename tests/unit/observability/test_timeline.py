"""Timeline: a Chrome trace that opens and closes every span."""

import json
from pathlib import Path

from chairlift.core.events import Admitted, Finished, PagesCached, Preempted, Queued, Scheduled, StepCommitted
from chairlift.core.step_plan import Chunk
from chairlift.observability.timeline import TimelineSink

MS = 1_000_000


def test_steps_are_slices_and_requests_are_spans(tmp_path: Path) -> None:
    sink = TimelineSink()
    events = [
        Queued(7, 1 * MS, 5),
        Admitted(7, 2 * MS, 0, 0, 5, is_resume=False),
        Scheduled(0, 2 * MS, (), (Chunk(7, 0, 5, samples=True),)),
        StepCommitted(0, 3 * MS, 5, 0, 0, 0),
        PagesCached((1, 2)),
        Preempted(7, 6 * MS, 1, "pages", 5, 2),
        Admitted(7, 8 * MS, 1, 0, 5, is_resume=True),
        Finished(7, "stop", 1),
    ]
    for event in events:
        sink.emit(event)
    path = tmp_path / "trace.json"
    sink.write(path)
    trace = json.loads(path.read_text())["traceEvents"]

    step = next(event for event in trace if event["ph"] == "X")
    assert (step["ts"], step["dur"]) == (2000, 3000)
    assert step["args"]["chunks"] == [[7, 0, 5]]
    spans = [(event["name"], event["ph"], event["ts"]) for event in trace if event["ph"] in "be"]
    assert spans == [
        ("waiting", "b", 1000), ("waiting", "e", 2000), ("running", "b", 2000), ("running", "e", 6000),
        ("waiting", "b", 6000), ("waiting", "e", 8000), ("running", "b", 8000), ("running", "e", 8000),
    ]  # fmt: skip
    assert any(event["name"] == "preempted" and event["ph"] == "i" for event in trace)
