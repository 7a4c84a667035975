"""Bounds from counts made by hand, draft lengths from known costs, a verdict from known figures; no timing."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median

import pytest
import torch
from rich.console import Console

from specbench.analysis.roofline.report import Costs, ModelConditions, Ratio, RooflineReport, fastest_length, tables
from specbench.analysis.roofline.roofline import (
    COMPILED_LENGTHS,
    LEAST_BYTES,
    TURNS,
    AttentionLayer,
    ModelTimings,
    RateBenchmark,
    Rates,
    TimedPasses,
    Work,
    lengths_for,
    measure,
    median_ratios,
    model_roofline,
    roofline_of,
    time_passes,
    tokens_of,
    with_ends,
    work_of,
)
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.meters import Clock, PassLog
from specbench.results.metrics import expected_speedup
from specbench.statistics.bootstrap import Resampler
from tests.support import tiny
from tests.support.rooflines import known_report, known_timings

FLOAT = 4  # bytes
# Of tiny.network("llama"): 4 layers, width 32, 4 heads of 8 and 2 of keys and values, MLP of 48, 257 tokens.
LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
HEAD, NORMS = 257 * 32, 9 * 32


@pytest.fixture
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is timed as shortly as it can be, for tests that do not judge how long it takes."""
    for name in ("TURN_SECONDS", "SINGLE_SECONDS", "ENOUGH_SECONDS"):
        monkeypatch.setattr(f"specbench.analysis.roofline.roofline.{name}", 1e-4)


@pytest.fixture
def _few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations have 8 tokens and not 32, for tests that do not judge how many there are."""
    monkeypatch.setattr("specbench.analysis.roofline.roofline.NUM_TOKENS", 8)


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
        length = fastest_length(free, rate)
        assert free.speedup(rate, length) == pytest.approx(max(every)) and every[length] == max(every)
    dear = Costs(0.1, {1: 1.0, 2: 1.1, 6: 3.1, 64: 40.0})
    assert dear.verification(4) == pytest.approx(2.1)  # half-way between 2 and 6
    assert dear.speedup(0.5, 1) == pytest.approx(1.5 / (0.1 + 1.1))
    assert fastest_length(dear, 0.5) == 1 and dear.speedup(0.5, 1) == pytest.approx(1.25)
    assert fastest_length(dear, 0.05) == 0 and dear.speedup(0.05, 0) == 1.0


def test_the_verdict_says_known_figures() -> None:
    """7.1 ms of the 10 that a token takes; 2 million operations, which take 2 ms, of the 2.5 that the drafter takes."""
    report = known_report()
    assert report.verdict == (
        "AR's share of the memory bound: 0.71; the drafter's of its compute bound: 0.80; "
        "single passes that verifying 6 tokens costs: 1.08; those of a draft pass: 0.30"
    )
    assert report.drafter.share_of_bound.value == pytest.approx(0.8)
    assert report.costs.cost_ratio == pytest.approx(0.3) and report.costs.verifying == pytest.approx({1: 1.0, 6: 1.08})
    point = report.target.at(6)
    assert point.seconds.model_dump() == pytest.approx({"median": 0.00864, "low": 0.00648, "high": 0.01296})
    assert point.bound_seconds == pytest.approx(0.0071) and report.target.overhead.median == pytest.approx(0.002)


def test_ratios_have_intervals_from_five_rounds_on() -> None:
    """What is the same in every round has an interval without width; what is not, a wide one."""
    few, many = known_report(4), known_report(9)
    assert few.cost_ratio == Ratio(value=few.cost_ratio.value)
    assert "single passes that verifying 6 tokens costs: 1.08 [0.54, 2.16]; " in many.verdict
    share = many.target.share_of_bound
    assert (share.low, share.value, share.high) == pytest.approx((0.71, 0.71, 0.71))
    verifying = many.verification_cost[6]
    assert (verifying.low, verifying.value, verifying.high) == pytest.approx((0.54, 1.08, 2.16))
    [best] = [each for each in many.best if each.acceptance_rate == 0.9]
    tokens = sum(0.9**k for k in range(best.num_draft_tokens + 1))
    assert best.num_draft_tokens == 5 and best.speedup.value == pytest.approx(tokens / (5 * 0.3 + 1.08))
    bounds = (tokens / (1.5 + 2.16), tokens / (1.5 + 0.54))
    assert (best.speedup.low, best.speedup.high) == pytest.approx(bounds)


def test_a_slow_round_of_the_machine_slows_its_bound_and_its_decoding_alike() -> None:
    """In rounds of half the speed both take twice as long: their ratio stays what it is, whatever rounds are drawn."""
    speeds = [1.0, 0.5, 1.0, 0.5, 0.5]
    rates = [Rates(1e9 * speed, 1e12) for speed in speeds]
    timings = known_timings(0.008, 0.009, 0.010, rates)
    timings.per_token = [0.010 / speed for speed in speeds]
    work = Work(weight_bytes=7_100_000, matmul_weights=1_000)
    model = ModelConditions(name="target", revision=None, dtype="float32", attention="sdpa", capacity=None)
    share = model_roofline((model, work), timings, 256, Resampler.of_units(5, 0)).share_of_bound
    assert (share.low, share.value, share.high) == pytest.approx((0.71, 0.71, 0.71))


def test_the_tables_fit_and_hold_the_figures() -> None:
    text = printed(known_report())
    assert all(len(line) <= 100 for line in text.splitlines())
    for part in ("7.1 ", "0.71", "8 (8–8)", "8.64 (6.48–13)", "1.08", "c = 0.30", "memory bound: 0.71",
                 "30 (30–30)", "5%", "org/target (0123456): float32, sdpa", "on Some CPU, 1 thread", "torch 2.1, ",
                 "commit 0123456789abcdef-dirty-00000000", "none below 5 rounds"):  # fmt: skip
        assert part in " ".join(text.split())  # captions are wrapped
    assert "0.71 [0.71, 0.71]" in printed(known_report(9))


def test_the_bound_is_the_longer_of_the_two() -> None:
    assert known_report(rates=[Rates(5e8, 1e9)] * 3).target.share_of_bound.value == pytest.approx(1.42)
    by_arithmetic = known_report(rates=[Rates(1e9, 5e8)] * 3)
    assert by_arithmetic.drafter.at(1).bound_name == "compute bound"
    assert by_arithmetic.drafter.share_of_bound.value == pytest.approx(1.6)


def test_a_speedup_that_is_not_told_apart_from_1_is_marked() -> None:
    """At α = 0.4 the best of 1 token is 1.4 ÷ (0.3 + 1.016), with v(2) from 0.908 to 1.232; none is drafted at 0.3."""
    cells = [line.split() for line in printed(known_report(9)).splitlines() if line.strip()]
    lines = {first: others for first, *others in cells}
    assert lines["0.3"][:3] == ["0", "1.00", "[1.00,"]
    assert lines["0.4"][:4] == ["1", "†1.06", "[0.91,", "1.16]"]
    assert lines["0.9"][:4] == ["5", "1.82", "[1.28,", "2.30]"]
    assert "† the interval includes 1" in printed(known_report(9))
    assert "†1" not in printed(known_report(4))  # without intervals nothing is said of it


def printed(report: RooflineReport) -> str:
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        for table in tables(report):
            console.print(table)
    return capture.get()


class Scripted:
    """Stands for a model whose passes take known seconds, on a machine that it may share with another one: `order` has
    every pass of both. After every 10 ms of work the machine is away for `away` seconds."""

    compiled = None

    def __init__(self, name: str, seconds: dict[int, float], order: list[tuple[str, int]], away: float = 0.0) -> None:
        self.passes = PassLog(Clock(torch.device("cpu")))
        self._name, self._seconds, self._order, self._away = name, seconds, order, away
        self.worked = [0.0]  # by whom does not matter: see `beside`

    def beside(self, other: "Scripted") -> "Scripted":
        self.worked = other.worked
        return self

    def reset(self) -> None:
        pass

    def score(self, ids: list[int], num_logits: int) -> None:
        self._order.append((self._name, num_logits))
        work, before = self._seconds[num_logits], self.worked[0]
        if len(self._order) > 1 and self._order[-2][0] != self._name:
            work *= 50  # behind another model's
        self.worked[0] += work
        interruptions = int(self.worked[0] / 0.01) - int(before / 0.01)
        self.passes.add(num_logits, 0.0, work + interruptions * self._away)


def test_a_turn_has_enough_of_every_length_and_the_single_token_between_the_others() -> None:
    """In turns of 4 ms of each length and 12 of the single token; what lies first in a turn is not measured."""
    order: list[tuple[str, int]] = []
    sweeps = TimedPasses(Scripted("t", {1: 0.005, 2: 0.003, 6: 0.03}, order), [0] * 30, 16, (1, 2, 6))
    order[:] = [("d", 1)]
    sweeps.run_turn(1, backwards=False)
    assert [length for _, length in order[1:]] == [1, 2, 1, 6, 1, 2, 1]
    order[:] = [("d", 1)]
    sweeps.run_turn(2, backwards=True)
    assert [length for _, length in order[1:]] == [1, 6, 1, 2, 1]
    assert {length: len(seconds) for length, seconds in sweeps.seconds.items()} == {1: 5, 2: 3, 6: 2}
    assert sweeps.means() == pytest.approx({1: 0.005, 2: 0.003, 6: 0.03})


def test_an_interrupted_pass_does_not_stand_for_many() -> None:
    """Its 101 ms are more than all turns need."""
    model = Scripted("t", {1: 0.001}, [], away=0.1)
    sweeps = TimedPasses(model, [0] * 30, 16, (1,))
    model.worked[0] = 0.0085  # the next but one is interrupted
    for turn in range(1, TURNS + 1):
        sweeps.run_turn(turn, backwards=False)
    seconds = sweeps.seconds[1]
    assert seconds[0] == pytest.approx(0.101) and len(seconds) == 12 and sum(s > 0.1 for s in seconds) <= 2


def test_ratios_hold_on_a_machine_that_is_away_half_of_the_time() -> None:
    """Passes of 7 ms are interrupted more often than not, those of 0.4 ms hardly ever: their medians, the control, say
    that a draft pass costs 0.4 ÷ 17."""
    order: list[tuple[str, int]] = []
    target = Scripted("t", {1: 0.007, 6: 0.0084}, order, away=0.01)
    drafter = Scripted("d", {1: 0.0004, 6: 0.0004}, order, away=0.01).beside(target)
    measured = (ModelTimings(), ModelTimings())
    for number in range(9):
        sides = [(target, [0] * 30, measured[0]), (drafter, [0] * 30, measured[1])]
        time_passes(sides[:: 1 if number % 2 else -1], 16, (1, 6), backwards=number % 2 == 1)
    rounds, single = Resampler.of_units(9, 0), measured[0].passes[1]
    assert len(single) == len(measured[1].passes[6]) == 9
    cost = with_ends(rounds, median_ratios(rounds, measured[1].passes[1], single))
    assert cost.value == pytest.approx(0.4 / 7, rel=0.25)
    verifying = with_ends(rounds, median_ratios(rounds, measured[0].passes[6], single))
    assert verifying.value == pytest.approx(1.2, rel=0.15)
    last = {model: TimedPasses(model, [0] * 30, 16, (1,)) for model in (target, drafter)}
    for sweeps in last.values():
        for turn in range(1, TURNS + 1):
            sweeps.run_turn(turn, backwards=False)
    control = median(last[drafter].seconds[1]) / median(last[target].seconds[1])
    assert control == pytest.approx(0.4 / 17)


def test_ratios_are_of_the_same_round() -> None:
    """Of a machine that takes twice as long in some rounds: medians of all, 2.4 and 1, are not neighbours."""
    slow = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0]
    above, below = [1.2 * each for each in slow], list(slow)
    above[0] = 3.0  # one hiccup
    assert median(above) / median(below) == pytest.approx(2.4)
    rounds = Resampler.of_units(9, 0)
    found = with_ends(rounds, median_ratios(rounds, above, below))
    assert (found.low, found.value, found.high) == pytest.approx((1.2, 1.2, 1.2))


@pytest.mark.usefixtures("_short_turns", "_few_tokens")
def test_everything_is_measured_in_every_round() -> None:
    models = (tiny.causal_lm(num_hidden_layers=1), tiny.causal_lm(seed=1, num_hidden_layers=1))
    rounds: list[str] = []
    found = measure(models, texts(models), benchmarks(), 16, (1, 2, 6), repeats=2, progress=rounds.append)
    lines = ("warming up", r"round 1 of 2 · about \d+ s left", r"round 2 of 2 · about \d+ s left")
    for told, line in zip(rounds, lines, strict=True):
        assert re.fullmatch(f"timing passes after 16 tokens: {line}", told)
    for timings in (found.target, found.drafter):
        assert {length: len(values) for length, values in timings.passes.items()} == {1: 2, 2: 2, 6: 2}
        assert len(timings.per_token) == len(timings.overhead) == len(timings.rates) == 2
        assert all(0 < out < whole for out, whole in zip(timings.overhead, timings.per_token, strict=True))
    assert len(found.per_step) == len(found.step_overhead) == 2
    assert all(0 < out < step for out, step in zip(found.step_overhead, found.per_step, strict=True))


@pytest.mark.usefixtures("_short_turns", "_few_tokens")
def test_a_drafter_with_fewer_tokens_drafts_those_that_both_have() -> None:
    models = (tiny.causal_lm(vocab_size=297, num_hidden_layers=1), tiny.causal_lm(seed=1, num_hidden_layers=1))
    assert len(measure(models, texts(models), benchmarks(), 16, (1, 6), repeats=1).per_step) == 1


def texts(models: Sequence[CausalLM]) -> list[list[int]]:
    return tokens_of(models, 64, 0, None)


def benchmarks() -> list[RateBenchmark]:
    return [RateBenchmark(torch.device("cpu"), torch.float32, 1)] * 2


@pytest.mark.usefixtures("_short_turns", "_few_tokens")
def test_compiled_passes_are_measured_over_buffers_as_large_as_a_run_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """192 tokens for a context of 70 and the 64 that follow."""
    monkeypatch.setattr("specbench.models.static_passes.compile_pass", lambda forward, name: forward)
    models = [tiny.causal_lm(seed=seed, num_hidden_layers=1) for seed in range(2)]
    said: list[str] = []
    for model in models:
        model.make_static()
    report = roofline_of(models[0], models[1], 70, repeats=1, progress=said.append)
    sizes = [int(line.partition(" for ")[2].split()[0]) for line in said if line.startswith("compiling")]
    assert sizes == [192, 192]
    lengths = {point.query_length for point in report.target.points}
    assert lengths == set(COMPILED_LENGTHS) == {point.query_length for point in report.drafter.points}
    assert report.target.model.capacity == report.drafter.model.capacity == 192


@pytest.mark.usefixtures("_short_turns", "_few_tokens")
def test_what_is_compiled_while_it_is_measured_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr("specbench.analysis.roofline.roofline.num_compilations", lambda: next(numbers))
    with pytest.raises(ConfigError, match="1 passes were compiled or recorded during"):
        roofline_of(tiny.causal_lm(num_hidden_layers=1), tiny.causal_lm(num_hidden_layers=1), 16, repeats=1)


def test_points_stay_within_the_shortest_context() -> None:
    models = [tiny.causal_lm(), tiny.causal_lm(max_position_embeddings=70)]
    assert max(lengths_for(models, 30)) == 32
    with pytest.raises(ConfigError, match=r"--context 70: the models hold 70 tokens, and 32 .*: give 8 to 38"):
        roofline_of(models[0], models[1], 70, repeats=1)
    short = [tiny.causal_lm(max_position_embeddings=36)]
    with pytest.raises(ConfigError, match=r"--context 8: .*: take models with a longer"):
        lengths_for(short, 8)
    short[0].context_limit = None
    assert lengths_for(short, 9000)[-1] == 96


def test_rates_are_rates() -> None:
    benchmark = benchmarks()[0]
    rates = benchmark.rates()
    assert benchmark.num_bytes == LEAST_BYTES
    assert rates.bytes_per_second > 0 and rates.operations_per_second > 0


def test_rates_are_bytes_and_operations_by_the_seconds_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every call takes 1/4 s: a MiB copied is read and written, half of it each."""
    monkeypatch.setattr("specbench.analysis.roofline.roofline.TimedCall.seconds", lambda self: 0.25)
    benchmark = benchmarks()[0]
    assert benchmark.rates() == Rates(4.0 * LEAST_BYTES, 4.0 * 2 * 512**3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "fast"], "error: --engine fast: the choices are auto, compiled, eager, graphs"),
        (["--dtype", "float99"], "error: --dtype float99: did you mean 'float32'?"),
        (["--context", "1"], "error: --context 1: give at least 8"),
        (["--seed", "x"], "error: --seed x: give an integer"),
        (["--repeats", "0"], "error: --repeats 0: give at least 1"),
        (["--device", "abacus"], "error: --device abacus: not available on this machine"),
        (["--target", "nowhere/at/all"], "error: model folder 'nowhere/at/all' does not exist"),
        (["--context", "100000"], "error: --context 100000: the models hold "),
        (["--plot", "limit.pixels"], "error: --plot limit.pixels: unknown picture format"),
        (["--output", "."], "error: --output .: cannot be written (it is a folder): name another file"),
        (["--plot", "a.png/b/limit.png"], "error: --plot a.png/b/limit.png: cannot be written (Not a directory)"),
    ],
)
def test_wrong_words_end_in_one_line(
    specbench, tiny_pair: tuple[str, str], tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "a.png").write_text("")
    pair = ["--target", tiny_pair[0], "--drafter", tiny_pair[1]]
    code, out, err = specbench("limit", *pair, *words)
    assert code == 2 and out == "" and err.splitlines()[-1].startswith(said) and err.count("error: ") == 1


@pytest.mark.usefixtures("_short_turns", "_few_tokens")
def test_the_command_prints_writes_and_draws(specbench, tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    pair = ["limit", "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--repeats", "1", "--context", "16"]
    code, out, err = specbench(*pair, "--output", "made/limit.json", "--plot", "limit.svg", "--seed", "3")
    assert code == 0, err
    report = RooflineReport.model_validate_json((tmp_path / "made" / "limit.json").read_text(encoding="utf-8"))
    assert out.splitlines()[-2:] == ["report: made/limit.json", "picture: limit.svg"]
    assert report.verdict in " ".join(out.split()) and (tmp_path / "limit.svg").read_text(encoding="utf-8").endswith(
        "</svg>\n"
    )
    assert max(report.verification_cost) == 96 and report.context == 16
    assert max(map(len, out.splitlines())) <= 100
    assert (report.seed, report.repeats, report.target.model.capacity) == (3, 1, None)
    assert report.environment.engine == "eager" and report.model_dump()["environment"]["num_threads"] >= 1
    assert (report.environment.versions["torch"] or "").partition("+")[0] == torch.__version__.partition("+")[0]
