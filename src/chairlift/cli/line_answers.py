"""Answering numbered lines with an engine, many at once, results in order. Knows nothing of files or terminals."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chairlift.cli.jsonl import OutputChoice, OutputLine, PromptLine, parse_line
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import EngineUnavailableError, InvalidRequestError, OverloadedError
from chairlift.server.engine_port import Engine


async def answer_lines(
    engine: Engine,
    lines: Iterable[tuple[int, bytes]],
    write: Callable[[OutputLine], None],
    defaults: Mapping[str, Any],
    *,
    window: int,
) -> None:
    """Answer numbered lines in order, ``window`` of them in work at once; a bad line hurts no other.

    Raises:
        EngineUnavailableError: the engine died.
    """
    in_work: deque[asyncio.Task[OutputLine]] = deque()
    try:
        for number, text in lines:
            in_work.append(asyncio.ensure_future(_answer_line(engine, number, text, defaults)))
            if len(in_work) >= window:
                write(await in_work.popleft())
        while in_work:
            write(await in_work.popleft())
    finally:
        for task in in_work:
            task.cancel()
        await asyncio.gather(*in_work, return_exceptions=True)


async def _answer_line(engine: Engine, number: int, text: bytes, defaults: Mapping[str, Any]) -> OutputLine:
    answer = OutputLine(number)
    try:
        line = parse_line(text)
        answer.id = line.id
        sampling = line.sampling(defaults)
        token_ids = _token_ids(engine, line)
        deltas = await _last_deltas(engine, token_ids, sampling)
    except (InvalidRequestError, OverloadedError) as error:
        answer.error = error.message
        return answer
    answer.outputs = [
        OutputChoice(index, text, delta.finish_reason, delta.stop_reason, delta.num_output_tokens)
        for index, (text, delta) in enumerate(deltas)
    ]
    answer.num_prompt_tokens = len(token_ids)
    answer.num_cached_tokens = min(delta.num_cached_tokens or 0 for _, delta in deltas)
    return answer


async def _last_deltas(engine: Engine, token_ids: list[int], sampling: SamplingParams) -> list[tuple[str, ChoiceDelta]]:
    """The whole text and the last delta of each choice."""
    texts: list[list[str]] = [[] for _ in range(sampling.n)]
    last: dict[int, ChoiceDelta] = {}
    stream = await engine.submit(token_ids, sampling)
    try:
        async for delta in stream:
            texts[delta.index].append(delta.text)
            last[delta.index] = delta
    finally:
        stream.abort()
    if any(delta.finish_reason in ("abort", "error") for delta in last.values()):
        raise EngineUnavailableError("the engine stopped before the prompt was answered")
    return [("".join(texts[index]), last[index]) for index in range(sampling.n)]


def _token_ids(engine: Engine, line: PromptLine) -> list[int]:
    codec = engine.tokenizer
    if line.messages is not None:
        return codec.encode(codec.apply_chat_template(line.messages), add_special_tokens=False)
    return codec.encode(line.prompt) if isinstance(line.prompt, str) else line.prompt or []
