"""Output lengths guessed from history."""

from chairlift.core.length_predictor import LengthPredictor


def test_nothing_is_known_at_first_and_the_limit_is_assumed():
    assert LengthPredictor().predict_remaining("t", 0, 500) == 500
    assert LengthPredictor().predict_remaining("t", 480, 500) == 20


def test_the_tenants_median_counts_once_there_are_enough_answers():
    predictor = LengthPredictor()
    for length in (10, 20, 30, 40, 50, 60, 70):
        predictor.observe("t", length)
    assert predictor.predict_remaining("t", 0, 500) == 500
    predictor.observe("t", 80)
    assert predictor.predict_remaining("t", 0, 500) == 50
    assert predictor.predict_remaining("t", 0, 25) == 25, "never more than the limit"


def test_a_new_tenant_is_like_everybody():
    predictor = LengthPredictor()
    for _ in range(8):
        predictor.observe("short", 4)
    for _ in range(20):
        predictor.observe("long", 400)
    assert predictor.predict_remaining("new", 0, 1000) == 400
    assert predictor.predict_remaining("short", 0, 1000) == 4


def test_who_has_got_more_than_most_is_compared_with_the_rest():
    predictor = LengthPredictor()
    for length in [10] * 50 + [100] * 10:
        predictor.observe("t", length)
    assert predictor.predict_remaining("t", 0, 1000) == 10
    assert predictor.predict_remaining("t", 10, 1000) == 90
    assert predictor.predict_remaining("t", 100, 1000) == 900, "longer than ever seen: the limit is all that is known"


def test_old_answers_and_old_tenants_are_forgotten():
    predictor = LengthPredictor()
    for _ in range(LengthPredictor.NUM_LENGTHS):
        predictor.observe("t", 10)
    for _ in range(LengthPredictor.NUM_LENGTHS):
        predictor.observe("t", 90)
    assert predictor.predict_remaining("t", 0, 1000) == 90
    for number in range(LengthPredictor.NUM_TENANTS + 10):
        predictor.observe(f"t{number}", 5)
    assert len(predictor._tenants) == LengthPredictor.NUM_TENANTS
    assert len(predictor._all._sorted) == LengthPredictor.NUM_GLOBAL_LENGTHS
