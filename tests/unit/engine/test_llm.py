"""The offline LLM on the toy model: right results in order, every time, and clean after trouble."""

import os
import signal
from collections.abc import Iterator

import pytest

import chairlift
from chairlift import LLM, SamplingParams
from chairlift.engine.byte_tokenizer import END_ID, VOCAB_SIZE, ByteTokenizer
from chairlift.engine.fake_model import readable_token
from chairlift.errors import ConfigurationError, InvalidRequestError, RequestTooLongError

TOKENIZER = ByteTokenizer()


def truth(prompt: list[int], num_tokens: int, seed: int = 0, *, ignore_eos: bool = False) -> list[int]:
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(readable_token(context, VOCAB_SIZE, seed))
        if context[-1] == END_ID and not ignore_eos:
            break
    return context[len(prompt) :]


def make(**settings: object) -> LLM:
    return LLM(None, executor="fake", **settings)


def assert_idle(llm: LLM) -> None:
    runner = llm._built.runner
    assert runner.find_violations() == []
    stats = runner.stats().scheduler
    assert (stats.num_running, stats.num_waiting, stats.num_leased_pages) == (0, 0, 0)
    assert stats.num_free_pages + stats.num_cached_pages == stats.num_pages


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_results_come_in_input_order_and_equal_the_model_alone(depth: int, batching: str) -> None:
    llm = make(max_num_seqs=4, pipeline_depth=depth, batching=batching)
    prompts = [f"prompt {i}" for i in range(10)]
    # Later prompts ask for less, so they end first.
    sampling = [SamplingParams(max_tokens=40 - 3 * i, temperature=0.0) for i in range(10)]
    for _ in range(2):
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        assert [output.prompt for output in outputs] == prompts
        for output, params in zip(outputs, sampling, strict=True):
            expected = truth(output.prompt_token_ids, params.max_tokens or 0)
            choice = output.outputs[0]
            assert choice.token_ids == expected
            assert choice.text == TOKENIZER.decode(expected)
            assert choice.finish_reason == ("stop" if expected[-1] == END_ID else "length")
            assert output.finished
        assert_idle(llm)


def test_seeded_choices_repeat_alone_in_company_and_under_preemption() -> None:
    sampling = SamplingParams(n=3, seed=7, max_tokens=24, ignore_eos=True)
    alone = make().generate("seeded", sampling, use_tqdm=False)[0]
    texts = [choice.text for choice in alone.outputs]
    assert len(set(texts)) == 3
    assert (
        texts[0]
        == make()
        .generate("seeded", SamplingParams(seed=7, max_tokens=24, ignore_eos=True), use_tqdm=False)[0]
        .outputs[0]
        .text
    )

    tight = make(kv_cache_memory="48KiB", page_size=4, max_num_seqs=8, enable_prefix_caching=False)
    others = [SamplingParams(max_tokens=12, ignore_eos=True) for _ in range(3)]
    crowd = tight.generate(["a", "b", "seeded", "c"], [*others[:2], sampling, others[2]], use_tqdm=False)
    assert tight.last_run_stats is not None
    assert tight.last_run_stats.num_preemptions > 0
    assert [choice.text for choice in crowd[2].outputs] == texts
    assert_idle(tight)


def test_statistics_of_a_run() -> None:
    llm = make(max_num_seqs=2)
    llm.generate(["abc", "de"], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    stats = llm.last_run_stats
    assert stats is not None
    assert (stats.num_requests, stats.num_prompt_tokens, stats.num_output_tokens, stats.num_tokens) == (2, 5, 10, 15)
    assert (stats.num_steps, stats.slot_utilization) == (5, 1.0)
    assert stats.output_tokens_per_s > 0
    assert stats.total_tokens_per_s > stats.output_tokens_per_s


def test_static_batching_wastes_slots_that_continuous_batching_fills() -> None:
    sampling = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 20, 2, 20)]
    utilization = {}
    for batching in ("static", "continuous"):
        llm = make(max_num_seqs=2, batching=batching)
        llm.generate(["a", "b", "c", "d"], sampling, use_tqdm=False)
        assert llm.last_run_stats is not None
        utilization[batching] = llm.last_run_stats.slot_utilization
    assert utilization["static"] == pytest.approx(44 / 80)
    assert utilization["continuous"] > 0.9


def test_stop_string_ends_a_choice_and_frees_it() -> None:
    llm = make()
    whole = llm.generate("hello", SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True), use_tqdm=False)[0]
    text = whole.outputs[0].text
    stop = text[10:12]
    cut = llm.generate("hello", SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, stop=(stop,)))[0]
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert_idle(llm)


def test_one_bad_prompt_is_named_before_any_prompt_starts() -> None:
    llm = make(max_model_len=16)
    with pytest.raises(RequestTooLongError, match="--max-model-len"):
        llm.generate(["ok", "x" * 16], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        llm.generate([[1], [10**6]], use_tqdm=False)
    assert llm.last_run_stats is None
    assert_idle(llm)


def test_output_is_clamped_to_the_model_length() -> None:
    llm = make(max_model_len=16)
    output = llm.generate([1] * 10, SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (6, "length")
    output = llm.generate([1] * 15, SamplingParams(max_tokens=10, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Started in the background of a shell, a process ignores Ctrl-C: not in this test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_everything_and_leaves_the_engine_usable() -> None:
    llm = make()
    deltas = llm.stream("hello", SamplingParams(max_tokens=500, ignore_eos=True))
    next(deltas)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(deltas)
    assert_idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.generate("again", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].finished


def test_leaving_a_stream_early_aborts_it() -> None:
    llm = make()
    deltas = llm.stream("hello", SamplingParams(max_tokens=500, ignore_eos=True))
    assert next(deltas).num_output_tokens == 1
    deltas.close()  # type: ignore[attr-defined]
    assert_idle(llm)


def test_prefix_hits_are_reported_and_the_cache_can_be_emptied() -> None:
    llm = make()
    prompt, sampling = [5] * 40, SamplingParams(max_tokens=1)
    assert [llm.generate(prompt, sampling, use_tqdm=False)[0].num_cached_tokens for _ in range(2)] == [0, 32]
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, sampling, use_tqdm=False)[0].num_cached_tokens == 0


def test_chat_goes_through_the_template() -> None:
    llm = make()
    chat = [{"role": "user", "content": "hi"}]
    one = llm.chat(chat, SamplingParams(max_tokens=3), use_tqdm=False)
    two = llm.chat([chat, chat], SamplingParams(max_tokens=3, temperature=0.0), use_tqdm=False)
    assert one[0].prompt == "<|user|>hi<|end|><|assistant|>"
    assert len(two) == 2
    assert two[0].outputs[0].text == two[1].outputs[0].text


def test_executor_failure_reaches_the_caller_and_ends_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make()

    def break_down(*_: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr(llm._built.executor, "wait", break_down)
        with pytest.raises(RuntimeError, match="out of order"):
            llm.generate(["a", "b"], use_tqdm=False)
    assert_idle(llm)


def test_unknown_settings_name_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="max_num_seqs"):
        make(max_num_seq=3)


def test_package_offers_names_lazily() -> None:
    assert chairlift.__version__
    assert set(chairlift.__all__) <= set(dir(chairlift))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = chairlift.nothing  # type: ignore[attr-defined]


def test_two_runs_at_once_are_refused_because_they_would_take_each_others_tokens() -> None:
    llm = make()
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    stream = llm.stream([1, 2, 3], sampling)
    tokens = list(next(stream).token_ids)
    for attempt in (lambda: llm.generate([[4]], use_tqdm=False), lambda: next(llm.stream([4]))):
        with pytest.raises(InvalidRequestError, match="busy"):
            attempt()
    tokens += [token for delta in stream for token in delta.token_ids]
    assert len(tokens) == 6
    assert llm.generate([[4]], sampling, use_tqdm=False)[0].finished
    assert_idle(llm)


def test_a_stream_that_is_closed_early_leaves_the_engine_to_others() -> None:
    llm = make()
    stream = llm.stream([1, 2, 3])
    next(stream)
    stream.close()
    assert llm.generate([[4]], use_tqdm=False)[0].finished
    assert_idle(llm)


def test_a_closed_one_says_so() -> None:
    llm = make()
    llm.close()
    with pytest.raises(InvalidRequestError, match="closed"):
        llm.generate("a", use_tqdm=False)
