"""Rounds of forward passes, rates of the machine and whole generations, of two models in turn."""

import random
from collections.abc import Callable, Sequence

from specbench.limit.decoding import TimedDrafter, time_decoding, time_steps
from specbench.limit.machine import Gauge
from specbench.limit.points import Points
from specbench.limit.sweeps import TURNS, Sweeps
from specbench.limit.timings import Measured, Timings
from specbench.models.causal_lm import CausalLM


def measure(
    target: CausalLM, drafter: CausalLM, gauges: Sequence[Gauge], points: Points, *,
    repeats: int, seed: int, told: Callable[[], None] = lambda: None,
) -> Measured:  # fmt: skip
    """After one unmeasured round, `repeats` rounds: each has every point of both models, the rates of both gauges,
    and one generation of each model and of the pair, in an order that alternates. `told` is called after each."""
    chance = random.Random(seed)
    models = (target, drafter)
    texts = [[chance.randrange(model.vocab_size) for _ in range(points.most_tokens)] for model in models]
    drafting = TimedDrafter(drafter, target)
    found = Measured()
    for number in range(-1, repeats):
        into = found if number >= 0 else Measured()
        sides = list(zip(models, texts, gauges, (into.target, into.drafter), strict=True))
        in_turn = sides if number % 2 == 0 else sides[::-1]
        passing = [(model, ids, timings) for model, ids, _, timings in in_turn]
        time_passes(passing, points, backwards=number % 2 == 1)
        for model, ids, gauge, timings in in_turn:
            timings.rates.append(gauge.rates())
            if points.decodes:
                time_decoding(model, ids[: points.context], timings)
        if points.decodes:
            time_steps(target, drafting, texts[0][: points.context], into.steps)
        told()
    return found


def time_passes(sides: Sequence[tuple[CausalLM, list[int], Timings]], points: Points, *, backwards: bool) -> None:
    """The mean seconds of every point, of models that take turns: what is divided by one another was measured side by
    side, whatever else the machine did meanwhile."""
    for model, _, _ in sides:
        model.reset()
    for context in points.every_context:
        sweeps = [Sweeps(model, ids, context, points.behind(context)) for model, ids, _ in sides]
        for turn in range(1, TURNS + 1):
            for each in sweeps:
                each.take_turn(turn, backwards=backwards == (turn % 2 == 1))
        for each, (_, _, timings) in zip(sweeps, sides, strict=True):
            for length, seconds in each.means().items():
                timings.passes.setdefault((length, context), []).append(seconds)
