"""`specbench predict`: recorded steps replayed with other pass times, against runs that have these times."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from rich.console import Console

from specbench.analysis.advice.advise import replayed_lengths
from specbench.analysis.draft_lengths import RecordedVerdicts
from specbench.analysis.roofline.predict import (
    Machine,
    Prediction,
    RecordedRow,
    has_shorter_drafts,
    last_token_acceptance,
    predict,
    query_lengths,
)
from specbench.models import meters
from specbench.models.loading import load_model
from specbench.records.generation import Generation
from specbench.records.records import RecordFile
from specbench.results.answers import Answer
from specbench.results.leaderboard import load
from specbench.results.metrics import expected_speedup, speeds
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.execute import execute
from specbench.running.request import Request
from specbench.specs.catalogue import load_method, load_task
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import MIN_PROMPTS, Resampler
from tests.support import tiny
from tests.support.records import generation as make_generation

DEMO = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"
PLAIN = Machine(target_pass=10.0, draft_pass=1.0)


@cache
def demo_rows() -> list[Row]:
    return load(DEMO)


def demo_row(method: str, task: str = "mgsm") -> tuple[str, int]:
    number = next(n for n, row in enumerate(demo_rows()) if row.names == (task, "all", method))
    return f"{DEMO}:{number}", number


def recorded(method: str) -> RecordedRow:
    _, number = demo_row(method)
    return RecordedRow.of(RecordedRun(DEMO.with_suffix("") / "mgsm"), demo_rows()[number], PLAIN)


@pytest.mark.parametrize("name", ["humaneval", "mgsm", "story", "wmt"])
@pytest.mark.parametrize("method", ["sd", "tli"])
def test_the_recorded_draft_length_gives_the_recorded_steps_and_passes(method: str, name: str) -> None:
    task = load_task(name)
    for record in RecordFile(DEMO.with_suffix("") / name / "records.jsonl").read():
        generation = record.methods[method]
        verdicts = RecordedVerdicts.of(generation, 5, task.subset(record.subset).generation.max_new_tokens)
        for unknown in (False, True):
            steps, num_missing = verdicts.steps(5, unknown)
            assert steps == list(generation.steps) and num_missing == 0
            target, draft = query_lengths(steps)
            assert target == [length for length, _ in generation.passes.target]
            if method == "sd":  # a drafter of tli that ends a draft makes a pass for it
                assert draft == [length for length, _ in generation.passes.draft]


@pytest.mark.parametrize(
    "method", ["sd", "pld", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fsd", "slem", "ngram"))]
)
def test_the_recorded_passes_with_other_times_are_a_measurement_with_these_times(method: str) -> None:
    """The records with every pass at the times of the other machine, put through the metrics of a run."""
    found = recorded(method)
    longest = max(length for g in found.own for length, _ in g.passes.target)
    machine = Machine(target_pass=8.0, draft_pass=2.0, verification_cost=1.5)
    times = {1: 0.008, longest: 0.012}

    def timed(generation):
        target = sum(np.interp(length, list(times), list(times.values())) for length, _ in generation.passes.target)
        draft = 0.0 if method in ("pld", "ngram") else 0.002  # a look-up is not a pass
        return Answer.of(replace(generation, decode_seconds=target + draft * len(generation.passes.draft)))

    baseline = [timed(record.methods["ar"]) for record in found.records]
    expected = speeds(Resampler.of(list(found.records), 0), list(map(timed, found.own)), baseline, is_baseline=False)
    *_, prediction = predict([demo_row(method)[0]], [], machine).predictions
    assert prediction.is_recorded and prediction.known_share == 1
    for name in ("speedup", "tokens_per_second"):
        ours, theirs = getattr(prediction, name), expected[name]
        assert [ours.value, ours.low, ours.high] == pytest.approx([theirs.value, theirs.low, theirs.high], rel=1e-9)


def test_a_draft_that_the_drafter_ended_does_not_cut_one_with_another_text() -> None:
    """The end that followed on accepted tokens says nothing of a draft whose last token was rejected there."""
    generation = make_generation(steps=[[2, 2, 2, 3], [5, 2, 1, 2], [5, 1, 0, 1]], token_ids=[0] * 20)
    verdicts = RecordedVerdicts.of(generation, 5, 100)
    assert verdicts.accepted[1:8] == [True, True, None, True, False, False, None] and verdicts.ends == {(3, False)}
    assert [list(step[:3]) for step in verdicts.steps(5, True)[0][:3]] == [[2, 2, 2], [5, 2, 1], [5, 1, 0]]
    rejected = make_generation(steps=[[2, 2, 1, 2]], token_ids=[0] * 8)
    assert RecordedVerdicts.of(rejected, 5, 100).ends == {(3, True)}
    both = RecordedVerdicts([None, True, False, True], {}, frozenset({(3, False)}), 100)
    assert both.steps(5, True)[0][0][:3] == (5, 2, 1), "the rejected draft goes on"
    ended = RecordedVerdicts([None, True, True, True], {}, frozenset({(3, True)}), 100)
    assert ended.steps(5, True)[0][0].accepted == 3


def test_only_chains_of_the_targets_tokens_have_shorter_lengths() -> None:
    names = ("ar", "sd", "scdf", "fsd", "slem", "tli", "union", "pld", "ngram", "routed", "eagle3", "draft-only")
    assert [name for name in names if has_shorter_drafts(load_method(name))] == ["sd", "scdf"]


def drawn_generation(rng: np.random.Generator, rate: float, num_draft_tokens: int, num_tokens: int) -> Generation:
    """The record of a generation whose draft tokens are accepted independently, each with the same chance."""
    steps, done = [], 1
    while done < num_tokens:
        drafted = max(0, min(num_draft_tokens, num_tokens - done - 1))
        flags = rng.random(drafted) < rate
        accepted = drafted if flags.all() else int(flags.argmin())
        steps.append([drafted, min(drafted, accepted + 1), accepted, accepted + 1])
        done += accepted + 1
    return make_generation(steps=steps, token_ids=[0] * num_tokens, finish="length")


@pytest.mark.parametrize("rate", [0.4, 0.8])
def test_shorter_drafts_of_sampled_tokens_have_their_law(rate: float) -> None:
    rng = np.random.default_rng(7)
    records = [drawn_generation(rng, rate, 5, 400) for _ in range(100)]
    verdicts = [RecordedVerdicts.of(record, 5, 400) for record in records]
    chance = last_token_acceptance(records, 5)
    assert chance == pytest.approx(rate, abs=0.04)
    for length in range(1, 5):
        number = {unknown: fmean(len(v.steps(length, unknown)[0]) for v in verdicts) for unknown in (False, True)}
        likely = 399 / ((1 - chance) * number[False] + chance * number[True])
        assert likely == pytest.approx(expected_speedup(rate, length, 0.0), rel=0.015)
        assert number[True] <= number[False]
        assert (number[False] == number[True]) == (length in (1, 2))  # 2 and 3 tokens divide the 6 of a recorded step


class MachineClock:
    """In the place of the module `time`: every look at it takes 10 µs, and a pass what the machine says, both with
    noise."""

    def __init__(self) -> None:
        self.now, self.rng = 0.0, np.random.default_rng(1)

    def wait(self, seconds: float) -> float:
        """Returns the seconds that were waited."""
        waited = seconds * float(np.exp(0.03 * self.rng.normal()))
        self.now += waited
        return waited

    def perf_counter(self) -> float:
        self.wait(1e-5)
        return self.now


Times = dict[str, tuple[float, float]]
SLOW: Times = {"target": (0.020, 0.0240), "drafter": (0.004, 0.004)}  # seconds of a pass over 1 and over 6 tokens
FAST: Times = {"target": (0.007, 0.0105), "drafter": (0.0025, 0.003)}
NUM_PROMPTS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Measures `sd` with models whose passes take the given times: the folder of the run, which is made once."""
    folder = tmp_path_factory.mktemp("models")
    tiny.save(folder / "target", num_hidden_layers=1)
    network = tiny.network(num_hidden_layers=1, vocab_size=257)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.03 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0
    network.save_pretrained(folder / "drafter")
    tiny.tokenizer().save_pretrained(folder / "drafter")

    made: dict[str, Path] = {}

    def run(times: Times, *overrides: str, **more: Any) -> Path:
        key = repr((times, overrides, more))
        if key not in made:
            made[key] = measure(times, *overrides, **more)
        return made[key]

    def measure(
        times: Times, *overrides: str, engine: str = "eager", subsets: Sequence[str] = ("en", "sw"),
        limit: int = NUM_PROMPTS // 2,
    ) -> Path:  # fmt: skip
        clock = MachineClock()

        def load(name: str, **options: object) -> object:
            model = load_model(name, **options)  # type: ignore[arg-type]
            own, add = times[Path(name).name], model.passes.add

            def add_later(length: int, start: float, end: float) -> None:
                add(length, start, end + clock.wait(float(np.interp(length, [1, 6], own))))

            model.passes.add = add_later  # type: ignore[method-assign]
            return model

        path = tmp_path_factory.mktemp("runs") / "run"
        options = RunOptions(
            subsets=tuple(subsets), target=str(folder / "target"), drafter=str(folder / "drafter"), data="sample",
            limit=limit, device="cpu", threads=1, engine=engine,
            overrides=("generation.max_new_tokens=28", *overrides),
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 4)
            patch.setattr("specbench.running.models.load_model", load)
            patch.setattr(meters, "time", clock)
            execute(Request(["mgsm"], ["sd"], options, "specbench run --task mgsm", output=path), Console(quiet=True))
        return path

    return run


def machine_of(times: Times) -> Machine:
    (single, longest), (draft, _) = times["target"], times["drafter"]
    return Machine(1000 * single, 1000 * draft, longest / single)


def predictions(path: Path, machine: Machine) -> dict[int, Prediction]:
    return {each.num_draft_tokens: each for each in predict([f"{path}:sd"], [], machine).predictions}


def measured(path: Path) -> tuple[float, float]:
    """The speed-up of `sd` and its tokens per step, over all prompts of a run."""
    row = next(row for row in load(path / "leaderboard.json") if row.names == ("mgsm", "all", "sd"))
    speedup, length = row.value("speedup"), row.value("mean_acceptance_length")
    assert speedup is not None and length is not None
    return speedup, length


def holds(prediction: Prediction, speedup: float) -> bool:
    low, high = prediction.speedup.low, prediction.speedup.high
    assert low is not None and high is not None
    return low <= speedup <= high


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_run_on_the_other_machine_has_what_was_predicted(run: Callable[..., Path], temperature: float) -> None:
    sampling = [f"generation.temperature={temperature}"] if temperature else []
    slow, fast = run(SLOW, *sampling), run(FAST, *sampling)
    for here, there, times in ((slow, fast, FAST), (fast, slow, SLOW)):
        found = predictions(here, machine_of(times))
        speedup, length = measured(there)
        assert holds(found[5], speedup) and found[5].speedup.value == pytest.approx(speedup, rel=0.02)
        assert found[5].mean_acceptance_length.value == pytest.approx(length)
    assert measured(slow)[0] != pytest.approx(measured(fast)[0], rel=0.1)


def test_greedy_runs_of_shorter_drafts_have_what_was_predicted(run: Callable[..., Path]) -> None:
    found = predictions(run(SLOW), machine_of(FAST))
    assert list(found) == [1, 2, 3, 4, 5] and [found[number].known_share for number in (1, 2, 5)] == [1, 1, 1]
    for length in (1, 3):  # one that divides the tokens of a recorded step, and one that does not
        there = run(FAST, f"num_draft_tokens={length}")
        speedup, tokens = measured(there)
        assert holds(found[length], speedup), (length, found[length], speedup)
        near = 0.02 if found[length].known_share == 1 else 0.1
        assert found[length].mean_acceptance_length.value == pytest.approx(tokens, rel=near / 4)
        assert found[length].speedup.value == pytest.approx(speedup, rel=near)
    assert found[3].known_share < 1 and found[4].known_share < 1


def test_advice_replays_lengths_with_the_pass_costs_of_the_run(run: Callable[..., Path]) -> None:
    """What `advise` says of shorter drafts, against runs of these lengths on the same machine, whose passes over 6
    tokens take half as long again as those over one."""
    recorded = RecordedRun(run(FAST))
    found = {
        each.num_draft_tokens: each for each in replayed_lengths(recorded, recorded.with_records(row_of(run(FAST))))
    }
    for length in (1, 3):
        there = row_of(run(FAST, f"num_draft_tokens={length}"))
        near = 0.03 if found[length].known_share == 1 else 0.1
        for name in ("speedup", "tokens_per_second"):
            assert getattr(found[length], name).value == pytest.approx(there.value(name), rel=near), (length, name)
        assert holds(found[length], there.value("speedup") or 0.0)


def row_of(path: Path) -> Row:
    return next(row for row in load(path / "leaderboard.json") if row.names == ("mgsm", "all", "sd"))


@pytest.mark.parametrize("method", ["pld", "ngram", "lookahead", "token-recycling", "rest"])
def test_a_look_up_is_no_draft_pass(method: str) -> None:
    assert load_method(method).drafter.features.looks_up


def test_look_ups_need_no_time_of_a_draft_pass() -> None:
    place = demo_row("pld")[0]
    free, same = (predict([place], [], Machine(9.0, draft_pass)) for draft_pass in (None, 5.0))
    assert free.predictions == same.predictions
    found = same.predictions[-1]
    generations = recorded("pld").own
    passes = sum(len(g.passes.target) for g in generations)
    tokens = sum(len(g.token_ids) - 1 for g in generations)
    assert found.speedup.value == pytest.approx(tokens / passes)  # AR makes a pass for each of these tokens


ENGINES: dict[str, Times] = {  # a pass over 6 tokens costs 1.2 and 2.3 single passes, about as on a CPU
    "eager": {"target": (0.0065, 0.0078), "drafter": (0.0003, 0.0004)},
    "compiled": {"target": (0.0025, 0.00575), "drafter": (0.00007, 0.00015)},
}


def test_runs_on_two_engines_have_what_was_predicted(run: Callable[..., Path], made: list[str]) -> None:
    """From eager to compiled and back: the steps of one engine, with the pass times that the other engine has, give a
    speed-up within the interval that the other engine measured; with its own times they do not. The passes over static
    buffers are left uncompiled, as the clock is simulated."""
    paths = {
        engine: run(times, "generation.max_new_tokens=16", engine=engine, subsets=("en",), limit=MIN_PROMPTS)
        for engine, times in ENGINES.items()
    }
    for here, there in (("eager", "compiled"), ("compiled", "eager")):
        [row] = [
            row for row in load(paths[there] / "leaderboard.json")
            if row.names == ("mgsm", "en", "sd")
        ]  # fmt: skip
        assert row.engine == there
        speedup = row.metric("speedup")
        assert speedup.low is not None and speedup.high is not None
        for times, is_right in ((ENGINES[there], True), (ENGINES[here], False)):
            report = predict([f"{paths[here]}:sd"], ["en"], machine_of(times))
            [found] = [each.speedup.value for each in report.predictions if each.is_recorded]
            assert found is not None and (speedup.low <= found <= speedup.high) == is_right, (here, found, speedup)


def test_passes_between_one_token_and_the_longest_are_interpolated() -> None:
    assert Machine(8.0, 2.0, 1.5).seconds([1, 3, 5], [1, 2], longest=5) == pytest.approx(0.008 * 3.75 + 2 * 0.002)
    assert Machine(8.0).seconds([1, 1], [], longest=1) == pytest.approx(0.016)


TIMES = ["--target-pass", "9", "--draft-pass", "1"]


def test_the_command_prints_a_table_and_json(specbench) -> None:
    code, out, err = specbench("predict", demo_row("fsd")[0], *TIMES)
    assert code == 0, err
    assert "there a target pass takes 9 ms" in " ".join(out.split()) and max(map(len, out.splitlines())) <= 100
    assert "no shorter draft lengths of fsd: their drafts" in " ".join(out.split())
    code, out, _ = specbench("predict", f"{DEMO}:sd", *TIMES, "--subset", "sw", "--json")
    found = json.loads(out)["predictions"]
    assert code == 0 and [each["num_draft_tokens"] for each in found] == [1, 2, 3, 4, 5]
    assert {each["subset"] for each in found} == {"sw"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target-pass", "9"], "method 'sd': it makes draft passes: give --draft-pass MS (0 if"),
        (["--target-pass", "0"], "--target-pass 0: give a finite number above 0"),
        (["--target-pass", "inf"], "--target-pass inf: give a finite number above 0"),
        (["--target-pass", "9", "--draft-pass", "-1"], "--draft-pass -1: give a finite number from 0"),
        ([*TIMES, "--subset", "xx"], "--subset xx: no row has it"),
    ],
)
def test_wrong_words_end_in_one_line(specbench, words: list[str], said: str) -> None:
    code, out, err = specbench("predict", demo_row("sd")[0], *words)
    assert code == 2 and out == "" and err.startswith(f"error: {said}") and err.count("\n") == 1, err


def test_rows_without_records_are_refused(specbench, tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text(DEMO.read_text(encoding="utf-8"), encoding="utf-8")
    _, number = demo_row("sd")
    code, _, err = specbench("predict", f"board.json:{number}", *TIMES)
    assert code == 2 and "has no records here: give the folder of its run" in err
