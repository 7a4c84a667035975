"""Simulates the rule that ends a warm-up (`specbench.running.warm_up.is_steady`).

Times per token of blocks: even; settling exponentially (first excess, blocks until it fell to a third); twice as slow
until a step; and those of a process on an H100, with two or four blocks for each of its answers. All times exp(noise),
Student's t with three degrees of freedom and the standard deviation said. Each cell: the median number of blocks / the
share of runs, in %, that are said to be steady although the speed is still to change by more than 15 % within the next
32 blocks / the share that is not steady within the budget.

Then whole runs of eleven subsets on a CPU, of 512 new tokens each, through `until_steady` itself: the mean number of
blocks / of subsets that are not said to be steady. `stall`: one of the first eight subsets is 3 to 10 times as slow.
"""

import argparse
from types import SimpleNamespace
from unittest import mock

import numpy as np

from specbench.running import warm_up
from specbench.running.warm_up import (
    MAX_BLOCKS,
    MAX_BLOCKS_CPU,
    NUM_NEW_TOKENS,
    is_steady,
    max_blocks,
    until_steady,
)

NOISES = (0.03, 0.05, 0.1, 0.3)
LENGTH = 200
AHEAD = 32
CHANGE = 1.15
# AR's decode seconds per answer, answers of like length, from the start of a process on an H100
H100 = (3.1, 1.9, 0.9, 0.95, 0.8, 0.75, 0.76, 1.1, 1.65, 1.6, 1.2, 0.85, 0.7, 0.6, 0.54, 0.7)


def series() -> dict[str, np.ndarray]:
    """Returns the times per token without noise, by name."""
    blocks = np.arange(LENGTH)
    answers = np.concatenate([H100, np.full(LENGTH, np.mean(H100[-5:]))])
    return {
        "even": np.ones(LENGTH),
        **{f"settles {a:g}, {t}": 1 + a * np.exp(-blocks / t) for a, t in ((4, 2), (4, 10), (0.5, 10), (0.5, 30))},
        **{f"step at {at}": np.where(blocks < at, 2.0, 1.0) for at in (4, 12)},
        **{f"H100, {n} blocks": np.interp((blocks + 0.5) / n - 0.5, np.arange(len(answers)), answers) for n in (2, 4)},
    }


def blocks_until_steady(times: np.ndarray, most: int) -> int | None:
    """Returns the number of blocks after which the rule says that the speed is steady; None if it does not."""
    return next((num for num in range(1, most + 1) if is_steady(times[:num].tolist())), None)


def simulated(base: np.ndarray, noise: float, most: int, num_runs: int) -> tuple[float, float, float]:
    """Returns the median number of blocks, and the shares of runs that are wrongly steady and not steady."""
    rng = np.random.default_rng([most, round(1000 * noise)])
    errors = rng.standard_t(3, (num_runs, LENGTH)) * noise / np.sqrt(3)
    found = [blocks_until_steady(base * np.exp(error), most) for error in errors]
    ends = [num for num in found if num is not None]
    num_wrong = sum(_changes(base[num - 1 : num + AHEAD]) for num in ends)
    return float(np.median([num or most for num in found])), num_wrong / num_runs, 1 - len(ends) / num_runs


def _changes(base: np.ndarray) -> bool:
    return bool(base.max() > CHANGE * base[0] or base.min() * CHANGE < base[0])


RUNS = ("even", "settles 4, 2", "stall")
NUM_SUBSETS, SUBSET_TOKENS, BLOCK_SECONDS = 11, 512, 1.5


def simulated_run(kind: str, noise: float, num_runs: int) -> tuple[float, float]:
    """Returns the mean numbers of blocks, and of subsets that are not steady, of runs of several subsets."""
    rng = np.random.default_rng([len(kind), round(1000 * noise)])
    found = [each for _ in range(num_runs) for each in _subsets(kind, noise, rng)]
    num_unsteady = sum(not steady for _, steady in found)
    return sum(num for num, _ in found) / num_runs, num_unsteady / num_runs


def _subsets(kind: str, noise: float, rng: np.random.Generator) -> list[tuple[int, bool | None]]:
    """Returns the number of blocks before each subset of a run, and whether the speed was steady."""
    base, stalled = series().get(kind, np.ones(LENGTH)), rng.integers(0, 8) if kind == "stall" else None
    clock = [0.0]
    blocks = list[tuple[float, float]]()
    found = list[tuple[int, bool | None]]()

    def decode() -> float:
        slow = rng.uniform(3, 10) if len(found) == stalled else 1.0
        per_token = float(base[len(blocks)] * slow * np.exp(rng.standard_t(3) * noise / np.sqrt(3)))
        clock[0] += per_token * BLOCK_SECONDS
        return per_token

    with mock.patch.object(warm_up, "time", SimpleNamespace(perf_counter=lambda: clock[0])):
        for _ in range(NUM_SUBSETS):
            most = max_blocks(len(blocks), NUM_SUBSETS * SUBSET_TOKENS / NUM_NEW_TOKENS, on_cpu=True)
            num, (steady,) = until_steady([decode], [blocks], most)
            found.append((num, steady))
    return found


def main() -> None:
    """Prints a table for each budget."""
    parser = argparse.ArgumentParser(prog="python -m tools.warmup", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="simulated runs of a cell")
    num_runs = parser.parse_args().runs
    for most in (MAX_BLOCKS_CPU, MAX_BLOCKS):
        print(f"    at most {most} blocks\n    {'':16s}" + "".join(f"{noise:>14g}" for noise in NOISES), flush=True)
        for name, base in series().items():
            found = [simulated(base, noise, most, num_runs) for noise in NOISES]
            cells = (f"{num:.0f} / {100 * wrong:.0f} / {100 * never:.0f}" for num, wrong, never in found)
            print(f"    {name:16s}" + "".join(f"{cell:>14s}" for cell in cells), flush=True)
    print(f"    whole runs\n    {'':16s}" + "".join(f"{noise:>14g}" for noise in NOISES), flush=True)
    for name in RUNS:
        means = (simulated_run(name, noise, num_runs) for noise in NOISES)
        print(f"    {name:16s}" + "".join(f"{f'{num:.0f} / {bad:.1f}':>14s}" for num, bad in means), flush=True)


if __name__ == "__main__":
    main()
