"""Measures and simulates checks of two interleaved versions, and writes docs/measured/gate_in_turns.md.

Copies of specbench, with and without a slow-down, are checked against a copy of this version. This takes half an hour;
the same command continues with what is in runs/gate/in-turns.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, pstdev
from typing import NamedTuple

from specbench.core.environment import PACKAGE
from specbench.core.table import markdown_table
from specbench.gate.check import check
from specbench.gate.report import EXIT_CODES, CheckReport, Finding
from specbench.gate.speed import TYPICAL_SPEED
from specbench.results.conditions import BASELINE
from specbench.results.metric_format import with_interval
from specbench.results.runs import finished_run
from tools.gate import simulated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "gate_in_turns.md"
WORK = Path("runs") / "gate" / "in-turns"
NUM_CHECKS = 500
SIZES = (30, 100)
SUBSETS = ("en", "es", "fr", "de", "ja")
METHODS = ("sd", "fsd")
ALLOWED = 0.01
PARTS = ("specbench", "tasks", "methods", "leaderboards", "pyproject.toml")  # of a checkout
LOOP = Path("specbench") / "decoding" / "loop.py"
BEGIN = "    while not state.finished:\n"
END = "        state.extend(proposal, verification)\n"
SLOWER = """        if {condition}:
            for _ in range(int({share} * (clock.now() - began) * {rate})):
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
    "nothing": Injected(0.0, "False", 30, 6),
    "10 % in the steps that draft": Injected(0.1, "num_draft_tokens", 30, 3),
    "10 % in all steps, AR's too": Injected(0.1, "True", 30, 2),
    "5 % in all steps, AR's too": Injected(0.05, "True", 100, 1),
}


def injected_copy(folder: Path, case: Injected) -> Path:
    """Returns a copy of this checkout whose loop has lost speed."""
    if not folder.exists():
        making = folder.with_suffix(".part")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        for name in PARTS:
            source = PACKAGE.parent / name
            if source.is_dir():
                shutil.copytree(source, making / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, making / name)
        if case.fall:
            slow(making / LOOP, case)
        making.rename(folder)
    return folder


def empty_loops_per_second(number: int = 1000) -> int:
    """Returns how often an empty loop goes round in a second."""
    seconds = timeit.repeat(f"for _ in range({number}): pass", number=number, timer=time.thread_time, repeat=9)
    return round(number**2 / min(seconds))


def slow(file: Path, case: Injected) -> None:
    """Makes every step of the loop in the file slower."""
    text = file.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1, f"{file} has another loop"
    slower = SLOWER.format(condition=case.condition, share=1 / (1 - case.fall) - 1, rate=empty_loops_per_second())
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
    sides = [folder / "baseline", folder / "candidate"]
    if not all((side / "leaderboard.json").exists() for side in sides):
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(head.resolve())}, stdout=subprocess.DEVNULL)
        assert done.returncode in EXIT_CODES.values(), done
    return check(str(sides[0]), str(sides[1]), ALLOWED, {"versions"}, interleaved=True)


def lines(work: Path) -> Iterator[list[str]]:
    """Yields, for every check of CASES: what was injected, the prompts, the ratios of a typical prompt, the smallest
    falls that would be seen, the result."""
    for name, case in CASES.items():
        for number in range(case.times):
            report = measured(work, name, case, number)
            found = [typical_finding(report, method) for method in (BASELINE, *METHODS)]
            yield [name, str(case.num_prompts), *(with_interval(each.ratio, 3) for each in found),
                   " / ".join(map(seen, found)), f"{report.exit_code} ({report.result})"]  # fmt: skip


def typical_finding(report: CheckReport, method: str) -> Finding:
    """Returns the finding on the tokens/s of a typical prompt."""
    findings = [finding for each in report.compared if each.method == method for finding in each.findings]
    return next(finding for finding in findings if finding.what == TYPICAL_SPEED)


def seen(finding: Finding) -> str:
    """Returns the smallest fall that would be seen, in %."""
    return finding.detail.partition("a fall of ")[2].partition(" %")[0]


def noise(work: Path) -> list[list[str]]:
    """Returns for AR and every method the standard deviation of the log of a pair's ratio, in %, and the robust one of
    the median deviation, where nothing was injected."""
    logs: dict[str, list[float]] = {name: [] for name in (BASELINE, *METHODS)}
    for number in range(CASES["nothing"].times):
        before, now = (
            finished_run(work / f"check-0-{number}" / side).records for side in ("baseline", "candidate")
        )  # fmt: skip
        for key, record in before.items():
            for name, found in logs.items():
                seconds = (each.methods[name].decode_seconds for each in (now[key], record))
                found.append(math.log(next(seconds) / next(seconds)))
    robust = {name: 1.4826 * median(map(abs, found)) for name, found in logs.items()}
    return [
        [name, f"{len(found)}", f"{100 * pstdev(found, 0.0):.1f}", f"{100 * robust[name]:.1f}"]
        for name, found in logs.items()
    ]


def simulated_lines() -> Iterator[list[str]]:
    """Yields, for each clock and number of prompts, the shares of exit codes by the fall, in %."""
    for clock in simulated.TURN_CLOCKS:
        for num_prompts in SIZES:
            found = [simulated.shares_in_turns(NUM_CHECKS, num_prompts, fall, clock) for fall in simulated.TURN_FALLS]
            yield [clock, str(num_prompts), *(" / ".join(f"{100 * share:.1f}" for share in each) for each in found)]


HEAD = """# Two interleaved versions: noise, false alarms, and what is found

`python -m tools.gate.in_turns` writes this page. [Guard a repository](../guide/guard.md) describes
`specbench check --against`, which measures two versions interleaved. Exit code 0 means fine, 1 regressed, 2 cannot be
compared. A speed may fall by 1 %.

## Measured checks

The embedded pair on a CPU with two cores and five to ten other processes that wanted them. Copies of specbench whose
loop does extra work were checked against a copy without it; in the first lines nothing was injected. Answers have 24
tokens. The cells are ratios of the tokens/s of a typical prompt, now ÷ before, with the interval that decides, and the
smallest falls that would be seen in AR, sd and fsd, in %. The extra work is so many empty loops, which take longer on a
busy machine than when they were timed: more speed was lost than the first column says.

"""
NOISE = """
## The noise of a pair

A pair is one generation by both versions, one after the other. The cells are standard deviations of the log of the
ratio of their times where nothing was injected, in %; the robust one is that of the median deviation. Times leave out
waits for a CPU. By the wall clock, on the same machine, it was 16 to 26 % for answers of one to two seconds, and more
for shorter ones.

"""
SIMULATED = """
## Simulated checks

The cells are the shares of {num} checks of AR and two methods that end with exit code 0 / 1 / 2, in %, by the true
fall of the speed of one method or of AR and all methods. The check's own functions take the whole decision. Every
generation has a noise of 6 %, and of 15 % by the wall clock, which is used where the system does not count waits; one
of 50 takes 1.5 to 3 times as long. Every process has a speed of its own, with a standard deviation of 0.5 %
(`tools/gate/simulated.py`).

"""


def main() -> None:
    """Measures, simulates and writes the page."""
    argparse.ArgumentParser(
        prog="python -m tools.gate.in_turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found = []
    for line in lines(WORK):
        found.append(line)
        print(*line, sep=" | ", flush=True)
    checks = markdown_table(["speed taken away", "prompts", BASELINE, *METHODS, "seen from", "exit code"], found)
    pairs = markdown_table(["decoder", "pairs", "standard deviation", "robust"], noise(WORK))
    shares = markdown_table(["clock", "prompts", *simulated.TURN_FALLS], list(simulated_lines()))
    text = "\n".join([HEAD + checks, NOISE + pairs, SIMULATED.format(num=f"{NUM_CHECKS:,}") + shares, ""])
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
