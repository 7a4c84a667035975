"""`specbench check --against`: copies of specbench, with and without a slow-down, against this version."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from specbench.core.resources import PACKAGE
from specbench.results.bootstrap import Metric
from specbench.results.check import check
from specbench.results.check_findings import CheckReport
from specbench.results.check_speed import TYPICAL_SPEED
from specbench.results.conditions import BASELINE
from specbench.results.units import with_interval

SUBSETS = ("en", "es", "fr", "de", "ja")
METHODS = ("sd", "fsd")
ALLOWED = 0.01
PARTS = ("specbench", "tasks", "methods", "leaderboards", "pyproject.toml")  # of a checkout
LOOP = Path("specbench") / "decoding" / "loop.py"
BEGIN = "    while not state.finished:\n"
END = "        state.extend(proposal, verification)\n"
SLOWER = """        if {condition}:
            until = clock.now() + {share} * (clock.now() - began)
            while clock.now() < until:
                pass
"""


class Injected(NamedTuple):
    """The share of its speed that every step of the loop loses where the condition holds, and the prompts of a check.
    `times`: how often it is measured."""

    fall: float
    condition: str
    num_prompts: int
    times: int


CASES: Mapping[str, Injected] = {
    "nothing": Injected(0.0, "False", 30, 8),
    "10 % in the steps that draft": Injected(0.1, "num_draft_tokens", 30, 4),
    "10 % in all steps, AR's too": Injected(0.1, "True", 30, 2),
    "5 % in all steps, AR's too": Injected(0.05, "True", 100, 2),
}


def injected_copy(folder: Path, case: Injected) -> Path:
    """Returns a copy of this checkout whose loop has lost speed."""
    if not folder.exists():
        making = folder.with_suffix(".part")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        for name in PARTS:
            source = PACKAGE.parent / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(
                source, making / name, **({"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {})
            )
        if case.fall:
            slow(making / LOOP, case)
        making.rename(folder)
    return folder


def slow(file: Path, case: Injected) -> None:
    """Makes every step of the loop in the file slower."""
    text = file.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1, f"{file} has another loop"
    slower = SLOWER.format(condition=case.condition, share=1 / (1 - case.fall) - 1)
    text = text.replace(BEGIN, f"{BEGIN}        began = clock.now()\n").replace(END, END + slower)
    file.write_text(text, encoding="utf-8")


def measured(work: Path, name: str, case: Injected, number: int) -> CheckReport:
    """Returns the report of a check of a copy with a slow-down against one without. What is measured is kept."""
    place = str(list(CASES).index(name))
    head, base = injected_copy(work / place, case), injected_copy(work / "base", CASES["nothing"])
    python = work / "base-python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={base.resolve()} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    folder = work / f"check-{place}-{number}"
    command = [
        sys.executable, "-P", "-m", "specbench", "check", "--against", str(python), "--task", "mgsm", "--method",
        ",".join(METHODS), "--subset", ",".join(SUBSETS), "--limit", str(case.num_prompts // len(SUBSETS)), "--device",
        "cpu", "--threads", "1", "--set", "generation.max_new_tokens=24", "--output", str(folder),
        "--max-regression", str(ALLOWED),
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(head.resolve())}, stdout=subprocess.DEVNULL)
    report = check(str(folder / "baseline"), str(folder / "candidate"), ALLOWED, {"versions"}, in_turns=True)
    assert done.returncode == report.exit_code, done
    return report


def lines(work: Path) -> Iterator[list[str]]:
    """Yields, for every check of CASES: what was injected, the prompts, the ratios of a typical prompt, the result."""
    for name, case in CASES.items():
        for number in range(case.times):
            report = measured(work, name, case, number)
            yield [name, str(case.num_prompts), *(ratio_cell(report, each) for each in (BASELINE, *METHODS)),
                   f"{report.exit_code} ({report.result})"]  # fmt: skip


def ratio_cell(report: CheckReport, method: str) -> str:
    """Returns the ratio of a typical prompt's tokens/s with the interval that decides."""
    found = [
        finding.ratio or Metric() for each in report.compared if each.method == method
        for finding in each.findings if finding.what == TYPICAL_SPEED
    ]  # fmt: skip
    return with_interval(found[0], 3) if found else "–"
