"""`specbench roofline`: passes, rates and generations of two models are timed in turn, in rounds; the report has
medians over rounds."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from specbench.analysis.roofline.experts import Mixture, experts_of
from specbench.analysis.roofline.report import (
    RATES,
    BestLength,
    Costs,
    Machine,
    ModelConditions,
    ModelRoofline,
    PassPoint,
    Ratio,
    RooflineReport,
    StepTimes,
    fastest_length,
    make_quartiles,
)
from specbench.core.errors import ConfigError
from specbench.core.progress import Say, format_duration, say_nothing
from specbench.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.models.gguf.model import LlamaLM
from specbench.models.kv_cache import CACHE_NAMES
from specbench.models.loading import load_model
from specbench.models.machine import environment
from specbench.models.meters import Clock, PassLog
from specbench.models.packed import product_rates, stored_layers
from specbench.running.capture_plan import num_compilations
from specbench.running.models import computing_packages, drafter_engine, engine_of, gguf_options, warn_not_static
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Array, Resampler

MOST_BYTES = 2**31
LEAST_BYTES = 2**20
ENOUGH_SECONDS = 0.02  # of one timed round
SIZES = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Rates:
    """Rates of one round: `bytes_per_second` of a copy, read and written, or of a sum, whichever is faster;
    `operations_per_second` of a product of matrices."""

    bytes_per_second: float
    operations_per_second: float


class RateBenchmark:
    """Measures the rates of copies and sums with a buffer of `num_bytes`, so that processor caches help as much as in a
    pass that reads as many bytes; and the rate of products with the first matrices that are large enough to time."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int) -> None:
        self.num_bytes = max(LEAST_BYTES, min(num_bytes, MOST_BYTES)) // 16 * 16
        clock = Clock(device)
        buffer = torch.ones(self.num_bytes // 4, device=device)
        source, target = buffer.chunk(2)
        self._movers = TimedCall(lambda: target.copy_(source), clock), TimedCall(buffer.sum, clock)
        for self._size in SIZES:
            first, second = (torch.randn(self._size, self._size, device=device).to(dtype) for _ in range(2))
            self._product = TimedCall(lambda a=first, b=second: a @ b, clock)  # type: ignore[misc]
            if self._product.num_calls == 1:
                break

    def rates(self) -> Rates:
        return Rates(
            bytes_per_second=self.num_bytes / min(mover.seconds() for mover in self._movers),
            operations_per_second=2.0 * self._size**3 / self._product.seconds(),
        )


class TimedCall:
    """A call that is repeated in a round, as often as takes long enough to be timed."""

    def __init__(self, call: Callable[[], object], clock: Clock) -> None:
        self._call, self._clock = call, clock
        self.num_calls = 1
        self.seconds()  # the first call is slower
        self.num_calls = max(1, round(ENOUGH_SECONDS / max(1e-9, self.seconds())))

    def seconds(self) -> float:
        start = self._clock.now()
        for _ in range(self.num_calls):
            self._call()
        return (self._clock.now() - start) / self.num_calls


@dataclass
class ModelTimings:
    """Timings of one model, an entry per round. `passes`: mean seconds of forward passes by query length;
    `per_token`: seconds of autoregressive decoding; `overhead`: the part of it outside passes; `rates`: at which the
    machine moves bytes and multiplies."""

    passes: dict[int, list[float]] = field(default_factory=dict)
    per_token: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)


@dataclass
class PairTimings:
    """The timings of both models, and of their speculative decoding, an entry per round: the seconds of a step, and of
    the part of a step outside passes."""

    target: ModelTimings = field(default_factory=ModelTimings)
    drafter: ModelTimings = field(default_factory=ModelTimings)
    per_step: list[float] = field(default_factory=list)
    step_overhead: list[float] = field(default_factory=list)


QUERY_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96)
COMPILED_LENGTHS = (1, 2, 4, 6, 8, 16, 32, 64, 96)  # each takes seconds to compile
LEAST_CONTEXT = 8
NUM_TOKENS = 32  # of one generation
NUM_DRAFT_TOKENS = 5  # of each step of a speculative generation


def lengths_for(models: Sequence[CausalLM], context: int) -> tuple[int, ...]:
    """Returns the query lengths of passes that fit into the context of every model after `context` tokens. Raises
    ConfigError if there is no room for a generation."""
    room = shortest_context(models) or 2**62
    if context + NUM_TOKENS > room:
        most = room - NUM_TOKENS
        remedy = f"give {LEAST_CONTEXT} to {most}" if most >= LEAST_CONTEXT else "take models with a longer context"
        problem = f"the models hold {room} tokens, and {NUM_TOKENS} are generated after the context"
        raise ConfigError(f"--context {context}: {problem}: {remedy}")
    lengths = QUERY_LENGTHS if all(model.static is None for model in models) else COMPILED_LENGTHS
    return tuple(length for length in lengths if context + length <= room)


GREEDY = Sampling(0.0)


class BoundedDrafter(Drafter):
    """A model drafter for a target with another number of tokens: a token that the other model lacks is taken modulo
    its size, which changes acceptance but no time."""

    def __init__(self, drafter: CausalLM, target: CausalLM) -> None:
        self._drafter = ModelDrafter(drafter, GREEDY)
        self._num_own, self._num_foreign = drafter.vocab_size, target.vocab_size
        self.passes: PassLog | None = drafter.passes

    def prefill(self, prompt_ids: list[int]) -> None:
        self._drafter.prefill(within(prompt_ids, self._num_own))

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        proposal = self._drafter.propose(within(ids, self._num_own), num_draft_tokens, generator)
        if self._num_own == self._num_foreign:
            return proposal
        token_ids = within(proposal.token_ids, self._num_foreign)
        return Proposal(token_ids, PointMass(token_ids))


def within(token_ids: list[int], vocab_size: int) -> list[int]:
    return [token % vocab_size for token in token_ids]


def generate(model: CausalLM, drafter: Drafter, prompt_ids: list[int], num_draft_tokens: int) -> GenerationOutput:
    """Returns a generation of NUM_TOKENS greedy tokens. End tokens do not stop it."""
    return decode(
        model, drafter, rejection, prompt_ids, num_draft_tokens=num_draft_tokens, sampling=GREEDY,
        stop=StopRules(NUM_TOKENS, context_limit=model.context_limit), generator=torch.Generator(device=model.device),
    )  # fmt: skip


def overhead(generation: GenerationOutput) -> float:
    passes = (*generation.target_passes, *generation.draft_passes)
    return generation.decode_seconds - sum(seconds for _, seconds in passes)


TURNS = 3  # of each model in a round; every query length has a pass in each turn
TURN_SECONDS = 0.004  # for the passes of one query length in a turn
SINGLE_SECONDS = 0.012  # for passes over a single token, if others are divided by them


class TimedPasses:
    """Passes of one model after the first `context` tokens of `ids`, which stay in its cache. `seconds`: of each pass,
    by query length."""

    def __init__(self, model: CausalLM, ids: list[int], context: int, lengths: Sequence[int]) -> None:
        self._model, self._ids, self._context = model, ids, context
        self.seconds: dict[int, list[float]] = {length: [] for length in lengths}
        model.score(ids[:context], 1)

    def run_turn(self, number: int, *, backwards: bool) -> None:
        """Runs passes until every length has enough for the first `number` turns. The first pass follows a prefill or
        passes of another model, so it is not measured."""
        self._time_pass(1)
        enough = dict.fromkeys(self.seconds, TURN_SECONDS)
        if len(enough) > 1:
            enough[1] = SINGLE_SECONDS
        while True:
            # Judged by the fastest pass: if an interrupted one ended a turn early, it would weigh too much in the mean.
            lacking = [
                length for length, seconds in self.seconds.items()
                if len(seconds) < number or len(seconds) * min(seconds) < number * enough[length]
            ]  # fmt: skip
            if not lacking:
                return
            others = [length for length in lacking[:: -1 if backwards else 1] if length != 1]
            half = len(others) // 2
            for length in (*others[:half], 1, *others[half:]):  # in the middle always one over a single token
                self.seconds[length].append(self._time_pass(length))
            backwards = not backwards

    def means(self) -> dict[int, float]:
        return {length: fmean(seconds) for length, seconds in self.seconds.items()}

    def _time_pass(self, length: int) -> float:
        """Returns the seconds of a pass that reads only its own tokens; those before are cached."""
        log = self._model.passes
        log.clear()
        self._model.score(self._ids[: self._context + length], length)
        log.clock.now()
        [(fed, seconds)] = log.read()
        assert fed == length
        return seconds


def tokens_of(models: Sequence[CausalLM], num_tokens: int, seed: int, text: str | None) -> list[list[int]]:
    """Returns the tokens that the passes of each model read: random ones, or the first ones of a text. Raises
    ConfigError for a text that is too short."""
    if text is None:
        chance = random.Random(seed)
        return [[chance.randrange(model.vocab_size) for _ in range(num_tokens)] for model in models]
    texts = [model.encode_prompt(text, chat=False) for model in models]
    for model, ids in zip(models, texts, strict=True):
        if len(ids) < num_tokens:
            raise ConfigError(
                f"--text: has {len(ids)} tokens of {model.name}, and {num_tokens} are read: give a longer text, or a "
                "shorter --context"
            )
    return [ids[:num_tokens] for ids in texts]


def measure(
    models: tuple[CausalLM, CausalLM], texts: Sequence[list[int]], benchmarks: Sequence[RateBenchmark], context: int,
    lengths: Sequence[int], *, repeats: int, progress: Say = say_nothing,
) -> PairTimings:  # fmt: skip
    """Returns the timings of `repeats` rounds after one round that is not measured. Each round has passes of all
    `lengths` after `context` tokens of both models, both rate benchmarks, and one generation of each model and of the
    pair; the order alternates. `texts`: the tokens that the passes of each model read. `progress` gets a line before
    each round."""
    target, drafter = models
    drafting = BoundedDrafter(drafter, target)
    found = PairTimings()
    started = time.monotonic()
    for number in range(-1, repeats):
        what = "warming up"
        if number >= 0:  # the round that is not measured takes as long as the others
            left = (time.monotonic() - started) / (number + 1) * (repeats - number)
            what = f"round {number + 1} of {repeats} · about {format_duration(left)} left"
        progress(f"timing passes after {context} tokens: {what}")
        into = found if number >= 0 else PairTimings()
        sides = list(zip(models, texts, benchmarks, (into.target, into.drafter), strict=True))
        in_turn = sides if number % 2 == 0 else sides[::-1]
        passing = [(model, ids, timings) for model, ids, _, timings in in_turn]
        time_passes(passing, context, lengths, backwards=number % 2 == 1)
        for model, ids, benchmark, timings in in_turn:
            timings.rates.append(benchmark.rates())
            alone = generate(model, NoDrafter(), ids[:context], 0)
            num_timed = len(alone.token_ids) - 1
            timings.per_token.append(alone.decode_seconds / num_timed)
            timings.overhead.append(overhead(alone) / num_timed)
        speculative = generate(target, drafting, texts[0][:context], NUM_DRAFT_TOKENS)
        into.per_step.append(speculative.decode_seconds / len(speculative.steps))
        into.step_overhead.append(overhead(speculative) / len(speculative.steps))
    return found


def time_passes(
    sides: Sequence[tuple[CausalLM, list[int], ModelTimings]], context: int, lengths: Sequence[int], *, backwards: bool
) -> None:
    """Adds the mean seconds of a pass of every length. The models take turns, so that times that are divided by each
    other were measured under the same load of the machine."""
    for model, _, _ in sides:
        model.reset()
    timed = [TimedPasses(model, ids, context, lengths) for model, ids, _ in sides]
    for turn in range(1, TURNS + 1):
        for each in timed:
            each.run_turn(turn, backwards=backwards == (turn % 2 == 1))
    for each, (_, _, timings) in zip(timed, sides, strict=True):
        for length, seconds in each.means().items():
            timings.passes.setdefault(length, []).append(seconds)


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


def gguf_work(model: LlamaLM) -> Work:
    """Returns the work of a pass by llama.cpp, with full attention."""
    header = model.header
    mixture, (expert_weights, expert_bytes) = Mixture.of(model), header.expert_size
    num_layers, num_heads = (int(header.of_architecture(key) or 0) for key in ("block_count", "attention.head_count"))
    num_kv = int(header.of_architecture("attention.head_count_kv") or num_heads)
    head_dim = int(header.of_architecture("attention.key_length") or 0)
    head_dim = head_dim or int(header.of_architecture("embedding_length") or 0) // max(num_heads, 1)
    item_size = 4 if model.sequence.kind == "float32" else 2
    window = header.of_architecture("attention.sliding_window")
    layer = AttentionLayer(2 * num_kv * head_dim * item_size, 2 * num_heads * head_dim, window and int(window))
    return Work(
        weight_bytes=header.num_bytes - header.table_bytes - expert_bytes,
        row_bytes=header.table_bytes // max(1, model.padded_vocab_size),
        matmul_weights=sum(header.types.values()) - expert_weights, layers=(layer,) * num_layers,
        expert_bytes=expert_bytes, expert_weights=expert_weights,
        expert_share=1.0 if mixture is None else mixture.share,
    )  # fmt: skip


def work_of(model: CausalLM) -> Work:
    if isinstance(model, LlamaLM):
        return gguf_work(model)
    network = model.model
    head = network.get_output_embeddings()
    tables = {id(each.weight) for each in network.modules() if isinstance(each, torch.nn.Embedding)}
    stored = stored_layers(network)
    if head is not None and head not in stored:
        tables -= {id(head.weight)}  # the output layer reads a tied table whole
    weight_bytes = sum(layer.stored_bytes for layer in stored)
    matmul_weights = sum(layer.in_features * layer.out_features for layer in stored)
    row_bytes = expert_bytes = expert_weights = 0
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
    mixture = Mixture.of(model)
    layers, state_bytes = cache_of(network, getattr(config, "num_attention_heads", 0))
    return Work(
        weight_bytes=weight_bytes, matmul_weights=matmul_weights, row_bytes=row_bytes, layers=layers,
        state_bytes=state_bytes, expert_bytes=expert_bytes, expert_weights=expert_weights,
        expert_share=1.0 if mixture is None else mixture.share,
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


def verdict(report: RooflineReport) -> str:
    """Returns how close each model alone comes to its bound, and what verifying and drafting cost."""
    ar, own = (model.at(1).bound_name for model in (report.target, report.drafter))
    length = report.step.num_draft_tokens + 1
    return (
        f"AR's share of the {ar}: {report.target.share_of_bound.text}; the drafter's of its {own}: "
        f"{report.drafter.share_of_bound.text}; single passes that verifying {length} tokens costs: "
        f"{report.verification_cost[length].text}; those of a draft pass: {report.cost_ratio.text}"
    )


Subject = tuple[ModelConditions, Work]


def make_report(
    target: Subject, drafter: Subject, timings: PairTimings, context: int, *, environment: Machine, seed: int,
) -> RooflineReport:  # fmt: skip
    """Returns the report on a pair from its timings after `context` tokens."""
    rounds = Resampler.of_units(len(timings.per_step), seed)
    passes, single = timings.target.passes, timings.target.passes[1]
    costs = Costs(
        median_ratios(rounds, timings.drafter.passes[1], single),
        {length: median_ratios(rounds, seconds, single) for length, seconds in passes.items()},
    )
    # The best draft lengths are those by the medians of all rounds as they were, the first element of each array.
    measured = Costs(float(costs.cost_ratio[0]), {n: float(cost[0]) for n, cost in costs.verifying.items()})
    lengths = {rate: fastest_length(measured, rate) for rate in RATES}
    report = RooflineReport(
        environment=environment, seed=seed, repeats=len(timings.per_step), context=context,
        target=model_roofline(target, timings.target, context, rounds),
        drafter=model_roofline(drafter, timings.drafter, context, rounds),
        step=StepTimes(
            num_draft_tokens=NUM_DRAFT_TOKENS, seconds=make_quartiles(timings.per_step),
            overhead=make_quartiles(timings.step_overhead),
        ),
        cost_ratio=with_ends(rounds, costs.cost_ratio),
        verification_cost={length: with_ends(rounds, cost) for length, cost in costs.verifying.items()},
        best=[
            BestLength(
                acceptance_rate=rate, num_draft_tokens=length, speedup=with_ends(rounds, costs.speedup(rate, length))
            )
            for rate, length in lengths.items()
        ],
        verdict="",
    )  # fmt: skip
    return report.model_copy(update={"verdict": verdict(report)})


def model_roofline(subject: Subject, timings: ModelTimings, context: int, rounds: Resampler) -> ModelRoofline:
    (model, work), rates = subject, timings.rates
    per_byte = median(1 / each.bytes_per_second for each in rates)
    per_operation = median(1 / each.operations_per_second for each in rates)
    return ModelRoofline(
        model=model, bytes_read=work.bytes_read(1, context), operations=work.operations(1, context),
        bytes_per_second=make_quartiles([each.bytes_per_second for each in rates]),
        operations_per_second=make_quartiles([each.operations_per_second for each in rates]),
        per_token=make_quartiles(timings.per_token), overhead=make_quartiles(timings.overhead),
        share_of_bound=with_ends(rounds, median_ratios(rounds, bounds(work, timings, context), timings.per_token)),
        points=[
            PassPoint(
                query_length=length, seconds=make_quartiles(values),
                bandwidth_seconds=work.bytes_read(length, context) * per_byte,
                arithmetic_seconds=work.operations(length, context) * per_operation,
            )
            for length, values in sorted(timings.passes.items())
        ],
    )  # fmt: skip


def bounds(work: Work, timings: ModelTimings, context: int) -> list[float]:
    """Returns the least possible seconds of a pass over one token, by the rates of each round."""
    num_bytes, operations = work.bytes_read(1, context), work.operations(1, context)
    return [max(num_bytes / each.bytes_per_second, operations / each.operations_per_second) for each in timings.rates]


def compute_dtype(model: CausalLM) -> torch.dtype:
    """Returns the dtype of products that are compared with those of a model."""
    return torch.float32 if isinstance(model, LlamaLM) else model.model.dtype


def measure_pair(
    options: RunOptions, context: int, repeats: int, progress: Say, text: str | None = None
) -> RooflineReport:
    """Loads and measures the target and the drafter of the options. `progress` gets lines of text. `text`: what passes
    read; None: random tokens. Raises ConfigError for a model that cannot be loaded, for a context that does not fit
    into a model, and for a text that is too short."""
    assert options.target is not None and options.drafter is not None  # the command has defaults
    progress(f"loading {options.target} and {options.drafter}")
    load = partial(load_model, device=options.device, trust_remote_code=options.trust_remote_code)
    target = load(
        options.target, revision=options.target_revision, dtype=options.dtype, engine=options.engine,
        quantize=options.quantize, pass_width=options.pass_width,
        **gguf_options(options, options.target, options.tokenizer),
    )  # fmt: skip
    dtype = target.dtype if options.dtype == "auto" else options.dtype
    engine = drafter_engine(options.engine, target, options.drafter)
    drafter = load(
        options.drafter, revision=options.drafter_revision, dtype=dtype, engine=engine,
        **gguf_options(options, options.drafter, options.drafter_tokenizer, is_drafter=True),
    )  # fmt: skip
    if target.why_eager is not None:
        warn_not_static(target, options.engine, "these are the limits of --engine eager")
    elif drafter.why_eager is not None:
        warn_not_static(drafter, options.engine, "its passes are eager, those of the target are compiled")
    return roofline_of(target, drafter, context, repeats=repeats, seed=options.seed, text=text, progress=progress)


def roofline_of(
    target: CausalLM, drafter: CausalLM, context: int, *, repeats: int, seed: int = 0, text: str | None = None,
    progress: Say = say_nothing,
) -> RooflineReport:  # fmt: skip
    """Measures a pair after `context` tokens. Raises ConfigError for a context that does not fit into a model, and if a
    pass was compiled or recorded during the measurement."""
    models, lengths = (target, drafter), lengths_for((target, drafter), context)
    texts = tokens_of(models, context + max(*lengths, NUM_TOKENS), seed, text)
    works = [work_of(model) for model in models]
    benchmarks = [
        RateBenchmark(model.device, compute_dtype(model), int(work.bytes_read(1, context)))
        for model, work in zip(models, works, strict=True)
    ]
    # 1. All passes are prepared, over buffers as large as a run has them.
    for model in models:
        if model.static is None:
            model.sequence.make_room(context + max(*lengths, NUM_TOKENS))
        else:
            model.static.reserve(context + max(*lengths, NUM_TOKENS), lengths, progress=progress)
    drafter.reserve_draft(NUM_DRAFT_TOKENS, GREEDY)
    # 2. They are timed.
    before = num_compilations()
    timings = measure(models, texts, benchmarks, context, lengths, repeats=repeats, progress=progress)
    if number := num_compilations() - before:
        raise ConfigError(
            f"--engine {target.engine}: {number} passes were compiled or recorded during the measurement, so its "
            "times are not valid: take --engine eager"
        )
    # 3. The report.
    subjects = [
        (ModelConditions(
            name=model.name, revision=model.revision, dtype=model.precision, attention=model.attention,
            capacity=None if model.static is None else model.static.capacity,
        ), work)
        for model, work in zip(models, works, strict=True)
    ]  # fmt: skip
    engine = engine_of(target, [drafter])
    packages = computing_packages(model.engine for model in models)
    known = environment(str(target.device), target.precision, target.attention, engine, packages)
    machine = Machine(**known, pass_width=target.pass_width)
    report = make_report(subjects[0], subjects[1], timings, context, environment=machine, seed=seed)
    # 4. Whether each product has the kernel for which its weights were stored.
    for model, part in zip(models, (report.target, report.drafter), strict=True):
        if model.device.type == "cpu" and model.static is None and compute_dtype(model) == torch.bfloat16:
            part.products = product_rates(model.model)
    # 5. The experts that the passes read; to record them takes time, so that it is done after the timing.
    for model, work, ids, part in zip(models, works, texts, (report.target, report.drafter), strict=True):
        num_bytes = {length: work.bytes_read(length, context) for length in lengths}
        part.experts = experts_of(model, ids, context, lengths, num_bytes, work.expert_bytes)
    return report
