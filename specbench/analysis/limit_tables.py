"""The report of `specbench limit` as tables for a terminal of 100 columns, and as a picture."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specbench.analysis.limit_report import LimitReport, ModelConditions, ModelLimit, PassPoint, Quartiles, Ratio
from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import MIN_PROMPTS
from specbench.results.captions import model_name
from specbench.results.plots import reach, save_picture
from specbench.results.units import NULL

COMMIT_DIGITS = 10
MS, MEGA, GIGA = 1e3, 1e-6, 1e-9
UNDECIDED = "†"
COLOURS = {"target": "#2f6f94", "drafter": "#b5493a"}
SHOWN_RATES = (0.5, 0.7, 0.9)


def tables(report: LimitReport) -> list[Table]:
    """Returns the bounds and the measured times; passes by query length and by context; draft lengths."""
    return [bounds_table(report), lengths_table(report), contexts_table(report), drafts_table(report)]


def bounds_table(report: LimitReport) -> Table:
    """Returns the times of one token behind the context: bounds, bare pass and decode loop; a column per model."""
    models, step = (report.target, report.drafter), report.step
    points = [model.at(1, report.context) for model in models]
    rows = [
        ("weights and cache that a pass reads, MB", *(f"{MEGA * model.bytes_read:.1f}" for model in models)),
        ("copies of as much, read and written, GB/s", *(quartiles(m.bytes_per_second, GIGA) for m in models)),
        ("sums of as much, only read, GB/s", *(quartiles(m.read_bytes_per_second, GIGA) for m in models)),
        ("products of matrices, GFLOP/s", *(quartiles(model.operations_per_second, GIGA) for model in models)),
        ("bound by the bandwidth of copies, ms", *(ms(point.bandwidth_seconds) for point in points)),
        ("bound by the arithmetic of products, ms", *(ms(point.arithmetic_seconds) for point in points)),
        ("bare pass, ms", *(quartiles(point.seconds) for point in points)),
        ("decoding alone, ms per token", *(quartiles(model.per_token) for model in models)),
        ("  overhead left, outside of bare passes", *(share_of(m.outside_passes, m.per_token) for m in models)),
        ("  bound ÷ decoding [95 %]", *(model.share_of_bound.text for model in models)),
        ("drafting, ms per draft token", NULL, quartiles(report.drafter.per_draft_token)),
        ("  bound ÷ drafting [95 %]", NULL, report.drafter.share_of_bound_drafting.text),
        (f"a speculative step, γ = {step.num_draft_tokens}, ms", quartiles(step.seconds), NULL),
        ("  overhead left, outside of bare passes", share_of(step.outside_passes, step.seconds), NULL),
    ]
    title = f"one token behind {report.context} · {report.environment['engine']} · median [quartiles]"
    caption = [*conditions(report), *explanations(report), report.verdict]
    return Table(title, _columns("", "target", "drafter"), rows, caption)


def lengths_table(report: LimitReport) -> Table:
    """Returns a line per query length behind the context."""
    rows = [
        [str(point.query_length), quartiles(point.seconds), report.verification_cost[point.query_length].text,
         ms(point.bound_seconds), *_drafter_cells(report.drafter, point)]
        for point in report.target.points if point.context == report.context
    ]  # fmt: skip
    columns = _columns("tokens", "target", "single passes\n[95 %]", "bound", "drafter", "bound")
    return Table(f"passes behind {report.context} · ms", columns, rows)


def contexts_table(report: LimitReport) -> Table:
    """Returns a line per context: a pass over one token behind it."""
    rows = [
        [str(point.context), quartiles(point.seconds), ms(point.bound_seconds), *_drafter_cells(report.drafter, point)]
        for point in report.target.points if point.query_length == 1
    ]  # fmt: skip
    return Table("one token by context · ms", _columns("context", "target", "bound", "drafter", "bound"), rows)


def drafts_table(report: LimitReport) -> Table:
    """Returns a line per acceptance rate: the best draft length by the measured costs, and with free verification."""
    rows = [
        [f"{best.acceptance_rate:g}",
         str(best.num_draft_tokens), _speedup_cell(best.num_draft_tokens, best.speedup),
         str(best.free_num_draft_tokens), _speedup_cell(best.free_num_draft_tokens, best.free_speedup)]
        for best in report.best
    ]  # fmt: skip
    columns = _columns("α", "γ", "speed-up [95 %]", "γ, free\nverification", "speed-up [95 %],\nfree verification")
    caption = [
        f"Σ α^k / (γc + v(γ+1)), c = {report.cost_ratio.text},",
        "v: single passes as measured above",
        "γ = 0: drafting does not pay",
        f"{UNDECIDED} not told apart from 1",
    ]
    return Table("best draft length", columns, rows, caption)


def _columns(first: str, *others: str) -> tuple[Any, ...]:
    return words(first, folds=False) + numbers(*others)


def conditions(report: LimitReport) -> list[str]:
    """Returns the models, the machine, the versions and the rounds, a line each."""
    known = report.environment
    versions = [f"{name} {known['versions'].get(name)}" for name in ("torch", "transformers", "specbench")]
    if commit := known["commit"]:
        versions.append(f"commit {commit[:COMMIT_DIGITS]}{' with changes' if '-dirty-' in commit else ''}")
    intervals = "95 % of resampled rounds" if report.repeats >= MIN_PROMPTS else f"none below {MIN_PROMPTS} rounds"
    return [
        f"target {_model_conditions(report.target.model)}",
        f"drafter {_model_conditions(report.drafter.model)}",
        f"on {known['device']}",
        ", ".join(versions),
        f"{report.repeats} rounds, all in turn, seed {report.seed}",
        f"ratios: medians of those in each round; intervals: {intervals}",
    ]


def _model_conditions(model: ModelConditions) -> str:
    buffers = f", buffers of {model.capacity} tokens" if model.capacity else ""
    return f"{model_name(model.name, model.revision)}: {model.dtype}, {model.attention}{buffers}"


def explanations(report: LimitReport) -> list[str]:
    """Returns the warnings, and the reason why a share of a bandwidth bound may be above 1, where one is."""
    target, drafter = report.target, report.drafter
    shares = (
        (target, target.share_of_bound), (drafter, drafter.share_of_bound), (drafter, drafter.share_of_bound_drafting)
    )  # fmt: skip
    lines = [f"warning: {warning.text}" for warning in report.warnings]
    if any(share.value > 1 and model.at(1, report.context).is_by_memory for model, share in shares):
        lines.append("a share above 1: copies also write; a pass only reads (as sums do), or reads from a cache")
    return lines


def _speedup_cell(num_draft_tokens: int, found: Ratio) -> str:
    """Returns a speed-up, with a mark where its interval includes 1; without drafting it is 1."""
    is_decided = num_draft_tokens == 0 or found.tells_from(1.0)
    return found.text if is_decided else f"{UNDECIDED}{found.text}"


def _drafter_cells(model: ModelLimit, point: PassPoint) -> tuple[str, str]:
    own = model.at(point.query_length, point.context)
    return quartiles(own.seconds), ms(own.bound_seconds)


def ms(seconds: float) -> str:
    """Returns seconds as milliseconds with three digits."""
    return _three_digits(MS * seconds) if seconds else NULL


def quartiles(values: Quartiles, unit: float = MS) -> str:
    """Returns the median with its quartiles, such as "1.2 [1.1, 1.4]"."""
    median, low, high = (_three_digits(unit * value) for value in (values.median, values.low, values.high))
    return f"{median} [{low}, {high}]"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def share_of(part: Quartiles, whole: Quartiles) -> str:
    """Returns a median as a share of another, in percent."""
    return f"{part.median / whole.median:.0%}"


def draw_limit(report: LimitReport, path: Path) -> None:
    """Draw passes and bounds by query length and by context, and speed-ups by draft length.

    Raises ConfigError where the file cannot be written.
    """
    engine, device = report.environment["engine"], report.environment["device"]
    names = (model.model.name.rpartition("/")[2] for model in (report.target, report.drafter))
    panels = [partial(each, report=report) for each in (_draw_lengths, _draw_contexts, _draw_speedups)]
    save_picture([panels], path, size=(13, 4), title=f"{' and '.join(names)}, {engine}: {device}")


def _draw_lengths(panel: Any, report: LimitReport) -> None:
    for role, model in (("target", report.target), ("drafter", report.drafter)):
        points = [point for point in model.points if point.context == report.context]
        _draw_passes(panel, role, points, [point.query_length for point in points])
    _label(panel, f"tokens in the pass, behind {report.context}")
    panel.legend(frameon=False, fontsize="small")


def _draw_contexts(panel: Any, report: LimitReport) -> None:
    for role, model in (("target", report.target), ("drafter", report.drafter)):
        points = [point for point in model.points if point.query_length == 1]
        _draw_passes(panel, role, points, [point.context for point in points])
    _label(panel, "context of a pass over one token")


def _draw_passes(panel: Any, role: str, points: Sequence[PassPoint], places: Sequence[int]) -> None:
    colour = COLOURS[role]
    panel.plot(places, [MS * p.seconds.median for p in points], "o-", markersize=3, color=colour, label=role)
    low, high = ([MS * getattr(p.seconds, end) for p in points] for end in ("low", "high"))
    panel.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(places, [MS * p.bound_seconds for p in points], ":", color=colour, label=f"{role}: bound")


def _label(panel: Any, across: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel(across)
    panel.set_ylabel("ms")


def _draw_speedups(panel: Any, report: LimitReport) -> None:
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
