"""Tables as text for a terminal of 100 columns, as Markdown, HTML or LaTeX.

    columns = (*text_columns("method"), *number_columns("α", "τ"))
    Table("title", columns, rows=[["sd", "0.812", "3.21"]], caption=["greedy"])

A console prints a Table directly. `Table.markdown()`, `Table.html()` and `Table.latex()` return strings.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby
from textwrap import wrap
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as ScreenTable
from rich.text import Text

from specbench.core.console import revealed
from specbench.core.errors import ConfigError, nearest

RULE: tuple[str, ...] = ()  # a row of a Table that begins a new section
GAP = 2  # characters of a terminal column besides its cells
LONGEST_WORD, LONGEST_NAME = 20, 32  # characters; longer words and names may be broken on a terminal, numbers never
MARKDOWN_SPECIAL = "\\|*_`<[#~"
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "–": "--", "—": "---", "−": "$-$", "±": r"$\pm$", "≤": r"$\leq$",
    "≥": r"$\geq$", "×": r"$\times$", "÷": r"$\div$", "→": r"$\to$", "·": r"$\cdot$", "Σ": r"$\Sigma$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "τ": r"$\tau$", "ψ": r"$\psi$", "Δ": r"$\Delta$", "†": r"$\dagger$",
    "≈": r"$\approx$", "≠": r"$\neq$", "∞": r"$\infty$", "…": r"\ldots{}", "’": "'",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `heading`: may contain line breaks, which only a terminal shows. `is_number`: cells are aligned to the right and
    never broken. `folds`: a terminal breaks long cells at spaces. `width`: maximum characters of a line on a terminal;
    cells are broken at spaces and hyphens. `min_width`: minimum characters. `is_for_screen`: shown only on a terminal.
    `group`: a heading above the headings of neighbouring columns; only LaTeX shows it once for all of them.
    """

    heading: str
    is_number: bool = False
    folds: bool = True
    width: int | None = None
    min_width: int = 0
    is_for_screen: bool = False
    group: str = ""

    @property
    def full_heading(self) -> str:
        return f"{self.group}\n{self.heading}" if self.group else self.heading

    def on_screen(self, cell: str) -> str:
        return cell if self.width is None else "\n".join(wrap(cell, self.width))

    def widths(self, cells: Iterable[str]) -> tuple[int, int]:
        """Returns the minimum and the preferred width of these cells on a terminal, in characters."""
        parts = [part for cell in cells for part in self.on_screen(cell).split("\n")]
        words = [word for part in parts for word in part.split()] if self.folds and not self.is_number else parts
        minimum = max(map(cell_len, words), default=0)
        heading = max(map(cell_len, self.full_heading.split()), default=0)
        preferred = max(map(cell_len, [*parts, *self.full_heading.split("\n")]))
        longest = minimum if self.is_number else LONGEST_WORD if self.folds else LONGEST_NAME
        return max(min(minimum, longest), heading), max(preferred, self.min_width)


def text_columns(*headings: str, folds: bool = True) -> tuple[Column, ...]:
    return tuple(Column(heading, folds=folds) for heading in headings)


def number_columns(*headings: str) -> tuple[Column, ...]:
    return tuple(Column(heading, is_number=True) for heading in headings)


def in_sections(rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Returns table rows with a RULE wherever the first cell changes."""
    result: list[Sequence[str]] = []
    for row in rows:
        if result and result[-1][0] != row[0]:
            result.append(RULE)
        result.append(row)
    return result


@dataclass(frozen=True)
class Table:
    """A table.

    `rows`: one cell per column. RULE begins a new section; a row of one cell is the heading of the rows below it.
    `caption`: lines below the table. `bold`: row and column of each value that Markdown and LaTeX show in bold.
    `num_keys`: number of first columns that name a row. A terminal that is too narrow for the table shows it in parts
    that all have these columns.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    caption: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()
    num_keys: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table for a terminal; parts of it, with some of the columns each, if it is too wide."""
        first, *others = self._parts(options.max_width)
        caption = Text("\n".join(self.caption)) if self.caption else None
        yield self._part(first, Text(self.title), None if others else caption)
        for widths in others:
            yield self._part(widths, None, None)
        if others and caption is not None:
            caption.stylize("table.caption")
            yield caption

    def _parts(self, width: int) -> list[dict[int, int]]:
        """Returns the column numbers and widths of each part. Every part has the key columns."""
        cells = [[row[place] for row in self.rows if place < len(row)] for place in range(len(self.columns))]
        ranges = [column.widths(values) for column, values in zip(self.columns, cells, strict=True)]
        parts = [list(range(self.num_keys))]
        for place in range(self.num_keys, len(self.columns)):
            minimum = sum(ranges[number][0] + GAP for number in (*parts[-1], place))
            if minimum > width and len(parts[-1]) > self.num_keys:
                parts.append([*range(self.num_keys), place])
            else:
                parts[-1].append(place)
        return [self._fit_widths({place: ranges[place] for place in part}, width) for part in parts]

    def _fit_widths(self, ranges: dict[int, tuple[int, int]], width: int) -> dict[int, int]:
        """Returns column widths: the preferred ones, with the widest reduced until all fit. Only text columns become
        narrower than their minimum."""
        widths = {place: preferred for place, (_, preferred) in ranges.items()}
        while sum(widths.values()) + GAP * len(widths) > width:
            reducible = [place for place, (minimum, _) in ranges.items() if widths[place] > minimum]
            reducible = reducible or [
                place for place in widths if widths[place] > 1 and not self.columns[place].is_number
            ]
            if not reducible:
                break
            widths[max(reducible, key=widths.__getitem__)] -= 1
        return widths

    def _part(self, widths: dict[int, int], title: Text | None, caption: Text | None) -> ScreenTable:
        shown = ScreenTable(
            title=title, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
            collapse_padding=True,
        )  # fmt: skip
        columns = {place: self.columns[place] for place in widths}
        for place, column in columns.items():
            justify: Literal["left", "right"] = "right" if column.is_number else "left"
            shown.add_column(Text(column.full_heading), justify=justify, overflow="fold", width=widths[place])
        for row in self.rows:
            if row:
                style = "bold" if len(row) == 1 < len(self.columns) else ""
                cells = {place: column.on_screen(row[place]) for place, column in columns.items() if place < len(row)}
                shown.add_row(*(Text(cell, style=style) for cell in cells.values()))
            else:
                shown.add_section()
        return shown

    def markdown(self) -> str:
        """Returns a heading, the table, and the caption as a list."""
        columns, rows = self._escape(escaped_markdown, "**{}**".format)
        headings = [escaped_markdown(column.full_heading.replace("\n", " ")) for column in columns]
        table = markdown_table(headings, rows, [column.is_number for column in columns])
        notes = "".join(f"- {escaped_markdown(line)}\n" for line in self.caption)
        return f"### {escaped_markdown(self.title)}\n\n{table}\n" + (f"\n{notes}" if notes else "")

    def html(self) -> str:
        """Returns a table element between a title paragraph and a caption paragraph."""
        columns, rows = self._escape(escape, "<b>{}</b>".format)
        aligned = [f' style="text-align: {"right" if column.is_number else "left"}"' for column in columns]
        head = "".join(f"<th{how}>{escape(c.full_heading)}</th>" for c, how in zip(columns, aligned, strict=True))
        body = "".join(
            f"<tr>{''.join(f'<td{how}>{cell}</td>' for cell, how in zip(cells, aligned, strict=True))}</tr>\n"
            for cells in rows
        )
        caption = "<br>".join(map(escape, self.caption))
        return (
            f"<p><b>{escape(self.title)}</b></p>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n"
            f"</table>\n<p>{caption}</p>\n"
        )

    def latex(self, label: str = "", *, siunitx: bool = False, wide: bool = False) -> str:
        """Returns a table environment: a short caption, its label, the table, and the lines below it as a note. Groups
        of columns that do not fit beside each other stand below each other, in tables with the same rows.

        `label`: after "tab:"; by default it is made of the title. `siunitx`: numbers stand in columns `S`, aligned at
        their decimal points. `wide`: over both columns of a page (`table*`).
        """
        columns, rows = self._escape(escaped_latex, r"\textbf{{{}}}".format)
        kept = [place for place, column in enumerate(self.columns) if not column.is_for_screen]
        alignments = ["r" if column.is_number else "l" for column in columns]
        headings = [escaped_latex(column.heading.replace("\n", " ")) for column in columns]
        if siunitx:
            numbers = [number for number, row in enumerate(self.rows) if row]  # RULE has no line
            for place, column in enumerate(columns):
                cells = [row[kept[place]] if kept[place] < len(row) else "" for row in self.rows if row]
                parts = [DECIMAL.fullmatch(cell) if column.is_number else None for cell in cells]
                if not any(parts):
                    continue
                alignments[place] = _decimal_alignment([part for part in parts if part])
                headings[place] = f"{{{headings[place]}}}"
                for line, (part, number) in enumerate(zip(parts, numbers, strict=True)):
                    is_bold = (number, kept[place]) in self.bold
                    rows[line][place] = _decimal_cell(part, is_bold) if part else f"{{{escaped_latex(cells[line])}}}"
        texts = [[row[place] for row in self.rows if place < len(row)] for place in kept]
        widths = [
            max(_points(text, siunitx) for text in (column.heading, *own))
            for column, own in zip(columns, texts, strict=True)
        ]
        blocks = _latex_parts([column.group for column in columns], widths, TEXT_POINTS if wide else COLUMN_POINTS)
        tabulars: list[str] = []
        for block in blocks:
            tabulars += [
                r"\par\medskip" * bool(tabulars),
                f"\\begin{{tabular}}{{{''.join(alignments[place] for place in block)}}}",
                "\\toprule", *_latex_groups([columns[place].group for place in block]),
                _latex_row([headings[place] for place in block]), "\\midrule",
                *(_latex_row([row[place] for place in block]) for row in rows), "\\bottomrule", "\\end{tabular}",
            ]  # fmt: skip
        bold = " Bold: separable from all others." if self.bold else ""
        notes = [escaped_latex(f"{line[:1].upper()}{line[1:]}.") for line in self.caption]
        environment, packages = "table*" if wide else "table", "booktabs, siunitx" if siunitx else "booktabs"
        setup = [r"\sisetup{detect-weight=true, mode=text}"] if siunitx else []
        setup += [rf"\setlength{{\tabcolsep}}{{{GAP_POINTS}pt}}"] if any(column.group for column in columns) else []
        note = r"\begin{minipage}{\linewidth}\footnotesize\raggedright"
        below = [r"\par\smallskip", note, *notes, r"\end{minipage}"]
        lines = [
            f"% needs \\usepackage{{{packages}}}",
            f"\\begin{{{environment}}}", "\\centering", *setup,
            f"\\caption{{{escaped_latex(f'{self.title}.')}{bold}}}",
            f"\\label{{tab:{slug(label or self.title)}}}", "\\small",
            *filter(None, tabulars), *(below if notes else []), f"\\end{{{environment}}}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _escape(self, escape: Callable[[str], str], bold: Callable[[str], str]) -> tuple[list[Column], list[list[str]]]:
        """Returns the columns and rows for Markdown, HTML and LaTeX, with escaped cells."""
        kept = [place for place, column in enumerate(self.columns) if not column.is_for_screen]
        rows = []
        for number, row in enumerate(self.rows):
            cells = [escape(cell) for cell in row] + [""] * (len(self.columns) - len(row))
            for _, place in (each for each in self.bold if each[0] == number):
                cells[place] = bold(cells[place])
            if row:
                rows.append([cells[place] for place in kept])
        return [self.columns[place] for place in kept], rows


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool] = ()) -> str:
    """Returns a Markdown table; the cells must already be Markdown."""
    rules = ["--:" if number else "---" for number in is_number] or ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows))


def escaped_markdown(text: str) -> str:
    """Returns a text as one line without markup and unseen signs, since users' names may contain any character."""
    text = revealed(" ".join(text.splitlines()))
    for character in MARKDOWN_SPECIAL:
        text = text.replace(character, f"\\{character}")
    return text


def escaped_latex(text: str) -> str:
    """Returns a text as one line without commands. Characters that LaTeX fonts lack are replaced."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in " ".join(text.splitlines()))


def slug(text: str) -> str:
    """Returns the words of a text as a label: letters a to z, digits and hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower())) or "table"


DECIMAL = re.compile(
    r"(?P<sign>[-+]?)(?P<whole>\d+)(?:\.(?P<decimals>\d+))?(?: (?P<interval>\[[^\]]*\]))?(?P<mark> †)?"
)


BOLD = "\\bfseries "


def _decimal_cell(part: re.Match[str], is_bold: bool) -> str:
    """Returns a number for a column `S`; its interval and mark stand behind it in a smaller size. siunitx drops spaces
    around the number."""
    decimals = f".{part['decimals']}" if part["decimals"] else ""
    behind = rf"\,{part['interval']}" if part["interval"] else ""
    behind += r"$^{\dagger}$" if part["mark"] else ""
    small = rf" {{\scriptsize{behind}}}" if behind else ""
    return f"{BOLD * is_bold}{part['sign']}{part['whole']}{decimals}{small}"


def _decimal_alignment(parts: Sequence[re.Match[str]]) -> str:
    """Returns a column `S` with room for the longest number before and after the point, and for what stands behind."""
    sign = "-" * any(part["sign"] for part in parts)
    whole, decimals = (max(len(part[name] or "") for part in parts) for name in ("whole", "decimals"))
    behind = max((_decimal_cell(part, False).partition(" ")[2] for part in parts), key=len)
    room = f", table-space-text-post={{{behind}}}" if behind else ""
    return f"S[table-format={sign}{whole}.{decimals}{room}]"


COLUMN_POINTS, TEXT_POINTS = 234, 487  # the widths of a column and of a page with two, of ICML's 3.25 and 6.75 inches
GAP_POINTS = 4  # on each side of a column
NARROW = " .,[]()-:;!'|ijl"


def _points(text: str, siunitx: bool) -> float:
    """Returns about the width of a cell in \\small type of 9 points; with siunitx, an interval is in smaller type."""
    part = DECIMAL.fullmatch(text) if siunitx else None
    behind = len(part["interval"] or "") if part else 0
    small = text[len(text) - behind :]
    return sum(2.6 if character in NARROW else 4.7 for character in text) - sum(
        0.6 if character in NARROW else 1.1 for character in small
    )


def _latex_parts(groups: Sequence[str], widths: Sequence[float], most: float) -> list[list[int]]:
    """Returns the columns of each tabular: those without a group, and as many groups as fit beside each other, of about
    the same number in each."""
    keys = [place for place, group in enumerate(groups) if not group]
    named = [[place for place, _ in same] for group, same in groupby(enumerate(groups), lambda each: each[1]) if group]
    parts = [keys]
    for number in range(1, len(named) + 1):
        size = -(-len(named) // number)
        parts = [[*keys, *chain(*named[start : start + size])] for start in range(0, len(named), size)]
        if all(sum(widths[place] + 2 * GAP_POINTS for place in part) <= most for part in parts):
            break
    return parts


def _latex_groups(groups: Sequence[str]) -> list[str]:
    """Returns the line of headings above columns, each with a rule below it; nothing without such headings."""
    if not any(groups):
        return []
    cells, rules, place = [], [], 1
    for group, same in groupby(groups):
        width = len(list(same))
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped_latex(group)}}}" if group else " & " * (width - 1))
        rules += [rf"\cmidrule(lr){{{place}-{place + width - 1}}}"] if group else []
        place += width
    return [_latex_row(cells), "".join(rules)]


def _latex_row(cells: Sequence[str]) -> str:
    # LaTeX reads a cell that begins with [ as the length of the line break before it.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"


FORMATS = ("text", "markdown", "latex")


@dataclass(frozen=True)
class TableFormat:
    """How tables are printed: as a Table for a terminal, or as a text. `label`, `siunitx`, `wide`: those of
    `Table.latex`. Raises ConfigError for an unknown name, and for what only LaTeX has."""

    name: str = "text"
    label: str = ""
    siunitx: bool = False
    wide: bool = False

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise ConfigError(f"--format {self.name}: {nearest(self.name, FORMATS)}")
        for option in ("label", "siunitx", "wide") if self.name != "latex" else ():
            if getattr(self, option):
                raise ConfigError(f"--{option}: only LaTeX has it: add --format latex, or leave it out")

    def __call__(self, table: Table) -> Table | str:
        if self.name == "latex":
            return table.latex(self.label, siunitx=self.siunitx, wide=self.wide)
        return table.markdown() if self.name == "markdown" else table


TEXT = TableFormat()
