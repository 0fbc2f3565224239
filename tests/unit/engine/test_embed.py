"""Vectors from the offline LLM on the toy model, whose vectors are known exactly."""

import math
import struct
from typing import Any

import numpy as np
import pytest

from chairlift import LLM
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.embeddings import shape_embedding
from chairlift.errors import ConfigurationError, EngineUnavailableError, InvalidRequestError, RequestTooLongError
from chairlift.execution.fake.embeddings import EMBEDDING_SIZE, reference_embedding
from tests.unit.engine.test_llm import assert_idle, make

TOKENIZER = ByteTokenizer()
TEXTS = [f"text {number} " * (1 + number % 9) for number in range(20)]


def truth(token_ids: list[int], pooling: str, dimensions: int = EMBEDDING_SIZE) -> list[float]:
    raw = reference_embedding(token_ids, pooling)
    vector = struct.unpack(f"<{len(raw) // 4}f", raw)[:dimensions]
    length = math.sqrt(sum(number**2 for number in vector))
    return [number / length for number in vector]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pipeline_depth": 2, "max_num_batched_tokens": 24, "max_num_seqs": 4},
        {"kv_cache_memory": "128KiB", "admission": "optimistic", "max_num_batched_tokens": 70, "max_num_seqs": 8},
    ],
    ids=str,
)
def test_vectors_come_in_input_order_and_are_those_of_the_model(pooling: str, settings: dict[str, Any]) -> None:
    with make(pooling_type=pooling, **settings) as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)
        assert [output.prompt for output in outputs] == TEXTS
        for output in outputs:
            assert output.prompt_token_ids == TOKENIZER.encode(output.prompt or "")
            assert output.outputs.embedding == pytest.approx(truth(output.prompt_token_ids, pooling), abs=1e-6)
            assert output.outputs.hidden_size == EMBEDDING_SIZE
        assert_idle(llm)
        assert llm.last_run_stats is not None
        assert llm.last_run_stats.num_output_tokens == 0


def test_vectors_are_cut_only_where_the_operator_says_that_they_may_be() -> None:
    with make() as llm, pytest.raises(InvalidRequestError, match="--matryoshka"):
        llm.embed("text", use_tqdm=False, dimensions=4)
    with make(matryoshka=True) as llm:
        (output,) = llm.embed("text", use_tqdm=False, dimensions=4)
        assert output.outputs.embedding == pytest.approx(truth(TOKENIZER.encode("text"), "last", 4), abs=1e-6)
        for wrong in (0, EMBEDDING_SIZE + 1):
            with pytest.raises(InvalidRequestError, match=f"have {EMBEDDING_SIZE}"):
                llm.embed("text", use_tqdm=False, dimensions=wrong)


def test_prompts_fill_the_model_length_and_wrong_ones_are_refused_before_anything_runs(llm: LLM) -> None:
    (full,) = llm.embed([[5] * 64], use_tqdm=False, normalize=False)
    assert full.outputs.embedding == pytest.approx(
        struct.unpack(f"<{EMBEDDING_SIZE}f", reference_embedding([5] * 64, "last"))
    )
    for wrong, error in (([5] * 65, RequestTooLongError), ([], InvalidRequestError), ([-1], InvalidRequestError)):
        with pytest.raises(error):
            llm.embed([[5], wrong], use_tqdm=False)
    assert_idle(llm)


@pytest.fixture
def llm() -> LLM:
    return make(max_model_len=64)


def test_a_vector_that_is_not_finite_is_an_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    executor: Any = llm._built.executor
    monkeypatch.setattr(executor, "_pool", lambda chunk, found: None)
    with pytest.raises(EngineUnavailableError, match="prompt 0 is not finite"):
        llm.embed("text", use_tqdm=False)
    assert_idle(llm)


def test_a_vector_of_zeros_stays_one() -> None:
    zeros = np.zeros(4, "<f4")
    assert shape_embedding(zeros.tobytes()).tolist() == zeros.tolist()


def test_there_is_no_other_pooling() -> None:
    with pytest.raises(ConfigurationError, match="pooling"):
        make(pooling_type="max")
