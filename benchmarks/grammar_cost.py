"""What a grammar costs: time to compile and per mask with llguidance and xgrammar, on the embedded model's vocabulary.

Knows nothing of the engine. ``python benchmarks/grammar_cost.py``; xgrammar is measured if it is installed.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np

from chairlift.config.model_source import resolve_model_source
from chairlift.tokenization import load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
WIDE = {
    "type": "object",
    "properties": {
        f"field_{index}": {"type": "object", "properties": {f"key_{i}": {"type": "string"} for i in range(10)}}
        for index in range(100)
    },
    "required": [f"field_{index}" for index in range(100)],
}
LONG_CHOICE = {"enum": [f"option number {index * 7919}" for index in range(2000)]}
REPEATS = 3
SCHEMAS = {"person": PERSON, "recursive tree": TREE, "100 objects": WIDE, "enum of 2,000": LONG_CHOICE}
TEXTS = {
    "person": json.dumps({"name": "Ada Lovelace, Countess", "age": 36, "tags": ["mathematics", "poetry", "engines"]}),
    "recursive tree": json.dumps({"value": 1, "children": [{"value": 2.5, "children": []} for _ in range(8)]}),
    "100 objects": json.dumps({f"field_{i}": {f"key_{k}": "text of it" for k in range(10)} for i in range(100)})[:3000],
    "enum of 2,000": json.dumps("option number 15838"),
}


class Timed:
    """Milliseconds of calls."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []

    def __call__(self, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        self.times_ms.append((time.perf_counter() - start) * 1000)
        return result


class Vocabulary:
    """The embedded model's tokens, as both libraries take them."""

    def __init__(self, tokens: Sequence[bytes], special_ids: Sequence[int], eos_token_id: int, encode: Any) -> None:
        self.tokens = list(tokens)
        self.special_token_ids = list(special_ids)
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def report(library: str, name: str, compile_ms: float, masks: Timed) -> None:
    """Print one line."""
    times = sorted(masks.times_ms)
    print(
        f"{library:12} {name:16} compile {compile_ms:9.2f} ms   mask mean {np.mean(times) * 1000:8.1f} us "
        f" p99 {times[int(len(times) * 0.99)] * 1000:8.1f} us  worst {times[-1] * 1000:8.1f} us  ({len(times)} masks)"
    )


def measure_llguidance(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Print what each schema costs with llguidance."""
    setup = Timed()
    eos = [vocabulary.eos_token_id]
    tokens = setup(lambda: llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), eos_token=eos))
    print(f"llguidance prepared the vocabulary in {setup.times_ms[0]:.0f} ms")
    mask = np.zeros((1, -(-vocab_size // 32)), np.int32)
    for name, schema in SCHEMAS.items():
        compiling, masks = Timed(), Timed()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        for _ in range(REPEATS):
            matcher = compiling(lambda grammar=grammar: llguidance.LLMatcher(tokens, grammar))
            for token in vocabulary(TEXTS[name]):
                masks(lambda matcher=matcher: llguidance.numpy.fill_next_token_bitmask(matcher, mask))
                if not matcher.consume_token(token):
                    print(f"llguidance: {name} stops early: {matcher.get_error().partition('<state>')[0].strip()}")
                    break
        report("llguidance", name, min(compiling.times_ms), masks)


def measure_xgrammar(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Print what each schema costs with xgrammar, if it is installed."""
    try:
        import xgrammar
    except ImportError:
        print("xgrammar is not installed")
        return
    setup = Timed()
    eos = [vocabulary.eos_token_id]
    info = setup(lambda: xgrammar.TokenizerInfo(vocabulary.tokens, xgrammar.VocabType.RAW, stop_token_ids=eos))
    print(f"xgrammar prepared the vocabulary in {setup.times_ms[0]:.0f} ms")
    compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    for name, schema in SCHEMAS.items():
        compiling, masks = Timed(), Timed()
        for _ in range(REPEATS):
            compiled = compiling(lambda schema=schema: compiler.compile_json_schema(json.dumps(schema)))
            matcher = xgrammar.GrammarMatcher(compiled)
            for token in vocabulary(TEXTS[name]):
                masks(lambda matcher=matcher: matcher.fill_next_token_bitmask(mask, 0))
                if not matcher.accept_token(token):
                    print(f"xgrammar: {name} stops early")
                    break
        report("xgrammar", name, min(compiling.times_ms), masks)


def main() -> None:
    """Measure both."""
    tokenizer = load_tokenizer(resolve_model_source(None))
    tokens = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
    eos = min(tokenizer.eos_token_ids)
    vocabulary = Vocabulary(tokens, sorted(tokenizer.special_ids), eos, lambda text: tokenizer.encode(text, False))
    print(f"vocabulary of {tokenizer.vocab_size} tokens")
    measure_llguidance(vocabulary, tokenizer.vocab_size)
    measure_xgrammar(vocabulary, tokenizer.vocab_size)


if __name__ == "__main__":
    main()
