"""`specbench roofline`: measures two models in rounds and makes the report, with medians over rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from specbench.analysis.roofline.report import (
    RATES,
    BestLength,
    Costs,
    DrafterRoofline,
    ModelConditions,
    ModelRoofline,
    PassPoint,
    Quartiles,
    Ratio,
    RooflineReport,
    StepTimes,
    fastest_length,
)
from specbench.analysis.roofline.rounds import (
    GREEDY,
    LEAST_CONTEXT,
    NUM_DRAFT_TOKENS,
    ModelTimings,
    PairTimings,
    Points,
    RateBenchmark,
    measure,
    points_for,
)
from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.models.causal_lm import CausalLM
from specbench.models.kv_cache import CACHE_NAMES
from specbench.models.loading import load_model
from specbench.results.conditions import environment
from specbench.results.row import RowWarning
from specbench.results.warnings import WIDE
from specbench.running.capture_plan import num_compilations
from specbench.running.models import engine_of, warn_not_static
from specbench.specs.components import Dtype, EngineName, Spec, Text
from specbench.statistics.bootstrap import MIN_PROMPTS, Array, Resampler

EXPERTS = ".experts."  # in the names of expert weights, of which a token uses a share


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer. `bytes_per_token`: of keys and values; `width`: heads × (key + value dimensions); `window`:
    the sliding window in tokens, None for full attention."""

    bytes_per_token: int
    width: int
    window: int | None = None

    def seen(self, context: int, query_length: int) -> int:
        """Returns the number of cached tokens that any new token attends to, plus the number of new tokens."""
        return context + query_length if self.window is None else min(context, self.window - 1) + query_length

    def pairs(self, context: int, query_length: int) -> int:
        """Returns the number of (query, key) pairs: every new token attends to those before it and to itself."""
        whole = (context + place + 1 for place in range(query_length))
        return sum(whole if self.window is None else (min(each, self.window) for each in whole))


@dataclass(frozen=True)
class Work:
    """The work of a model's pass, independent of the hardware.

    A pass reads `weight_bytes` once, and for each token `row_bytes` (one row of every embedding table) and the
    `expert_share` of `expert_bytes`. Each token is multiplied by `matmul_weights` and by the `expert_share` of
    `expert_weights`. `state_bytes`: of recurrent states.
    """

    weight_bytes: int
    matmul_weights: int
    row_bytes: int = 0
    layers: tuple[AttentionLayer, ...] = ()
    state_bytes: int = 0
    expert_bytes: int = 0
    expert_weights: int = 0
    expert_share: float = 1.0

    def bytes_read(self, query_length: int, context: int) -> float:
        """Returns the bytes of weights and cache that a pass over `query_length` tokens after `context` cached tokens
        must read. The number of experts is that of tokens that choose at random."""
        touched = 1.0 - (1.0 - self.expert_share) ** query_length
        cached = sum(layer.bytes_per_token * layer.seen(context, query_length) for layer in self.layers)
        weights = self.weight_bytes + self.row_bytes * query_length + self.expert_bytes * touched
        return weights + cached + self.state_bytes

    def operations(self, query_length: int, context: int) -> float:
        """Returns the operations of a pass: a multiplication and an addition for each weight and token, and for each
        pair of query and key. Logits are computed for every token."""
        weights = self.matmul_weights + self.expert_weights * self.expert_share
        attention = sum(layer.width * layer.pairs(context, query_length) for layer in self.layers)
        return 2.0 * (weights * query_length + attention)


def work_of(model: CausalLM) -> Work:
    network = model.model
    head = network.get_output_embeddings()
    tables = {id(each.weight) for each in network.modules() if isinstance(each, torch.nn.Embedding)}
    tables -= {id(head.weight)} if head is not None else set()  # the output layer reads a tied table whole
    weight_bytes = matmul_weights = row_bytes = expert_bytes = expert_weights = 0
    for name, weight in network.named_parameters():
        if id(weight) in tables:
            row_bytes += weight.element_size() * weight.shape[-1]
        elif EXPERTS in name:
            expert_bytes += weight.nbytes
            expert_weights += weight.numel()
        else:
            weight_bytes += weight.nbytes
            matmul_weights += weight.numel() if weight.ndim > 1 else 0
    config = network.config.get_text_config()
    used = getattr(config, "num_experts_per_tok", None)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    layers, state_bytes = cache_of(network, getattr(config, "num_attention_heads", 0))
    return Work(
        weight_bytes=weight_bytes, matmul_weights=matmul_weights, row_bytes=row_bytes, layers=layers,
        state_bytes=state_bytes, expert_bytes=expert_bytes, expert_weights=expert_weights,
        expert_share=used / experts if used and experts else 1.0,
    )  # fmt: skip


@torch.inference_mode()
def cache_of(network: Any, num_heads: int) -> tuple[tuple[AttentionLayer, ...], int]:
    """Returns the attention layers and the bytes of recurrent states, from the cache of one token."""
    output = network(input_ids=torch.zeros((1, 1), dtype=torch.long, device=network.device), use_cache=True)
    cache = next(part for name, part in output.items() if name in CACHE_NAMES)  # asking for an old name warns
    layers, state_bytes = [], 0
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == 4:
            width = num_heads * (keys.shape[-1] + values.shape[-1])
            per_token = (keys.nbytes + values.nbytes) // keys.shape[-2]
            layers.append(AttentionLayer(per_token, width, getattr(layer, "sliding_window", None)))
        for held in (getattr(layer, name, None) or () for name in ("conv_states", "recurrent_states")):
            states = held.values() if isinstance(held, dict) else held
            state_bytes += sum(state.nbytes for state in states if isinstance(state, torch.Tensor))
    return tuple(layers), state_bytes


def median_ratios(rounds: Resampler, above: Sequence[float], below: Sequence[float]) -> Array:
    """Returns the median ratio of two quantities [num_rounds], first as measured and then in each resample, [1 +
    NUM_RESAMPLES]."""
    return rounds.medians(np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64))


def with_ends(rounds: Resampler, values: Array) -> Ratio:
    """Returns a value with its interval. `values`: computed from medians in each resample, [1 + NUM_RESAMPLES]."""
    return Ratio(**dict(rounds.of_resamples(values)))


TOO_WIDE = 2.0  # a figure is undecided if the end of its interval is more than this many times the start


def verdict_figures(report: RooflineReport) -> list[tuple[str, str, Ratio]]:
    """Returns the figures of the verdict: how close AR and drafting come to their bounds, and the costs of verifying
    and drafting. Each has a clause with {} in its place, and a name."""
    ar, own = (model.at(1, report.context).bound_name for model in (report.target, report.drafter))
    length = report.step.num_draft_tokens + 1
    verifying = f"verification of {length} tokens costs {{}} single passes"
    return [
        (f"AR runs at {{}} of the {ar}", f"AR's share of the {ar}", report.target.share_of_bound),
        (f"drafting runs at {{}} of its {own}", f"drafting's share of its {own}",
         report.drafter.share_of_bound_drafting),
        (verifying, f"the cost of verifying {length} tokens", report.verification_cost[length]),
        ("a draft pass costs {}", "the cost of a draft pass", report.cost_ratio),
    ]  # fmt: skip


def verdict(report: RooflineReport) -> str:
    clauses = [
        clause.format(ratio.text) if ratio.width <= TOO_WIDE
        else f"{name} is undecided (rounds differ too much: {ratio.span})"
        for clause, name, ratio in verdict_figures(report)
    ]  # fmt: skip
    few = "" if report.repeats >= MIN_PROMPTS else f" (no intervals below {MIN_PROMPTS} rounds)"
    return "{}, {}; {}, {}{}.".format(*clauses, few)


def wide_intervals(report: RooflineReport) -> list[RowWarning]:
    return [
        RowWarning(code="wide_interval", text=(
            f"the interval of {name} is wide, {ratio.span} (× {ratio.width:.2f}): run nothing else on the machine, "
            "or give more --repeats"
        ))
        for _, name, ratio in verdict_figures(report)
        if ratio.width > WIDE
    ]  # fmt: skip


Subject = tuple[ModelConditions, Work]


def make_report(
    target: Subject, drafter: Subject, parts: Sequence[PairTimings], points: Points, *,
    environment: dict[str, Any], seed: int, repeats: int,
) -> RooflineReport:  # fmt: skip
    """Returns the report on a pair. `parts`: the timings of all points; the first part has the generations."""
    rounds, context, main = Resampler.of_units(repeats, seed), points.context, parts[0]
    drafter_roofline = model_roofline(drafter, [part.drafter for part in parts], context, rounds)
    drafting = median_ratios(rounds, bounds(drafter[1], main.drafter, context), main.steps.per_draft_token)
    single = main.target.passes[1, context]
    costs = Costs(
        median_ratios(rounds, main.drafter.passes[1, context], single),
        {length: median_ratios(rounds, main.target.passes[length, context], single) for length in points.query_lengths},
    )
    report = RooflineReport(
        environment=environment, seed=seed, repeats=repeats, context=context,
        target=model_roofline(target, [part.target for part in parts], context, rounds),
        drafter=DrafterRoofline(
            **dict(drafter_roofline), per_draft_token=make_quartiles(main.steps.per_draft_token),
            share_of_bound_drafting=with_ends(rounds, drafting),
        ),
        step=StepTimes(
            num_draft_tokens=NUM_DRAFT_TOKENS, seconds=make_quartiles(main.steps.per_step),
            overhead=make_quartiles(main.steps.overhead),
        ),
        cost_ratio=with_ends(rounds, costs.cost_ratio),
        verification_cost={length: with_ends(rounds, cost) for length, cost in costs.verifying.items()},
        best=[best_length(costs, rate, rounds) for rate in RATES],
        verdict="", warnings=[],
    )  # fmt: skip
    return report.model_copy(update={"verdict": verdict(report), "warnings": wide_intervals(report)})


def model_roofline(subject: Subject, parts: Sequence[ModelTimings], context: int, rounds: Resampler) -> ModelRoofline:
    (model, work), main = subject, parts[0]
    points = []
    for timings in parts:  # the bounds of a pass by the rates of the same rounds
        per_byte = median(1 / each.bytes_per_second for each in timings.rates)
        per_operation = median(1 / each.operations_per_second for each in timings.rates)
        points += [
            PassPoint(
                query_length=length, context=cached, seconds=make_quartiles(values),
                bandwidth_seconds=work.bytes_read(length, cached) * per_byte,
                arithmetic_seconds=work.operations(length, cached) * per_operation,
            )
            for (length, cached), values in timings.passes.items()
        ]  # fmt: skip
    rates = main.rates
    return ModelRoofline(
        model=model, bytes_read=work.bytes_read(1, context), operations=work.operations(1, context),
        bytes_per_second=make_quartiles([each.bytes_per_second for each in rates]),
        read_bytes_per_second=make_quartiles([each.read_bytes_per_second for each in rates]),
        operations_per_second=make_quartiles([each.operations_per_second for each in rates]),
        per_token=make_quartiles(main.per_token), overhead=make_quartiles(main.overhead),
        share_of_bound=with_ends(rounds, median_ratios(rounds, bounds(work, main, context), main.per_token)),
        points=sorted(points, key=lambda point: (point.query_length, point.context)),
    )  # fmt: skip


def bounds(work: Work, timings: ModelTimings, context: int) -> list[float]:
    """Returns the least possible seconds of a pass over one token, by the rates of each round."""
    num_bytes, operations = work.bytes_read(1, context), work.operations(1, context)
    return [max(num_bytes / each.bytes_per_second, operations / each.operations_per_second) for each in timings.rates]


def make_quartiles(values: Sequence[float]) -> Quartiles:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Quartiles(median=median(values), low=low, high=high)


def best_length(costs: Costs[Array], rate: float, rounds: Resampler) -> BestLength:
    """Returns the best draft lengths by the medians of all rounds, with intervals of the speed-ups at these lengths."""
    free = Costs(costs.cost_ratio, dict.fromkeys(costs.verifying, np.ones_like(costs.cost_ratio)))
    # The first element is of all rounds as they were.
    measured = Costs(float(costs.cost_ratio[0]), {n: float(cost[0]) for n, cost in costs.verifying.items()})
    length = fastest_length(measured, rate)
    free_length = fastest_length(Costs(measured.cost_ratio, dict.fromkeys(measured.verifying, 1.0)), rate)
    return BestLength(
        acceptance_rate=rate, num_draft_tokens=length, speedup=with_ends(rounds, costs.speedup(rate, length)),
        free_num_draft_tokens=free_length, free_speedup=with_ends(rounds, free.speedup(rate, free_length)),
    )  # fmt: skip


class RooflineOptions(Spec):
    """The options of `specbench roofline`."""

    target: Text
    drafter: Text
    context: Annotated[int, Field(ge=LEAST_CONTEXT)]
    repeats: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    dtype: Dtype = "auto"
    device: Text = "auto"
    engine: EngineName = "eager"
    target_revision: str | None = None
    drafter_revision: str | None = None
    trust_remote_code: bool = False


def measure_pair(options: RooflineOptions, progress: Say) -> RooflineReport:
    """Loads and measures both models. `progress` gets lines of text. Raises ConfigError for a model that cannot be
    loaded, and for a context that does not fit into a model."""
    progress(f"loading {options.target} and {options.drafter}")
    load = partial(load_model, device=options.device, trust_remote_code=options.trust_remote_code)
    target = load(options.target, revision=options.target_revision, dtype=options.dtype, engine=options.engine)
    dtype = target.dtype if options.dtype == "auto" else options.dtype
    drafter = load(options.drafter, revision=options.drafter_revision, dtype=dtype, engine=target.engine)
    if target.why_eager is not None:
        warn_not_static(target, options.engine, "these are the limits of --engine eager")
    elif drafter.why_eager is not None:
        warn_not_static(drafter, options.engine, "its passes are eager, those of the target are compiled")
    return roofline_of(target, drafter, options, progress)


def roofline_of(
    target: CausalLM, drafter: CausalLM, options: RooflineOptions, progress: Say = say_nothing
) -> RooflineReport:
    models = (target, drafter)
    points = points_for(models, options.context)
    works = [work_of(model) for model in models]
    benchmarks = [
        RateBenchmark(model.device, model.model.dtype, int(work.bytes_read(1, points.context)))
        for model, work in zip(models, works, strict=True)
    ]
    is_static = any(model.static is not None for model in models)
    parts: list[PairTimings] = []
    subjects: list[Subject] = []
    for part in points.parts() if is_static else [points]:
        parts.append(measure_part(models, benchmarks, part, options, progress))
        for model, work in zip(models, works, strict=True):
            capacity = None if model.static is None else model.static.capacity
            subjects.append((ModelConditions(
                name=model.name, revision=model.revision, dtype=model.dtype, attention=model.attention,
                capacity=capacity,
            ), work))  # fmt: skip
    conditions = environment(str(target.device), target.dtype, target.attention, engine_of(target, [drafter]))
    # The first part has the requested context, with buffers as in a run.
    return make_report(
        subjects[0], subjects[1], parts, points, environment=conditions, seed=options.seed, repeats=options.repeats
    )


def measure_part(
    models: tuple[CausalLM, CausalLM], benchmarks: Sequence[RateBenchmark], part: Points, options: RooflineOptions,
    progress: Say,
) -> PairTimings:  # fmt: skip
    """Prepares all passes, then returns the timings of the rounds. Raises ConfigError if a pass was compiled or
    recorded meanwhile."""
    for model in models:
        if model.static is not None:
            model.static.reserve(part.most_tokens, part.query_lengths, progress=progress)
    if part.decodes:
        models[1].reserve_draft(NUM_DRAFT_TOKENS, GREEDY)
    before = num_compilations()
    found = measure(*models, benchmarks, part, repeats=options.repeats, seed=options.seed, progress=progress)
    if number := num_compilations() - before:
        raise ConfigError(
            f"--engine {models[0].engine}: {number} passes were compiled or recorded during the measurement, so its "
            "times are not valid: take --engine eager"
        )
    return found
