"""One `specbench limit`: what was asked for → models, measurements, report."""

import random
from collections.abc import Callable, Sequence
from itertools import count
from statistics import fmean
from typing import Annotated

from pydantic import Field

from specbench.analysis.limit.conclusions import conclude
from specbench.analysis.limit.decoding import GREEDY, TimedDrafter, time_decoding, time_steps
from specbench.analysis.limit.report import Described, LimitReport
from specbench.analysis.limit.timings import LEAST_CONTEXT, NUM_DRAFT_TOKENS, Measured, Points, Timings, points_for
from specbench.analysis.limit.work import Gauge, Work, work_of
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.results.environment import environment
from specbench.running.models import engine_of, warn_of
from specbench.running.requirements import num_compilations
from specbench.specs.components import Dtype, Engine, Spec, Text

TURNS = 3  # of each model in a round; every query length has a pass in each
TURN_SECONDS = 0.004  # of each query length, in a turn
SINGLE_SECONDS = 0.012  # of the single token, where others are divided by it


class Sweeps:
    """Passes of one model behind `context` tokens of `ids`, of which the model keeps just these. `seconds`: of each
    pass, by query length, 1 among them."""

    def __init__(self, model: CausalLM, ids: list[int], context: int, lengths: Sequence[int]) -> None:
        self._model, self._ids, self._context = model, ids, context
        self.seconds: dict[int, list[float]] = {length: [] for length in lengths}
        model.score(ids[:context], 1)

    def take_turn(self, number: int, *, backwards: bool) -> None:
        """Sweep until every length has its passes of the first `number` turns. The first pass, behind a prefill or
        passes of another model, is not measured."""
        self._pass(1)
        while lacking := self._lacking(number):
            self._sweep(lacking[::-1] if backwards else lacking)
            backwards = not backwards

    def _lacking(self, num_turns: int) -> list[int]:
        """The query lengths that have too few passes for so many turns. By their fastest pass: if an interrupted one
        ended a turn early, it would weigh more in the mean than it does in time."""
        return [
            length
            for length, seconds in self.seconds.items()
            if len(seconds) < num_turns or len(seconds) * min(seconds) < num_turns * self._enough(length)
        ]

    def _enough(self, length: int) -> float:
        return SINGLE_SECONDS if length == 1 < len(self.seconds) else TURN_SECONDS

    def _sweep(self, lengths: Sequence[int]) -> None:
        """A pass of each length, and one of the single token in the middle, whether it lacks any or not."""
        others = [length for length in lengths if length != 1]
        half = len(others) // 2
        for length in (*others[:half], 1, *others[half:]):
            self.seconds[length].append(self._pass(length))

    def means(self) -> dict[int, float]:
        return {length: fmean(seconds) for length, seconds in self.seconds.items()}

    def _pass(self, length: int) -> float:
        """Seconds of a pass that reads just its own tokens: what was cached before stays."""
        log = self._model.passes
        log.clear()
        self._model.score(self._ids[: self._context + length], length)
        log.clock.now()
        [(fed, seconds)] = log.read()
        assert fed == length
        return seconds


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


Told = Callable[[str], None]
Pair = tuple[CausalLM, CausalLM]


class Asked(Spec):
    """What a user asked for, as it was said."""

    target: Text
    drafter: Text
    context: Annotated[int, Field(ge=LEAST_CONTEXT)]
    repeats: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    dtype: Dtype = "auto"
    device: Text = "auto"
    engine: Engine = "auto"
    target_revision: str | None = None
    drafter_revision: str | None = None


def limits(asked: Asked, told: Told) -> LimitReport:
    """Load both models and measure them. `told` hears what is being done. Raises ConfigError for models that cannot be
    loaded, and for a context that does not fit into them."""
    told(f"loading {asked.target} and {asked.drafter}")
    target = load_model(
        asked.target, revision=asked.target_revision, dtype=asked.dtype, device=asked.device, engine=asked.engine
    )
    dtype = target.dtype if asked.dtype == "auto" else asked.dtype
    drafter = load_model(
        asked.drafter, revision=asked.drafter_revision, dtype=dtype, device=asked.device, engine=target.engine
    )
    if target.why_eager is not None:
        warn_of(target, asked.engine, "these are the limits of --engine eager")
    elif drafter.why_eager is not None:
        warn_of(drafter, asked.engine, "its passes are eager beside compiled ones of the target")
    return limits_of(target, drafter, asked, told)


def limits_of(target: CausalLM, drafter: CausalLM, asked: Asked, told: Told = lambda line: None) -> LimitReport:
    """Measure two models that are there."""
    models = (target, drafter)
    points = points_for(models, asked.context)
    works = [work_of(model) for model in models]
    gauges = [gauge_of(*each, points) for each in zip(models, works, strict=True)]
    is_static = any(model.static is not None for model in models)
    parts = [measured(models, gauges, part, asked, told) for part in (points.parts() if is_static else [points])]
    capacities = (parts[0].target.capacity, parts[0].drafter.capacity)
    first, second = (
        (described(model, capacity), work) for model, capacity, work in zip(models, capacities, works, strict=True)
    )
    conditions = environment(str(target.device), target.dtype, target.attention, engine_of(target, [drafter]))
    return conclude(first, second, parts, points, environment=conditions, seed=asked.seed, repeats=asked.repeats)


def measured(models: Pair, gauges: Sequence[Gauge], part: Points, asked: Asked, told: Told) -> Measured:
    """Rounds of passes that were made before."""
    for model in models:
        if model.static is not None:
            model.static.reserve(part.most_tokens, part.query_lengths, told=told)
    if part.decodes:
        models[1].reserve_draft(NUM_DRAFT_TOKENS, GREEDY)
    before = num_compilations()
    rounds = rounds_told(part, asked.repeats, told)
    found = measure(*models, gauges, part, repeats=asked.repeats, seed=asked.seed, told=rounds)
    if number := num_compilations() - before:
        raise ConfigError(
            f"--engine {models[0].engine}: {number} passes were made while others were measured, so their seconds say "
            "nothing: take --engine eager"
        )
    found.target.capacity, found.drafter.capacity = (
        None if model.static is None else model.static.capacity for model in models
    )
    return found


def gauge_of(model: CausalLM, work: Work, points: Points) -> Gauge:
    return Gauge(model.device, model.model.dtype, int(work.bytes_read(1, points.context)))


def described(model: CausalLM, capacity: int | None) -> Described:
    return Described(
        name=model.name, revision=model.revision, dtype=model.dtype, attention=model.attention, capacity=capacity
    )


def rounds_told(part: Points, repeats: int, told: Told) -> Callable[[], None]:
    """What is said after each round."""
    numbers = count()

    def round_told() -> None:
        number = next(numbers)
        said = f"round {number} of {repeats} is done" if number else "warmed up"
        told(f"behind {part.context} tokens: {said}")

    return round_told
