"""The verdicts of `specbench check`, by simulation: measurements are drawn, and the check's own functions judge them.

Both runs measure the same prompts, AR and every method one after the other, the order reversed from prompt to prompt.
Lengths are log-normal with sigma 1, speed-ups of single prompts with sigma 0.3 around 2. Every generation's seconds
have noise of their own, log-normal with sigma 0.08, and one of 50 takes 1.5 to 3 times as long. A regression makes the
seconds of the first method longer in the second run.

The machine's load makes all seconds longer, those of methods by its power LOADED: of an interleaved AR and method it
does not cancel. It has a level in each run, and bursts that go on from generation to generation (an autoregressive
process of order one); a method's level has a part that AR does not see. The figures of the noisy machine are those of
21 runs of the embedded pair on two cores with six jobs beside it.

Two interleaved versions are simulated without bursts, as background load affects both equally. Every process has a
level of its own, as of its place in memory, and every generation noise of its own. The speed of AR or of all decoders
may fall.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.gate.report import CheckReport, MethodFindings
from specbench.gate.speed import SpeedControl, judge_all, ratio_of_speeds, ratios_of_speedups
from specbench.statistics.bootstrap import Resampler

Array = NDArray[np.float64]
SIZES = (16, 30, 100)
FALLS = (0.0, 0.03, 0.05, 0.1, 0.2)
MAX_REGRESSION = 0.03
NUM_METHODS = (1, 5)  # that one check compares
LOADED = 1.4
KEPT = 0.8  # of a burst, from a generation to the next


class Noise(NamedTuple):
    """Standard deviations of the logs: of a run's level, of its bursts, of what only the method sees."""

    level: float
    burst: float
    own: float


CLOCKS = {"quiet": Noise(0.03, 0.0, 0.0), "noisy": Noise(0.1, 0.06, 0.025)}
PLACES = (("quiet", MAX_REGRESSION), ("quiet", 0.0), ("noisy", MAX_REGRESSION))  # the clock, and what fall is allowed


def bursts(size: int, generator: np.random.Generator) -> Array:
    """[size], of standard deviation 1."""
    found, value = np.empty(size), generator.normal()
    for place, step in enumerate(generator.normal(size=size) * np.sqrt(1 - KEPT**2)):
        found[place] = value = KEPT * value + step
    return found


def measured(tokens: Array, seconds: Array, clock: Noise, generator: np.random.Generator) -> Array:
    """Tokens and seconds of every decoder as a run would measure them: seconds [num_decoders, num_prompts], of AR
    first → [num_decoders, 2, num_prompts]."""
    num_decoders, num_prompts = seconds.shape
    load = clock.burst * bursts(seconds.size, generator).reshape(num_prompts, num_decoders)
    load[1::2] = load[1::2, ::-1]
    log = (clock.level * generator.normal() + load.T) * np.where(np.arange(num_decoders) == 0, 1.0, LOADED)[:, None]
    log[1:] += clock.own * generator.normal(size=(num_decoders - 1, 1))
    log += 0.08 * generator.normal(size=seconds.shape)
    spikes = np.where(generator.random(seconds.shape) < 0.02, generator.uniform(1.5, 3, size=seconds.shape), 1.0)
    return np.stack([np.broadcast_to(tokens, seconds.shape), seconds * np.exp(log) * spikes], axis=1)


def exit_code(
    generator: np.random.Generator, num_prompts: int, fall: float, clock: Noise, num_methods: int, max_regression: float
) -> int:
    """Returns the exit code of one check; the first method has lost the share `fall` of its speed."""
    tokens = np.exp(4 + generator.normal(size=num_prompts))
    gained = np.exp(np.log(2) + 0.3 * generator.normal(size=(num_methods, num_prompts)))
    seconds = 0.02 * tokens / np.vstack([np.ones(num_prompts), gained])
    before = measured(tokens, seconds, clock, generator)
    seconds[1] /= 1 - fall
    now = measured(tokens, seconds, clock, generator)
    prompts, control = Resampler(np.arange(num_prompts), seed=0), SpeedControl(other_device=False)
    control.add("simulated", ratio_of_speeds(prompts, np.vstack([now[0], before[0]])))
    compared = [
        MethodFindings("simulated", "m", ratios=ratios_of_speedups(prompts, np.vstack([new, now[0], old, before[0]])))
        for new, old in zip(now[1:], before[1:], strict=True)
    ]
    num_tolerant, factor = judge_all(compared, control, max_regression)
    return CheckReport("", "", max_regression, num_tolerant, factor, tuple(compared), (), ()).exit_code


def shares(
    num_checks: int, num_prompts: int, fall: float, clock: Noise, num_methods: int = 1,
    max_regression: float = MAX_REGRESSION,
) -> tuple[float, float, float]:  # fmt: skip
    """The shares of checks that end with the exit codes 0, 1 and 2."""
    generator = np.random.default_rng(num_prompts)
    codes = [
        exit_code(generator, num_prompts, fall, clock, num_methods, max_regression) for _ in range(num_checks)
    ]  # fmt: skip
    return codes.count(0) / num_checks, codes.count(1) / num_checks, codes.count(2) / num_checks


class TurnNoise(NamedTuple):
    """Standard deviations of the logs: of a process's level, of a generation."""

    level: float
    generation: float


# As the clock of an interleaved check; and as the wall clock, on a system that does not count the waits for a CPU.
TURN_CLOCKS = {"waits left out": TurnNoise(0.005, 0.06), "wall clock": TurnNoise(0.005, 0.15)}
TURN_FALLS = {"none": (0.0, 0), "5 % of one": (0.05, 1), "5 % of all": (0.05, 9), "10 % of one": (0.1, 1),
              "10 % of all": (0.1, 9)}  # fmt: skip
ALLOWED_INTERLEAVED = 0.01


def exit_code_in_turns(
    generator: np.random.Generator, num_prompts: int, fall: float, num_falling: int, noise: TurnNoise, num_methods: int
) -> int:
    """Returns the exit code of one interleaved check; the last `num_falling` of the decoders, AR the first of them,
    have lost the share `fall` of their speed."""
    tokens = np.exp(4 + generator.normal(size=num_prompts))
    gained = np.exp(np.log(2) + 0.3 * generator.normal(size=(num_methods, num_prompts)))
    before = 0.02 * tokens / np.vstack([np.ones(num_prompts), gained])
    now = before.copy()
    now[-num_falling or len(now) :] /= 1 - fall
    prompts = Resampler(np.arange(num_prompts), seed=0)
    for seconds in (now, before):
        seconds *= np.exp(noise.level * generator.normal() + noise.generation * generator.normal(size=seconds.shape))
        is_spike = generator.random(seconds.shape) < 0.02
        seconds *= np.where(is_spike, generator.uniform(1.5, 3, size=seconds.shape), 1.0)
    compared = [
        MethodFindings("simulated", "m", ratios=ratios_of_speedups(prompts, np.vstack([tokens, new, tokens, old])))
        for new, old in zip(now, before, strict=True)
    ]
    num_tolerant, factor = judge_all(compared, SpeedControl(other_device=False), ALLOWED_INTERLEAVED)
    return CheckReport("", "", ALLOWED_INTERLEAVED, num_tolerant, factor, tuple(compared), (), ()).exit_code


def shares_in_turns(
    num_checks: int, num_prompts: int, fall: str, clock: str, num_methods: int = 2
) -> tuple[float, float, float]:
    """Returns the shares of interleaved checks that end with the exit codes 0, 1 and 2; `fall`: one of TURN_FALLS."""
    generator = np.random.default_rng(num_prompts)
    share, num_falling = TURN_FALLS[fall]
    codes = [
        exit_code_in_turns(generator, num_prompts, share, num_falling, TURN_CLOCKS[clock], num_methods)
        for _ in range(num_checks)
    ]
    return codes.count(0) / num_checks, codes.count(1) / num_checks, codes.count(2) / num_checks


def lines(num_checks: int, sizes: Sequence[int] = SIZES) -> Iterator[list[str]]:
    """Returns, for each of PLACES, number of prompts and of methods, the shares, in %, by the true fall."""
    for name, max_regression in PLACES:
        for num_prompts in sizes:
            for num_methods in NUM_METHODS:
                falls = FALLS if num_methods == 1 and max_regression else FALLS[:1]
                found = [shares(num_checks, num_prompts, f, CLOCKS[name], num_methods, max_regression) for f in falls]
                cells = [" / ".join(f"{100 * share:.1f}" for share in each) for each in found]
                cells += [""] * (len(FALLS) - len(found))
                yield [name, f"{num_prompts}", f"{num_methods}", f"{max_regression:.0%}", *cells]
