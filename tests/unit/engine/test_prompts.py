"""The forms of a prompt."""

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.prompts import EncodedPrompt, encode_prompt, match_sampling, split_prompts
from chairlift.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("prompts", "parts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[1], "a", {"prompt": "b"}], [[1], "a", {"prompt": "b"}]),
        ({"prompt_token_ids": [1]}, [{"prompt_token_ids": [1]}]),
        ([], []),
        ((text for text in ("a", "b")), ["a", "b"]),
    ],
)
def test_a_list_of_integers_is_one_prompt(prompts: object, parts: list[object]) -> None:
    assert split_prompts(prompts) == parts  # type: ignore[arg-type]


def test_each_form_becomes_tokens() -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    assert encode_prompt("a", encode) == EncodedPrompt("a", (97,))
    assert encode_prompt({"prompt": "a"}, encode) == EncodedPrompt("a", (97,))
    assert encode_prompt([1, 2], encode) == EncodedPrompt(None, (1, 2))
    assert encode_prompt({"prompt_token_ids": [1, 2]}, encode) == EncodedPrompt(None, (1, 2))


@pytest.mark.parametrize("bad", [{}, {"text": "a"}, {"prompt": "a", "images": []}, 3, None])
def test_other_forms_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRequestError, match="a prompt must be"):
        encode_prompt(bad, list)  # type: ignore[arg-type]


def test_sampling_is_one_for_all_or_one_each() -> None:
    one = SamplingParams(seed=1)
    assert match_sampling(one, 2) == [one, one]
    assert match_sampling(None, 1) == [SamplingParams()]
    assert match_sampling([one, SamplingParams()], 2) == [one, SamplingParams()]
    with pytest.raises(InvalidRequestError, match="3 prompts and 1 sampling_params"):
        match_sampling([one], 3)


@pytest.mark.parametrize("prompts", [None, 5, b"abc"])
def test_what_is_no_prompt_is_refused(prompts: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"got {type(prompts).__name__}"):
        split_prompts(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [5, {"max_tokens": 3}, [3], [{"max_tokens": 3}]])
def test_what_are_no_sampling_params_is_refused(params: object) -> None:
    with pytest.raises(InvalidRequestError, match="must be SamplingParams"):
        match_sampling(params, 1)  # type: ignore[arg-type]
