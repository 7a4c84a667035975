"""What readers must know about a table of methods: the reasons of its marks, what its corpora hold, where its scores
and speeds mean little, and the numbers without loops."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from specbench.report.captions import MARK, OFTEN, marked_warnings, runs_on_lines, score_heading, share_cut
from specbench.results.metric_format import metric_of, number, with_interval
from specbench.results.row import Row
from specbench.results.warnings import fact_of
from tools.drafters.cells import table

from .cells import LABELS, Cell
from .measured import Measured, label
from .workplace import CORPUS_TASKS, NUM_MEASURED

TITLES = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "spec_bench": "Spec-Bench", "mgsm": "MGSM",
          "wmt": "Translation: WMT22, German to English", "tatoeba": "Translation: Tatoeba"}  # fmt: skip
Pairs: TypeAlias = Sequence[tuple[Cell, Row]]
LOOPS = "loops"  # the code of this warning, whose numbers the table without loops has


def below(found: Measured, pairs: Pairs) -> str:
    """Returns the lines below a table of methods, and the table without loops."""
    cells = list(dict.fromkeys(cell for cell, _ in pairs))
    lines = [*doubts(pairs), *corpus_notes(pairs), *cut_notes(found, cells), *run_on_notes(found, pairs)]
    return "".join(f"\n{line}\n" for line in lines) + without_loops(pairs)


def doubts(pairs: Pairs) -> Iterator[str]:
    """Yields a line for each kind of warning: the text of the first row that has it, and all others by cell."""
    found: dict[str, list[tuple[Cell, Row, str]]] = {}
    for cell, row in pairs:
        for code, text in marked_warnings(row).items():
            is_below = code == LOOPS and moved_by_loops(row)
            told = "loops change its numbers, as the table without them shows" if is_below else fact_of(text)
            found.setdefault(code, []).append((cell, row, told))
    for (cell, row, text), *others in found.values():
        line = f"{MARK} {cell.name}: {label(row.method_name)}: {text}."
        if others:
            own = " with numbers of its own" * any(told != text for *_, told in others)
            line += f" Each of these{own}, too: {by_cell((cell, row) for cell, row, _ in others)}."
        yield line


def by_cell(pairs: Iterable[tuple[Cell, Row]]) -> str:
    """Returns the methods of each cell, such as "a-cell: sd, pld; another: sd"."""
    found: dict[str, list[str]] = {}
    for cell, row in pairs:
        found.setdefault(cell.name, []).append(label(row.method_name))
    return "; ".join(f"{name}: {', '.join(methods)}" for name, methods in found.items())


def corpus_notes(pairs: Pairs) -> Iterator[str]:
    """Yields a line about the methods that draft from a corpus of the measured tasks."""
    names = list(dict.fromkeys(f"`{row.method_name}`" for _, row in pairs if row.method_name in LABELS))
    if names:
        titles = ", ".join(TITLES[task] for task in CORPUS_TASKS)
        yield (
            f"*In-domain corpus* (in the records {' and '.join(names)}): it has questions and right answers of the "
            f"same test files ({titles}; row {NUM_MEASURED + 1} and later, none of which is measured), besides "
            "Python's standard library and QMSum. These numbers are not those of a general corpus."
        )


def has_no_scores(ar: Row) -> bool:
    """Returns whether scores say nothing, since most of AR's answers have no end."""
    return share_cut(ar) >= OFTEN


def cut_notes(found: Measured, cells: Sequence[Cell]) -> Iterator[str]:
    """Yields a line about the cells whose scores say nothing, with AR's."""
    told = []
    for cell in cells:
        ar, *others = found.whole(cell)
        if not has_no_scores(ar) or ar.quality is None:
            continue
        shares = dict.fromkeys(f"{share:.0f}" for share in sorted(100 * share_cut(row) for row in others))
        ends = " to ".join(dict.fromkeys([*shares][:: max(1, len(shares) - 1)]))
        unit = metric_of(ar.quality)
        score = number(ar.metric(ar.quality), unit.digits, unit.factor)
        told.append(
            f"{cell.name} {share_cut(ar) * ar.n:.0f} of {ar.n} at {cell.data.tokens} tokens ({100 * share_cut(ar):.0f} "
            f"%; methods {ends} %; {score_heading([ar])} of AR {score})"
        )
    if told:
        yield (
            "**Scores mean nothing**, and are left out, where the limit on new tokens ends most of AR's answers: "
            f"{'; '.join(told)}. Acceptance and speed are of the tokens before the cut."
        )


def run_on_notes(found: Measured, pairs: Pairs) -> Iterator[str]:
    """Yields a line about methods whose answers run on where AR's end."""
    for cell in dict.fromkeys(cell for cell, _ in pairs):
        ar = found.row(cell.name, "ar")
        rows = [row for each, row in pairs if each == cell]
        names = [label(row.method_name) for row in rows]
        yield from runs_on_lines(rows, names, ar, f"{cell.name}: ", cell.data.tokens)


MOVED = 0.02  # by loops


def moved_by_loops(row: Row) -> bool:
    pairs = [(row.value(name), row.value(f"{name}_without_loops")) for name in ("mean_acceptance_length", "speedup")]
    return any(abs(other / one - 1) >= MOVED for one, other in pairs if one and other is not None)


def without_loops(pairs: Pairs) -> str:
    """A table of the rows whose τ or speed-up is another one without the prompts at which a method of their cell loops,
    which may be none of their own."""
    lines = [
        [cell.name, label(row.method_name), *(number(row.metric(key), 2) for key in (
            "mean_acceptance_length", "mean_acceptance_length_without_loops", "speedup")),
         with_interval(row.metric("speedup_without_loops"))]
        for cell, row in pairs if not row.is_baseline and moved_by_loops(row)
    ]  # fmt: skip
    if not lines:
        return ""
    told = (
        f"Rows whose τ or speed-up is another one, by {100 * MOVED:.0f} % or more, without the prompts at which any "
        "method of the cell loops, AR included:"
    )
    heads = ["cell", "method", "τ", "τ without loops", "speed-up", "speed-up without loops"]
    return f"\n{told}\n\n{table(heads, lines, 2)}"
