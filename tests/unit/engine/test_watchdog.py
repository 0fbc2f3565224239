from chairlift.engine.watchdog import SLOWEST_STEPS, Watchdog


def looks(watchdog: Watchdog, *, is_stopped: bool = False, is_asked: bool = True, at_most: int = 10_000) -> int:
    """How many looks pass until something is wrong."""
    return next(n for n in range(1, at_most) if watchdog.look(is_stopped=is_stopped, is_asked=is_asked))


def test_silence_is_a_fault_once_it_has_lasted() -> None:
    watchdog = Watchdog(8.0)
    assert looks(watchdog) * watchdog.look_every_s == 8.0
    watchdog.heard()
    assert watchdog.look(is_stopped=False, is_asked=True) is None
    assert looks(watchdog) * watchdog.look_every_s == 8.0


def test_who_is_asked_nothing_may_be_silent() -> None:
    watchdog = Watchdog(1.0)
    assert all(watchdog.look(is_stopped=False, is_asked=False) is None for _ in range(1000))


def test_long_steps_are_waited_for() -> None:
    watchdog = Watchdog(1.0)
    watchdog.stepped(3.0)
    watchdog.stepped(0.1)
    assert looks(watchdog) * watchdog.look_every_s == SLOWEST_STEPS * 3.0


def test_a_stopped_process_is_noticed_sooner_and_one_that_goes_on_is_let_alone() -> None:
    watchdog = Watchdog(600.0)
    assert all(watchdog.look(is_stopped=n % 4 != 0, is_asked=False) is None for n in range(1001))
    assert looks(watchdog, is_stopped=True, is_asked=False) * watchdog.look_every_s == 5.0
