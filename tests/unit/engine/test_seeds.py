"""Seeds of choices: the first is the request's own, all differ, all repeat."""

from hypothesis import given
from hypothesis import strategies as st

from chairlift.engine.seeds import SeedSource


@given(st.integers(-(2**63), 2**64 - 1), st.integers(1, 64))
def test_choices_differ_and_repeat(seed: int, num_choices: int) -> None:
    seeds = SeedSource(0).choice_seeds(seed, num_choices)
    assert seeds == SeedSource(9).choice_seeds(seed, num_choices)
    assert len(set(seeds)) == num_choices
    assert all(0 <= value < 2**64 for value in seeds)
    assert seeds[0] == seed % 2**64
    assert seeds[:1] == SeedSource(0).choice_seeds(seed, 1)


def test_neighbouring_seeds_share_no_choice() -> None:
    source = SeedSource(0)
    all_seeds = [value for seed in range(200) for value in source.choice_seeds(seed, 8)[1:]]
    assert len(set(all_seeds)) == len(all_seeds)


def test_requests_without_a_seed_differ_and_the_engine_repeats() -> None:
    first, second = SeedSource(3), SeedSource(3)
    drawn = [first.choice_seeds(None, 2) for _ in range(10)]
    assert drawn == [second.choice_seeds(None, 2) for _ in range(10)]
    assert len({value for seeds in drawn for value in seeds}) == 20
    assert SeedSource(4).choice_seeds(None, 1) != SeedSource(3).choice_seeds(None, 1)


def test_a_seeded_request_does_not_move_the_others() -> None:
    first, second = SeedSource(3), SeedSource(3)
    first.choice_seeds(5, 3)
    assert first.choice_seeds(None, 1) == second.choice_seeds(None, 1)
