"""Grammars on the torch executor: what comes of them is the same however requests are batched, preempted or planned."""

import json

import pytest
import torch

from chairlift.config.model_source import ModelSource
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.core import invariants
from chairlift.core.grammar import Grammar
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import NewRequest
from chairlift.core.stepper import Stepper
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.execution.torch_backend.batch import SamplingRows
from chairlift.execution.torch_backend.build import build_executor
from chairlift.execution.torch_backend.grammar_edit import GrammarEdit
from chairlift.execution.torch_backend.request_table import RequestTable
from chairlift.execution.torch_backend.sampler import sample
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.masks import GrammarMasks
from chairlift.structured.sources import choice_part, json_part, regex_part, whole
from chairlift.structured.vocabulary import build_vocabulary
from tests.equivalence.tiny_models import random_tokens

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "ids": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "ids"],
    "additionalProperties": False,
}
GRAMMARS = [
    whole(json_part(SCHEMA), "json"),
    whole(regex_part("[a-f]{4,40}!"), "regex"),
    whole(choice_part(["the first of them", "the second"]), "choice"),
    None,
]


def make_masks() -> GrammarMasks:
    tokenizer = ByteTokenizer()
    return GrammarMasks(
        GrammarCompiler(
            lambda end_tokens: build_vocabulary(tokenizer, tokenizer.vocab_size, end_tokens),
            max_bytes=100_000,
            timeout_s=10.0,
            end_tokens={END_ID},
        )
    )


def generate(
    source: ModelSource, *, depth: int = 1, num_pages: int | None = None, **scheduler: object
) -> list[list[int]]:
    """Outputs of eight requests, two for each grammar, one greedy and one that samples."""
    ready = build_executor(
        source,
        ModelSettings(dtype="float32", num_threads=2, max_model_len=128),
        CacheSettings(kv_cache_memory="4MiB", page_size=4, swap_space="1MiB"),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        pipeline_depth=depth,
    )
    ready.executor.add_edit(GrammarEdit(make_masks()))
    num_host_pages = 100 if scheduler.get("preemption_mode") == "swap" else 0
    config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, **scheduler})
    cache = CacheConfig(num_pages=num_pages or ready.num_pages, page_size=4, num_host_pages=num_host_pages)
    engine = Scheduler(config, cache)
    for index in range(8):
        sampling = SamplingParams(
            temperature=index // 4 * 0.9, seed=index, max_tokens=60, grammar=GRAMMARS[index % 4], top_p=0.9
        )
        request = Request(
            index, random_tokens(10, seed=index), sampling, seed=index, stop_token_ids=frozenset({END_ID})
        )
        engine.add(request, 0)
    stepper = Stepper(engine, ready.executor, depth)
    output: list[list[int]] = [[] for _ in range(8)]
    while (outcome := stepper.step(0)) is not None:
        assert invariants.check(engine) == []
        for update in outcome.updates:
            output[update.request_id].extend(update.token_ids)
    if num_pages:
        assert engine.stats().preemptions_total > 0
    ready.executor.close()
    return output


@pytest.fixture(scope="module")
def expected(source: ModelSource) -> list[list[int]]:
    return generate(source)


def test_outputs_follow_their_grammars(expected: list[list[int]]) -> None:
    for index, output in enumerate(expected):
        if index % 4 == 3:
            continue
        text = bytes(output[:-1] if output[-1] == END_ID else output).decode(errors="replace")
        is_whole = output[-1] == END_ID
        if index % 4 == 0 and is_whole:
            assert set(json.loads(text)) == {"name", "ids"}
        elif index % 4 == 0:
            assert text.lstrip().startswith("{")
        elif index % 4 == 1:
            assert set(text) <= set("abcdef!")
        else:
            assert text in ("the first of them", "the second")
            assert is_whole


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 2},
        {"max_num_seqs": 3},
        {"num_pages": 34},
        {"num_pages": 34, "depth": 2},
        {"num_pages": 34, "preemption_mode": "swap"},
        {"num_pages": 34, "preemption_mode": "tail"},
        {"max_num_batched_tokens": 12},
    ],
)
def test_a_grammar_survives_preemption_and_pipelining(
    source: ModelSource, expected: list[list[int]], options: dict
) -> None:
    assert generate(source, **options) == expected


def table_with(*grammars: Grammar | None, min_tokens: int = 0) -> RequestTable:
    table = RequestTable(len(grammars), 16, 4)
    for index, grammar in enumerate(grammars):
        sampling = SamplingParams(grammar=grammar, min_tokens=min_tokens)
        table.add(NewRequest(index, [1, 2], 2, 0, (index,), sampling, 0, frozenset({END_ID})))
    return table


def edited(table: RequestTable, positions: list[int]) -> torch.Tensor:
    import numpy as np

    rows = np.array([table.row(index) for index in range(len(positions))])
    logits = torch.zeros(len(positions), 300)
    sampling_rows = SamplingRows(rows, np.array(positions), torch.arange(len(positions)))
    GrammarEdit(make_masks())(logits, table, sampling_rows)
    return logits


def test_rows_without_a_grammar_are_left_alone_and_a_failed_one_has_nothing() -> None:
    table = table_with(whole(choice_part(["ab"]), "c"), None, whole(choice_part(["ab"]), "c"))
    table.token_ids[table.row(2), 2] = ord("x")
    logits = edited(table, [2, 2, 3])
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [ord("a")]
    assert torch.isfinite(logits[1]).all()
    assert not torch.isfinite(logits[2]).any()
    assert list(table.grammar_failures()) == [2]
    assert table.grammar_failures()[2].startswith("cannot be followed any further: ")


def test_logits_that_are_no_numbers_are_told_from_a_grammar_that_leaves_nothing() -> None:
    import numpy as np

    table = table_with(whole(choice_part(["ab"]), "c"), whole(choice_part(["ab"]), "c"))
    table.token_ids[table.row(1), 2] = ord("x")
    rows = SamplingRows(np.array([table.row(0), table.row(1)]), np.array([2, 3]), torch.arange(2))
    sampled = sample(torch.full((2, 300), torch.nan), table, rows, edits=[GrammarEdit(make_masks())])
    assert (sampled.failed_rows, sampled.broken_rows) == ((0, 1), (0,))
    assert table.request_ids({table.row(0)}) == [0]


def test_the_end_of_a_grammar_counts_more_than_min_tokens() -> None:
    table = table_with(whole(choice_part(["a"]), "c"), min_tokens=9)
    table.token_ids[table.row(0), 2] = ord("a")
    assert torch.isfinite(edited(table, [3])[0]).nonzero().flatten().tolist() == [END_ID]
