"""The report of `specbench roofline` on a pair: bounds, measurements and draft lengths; its tables and its picture."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Generic

from pydantic import BaseModel, FiniteFloat

from specbench.core.table import Table, number_columns, text_columns
from specbench.models.packed import ProductRate
from specbench.report.captions import model_name, width_of_passes
from specbench.report.display import reach, save_picture
from specbench.results.metric_format import NULL, with_interval
from specbench.results.metrics import Number, expected_speedup
from specbench.statistics.bootstrap import MIN_PROMPTS, Estimate

RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Costs(Generic[Number]):
    """Costs in single-token target passes: the draft cost c (`cost_ratio`), and the verification cost by query length.

    They are numbers, or arrays of equal shape.
    """

    cost_ratio: Number
    verifying: Mapping[int, Number]

    def verification(self, query_length: int) -> Number:
        """Returns the cost of a pass over `query_length` tokens, interpolated linearly between measured lengths."""
        lengths = sorted(self.verifying)
        place = bisect_left(lengths, query_length)
        if lengths[place] == query_length:
            return self.verifying[query_length]
        low, high = lengths[place - 1], lengths[place]
        part = (query_length - low) / (high - low)
        return (1 - part) * self.verifying[low] + part * self.verifying[high]

    def speedup(self, acceptance_rate: float, num_draft_tokens: int) -> Number:
        """Returns the expected speed-up Σ_{k=0..γ} α^k / (γc + v(γ+1))."""
        verification = self.verification(num_draft_tokens + 1)
        return expected_speedup(acceptance_rate, num_draft_tokens, self.cost_ratio, verification)


def fastest_length(costs: Costs[float], acceptance_rate: float) -> int:
    """Returns the draft length with the highest speed-up; 0 if drafting does not pay."""
    return max(range(max(costs.verifying)), key=lambda length: costs.speedup(acceptance_rate, length))


class Quartiles(BaseModel):
    """The median and the quartiles over rounds."""

    median: float
    low: float
    high: float


def make_quartiles(values: Sequence[float]) -> Quartiles:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Quartiles(median=median(values), low=low, high=high)


class Ratio(Estimate):
    """A median over rounds with its 95 % interval; with few rounds there is no interval."""

    value: FiniteFloat

    @property
    def text(self) -> str:
        return with_interval(self, 2 if self.value >= 0.1 else 3)

    def includes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high


class ModelConditions(BaseModel):
    """A measured model. `capacity`: how many tokens the static buffers of compiled passes hold; null for eager passes,
    whose cache is as long as the sequence."""

    name: str
    revision: str | None
    dtype: str
    attention: str
    capacity: int | None


class PassPoint(BaseModel):
    """Passes over `query_length` tokens after the context. `seconds`: over the means of rounds. The bounds are the
    seconds for copying as many bytes, and for as many operations of matrix products."""

    query_length: int
    seconds: Quartiles
    bandwidth_seconds: float
    arithmetic_seconds: float

    @property
    def bound_seconds(self) -> float:
        return max(self.bandwidth_seconds, self.arithmetic_seconds)

    @property
    def bound_name(self) -> str:
        return "memory bound" if self.bandwidth_seconds >= self.arithmetic_seconds else "compute bound"


class ExpertUnion(BaseModel):
    """The different experts of a layer that a pass over `query_length` tokens reads. `expected`: of uniform routing;
    `measured`: of the routers' own choices, the mean over layers and over all runs of so many of the timed tokens; null
    where passes do not tell them. `over_layers`: of the means of layers. `bytes_ratio`: bytes that such a pass reads ÷
    those of a single token, with the measured experts where they are known."""

    query_length: int
    expected: float
    measured: float | None
    over_layers: Quartiles | None
    bytes_ratio: float = 1.0


class Experts(BaseModel):
    """The mixed experts of a model: `number` in each layer, of which a token uses `per_token`. `num_layers`: layers
    whose choices were measured."""

    number: int
    per_token: int
    num_layers: int | None
    unions: list[ExpertUnion]


SLOW = 0.5  # of the memory bandwidth
SMALL = 2**24  # bytes of weights below which the calls themselves take a large part of the time


class ModelRoofline(BaseModel):
    """One model. `bytes_read`, `operations`: of a pass over one token after the context. `bytes_per_second`: of copies,
    read and written, or of sums, whichever are faster. `per_token`: seconds of autoregressive decoding; `overhead`: the
    part of it outside passes. `share_of_bound`: the bound of a pass ÷ `per_token`. `products`: those of eager bfloat16
    passes on a CPU. `experts`: null for a model without."""

    model: ModelConditions
    bytes_read: float
    operations: float
    bytes_per_second: Quartiles
    operations_per_second: Quartiles
    per_token: Quartiles
    overhead: Quartiles
    share_of_bound: Ratio
    points: list[PassPoint]
    products: list[ProductRate] = []
    experts: Experts | None = None

    def is_slow(self, product: ProductRate) -> bool:
        """Returns whether weights are read so slowly that torch may not use the kernel that they were stored for."""
        return product.num_bytes >= SMALL and product.bytes_per_second < SLOW * self.bytes_per_second.median

    def at(self, query_length: int) -> PassPoint:
        return next(point for point in self.points if point.query_length == query_length)


class StepTimes(BaseModel):
    """A step of speculative decoding: its seconds, and the part of them outside passes."""

    num_draft_tokens: int
    seconds: Quartiles
    overhead: Quartiles


class BestLength(BaseModel):
    """The best draft length at an acceptance rate."""

    acceptance_rate: float
    num_draft_tokens: int
    speedup: Ratio


class Machine(BaseModel, extra="allow"):
    """Where the pair was measured, as rows tell it (`results.conditions.environment`)."""

    device: str
    engine: str
    pass_width: int | None = None
    versions: dict[str, str | None]
    commit: str | None


class RooflineReport(BaseModel):
    """The report on a pair, with the conditions of the measurement; times are in seconds. `text`: the file whose tokens
    the passes read; null: random tokens. `verification_cost`: by query length, in single-token passes."""

    environment: Machine
    seed: int
    repeats: int
    context: int
    text: str | None = None
    target: ModelRoofline
    drafter: ModelRoofline
    step: StepTimes
    cost_ratio: Ratio
    verification_cost: dict[int, Ratio]
    best: list[BestLength]
    verdict: str

    @property
    def costs(self) -> Costs[float]:
        return Costs(self.cost_ratio.value, {length: cost.value for length, cost in self.verification_cost.items()})


MS, MEGA, GIGA = 1e3, 1e-6, 1e-9
UNDECIDED = "†"
COLOURS = {"target": "#2f6f94", "drafter": "#b5493a"}
SHOWN_RATES = (0.5, 0.7, 0.9)


def tables(report: RooflineReport) -> list[Table]:
    made = [bounds_table(report), passes_table(report), drafts_table(report)]
    for role, model in (("target", report.target), ("drafter", report.drafter)):
        made += [experts_table(report, role, model.experts)] if model.experts is not None else []
    return made + ([products_table(report)] if report.target.products or report.drafter.products else [])


def bounds_table(report: RooflineReport) -> Table:
    models = (report.target, report.drafter)
    step = report.step
    points = [model.at(1) for model in models]
    rows = [
        ("weights and cache that a pass reads, MB", *(f"{MEGA * model.bytes_read:.1f}" for model in models)),
        ("memory bandwidth, GB/s", *(quartiles(m.bytes_per_second, GIGA) for m in models)),
        ("matrix products, GFLOP/s", *(quartiles(model.operations_per_second, GIGA) for model in models)),
        ("memory bound, ms", *(ms(point.bandwidth_seconds) for point in points)),
        ("compute bound, ms", *(ms(point.arithmetic_seconds) for point in points)),
        ("forward pass, ms", *(quartiles(point.seconds) for point in points)),
        ("decoding alone, ms per token", *(quartiles(model.per_token) for model in models)),
        ("  overhead", *(f"{m.overhead.median / m.per_token.median:.0%}" for m in models)),
        ("  bound ÷ decoding [95 %]", *(model.share_of_bound.text for model in models)),
        (f"a speculative step, γ = {step.num_draft_tokens}, ms", quartiles(step.seconds), NULL),
        ("  overhead", f"{step.overhead.median / step.seconds.median:.0%}", NULL),
    ]
    environment = report.environment
    engine = f"{environment.engine}{width_of_passes(environment.pass_width)}"
    title = f"one token after {report.context} · {engine} · median (quartiles)"
    caption = []
    for role, each in (("target", report.target.model), ("drafter", report.drafter.model)):
        buffers = f", buffers of {each.capacity} tokens" if each.capacity else ""
        caption.append(f"{role} {model_name(each.name, each.revision)}: {each.dtype}, {each.attention}{buffers}")
    versions = (f"{name} {environment.versions.get(name)}" for name in ("torch", "transformers", "specbench"))
    intervals = "95 % of resampled rounds" if report.repeats >= MIN_PROMPTS else f"none below {MIN_PROMPTS} rounds"
    caption += [
        f"on {environment.device}",
        f"{', '.join(versions)}, commit {environment.commit}",
        f"{report.repeats} interleaved rounds, seed {report.seed}",
        f"ratios: medians over rounds; intervals: {intervals}",
        "a share above 1: a pass only reads, perhaps from a processor's cache, while a copy also writes",
        report.verdict,
    ]
    return Table(title, _columns("", "target", "drafter"), rows, caption)


def passes_table(report: RooflineReport) -> Table:
    rows = [
        [str(point.query_length), quartiles(point.seconds), report.verification_cost[point.query_length].text,
         ms(point.bound_seconds), quartiles(own.seconds), ms(own.bound_seconds)]
        for point, own in zip(report.target.points, report.drafter.points, strict=True)
    ]  # fmt: skip
    columns = _columns("tokens", "target", "single passes\n[95 %]", "bound", "drafter", "bound")
    return Table(f"passes over tokens after {report.context} · ms", columns, rows)


def drafts_table(report: RooflineReport) -> Table:
    rows = []
    for best in report.best:
        # Without drafting the speed-up is 1 by definition.
        mark = UNDECIDED if best.num_draft_tokens and best.speedup.includes(1.0) else ""
        rows.append([f"{best.acceptance_rate:g}", str(best.num_draft_tokens), f"{mark}{best.speedup.text}"])
    caption = [
        f"Σ α^k / (γc + v(γ+1)), c = {report.cost_ratio.text},",
        "v: single passes as measured above",
        "γ = 0: drafting does not pay",
        f"{UNDECIDED} the interval includes 1",
    ]
    return Table("best draft length", _columns("α", "γ", "speed-up [95 %]"), rows, caption)


def experts_table(report: RooflineReport, role: str, experts: Experts) -> Table:
    """Returns what passes of a model with mixed experts cost, beside the experts that they read."""
    rows = []
    for union in experts.unions:
        cost = report.verification_cost[union.query_length].text if role == "target" else NULL
        measured = NULL
        if union.measured is not None and union.over_layers is not None:
            layers = union.over_layers
            measured = f"{union.measured:.1f} ({layers.low:.1f}–{layers.high:.1f})"
        rows.append([str(union.query_length), cost, f"{union.expected:.1f}", measured, f"{union.bytes_ratio:.2f}"])
    tokens = (
        "random tokens, which are routed less alike than text: give --text FILE"
        if report.text is None
        else (f"tokens of {report.text}")
    )
    caption = [
        f"experts: of {experts.number} in a layer, of which a token uses {experts.per_token}",
        "uniform: E · (1 − (1 − k/E)ⁿ), expected if tokens chose independently and all experts equally often",
        *([f"routed: measured choices of {experts.num_layers} layers, mean (quartiles of layers); {tokens}"]
          if experts.num_layers else ["routed: not measured, since only eager passes of this process tell it"]),
        "bytes: read by such a pass ÷ by one over a single token, with the routed experts where they are measured; "
        "v follows it where reading weights is the bound",
    ]  # fmt: skip
    columns = _columns("tokens", "single passes\nv [95 %]", "experts\nuniform", "experts\nrouted", "bytes")
    return Table(f"experts that a pass of the {role} reads", columns, rows, caption)


def products_table(report: RooflineReport) -> Table:
    rows = [
        [role, product.kind, f"{product.number} of {product.in_features} → {product.out_features}",
         f"{MEGA * product.num_bytes:.1f}",
         f"{UNDECIDED if model.is_slow(product) else ''}{_three_digits(GIGA * product.bytes_per_second)}"]
        for role, model in (("target", report.target), ("drafter", report.drafter)) for product in model.products
    ]  # fmt: skip
    caption = [
        "each shape alone, over one token; plain: torch's own product, the others: of stored weights",
        f"{UNDECIDED} less than {SLOW:.0%} of the memory bandwidth: it may have fallen back to a slower kernel",
    ]
    columns = text_columns("", "weights", "layers", folds=False) + number_columns("MB", "GB/s")
    return Table("products with weights", columns, rows, caption)


def _columns(first: str, *others: str) -> tuple[Any, ...]:
    return text_columns(first, folds=False) + number_columns(*others)


def ms(seconds: float) -> str:
    return _three_digits(MS * seconds) if seconds else NULL


def quartiles(values: Quartiles, unit: float = MS) -> str:
    median, low, high = (_three_digits(unit * value) for value in (values.median, values.low, values.high))
    return f"{median} ({low}–{high})"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def draw_roofline(report: RooflineReport, path: Path) -> None:
    """Draws passes and bounds by query length, and speed-ups by draft length.

    Raises ConfigError if the file cannot be written.
    """
    engine, device = report.environment.engine, report.environment.device
    names = (model.model.name.rpartition("/")[2] for model in (report.target, report.drafter))
    panels = [partial(_draw_passes, report=report), partial(_draw_speedups, report=report)]
    save_picture([panels], path, size=(10, 4), title=f"{' and '.join(names)}, {engine}: {device}")


def _draw_passes(panel: Any, report: RooflineReport) -> None:
    for role, model in (("target", report.target), ("drafter", report.drafter)):
        places = [point.query_length for point in model.points]
        colour = COLOURS[role]
        low, middle, high = (
            [MS * getattr(point.seconds, name) for point in model.points] for name in ("low", "median", "high")
        )
        panel.plot(places, middle, "o-", markersize=3, color=colour, label=role)
        panel.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
        bounds = [MS * point.bound_seconds for point in model.points]
        panel.plot(places, bounds, ":", color=colour, label=f"{role}: bound")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel(f"tokens in the pass, after {report.context}")
    panel.set_ylabel("ms")
    panel.legend(frameon=False, fontsize="small")


def _draw_speedups(panel: Any, report: RooflineReport) -> None:
    lengths = range(max(report.verification_cost))
    for best in report.best:
        rate = best.acceptance_rate
        if rate in SHOWN_RATES:
            [line] = panel.plot(lengths, [report.costs.speedup(rate, n) for n in lengths], label=f"α = {rate:g}")
            panel.errorbar(
                [best.num_draft_tokens], [best.speedup.value], reach([best.speedup]), fmt="o", capsize=3,
                color=line.get_color(),
            )  # fmt: skip
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xlabel("draft tokens γ")
    panel.set_ylabel("speed-up by the measured costs; best: 95 %")
    panel.legend(frameon=False)
