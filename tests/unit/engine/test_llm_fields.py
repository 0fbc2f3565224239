"""Log-probabilities and masks through the offline LLM on the toy model, whose ratings are known exactly."""

import math
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from chairlift.engine.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from chairlift.engine.fake_model import readable_token
from chairlift.engine.outputs import RequestOutput
from chairlift.errors import InvalidRequestError
from tests.unit.engine.test_llm import assert_idle, make

TOKENIZER = ByteTokenizer()
ASKED: dict[str, Any] = {"seed": 3, "temperature": 1.0, "max_tokens": 24, "ignore_eos": True}


def rank(context: list[int], token_id: int) -> int:
    return (token_id - readable_token(context, VOCAB_SIZE, 0)) % VOCAB_SIZE + 1


def generate(llm: LLM, prompts: list[Any], sampling: SamplingParams) -> list[RequestOutput]:
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    assert_idle(llm)
    return outputs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pipeline_depth": 2, "max_num_batched_tokens": 24},
        {"kv_cache_memory": "320KiB"},
        {"kv_cache_memory": "320KiB", "preemption_mode": "swap", "swap_space": "1MiB", "pipeline_depth": 2},
        {"kv_cache_memory": "320KiB", "preemption_mode": "tail"},
    ],
    ids=str,
)
def test_logprobs_do_not_depend_on_chunks_pages_or_preemptions(settings: dict[str, Any]) -> None:
    prompts = [list(f"prompt {number} ".encode() * (1 + number % 7)) for number in range(12)]
    llm = make(**{"max_num_seqs": 8, **settings})
    outputs = generate(llm, prompts, SamplingParams(logprobs=2, prompt_logprobs=0, n=2, **ASKED))
    if "kv_cache_memory" in settings:
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_preemptions > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        assert (len(output.prompt_logprobs), output.prompt_logprobs[0]) == (len(prompt), None)
        for place, entry in enumerate(output.prompt_logprobs[1:], 1):
            assert entry is not None
            ((token_id, found),) = entry.items()
            assert (token_id, found.rank) == (prompt[place], rank(prompt[:place], prompt[place]))
        for choice in output.outputs:
            assert choice.logprobs is not None
            assert len(choice.logprobs) == len(choice.token_ids) == 24
            for place, (token_id, entry) in enumerate(zip(choice.token_ids, choice.logprobs, strict=True)):
                context = prompt + choice.token_ids[:place]
                assert entry[token_id].rank == rank(context, token_id)
                assert entry[token_id].logprob == pytest.approx(-math.log(2) * rank(context, token_id))
                assert entry[token_id].decoded_token == TOKENIZER.token_text(token_id)
                assert len(entry) == (2 if rank(context, token_id) <= 2 else 3)
            total = sum(
                entry[token_id].logprob for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
            )
            assert choice.cumulative_logprob == pytest.approx(total)


def test_who_wants_the_prompts_logprobs_computes_all_of_it_and_shares_it() -> None:
    llm = make()
    (plain,) = generate(llm, ["x" * 100], SamplingParams(**ASKED))
    (asked,) = generate(llm, ["x" * 100], SamplingParams(prompt_logprobs=0, **ASKED))
    assert asked.num_cached_tokens == 0
    assert asked.outputs[0].token_ids == plain.outputs[0].token_ids
    (several,) = generate(llm, ["y" * 100], SamplingParams(prompt_logprobs=0, n=3, **ASKED))
    assert len(several.prompt_logprobs or ()) == 100
    # The other choices found what the first one had computed.
    assert several.num_cached_tokens == 96
    assert plain.prompt_logprobs is plain.outputs[0].logprobs is None


def test_b07_siblings_live_on_when_one_has_ended_and_the_rest_is_preempted() -> None:
    sampling = SamplingParams(n=3, **{**ASKED, "max_tokens": 60})
    others = [f"other {number}" for number in range(6)]
    free = generate(make(), ["family", *others], sampling)[0].outputs
    stop = free[1].token_ids[1]
    stopping = SamplingParams(n=3, stop_token_ids=(stop,), **{**ASKED, "max_tokens": 60})
    expected = [
        choice.token_ids[: choice.token_ids.index(stop) + 1] if stop in choice.token_ids else choice.token_ids
        for choice in free
    ]
    for mode in ("recompute", "swap", "tail"):
        llm = make(kv_cache_memory="320KiB", max_num_seqs=8, preemption_mode=mode, swap_space="64KiB")
        outputs = llm.generate(["family", *others], [stopping, *[sampling] * 6], use_tqdm=False)
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_preemptions > 0
        assert [choice.token_ids for choice in outputs[0].outputs] == expected
        assert outputs[0].outputs[1].finish_reason == "stop"
        assert_idle(llm)


def test_bad_words_hold_for_every_choice_and_every_request_alone() -> None:
    llm = make()
    plain = generate(llm, ["say"], SamplingParams(n=2, **ASKED))[0]
    word = plain.outputs[0].text[:3]
    words = SamplingParams(n=2, bad_words=(word,), **ASKED)
    outputs = llm.generate(["say", "say"], [words, SamplingParams(n=2, **ASKED)], use_tqdm=False)
    assert all(word not in choice.text for choice in outputs[0].outputs)
    assert [choice.text for choice in outputs[1].outputs] == [choice.text for choice in plain.outputs]
    with pytest.raises(InvalidRequestError, match="every one of the 1 allowed_token_ids") as caught:
        llm.generate("x", SamplingParams(allowed_token_ids=(120,), bad_words=("x",)), use_tqdm=False)
    assert caught.value.param == "allowed_token_ids"
    assert_idle(llm)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (1, VOCAB_SIZE)}, "allowed_token_ids"),
        ({"bad_token_ids": ((1, VOCAB_SIZE),)}, "bad_words"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=str(VOCAB_SIZE)) as caught:
        make().generate("x", SamplingParams(**params), use_tqdm=False)
    assert caught.value.param == param
