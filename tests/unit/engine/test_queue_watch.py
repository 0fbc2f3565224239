"""Who is refused without asking the engine: by what it said last, and by what is on its way."""

from chairlift.engine.queue_watch import QueueWatch
from chairlift.observability.step_stats import NO_SCHEDULER, FullQueue, StepStats

S = 1_000_000_000
NOW = 5 * S


def watch(*queues: FullQueue, num_received: int = 0) -> QueueWatch:
    made = QueueWatch()
    report(made, *queues, num_received=num_received)
    return made


def report(made: QueueWatch, *queues: FullQueue, num_received: int = 0, now_ns: int = NOW) -> None:
    made.reported(StepStats(scheduler=NO_SCHEDULER, num_received=num_received, full_queues=queues), now_ns)


def test_the_engines_own_words_are_passed_on() -> None:
    made = watch(FullQueue(0, 0, "9 requests wait", 7))
    error = made.find_refusal(0, "", NOW)
    assert error is not None
    assert (error.message, error.retry_after_s) == ("9 requests wait", 7)


def test_more_urgent_tiers_and_other_tenants_ask_the_engine() -> None:
    made = watch(FullQueue(0, 0, "full", 1, "batch"))
    assert made.find_refusal(0, "batch", NOW) is not None
    assert made.find_refusal(1, "batch", NOW) is not None
    assert made.find_refusal(-1, "batch", NOW) is None
    assert made.find_refusal(0, "other", NOW) is None


def test_what_is_on_its_way_takes_the_places_that_are_left_until_it_is_reported() -> None:
    made = watch(FullQueue(2, 0, "full", 1))
    made.sent("", 1)
    assert made.find_refusal(0, "", NOW) is None
    made.sent("", 1)
    assert made.find_refusal(0, "", NOW) is not None
    report(made, FullQueue(1, 0, "full", 1), num_received=1)
    assert made.find_refusal(0, "", NOW) is not None
    report(made, FullQueue(1, 0, "full", 1), num_received=2)
    assert made.find_refusal(0, "", NOW) is None


def test_a_tenants_places_are_taken_by_its_own_requests_only() -> None:
    made = watch(FullQueue(2, 0, "full", 1, "batch"))
    made.sent("other", 5)
    made.sent("batch", 1)
    assert made.find_refusal(0, "batch", NOW) is None
    made.sent("batch", 1)
    assert made.find_refusal(0, "batch", NOW) is not None


def test_choices_that_came_in_pieces_are_counted_as_one_request() -> None:
    made = watch(FullQueue(3, 0, "full", 1))
    made.sent("", 3)
    assert made.find_refusal(0, "", NOW) is not None
    report(made, FullQueue(3, 0, "full", 1), num_received=3)
    assert made.find_refusal(0, "", NOW) is None


def test_an_old_report_refuses_nobody() -> None:
    made = watch(FullQueue(0, 0, "full", 1))
    assert made.may_refuse(NOW + S - 1)
    assert not made.may_refuse(NOW + S)
    assert made.find_refusal(0, "", NOW + S) is None


def test_without_a_full_queue_nobody_is_refused() -> None:
    made = watch()
    made.sent("", 1000)
    assert not made.may_refuse(NOW)
    assert made.find_refusal(0, "", NOW) is None
