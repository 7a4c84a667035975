"""Bounds from counts made by hand, draft lengths from known costs, a verdict from known figures; no timing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from specbench.errors import ConfigError
from specbench.limit.drafting import Costs
from specbench.limit.machine import LEAST_BYTES, Rates, measured_rates
from specbench.limit.measuring import Asked, check, limits_of
from specbench.limit.passes import COMPILED_LENGTHS, Points, Timings, measure, points_for
from specbench.limit.report import LimitReport, make_report, model_limit
from specbench.limit.tables import tables
from specbench.limit.work import AttentionLayer, Work, work_of
from specbench.results.metrics import expected_speedup
from tests import tiny

FLOAT = 4  # bytes
# Of tiny.network("llama"): 4 layers, width 32, 4 heads of 8 and 2 of keys and values, MLP of 48, 257 tokens.
LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
HEAD, NORMS = 257 * 32, 9 * 32
ASKED = Asked("t", "d", context=16, repeats=1, seed=0, dtype="auto", device="cpu", engine="eager")


def test_the_work_of_a_pass_is_that_counted_by_hand() -> None:
    work = work_of(tiny.causal_lm())
    assert work.matmul_weights == 4 * LAYER + HEAD
    assert work.weight_bytes == FLOAT * (4 * LAYER + HEAD + NORMS)
    assert work.row_bytes == FLOAT * 32
    cached = 4 * 2 * 2 * 8 * FLOAT  # layers × (keys and values) × heads × width, of a token
    assert work.bytes_read(1, 100) == work.weight_bytes + FLOAT * 32 + 101 * cached
    assert work.bytes_read(6, 100) == work.weight_bytes + 6 * FLOAT * 32 + 106 * cached
    pairs = 11 + 12 + 13
    assert work.operations(3, 10) == 2 * (3 * (4 * LAYER + HEAD) + 4 * pairs * 4 * (8 + 8))


def test_a_tied_table_is_read_whole_once() -> None:
    work = work_of(tiny.causal_lm(tie_word_embeddings=True))
    assert work.weight_bytes == FLOAT * (4 * LAYER + HEAD + NORMS) and work.row_bytes == 0
    assert work.matmul_weights == 4 * LAYER + HEAD


def test_half_the_precision_is_half_the_bytes_and_the_same_operations() -> None:
    whole, half = tiny.causal_lm(), tiny.causal_lm()
    half.model.to(torch.bfloat16)
    assert work_of(half).bytes_read(2, 30) == work_of(whole).bytes_read(2, 30) / 2
    assert work_of(half).operations(2, 30) == work_of(whole).operations(2, 30)


def test_a_window_is_all_that_its_layers_look_back_on() -> None:
    layer = AttentionLayer(bytes_per_token=10, width=2, window=8)
    assert [layer.seen(context, 2) for context in (3, 7, 20)] == [5, 9, 9]
    assert layer.pairs(3, 2) == 4 + 5 and layer.pairs(6, 3) == 7 + 8 + 8
    assert [each.window for each in work_of(tiny.causal_lm("gemma2")).layers] == [8, None, 8, None]


def test_recurrent_states_are_read_whole_at_every_context() -> None:
    """Of mamba: a convolution over 4 and 8 states for each of 48 channels, in 4 layers."""
    work = work_of(tiny.causal_lm("mamba"))
    assert work.layers == () and work.state_bytes == 4 * 48 * (4 + 8) * FLOAT
    assert work.bytes_read(1, 9) == work.bytes_read(1, 900) == work.weight_bytes + work.row_bytes + work.state_bytes


def test_of_experts_those_are_read_that_tokens_choose() -> None:
    work = work_of(tiny.causal_lm("mixtral", num_local_experts=4, num_experts_per_tok=2))
    experts = 4 * 4 * 3 * 32 * 48
    assert (work.expert_weights, work.expert_bytes, work.expert_share) == (experts, FLOAT * experts, 0.5)
    bare = replace(work, expert_bytes=0, expert_weights=0)
    assert work.bytes_read(1, 9) - bare.bytes_read(1, 9) == FLOAT * experts / 2
    assert work.bytes_read(3, 9) - bare.bytes_read(3, 9) == pytest.approx(FLOAT * experts * 7 / 8)
    assert work.operations(3, 9) - bare.operations(3, 9) == 2 * 3 * experts / 2


def test_the_best_draft_length_follows_from_what_passes_cost() -> None:
    free = Costs(0.1, dict.fromkeys(range(1, 65), 1.0))
    for rate in (0.3, 0.7, 0.95):
        every = [expected_speedup(rate, length, 0.1) for length in range(64)]
        length, speedup = free.best(rate)
        assert speedup == pytest.approx(max(every)) and every[length] == max(every)
    dear = Costs(0.1, {1: 1.0, 2: 1.1, 6: 3.1, 64: 40.0})
    assert dear.verification(4) == pytest.approx(2.1)  # half-way between 2 and 6
    assert dear.speedup(0.5, 1) == pytest.approx(1.5 / (0.1 + 1.1))
    assert dear.best(0.5) == (1, pytest.approx(1.25)) and dear.best(0.05) == (0, 1.0)


def known(single: float, longer: float, per_token: float) -> Timings:
    """Passes over 1 and 6 tokens behind 256, three times each, and one token behind 64."""
    timings = Timings(per_token=[per_token] * 3, outside_passes=[per_token - single] * 3)
    timings.passes = {(1, 64): [single], (1, 256): [single] * 3, (6, 256): [longer / 2, longer, 2 * longer]}
    return timings


def known_report() -> LimitReport:
    """A target that reads 7.1 GB at 1 GB/s (well, milli-) and decodes a token in 10 ms; a drafter of a tenth."""
    points = Points(256, (64,), (1, 6))
    work = Work(weight_bytes=7_100_000, matmul_weights=1_000)
    rates = Rates(1e9, LEAST_BYTES, 1e9)
    target = model_limit("org/target", "float32", work, rates, known(0.008, 0.00864, 0.010), points.context)
    small = Work(weight_bytes=500_000, matmul_weights=1_000_000)
    drafter = model_limit("org/drafter", "float32", small, rates, known(0.0024, 0.003, 0.004), points.context)
    return make_report(target, drafter, points, device="Some CPU, 1 thread", engine="eager", repeats=3)


def test_the_verdict_says_known_figures() -> None:
    """7.1 ms of the 10 that a token takes; 2 million operations for the drafter's 4 ms."""
    report = known_report()
    assert report.verdict == (
        "AR runs at 0.71 of the bandwidth bound; the drafter alone at 0.50 of its arithmetic bound; "
        "verification of 6 tokens costs 1.08 single passes; a draft pass costs 0.30."
    )
    assert report.cost_ratio == pytest.approx(0.3) and report.verification_cost == pytest.approx({1: 1.0, 6: 1.08})
    point = report.target.at(6, 256)
    assert point.seconds.model_dump() == pytest.approx({"median": 0.00864, "low": 0.00648, "high": 0.01296})
    assert point.bound_seconds == pytest.approx(0.0071) and report.target.outside_passes.median == pytest.approx(0.002)


def test_the_tables_fit_and_hold_the_figures() -> None:
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        for table in tables(known_report()):
            console.print(table)
    text = capture.get()
    assert all(len(line) <= 100 for line in text.splitlines())
    for part in ("7.1 ", "0.71", "8 [8, 8]", "8.64 [6.48, 13]", "1.08", "c = 0.300", "AR runs at 0.71"):
        assert part in text


def test_every_point_is_measured_in_every_round() -> None:
    models = [tiny.causal_lm(seed=seed) for seed in range(2)]
    points = Points(16, (8, 32), (1, 2, 6))
    rounds: list[None] = []
    found = measure(models, points, 2, 0, lambda: rounds.append(None))
    assert len(rounds) == 3  # one to warm up
    for timings in found:
        counts = {point: len(values) for point, values in timings.passes.items()}
        assert counts == dict.fromkeys([(1, 8), (1, 16), (2, 16), (6, 16), (1, 32)], 2)
        assert len(timings.per_token) == len(timings.outside_passes) == 2
        assert all(0 < out < whole for out, whole in zip(timings.outside_passes, timings.per_token, strict=True))


def test_compiled_passes_are_measured_over_buffers_as_large_as_a_run_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """128 tokens for a context of 64; the curve's others apart, each over its own."""
    monkeypatch.setattr("specbench.models.graphs.compiled", lambda forward, name: forward)
    models = [tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)]
    said: list[str] = []
    for model in models:
        model.compile()
    report = limits_of(models[0], models[1], replace(ASKED, context=70, engine="compiled"), said.append)
    sizes = [int(line.partition(" for ")[2].split()[0]) for line in said if line.startswith("compiling")]
    assert sizes == [256, 256, 128, 128, 384, 384]  # 70 + 64 + 64; 64 + 1; 256 + 1
    lengths = {point.query_length for point in report.target.points if point.context == 70}
    assert lengths == set(COMPILED_LENGTHS)
    assert {p.context for p in report.target.points if p.query_length == 1} == {64, 70, 256}
    assert all(len(report.drafter.points) == len(model.points) for model in (report.target, report.drafter))


def test_points_stay_within_the_shortest_context() -> None:
    models = [tiny.causal_lm(), tiny.causal_lm(max_position_embeddings=70)]
    points = points_for(models, 30)
    assert max(points.query_lengths) == 32 and points.every_context == [30, 64]
    with pytest.raises(ConfigError, match="--context 70: the models' context has no room behind it"):
        limits_of(models[0], models[1], replace(ASKED, context=70), lambda text: None)


def test_rates_are_rates() -> None:
    rates = measured_rates(torch.device("cpu"), torch.float32, 1)
    assert rates.num_bytes == LEAST_BYTES
    assert rates.bytes_per_second > 0 and rates.operations_per_second > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "fast"}, "--engine fast: unknown: choices are eager, compiled"),
        ({"context": 1}, "--context 1: give 8 or more"),
        ({"repeats": 0}, "--repeats 0: give 1 or more"),
    ],
)
def test_wrong_words_are_said_before_anything_is_loaded(change: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(replace(ASKED, **change))


def test_the_command_prints_writes_and_draws(specbench, tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    pair = ["limit", "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--repeats", "2", "--context", "16"]
    code, out, err = specbench(*pair, "--output", "made/limit.json", "--plot", "limit.png")
    assert code == 0, err
    report = LimitReport.model_validate_json((tmp_path / "made" / "limit.json").read_text(encoding="utf-8"))
    assert report.verdict in " ".join(out.split()) and (tmp_path / "limit.png").stat().st_size > 0
    assert max(report.verification_cost) == 64 and {p.context for p in report.target.points} == {16, 64}
    assert max(map(len, out.splitlines())) <= 100
    code, out, err = specbench(*pair, "--json")
    assert code == 0 and LimitReport.model_validate(json.loads(out)).drafter.name == tiny_pair[1]


def test_files_that_cannot_be_written_are_told_first(specbench, tmp_path: Path) -> None:
    code, _, err = specbench("limit", "--target", "nowhere/at/all", "--output", str(tmp_path))
    assert code == 2 and err.startswith(f"error: --output {tmp_path}: cannot be written (it is a folder)")
    code, _, err = specbench("limit", "--plot", "limit.pixels")
    assert code == 2 and "--plot limit.pixels: no kind of picture" in err
