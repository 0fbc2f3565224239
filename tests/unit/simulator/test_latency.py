import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from chairlift.core.step_plan import PageCopy, PlanState, StepPlan, StepResult
from chairlift.errors import ConfigurationError
from chairlift.simulator.calibration import Calibration, Cell, Limits, choose_cells, fit_overhead, shape_of
from chairlift.simulator.fit import TimedStep, choose_knots, fit_steps, least_squares
from chairlift.simulator.latency.catalogue import find_latency_model, sheet_names
from chairlift.simulator.latency.measured import Coefficients, MeasuredLatency, interpolate, read_measured
from chairlift.simulator.latency.model import MachineFacts, StepShape
from chairlift.simulator.latency.operator_tables import OperatorTableLatency, build_tables
from chairlift.simulator.latency.roofline import ModelSheet, RooflineLatency


def roofline(name: str) -> RooflineLatency:
    model = find_latency_model(name)
    assert isinstance(model, RooflineLatency)
    return model


def error_of(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_measured(path)
    return caught.value.message


def decodes(number: int, context: int) -> StepShape:
    return StepShape(num_decodes=number, num_decode_context_tokens=number * context, num_sampled=number)


def chunk(length: int, start: int = 0) -> StepShape:
    pairs = length * start + length * (length + 1) // 2
    return StepShape(
        num_chunks=1,
        num_chunk_rows=length,
        num_chunk_pairs=pairs,
        num_chunk_context_tokens=start + length,
        num_sampled=1,
    )


def test_moving_4000_tokens_of_a_70b_model_over_32_gb_per_s_takes_40_ms_each_way() -> None:
    # The figure of the article: 0.32 MB of KV per token, 1.28 GB, about 40 ms to the host and as much back.
    model = roofline("llama-3.1-70b@h100x4")
    assert model.model.kv_bytes_per_token == 327_680
    link = replace(model.device, host_link_bytes_per_s=32e9, host_link_efficiency=1.0)
    slow = RooflineLatency(link, model.model, 1)
    assert slow.copy_ns(4000) / 1e6 == pytest.approx(40, abs=1)
    pages = 4000 // 16
    out = slow.time(decodes(1, 100)._replace(num_pages_out=pages), 16)
    back = slow.time(decodes(1, 100)._replace(num_pages_in=pages), 16)
    assert out.copy_ns / 1e6 == pytest.approx(40, abs=1)
    assert back == out
    assert out.duration_ns - out.copy_ns == pytest.approx(slow.time(decodes(1, 100), 16).duration_ns, abs=2)
    both = slow.time(decodes(1, 100)._replace(num_pages_out=pages, num_pages_in=pages), 16)
    assert both == out


def test_weights_and_memory_of_the_sheets_are_those_of_the_real_things() -> None:
    small, large = roofline("llama-3.1-8b@h100"), roofline("llama-3.1-70b@h100x2")
    assert small.model.total_weights == pytest.approx(8.03e9, rel=0.01)
    assert large.model.total_weights == pytest.approx(70.6e9, rel=0.01)
    assert small.model.kv_bytes_per_token == 131_072
    # 72 GB less 16 GB of weights, and 144 GB less 141 GB.
    assert small.facts.num_kv_tokens == pytest.approx(427_000, rel=0.01)
    assert large.facts.num_kv_tokens is not None
    assert large.facts.num_kv_tokens < 20_000


def test_decodes_are_bound_by_memory_and_prompts_by_arithmetic() -> None:
    model = roofline("llama-3.1-8b@h100")
    one = model.time(decodes(1, 500), 16).duration_ns
    # Reading 15 GB of weights at 75 % of 3.35 TB/s takes 6 ms.
    assert 6e6 < one < 8e6
    assert model.time(decodes(64, 500), 16).duration_ns < 1.5 * one
    prompt = model.time(chunk(8192), 16).duration_ns
    assert 2 * 7.5e9 * 8192 / (989.4e12 * 0.74) * 1e9 < prompt < 320e6
    assert model.time(chunk(8192, 32_768), 16).duration_ns > 1.2 * prompt


def test_more_never_takes_less_and_faster_devices_never_longer() -> None:
    shapes = [decodes(1, 10), decodes(8, 10), decodes(8, 1000), decodes(256, 1000)]
    for name in ("llama-3.1-8b@a100", "llama-3.1-8b@h100", "llama-3.1-8b@h200", "llama-3.1-70b@h200x2"):
        times = [roofline(name).time(shape, 16).duration_ns for shape in shapes]
        assert times == sorted(times)
    for shape in (*shapes, chunk(2048)):
        a100, h100, h200 = (
            roofline(f"llama-3.1-8b@{name}").time(shape, 16).duration_ns for name in ("a100", "h100", "h200")
        )
        assert a100 > h100 >= h200
        assert roofline("llama-3.1-70b@h100x8").time(shape, 16) < roofline("llama-3.1-70b@h100x4").time(shape, 16)


def test_copies_hide_behind_arithmetic_where_the_device_can() -> None:
    model = roofline("llama-3.1-8b@h100")
    shape = decodes(8, 1000)._replace(num_pages_out=64)
    hiding = RooflineLatency(replace(model.device, copy_overlap=1.0), model.model)
    alone = model.time(decodes(8, 1000), 16).duration_ns
    copied = hiding.time(shape, 16)
    assert copied.duration_ns == max(alone, copied.copy_ns)
    assert model.time(shape, 16).duration_ns == pytest.approx(alone + copied.copy_ns, abs=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1-70b@h100", "no memory for KV on 1 devices"),
        ("llama-3.1-8b@b900", "no sheet 'b900' of devices; there are a100, h100, h200"),
        ("gpt-9@h100", "no sheet 'gpt-9' of models"),
        ("llama-3.1-8b@h100x0", "0 devices"),
        ("absent.json", "cannot be read"),
        ("absent.toml@h100", "cannot be read"),
    ],
)
def test_latency_models_that_are_not_there_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_latency_model(name)


def test_sheets_may_be_ones_own(tmp_path: Path) -> None:
    assert sheet_names("devices") == ["a100", "h100", "h200"]
    device = tmp_path / "toy.toml"
    device.write_text(
        "name='toy'\nmemory_bytes=1e11\nmemory_bytes_per_s=1e12\nflops_per_s=1e14\n"
        "host_link_bytes_per_s=1e10\ndevice_link_bytes_per_s=1e11\n"
    )
    assert "toy" in roofline(f"llama-3.1-8b@{device}").facts.name
    device.write_text("name='toy'\nspeed=3")
    with pytest.raises(ConfigurationError, match="unknown keys: speed"):
        find_latency_model(f"llama-3.1-8b@{device}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("flops_per_s", "0"), ("flops_per_s", "-1"), ("memory_bytes", "nan"), ("memory_bytes", "'x'"), ("name", "5")],
)
def test_a_sheet_with_a_number_that_no_machine_has_is_refused(tmp_path: Path, key: str, value: str) -> None:
    numbers = {
        "name": "'toy'", "memory_bytes": "1e11", "memory_bytes_per_s": "1e12", "flops_per_s": "1e14",
        "host_link_bytes_per_s": "1e10", "device_link_bytes_per_s": "1e11",
    }  # fmt: skip
    device = tmp_path / "toy.toml"
    device.write_text("\n".join(f"{name} = {number}" for name, number in {**numbers, key: value}.items()))
    with pytest.raises(ConfigurationError, match=f"{key} of sheet .* must be"):
        find_latency_model(f"llama-3.1-8b@{device}")


DEVICE = {
    "name": "'toy'", "memory_bytes": "1e11", "memory_bytes_per_s": "1e12", "flops_per_s": "1e14",
    "host_link_bytes_per_s": "1e10", "device_link_bytes_per_s": "1e11",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops_per_s": None}, r"toy\.toml of devices needs flops_per_s$"),
        ({"flops_per_s": "1e-3"}, r"a step of one token would take .* s, and 1000 are possible"),
        ({"memory_bytes_per_s": "1e-6"}, r"a step of one token would take .* s, and 1000 are possible"),
        ({"copy_overlap": "1.5"}, r"copy_overlap of sheet .* must be a number in \[0, 1\], got 1\.5"),
        ({"usable_memory": "2"}, r"usable_memory of sheet .* must be a number in \[1e-06, 1\], got 2"),
        ({"flops_per_s": "9" * 5000}, r"toy\.toml cannot be read: a number has too many digits"),
        ({"flops_per_s": "0x" + "f" * 5000}, "flops_per_s of sheet .* got a number of too many digits"),
        ({"flops_per_s": "[" * 20_000}, r"toy\.toml cannot be read: nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_sheet_is_said(tmp_path: Path, changes: dict[str, str | None], message: str) -> None:
    device = tmp_path / "toy.toml"
    entries = {**DEVICE, **changes}
    device.write_text("\n".join(f"{name} = {number}" for name, number in entries.items() if number is not None))
    with pytest.raises(ConfigurationError, match=message):
        find_latency_model(f"llama-3.1-8b@{device}")


def test_numbers_of_a_model_that_leave_no_kv_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "toy.toml"
    sizes = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size", "vocab_size")
    rows = ["name = 'toy'", "max_model_len = 99", "kv_bytes = 1e-6", *(f"{name} = 4" for name in sizes)]
    model.write_text("\n".join(rows))
    with pytest.raises(ConfigurationError, match="no machine has these numbers"):
        find_latency_model(f"{model}@h100")


def true_ns(shape: StepShape, rng: Random | None = None) -> float:
    rows = shape.num_rows
    linear = 25e6 + 3e5 * min(rows, 32) + 1.5e5 * max(0, rows - 32)
    rest = 700 * shape.num_decode_context_tokens + 90 * shape.num_chunk_pairs + 2e4 * shape.num_sampled
    return (linear + rest + 1e4 * (shape.num_pages_out + shape.num_pages_in)) * (rng.gauss(1, 0.02) if rng else 1.0)


LIMITS = Limits(
    max_num_seqs=64, max_num_batched_tokens=256, max_model_len=2048, num_pages=4000, page_size=16, num_host_pages=100
)


def test_a_fit_finds_what_steps_were_made_from_and_says_how_far_off_it_is() -> None:
    shapes = [shape_of(cell) for cell in choose_cells(LIMITS)]
    coefficients, error = fit_steps([TimedStep(shape, true_ns(shape)) for shape in shapes])
    assert error.mean < 0.01
    assert error.held_out_mean < 0.02
    assert error.three_term_mean > 3 * error.mean
    assert coefficients.decode_context_ns == pytest.approx(700, rel=0.02)
    assert coefficients.chunk_pair_ns == pytest.approx(90, rel=0.05)
    assert coefficients.copied_page_ns == pytest.approx(1e4, rel=0.1)
    model = MeasuredLatency(MachineFacts(name="x", max_model_len=9), coefficients, error)
    for shape in (decodes(20, 333), chunk(100, 700), decodes(48, 100)._replace(num_pages_in=20)):
        assert model.time(shape, 16).duration_ns == pytest.approx(true_ns(shape), rel=0.03)
    rng = Random(1)
    _, noisy = fit_steps([TimedStep(shape, true_ns(shape, rng)) for shape in shapes])
    assert 0.008 < noisy.mean < 0.03
    assert noisy.held_out_mean > noisy.mean
    # Stalls make single steps much longer; together they must take as long as they did.
    stalling = [TimedStep(s, true_ns(s) * (4.0 if n % 7 == 3 else 1.0)) for n, s in enumerate(shapes * 3)]
    stalled = MeasuredLatency(MachineFacts(name="x", max_model_len=9), fit_steps(stalling)[0])
    total_ns = sum(stalled.time(shape, 16).duration_ns for shape, _ in stalling)
    assert total_ns == pytest.approx(sum(ns for _, ns in stalling), rel=0.03)
    with pytest.raises(ConfigurationError, match="too few"):
        fit_steps([TimedStep(shape, 1.0) for shape in shapes[:5]])


def test_coefficients_are_never_negative() -> None:
    rows = [[1.0, float(x)] for x in range(10)]
    assert least_squares(rows, [10.0 - x for x in range(10)])[1] == 0.0
    assert least_squares(rows, [3.0 + 2 * x for x in range(10)]) == pytest.approx([3.0, 2.0])
    assert choose_knots([1, 1, 2, 2, 3, 64, 64, 65, 65, 256]) == [1, 2, 64, 256]
    assert interpolate(5, (1, 9), (10.0, 90.0)) == 50.0
    assert interpolate(17, (1, 9), (10.0, 90.0)) == 170.0
    assert interpolate(0, (1, 9), (10.0, 90.0)) == 10.0


def test_a_measured_model_survives_its_file(tmp_path: Path) -> None:
    facts = MachineFacts(name="cpu", max_model_len=100, num_kv_tokens=50, kv_bytes_per_token=7, step_overhead_ns=3)
    model = MeasuredLatency(facts, Coefficients(knot_rows=(1, 8), knot_ns=(5.0, 9.0), sampled_ns=2.0))
    path = tmp_path / "m.json"
    model.write(path)
    read = read_measured(path)
    assert read.facts == facts
    assert read.coefficients == model.coefficients
    assert find_latency_model(str(path)).time(decodes(8, 1), 16) == model.time(decodes(8, 1), 16)
    lacking = {**json.loads(path.read_text()), "machine": {"name": "x"}}
    assert error_of(path, json.dumps(lacking)).endswith("machine needs max_model_len")
    assert error_of(path, "[" * 50_000).endswith("nested too deeply")
    assert error_of(path, "9" * 5000).endswith("a number has too many digits")
    for wrong in ("{}", "[]", '{"format": "other"}', path.read_text().replace("sampled_ns", "samples_ns")):
        path.write_text(wrong)
        with pytest.raises(ConfigurationError, match=r"cannot be read|format|unknown keys"):
            read_measured(path)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("machine", {"max_model_len": "x"}, "max_model_len must be"),
        ("machine", {"max_model_len": None}, "max_model_len must be"),
        ("machine", {"num_kv_tokens": 0}, "num_kv_tokens must be"),
        ("machine", {"max_num_seqs": 1.5}, "max_num_seqs must be"),
        ("machine", {"step_overhead_ns": -1}, "step_overhead_ns must be"),
        ("machine", {"host_bytes_per_s": float("nan")}, "host_bytes_per_s must be"),
        ("coefficients", {"knot_rows": [], "knot_ns": []}, "one for each of knot_ns"),
        ("coefficients", {"knot_rows": [1, 8], "knot_ns": [5.0]}, "one for each of knot_ns"),
        ("coefficients", {"knot_rows": [8, 8]}, "must grow"),
        ("coefficients", {"decode_ns": -1.0}, "must be nanoseconds"),
        ("coefficients", {"knot_ns": [5.0, float("nan")]}, "must be nanoseconds"),
        ("coefficients", {"sampled_ns": "x"}, "must be nanoseconds"),
    ],
)
def test_a_measured_model_with_impossible_numbers_is_refused(
    tmp_path: Path, part: str, changes: dict, message: str
) -> None:
    path = tmp_path / "m.json"
    MeasuredLatency(
        MachineFacts(name="cpu", max_model_len=100), Coefficients(knot_rows=(1, 8), knot_ns=(5.0, 9.0))
    ).write(path)
    record = json.loads(path.read_text())
    record[part] |= changes
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match=message):
        read_measured(path)


def test_no_step_takes_less_than_no_time_where_more_rows_were_measured_to_be_faster() -> None:
    falling = Coefficients(knot_rows=(1, 8), knot_ns=(9.0, 5.0))
    assert MeasuredLatency(MachineFacts(name="x", max_model_len=9), falling).time(decodes(500, 1), 16).duration_ns > 0


class TimedExecutor:
    """Applies plans to the record that every executor keeps, and takes as long as the true model says."""

    def __init__(self) -> None:
        self.state = PlanState()
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> StepPlan:
        self.state.apply(plan)
        return plan

    def wait(self, handle: StepPlan) -> StepResult:
        self.plans.append(handle)
        requests = self.state.requests
        contexts = [requests[request_id].num_computed_tokens + 1 for request_id in self.state.decodes]
        assert len(contexts) == handle.num_decodes
        held = [page for request in requests.values() for page in request.pages]
        copied = [c.source for c in handle.swapped_out] + [c.target for c in handle.swapped_in]
        assert len({*held, *copied}) == len(held) + len(copied), "a page is used twice"
        assert all(len(r.pages) * 16 >= len(r.token_ids) for r in requests.values())
        shape = StepShape(
            len(contexts), sum(contexts), len(handle.chunks), sum(c.length for c in handle.chunks),
            sum(c.length * c.start + c.length * (c.length + 1) // 2 for c in handle.chunks),
            sum(c.start + c.length for c in handle.chunks), len(contexts) + len(handle.chunks),
            len(handle.swapped_out), len(handle.swapped_in),
        )  # fmt: skip
        return StepResult(handle.step, (0,) * shape.num_sampled, int(true_ns(shape)))

    def close(self) -> None:
        pass


def test_calibration_runs_the_steps_that_it_says_it_timed() -> None:
    executor = TimedExecutor()
    calibration = Calibration(executor, LIMITS, vocab_size=300)
    cells = choose_cells(LIMITS, thoroughness=1)
    assert any(cell.num_pages_out for cell in cells)
    assert any(cell.num_pages_in for cell in cells)
    assert any(cell.num_decodes and cell.chunks for cell in cells)
    for cell in cells:
        timed = calibration.time(cell, 2)
        assert timed.shape == shape_of(cell)
        assert timed.duration_ns == pytest.approx(true_ns(timed.shape), abs=1)
    assert len(executor.plans) == 3 * len(cells)
    assert executor.plans[0].swapped_out == executor.plans[0].swapped_in == ()
    assert [plan.step for plan in executor.plans] == list(range(len(executor.plans)))
    copying = next(plan for plan in executor.plans if plan.swapped_out)
    assert isinstance(copying.swapped_out[0], PageCopy)


def test_grids_grow_with_thoroughness_and_stay_within_the_limits() -> None:
    sizes = [len(choose_cells(LIMITS, thoroughness=level)) for level in (1, 2, 3)]
    assert sizes == sorted(set(sizes))
    tiny = Limits(max_num_seqs=2, max_num_batched_tokens=20, max_model_len=128, num_pages=9, page_size=16)
    for cell in choose_cells(tiny, thoroughness=3):
        assert cell.num_tokens <= 20
        assert cell.num_decodes + len(cell.chunks) <= 2
    assert Cell(2, 16) in choose_cells(tiny)


def test_overhead_is_a_constant_and_a_part_per_row() -> None:
    samples = [(rows, 1000 + 50 * rows + noise) for rows in (1, 16, 64) for noise in (0, 0, 0, 90_000)]
    assert fit_overhead(samples) == (1000, 50)
    assert fit_overhead([(4, 10), (4, 30)]) == (20, 0)
    assert fit_overhead([]) == (0, 0)


def operator_rows(model: ModelSheet) -> tuple[list[dict], list[dict], list[dict]]:
    """Tables of a machine whose products take 1 ns per million multiplications and attention 1 ns per pair."""
    sizes = sorted({model.hidden_size, 2 * model.hidden_size, 4096, 65_536, 1024, 128})
    gemm = [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": factor * m * n * k * 1e-12}
        for dtype, factor in (("bfloat16", 1), ("fp8", 0.5))
        for m in (1, 64, 4096)
        for n in sizes
        for k in sizes
    ]
    shape = {
        "num_heads": model.num_heads, "num_key_value_heads": model.num_kv_heads, "head_dim": model.head_size,
        "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0,
    }  # fmt: skip
    prompts = [
        {**shape, "batch_size": 1, "isl": n, "step": 0, "latency": n * n / 2 * 1e-6} for n in (1, 64, 1024, 8192)
    ]
    decodes = [
        {**shape, "batch_size": b, "isl": 1, "step": s, "latency": b * (s + 1) * 1e-6}
        for b in (1, 64)
        for s in (1, 4095)
    ]
    return gemm, prompts, decodes


def test_measured_operators_take_the_place_of_their_rooflines() -> None:
    plain = roofline("llama-3.1-8b@h100")
    model = plain.model
    tables = build_tables(*operator_rows(model), model, 1)
    weights = model.num_layers * model.layer_weights
    # 28,672 columns were not measured: they lie between those that were.
    assert tables.linear.at(64) == pytest.approx(64 * weights * 1e-6, rel=1e-6)
    assert tables.linear.at(5000) == pytest.approx(5000 * weights * 1e-6, rel=1e-6)
    assert tables.head.at(2) == pytest.approx(2 * model.vocab_size * model.hidden_size * 1e-6, rel=0.02)
    assert tables.prompt_attention.at(1024) == pytest.approx(model.num_layers * 1024**2 / 2)
    assert tables.decode_attention_ns(8, 1000) == pytest.approx(model.num_layers * 8 * 1000, rel=0.01)
    latency = OperatorTableLatency(plain, tables)
    shape = decodes(8, 1000)._replace(num_pages_out=10)
    found = latency.time(shape, 16)
    assert found.copy_ns == plain.time(shape, 16).copy_ns
    parts = tables.linear.at(8) + tables.decode_attention_ns(8, 1000) + tables.head.at(8) + found.copy_ns
    assert found.duration_ns == pytest.approx(plain.small_kernels_ns(8) + parts, abs=2)
    # A chunk behind a prefix takes as long as a prompt with as many pairs.
    behind, whole = chunk(100, 1000), chunk(457)
    difference = latency.time(behind, 16).duration_ns - latency.time(whole, 16).duration_ns
    rest = plain.small_kernels_ns(100) - plain.small_kernels_ns(457)
    assert difference == pytest.approx(tables.linear.at(100) - tables.linear.at(457) + rest, rel=0.01)
    assert "measured operators" in latency.facts.name
    with pytest.raises(ConfigurationError, match="no attention of 16 heads"):
        build_tables(*operator_rows(model), model, 2)


def test_tables_that_are_not_installed_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.simulator.latency.operator_tables.PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install aiconfigurator-core"):
        find_latency_model("llama-3.1-8b@h100+tables")
    with pytest.raises(ConfigurationError, match="there is \\+tables"):
        find_latency_model("llama-3.1-8b@h100+wishes")
