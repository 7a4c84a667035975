"""The time of forward passes by query length and by context, and of whole decoding: all interleaved."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM

QUERY_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
COMPILED_LENGTHS = (1, 2, 4, 6, 8, 16, 32, 64)  # each takes seconds to compile
CONTEXTS = (64, 256, 1024, 4096)
NUM_TOKENS = 32  # of one autoregressive generation


@dataclass
class Timings:
    """Seconds of one model: of bare passes by (query length, context); of autoregressive decoding, per token, in all
    and without its passes."""

    passes: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    per_token: list[float] = field(default_factory=list)
    outside_passes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Points:
    """What is measured: every query length behind `context`, one token behind each of `contexts`, and, where it
    `decodes`, whole decoding behind `context`."""

    context: int
    contexts: tuple[int, ...]
    query_lengths: tuple[int, ...] = QUERY_LENGTHS
    decodes: bool = True

    def parts(self) -> list["Points"]:
        """What compiled passes measure over buffers of its own: a pass reads the whole buffer, which is to be as large
        as a run has it."""
        others = [context for context in self.every_context if context != self.context]
        return [replace(self, contexts=()), *(Points(context, (), (1,), decodes=False) for context in others)]

    def behind(self, context: int) -> tuple[int, ...]:
        return self.query_lengths if context == self.context else (1,)

    @property
    def most_tokens(self) -> int:
        """Of the longest sequence."""
        behind = max(*self.query_lengths, NUM_TOKENS) if self.decodes else max(self.query_lengths)
        return max(max(self.every_context) + 1, self.context + behind)

    @property
    def every_context(self) -> list[int]:
        return sorted({self.context, *self.contexts})


def points_for(models: Sequence[CausalLM], context: int) -> Points:
    """Those that fit into the context of every model; contexts up to four times the one that is asked for."""
    room = min((model.context_limit for model in models if model.context_limit), default=max(CONTEXTS) + 64)
    fitting = tuple(length for length in CONTEXTS if length < room and length <= 4 * context)
    lengths = QUERY_LENGTHS if all(model.compiled is None for model in models) else COMPILED_LENGTHS
    return Points(context, fitting, tuple(length for length in lengths if context + length <= room))


def measure(
    models: Sequence[CausalLM], points: Points, repeats: int, seed: int, report: Callable[[], None],
    found: list[Timings] | None = None,
) -> list[Timings]:  # fmt: skip
    """After one unmeasured round, `repeats` rounds: each has every point of every model once, and one generation of
    each, in an order that alternates. `report` is called after each round. `found`: what was measured before of the
    models, to which this is added."""
    found = [Timings() for _ in models] if found is None else found
    chance = random.Random(seed)
    texts = [[chance.randrange(model.vocab_size) for _ in range(points.most_tokens)] for model in models]
    for number in range(-1, repeats):
        pairs = list(zip(models, texts, found, strict=True))
        for model, ids, timings in pairs if number % 2 == 0 else pairs[::-1]:
            into = timings if number >= 0 else Timings()
            time_passes(model, ids, points, into, backwards=number % 2 == 1)
            if points.decodes:
                time_decoding(model, ids[: points.context], into)
        report()
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


def time_decoding(model: CausalLM, prompt_ids: list[int], into: Timings) -> None:
    """One greedy generation through the decode loop, which no end token stops."""
    generation = decode(
        model, NoDrafter(), rejection, prompt_ids, num_draft_tokens=0, sampling=Sampling(0.0),
        stop=StopRules(NUM_TOKENS, context_limit=model.context_limit), generator=torch.Generator(device=model.device),
    )  # fmt: skip
    num_timed = len(generation.token_ids) - 1
    in_passes = sum(seconds for _, seconds in generation.target_passes)
    into.per_token.append(generation.decode_seconds / num_timed)
    into.outside_passes.append((generation.decode_seconds - in_passes) / num_timed)
