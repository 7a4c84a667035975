"""`specbench run --log`: what each tracker is given, and what is said where one is missing or fails."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specbench.core.registry import LOGGERS
from specbench.results.leaderboard import load

Specbench = Callable[..., tuple[int, str, str]]
Call = tuple[str, Any]


@pytest.fixture
def run(tiny_pair: tuple[str, str]) -> tuple[str, ...]:
    """A short run of the tiny pair."""
    short = ("--subset", "en", "--data", "sample", "--limit", "1", "--set", "generation.max_new_tokens=6")
    return ("run", "--task", "mgsm", "--method", "sd", "--target", tiny_pair[0], "--drafter", tiny_pair[1], *short)


def wandb(calls: list[Call]) -> dict[str, Any]:
    run = SimpleNamespace(
        log=lambda values, step: calls.append(("log", (values, step))), finish=lambda: calls.append(("finish", None))
    )

    def init(**given: Any) -> Any:
        calls.append(("start", given["config"]))
        return run

    return {"wandb": {"init": init}}


def mlflow(calls: list[Call]) -> dict[str, Any]:
    return {"mlflow": {
        "start_run": lambda run_name: None, "log_params": lambda values: calls.append(("start", values)),
        "log_metrics": lambda values, step: calls.append(("log", (values, step))),
        "end_run": lambda: calls.append(("finish", None)),
    }}  # fmt: skip


def tensorboard(calls: list[Call]) -> dict[str, Any]:
    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder.endswith("/tensorboard")

        def add_text(self, name: str, text: str) -> None:
            calls.append(("start", dict(line.strip().split(": ") for line in text.splitlines())))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append(("log", ({name: value}, step)))

        def close(self) -> None:
            calls.append(("finish", None))

    return {"torch.utils.tensorboard": {"SummaryWriter": SummaryWriter}}


def install(monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]) -> None:
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("tracker", [wandb, mlflow, tensorboard])
def test_a_tracker_gets_each_block_and_the_rows(
    tracker: Callable[[list[Call]], dict[str, Any]],
    specbench: Specbench,
    run: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    calls: list[Call] = []
    install(monkeypatch, tracker(calls))
    words = (*run, "--output", str(tmp_path / "run"), "--log", tracker.__name__)
    code, _, err = specbench(*words)
    assert code == 0, err
    kinds = [kind for kind, _ in calls]
    assert kinds[0] == "start" and kinds[-1] == "finish" and calls[0][1]["method"] == "sd"
    values = {name: (value, step) for kind, given in calls if kind == "log" for name, value in given[0].items()
              for step in given[1:]}  # fmt: skip
    assert values["mgsm/en/sd/tokens_per_second"][0] > 0 and values["mgsm/en/sd/mean_acceptance_length"][1] == 1
    assert values["rows/mgsm/en/sd/speedup"][1] == 2 and values["rows/mgsm/en/ar/speedup"][0] == 1.0
    calls.clear()
    assert specbench(*words)[0] == 0  # nothing is measured again
    names = {name for kind, given in calls if kind == "log" for name in given[0]}
    assert names and all(name.startswith("rows/") for name in names)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_missing_package_is_one_line_before_anything_is_measured(
    name: str, specbench: Specbench, run: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    code, _, err = specbench(*run, "--output", str(tmp_path / "run"), "--log", name)
    assert code == 2 and f"pip install 'specbench-lm[{name}]'" in err and not (tmp_path / "run").exists()


def test_the_event_files_of_tensorboard_hold_the_numbers(
    specbench: Specbench, run: tuple[str, ...], tmp_path: Path
) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    code, _, err = specbench(*run, "--output", str(tmp_path / "run"), "--log", "tensorboard")
    assert code == 0, err
    written = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    written.Reload()
    (row,) = (row for row in load(tmp_path / "run" / "leaderboard.json") if row.method.startswith("sd@"))
    names = written.Tags()["scalars"]
    scalars = {name: [(event.step, event.value) for event in written.Scalars(name)] for name in names}
    assert [step for step, _ in scalars["mgsm/en/sd/tokens_per_second"]] == [1]
    assert scalars["rows/mgsm/en/sd/speedup"] == [(2, pytest.approx(row.value("speedup"), rel=1e-6))]
    assert "settings/text_summary" in written.Tags()["tensors"]


def test_an_unknown_tracker_is_refused(specbench: Specbench, run: tuple[str, ...], tmp_path: Path) -> None:
    code, _, err = specbench(*run, "--output", str(tmp_path / "run"), "--log", "wandbb")
    assert code == 2 and "did you mean 'wandb'" in err and not (tmp_path / "run").exists()


def test_a_tracker_that_fails_ends_alone(
    specbench: Specbench, run: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Call] = []

    def fails(**given: Any) -> None:
        raise OSError("no connection")

    install(monkeypatch, {"wandb": {"init": fails}, **mlflow(calls)})
    code, _, err = specbench(*run, "--output", str(tmp_path / "run"), "--log", "wandb,mlflow")
    assert code == 0 and err.count("WandbLogger stopped logging: OSError: no connection") == 1
    assert (tmp_path / "run" / "leaderboard.json").exists() and calls[-1][0] == "finish"


def test_the_built_in_trackers() -> None:
    assert {"wandb", "mlflow", "tensorboard"} <= set(LOGGERS.names())
