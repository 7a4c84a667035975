"""`python -m tools.gate` prints what checks say, by simulation, 1,000 each; `python -m tools.gate 200 20 40`
of 200 checks of 20 and of 40 prompts. `python -m tools.gate --write` also measures the
embedded pair, again and again and with regressions, and makes docs/measured/gate.md of it all; that takes a quarter of
an hour, and the same command goes on with what is in runs/gate."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gate import measured, simulated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "gate.md"
WORK = Path("runs") / "gate"
NUM_CHECKS, NUM_REPETITIONS = 1000, 20
BY_HAND = "\n## How the rule was made\n"  # this part of the page is kept as it is
HEAD = """# The regression gate: false alarms, and what it catches

Written by `python -m tools.gate --write`. Exit code 0 is fine, 1 regressed, 2 cannot be compared.

## The same run again

`specbench check` on 20 runs of the embedded pair, each beside the one that was measured before it; 3 % of regression
allowed. Each run has AR, sd and fsd on 16 prompts. The clock is the time that the process had the processor. Ratios of
speed-ups, now ÷ before, with the interval that decides; none where a fall is no more than other work on the machine may
take (`specbench/results/gate/pairing.py`).

"""
INJECTED = """
## Injected regressions

Each beside the same run without it, measured before them. What AR and the methods share slows both down: no speed-up
falls. The gate then says that AR is slower; from 1.25 times on it compares nothing.

"""
SIMULATED = """
## Simulated checks

The shares of {num} checks that end with exit code 0 / 1 / 2, in %, by the true fall of one method's speed-up: whole
decisions, by the gate's own functions. Without a fall every 1 is a false alarm. On the noisy machine the standard
deviation of AR's speed from run to run is 10 %, with bursts beside, on the quiet one 3 %; both slow methods down
by the power 1.4 of what they slow AR down by (`tools/gate/simulated.py`).

"""


def table(head: Sequence[str], lines: Sequence[str]) -> str:
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]
    return "".join(f"{row}\n" for row in rows)


def page(again: Sequence[str], caught: Sequence[str], lines: Sequence[str], num_checks: int) -> str:
    falls = [f"{fall:.0%}" for fall in simulated.FALLS]
    return (
        HEAD
        + table(["repetition", "AR now ÷ before", *measured.METHODS, "exit code"], again)
        + INJECTED
        + table(["regression", "what it says first", "exit code"], caught)
        + SIMULATED.format(num=f"{num_checks:,}")
        + table(["machine", "prompts", "methods", "allowed", *falls], lines)
    )


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
        _, heading, by_hand = PAGE.read_text(encoding="utf-8").partition(BY_HAND)
        PAGE.write_text(page(again, caught, lines, num_checks) + heading + by_hand, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
