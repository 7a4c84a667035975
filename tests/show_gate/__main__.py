"""`python -m tests.show_gate` prints how often a check fails, by simulation, 2,000 checks each; `python -m
tests.show_gate 500 5 10` of 500 checks of 5 and of 10 prompts. `python -m tests.show_gate --write` also measures the
embedded pair, again and again and with regressions, and makes leaderboards/gate.md of it all; that takes a quarter of
an hour, and the same command goes on with what is in runs/gate."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.show_gate import measured, simulated

PAGE = Path(__file__).resolve().parents[2] / "leaderboards" / "gate.md"
WORK = Path("runs") / "gate"
NUM_CHECKS, NUM_REPETITIONS = 2000, 20
HEAD = """# The regression gate: false alarms, and what it catches

Written by `python -m tests.show_gate --write`. Exit code 0 is fine, 1 regressed, 2 cannot be compared.

## The same run again

`specbench check` on 20 runs of the embedded pair, each beside the one that was measured before it; 3 % of regression
allowed. Each run has AR, sd and fsd on 16 prompts. The machine had other work all the time, so the clock is the time
that the process had the processor; by the wall clock AR itself ran 1.25 times faster or slower in the next run, and the
gate then compares no speed-ups. Ratios of speed-ups, now ÷ before, with the interval that decides; none where AR's
own speed may have changed by as much as that fell. (That rule was made on the runs below, of which three were called
regressed without it: they show what it is for, and are no independent test of it.)

"""
INJECTED = """
## Injected regressions

Each beside the same run without it, measured before them.

"""
SIMULATED = """
## Simulated checks

The share of {num} checks that fail, in %, by the true fall of one method's speed-up (`tests/show_gate/simulated.py`
says what is simulated). Without a fall every failure is a false alarm. AR's own change is left out: where it was
as large, such a check ends with exit code 2.

"""


def table(head: Sequence[str], lines: Sequence[str]) -> str:
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]
    return "".join(f"{row}\n" for row in rows)


def main(words: Sequence[str]) -> None:
    numbers = [int(word) for word in words if word != "--write"]
    num_checks, sizes = (numbers[0] if numbers else NUM_CHECKS), (numbers[1:] or simulated.SIZES)
    again, caught = [], []
    if "--write" in words:
        machine = measured.Machine(WORK)
        for number, report in enumerate(measured.repetitions(machine, NUM_REPETITIONS), start=1):
            again.append(measured.repetition_line(number, report))
            print(again[-1], flush=True)
        for name, report in measured.regressions(machine):
            caught.append(measured.regression_line(name, report))
            print(caught[-1], flush=True)
    lines = []
    for line in simulated.lines(num_checks, sizes):
        lines.append(line)
        print(line, flush=True)
    if "--write" in words:
        falls = [f"{fall:.0%}" for fall in simulated.FALLS]
        PAGE.write_text(
            HEAD
            + table(["repetition", "AR now ÷ before", *measured.METHODS, "exit code"], again)
            + INJECTED
            + table(["regression", "what it says first", "exit code"], caught)
            + SIMULATED.format(num=f"{num_checks:,}")
            + table(["prompts", "methods", "allowed", *falls], lines),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
