"""Simulates regression checks, and prints the shares of their exit codes.

With --write it also measures the embedded pair again and again, without and with injected regressions, and writes
docs/measured/gate.md. This takes a quarter of an hour; the same command continues with the runs in runs/gate.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from specbench.core.table import markdown_table
from tools.gate import measured, simulated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "gate.md"
WORK = Path("runs") / "gate"
NUM_CHECKS, NUM_REPETITIONS = 1000, 20
BY_HAND = "\n## How the rule was made\n"  # this part of the page is kept as it is
HEAD = """# The regression check: false alarms, and what it catches

`python -m tools.gate --write` writes this page. Exit code 0 means fine, 1 regressed, 2 cannot be compared. [Guard a
repository](../guide/guard.md) describes the command.

## The same run again

`specbench check` compared 20 runs of the embedded pair, each with the run before it, and allowed 3 % of regression.
Each run has AR, sd and fsd on 16 prompts. Times are processor times of the process. The cells are ratios of
speed-ups, now ÷ before, with the interval that decides. There is no interval where other work on the machine may
explain the fall (`specbench/gate/speed.py`).

"""
INJECTED = """
## Injected regressions

Each regression was compared with the same run without it, which was measured before. A regression in code that AR
and the methods share slows both down, so that no speed-up falls. The check then says that AR is slower; from 1.25
times on it compares no speed-ups.

"""
SIMULATED = """
## Simulated checks

The cells are the shares of {num} checks that end with exit code 0 / 1 / 2, in %, by the true fall of one method's
speed-up. The check's own functions take the whole decision. Without a fall, every 1 is a false alarm. From run to run
AR's speed has a standard deviation of 10 % on the noisy machine, which also has bursts, and of 3 % on the quiet one. A
load that slows AR down by some factor slows methods down by the power 1.4 of it (`tools/gate/simulated.py`).

"""


Lines = Sequence[Sequence[str]]  # the cells of each line of a table


def page(again: Lines, caught: Lines, lines: Lines, num_checks: int) -> str:
    falls = [f"{fall:.0%}" for fall in simulated.FALLS]
    return "\n".join(
        [
            HEAD + markdown_table(["repetition", "AR now ÷ before", *measured.METHODS, "exit code"], again),
            INJECTED + markdown_table(["regression", "what it says first", "exit code"], caught),
            SIMULATED.format(num=f"{num_checks:,}")
            + markdown_table(["machine", "prompts", "methods", "allowed", *falls], lines),
            "",
        ]
    )


def main() -> None:
    """Prints the lines of the page, and writes it if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tools.gate", description=__doc__)
    parser.add_argument("--checks", type=int, default=NUM_CHECKS, help="simulated checks of a cell")
    parser.add_argument("--prompts", type=int, nargs="+", default=simulated.SIZES, help="numbers of prompts")
    parser.add_argument("--write", action="store_true", help="measure too, and write the page")
    asked = parser.parse_args()
    again, caught = [], []
    if asked.write:
        machine = measured.Machine(WORK)
        for number, report in enumerate(measured.repetitions(machine, NUM_REPETITIONS), start=1):
            again.append(measured.repetition_line(number, report))
            print(*again[-1], sep=" | ", flush=True)
        for name, report in measured.regressions(machine):
            caught.append(measured.regression_line(name, report))
            print(*caught[-1], sep=" | ", flush=True)
    lines = []
    for line in simulated.lines(asked.checks, asked.prompts):
        lines.append(line)
        print(*line, sep=" | ", flush=True)
    if asked.write:
        _, heading, by_hand = PAGE.read_text(encoding="utf-8").partition(BY_HAND)
        PAGE.write_text(page(again, caught, lines, asked.checks) + heading + by_hand, encoding="utf-8")


if __name__ == "__main__":
    main()
