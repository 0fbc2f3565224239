"""A request that ends on its grammar is told why: what the grammar cost, or that nothing may come next."""

from unittest.mock import Mock

import pytest

from chairlift.config.load import load_settings
from chairlift.core.grammar import Grammar
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import NOT_NUMBERS
from chairlift.engine.build import build_engine
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.messages import AddRequest, Choice, StepDone, Update, decode_outbound, encode
from chairlift.engine.request_tracker import RequestTracker
from chairlift.engine.runner import to_step_done
from chairlift.engine.terms import Terms
from chairlift.errors import ChairliftError, EngineUnavailableError, InvalidRequestError
from chairlift.structured.mask_budget import MaskBudget
from chairlift.structured.sources import choice_part, whole


def error_of(failure: str | None, sampling: SamplingParams) -> ChairliftError:
    """What a request is told that could not go on."""
    owner = Mock(tokenizer=ByteTokenizer(), now_ns=lambda: 0)
    tracker = RequestTracker([Choice(1, 0)], (1, 2), sampling, Terms(), Mock(), owner)
    tracker.apply(Update(1, (), "error", failure=failure), 0)
    error = tracker._error
    assert error is not None
    return error


def test_a_grammar_that_costs_too_much_is_told_from_one_that_leaves_nothing() -> None:
    held = SamplingParams(grammar=Grammar("text", "guided_json"))
    costly = error_of("took more than --grammar-step-time allows", held)
    stuck = error_of(None, held)
    assert costly.message == "the answer could not go on: guided_json took more than --grammar-step-time allows"
    assert "guided_json and other fields of the request permit no token" in stuck.message
    assert "--grammar-step-time" not in stuck.message
    for error in (costly, stuck):
        assert isinstance(error, InvalidRequestError)
        assert error.param == "guided_json"
    assert isinstance(error_of(None, SamplingParams()), EngineUnavailableError)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(grammar=Grammar("text", "guided_json")), SamplingParams(min_tokens=2)]
)
def test_logits_that_are_no_numbers_are_not_the_requests_fault(sampling: SamplingParams) -> None:
    error = error_of(NOT_NUMBERS, sampling)
    assert isinstance(error, EngineUnavailableError)
    assert error.message == "the engine could not go on with this request: the model's logits are not numbers"


def test_the_engine_says_why_and_of_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskBudget, "is_spent", property(lambda budget: budget.num_steps > 2))
    runner = build_engine(load_settings({"executor": "fake"}, env={}), None).runner
    grammar = whole(choice_part(["abcdef"]), "guided_choice")
    for number, held in ((1, grammar), (2, None)):
        sampling = SamplingParams(max_tokens=9, grammar=held, ignore_eos=True)
        verdict = runner.add(
            AddRequest(
                choices=(Choice(number, 0),), prompt_token_ids=(1,), sampling=sampling, stop_token_ids=frozenset()
            ),
            0,
        )
        while verdict is None:
            verdict = next(iter(runner.take_verdicts(0)), None)
    told: list[Update] = []
    while (outcome := runner.step(0)) is not None:
        done = decode_outbound(encode(to_step_done(outcome.updates, runner.stats(0, outcome), outcome.result.failures)))
        assert isinstance(done, StepDone)
        told.extend(done.updates)
    ends = {update.request_id: update for update in told if update.finish_reason is not None}
    assert ends[1].finish_reason == "error"
    assert ends[1].failure is not None
    assert "--grammar-step-time allows, which is 0.1 s in a step" in ends[1].failure
    assert ends[2].finish_reason == "length"
    assert [update.failure for update in told if update.request_id == 2] == [None] * 9
