"""What was measured of a pair, in seconds and rates, with one entry for each round."""

from dataclasses import dataclass, field

from specbench.limit.machine import Rates


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
