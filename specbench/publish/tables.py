"""The tables of suites: boards, the requirements of their pairs, measured rows, and published figures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from rich.text import Text

from specbench.core.table import RULE, Column, Table, number_columns, text_columns
from specbench.models.heads import HEADS
from specbench.publish.measured import (
    ComparedRow,
    FigureComparison,
    MeasuredRun,
    PairRows,
    compared_rows,
    outdated_line,
)
from specbench.publish.suite_runs import board_names, read_suite
from specbench.publish.suite_spec import Figure, PairSpec, PublishedTable
from specbench.report.captions import dtype_and_device, few_prompts_line, warning_lines, why_unranked
from specbench.report.columns import METHOD, VERDICT, N, cells_of, declared_columns
from specbench.results.metric_format import NULL, number
from specbench.results.row import ALL, Row
from specbench.specs.catalogue import load_method

GATED = ("meta-llama/", "google/gemma")  # models whose licence a user must accept on their page
SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")  # 7b, 8x22b, 68m
BYTES_PER_PARAMETER = 2
CAPTION = (
    "weights: 2 bytes for each parameter, from the sizes in the models' names (≥: one name has no size); caches and "
    "activations need more",
    "*: gated; accept the licence on the model's page, then log in with `hf auth login`",
)
MAX_NAMES = 5  # runs that a line lists
MAX_FIGURES = 3  # figures in a row of a printed table; each takes three columns


def boards_table() -> Table:
    rows = []
    for suite in map(read_suite, board_names()):
        without = [name for name, pair in suite.pairs.items() if pair.is_embedded]
        others = len(suite.pairs) - len(without)
        counts = [str(others or NULL), str(len(suite.tasks)), str(len(suite.published) or NULL)]
        rows.append([suite.name, suite.title or NULL, suite.paper or NULL, ", ".join(without) or NULL, *counts])
    columns = [*text_columns("name", "title", "paper", "pair without\ndownload")]
    columns += number_columns("pairs with\ndownload", "tasks", "published\ntables")
    caption = ["`specbench board show NAME`: the requirements of each pair, and its measured runs"]
    return Table("boards", columns, rows, caption)


def pairs_table(name: str, found: Sequence[PairRows]) -> Table:
    """Returns a table with a line for each pair of a board. `name`: the board as the user gave it."""
    memory = gpu_gigabytes()
    lines = []
    for each in found:
        pair = each.suite.pairs[each.pair_name]
        share = f"{len(each.measured)} of {len(each.runs)}"
        lines.append([each.pair_name, "\n".join(needed_parts(each)), *weights_and_fit(pair, memory), share])
    columns = [*text_columns("pair", "needs"), *number_columns("weights\nGB"), *text_columns("fits on\nthis GPU")]
    columns += number_columns("measured\nruns")
    here = "this machine has no GPU" if memory is None else f"this machine's GPU has {memory:.0f} GB"
    caption = [*CAPTION, here, f"measure a pair: specbench board run {name} --pair PAIR"]
    return Table(f"{found[0].suite.name} · requirements of its pairs", columns, lines, caption)


def gpu_gigabytes() -> float | None:
    """Returns the memory of the first CUDA GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 1e9 if torch.cuda.is_available() else None


def needed_parts(rows: PairRows) -> list[str]:
    """Returns target and drafter, then the draft heads and other parts that the methods need. Gated models have an
    asterisk."""
    pair = rows.suite.pairs[rows.pair_name]
    if pair.is_embedded:
        return ["embedded, nothing is downloaded"]
    if pair.servers is not None:
        return list(filter(None, (pair.target, f"its servers in {pair.servers}")))
    names = [each for each in (pair.target, pair.drafter) if each is not None]
    methods = dict.fromkeys(chain.from_iterable(run.methods for run, _ in rows.runs))
    parts = dict[str, None]()
    for method in map(load_method, methods):
        text = None if method.decoder is not None else method.drafter.needs  # the requirement that a drafter declares
        if text is not None:
            kind = str(method.drafter.options.get("head", method.drafter.type))
            own = "a head of this target (none is published)" if kind in HEADS else text.partition(" (")[0]
            parts[HEADS.get(kind, {}).get(str(pair.target), f"{method.name}: {own}")] = None
    return [*(f"{each} *" if each.startswith(GATED) else each for each in names), *parts]


def weights_and_fit(pair: PairSpec, gigabytes: float | None) -> tuple[str, str]:
    """Returns the gigabytes of the weights of both models, as far as their names have sizes, and whether they fit on a
    GPU of so many gigabytes; None means no GPU."""
    found = [SIZE.search(name.lower()) for name in (pair.target, pair.drafter) if name]
    billions = [int(each[1] or 1) * float(each[2]) / (1 if each[3] == "b" else 1000) for each in found if each]
    needed = sum(billions) * BYTES_PER_PARAMETER
    has_all = None not in found
    if pair.is_embedded:
        return NULL, NULL if gigabytes is None else "yes"
    fits = "unknown" if pair.servers is not None or not (billions and has_all) else "yes"
    if gigabytes is None:
        fits = NULL
    elif pair.servers is None and needed >= gigabytes:
        fits = "no"
    return f"{'' if has_all else '≥ '}{needed:.0f}" if billions else NULL, fits


def measured_table(title: str, measured: Sequence[MeasuredRun]) -> Table:
    """Returns a table with a line per run and method, over all subsets of the task, with the suite's columns. The
    caption says what all runs share. `measured`: at least one run, each with rows."""
    shown = [METHOD, VERDICT, *chain.from_iterable(map(declared_columns, measured[0][0].suite.columns))]
    runs = [run for run, _ in measured]
    axes = {
        "pair": [run.pair_name for run in runs], "task": [run.task.label for run in runs],
        "T": [NULL if run.temperature is None else f"{run.temperature:g}" for run in runs],
        "seed": [str(run.seed) for run in runs],
    }  # fmt: skip
    varying = [name for name, values in axes.items() if len(set(values)) > 1]
    labels = [" · ".join(axes[name][place] for name in varying or ["task"]) for place in range(len(measured))]
    lines: list[Sequence[str]] = []
    for place, (_, rows) in enumerate(measured):
        first = [axes[name][place] for name in varying]
        for line, cells in enumerate(cells_of(rows_over_subsets(rows), [N, *shown])):
            lines.append([*first, *cells] if line == 0 else [*[""] * len(varying), "", *cells[1:]])
        lines.append(RULE)
    same = [f"{name} {values[0]}" for name, values in axes.items() if name not in varying and values[0] != NULL]
    # What all rows share, then runs with few prompts, warnings of speed-ups, and rows that are not ranked.
    every = [row for _, rows in measured for row in rows]
    values = {
        "target": {row.target for row in every}, "on": {dtype_and_device(row) for row in every},
        "data": {str(row.data_source) for row in every}, "measured": {row.created[:10] for row in every},
    }  # fmt: skip
    shared = [f"{name}: {', '.join(sorted(texts))}" for name, texts in values.items()]
    named = [(row, label) for label, (_, rows) in zip(labels, measured, strict=True) for row in rows_over_subsets(rows)]
    whole = [row for row, _ in named]
    few = list(dict.fromkeys(label for row, label in named if row.has_few_prompts))
    where = ", ".join(few) if len(few) <= MAX_NAMES else f"{len(few)} of {len(measured)} runs"
    marks = warning_lines(whole, [f"{label} {row.method_name}" for row, label in named])
    unranked = {f"{row.method_name} is not ranked: {why}" for row in whole if (why := why_unranked(row))}
    caption = [", ".join(same), *shared, *few_prompts_line(whole, [where]), *marks, *sorted(unranked)]
    return Table(title, [*text_columns(*varying), N, *shown], lines, caption, num_keys=len(varying) + 2)


def rows_over_subsets(rows: Sequence[Row]) -> list[Row]:
    """Returns for every task, method and level of load the row over all subsets, or of the only subset."""
    ordered = sorted(rows, key=lambda row: row.subset == ALL)
    return list({(row.task, row.method, row.level): row for row in ordered}.values())


def pair_table(rows: PairRows) -> Table:
    """Returns the table of the rows of a pair, with lines on runs not measured, or measured with other options."""
    table = measured_table(f"{rows.suite.name} · {rows.pair_name} · ours", rows.measured)
    missing = sorted({run.task.label for run, found in rows.runs if not found})
    lines = [f"not measured: {', '.join(missing)}"] if missing else []
    lines += [line for run, found in rows.runs if (line := outdated_line(run, found)) is not None]
    return replace(table, caption=[*table.caption, *lines])


def nothing_measured(rows: PairRows, name: str) -> Text:
    """Returns the line that replaces a table without rows. `name`: the suite as the user gave it."""
    tasks = ", ".join(run.task.label for run, _ in rows.runs)
    command = f"specbench board run {name} --pair {rows.pair_name}"
    return Text(f"{rows.suite.name} · {rows.pair_name}: not measured yet ({tasks}): {command}\n")


def published_tables(rows: PairRows, measured_only: bool = False) -> Iterator[Table | Text]:
    """Yields every published table with our numbers, in parts of at most MAX_FIGURES figures a row, followed by its
    notes. Differences that a table shares with the one before are not repeated. `measured_only`: tables of which no
    figure is measured are only named in a line."""
    printed: tuple[str, ...] = ()
    unmeasured = []
    for published in rows.suite.published:
        compared = compared_rows(rows, published)
        if measured_only and all(found is None or found.ours is None for _, _, line in compared for found in line):
            unmeasured.append(published.label)
            continue
        for _, same_heading in groupby(range(len(published.columns)), key=lambda n: published.columns[n].heading):
            places = list(same_heading)
            for start in range(0, len(places), MAX_FIGURES):
                yield _published(published, compared, places[start : start + MAX_FIGURES], rows)
        ratio = "" if published.elsewhere else "; ratio: ours ÷ published; –: not measured"
        differs = [f"- {each}" for each in published.differs]
        same = ["differences: as above"] if published.differs == printed else ["differences:", *differs]
        ours = [f"ours: not measured here, but by {published.elsewhere}"] if published.elsewhere else []
        yield Text("\n".join([f"published on: {published.hardware}{ratio}", *same, *ours, ""]))
        printed = published.differs
    if unmeasured:
        labels = "; ".join(unmeasured)
        yield Text(f"published, but not measured here: {labels}; --pair {rows.pair_name} prints the figures\n")


def _published(
    published: PublishedTable, compared: Sequence[ComparedRow], places: Sequence[int], rows: PairRows
) -> Table:
    """Returns the part of a published table with the columns at these places."""
    columns = [published.columns[place] for place in places]
    shown: list[Column] = [*text_columns("")]
    for column in columns:
        shown += number_columns(f"{column.label}\npaper", *([] if published.elsewhere else ["ours", "ratio"]))
    # For each column the largest number of decimals that the paper prints.
    digits = [max((_decimals(row.figures[place]) for _, row in published.rows()), default=0) for place in places]
    lines: list[Sequence[str]] = []
    for _, same_group in groupby(compared, key=lambda each: id(each[0])):
        of_group = list(same_group)
        group = of_group[0][0]
        if group.heading:
            lines.append([group.heading + (f" ({group.hardware})" if group.hardware else "")])
        for _, row, line in of_group:
            cells = [_figure_cells(line[place], each) for place, each in zip(places, digits, strict=True)]
            if any(line[place] is not None for place in places):
                lines.append([row.label, *chain.from_iterable(c[:1] if published.elsewhere else c for c in cells)])
        lines.append(RULE)
    ours = "" if published.elsewhere else f" and {rows.pair_name} (ours)"
    heading = f"\n{columns[0].heading}" if columns[0].heading else ""
    title = f"{rows.suite.name} · {published.label} (published){ours}\n{published.title}{heading}"
    return Table(title, shown, lines)


def _figure_cells(found: FigureComparison | None, digits: int) -> tuple[str, str, str]:
    """Returns the cells published, ours and ratio."""
    if found is None:
        return NULL, "", ""
    spread = "" if found.published.spread is None else f"±{found.published.spread:.{digits}f}"
    ratio = number(found.ratio, 2) if found.ours is not None else ""
    return f"{found.published.value:.{digits}f}{spread}", number(found.ours, digits), ratio


def _decimals(figure: Figure | None) -> int:
    numbers = () if figure is None else (figure.value, figure.spread or figure.value)
    return max((len(f"{each!r}".removesuffix(".0").partition(".")[2]) for each in numbers), default=0)
