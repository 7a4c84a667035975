"""Tuning: what is decided from made-up measurements, a slice that is never evaluated, and files that run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

from specbench.analysis.tuning import tune as tuner
from specbench.analysis.tuning.tune import (
    ThresholdSearch,
    Tuner,
    calibration_of,
    choose_slice,
    lossless_method,
    tune_length,
)
from specbench.cli.run import run
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.running.plan import without_calibration
from specbench.running.prompts import prompt_digest
from specbench.specs.catalogue import load_file, load_method, load_task
from specbench.specs.method import CalibrationSpec, MethodSpec
from specbench.statistics.bootstrap import Estimate
from specbench.tasks.examples import Example, TaskData
from tests.support.tuning import call as call

Accuracy = Callable[[float], float]


def loaded(*sizes: int) -> list[Any]:
    """Subsets with examples of their own."""
    task = load_task("mgsm")
    subsets = list(task.subset_names)[: len(sizes)]
    return [
        (task, subset, TaskData("local", "rows.tsv", "abc", tuple(
            Example(i, f"{subset}{i}", (f"What is {i} in {subset}?",), (str(i),)) for i in range(size)
        )))
        for subset, size in zip(subsets, sizes, strict=True)
    ]  # fmt: skip


class MadeUp:
    """A trials whose runs cost nothing: speeds by length, accepted shares and accuracies by threshold."""

    def __init__(self, accuracy: Accuracy, share: Callable[[float], float], speed: Callable[[int], float]) -> None:
        self.base = load_method("fsd")
        self.console = Console(quiet=True)
        self.loaded = loaded(100)
        self.quality = "accuracy"
        self.accuracy, self.share, self.speed = accuracy, share, speed
        self.measured: list[tuple[float, int]] = []

    def run(self, folder: str, methods: Sequence[MethodSpec], keep: str | None = None) -> Any:
        made = {method.name: self.numbers(method) for method in methods}
        return SimpleNamespace(metrics=made.__getitem__)

    def numbers(self, method: MethodSpec) -> dict[str, Estimate]:
        length, threshold = method.num_draft_tokens, method.verification.options.get("threshold")
        if threshold is not None:
            self.measured.append((threshold, length))
            accuracy, share = self.accuracy(threshold), self.share(threshold)
        else:
            accuracy, share = (0.1 if method.name == "draft-only" else 0.9), 0.6
        values = {
            "tokens_per_second": self.speed(length) * (0.5 + share), "draft_efficiency": share, "accuracy": accuracy,
            "accuracy_ar": 0.9, "speedup": 2.0, "accuracy_difference": accuracy - 0.9, "mean_acceptance_length": 2.0,
        }  # fmt: skip
        return {name: Estimate(value=v, low=v - 0.01, high=v + 0.01) for name, v in values.items()}


def made_up(
    monkeypatch: pytest.MonkeyPatch, accuracy: Accuracy, share: Callable[[float], float] = lambda t: 0.4 + t,
    speed: Callable[[int], float] = lambda n: {5: 90, 10: 100, 15: 95, 20: 94}.get(n, 500), bias: float = 0.0,
) -> tuple[MadeUp, Tuner]:  # fmt: skip
    """`bias`: how much the estimates of the accepted share are off."""
    trials = MadeUp(accuracy, share, speed)

    def estimate(threshold: float, length: int) -> Any:
        return SimpleNamespace(metrics={"draft_efficiency": Estimate(value=share(threshold) + bias)})

    monkeypatch.setattr(tuner, "record_run", lambda *_: (None, SimpleNamespace(estimate=estimate)))
    return trials, Tuner(trials)  # type: ignore[arg-type]


def settings(presets: Any) -> list[tuple[str, float, int]]:
    return [(p.label, p.method.verification.options["threshold"], p.method.num_draft_tokens) for p in presets]


def test_low_is_the_equivalent_of_sd_and_high_the_last_that_keeps_the_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    """Target 0.9, drafter 0.1: a fifth of the gap is 0.16, so 0.74 is allowed. SD accepts what 0.2 does."""
    trials, made = made_up(monkeypatch, lambda t: 0.9 - max(0.0, t - 0.2) * 0.7)
    assert settings(tune_length(made)) == [("low", 0.2, 10), ("med", 0.3, 10), ("high", 0.4, 10)]
    assert {t for t, _ in trials.measured} == {0.15, 0.2, 0.25, 0.3, 0.4, 0.5}, "the step that fails is the last run"


def test_a_real_run_corrects_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = made_up(monkeypatch, lambda t: 0.9, bias=0.05)
    presets = settings(tune_length(made))
    assert presets[0] == ("low", 0.2, 10) and presets[2][1] == 0.6, "js: the next step would accept everything"
    assert "≈ 0.600, run 0.550" in " ".join(made.decisions) and "≈ 0.650, run 0.600" in " ".join(made.decisions)


def test_a_quality_that_falls_at_once_leaves_one_setting_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = made_up(monkeypatch, lambda t: 0.5)
    assert settings(tune_length(made)) == [("", 0.2, 10)], "one file, not three of the same"
    said = " ".join(made.decisions)
    assert "no threshold up to T_SD that keeps the quality; by threshold: 0.05: 50.0" in said
    assert "low, med and high are equal" in said


def test_below_an_equivalent_that_is_too_lenient_the_search_goes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.74 is allowed; SD accepts what 0.4 does."""
    _, made = made_up(monkeypatch, lambda t: 0.9 - max(0.0, t - 0.2), share=lambda t: 0.2 + t)
    assert settings(tune_length(made)) == [("low", 0.25, 10), ("med", 0.3, 10), ("high", 0.35, 10)]
    assert "0.35 is the largest threshold that keeps the quality" in " ".join(made.decisions)


@pytest.mark.parametrize(("best", "expected"), [(15, 15), (20, 20), (10, 10)])
def test_a_longer_draft_where_nearly_all_is_accepted(monkeypatch: pytest.MonkeyPatch, best: int, expected: int) -> None:
    """Only for the preset that accepts nine tenths, only while the next length is faster."""

    def speed(length: int) -> float:
        return 100 + length if length <= best else 90

    trials, made = made_up(monkeypatch, lambda t: 0.9, share=lambda t: 0.4 + t if t < 0.55 else 0.95, speed=speed)
    sd, drafter = (trials.numbers(method) for method in (lossless_method(trials.base), load_method("draft-only")))
    presets = settings(ThresholdSearch(made, 10, sd, drafter).presets())
    assert [length for _, _, length in presets] == [10, 10, expected]


def test_without_a_gap_there_is_nothing_to_trade(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, made = made_up(monkeypatch, lambda t: 0.9)
    numbers = trials.numbers
    trials.numbers = lambda method: {  # type: ignore[method-assign]
        **numbers(method), "accuracy": Estimate(value=0.9, low=0.9, high=0.9)
    }  # fmt: skip
    with pytest.raises(ConfigError, match="without a gap between them, no fall of quality can be seen"):
        tune_length(made)


def test_the_smaller_decisions() -> None:
    assert tuner.nearest_threshold({0.1: 0.5, 0.2: 0.6, 0.3: 0.7}, 0.64) == 0.2
    assert tuner.thresholds_up_to("js", 0.1, 0.3) == [0.4, 0.5, 0.6]
    assert tuner.thresholds_up_to("kl", 0.1)[-1] == 1.0 and len(tuner.thresholds_up_to("kl", 0.1)) == 10


def test_the_rejection_twin_of_a_fuzzy_method_keeps_drafter_and_bridge() -> None:
    fsd = load_method("fsd")
    assert lossless_method(fsd).verification.rule == "rejection" and lossless_method(fsd).drafter == fsd.drafter
    assert lossless_method(load_method("sd")) == load_method("sd")


def test_the_slice_follows_the_seed_and_nothing_else() -> None:
    data = loaded(40, 20)
    chosen = choose_slice(data, 0.25, seed=0)
    assert [len(each.examples) for _, _, each in chosen] == [10, 5]
    assert choose_slice(data, 0.25, seed=0) == chosen != choose_slice(data, 0.25, seed=1)
    indices = [example.index for example in chosen[0][2].examples]
    assert indices == sorted(indices) and indices != list(range(10))
    assert [len(each.examples) for _, _, each in choose_slice(data, 7, seed=0)] == [7, 7]


@pytest.mark.parametrize(
    ("amount", "sizes", "problem"),
    [
        (40, (40,), "takes all 40 examples of subset 'en'"),
        (0.25, (8, 8), "gives 4 examples, but an interval needs 5"),
    ],
)
def test_a_slice_that_cannot_be(amount: float, sizes: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        choose_slice(loaded(*sizes), amount, seed=0)
    assert "\n" not in str(error.value)


def test_what_was_tuned_on_is_left_out() -> None:
    """Also where the rows have another order; other tasks and methods that were never tuned change nothing."""
    data = loaded(40, 20)
    chosen = choose_slice(data, 0.25, seed=0)
    tuned: Any = SimpleNamespace(calibration=calibration_of(chosen))
    turned = [(task, subset, replace(each, examples=each.examples[::-1])) for task, subset, each in data]
    left = without_calibration(turned, [load_method("sd"), tuned])
    used = {prompt_digest(example, turn=0) for _, _, each in chosen for example in each.examples}
    kept = {prompt_digest(example, turn=0) for _, _, each in left for example in each.examples}
    assert len(used) == 15 and len(kept) == 45 and not used & kept
    assert without_calibration(data, [load_method("sd")]) == data
    other: Any = SimpleNamespace(calibration=calibration_of(chosen).model_copy(update={"task": "gsm8k"}))
    assert without_calibration(data, [other]) == data
    with pytest.raises(ConfigError, match=r"all 10 examples of mgsm/en were used to tune a method"):
        without_calibration(chosen, [tuned])


def test_a_lossless_method_is_tuned_in_its_length_and_its_file_runs(
    call: Callable[..., tuple[str, str]], tiny_pair: tuple[str, str]
) -> None:
    out, err = call("sd", output="my-sd.yaml", lengths="2,4")
    assert "calibration slice: 5 of en" in err and "is the fastest" in err
    assert "evaluate on other examples" in " ".join(out.split())
    spec = load_file("my-sd.yaml")
    assert isinstance(spec, MethodSpec) and spec.name == "my-sd" and spec.num_draft_tokens in (2, 4)
    text = Path("my-sd.yaml").read_text()
    assert "specbench tune" in text.splitlines()[0] and f"for {tiny_pair[0]} (" in text.splitlines()[0]
    assert len(CalibrationSpec(**yaml.safe_load(text)["calibration"]).prompts["en"]) == 5

    with pytest.raises(ConfigError, match=r"^--output my-sd\.yaml: exists: name another"):
        call("sd", output="my-sd.yaml", lengths="2,4")

    out, err = call("sd", output="again.yaml", lengths="2,4", as_json=True)
    assert "all 5 examples are measured already" in err
    assert json.loads(out)["files"] == ["again.yaml"]

    run(task="mgsm", method="my-sd.yaml", target=tiny_pair[0], drafter=tiny_pair[1], data=".", subsets="en", limit=6,
        overrides=["generation.max_new_tokens=2"], output=Path("out"))  # fmt: skip


@pytest.mark.parametrize("method", ["sd-confidence", "tli"])
def test_a_draft_length_that_varies_is_chosen_among_policies_and_fixed_ones(
    method: str, call: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    """The random pair accepts next to nothing; what counts is that replays and runs fit together, and the file runs."""
    if method == "tli":  # whose texts depend on where drafts begin, so that all policies are measured
        text = (builtin_dir("methods") / "tli.yaml").read_text().replace("name: tli", "name: tli-svip")
        Path("tli-svip.yaml").write_text(f"{text}draft_length: {{policy: svip}}\n")
        method = "tli-svip.yaml"
    out, err = call(method, output="my-sd.yaml", lengths="2,4")
    assert "fixed draft length: " in err
    assert "costs in passes of ar: draft pass " in err
    assert ("replayed tokens per pass of ar" in err) == (method == "sd-confidence")
    assert "evaluate on other examples" in " ".join(out.split())
    spec = load_file("my-sd.yaml")
    assert isinstance(spec, MethodSpec)
    assert spec.draft_length is not None or spec.num_draft_tokens in (2, 4)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "ar"}, "drafts nothing, so there is nothing to tune"),
        ({"method": "sd", "lengths": "5,x"}, "--lengths x: not a number of draft tokens"),
        ({"method": "sd", "lengths": "0"}, "--lengths 0: .*nothing is drafted"),
        ({"method": "sd", "output": "my.json"}, r"--output my\.json: must end in \.yaml"),
        ({"method": "sd", "output": "my method.yaml"}, "is not a method name"),
        ({"method": "fsd", "step": 0.0}, "--step 0: must be above 0"),
        ({"method": "fsd", "calibration": "0.1"}, "gives 2 examples"),
        ({"method": "fsd", "calibration": "1.5"}, "--calibration 1.5: give a number of examples from 1, or a share"),
        pytest.param(  # which is decided above, from made-up measurements
            {"method": "fsd"},
            "without a gap between them, no fall of quality can be seen on this slice",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_input_is_one_line(call: Callable[..., tuple[str, str]], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        call(**options)
    assert "\n" not in str(error.value)


def test_thresholds_are_searched_at_fixed_lengths(call: Callable[..., tuple[str, str]]) -> None:
    text = (builtin_dir("methods") / "fsd.yaml").read_text().replace("name: fsd", "name: fsd-svip")
    Path("fsd-svip.yaml").write_text(f"{text}draft_length: {{policy: svip}}\n")
    with pytest.raises(ConfigError, match="policy = 'svip': thresholds of fuzzy rules are searched at fixed") as error:
        call("fsd-svip.yaml")
    assert "\n" not in str(error.value)


def test_a_fuzzy_method_needs_a_scorer(call: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(
        "name: plain\nversion: 1\ntitle: Plain\nprompt: '{{ row.question }}'\ngeneration: {max_new_tokens: 8}\n"
    )
    with pytest.raises(ConfigError, match="--task plain: has no score that all its subsets share"):
        call("fsd", task="plain.yaml", subsets=None)


@pytest.mark.parametrize(
    ("low", "high", "num_prompts", "sees"),
    [
        (-0.01, 0.01, 100, True),  # narrow, and without the fall
        (-0.3, 0.3, 100, False),  # wider than the fall, and it contains it
        (0.0, 0.0, 8, False),  # all answers are AR's, of too few prompts
        (0.0, 0.0, 100, True),
    ],
)
def test_a_slice_is_too_small_if_its_interval_does_not_tell_an_allowed_fall(
    low: float, high: float, num_prompts: int, sees: bool
) -> None:
    search = object.__new__(ThresholdSearch)
    search.quality, search.fall = "accuracy", 0.1
    loaded = [(None, None, SimpleNamespace(examples=range(num_prompts)))]
    search.tuner = SimpleNamespace(trials=SimpleNamespace(loaded=loaded))  # type: ignore[assignment]
    assert search.sees_fall(Estimate(value=(low + high) / 2, low=low, high=high)) == sees
