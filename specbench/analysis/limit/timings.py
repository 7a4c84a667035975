"""What was measured of a pair, in seconds and rates, with one entry for each round."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specbench.analysis.limit.work import Rates
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM, shortest_context


@dataclass
class Timings:
    """Of one model: mean seconds of bare passes by (query length, context); of autoregressive decoding, per token, in
    all and without its passes; what the machine copies, reads and multiplies beside it. `capacity`: the tokens of its
    static buffers, if it has such."""

    passes: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    per_token: list[float] = field(default_factory=list)
    outside_passes: list[float] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)
    capacity: int | None = None


@dataclass
class Steps:
    """Of speculative decoding: seconds of drafting per draft token; of a step, in all and without its passes."""

    per_draft_token: list[float] = field(default_factory=list)
    per_step: list[float] = field(default_factory=list)
    outside_passes: list[float] = field(default_factory=list)


@dataclass
class Measured:
    """A pair, over one set of points."""

    target: Timings = field(default_factory=Timings)
    drafter: Timings = field(default_factory=Timings)
    steps: Steps = field(default_factory=Steps)


QUERY_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
COMPILED_LENGTHS = (1, 2, 4, 6, 8, 16, 32, 64)  # each takes seconds to compile
CONTEXTS = (64, 256, 1024, 4096)
LEAST_CONTEXT = 8
NUM_TOKENS = 32  # of one generation
NUM_DRAFT_TOKENS = 5  # of each step of a speculative one


@dataclass(frozen=True)
class Points:
    """What is measured: every query length behind `context`, one token behind each of `contexts`, and, where it
    `decodes`, whole generations behind `context`."""

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
    """Those that fit into the context of every model; contexts up to four times the one that is asked for. Raises
    ConfigError for a context that leaves no room for a generation."""
    room = shortest_context(models) or 2**62
    if context + NUM_TOKENS > room:
        most = room - NUM_TOKENS
        remedy = f"give {LEAST_CONTEXT} to {most}" if most >= LEAST_CONTEXT else "take models with more"
        held = f"the models hold {room} tokens, and {NUM_TOKENS} are generated behind the context"
        raise ConfigError(f"--context {context}: {held}: {remedy}")
    fitting = tuple(length for length in CONTEXTS if length < room and length <= 4 * context)
    lengths = QUERY_LENGTHS if all(model.static is None for model in models) else COMPILED_LENGTHS
    return Points(context, fitting, tuple(length for length in lengths if context + length <= room))
