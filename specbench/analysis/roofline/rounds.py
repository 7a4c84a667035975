"""The timed rounds of `specbench roofline`: passes, rates and generations of two models in turn."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from specbench.decoding.loop import GenerationOutput, StopRules, decode
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.models.meters import Clock, PassLog

MOST_BYTES = 2**31
LEAST_BYTES = 2**20
ENOUGH_SECONDS = 0.02  # of one timed round
SIZES = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Rates:
    """Rates of one round: `bytes_per_second`, read and written, of a copy; `read_bytes_per_second` of a sum, which
    writes nothing; `operations_per_second` of a product of matrices."""

    bytes_per_second: float
    read_bytes_per_second: float
    operations_per_second: float


class RateBenchmark:
    """Measures the rates of copies and sums with a buffer of `num_bytes`, so that processor caches help as much as in a
    pass that reads as many bytes; and the rate of products with the first matrices that are large enough to time."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int) -> None:
        self.num_bytes = max(LEAST_BYTES, min(num_bytes, MOST_BYTES)) // 16 * 16
        clock = Clock(device)
        whole = torch.ones(self.num_bytes // 8, dtype=torch.int64, device=device)
        source, target = whole.chunk(2)
        self._copy = TimedCall(lambda: target.copy_(source), clock)
        self._read = TimedCall(whole.sum, clock)
        for self._size in SIZES:
            first, second = (torch.randn(self._size, self._size, device=device).to(dtype) for _ in range(2))
            self._product = TimedCall(lambda a=first, b=second: a @ b, clock)  # type: ignore[misc]
            if self._product.num_calls == 1:
                break

    def rates(self) -> Rates:
        return Rates(
            bytes_per_second=self.num_bytes / self._copy.seconds(),
            read_bytes_per_second=self.num_bytes / self._read.seconds(),
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
    """Timings of one model, an entry per round. `passes`: mean seconds of forward passes by (query length, context);
    `per_token`: seconds of autoregressive decoding; `overhead`: the part of it outside passes; `rates`: at which the
    machine copies, reads and multiplies."""

    passes: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    per_token: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)


@dataclass
class StepTimings:
    """Seconds of speculative decoding, an entry per round: of drafting one token, of a step, and of the part of a step
    outside passes."""

    per_draft_token: list[float] = field(default_factory=list)
    per_step: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)


@dataclass
class PairTimings:
    """The timings of a pair at one set of points."""

    target: ModelTimings = field(default_factory=ModelTimings)
    drafter: ModelTimings = field(default_factory=ModelTimings)
    steps: StepTimings = field(default_factory=StepTimings)


QUERY_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96)
COMPILED_LENGTHS = (1, 2, 4, 6, 8, 16, 32, 64, 96)  # each takes seconds to compile
CONTEXTS = (64, 256, 1024, 4096)
LEAST_CONTEXT = 8
NUM_TOKENS = 32  # of one generation
NUM_DRAFT_TOKENS = 5  # of each step of a speculative generation


@dataclass(frozen=True)
class Points:
    """What is measured: passes of every query length after `context`, passes over one token after each of `contexts`,
    and, if `decodes`, whole generations after `context`."""

    context: int
    contexts: tuple[int, ...]
    query_lengths: tuple[int, ...] = QUERY_LENGTHS
    decodes: bool = True

    def parts(self) -> list["Points"]:
        """Returns the points of each context. A compiled pass reads its whole buffer, so each context needs a buffer of
        the size that a run has."""
        others = [context for context in self.every_context if context != self.context]
        return [replace(self, contexts=()), *(Points(context, (), (1,), decodes=False) for context in others)]

    @property
    def most_tokens(self) -> int:
        num_after = max(*self.query_lengths, NUM_TOKENS) if self.decodes else max(self.query_lengths)
        return max(max(self.every_context) + 1, self.context + num_after)

    @property
    def every_context(self) -> list[int]:
        return sorted({self.context, *self.contexts})


def points_for(models: Sequence[CausalLM], context: int) -> Points:
    """Returns the points that fit into the context of every model, with contexts up to four times `context`. Raises
    ConfigError if there is no room for a generation after `context`."""
    room = shortest_context(models) or 2**62
    if context + NUM_TOKENS > room:
        most = room - NUM_TOKENS
        remedy = f"give {LEAST_CONTEXT} to {most}" if most >= LEAST_CONTEXT else "take models with a longer context"
        problem = f"the models hold {room} tokens, and {NUM_TOKENS} are generated after the context"
        raise ConfigError(f"--context {context}: {problem}: {remedy}")
    fitting = tuple(length for length in CONTEXTS if length < room and length <= 4 * context)
    lengths = QUERY_LENGTHS if all(model.static is None for model in models) else COMPILED_LENGTHS
    return Points(context, fitting, tuple(length for length in lengths if context + length <= room))


GREEDY = Sampling(0.0)


class TimedDrafter(Drafter):
    """A model drafter that times each draft, with all that lies between its passes. If the vocabularies have different
    sizes, a token that the other model lacks is taken modulo its size, which changes acceptance but no time."""

    def __init__(self, drafter: CausalLM, target: CausalLM) -> None:
        self._drafter = ModelDrafter(drafter, GREEDY)
        self._num_own, self._num_foreign = drafter.vocab_size, target.vocab_size
        self.passes: PassLog | None = drafter.passes
        self._log = drafter.passes
        self._drafts: list[tuple[int, Any, Any]] = []

    def prefill(self, prompt_ids: list[int]) -> None:
        self._drafts.clear()
        self._drafter.prefill(within(prompt_ids, self._num_own))

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        own_ids, mark, num_before = within(ids, self._num_own), self._log.clock.mark, self._log.num_passes
        start = mark()
        proposal = self._drafter.propose(own_ids, num_draft_tokens, generator)
        end = mark()
        if num_draft_tokens == NUM_DRAFT_TOKENS:  # drafts at the end of a generation are shorter
            self._drafts.append((self._log.num_passes - num_before, start, end))
        if self._num_own == self._num_foreign:
            return proposal
        token_ids = within(proposal.token_ids, self._num_foreign)
        return Proposal(token_ids, PointMass(token_ids))

    def seconds_per_token(self) -> float:
        """Returns the seconds of drafting per token, over all drafts of the generation; each token takes one pass. Call
        it when the pass log may be read."""
        seconds = sum(self._log.clock.between(start, end) for _, start, end in self._drafts)
        return seconds / sum(num_passes for num_passes, _, _ in self._drafts)


def within(token_ids: list[int], vocab_size: int) -> list[int]:
    return [token % vocab_size for token in token_ids]


def time_steps(target: CausalLM, drafter: TimedDrafter, prompt_ids: list[int], timings: StepTimings) -> None:
    generation = generate(target, drafter, prompt_ids, NUM_DRAFT_TOKENS)
    num_steps = len(generation.steps)
    timings.per_draft_token.append(drafter.seconds_per_token())
    timings.per_step.append(generation.decode_seconds / num_steps)
    timings.overhead.append(overhead(generation) / num_steps)


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
        while lacking := self._lacking(number):
            others = [length for length in lacking[:: -1 if backwards else 1] if length != 1]
            half = len(others) // 2
            for length in (*others[:half], 1, *others[half:]):  # in the middle always one over a single token
                self.seconds[length].append(self._time_pass(length))
            backwards = not backwards

    def _lacking(self, num_turns: int) -> list[int]:
        """Returns the query lengths with too few passes for `num_turns`. Their number is judged by the fastest pass: if
        an interrupted pass ended a turn early, it would have too much weight in the mean."""
        enough = dict.fromkeys(self.seconds, TURN_SECONDS)
        if len(enough) > 1:
            enough[1] = SINGLE_SECONDS
        return [
            length for length, seconds in self.seconds.items()
            if len(seconds) < num_turns or len(seconds) * min(seconds) < num_turns * enough[length]
        ]  # fmt: skip

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


def measure(
    target: CausalLM, drafter: CausalLM, benchmarks: Sequence[RateBenchmark], points: Points, *,
    repeats: int, seed: int, progress: Say = say_nothing,
) -> PairTimings:  # fmt: skip
    """Returns the timings of `repeats` rounds after one round that is not measured. Each round has every point of both
    models, both rate benchmarks, and one generation of each model and of the pair; the order alternates. `progress`
    gets a line before each round."""
    chance = random.Random(seed)
    models = (target, drafter)
    texts = [[chance.randrange(model.vocab_size) for _ in range(points.most_tokens)] for model in models]
    drafting = TimedDrafter(drafter, target)
    found = PairTimings()
    for number in range(-1, repeats):
        what = f"round {number + 1} of {repeats}" if number >= 0 else "warming up"
        progress(f"timing passes after {points.context} tokens: {what}")
        into = found if number >= 0 else PairTimings()
        sides = list(zip(models, texts, benchmarks, (into.target, into.drafter), strict=True))
        in_turn = sides if number % 2 == 0 else sides[::-1]
        passing = [(model, ids, timings) for model, ids, _, timings in in_turn]
        time_passes(passing, points, backwards=number % 2 == 1)
        for model, ids, benchmark, timings in in_turn:
            timings.rates.append(benchmark.rates())
            if points.decodes:
                alone = generate(model, NoDrafter(), ids[: points.context], 0)
                num_timed = len(alone.token_ids) - 1
                timings.per_token.append(alone.decode_seconds / num_timed)
                timings.overhead.append(overhead(alone) / num_timed)
        if points.decodes:
            time_steps(target, drafting, texts[0][: points.context], into.steps)
    return found


def time_passes(sides: Sequence[tuple[CausalLM, list[int], ModelTimings]], points: Points, *, backwards: bool) -> None:
    """Adds the mean seconds of every point. The models take turns, so that times that are divided by each other were
    measured under the same load of the machine."""
    for model, _, _ in sides:
        model.reset()
    for context in points.every_context:
        lengths = points.query_lengths if context == points.context else (1,)
        timed = [TimedPasses(model, ids, context, lengths) for model, ids, _ in sides]
        for turn in range(1, TURNS + 1):
            for each in timed:
                each.run_turn(turn, backwards=backwards == (turn % 2 == 1))
        for each, (_, _, timings) in zip(timed, sides, strict=True):
            for length, seconds in each.means().items():
                timings.passes.setdefault((length, context), []).append(seconds)
