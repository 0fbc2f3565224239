import gzip
import json
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest

from chairlift.benchmark.datasets import make_conversations, read_exchanges
from chairlift.benchmark.prompts import WORDS, MadePrompts, SharedPrefixes, TextScale
from chairlift.errors import ConfigurationError
from chairlift.workload.items import ContentRun, WorkRequest
from chairlift.workload.lengths import FIRST_TOKEN_ID


def common_prefix(left: list, right: list) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def asked(maker: MadePrompts, request: WorkRequest, number: int) -> list:
    (prompt,) = maker.exchange(request, number).turns
    return prompt.split() if isinstance(prompt, str) else list(prompt)


@pytest.mark.parametrize("vocab_size", [256, 32_000])
def test_ids_are_as_many_as_wanted_and_within_the_vocabulary(vocab_size: int) -> None:
    maker = MadePrompts(vocab_size=vocab_size)
    prompts = [asked(maker, WorkRequest(0, 500, 1), number) for number in range(5)]
    assert {len(prompt) for prompt in prompts} == {500}
    assert all(FIRST_TOKEN_ID <= token < vocab_size for prompt in prompts for token in prompt)
    assert all(common_prefix(prompts[0], other) < 3 for other in prompts[1:])


@pytest.mark.parametrize(("vocab_size", "words_per_token"), [(32_000, 1.0), (None, 0.8)])
def test_prompts_begin_alike_exactly_where_their_runs_do(vocab_size: int | None, words_per_token: float) -> None:
    maker = MadePrompts(vocab_size=vocab_size, scale=TextScale(1 / words_per_token, 0.0))
    first = WorkRequest(0, 1100, 1, (ContentRun(1, 512), ContentRun(2, 512), ContentRun(3, 76)))
    second = WorkRequest(0, 1000, 1, (ContentRun(1, 512), ContentRun(9, 488)))
    one, other = asked(maker, first, 0), asked(maker, second, 1)
    assert len(one) == pytest.approx(1100 * words_per_token, abs=1)
    assert 0 <= common_prefix(one, other) - round(512 * words_per_token) <= 3


def test_prefixes_are_shared_in_turn() -> None:
    maker = MadePrompts(vocab_size=1000, prefixes=SharedPrefixes(2, 64))
    prompts = [asked(maker, WorkRequest(0, 16, 1), number) for number in range(4)]
    assert {len(prompt) for prompt in prompts} == {80}
    assert 64 <= common_prefix(prompts[0], prompts[2]) < 68
    assert 64 <= common_prefix(prompts[1], prompts[3]) < 68
    assert common_prefix(prompts[0], prompts[1]) < 4


def test_words_make_up_for_what_the_server_adds() -> None:
    scale = TextScale(tokens_per_word=1.25, overhead_tokens=10)
    maker = MadePrompts(vocab_size=None, scale=scale)
    words = asked(maker, WorkRequest(0, 260, 1), 0)
    assert len(words) == 200
    assert set(words) <= set(WORDS)


def test_conversations_are_made_of_words() -> None:
    made = make_conversations(3, 2, 50, TextScale(1.25, 10), Random(1))
    assert [[len(str(turn).split()) for turn in one.turns] for one in made] == [[40, 40]] * 3
    assert len({one.turns for one in made}) == 3


def lines(tmp_path: Path, *rows: object, name: str = "own.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_every_form_of_a_line_is_understood(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"prompt": "a", "max_tokens": 3},
        {"prompt": [1, 2, 3]},
        {"question": "b", "answer": "c", "output_tokens": 4},
        {"question_id": 1, "turns": ["d", "e"]},
        {"messages": [{"role": "system", "content": "f"}, {"role": "user", "content": "g"}]},
        {"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "i"}]},
    )
    found = read_exchanges(path)
    assert [one.turns for one in found] == [("a",), ((1, 2, 3),), ("b",), ("d", "e"), ("g",), ("h",)]
    assert [one.max_tokens for one in found] == [3, None, 4, None, None, None]
    assert found[4].history == ({"role": "system", "content": "f"},)


def test_compressed_files_and_lists_are_read_and_other_line_separators_kept(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl.gz"
    path.write_bytes(gzip.compress('{"prompt": "a\u2028b"}\n'.encode()))
    assert read_exchanges(path)[0].turns == ("a\u2028b",)
    whole = tmp_path / "share.json"
    whole.write_text(json.dumps([{"prompt": "x"}, {"prompt": "y"}]))
    assert len(read_exchanges(whole)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no prompts"),
        ("{", "line 1 is not JSON"),
        ('{"prompt": "a"}\n5', "line 2 is not a JSON object"),
        ('{"prompt": 5}', "line 1 must have prompt"),
        ('{"prompt": ""}', "line 1 must have prompt"),
        ('{"prompt": [true]}', "line 1 must have prompt"),
        ('{"turns": []}', "line 1 must have prompt"),
        ('{"text": "a"}', "line 1 must have prompt"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 1 must have prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "at least 1, got 0"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_exchanges(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_exchanges(tmp_path / "none.jsonl")
