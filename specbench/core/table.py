"""Tables that are shown as text on a terminal of 100 columns, as Markdown, HTML or LaTeX.

    Table("title", (*words("method"), *numbers("α", "τ")), rows=[["sd", "0.812", "3.21"]], caption=["greedy"])

A console prints a Table directly. `Table.markdown()`, `Table.html()` and `Table.latex()` return strings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from rich import box
from rich.table import Table as ScreenTable
from rich.text import Text

RULE: tuple[str, ...] = ()  # as a row of a Table: begins a new section
MARKDOWN_SPECIAL = "\\|*_`<[#~"
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "−": "$-$", "±": r"$\pm$", "≤": r"$\leq$",
    "≥": r"$\geq$", "×": r"$\times$", "÷": r"$\div$", "→": r"$\to$", "·": r"$\cdot$", "Σ": r"$\Sigma$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "τ": r"$\tau$", "ψ": r"$\psi$",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `heading`: may contain line breaks, which only a terminal shows. `is_number`: aligned to the right. `folds`: long
    cells take several lines on a terminal. `width`, `min_width`: in characters, on a terminal. `is_for_screen`: omitted
    from Markdown and LaTeX.
    """

    heading: str
    is_number: bool = False
    folds: bool = True
    width: int | None = None
    min_width: int | None = None
    is_for_screen: bool = False


def words(*headings: str, folds: bool = True) -> tuple[Column, ...]:
    """Returns columns of words, aligned to the left."""
    return tuple(Column(heading, folds=folds) for heading in headings)


def numbers(*headings: str, folds: bool = False) -> tuple[Column, ...]:
    """Returns columns of numbers, aligned to the right."""
    return tuple(Column(heading, is_number=True, folds=folds) for heading in headings)


def in_sections(rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Returns rows of a table with a RULE wherever the first cell changes."""
    found: list[Sequence[str]] = []
    for row in rows:
        if found and found[-1][0] != row[0]:
            found.append(RULE)
        found.append(row)
    return found


@dataclass(frozen=True)
class Table:
    """A table.

    `rows`: one cell per column. RULE begins a new section; a row of one cell is the heading of the rows below it.
    `caption`: one line each, below the table. `best`: row and column of the value that Markdown and LaTeX show in bold.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    caption: Sequence[str] = ()
    best: tuple[int, int] | None = None

    def __rich__(self) -> ScreenTable:
        """Returns the table for a terminal."""
        shown = ScreenTable(
            title=Text(self.title), caption=Text("\n".join(self.caption)) if self.caption else None,
            caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
        )  # fmt: skip
        for column in self.columns:
            justify: Literal["left", "right"] = "right" if column.is_number else "left"
            shown.add_column(
                Text(column.heading), justify=justify, overflow="fold", no_wrap=not column.folds,
                width=column.width, min_width=column.min_width,
            )  # fmt: skip
        for row in self.rows:
            if row:
                shown.add_row(*(Text(cell, style="bold" if self._is_heading(row) else "") for cell in row))
            else:
                shown.add_section()
        return shown

    def markdown(self) -> str:
        """Returns a heading, the table, and the caption as a list."""
        columns, rows = self._kept(escaped_markdown, "**{}**".format)
        headings = [escaped_markdown(column.heading.replace("\n", " ")) for column in columns]
        made = markdown_table(headings, rows, [column.is_number for column in columns])
        notes = "".join(f"- {escaped_markdown(line)}\n" for line in self.caption)
        return f"### {escaped_markdown(self.title)}\n\n{made}\n" + (f"\n{notes}" if notes else "")

    def html(self) -> str:
        """Returns a table element, with title and caption as paragraphs around it."""
        columns, rows = self._kept(escape, "<b>{}</b>".format)
        aligned = [f' style="text-align: {"right" if column.is_number else "left"}"' for column in columns]
        head = "".join(f"<th{how}>{escape(c.heading)}</th>" for c, how in zip(columns, aligned, strict=True))
        body = "".join(
            f"<tr>{''.join(f'<td{how}>{cell}</td>' for cell, how in zip(cells, aligned, strict=True))}</tr>\n"
            for cells in rows
        )
        caption = "<br>".join(map(escape, self.caption))
        return (
            f"<p><b>{escape(self.title)}</b></p>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n"
            f"</table>\n<p>{caption}</p>\n"
        )

    def latex(self) -> str:
        """Returns a table environment, with title and caption as its caption."""
        columns, rows = self._kept(escaped_latex, r"\textbf{{{}}}".format)
        bold = "" if self.best is None else " Bold: separable from all others."
        sentences = [f"{self.title}.", *(f"{line[:1].upper()}{line[1:]}." for line in self.caption)]
        headings = [escaped_latex(column.heading.replace("\n", " ")) for column in columns]
        lines = [
            "% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering",
            f"\\caption{{{escaped_latex(' '.join(sentences))}{bold}}}",
            f"\\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in columns)}}}",
            "\\toprule", _latex_row(headings), "\\midrule", *map(_latex_row, rows),
            "\\bottomrule", "\\end{tabular}", "\\end{table}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _is_heading(self, row: Sequence[str]) -> bool:
        return len(row) == 1 < len(self.columns)

    def _kept(self, escaped: Callable[[str], str], bold: Callable[[str], str]) -> tuple[list[Column], list[list[str]]]:
        """Returns the columns and rows that Markdown, HTML and LaTeX show, with escaped cells."""
        kept = [place for place, column in enumerate(self.columns) if not column.is_for_screen]
        rows = []
        for number, row in enumerate(self.rows):
            cells = [escaped(cell) for cell in row] + [""] * (len(self.columns) - len(row))
            if self.best is not None and self.best[0] == number:
                cells[self.best[1]] = bold(cells[self.best[1]])
            if row:
                rows.append([cells[place] for place in kept])
        return [self.columns[place] for place in kept], rows


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool] = ()) -> str:
    """Returns a Markdown table; the cells must already be Markdown."""
    rules = ["--:" if number else "---" for number in is_number] or ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows))


def escaped_markdown(text: str) -> str:
    """Returns a text as one line without markup, since names from users may contain any character."""
    for character in MARKDOWN_SPECIAL:
        text = text.replace(character, f"\\{character}")
    return " ".join(text.splitlines())


def escaped_latex(text: str) -> str:
    """Returns a text as one line without commands, with characters that LaTeX fonts lack replaced."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in " ".join(text.splitlines()))


def _latex_row(cells: Sequence[str]) -> str:
    # LaTeX reads a cell that begins with [ as the length of the line break before it.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"


FORMATS: dict[str, Callable[[Table], Table | str]] = {
    "text": lambda table: table, "markdown": Table.markdown, "latex": Table.latex
}  # fmt: skip
