"""Rounds of forward passes, rates of the machine and whole generations, of two models in turn."""

import random
from collections.abc import Callable, Sequence

from specbench.limit.decoding import TimedDrafter, time_decoding, time_steps
from specbench.limit.machine import Gauge
from specbench.limit.points import Points
from specbench.limit.timings import Measured, Timings
from specbench.models.causal_lm import CausalLM


def measure(
    target: CausalLM, drafter: CausalLM, gauges: Sequence[Gauge], points: Points, *,
    repeats: int, seed: int, told: Callable[[], None] = lambda: None,
) -> Measured:  # fmt: skip
    """After one unmeasured round, `repeats` rounds: each has every point of both models once, the rates of both gauges,
    and one generation of each model and of the pair, in an order that alternates. `told` is called after each."""
    chance = random.Random(seed)
    models = (target, drafter)
    texts = [[chance.randrange(model.vocab_size) for _ in range(points.most_tokens)] for model in models]
    drafting = TimedDrafter(drafter, target)
    found = Measured()
    for number in range(-1, repeats):
        into = found if number >= 0 else Measured()
        sides = list(zip(models, texts, gauges, (into.target, into.drafter), strict=True))
        for model, ids, gauge, timings in sides if number % 2 == 0 else sides[::-1]:
            time_passes(model, ids, points, timings, backwards=number % 2 == 1)
            timings.rates.append(gauge.rates())
            if points.decodes:
                time_decoding(model, ids[: points.context], timings)
        if points.decodes:
            time_steps(target, drafting, texts[0][: points.context], into.steps)
        told()
    return found


def time_passes(model: CausalLM, ids: list[int], points: Points, into: Timings, *, backwards: bool) -> None:
    """Every point once. Behind a context a pass reads just its own tokens: what was cached before stays."""
    clock = model.passes.clock
    model.reset()
    for context in points.every_context:
        if model.compiled is None:
            model.score(ids[:context], 1)
        else:
            model.compiled.fill(ids[:context])
        lengths = points.behind(context)
        for length in lengths[::-1] if backwards else lengths:
            model.passes.clear()
            model.score(ids[: context + length], length)
            clock.now()
            [(fed, seconds)] = model.passes.read()
            assert fed == length
            into.passes.setdefault((length, context), []).append(seconds)
