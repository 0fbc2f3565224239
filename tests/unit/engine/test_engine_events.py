"""What the engine's reports say of preemptions, and of whose they were."""

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.events import Admitted, Finished, Preempted, Queued
from chairlift.engine.engine_events import EngineEvents
from chairlift.observability.step_stats import PreemptionNote, ResumeNote


def test_a_preemption_names_tier_and_tenant_however_soon_the_request_ends() -> None:
    events = EngineEvents(SchedulerConfig(), CacheConfig(num_pages=8))
    events.emit(Queued(7, 0, 3))
    events.introduce(7, -1, "search")
    events.emit(Admitted(7, 1, 0, 0, 3, is_resume=False))
    events.emit(Preempted(7, 2, 1, "slots", 3, 1, "swap", 2))
    events.emit(Admitted(7, 3, 2, 0, 3, is_resume=True, num_recomputed_tokens=4, num_swapped_pages=2))
    events.emit(Finished(7, "abort", 1))
    assert events.take_preemptions() == (PreemptionNote(-1, "search", "slots", "swap", 2),)
    assert events.take_resumes() == (ResumeNote(-1, "search", 4, 2),)
    assert (events.take_preemptions(), events.take_resumes()) == ((), ())
