"""Drawings → graphics for a paper: exact widths, type of 6 points and more, no title, colours that survive grey."""

import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from specbench.core.environment import require
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import check_output, write_output
from specbench.core.table import escaped_latex
from specbench.publish.paper.drawing import Drawing, Panel
from specbench.report.captions import MARK
from specbench.report.display import csv_text, new_figure, reach
from specbench.results.metric_format import interval, number
from specbench.results.row import Row

WIDTHS = {"column": 3.25, "text": 5.5, "page": 6.75}  # inches: an ICML column, NeurIPS' text, ICML's two columns
NARROWEST, WIDEST = 2.0, 20.0
FORMATS = ("pdf", "svg", "pgf", "png")
# Okabe and Ito, Color Universal Design, 2008; without yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # the first seven are filled, the next seven hollow
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
OF_AR = {"color": "black", "marker": "*", "markersize": 5.0, "markeredgewidth": 0.5, "linestyle": "-"}
LABEL, SMALL, LEAST = 7.0, 6.5, 6.0  # points
GREY = "#bbbbbb"
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": LABEL, "axes.labelsize": LABEL,
    "axes.titlesize": LABEL, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "legend.fontsize": SMALL,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
    "ytick.major.size": 2.5, "axes.labelpad": 2.5, "xtick.major.pad": 2.0, "ytick.major.pad": 2.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlepad": 4.0, "text.parse_math": False,
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "specbench", "savefig.dpi": 300,
    "figure.constrained_layout.w_pad": 0.02, "figure.constrained_layout.h_pad": 0.03, "pgf.rcfonts": False,
}  # fmt: skip
METADATA = {
    "pdf": {"CreationDate": None, "Creator": "specbench", "Producer": None}, "svg": {"Date": None, "Creator": None},
    "png": {"Software": None}, "pgf": None,
}  # fmt: skip
GAP = 1.2  # slots between categories
SLOT = 0.07  # inches beside each other that a mark of a category needs
BESIDE_AXES = 0.6  # inches of a figure's width that are left and right of its axes
PANEL = 1.5  # inches that a panel of a grid needs
HEIGHTS = {"categories": 1.0, "share": 0.75, "map": 0.34}  # of axes: inches, of their width, inches of a line
WIDE = ("categories", "map")  # the panels that are as wide as the figure
CHARACTER = 4.0  # points that a character takes on average
MOST_CHARACTERS = 6  # of a line of a category's name, at least


def width_of(text: str) -> float:
    """Returns the inches of --width: those of a name, or the number. Raises ConfigError for other texts."""
    if text in WIDTHS:
        return WIDTHS[text]
    try:
        width = float(text)
    except ValueError:
        raise ConfigError(f"--width {text:.40}: {nearest(text, WIDTHS)}, or give inches, such as 3.03") from None
    if not NARROWEST <= width <= WIDEST:
        raise ConfigError(f"--width {text:.40}: give {NARROWEST:g} to {WIDEST:g} inches")
    return width


def format_of(path: Path, given: str | None, name: str = "--output") -> str:
    """Returns the format of --format, or else of the suffix. `name`: the option that gave the path. Raises ConfigError
    for an unknown one, if they differ, and if this machine cannot write it."""
    suffix = path.suffix.removeprefix(".").lower()
    chosen = given or suffix
    if chosen not in FORMATS:
        option = f"--format {given}" if given else f"{name} {path}"
        ends = f"give --format, or a name that ends in one of .{', .'.join(FORMATS)}"
        raise ConfigError(f"{option}: {nearest(chosen, FORMATS, ends)}")
    if suffix in FORMATS and suffix != chosen:
        raise ConfigError(f"--format {chosen}: but --output {path} ends in .{suffix}: give one of the two")
    require("matplotlib", "plot")
    if chosen == "pgf" and latex_program() is None:
        raise ConfigError(
            "--format pgf: needs LaTeX (lualatex, xelatex or pdflatex), which is not installed: take pdf, svg or png"
        )
    return chosen


def latex_program() -> str | None:
    return next((name for name in ("lualatex", "xelatex", "pdflatex") if shutil.which(name)), None)


def check_figure(path: Path, name: str = "--output") -> None:
    """Raises ConfigError if the file of a figure, or that of its data, could not be written."""
    for each in (path, path.with_suffix(".csv")):
        check_output(name, each)


def write_figure(
    drawing: Drawing, path: Path, format_: str, width: float, height: float | None = None, name: str = "--output"
) -> Path:
    """Writes a figure, and beside it what is drawn as CSV, whose path is returned."""
    write_output(name, path, render(drawing, format_, width, height))
    data = path.with_suffix(".csv")
    write_output(name, data, csv_text(drawing.data()))
    return data


def render(drawing: Drawing, format_: str, width: float, height: float | None = None) -> bytes:
    """Returns the graphic as a file of a format; the same bytes for the same drawing and version of matplotlib.

    `width`, `height`: in inches; by default the height that the panels need.
    """
    with _settings(format_):
        figure = figure_of(drawing, width, height, _shown(format_))
        content = io.BytesIO()
        try:
            figure.savefig(content, format=format_, metadata=METADATA[format_])
        except RuntimeError as error:  # of LaTeX, which measures the texts of a pgf
            raise ConfigError(f"--format {format_}: {str(error).strip().splitlines()[0]:.200}: take pdf") from error
    return content.getvalue()


@contextmanager
def _settings(format_: str) -> Iterator[None]:
    """Within the block matplotlib has its defaults with SETTINGS, whatever the user's own settings are."""
    require("matplotlib", "plot")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        if format_ == "pgf":
            matplotlib.rcParams["pgf.texsystem"] = latex_program()
        yield


def _shown(format_: str) -> Callable[[str], str]:
    """Returns how names are written: a pgf is LaTeX."""
    return escaped_latex if format_ == "pgf" else lambda text: text


def figure_of(
    drawing: Drawing, width: float, height: float | None = None, shown: Callable[[str], str] = lambda text: text
) -> Any:
    """Returns the figure of matplotlib. Without a `height` it grows until each panel has its own."""
    marks = [mark for panel in drawing.panels for mark in panel.marks]
    baselines = [mark.series for mark in marks if isinstance(mark.row, Row) and mark.row.is_baseline]
    others = [name for name in drawing.series if name not in baselines]
    styles = {name: _style(others.index(name)) if name in others else OF_AR for name in drawing.series}
    rows = _rows_of_panels(drawing.panels, width)
    figure = new_figure(figsize=(width, height or 2.0 * len(rows)), layout="constrained", dpi=300)
    places = _axes(figure, rows, width)
    drawn = []
    headings = {panel.heading for panel in drawing.panels} if len(drawing.panels) > 1 else set()
    for line, axes_of_line in zip(rows, places, strict=True):
        for place, (panel, axes) in enumerate(zip(line, axes_of_line, strict=True)):
            is_first = place == 0 or line[place - 1].metric != panel.metric
            _draw(panel, axes, styles, shown, is_first=is_first, is_last=place == len(line) - 1)
            if panel.heading in headings:  # not where a panel goes on in the next line
                most = (width / len(line) - 0.35) * 72 / CHARACTER
                axes.set_title(_wrapped(panel.heading, max(12, int(most)), shown), loc="left")
                headings.remove(panel.heading)
            drawn.append((panel, axes))
    _share_limits(drawn)
    if any(not panel.names_its_series for panel in drawing.panels) and (len(styles) > 1 or flagged_curves(drawing)):
        _add_legend(figure, styles, drawing, shown)
    for panel, axes in drawn:
        if panel.names_its_series:  # others have room for their names
            _fit_labels(figure, axes)
    if height is None:
        _grow(figure, rows, places)
    return figure


def _wrapped(text: str, most: int, shown: Callable[[str], str]) -> str:
    """Returns a name in lines of at most so many characters; words are not broken."""
    return "\n".join(map(shown, wrap(text, most, break_long_words=False, break_on_hyphens=False)))


def _rows_of_panels(panels: Sequence[Panel], width: float) -> list[list[Panel]]:
    """Returns the panels line by line. Panels of categories and maps are as wide as the figure, and categories go on in
    the next line if their marks would stand too close; the others share lines, those beside each other the same one."""
    lines: list[list[Panel]] = []
    for is_wide, group in groupby(panels, lambda panel: panel.scale in WIDE):
        if is_wide:
            parts = [
                _parts(panel, (width - BESIDE_AXES) / SLOT) if panel.scale == "categories" else [panel]
                for panel in group
            ]
            lines += [[part] for part in chain.from_iterable(parts)]
            continue
        units: list[list[Panel]] = []  # panels that stand beside each other
        for panel in group:
            if panel.is_beside and units:
                units[-1].append(panel)
            else:
                units.append([panel])
        in_a_line = max(1, int(width / PANEL) // max(map(len, units)))
        num_lines = -(-len(units) // in_a_line)
        for part in np.array_split(np.arange(len(units)), num_lines):  # five as three and two, not as four and one
            lines.append([panel for place in part for panel in units[place]])
    return lines


def _parts(panel: Panel, most_slots: float) -> list[Panel]:
    """Returns a panel of categories in parts of so many marks, of about equally many categories each."""
    by_category = {name: [mark for mark in panel.marks if mark.x == name] for name in panel.categories}
    sizes = [slots + GAP for slots in _slots(panel, SLOT)]
    for num_parts in range(1, len(sizes) + 1):
        parts = np.array_split(np.arange(len(sizes)), num_parts)
        if max(sum(sizes[place] for place in part) for part in parts) <= most_slots:
            break
    names = panel.categories
    return [replace(panel, marks=tuple(mark for place in part for mark in by_category[names[place]])) for part in parts]


def _axes(figure: Any, rows: Sequence[Sequence[Panel]], width: float) -> list[list[Any]]:
    """Returns the axes of each line. Lines of a grid have places for as many panels as the longest one."""
    longest = max((len(line) for line in rows if line[0].scale not in WIDE), default=1)
    heights = [_height(line[0], (width if line[0].scale in WIDE else width / longest) - 0.4) for line in rows]
    grid = figure.add_gridspec(len(rows), longest, height_ratios=heights)
    return [
        [figure.add_subplot(grid[number, slice(None) if line[0].scale in WIDE else place])
         for place in range(len(line))]
        for number, line in enumerate(rows)
    ]  # fmt: skip


def _style(place: int) -> dict[str, Any]:
    """Returns colour, marker and line of a series; past the seventh, markers are hollow."""
    colour, number = COLOURS[place % len(COLOURS)], place % len(MARKERS)
    face = colour if place < len(MARKERS) else "white"
    return {
        "color": colour, "marker": MARKERS[number], "markerfacecolor": face, "markeredgecolor": colour,
        "markeredgewidth": 0.7, "markersize": 3.6 if MARKERS[number] in "oD" else 4.0, "linestyle": LINES[number],
    }  # fmt: skip


def _draw(
    panel: Panel, axes: Any, styles: dict[str, dict[str, Any]], shown: Callable[[str], str], *, is_first: bool,
    is_last: bool,
) -> None:  # fmt: skip
    if panel.scale == "map":
        _draw_map(panel, axes, shown)
        return
    by_series = {name: [mark for mark in panel.marks if mark.series == name] for name in styles}
    places = _places(panel, axes.figure.get_figwidth())
    if panel.front:
        xs, ys = zip(*panel.front, strict=True)
        drawstyle = "steps-post" if panel.less_is_better else "steps-pre"
        axes.plot(xs, ys, color=GREY, linewidth=2.2, drawstyle=drawstyle, zorder=1)
    for name, marks in by_series.items():
        style = styles[name] if panel.is_joined else {**styles[name], "linestyle": "none"}
        intervals = [mark.x_interval for mark in marks]
        own = [each for each in intervals if each is not None]
        if marks:
            axes.errorbar(
                [places[id(mark)] for mark in marks], [mark.y.value for mark in marks],
                yerr=reach([mark.y for mark in marks]), xerr=reach(own) if len(own) == len(marks) else None,
                elinewidth=0.7, capsize=1.4, capthick=0.7, linewidth=0.9, zorder=3, **style,
            )  # fmt: skip
    if panel.reference is not None:
        axes.axhline(panel.reference, color="black", linewidth=0.7, linestyle=(0, (4, 2)), zorder=2)
        if is_last:
            axes.annotate(
                "AR", (1, panel.reference), xytext=(2, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", fontsize=SMALL,
            )  # fmt: skip
    for place in panel.x_lines:
        axes.axvline(place, color="black", linewidth=0.7, linestyle=":", zorder=2)
    axes.margins(x=0.06, y=0.1)
    _scale(panel, axes, shown)
    flagged = [mark for mark in panel.marks if mark.is_flagged and panel.scale == "categories"]
    for mark in flagged:
        top = mark.y.value if mark.y.high is None else mark.y.high
        axes.annotate(
                shown(MARK), (places[id(mark)], top), xytext=(0, 2.0), textcoords="offset points", ha="center",
                va="bottom", fontsize=LEAST,
            )  # fmt: skip
    if flagged:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.08 * (high - low))
    axes.set_xlabel(shown(panel.x_label))
    if is_first or panel.scale == "categories" or panel.front:
        axes.set_ylabel(shown(panel.y_label))


def _draw_map(panel: Panel, axes: Any, shown: Callable[[str], str]) -> None:
    """Draws a cell for each mark, with its value and its interval. Its colour goes from orange to blue by the logarithm
    of the value, white at the reference; cells that are below it, by their interval, are hatched."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    columns, lines = (sorted({place for place in places if place is not None}) for places in (
        [float(mark.x) for mark in panel.marks], [mark.y_place for mark in panel.marks]
    ))  # fmt: skip
    reference = panel.reference or 1.0
    scores = {id(mark): np.log2((mark.y.value or reference) / reference) for mark in panel.marks}
    most = max(0.25, *map(abs, scores.values()))
    colours = LinearSegmentedColormap.from_list("map", [COLOURS[1], "white", COLOURS[0]])
    for mark in panel.marks:
        x, y = columns.index(float(mark.x)), lines.index(mark.y_place or 0.0)
        score = scores[id(mark)]
        is_below = mark.y.high is not None and mark.y.high < reference
        axes.add_patch(Rectangle(
            (x - 0.5, y - 0.5), 1, 1, facecolor=colours(0.5 + 0.3 * score / most), edgecolor=GREY, linewidth=0.5,
            hatch="////" if is_below else None,
        ))  # fmt: skip
        texts = [f"{MARK if mark.is_flagged else ''}{number(mark.y, 2)}", interval(mark.y, 2)]
        axes.text(
            x, y, "\n".join(shown(text) for text in texts if text), ha="center", va="center", fontsize=LEAST,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8} if is_below else None,
        )  # fmt: skip
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(lines) - 0.5)
    axes.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
    axes.set_yticks(range(len(lines)), [f"{line:g}" for line in lines])
    axes.tick_params(length=0)
    axes.set_xlabel(shown(panel.x_label))
    axes.set_ylabel(shown(panel.y_label))


def _slots(panel: Panel, slot: float) -> list[float]:
    """Returns the slots, of so many inches, of each category: one for each mark, and as many as the longest word of its
    name needs."""
    if panel.names_its_series:
        return [1.0] * len(panel.categories)
    num_marks = Counter(str(mark.x) for mark in panel.marks)
    return [max(num_marks[name], _longest_word(name) / slot) for name in panel.categories]


def _longest_word(name: str) -> float:
    """Returns the inches of the longest word of a category's name."""
    return max(map(len, name.split()), default=0) * CHARACTER / 72


def _slot(panel: Panel, width: float) -> float:
    """Returns the inches of a slot if the categories fill a figure of this width: the wider it is, the fewer of them a
    name needs."""
    num_marks = Counter(str(mark.x) for mark in panel.marks)
    # Between the widths at which a name begins to need no more slots than its marks, what is filled is linear.
    bends = sorted({SLOT, width, *(_longest_word(name) / num for name, num in num_marks.items())} - {0.0})
    filled = [slot * sum(slots + GAP for slots in _slots(panel, slot)) for slot in bends]
    return max(SLOT, float(np.interp(width - BESIDE_AXES, filled, bends)))


def _share_limits(drawn: Sequence[tuple[Panel, Any]]) -> None:
    """Gives panels of the same metric the same limits of y, and numbers only to the first one of a line. Speeds and
    scores of frontiers differ from task to task."""
    drawn = [(panel, axes) for panel, axes in drawn if panel.scale != "map"]
    for metric in dict.fromkeys(panel.metric for panel, _ in drawn if not panel.front):
        same = [axes for panel, axes in drawn if panel.metric == metric]
        limits = np.array([axes.get_ylim() for axes in same])
        for axes in same:
            axes.set_ylim(limits[:, 0].min(), limits[:, 1].max())
            axes.tick_params(labelleft=bool(axes.get_ylabel()))


def _places(panel: Panel, width: float) -> dict[int, float]:
    """Returns x of each mark in a figure of this width: categories side by side with a gap between them, and numbers
    moved apart a little if several series have a mark there."""
    if panel.scale == "categories":
        places: dict[int, float] = {}
        begin = 0.0
        for name, slots in zip(panel.categories, _slots(panel, _slot(panel, width)), strict=True):
            marks = [mark for mark in panel.marks if mark.x == name]
            middle = begin + slots / 2
            places |= {id(mark): middle + place - (len(marks) - 1) / 2 for place, mark in enumerate(marks)}
            begin += slots + GAP
        return places
    series = list(dict.fromkeys(mark.series for mark in panel.marks))
    xs = sorted({float(mark.x) for mark in panel.marks})
    apart = 0.0
    if panel.is_joined and panel.scale == "linear" and len(xs) > 1:
        apart = min(after - before for before, after in pairwise(xs)) * 0.5 / max(4, len(series))
    middle = (len(series) - 1) / 2
    return {id(mark): float(mark.x) + apart * (series.index(mark.series) - middle) for mark in panel.marks}


def _scale(panel: Panel, axes: Any, shown: Callable[[str], str]) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.4, zorder=0)
    axes.set_axisbelow(True)
    if panel.scale == "categories":
        slot = _slot(panel, axes.figure.get_figwidth())
        slots = np.array(_slots(panel, slot))
        ends = np.cumsum(slots + GAP) - GAP
        # Half a character more: the slots of a word are those of its characters, but for rounding.
        most = np.maximum(MOST_CHARACTERS, slots * slot * 72 / CHARACTER + 0.5).astype(int)
        labels = [_wrapped(name, number, shown) for name, number in zip(panel.categories, most, strict=True)]
        axes.set_xticks(ends - slots / 2, labels)
        axes.set_xlim(-GAP / 2, ends[-1] + GAP / 2)
        for end in ends[:-1].tolist() if not panel.names_its_series else ():
            axes.axvline(end + GAP / 2, color="#cccccc", linewidth=0.4, zorder=0)
        axes.tick_params(axis="x", length=0)
    elif panel.scale == "log2":
        axes.set_xscale("log", base=2)
        levels = sorted({float(mark.x) for mark in panel.marks})
        axes.xaxis.set_major_locator(FixedLocator(_apart(levels)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        xs = sorted({float(mark.x) for mark in panel.marks})
        are_whole = all(x.is_integer() for x in xs)
        few = are_whole and xs[-1] - xs[0] < 8
        axes.xaxis.set_major_locator(
            FixedLocator(list(np.arange(xs[0], xs[-1] + 1)))
            if few
            else MaxNLocator(6, steps=[1, 2, 5, 10], integer=are_whole)
        )
    if panel.from_zero:
        axes.set_ylim(0, 1.1 * max(mark.y.value or 0.0 for mark in panel.marks))
    if panel.bounds is not None:
        low, high = axes.get_ylim()
        room = 0.03 * (panel.bounds[1] - panel.bounds[0])
        axes.set_ylim(max(low, panel.bounds[0] - room), min(high, panel.bounds[1] + room))


def _apart(levels: Sequence[float]) -> list[float]:
    """Returns levels of a logarithmic axis that are far enough from each other for their numbers: at most seven
    doublings apart evenly."""
    span = np.log2(levels[-1] / levels[0]) if len(levels) > 1 else 0.0
    least, kept = span / 7, [levels[0]]
    for level in levels[1:]:
        if np.log2(level / kept[-1]) >= least:
            kept.append(level)
    return kept


def flagged_curves(drawing: Drawing) -> set[str]:
    """Returns the series that the legend marks, since marks at their points would hide other points."""
    panels = [panel for panel in drawing.panels if panel.scale != "categories"]
    return {mark.series for panel in panels for mark in panel.marks if mark.is_flagged}


def _add_legend(figure: Any, styles: dict[str, dict[str, Any]], drawing: Drawing, shown: Callable[[str], str]) -> None:
    """Adds a legend above the panels, with as many columns as fit into the width."""
    from matplotlib.lines import Line2D

    flagged = flagged_curves(drawing)
    is_joined = any(panel.is_joined for panel in drawing.panels)
    handles = [
        Line2D(
            [],
            [],
            **(style if is_joined else {**style, "linestyle": "none"}),
            linewidth=0.9,
            label=shown(f"{name} {MARK}" if name in flagged else name),
        )
        for name, style in styles.items()
    ]
    for lines in range(1, len(handles) + 1):
        columns = -(-len(handles) // lines)
        by_line = [handles[start : start + columns] for start in range(0, len(handles), columns)]
        in_order = [line[place] for place in range(columns) for line in by_line if place < len(line)]
        legend = figure.legend(
            handles=in_order, loc="outside upper center", ncols=columns, frameon=False, columnspacing=1.0,
            handletextpad=0.3 if not is_joined else 0.5, handlelength=2.2 if is_joined else 1.0, borderpad=0.1,
            labelspacing=0.3, borderaxespad=0.2,
        )  # fmt: skip
        figure.draw_without_rendering()
        if legend.get_window_extent().width <= 0.98 * figure.bbox.width:
            return
        if columns > 1:
            legend.remove()
        else:
            return


def _fit_labels(figure: Any, axes: Any) -> None:
    """Turns the names of categories by 30, 60 or 90 degrees if they would touch."""
    labels = axes.get_xticklabels()
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    if all(before.x1 + 0.06 * figure.dpi <= after.x0 for before, after in pairwise(boxes)):
        return
    places = axes.transData.transform([(place, 0.0) for place in axes.get_xticks()])[:, 0]
    step = np.diff(places).min()
    height = SMALL * 1.25 * figure.dpi / 72 * max(label.get_text().count("\n") + 1 for label in labels)
    # Turned names are parallel: they touch if their lines are nearer to each other than they are high.
    rotation = next((angle for angle in (30, 60) if step * np.sin(np.radians(angle)) >= height), 90)
    axes.tick_params(axis="x", labelrotation=rotation)
    for label in labels:
        label.set(ha="right", va="center" if rotation == 90 else "top", rotation_mode="anchor")


def _height(panel: Panel, width: float) -> float:
    """Returns the height of axes of this width that a panel needs, in inches."""
    if panel.scale == "categories":
        return HEIGHTS["categories"]
    if panel.scale == "map":
        return max(HEIGHTS["categories"], HEIGHTS["map"] * len({mark.y_place for mark in panel.marks}))
    return min(2.2, HEIGHTS["share"] * width)


def _grow(figure: Any, rows: Sequence[Sequence[Panel]], places: Sequence[Sequence[Any]]) -> None:
    """Makes the figure as high as its panels need, with what labels and legend take of it."""
    for _ in range(8):
        figure.draw_without_rendering()
        lacking = []
        for line, axes_of_line in zip(rows, places, strict=True):
            box = axes_of_line[0].get_window_extent()
            lacking.append(_height(line[0], box.width / figure.dpi) - box.height / figure.dpi)
        if abs(max(lacking)) < 0.01:
            return
        figure.set_figheight(round(figure.get_figheight() + max(lacking) * len(rows), 3))
