"""What tools.engines.cpu keeps of each way in docs/measured/cpu.json, and the figures of a line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from specbench.results.metric_format import NULL


@dataclass(frozen=True)
class Settings:
    """What all records of a page have in common. `context`: cached tokens before a timed pass; `num_tokens`: of a
    generation; `num_text_tokens`: of the text on which distributions are compared; `lengths`: of passes."""

    threads: int
    turns: int
    context: int
    num_tokens: int
    num_text_tokens: int
    lengths: list[int]


@dataclass(frozen=True)
class Product:
    """The products of one kind and shape for one token, each alone: their number, the bytes of all of them, and the
    bytes that they read in a second."""

    kind: str
    number: int
    num_inputs: int
    num_outputs: int
    num_bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class InPass:
    """The products with weights within a pass over one token: the calls of their kernels, and the seconds of these."""

    num_calls: int
    seconds: float


@dataclass(frozen=True)
class Earlier:
    """An earlier measurement of a way: medians over its turns."""

    commit: str | None
    token: float
    rate: float


@dataclass
class Line:
    """One way.

    load: of the machine, when its group ended
    in_turns: the ways with which it took turns
    ready, ready_warm: seconds; of compiled passes without and with what an earlier process left in the compiler's cache
    num_bytes: of weights, keys and values that a token reads; None if unknown
    divergence, flips: against transformers'; None if the way shows no distributions
    token, passes, rates: of turns: the seconds of a token, those of a pass by its tokens, and the bytes that the
      machine moves in a second
    """

    commit: str | None
    device: str
    versions: dict[str, str | None]
    load: float
    in_turns: list[str]
    ready: float
    num_bytes: float | None
    ready_warm: float | None = None
    divergence: float | None = None
    flips: float | None = None
    token: list[float] = field(default_factory=list)
    passes: dict[int, list[float]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    in_pass: InPass | None = None
    before: list[Earlier] = field(default_factory=list)

    @property
    def moved(self) -> float:
        """The bytes that the machine moves in the time of a token."""
        return median(token * rate for token, rate in zip(self.token, self.rates, strict=True))

    @property
    def share(self) -> float | None:
        return None if self.num_bytes is None else self.num_bytes / self.moved

    @property
    def bound(self) -> float | None:
        """The seconds in which the machine moves the bytes of a token."""
        return None if self.num_bytes is None else self.num_bytes / median(self.rates)

    @property
    def beside_products(self) -> float | None:
        """The seconds of a pass over one token beside its products; None if these were not seen within one."""
        return None if self.in_pass is None or 1 not in self.passes else median(self.passes[1]) - self.in_pass.seconds

    @property
    def rate_in_pass(self) -> float | None:
        """The bytes of weights that the products read in a second, within a pass over one token."""
        return None if self.in_pass is None else sum(each.num_bytes for each in self.products) / self.in_pass.seconds

    def growth(self, length: int) -> float | None:
        """Returns the seconds of a pass over `length` tokens ÷ those of one over a single token."""
        return quotient(self.passes[length], self.passes[1]) if length in self.passes else None

    def cells(self, way: str, lines: Mapping[str, "Line"]) -> list[str]:
        """Returns the line of a table. `lines`: all of the model, by way."""
        num_bytes, token = self.num_bytes, median(self.token)
        ready = f"{self.ready:.1f}" + or_null(self.ready_warm, lambda seconds: f" / {seconds:.1f}", "")
        return [
            way, ready, or_null(num_bytes, lambda size: f"{size / 1e9:.2f}"), f"{1e3 * token:.1f}",
            or_null(token_ratio(way, "eager", lines), lambda ratio: f"{ratio:.2f}"),
            or_null(self.passes.get(1), lambda turns: f"{1e3 * median(turns):.1f}"),
            or_null(num_bytes, lambda size: f"{size / token / 1e9:.1f}"), f"{median(self.rates) / 1e9:.1f}",
            f"{self.moved / 1e9:.2f}", or_null(self.share, lambda share: f"{share:.2f}"),
            *(or_null(self.growth(length), lambda growth: f"{growth:.2f}") for length in (6, 16)),
            or_null(self.divergence, lambda value: f"{value:.4f}"), or_null(self.flips, lambda value: f"{value:.1%}"),
        ]  # fmt: skip


HEAD = ("way", "ready, s", "GB read", "token, ms", "÷ eager", "pass, ms", "GB/s", "machine", "moved", "share", "v(6)",
        "v(16)", "KL", "flips")  # fmt: skip


def or_null(value: Any, text: Callable[[Any], str], null: str = NULL) -> str:
    return null if value is None else text(value)


def quotient(above: Sequence[float], below: Sequence[float]) -> float:
    """Returns the median of the ratios of turns."""
    return median(first / second for first, second in zip(above, below, strict=True))


def token_ratio(way: str, other: str, lines: Mapping[str, Line]) -> float | None:
    """Returns the seconds of a token ÷ those of another way in the same turns; None if they took none together."""
    if way not in lines or other not in lines:
        return None
    first, second = lines[way], lines[other]
    together = way == other or (way in second.in_turns and other in first.in_turns)
    return quotient(first.token, second.token) if together else None


@dataclass
class Records:
    """By the name of a model: its lines by way, why others could not be run, and the name of its GGUF file."""

    settings: Settings
    models: dict[str, dict[str, Line]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    gguf: dict[str, str] = field(default_factory=dict)
