"""Requests that can never be served are refused, with limit, value and setting in the message."""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.validation import check_request
from chairlift.errors import InvalidRequestError, RequestTooLongError


@dataclass(frozen=True)
class Facts:
    max_model_len: int = 16
    num_pages: int = 100
    page_size: int = 4
    vocab_size: int = 50


FACTS = Facts()


@pytest.mark.parametrize("num_tokens", [1, 15])
@pytest.mark.parametrize("max_tokens", [1, 10, None])
def test_prompts_that_leave_room_for_one_token_are_fine(num_tokens: int, max_tokens: int | None) -> None:
    check_request([1] * num_tokens, SamplingParams(max_tokens=max_tokens), FACTS)


@pytest.mark.parametrize("num_tokens", [16, 17])
def test_prompts_that_fill_the_model_length_are_refused(num_tokens: int) -> None:
    with pytest.raises(RequestTooLongError) as caught:
        check_request([1] * num_tokens, SamplingParams(max_tokens=10), FACTS)
    for part in ("16", str(num_tokens), "max_tokens=10", "--max-model-len"):
        assert part in caught.value.message
    assert caught.value.param == "prompt"


def test_prompts_larger_than_the_pool_are_refused() -> None:
    small = Facts(num_pages=2, max_model_len=1000)
    check_request([1] * 8, SamplingParams(), small)
    with pytest.raises(RequestTooLongError, match=r"holds 8 tokens \(--kv-cache-memory\), but the prompt has 9"):
        check_request([1] * 9, SamplingParams(), small)


@pytest.mark.parametrize("bad", [999999, -1, 2**63, 50, True, "1", 1.0, None])
def test_ids_outside_the_vocabulary_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"\[0, 50\)") as caught:
        check_request([1, 2, bad], SamplingParams(), FACTS)  # type: ignore[list-item]
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (SamplingParams(max_tokens=0), "max_tokens"),
        (SamplingParams(stop=("a",), detokenize=False), "stop"),
        (SamplingParams(stop_token_ids=(50,)), "stop_token_ids"),
    ],
)
def test_sampling_that_cannot_work_is_refused(sampling: SamplingParams, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request([1], sampling, FACTS)
    assert caught.value.param == param


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least 1 token, got 0"):
        check_request([], SamplingParams(), FACTS)


@pytest.mark.parametrize("token_ids", [range(3), (1, 2), [1, 2], array("i", [1, 2]), deque([1, 2])])
def test_any_sequence_of_ids_is_a_prompt(token_ids: Sequence[int]) -> None:
    check_request(token_ids, SamplingParams(), FACTS)


def test_the_first_wrong_id_of_any_sequence_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"got 50$"):
        check_request(range(49, 53), SamplingParams(), FACTS)
