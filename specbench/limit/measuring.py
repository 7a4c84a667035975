"""One `specbench limit`: what was asked for → models, measurements, report."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated

from pydantic import Field

from specbench.errors import ConfigError
from specbench.limit.conclusions import conclude
from specbench.limit.machine import Gauge
from specbench.limit.passes import measure
from specbench.limit.points import LEAST_CONTEXT, Points, points_for
from specbench.limit.report import Described, LimitReport
from specbench.limit.timings import Measured
from specbench.limit.work import Work, work_of
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.results.environment import environment
from specbench.running.models import engine_of, warn_of
from specbench.running.reserving import num_compilations
from specbench.specs.components import Dtype, Engine, Spec, Text

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
    engine: Engine = "eager"
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
        warn_of(target, "neither model is, and these are the limits of --engine eager")
    elif drafter.why_eager is not None:
        warn_of(drafter, "its passes are eager beside compiled ones of the target")
    return limits_of(target, drafter, asked, told)


def limits_of(target: CausalLM, drafter: CausalLM, asked: Asked, told: Told = lambda line: None) -> LimitReport:
    """Measure two models that are there."""
    models = (target, drafter)
    points = points_for(models, asked.context)
    works = [work_of(model) for model in models]
    gauges = [gauge_of(*each, points) for each in zip(models, works, strict=True)]
    is_compiled = any(model.compiled is not None for model in models)
    parts = [measured(models, gauges, part, asked, told) for part in (points.parts() if is_compiled else [points])]
    capacities = (parts[0].target.capacity, parts[0].drafter.capacity)
    first, second = (
        (described(model, capacity), work) for model, capacity, work in zip(models, capacities, works, strict=True)
    )
    conditions = environment(str(target.device), target.dtype, target.attention, engine_of(target, [drafter]))
    return conclude(first, second, parts, points, environment=conditions, seed=asked.seed, repeats=asked.repeats)


def measured(models: Pair, gauges: Sequence[Gauge], part: Points, asked: Asked, told: Told) -> Measured:
    """Rounds of passes that were compiled before."""
    for model in models:
        if model.compiled is not None:
            model.compiled.reserve(part.most_tokens, part.query_lengths, prompts=part.decodes, told=told)
    before = num_compilations()
    rounds = rounds_told(part, asked.repeats, told)
    found = measure(*models, gauges, part, repeats=asked.repeats, seed=asked.seed, told=rounds)
    if number := num_compilations() - before:
        raise ConfigError(
            f"--engine compiled: {number} passes were compiled while others were measured, so their seconds say "
            "nothing: take --engine eager"
        )
    found.target.capacity, found.drafter.capacity = (
        None if model.compiled is None else model.compiled.capacity for model in models
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
