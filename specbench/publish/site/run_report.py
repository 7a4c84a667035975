"""A finished run as one page, which needs no other file: its numbers, why to doubt them, its figures and answers."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup

from specbench.built_in import __version__
from specbench.core.environment import is_installed
from specbench.core.errors import ConfigError
from specbench.core.files import write_output
from specbench.core.table import Table, number_columns, text_columns
from specbench.publish.paper.drawing import MOST_SERIES, Drawing, Panel
from specbench.publish.paper.figures import KINDS
from specbench.publish.paper.render import render
from specbench.publish.paper.rows import PaperRows, Selection, read_rows
from specbench.publish.site.answers import asset, environment
from specbench.publish.site.row_page import conditions_of
from specbench.report.breakdown import breakdown_table
from specbench.report.captions import (
    few_prompts_line,
    marked,
    marked_speedup,
    runs_on_lines,
    score_notes,
    untested_lines,
    verdict_of,
    warning_lines,
)
from specbench.report.columns import (
    COST,
    EXPECTED_SPEEDUP,
    LENGTH,
    METHOD,
    NUM_DRAFT_TOKENS,
    SCORE_NAME,
    SPEED,
    SUBSET,
    VERDICT,
    N,
    RowColumn,
    acceptance_column,
    cells_of,
    score_pair_column,
)
from specbench.report.ranking import unranked_line
from specbench.report.shown import ShownRun, anchor_of
from specbench.report.tables import RunRows, load_tables, served_table, tree_table
from specbench.results.answers import Answer
from specbench.results.metric_format import NULL, metric_of, names_by_text, number, score, score_pair, with_interval
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun

CellText = Callable[[Row], str]
WIDTH, HEIGHT = 6.75, 2.0  # inches of a figure, and of one with a single row of categories
NUM_WORST = 3  # prompts of each method


@dataclass(frozen=True)
class Figure:
    """A drawing. `origin`: whether its values are measured or computed, and from what."""

    svg: Markup
    origin: str
    caption: Sequence[str]


@dataclass(frozen=True)
class WorstPrompt:
    """A prompt at which a method gains least. `anchor`: of its record in the page."""

    method: str
    name: str
    anchor: str
    speedup: str
    length: str
    tokens: str
    answer: str


@dataclass(frozen=True)
class Section:
    """A part of the page below the result. `lines`: sentences at its start."""

    id: str
    heading: str
    lines: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    worst: Sequence[WorstPrompt] = ()
    caption: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.lines or self.figures or self.tables or self.worst)


def write_report(path: Path, run: RecordedRun, shown: ShownRun | None) -> None:
    """Writes the page of a finished run. `shown`: the records whose answers it shows. Raises ConfigError if it cannot
    be written."""
    rows = run.rows
    tasks, methods = (dict.fromkeys(names) for names in ([r.task_name for r in rows], [r.method_name for r in rows]))
    groups = RunRows(rows).by_task()
    figures = Figures(run)
    sections = [each for each in _sections(run, groups, figures) if not each.is_empty]
    parts = [("result", "Result"), ("warnings", "Warnings"), ("conditions", "Conditions")]
    parts += [(section.id, section.heading) for section in sections]
    parts += [("answers", "Answers")] if shown is not None else []
    text = environment().get_template("run_report.html").render(
        name=f"{', '.join(tasks)}: {', '.join(name for name in methods if name != 'ar') or 'ar'}", parts=parts,
        headline=[headline_table(group) for group in groups] or load_tables(rows), warnings=warnings_of(groups),
        conditions=conditions_of_run(rows), commands=list(dict.fromkeys(row.command for row in rows)),
        sections=sections, shown=shown, style=asset("site.css"), version=__version__,
        anchors=set() if shown is None else {anchor_of(record) for record in shown.records},
    )  # fmt: skip
    write_output("--html", path, text.encode("utf-8", "replace"))


# 1. The result, and why to doubt it.


def headline_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task, over all its subsets: a line per method, its speed-up first, since a phone shows two
    or three columns. `rows`: the baseline first."""
    baseline = rows[0]
    speedup = RowColumn("speed-up\n95 % interval", True, cell=lambda row: marked_speedup(row, baseline))
    columns = [
        METHOD, speedup, N, NUM_DRAFT_TOKENS, acceptance_column(rows), LENGTH, COST, SPEED, EXPECTED_SPEEDUP,
        score_pair_column(rows), VERDICT,
    ]  # fmt: skip
    caption = [
        "α: acceptance rate; τ: tokens per target pass; c: draft pass ÷ target pass; expected: computed from them"
    ]
    return Table(_place(baseline), columns, cells_of(rows, columns), caption)


def _place(row: Row) -> str:
    return row.task_name if row.subset == ALL else f"{row.task_name} · {row.subset}"


def warnings_of(groups: Sequence[Sequence[Row]]) -> list[str]:
    """Returns what each mark in the result says, in words, and what else limits it."""
    lines = []
    for rows in groups:
        task = f"{rows[0].task_name}, " if len(groups) > 1 else ""
        names = [f"{task}{row.shown_method}" for row in rows]
        lines += [*warning_lines(rows, names), *runs_on_lines(rows, names, rows[0]), *unranked_line(rows)]
        lines += [*few_prompts_line(rows, [rows[0].task_name] if task else ()), *untested_lines(rows, names)]
    return list(dict.fromkeys(lines))


def conditions_of_run(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Returns each condition with its values; several of a condition that differs among rows, with their methods."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        data = {"data": f"{row.data_source}: {row.data_location}", "measured": row.created[:10]}
        versions = {"versions": ", ".join(f"{name} {version}" for name, version in row.versions.items() if version)}
        for name, text in [*conditions_of(row), *{**data, **versions, "commit": row.commit or ""}.items()]:
            of = f"{row.task_name} · {row.subset}" if name in ("examples", "data") else row.shown_method
            if text:
                found.setdefault(name, {}).setdefault(text, []).append(of)
    several = {
        name: [f"{text} ({', '.join(dict.fromkeys(of))})" for text, of in texts.items()]
        for name, texts in found.items()
    }
    return [(name, [*texts] if len(texts) == 1 else several[name]) for name, texts in found.items()]


# 2. The sections.


def _sections(run: RecordedRun, groups: Sequence[Sequence[Row]], figures: "Figures") -> Iterator[Section]:
    rows = run.rows
    speed = [
        *figures.of("methods", "Measured"), *figures.of("load", "Measured"),
        *figures.of("methods", "Computed from α, γ and c, for v = 1", "speedup_expected"),
        *figures.of("frontier", "Measured"),
    ]  # fmt: skip
    why = [f"Not drawn: {reason}" for reason in figures.missing]
    yield Section("speed", "Speed", why, speed, load_tables(rows) if groups else ())
    positions = figures.tables("positions", "draft position", 3)
    trees = [tree_table(group) for group in groups if any(row.value("tree_nodes") is not None for row in group)]
    yield Section(
        "positions", "Acceptance by position", (), figures.of("positions", "Measured: counted in the records"),
        [*positions, *trees],
    )  # fmt: skip
    yield Section(
        "passes", "Time of passes", (), figures.of("costs", "Measured: passes timed in the records"),
        [*figures.tables("costs", "tokens in a pass", 2),
         *(breakdown_table(group) if group[0].served is None else served_table(group) for group in groups)],
    )  # fmt: skip
    single = [row for row in rows if not row.level]
    subsets = [table for group in groups for table in subset_tables([r for r in single if r.task == group[0].task])]
    drawn = figures.of("languages", "Measured")
    has_languages = len({row.language for row in single if row.language}) > 1
    yield Section("subsets", "By language" if has_languages else "By subset", (), drawn if subsets else (), subsets)
    scored = [scored_rows(group, single) for group in groups]
    yield Section("quality", "Quality", (), (), [quality_table(found) for found in scored if found])
    yield Section("verdicts", "Verdicts", (), (), [verdict_table(group) for group in groups])
    yield Section(
        "worst", "Worst prompts", (), (), (), list(worst_prompts(run, groups)),
        f"The {NUM_WORST} prompts with the lowest speed-up of each method; a prompt is timed once per repeat, so its "
        "speed-up is noisy",
    )  # fmt: skip


def subset_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yields a table of each of speed-up, τ and the main score of one task: a line per subset, a column per method.
    None for a task with a single subset."""
    subsets = list(dict.fromkeys(row.subset for row in rows))
    if len(subsets) < 2:
        return
    methods = list(dict.fromkeys(row.shown_method for row in rows))
    cells = {(row.subset, row.shown_method): row for row in rows}
    task = rows[0].task_name

    def table(title: str, text: CellText, names: Sequence[str], caption: Sequence[str]) -> Table:
        lines = [
            [subset, *(NULL if (row := cells.get((subset, name))) is None else text(row) for name in names)]
            for subset in subsets
        ]
        return Table(f"{task} · {title}", (*text_columns("subset"), *number_columns(*names)), lines, caption)

    drafting = [name for name in methods if name != "ar"]
    if drafting:
        of_subsets = [row for row in rows if row.subset != ALL and not row.is_baseline]
        warned = warning_lines(of_subsets, [f"{row.shown_method} in {row.subset}" for row in of_subsets])
        yield table(
            "speed-up, 95 % interval", lambda row: marked(with_interval(row.metric("speedup")), row), drafting, warned
        )
        yield table(
            "tokens per target pass τ", lambda row: number(row.metric("mean_acceptance_length"), 2), drafting, ()
        )
    if any(row.quality for row in rows):
        labels = dict.fromkeys(metric_of(row.quality).label for row in rows if row.quality)
        yield table(", ".join(labels), lambda row: score(row.metric(row.quality), row.quality), methods, ())


def scored_rows(group: Sequence[Row], rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows of a task over all subsets; those of each subset if the subsets have different scores, so that
    no score is one over all; empty if nothing is scored. `rows`: all rows of the run."""
    if any(row.quality for row in group):
        return group
    return [row for row in rows if row.task == group[0].task and row.quality]


def quality_table(rows: Sequence[Row]) -> Table:
    """Returns the main score of each method beside AR's, with the paired difference and its interval."""

    def difference(row: Row) -> str:
        unit = metric_of(row.quality)
        return with_interval(row.metric(f"{row.quality}_difference"), unit.digits, unit.factor, "+")

    def shares(row: Row, name: str) -> str:
        return number(row.metric(name), 0, 100)

    columns = [
        METHOD, *([SUBSET] if len({row.subset for row in rows}) > 1 else []), SCORE_NAME,
        RowColumn("ar → method", True, cell=lambda row: score_pair(row.metrics, row.quality)),
        RowColumn("difference\n95 %, paired", True, cell=lambda row: "" if row.is_baseline else difference(row)),
        RowColumn("answers in\na loop %", True, cell=lambda row: shares(row, "share_looping")),
        RowColumn("cut at the\nlimit %", True, cell=lambda row: shares(row, "share_cut_by_length")),
    ]  # fmt: skip
    methods = list(dict.fromkeys(row.shown_method for row in rows))
    notes = names_by_text(
        (name, line) for name in methods for line in score_notes([row for row in rows if row.shown_method == name])
    )
    caption = [line if len(of) == len(methods) else f"{', '.join(of)}: {line}" for line, of in notes.items()]
    return Table(rows[0].task_name, columns, cells_of(rows, columns), caption)


def verdict_table(rows: Sequence[Row]) -> Table:
    columns = [METHOD, VERDICT, RowColumn("what it rests on", cell=_evidence_of)]
    kept = [row for row in rows if not row.is_baseline]
    return Table(_place(rows[0]), columns, cells_of(kept, columns))


def _evidence_of(row: Row) -> str:
    text = verdict_of(row).removeprefix(row.verdict).strip(" ,")
    return (text[1:-1] if text.startswith("(") and text.endswith(")") else text) or NULL


def worst_prompts(run: RecordedRun, groups: Sequence[Sequence[Row]]) -> Iterator[WorstPrompt]:
    """Yields the prompts with the lowest speed-up of each method. All repeats and turns of a prompt count together."""
    for row in (row for group in groups for row in group if not row.is_baseline and row.value("speedup") is not None):
        side = run.with_records(row)
        pairs: dict[tuple[str, str, int], list[tuple[Answer, Answer]]] = {}
        for own, plain in zip(side.own, side.baseline, strict=True):
            pairs.setdefault(own.key[:3], []).append((own, plain))
        found = [(ratio, same) for same in pairs.values() if (ratio := _speedup(same)) is not None]
        for ratio, same in sorted(found, key=lambda each: each[0])[:NUM_WORST]:
            record = run.records[same[0][0].key]
            emitted, passes = (sum(own.emitted_by_passes[place] for own, _ in same) for place in (0, 1))
            num_same = sum(own.tokens_digest == plain.tokens_digest for own, plain in same)
            tokens = " → ".join(str(sum(pair[place].num_new_tokens for pair in same)) for place in (1, 0))
            yield WorstPrompt(
                f"{row.task_name} {row.shown_method}" if len(groups) > 1 else row.shown_method,
                f"{record.subset} {record.id}", anchor_of(record), f"{ratio:.2f}",
                number(emitted / passes if passes else None, 2), tokens,
                "that of ar" if num_same == len(same) else "differs from ar's",
            )  # fmt: skip


def _speedup(pairs: Sequence[tuple[Answer, Answer]]) -> float | None:
    """Returns the ratio of tokens per second of the method and of AR; None without timed tokens."""
    sums = [
        (sum(pair[place].num_timed_tokens for pair in pairs), sum(pair[place].decode_seconds for pair in pairs))
        for place in (0, 1)
    ]  # fmt: skip
    (tokens, seconds), (plain_tokens, plain_seconds) = sums
    if min(tokens, plain_tokens) < 1 or not seconds or not plain_seconds:
        return None
    return tokens / seconds / (plain_tokens / plain_seconds)


# 3. Figures, drawn by the code of `specbench plot`.


@dataclass
class Figures:
    """The drawings of a run. `missing`: why some kinds are not drawn although the run has what they show."""

    run: RecordedRun
    missing: list[str] = field(default_factory=list)
    _rows: PaperRows | None = None
    _drawings: dict[tuple[str, str | None], Drawing | None] = field(default_factory=dict)

    def drawing(self, kind: str, metric: str | None = None) -> Drawing | None:
        """Returns a drawing; None if the run lacks what it shows."""
        if (kind, metric) not in self._drawings:
            if self._rows is None:
                self._rows = read_rows([self.run.path], Selection())
                self._rows.runs.opened[self.run.path.resolve()] = self.run  # its records are read once
            try:
                self._drawings[kind, metric] = KINDS[kind].draw(self._rows, metric or KINDS[kind].default)
            except ConfigError:
                self._drawings[kind, metric] = None
        return self._drawings[kind, metric]

    def of(self, kind: str, origin: str, metric: str | None = None) -> list[Figure]:
        """Returns the figure of a kind, none if the run lacks what it shows."""
        drawing = self.drawing(kind, metric)
        if drawing is None or not is_installed("matplotlib"):
            why = [] if drawing is None else ["figures need matplotlib: pip install 'specbench-lm[plots]'"]
        elif len(drawing.series) > MOST_SERIES:
            why = [f"{len(drawing.series)} methods, more than the {MOST_SERIES} that a figure can tell apart"]
        else:
            prefix = "-".join(filter(None, (kind, metric)))
            is_one = len(drawing.panels) == 1 and drawing.panels[0].scale == "categories"  # a label may be higher
            content = render(drawing, "svg", WIDTH, HEIGHT if is_one else None)
            svg = inline_svg(content, prefix, drawing.caption[0])
            return [Figure(svg, origin, drawing.caption)]
        self.missing += [reason for reason in why if reason not in self.missing]
        return []

    def tables(self, kind: str, x_heading: str, digits: int) -> list[Table]:
        """Returns the values of a figure as tables, one for each panel of numbers over numbers."""
        drawing = self.drawing(kind)
        panels = () if drawing is None else drawing.panels
        return [panel_table(panel, x_heading, digits) for panel in panels if panel.scale != "categories"]


def panel_table(panel: Panel, x_heading: str, digits: int) -> Table:
    """Returns the values of a panel: a line per series, a column per x."""
    xs = sorted({float(mark.x) for mark in panel.marks})
    values = {(mark.series, float(mark.x)): mark.y for mark in panel.marks}
    lines = [
        [name, *(with_interval(values.get((name, x)), digits) for x in xs)]
        for name in dict.fromkeys(mark.series for mark in panel.marks)
    ]
    title = " · ".join(filter(None, (panel.heading, panel.y_label)))
    return Table(title, (*text_columns("method"), *number_columns(*(f"{x_heading} {x:g}" for x in xs))), lines)


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(content: bytes, prefix: str, label: str) -> Markup:
    """Returns a graphic of matplotlib as an element of a page. `prefix`: of its ids, which would otherwise be those of
    other graphics too. `label`: what it shows, for those who do not see it."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(content)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):  # a style would be one of the whole page
                parent.remove(child)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name == f"{{{XLINK}}}href":
                element.set(name, f"#{prefix}-{value.removeprefix('#')}")
            else:
                element.set(name, REFERENCE.sub(rf"url(#{prefix}-\1)", value))
    for name in ("width", "height"):
        del root.attrib[name]
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    return Markup(ElementTree.tostring(root, encoding="unicode"))
