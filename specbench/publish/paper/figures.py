"""The kinds of figures: rows and records → drawings."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.profile.profile import DRAFTED, cell_of_steps, steps_of_answer
from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.publish.paper.drawing import MOST_SERIES, Drawing, Mark, Panel, Scale
from specbench.publish.paper.frontier import Point, frontier_panels, memory_line
from specbench.publish.paper.rows import Group, PaperRows, Selection, read_rows
from specbench.records.profile import Position
from specbench.report.captions import conditions_line, few_prompts_line, warning_lines
from specbench.report.ranking import unranked_line
from specbench.report.tables import break_even_line, map_lines
from specbench.results.concurrency import is_faster, load_maps, load_of, rows_by_server
from specbench.results.draft_lengths import MIN_PASSES
from specbench.results.metric_format import bounds_of, metric_of
from specbench.results.metrics import COST
from specbench.results.paired import RowWithRecords
from specbench.results.row import SHUFFLED, Row
from specbench.specs.sweep import CONTEXT, value_text
from specbench.statistics.bootstrap import MIN_PROMPTS, SHARE, Bounds, Estimate, Resampler

OVER_AR = {  # the metrics in which AR is 1
    "speedup": "speed-up over AR", "speedup_e2e": "speed-up over AR, with prefill",
    "speedup_user": "speed-up per user", "speedup_without_loops": "speed-up over AR, without loops",
    "speedup_expected": "expected speed-up over AR", "tpot_ratio": "TPOT, AR ÷ method",
    "e2e_ratio": "latency, AR ÷ method",
}  # fmt: skip
LABELS = OVER_AR | {
    "mean_acceptance_length": "tokens per target pass τ", "acceptance_rate": "acceptance rate α",
    "tokens_per_second": "tokens/s", "tokens_per_second_user": "tokens/s per user", "cost_ratio": "draft cost c",
}  # fmt: skip
OF_TIMES = ("speedup", "tokens_per_second", "tpot", "e2e")
# Warnings about times, without which acceptance and scores stand; and those about a speed-up as a whole.
ABOUT_TIMES = frozenset(
    {"wide_interval", "ar_drift", "not_steady", "implausible", "baseline_unchecked", "caches_unknown", "slow_client"}
    | {"memory_not_stated", "settings_differ", "read_late", "few_turns", "idle_unchecked", "impossible_times"}
    | {"cheap_passes", "uneven_drafts", "uneven_sessions", "busy"}
)
ABOUT_SPEEDUPS = frozenset({"wide_interval", "implausible", "loops"})


def read_drawing(kind: str, paths: Sequence[Path], selection: Selection, metric: str | None) -> Drawing:
    """Returns the drawing of a kind. Raises ConfigError for an unknown kind or metric, for paths that are neither runs
    nor leaderboard files, and if they lack what the kind needs."""
    if kind not in KINDS:
        raise ConfigError(f"{kind}: no kind of figure: {nearest(kind, KINDS)}")
    chosen = KINDS[kind]
    if metric is not None and chosen.metrics is not None and metric not in chosen.metrics:
        reason = nearest(metric, chosen.metrics) if chosen.metrics else f"{kind} has no choice of it: leave it out"
        raise ConfigError(f"--metric {metric}: {reason}")
    rows = read_rows(paths, selection, takes_reports=kind == "costs")
    drawing = chosen.draw(rows, metric or chosen.default)
    if (number := len(drawing.series)) > MOST_SERIES:
        raise ConfigError(
            f"{rows.named_sources}: {number} methods, but at most {MOST_SERIES} can be told apart in a figure: "
            "choose some with --method"
        )
    return drawing


# 1. What all kinds share.


def axis_label(metric: str) -> str:
    known = metric_of(metric)
    unit = f" ({known.unit})" if known.unit and known.unit not in ("ratio", "share") else ""
    return LABELS.get(metric) or f"{known.label.replace('_', ' ')}{unit}"


def estimate_of(row: Row, metric: str) -> Estimate:
    """Returns a metric in the unit of its axis."""
    factor, found = metric_of(metric).factor, row.metric(metric)
    return Estimate(**{name: None if value is None else value * factor for name, value in found})


def _bounds(metric: str) -> Bounds | None:
    found = SHARE if metric_of(metric).unit == "share" else bounds_of(metric)
    return None if found is None else (found[0] * metric_of(metric).factor, found[1] * metric_of(metric).factor)


def _number(row: Row, metric: str) -> int:
    """Returns the number of units that the interval of a metric resamples."""
    if row.level:
        return load_of(row).windows
    return row.num_timed if metric.startswith(OF_TIMES) else row.n


def _mark(series: str, x: float | str, row: Row, metric: str) -> Mark:
    cells = {"task": row.task_name, "subset": row.subset, "target": row.target}
    return Mark(series, x, estimate_of(row, metric), _number(row, metric), row, cells=cells)


def _with_metric(rows: PaperRows, groups: Sequence[Group], metric: str) -> list[Group]:
    """Returns the groups, without AR where it is 1 by definition, and without rows that lack the metric. Raises
    ConfigError if none has it."""
    compared = [group.without_ar() if metric in OVER_AR else group for group in groups]
    known = {name for group in compared for row in group.rows for name in row.metrics if row.has(name)}
    if metric not in known:
        raise ConfigError(
            f"--metric {metric}: {rows.named_sources}: no row of a method has it: {nearest(metric, known)}"
        )
    kept = []
    for group in compared:
        having = [(name, side) for name, side in group.named if side.row.has(metric)]
        kept.append(Group(group.label, tuple(side for _, side in having), tuple(name for name, _ in having)))
    left_out = frozenset[str]() if metric.startswith(OF_TIMES) else ABOUT_TIMES
    return [without_warnings(group, left_out) for group in kept if group.sides]


def without_warnings(group: Group, codes: Collection[str]) -> Group:
    """Returns the group without the warnings of these codes, which do not concern what is drawn."""
    sides = []
    for side in group.sides:
        warnings = tuple(each for each in side.row.warnings if each.code not in codes)
        sides.append(replace(side, row=side.row.model_copy(update={"warnings": warnings})))
    return replace(group, sides=tuple(sides))


def caption_of(what: str, groups: Sequence[Group]) -> list[str]:
    """Returns the sentences below a figure: what it shows, the conditions, and what makes its numbers doubtful."""
    every = [(group.label, series, side.row) for group in groups for series, side in group.named]
    rows = [row for _, _, row in every]
    numbers = sorted({row.n for row in rows})
    n = f"n = {numbers[0]}" if len(numbers) == 1 else f"n = {numbers[0]} to {numbers[-1]}"
    names = []
    for group in groups:
        has_subsets = len({row.subset for row in group.rows}) > 1
        for series, side in group.named:
            places = [group.label] * (len(groups) > 1) + [side.row.subset] * has_subsets + [side.row.level]
            where = ", ".join(filter(None, places))
            names.append(f"{series} ({where})" if where else series)
    few = list(dict.fromkeys(label for label, _, row in every if row.has_few_prompts))
    return [
        what, f"{conditions_line(rows)}; {n}", *unranked_line(rows),
        *few_prompts_line(rows, few if len(few) < len(groups) else ()), *warning_lines(rows, names, for_readers=True),
    ]  # fmt: skip


# 2. The kinds that show metrics of rows.


def _methods(rows: PaperRows, metric: str) -> Drawing:
    groups = _with_metric(rows, rows.groups(metric), metric)
    is_single = len(groups) == 1
    marks = [
        _mark(series, series if is_single else group.label, side.row, metric)
        for group in groups for series, side in group.named
    ]  # fmt: skip
    heading = groups[0].label if is_single else ""
    reference = 1.0 if metric in OVER_AR else None
    panel = Panel(
        heading, "", axis_label(metric), metric, tuple(marks), "categories", reference, bounds=_bounds(metric)
    )
    of = f"on {groups[0].label}" if is_single else "by task"
    intervals = ", with 95 % intervals over prompts" * any(mark.y.low is not None for mark in marks)
    what = f"{_sentence(metric)} {of}{intervals}{_line(reference)}"
    return Drawing((panel,), "method" if is_single else "group", "prompts", caption_of(what, groups))


def _languages(rows: PaperRows, metric: str) -> Drawing:
    groups = [
        group for group in rows.groups(metric, per_subset=True)
        if len({row.language for row in group.rows if row.language is not None}) > 1
    ]  # fmt: skip
    if not groups:
        raise ConfigError(f"{rows.named_sources}: no task has subsets in several languages: take another kind or runs")
    groups = _with_metric(rows, groups, metric)
    reference = 1.0 if metric in OVER_AR else None
    panels = []
    for group in groups:
        marks = []
        for series, side in group.named:
            mark = _mark(series, side.row.subset, side.row, metric)
            marks.append(replace(mark, cells={**mark.cells, "language": side.row.language}))
        order = {name: place for place, name in enumerate(dict.fromkeys(side.row.subset for side in group.sides))}
        marks.sort(key=lambda mark: order[str(mark.x)])
        panels.append(Panel(
            group.label, "", axis_label(metric), metric, tuple(marks), "categories", reference, bounds=_bounds(metric)
        ))  # fmt: skip
    on = f" of {groups[0].label}" if len(groups) == 1 else ""
    what = f"{_sentence(metric)} by subset{on}, with 95 % intervals over prompts{_line(reference)}"
    return Drawing(tuple(panels), "subset", "prompts", caption_of(what, groups))


def _frontier(rows: PaperRows, metric: str) -> Drawing:
    panels, drawn, unscored = [], [], []
    for group in rows.groups(metric):
        quality = next((row.quality for row in group.rows if row.quality is not None), None)
        if quality is None:
            unscored.append(group.label)
            continue
        points = [
            (series, side, estimate_of(side.row, metric), estimate_of(side.row, quality))
            for series, side in group.named
        ]
        points = [each for each in points if each[2].value is not None and each[3].value is not None]
        if len(points) < 2:
            unscored.append(group.label)
            continue
        panels += frontier_panels(
            group.label,
            [Point(series, x, y, side.row.peak_bytes, side.row.n, side.row,
                   {"task": side.row.task_name, "target": side.row.target}) for series, side, x, y in points],
            axis_label(metric), axis_label(quality), quality, bounds=_bounds(quality),
            lower_scores_are_better=metric_of(quality).lower_is_better,
        )  # fmt: skip
        drawn.append(Group(group.label, tuple(each[1] for each in points), tuple(each[0] for each in points)))
    if not panels:
        raise ConfigError(f"{rows.named_sources}: no task has scores of two methods or more, which frontier needs")
    what = "Quality and memory against speed, with 95 % intervals over prompts; line: the Pareto front of each panel"
    caption = caption_of(what, drawn)
    left_out = [f"left out, without scores of two methods or more: {'; '.join(unscored)}"] if unscored else []
    return Drawing(tuple(panels), metric, "prompts", [caption[0], memory_line(panels), *caption[1:], *left_out])


DEFAULTS = {"concurrency": "speedup", "rate": "e2e_ratio"}  # below saturation there is no speed-up in tokens/s


def _loads(rows: PaperRows, metric: str) -> Drawing:
    groups = []
    for group in rows.groups(metric or "speedup", loads=True):
        for kind, context in dict.fromkeys((load_of(row).kind, load_of(row).context) for row in group.rows):
            own = [
                (name, side) for name, side in group.named
                if (load_of(side.row).kind, load_of(side.row).context) == (kind, context)
            ]  # fmt: skip
            label = group.label + ("" if context is None else f", {context} tokens")
            groups.append(Group(label, tuple(side for _, side in own), tuple(name for name, _ in own)))
    kinds = {} if metric else {kind: [g for g in groups if load_of(g.rows[0]).kind == kind] for kind in DEFAULTS}
    chosen = [(DEFAULTS[kind], same) for kind, same in kinds.items() if same] or [(metric, groups)]
    panels, drawn = [], []
    for shown, same in chosen:
        for group in _with_metric(rows, same, shown):
            marks = sorted(
                (_mark(series, load_of(side.row).level, side.row, shown) for series, side in group.named),
                key=lambda mark: (group.series.index(mark.series), mark.x),
            )
            per_second = load_of(group.rows[0]).kind == "rate"
            panels.append(Panel(
                group.label, "requests per second" if per_second else "requests in flight", axis_label(shown), shown,
                tuple(marks), "log2", 1.0 if shown in OVER_AR else None, is_joined=True,
            ))  # fmt: skip
            drawn.append(group)
    what = "Servers under load, with 95 % intervals over windows" + _line(
        1.0 if all(panel.reference for panel in panels) else None
    )
    evens = [
        line for whole in groups for server in rows_by_server(whole.rows)
        if not server[0].is_baseline and (line := break_even_line(server))
    ]  # fmt: skip
    caption = caption_of(what, drawn)
    return Drawing(tuple(panels), "level", "windows", [*caption[:2], *dict.fromkeys(evens), *caption[2:]])


def _sweep(rows: PaperRows, metric: str) -> Drawing:
    sweeps = rows.sweeps()
    left_out = frozenset[str]() if metric.startswith(OF_TIMES) else ABOUT_TIMES
    panels, drawn = [], []
    for sweep in sweeps:
        known = {name for each in sweep.rows for name in each.row.metrics if each.row.value(name) is not None}
        if metric not in known:
            raise ConfigError(f"--metric {metric}: {rows.named_sources}: no row has it: {nearest(metric, known)}")
        if not sweep.conditions:
            raise ConfigError(f"{rows.named_sources}: seeds alone are not an axis: `specbench table` pools them")
        # 1. The axis: the first condition with numbers, else the first one. A second one makes further series.
        of_numbers = [
            name for name in sweep.conditions
            if all(isinstance(dict(each.values)[name], int | float) for each in sweep.rows)
        ]  # fmt: skip
        axis = (*of_numbers, *sweep.conditions)[0]
        others = [name for name in sweep.conditions if name != axis]
        marks = []
        for each in sweep.rows:
            values = dict(each.values)
            name = rows.selection.names.get(each.row.method_name, each.row.shown_method)
            series = ", ".join([name, *(f"{other} {value_text(values[other])}" for other in others)])
            x = float(values[axis]) if axis in of_numbers else value_text(values[axis])
            warnings = tuple(warning for warning in each.row.warnings if warning.code not in left_out)
            mark = _mark(series, x, each.row.model_copy(update={"warnings": warnings}), metric)
            cells = {**mark.cells, **values, "seeds": " ".join(map(str, each.seeds))}
            marks.append(replace(mark, cells=cells))
        # 2. The length of text that a head was made for, where contexts exceed it.
        lengths = {
            each.row.context.trained for each in sweep.rows
            if axis == CONTEXT and each.row.context is not None and each.row.context.share_beyond
        }  # fmt: skip
        scale: Scale = "categories" if not of_numbers else "log2" if axis == CONTEXT else "linear"
        label = "tokens of a prompt at most" if axis == CONTEXT else axis
        panels.append(Panel(
            sweep.task, label if of_numbers else "", axis_label(metric), metric, tuple(marks), scale,
            1.0 if metric in OVER_AR else None, is_joined=bool(of_numbers), bounds=_bounds(metric),
            x_lines=tuple(sorted(filter(None, lengths))),
        ))  # fmt: skip
        group = Group(sweep.task, tuple(each.side for each in sweep.rows), tuple(mark.series for mark in marks))
        drawn.append(without_warnings(group, left_out))
    axes = dict.fromkeys(name for sweep in sweeps for name in sweep.conditions)
    what = f"{_sentence(metric)} by {' and '.join(axes)}, with 95 % intervals over prompts"
    what += _line(1.0 if metric in OVER_AR else None)
    if any(panel.x_lines for panel in panels):
        what += "; dotted: the length of text that a head was made for (max_position_embeddings of its config.json)"
    return Drawing(tuple(panels), "point", "prompts", caption_of(what, drawn))


def _maps(rows: PaperRows, metric: str) -> Drawing:
    panels, drawn, told = [], [], []
    groups = [
        group for whole in rows.groups(metric, loads=True)
        if load_maps((group := whole.without_ar()).rows)
    ]  # fmt: skip
    if not groups:
        raise ConfigError(
            f"{rows.named_sources}: no row is of a concurrency at a context, which needs servers measured with "
            "`load: {concurrency: […], context: […]}`"
        )
    for group in _with_metric(rows, groups, metric):
        for series in dict.fromkeys(group.series):
            own = {id(side.row): side for name, side in group.named if name == series}
            for found in load_maps([side.row for side in own.values()]):
                marks = []
                for (level, context), row in sorted(found.cells.items()):
                    mark = _mark(series, level, row, metric)
                    outcome = {True: "faster", False: "slower", None: "not separable"}[is_faster(row)]
                    marks.append(
                        replace(mark, y_place=context, cells={"context": context, **mark.cells, "ar": outcome})
                    )
                label = f"{group.label}, {series}" if len(groups) > 1 else series
                panels.append(Panel(
                    label, "requests in flight", "tokens of context", metric, tuple(marks), "map", reference=1.0
                ))  # fmt: skip
                sides = tuple(own[id(row)] for row in found.cells.values())
                drawn.append(Group(group.label, sides, (series,) * len(sides)))
                told += [f"{label}: {line}" for line in map_lines(found)]
    what = f"{_sentence(metric)} by concurrency (×) and context, with 95 % intervals over windows; hatched: below 1"
    caption = caption_of(what, drawn)
    return Drawing(tuple(panels), "level", "windows", [*caption[:2], *told, *caption[2:]])


def _sentence(metric: str) -> str:
    label = axis_label(metric)
    return f"{label[:1].upper()}{label[1:]}"


def _line(reference: float | None) -> str:
    return "" if reference is None else "; dashed: AR"


# 3. The kinds that need records.

POSITION_RATES = {
    "conditional": "P(accepted | verified)",
    "unconditional": "P(accepted up to here)",
}


def _positions_of(side: RowWithRecords) -> Sequence[Position]:
    """Returns the rates of a method by draft position, as `specbench profile` has them; none if nothing was drafted."""
    units: dict[tuple[str, str, int], int] = {}
    found = []
    for record in side.records:
        generation = record.methods[side.row.method_name]
        if not generation.is_drafted_alone:
            unit = units.setdefault((record.task, record.subset, record.example), len(units))
            found.append(steps_of_answer(unit, generation))
    steps = np.concatenate(found) if found else np.empty((0, 8), dtype=np.int32)
    depth = int(steps[:, DRAFTED].max(initial=0))
    return cell_of_steps(steps, depth).positions if depth else ()


def _positions(rows: PaperRows, metric: str) -> Drawing:
    groups = [
        without_warnings(group.without_ar(), ABOUT_TIMES)
        for group in rows.groups("mean_acceptance_length", records=True)
    ]  # fmt: skip
    panels, drawn, is_cut = [], [], False
    for group in groups:
        marks: list[Mark] = []
        for series, side in group.named:
            for each in _positions_of(side):
                rate = each.conditional if metric == "conditional" else each.unconditional
                if each.verified < MIN_PASSES:
                    is_cut = True
                    continue
                cells = {
                    "task": side.row.task_name, "target": side.row.target, "accepted": each.accepted,
                    "verified": each.verified,
                }  # fmt: skip
                marks.append(Mark(series, each.position, rate, side.row.n, side.row, cells=cells))
        if marks:
            panels.append(Panel(
                group.label, "draft position", POSITION_RATES[metric], metric, tuple(marks), "linear",
                is_joined=True, bounds=SHARE,
            ))  # fmt: skip
            drawn.append(group)
    if not panels:
        raise ConfigError(f"{rows.named_sources}: no method recorded steps with drafts, which positions needs")
    what = "Chance that a draft position is accepted if the target verifies it (accepted ÷ verified)"
    if metric == "unconditional":
        what = "Chance that a draft is accepted up to a position, if it reaches so far (product of accepted ÷ verified)"
    what += ", with 95 % intervals over prompts"
    what += f"; positions of fewer than {MIN_PASSES} verified tokens are left out" if is_cut else ""
    if any(mark.y.low is None for panel in panels for mark in panel.marks):
        what += f"; those of fewer than {MIN_PROMPTS} prompts have no interval"
    trees = [name for group in drawn for name, side in group.named if side.row.value("tree_nodes") is not None]
    levels = [f"of draft trees ({', '.join(dict.fromkeys(trees))}) by level"] if trees else []
    caption = caption_of(what, drawn)
    return Drawing(tuple(panels), "position", "prompts", [caption[0], *levels, *caption[1:], *rows.left_out()])


def pass_costs(side: RowWithRecords) -> Iterator[tuple[int, Estimate, int, int]]:
    """Yields v by the number of tokens of a pass: tokens, the mean target pass over so many tokens ÷ AR's mean pass
    over one, the number of prompts with such passes, and the number of passes. Numbers of tokens with fewer than
    MIN_PASSES passes are left out. Of draft trees, passes are counted in classes, which are under their upper end."""
    prompts = Resampler.of_times(side.own, 0, side.row.memory == SHUFFLED)
    of_widths: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
    for place, answer in enumerate(side.own):
        widths: Mapping[int, Sequence[float]] = answer.passes_by_length
        if not answer.is_tree:
            widths = dict(enumerate(answer.passes_by_width.T.tolist()))
        for width, (seconds, number) in widths.items():
            sums = of_widths.setdefault(width, (np.zeros(len(side.own)), np.zeros(len(side.own))))
            sums[0][place], sums[1][place] = seconds, number
    plain = np.array([
        answer.passes_by_width[:, 1] if answer.passes_by_width.shape[1] > 1 else (0.0, 0.0) for answer in side.baseline
    ]).reshape(-1, 2)  # fmt: skip
    for width, (spent, passes) in sorted(of_widths.items()):
        if passes.sum() >= MIN_PASSES and plain[:, 1].sum():
            found = prompts.ratio(spent, passes, plain[:, 0], plain[:, 1])
            with_passes = {side.own[place].key[:3] for place in np.flatnonzero(passes).tolist()}
            yield width, found, len(with_passes), int(passes.sum())


def _costs(rows: PaperRows, _: str) -> Drawing:
    panels, drafts, drawn = [], [], []
    groups = [
        without_warnings(group.without_ar(), ABOUT_SPEEDUPS)
        for group in (rows.groups("cost_ratio", records=True) if rows.chosen else ())
    ]  # fmt: skip
    reports = rows.reports
    for group in groups:
        marks = [
            Mark(series, width, cost, n, side.row, cells={"passes": passes})
            for series, side in group.named for width, cost, n, passes in pass_costs(side)
        ]  # fmt: skip
        if marks:
            panels.append(_cost_panel(group.label, marks))
            drawn.append(group)
        for series, side in group.named:
            if marks and side.row.value("cost_ratio") is not None:
                x = group.label if len(groups) + len(reports) > 1 else series
                drafts.append(Mark(series, x, side.row.metric("cost_ratio"), side.row.n, side.row))
    for path, report in reports:
        target, drafter = (model.model.name.rpartition("/")[2] for model in (report.target, report.drafter))
        label = f"{target} after {report.context} tokens"
        cells = {"n_of": "rounds", "report": path.name}
        marks = [
            Mark(target, width, Estimate(**dict(cost)), report.repeats, cells=cells)
            for width, cost in report.verification_cost.items()
        ]
        if (experts := report.target.experts) is not None:
            for union in experts.unions:
                for name, size in (("uniform", union.expected), ("routed", union.measured)):
                    if size is not None:
                        share = Estimate(value=size / experts.per_token)
                        marks.append(Mark(f"experts, {name}", union.query_length, share, report.repeats, cells=cells))
        panels.append(_cost_panel(label, marks))
        x = label if len(groups) + len(reports) > 1 else drafter
        drafts.append(Mark(drafter, x, Estimate(**dict(report.cost_ratio)), report.repeats, cells=cells))
    if not panels:
        raise ConfigError(
            f"{rows.named_sources}: no method recorded its passes, which costs needs: give runs of this process "
            "(not of servers), or reports of `specbench roofline --output`"
        )
    if drafts:
        panels.append(Panel("draft cost", "", "draft pass ÷ AR pass (c)", "cost_ratio", tuple(drafts), x_name="group"))
    what = "Mean target pass by its number of tokens, in AR passes over one token (v), with 95 % intervals"
    trees = dict.fromkeys(
        name for group in drawn for name, side in group.named if any(answer.is_tree for answer in side.own)
    )
    if trees:
        what += f"; passes of draft trees ({', '.join(trees)}) are counted in classes, which stand at their upper end"
    what += "; draft cost c: median draft pass ÷ median AR pass" if drafts else ""
    caption = caption_of(what, drawn) if drawn else [what]
    for path, report in reports:
        caption.append(
            f"{path.name}: {report.environment.engine} on {report.environment.device}, "
            f"{counted(report.repeats, 'round')}"
        )
    return Drawing(tuple(panels), "tokens", "prompts", [*caption, *rows.left_out()])


def _cost_panel(label: str, marks: Sequence[Mark]) -> Panel:
    most = max(float(mark.x) for mark in marks)
    scale: Any = "log2" if most > 16 else "linear"
    return Panel(
        label, "tokens in a target pass", "target pass ÷ AR pass (v)", COST, tuple(marks), scale, 1.0, is_joined=True
    )


@dataclass(frozen=True)
class Kind:
    """A kind of figure. `metrics`: the choices of --metric; None: every metric of a row."""

    draw: Callable[[PaperRows, str], Drawing]
    default: str
    metrics: Sequence[str] | None = None


KINDS = {
    "methods": Kind(_methods, "speedup"),
    "positions": Kind(_positions, "conditional", tuple(POSITION_RATES)),
    "costs": Kind(_costs, "", ()),
    "frontier": Kind(_frontier, "speedup", ("speedup", "speedup_e2e", "tokens_per_second")),
    "load": Kind(_loads, ""),
    "map": Kind(_maps, "speedup", ("speedup",)),
    "languages": Kind(_languages, "speedup"),
    "sweep": Kind(_sweep, "speedup"),
}
