"""The report of `specbench limit` as tables for a terminal of 100 columns, and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.analysis.limit import MIN_ROUNDS
from specbench.analysis.limit_report import LimitReport, ModelConditions, ModelLimit, PassPoint, Quartiles, Ratio
from specbench.results.captions import model_name
from specbench.results.plots import pyplot, reach, saved
from specbench.results.units import NULL

COMMIT_DIGITS = 10


def conditions(report: LimitReport) -> list[str]:
    """Models, machine and versions, rounds."""
    known = report.environment
    versions = [f"{name} {known['versions'].get(name)}" for name in ("torch", "transformers", "specbench")]
    if commit := known["commit"]:
        versions.append(f"commit {commit[:COMMIT_DIGITS]}{' with changes' if '-dirty-' in commit else ''}")
    intervals = "95 % of resampled rounds" if report.repeats >= MIN_ROUNDS else f"none below {MIN_ROUNDS} rounds"
    return [
        f"target {model_conditions(report.target.model)}",
        f"drafter {model_conditions(report.drafter.model)}",
        f"on {known['device']}",
        ", ".join(versions),
        f"{report.repeats} rounds, all in turn, seed {report.seed}",
        f"ratios: medians of those in each round; intervals: {intervals}",
    ]


def model_conditions(model: ModelConditions) -> str:
    buffers = f", buffers of {model.capacity} tokens" if model.capacity else ""
    return f"{model_name(model.name, model.revision)}: {model.dtype}, {model.attention}{buffers}"


def explanations(report: LimitReport) -> list[str]:
    """The warnings; and why a share of a bandwidth bound may be above 1, where one is."""
    target, drafter = report.target, report.drafter
    shares = (
        (target, target.share_of_bound), (drafter, drafter.share_of_bound), (drafter, drafter.share_of_bound_drafting)
    )  # fmt: skip
    lines = [f"warning: {warning.text}" for warning in report.warnings]
    if any(share.value > 1 and model.at(1, report.context).is_by_memory for model, share in shares):
        lines.append("a share above 1: copies also write, a pass only reads (as sums do), or finds it in a cache")
    return lines


MS, MEGA, GIGA = 1e3, 1e-6, 1e-9
UNTOLD = "†"


def tables(report: LimitReport) -> list[Table]:
    """The bounds beside what was measured; passes by query length and by context; draft lengths."""
    return [bounds_table(report), lengths_table(report), contexts_table(report), drafts_table(report)]


def bounds_table(report: LimitReport) -> Table:
    """One token behind the context, by the hardware, by the bare pass and by the decode loop; a column per model."""
    title = f"one token behind {report.context} · {report.environment['engine']} · median [quartiles]"
    table = plain(title, "", "target", "drafter")
    models, step = (report.target, report.drafter), report.step
    points = [model.at(1, report.context) for model in models]
    lines = [
        ("weights and cache that a pass reads, MB", *(f"{MEGA * model.bytes_read:.1f}" for model in models)),
        ("copies of as much, read and written, GB/s", *(spread(m.bytes_per_second, GIGA) for m in models)),
        ("sums of as much, only read, GB/s", *(spread(m.read_bytes_per_second, GIGA) for m in models)),
        ("products of matrices, GFLOP/s", *(spread(model.operations_per_second, GIGA) for model in models)),
        ("bound by the bandwidth of copies, ms", *(ms(point.bandwidth_seconds) for point in points)),
        ("bound by the arithmetic of products, ms", *(ms(point.arithmetic_seconds) for point in points)),
        ("bare pass, ms", *(spread(point.seconds) for point in points)),
        ("decoding alone, ms per token", *(spread(model.per_token) for model in models)),
        ("  overhead left, outside of bare passes", *(share_of(m.outside_passes, m.per_token) for m in models)),
        ("  bound ÷ decoding [95 %]", *(model.share_of_bound.text for model in models)),
        ("drafting, ms per draft token", NULL, spread(report.drafter.per_draft_token)),
        ("  bound ÷ drafting [95 %]", NULL, report.drafter.share_of_bound_drafting.text),
        (f"a speculative step, γ = {step.num_draft_tokens}, ms", spread(step.seconds), NULL),
        ("  overhead left, outside of bare passes", share_of(step.outside_passes, step.seconds), NULL),
    ]
    for cells in lines:
        add(table, *cells)
    table.caption = Text("\n".join([*conditions(report), *explanations(report), report.verdict]))
    return table


def lengths_table(report: LimitReport) -> Table:
    """A line per query length behind the context."""
    heading = ("tokens", "target", "single passes\n[95 %]", "bound", "drafter", "bound")
    table = plain(f"passes behind {report.context} · ms", *heading)
    for point in report.target.points:
        if point.context == report.context:
            single = report.verification_cost[point.query_length].text
            add(table, str(point.query_length), spread(point.seconds), single, ms(point.bound_seconds),
                *beside(report.drafter, point))  # fmt: skip
    return table


def contexts_table(report: LimitReport) -> Table:
    """A line per context: one token behind it."""
    table = plain("one token by context · ms", "context", "target", "bound", "drafter", "bound")
    for point in report.target.points:
        if point.query_length == 1:
            own = (spread(point.seconds), ms(point.bound_seconds))
            add(table, str(point.context), *own, *beside(report.drafter, point))
    return table


def drafts_table(report: LimitReport) -> Table:
    """A line per acceptance rate: the best draft length by the measured costs, and if verifying cost one pass."""
    heading = ("α", "γ", "speed-up [95 %]", "γ, free\nverification", "speed-up [95 %],\nfree verification")
    table = plain("best draft length", *heading)
    for best in report.best:
        add(table, f"{best.acceptance_rate:g}",
            str(best.num_draft_tokens), speedup_cell(best.num_draft_tokens, best.speedup),
            str(best.free_num_draft_tokens), speedup_cell(best.free_num_draft_tokens, best.free_speedup))  # fmt: skip
    table.caption = Text(
        f"Σ α^k / (γc + v(γ+1)), c = {report.cost_ratio.text},\n"
        f"v: single passes as measured above\nγ = 0: drafting does not pay\n{UNTOLD} not told apart from 1"
    )
    return table


def speedup_cell(num_draft_tokens: int, found: Ratio) -> str:
    """A mark in front where the interval includes 1; without drafting it is 1."""
    is_told = num_draft_tokens == 0 or found.tells_from(1.0)
    return found.text if is_told else f"{UNTOLD}{found.text}"


def beside(model: ModelLimit, point: PassPoint) -> tuple[str, str]:
    """The drafter's cells of a point."""
    own = model.at(point.query_length, point.context)
    return spread(own.seconds), ms(own.bound_seconds)


def ms(seconds: float) -> str:
    return short(MS * seconds) if seconds else NULL


def spread(values: Quartiles, unit: float = MS) -> str:
    median, low, high = (short(unit * value) for value in (values.median, values.low, values.high))
    return f"{median} [{low}, {high}]"


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def share_of(inner: Quartiles, whole: Quartiles) -> str:
    return f"{inner.median / whole.median:.0%}"


def plain(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def add(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))


PICTURE_MS = 1e3
COLOURS = {"target": "#2f6f94", "drafter": "#b5493a"}
SHOWN_RATES = (0.5, 0.7, 0.9)


def draw(report: LimitReport, path: Path) -> None:
    """Write the picture. Raises ConfigError where the file cannot be written."""
    figure, panels = pyplot().subplots(1, 3, figsize=(13, 4), layout="constrained")
    with saved(figure, path):
        roles = {"target": report.target, "drafter": report.drafter}
        for role, model in roles.items():
            lengths = [point for point in model.points if point.context == report.context]
            _lines(panels[0], role, lengths, [point.query_length for point in lengths])
            contexts = [point for point in model.points if point.query_length == 1]
            _lines(panels[1], role, contexts, [point.context for point in contexts])
        _label(panels[0], f"tokens in the pass, behind {report.context}", "ms")
        panels[0].legend(frameon=False, fontsize="small")
        _label(panels[1], "context of a pass over one token", "ms")
        _speedups(panels[2], report)
        engine, device = report.environment["engine"], report.environment["device"]
        figure.suptitle(f"{_short(report.target)} and {_short(report.drafter)}, {engine}: {device}")


def _lines(panel: Any, role: str, points: Sequence[PassPoint], places: Sequence[int]) -> None:
    colour = COLOURS[role]
    panel.plot(places, [PICTURE_MS * p.seconds.median for p in points], "o-", markersize=3, color=colour, label=role)
    low, high = ([PICTURE_MS * getattr(p.seconds, end) for p in points] for end in ("low", "high"))
    panel.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(places, [PICTURE_MS * p.bound_seconds for p in points], ":", color=colour, label=f"{role}: bound")


def _speedups(panel: Any, report: LimitReport) -> None:
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


def _label(panel: Any, across: str, up: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel(across)
    panel.set_ylabel(up)


def _short(model: ModelLimit) -> str:
    return model.model.name.rpartition("/")[2]
