"""All tasks of a run in one table."""

from rich.console import Console

from specbench.report.tables import overview_table
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row

SPEED = {"speedup": Estimate(value=1.804, low=1.59, high=2.01), "mean_acceptance_length": Estimate(value=2.887)}
RIGHT = {**SPEED, "accuracy": Estimate(value=0.8636)}


def shown(*groups):
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(overview_table(groups))
    return capture.get().splitlines()


def test_a_line_per_task_and_method_with_the_task_said_once():
    math = [row(method=f"{name}@1", subset="all", n=44, metrics=RIGHT, quality="accuracy") for name in ("ar", "sd")]
    text = [row(task="webtext@2", method=f"{name}@1", subset="all", n=8, metrics=SPEED) for name in ("ar", "sd")]
    lines = [line.split() for line in shown(math, text) if "1.80" in line]
    numbers = ["–", "2.89", "–", "1.80", "[1.59,", "2.01]"]
    assert lines == [
        ["mgsm", "44", "ar", *numbers, "86.4", "accuracy", "%"],
        ["sd", *numbers, "86.4", "accuracy", "%"],
        ["webtext", "8", "ar", *numbers, "–"],
        ["sd", *numbers, "–"],
    ]


def test_it_fits_a_terminal_of_100_columns():
    task = {"task": "multilingual_spec_bench@2", "metrics": RIGHT, "quality": "accuracy", "n": 1000}
    for method in ("sd@1", "pretrain-finetune@1"):
        lines = shown([row(method=method, **task)], [row(method=method, **task)])
        assert all(len(line) <= 100 for line in lines) and "…" not in "".join(lines)
    assert "multilingual_spec_bench" in "".join(shown([row(method="sd@1", **task)]))
