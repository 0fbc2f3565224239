"""What weights and KV in fewer bits cost in quality: perplexity of a text, and agreement of greedy answers.

    python -m benchmarks.quality --text sonnet.txt --questions mt_bench_questions.jsonl.gz
    python -m benchmarks.quality --text sonnet.txt --only float/float32,bfloat16/bfloat16,auto/int8

Perplexity is that of the text in windows of 1,024 tokens, each token after the first of its window counted. Greedy
agreement is the share of answers equal to those in float32 with floats for weights, and the share of an answer's tokens
before the two part. The baseline is what the file's weights stand for, computed in float32: bfloat16 adds rounding of
its own to that.
"""

import argparse
import gzip
import json
import math
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.machine import this_machine, today
from chairlift import LLM, SamplingParams
from chairlift.config.model_source import ModelSource, resolve_model_source
from chairlift.execution.torch_backend.cpu_kernels import make_cpu_kernels
from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.kv_cache import KVCache, KVShape
from chairlift.execution.torch_backend.models import load_model

WINDOW_TOKENS = 1024
FLOATS = {"float": torch.float32, "bfloat16": torch.bfloat16}
"""Weights that are no blocks: what the file's blocks stand for, in these numbers."""
CONFIGURATIONS = [
    ("float", "float32"),
    ("float", "bfloat16"),
    ("float", "int8"),
    ("bfloat16", "bfloat16"),
    ("auto", "float32"),
    ("auto", "bfloat16"),
    ("auto", "int8"),
    ("int8", "int8"),
]
KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def perplexity(source: ModelSource, token_ids: list[int], weights: str, kv_dtype: str, num_rows: int) -> float:
    dtype = FLOATS.get(weights, torch.float32)
    kernel_set = make_cpu_kernels(dtype, torch.get_num_threads(), 64)
    model = load_model(
        source,
        kernel_set.activation_dtype or dtype,
        kernel_set.kernels,
        WINDOW_TOKENS,
        quantization="none" if weights in FLOATS else weights,
        product_dtype=dtype,
    )
    config = model.config
    num_pages = WINDOW_TOKENS // 16
    shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim, 16, KV_DTYPES[kv_dtype])
    cache = KVCache(shape, num_pages, torch.device("cpu"))
    total, count = 0.0, 0
    for start in range(0, len(token_ids) - 1, WINDOW_TOKENS):
        window = torch.tensor(token_ids[start : start + WINDOW_TOKENS])
        chunks = [chunk(window, first, num_rows, num_pages) for first in range(0, len(window), num_rows)]
        logits = torch.cat([model.logits(model.forward(batch, cache.layers)) for batch in chunks])
        total += functional.cross_entropy(logits[:-1], window[1:], reduction="sum").item()
        count += len(window) - 1
    kernel_set.close()
    return math.exp(total / count)


def chunk(window: torch.Tensor, first: int, num_rows: int, num_pages: int) -> ForwardBatch:
    token_ids = window[first : first + num_rows]
    positions = torch.arange(first, first + len(token_ids))
    return ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        kv_slots=positions,
        num_decodes=0,
        decode_page_tables=torch.zeros((0, 0), dtype=torch.int32),
        decode_context_lengths=torch.zeros(0, dtype=torch.int32),
        prefills=[PrefillRows(0, len(token_ids), first + len(token_ids), torch.arange(num_pages))],
    )


def answers(questions: list[str], weights: str, kv_dtype: str, num_tokens: int) -> list[tuple[int, ...]]:
    settings = {"max_model_len": 2048, "kv_cache_memory": "1GiB", "kv_cache_dtype": kv_dtype}
    settings["dtype"] = "bfloat16" if weights == "bfloat16" else "float32"
    settings["quantization"] = "none" if weights in FLOATS else weights
    with LLM(**settings) as llm:
        chats = [[{"role": "user", "content": question}] for question in questions]
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        return [tuple(result.outputs[0].token_ids) for result in llm.chat(chats, params)]


def agreement(ours: list[tuple[int, ...]], theirs: list[tuple[int, ...]]) -> tuple[float, float]:
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
    shares = []
    for a, b in zip(ours, theirs, strict=True):
        same = next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
        shares.append(same / max(1, len(b)))
    return equal, sum(shares) / len(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--num-questions", type=int, default=80)
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument(
        "--rows", type=int, default=WINDOW_TOKENS, help="tokens of a step, for kernels that compute few in another way"
    )
    parser.add_argument("--only", help="configurations to run, such as float/float32,auto/int8; all if absent")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/quality.json"))
    options = parser.parse_args()
    source = resolve_model_source(None)
    with LLM(max_model_len=2048) as llm:
        token_ids = llm.tokenizer.encode(options.text.read_text(encoding="utf-8"), add_special_tokens=False)
    questions: list[str] = []
    if options.questions:
        with gzip.open(options.questions, "rt", encoding="utf-8") as lines:
            questions = [json.loads(line)["turns"][0] for line in lines][: options.num_questions]
    rows = []
    baseline: list[tuple[int, ...]] | None = None
    wanted = options.only.split(",") if options.only else [f"{q}/{kv}" for q, kv in CONFIGURATIONS]
    for weights, kv_dtype in (name.split("/") for name in wanted):
        with torch.inference_mode():
            row = {"weights": weights, "kv": kv_dtype}
            row["perplexity"] = perplexity(source, token_ids, weights, kv_dtype, options.rows)
        row["of_baseline"] = row["perplexity"] / (rows[0]["perplexity"] if rows else row["perplexity"])
        if questions:
            given = answers(questions, weights, kv_dtype, options.num_tokens)
            baseline = baseline or given
            row["equal_answers"], row["equal_tokens"] = agreement(given, baseline)
        rows.append(row)
        print(row, flush=True)
    options.output.write_text(
        json.dumps(
            {"rows": rows, "tokens": len(token_ids), "machine": this_machine().to_json(), "date": today()}, indent=1
        )
    )


if __name__ == "__main__":
    main()
