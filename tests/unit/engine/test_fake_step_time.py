"""The toy model as slow as somebody wants it."""

from chairlift.config.load import load_settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.build import build_engine
from chairlift.engine.messages import AddRequest, Choice

_STEP_MS = 15.0


def test_a_step_of_the_toy_model_takes_at_least_what_the_setting_says() -> None:
    settings = load_settings({"executor": "fake", "fake_step_ms": _STEP_MS}, env={})
    runner = build_engine(settings, None).runner
    sampling = SamplingParams(max_tokens=1)
    message = AddRequest(
        choices=(Choice(1, 0),), prompt_token_ids=(1, 2, 3), sampling=sampling, stop_token_ids=frozenset()
    )
    runner.add(message, 0)
    outcome = runner.step(0)
    assert outcome is not None
    assert outcome.result.duration_ns >= _STEP_MS * 1e6
