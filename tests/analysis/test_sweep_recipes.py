"""Recipes of `specbench sweep`: both temperatures together, and languages as the drafter knows them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.analysis.tuning.sweep import (
    TEMPERATURES,
    check_languages,
    joint_temperature,
    parse_temperatures,
)
from specbench.core.errors import ConfigError
from specbench.results.leaderboard import load
from specbench.specs.catalogue import load_method

Specbench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def arguments(tmp_path: Path, tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three questions in each of two languages, on a random pair."""
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: None)  # of a checkout at work
    for language in ("en", "de"):
        lines = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(3)]
        (tmp_path / f"mgsm_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return ["sweep", "--task", "mgsm", "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--data", str(tmp_path),
            "--subset", "en,de", "--set", "generation.max_new_tokens=4"]  # fmt: skip


def test_both_temperatures_are_swept_together(specbench: Specbench, arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    recipe = ["--recipe", "joint-temperature", "--values", "1,0", "--runs", "out"]
    code, out, err = specbench(*arguments, "--method", "fsd", *recipe, "--plot", "t.svg", "--leaderboard", "b.json")
    assert code == 0, err
    assert "target and drafter at one temperature" in out and "</svg>" in Path("t.svg").read_text(encoding="utf-8")
    rows = [row for row in load("b.json") if row.method.startswith("fsd@")]
    assert {(row.subset, row.sampling.temperature) for row in rows} == {
        (subset, temperature) for subset in ("en", "de", "all") for temperature in (0.0, 1.0)
    }
    assert {row.options["drafter"]["temperature"] for row in rows} == {None}, "the file's own, 0, would not be joint"
    code, out, err = specbench(*arguments, "--method", "fsd", *recipe, "--json")
    points = json.loads(out)["points"]
    assert [(p["temperature"], p["subset"]) for p in points] == [
        (temperature, subset) for temperature in (0.0, 1.0) for subset in ("en", "de", "all")
    ]  # fmt: skip
    assert err.count("measured already") == 2
    by_row = {(row.subset, row.sampling.temperature): row for row in rows}
    for point in points:
        row = by_row[point["subset"], point["temperature"]]
        assert point["metrics"]["acceptance_rate"]["value"] == row.metrics["acceptance_rate"].value
        assert point["metrics"]["accuracy"]["value"] == row.metrics["accuracy"].value
        assert point["adjusted_acceptance"]["value"] is None, "the task has no BLEU"


def test_the_temperatures() -> None:
    assert parse_temperatures(None) == list(TEMPERATURES) and parse_temperatures("1, 0.5,0") == [0.0, 0.5, 1.0]
    for values in ("warm", "-1", "0,1000", "true", ""):
        with pytest.raises(ConfigError, match=r"^--values"):
            parse_temperatures(values)
    spec: Any = SimpleNamespace(methods=(load_method("ar"), load_method("fsd")))
    spec.model_copy = lambda update: update
    [_, method] = joint_temperature(spec)["methods"]  # type: ignore[index]
    assert method.drafter.options["temperature"] is None


def test_the_order_of_a_run(specbench: Specbench, arguments: list[str]) -> None:
    pytest.importorskip("matplotlib")
    recipe = ["--method", "sd", "--recipe", "language-order", "--samples", "6", "--runs", "out"]
    code, out, err = specbench(*arguments, *recipe, "--plot", "order.svg", "--leaderboard", "b.json")
    assert code == 0, err
    assert (
        "rank correlation" not in out
        and "rank of the" in out
        and "</svg>" in Path("order.svg").read_text(encoding="utf-8")
        and len(load("b.json")) == 6
    )
    code, out, err = specbench(*arguments, *recipe, "--json")
    assert code == 0, err
    data = json.loads(out)
    groups = data["groups"].values()
    assert {each["subset"] for each in groups} == {"en", "de"} and data["num_texts_represented"] == 6
    ranks = [each["representation_rank"] for each in groups]
    assert ranks == sorted(ranks) and all(each["forced"]["num_positions"] for each in groups)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--recipe", "joint-temprature"], "did you mean 'joint-temperature'?"),
        (["--recipe", "joint-temperature", "--path", "num_draft_tokens"], "a recipe sweeps no key"),
        (["--recipe", "joint-temperature", "--samples", "3"], "--samples 3: is only for --recipe language-order"),
        (["--samples", "3"], "--samples 3: is only for --recipe language-order"),
        (["--recipe", "language-order", "--values", "1"], "--recipe language-order takes none"),
        (["--recipe", "language-order", "--samples", "0"], "--samples 0: give 1 or more"),
        (["--recipe", "language-order", "--subset", "en"], "subsets have 1 language"),
        (["--recipe", "joint-temperature", "--values", "-1"], "is not a temperature"),
    ],
)
def test_bad_input_is_one_line(specbench: Specbench, arguments: list[str], options: list[str], problem: str) -> None:
    code, _, err = specbench(*arguments, "--method", "sd", *options)
    assert code == 2 and problem in " ".join(err.split())


def test_a_method_without_one_draft_model_has_no_order() -> None:
    for name in ("ngram", "pld", "routed"):
        spec: Any = SimpleNamespace(methods=(load_method("ar"), load_method(name)))
        with pytest.raises(ConfigError, match=f"--method {name}: drafts without a model or with several"):
            check_languages(spec)
