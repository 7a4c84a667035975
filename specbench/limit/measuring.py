"""One `specbench limit`: what was asked for → models, measurements, report."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch

from specbench.errors import ConfigError
from specbench.limit.machine import measured_rates
from specbench.limit.passes import Points, Timings, measure, points_for
from specbench.limit.report import LimitReport, ModelLimit, make_report, model_limit
from specbench.limit.work import Work, work_of
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.results.environment import environment

LEAST_CONTEXT = 8
ENGINES = ("eager", "compiled")


@dataclass(frozen=True)
class Asked:
    """What a user asked for, as it was said."""

    target: str
    drafter: str
    context: int
    repeats: int
    seed: int
    dtype: str
    device: str
    engine: str
    target_revision: str | None = None
    drafter_revision: str | None = None


def check(asked: Asked) -> None:
    """Raise ConfigError for numbers and names that can be told to be wrong before anything is loaded."""
    if asked.engine not in ENGINES:
        raise ConfigError(f"--engine {asked.engine}: unknown: choices are {', '.join(ENGINES)}")
    for name, value, least in (
        ("context", asked.context, LEAST_CONTEXT),
        ("repeats", asked.repeats, 1),
        ("seed", asked.seed, 0),
    ):
        if value < least:
            raise ConfigError(f"--{name} {value}: give {least} or more")


def limits(asked: Asked, report: Callable[[str], None]) -> LimitReport:
    """Load both models and measure them. `report` is told what is being done. Raises ConfigError for a context that
    does not fit into the models."""
    check(asked)
    report(f"loading {asked.target} and {asked.drafter}")
    target = load_model(
        asked.target, revision=asked.target_revision, dtype=asked.dtype, device=asked.device, engine=asked.engine
    )
    dtype = target.dtype if asked.dtype == "auto" else asked.dtype
    drafter = load_model(
        asked.drafter, revision=asked.drafter_revision, dtype=dtype, device=asked.device, engine=asked.engine
    )
    return limits_of(target, drafter, asked, report)


def limits_of(target: CausalLM, drafter: CausalLM, asked: Asked, report: Callable[[str], None]) -> LimitReport:
    """Measure two models that are there."""
    models = (target, drafter)
    points = points_for(models, asked.context)
    if len(points.query_lengths) < 2:
        raise ConfigError(f"--context {asked.context}: the models' context has no room behind it: give less")
    works = [work_of(model) for model in models]
    timings: list[Timings] = [Timings() for _ in models]
    for part in points.parts() if any(model.compiled is not None for model in models) else [points]:
        for model in models:
            if model.compiled is not None:
                model.compiled.reserve(part.most_tokens, part.query_lengths, prompts=part.decodes, told=report)
        measure(models, part, asked.repeats, asked.seed, rounds_told(part, asked.repeats, report), timings)
    report("copying memory and multiplying matrices")
    found = [limit_of(*each, points) for each in zip(models, works, timings, strict=True)]
    device = str(environment(str(target.device), target.dtype, target.attention)["device"])
    return make_report(found[0], found[1], points, device=device, engine=asked.engine, repeats=asked.repeats)


def rounds_told(part: Points, repeats: int, report: Callable[[str], None]) -> Callable[[], None]:
    """What is said after each round."""
    numbers = count()

    def told() -> None:
        number = next(numbers)
        said = f"round {number} of {repeats} is done" if number else "warmed up"
        report(f"forward passes behind {part.context} tokens: {said}")

    return told


def limit_of(model: CausalLM, work: Work, timings: Timings, points: Points) -> ModelLimit:
    dtype: torch.dtype = model.model.dtype
    rates = measured_rates(model.device, dtype, int(work.bytes_read(1, points.context)))
    return model_limit(model.name, model.dtype, work, rates, timings, points.context)
