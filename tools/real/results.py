"""The page in a few sentences, computed from its rows."""

from collections import Counter
from collections.abc import Iterator

from specbench.report.captions import RUNS_ON, runs_on
from specbench.results.metric_format import metric_of, number, score_pair, speed, with_interval
from specbench.results.row import Row

from .cells import CELLS, INT8, LLAMA_CPP, Cell
from .claims import direction
from .measured import Measured, label, measured_cells
from .notes import TITLES, has_no_scores

FASTER, SLOWER, BESIDE = "faster than AR", "slower", "not separable"  # the last is `direction`'s
SIDES = {FASTER: FASTER, SLOWER: SLOWER, BESIDE: f"{BESIDE} from it"}
PRECISIONS = {"": "bfloat16", INT8: "int8", LLAMA_CPP: "Q4_K_M"}


def results(found: Measured) -> Iterator[str]:
    """Yields what was measured, a sentence each."""
    for task in ("gsm8k", "humaneval", "spec_bench", "wmt"):
        yield from of_task(found, task)
    for task in ("gsm8k", "humaneval", "spec_bench"):
        yield from of_precisions(found, task)
    yield from of_other_pairs(found)


def side(row: Row) -> str:
    """Returns on which side of AR the interval of the speed-up is."""
    return direction(row.metric("speedup"), 1, FASTER, SLOWER)


def gain_of(row: Row) -> float:
    return row.value("speedup") or 0.0


def gain_words(row: Row) -> str:
    return with_interval(row.metric("speedup"))


def rows_of(found: Measured, group: str, task: str = "") -> list[tuple[Cell, Row]]:
    """Returns the rows of methods of a group, or of one of its tasks."""
    cells = [cell for cell in measured_cells(CELLS, found, group) if task in ("", cell.data.task)]
    return [(cell, row) for cell in cells for row in found.whole(cell) if not row.is_baseline]


def of_task(found: Measured, task: str) -> Iterator[str]:
    """Yields how many methods of the main pair gain on a task, and which most, with AR's answers and with others."""
    rows = rows_of(found, "main", task)
    times = Counter(row.method_name for _, row in rows)

    def named(cell: Cell, row: Row) -> str:
        of_cell = f" of {cell.name}" if times[row.method_name] > 1 else ""
        return f"{label(row.method_name)}{of_cell}"

    exact = [each for each in rows if each[1].lossless]
    if not exact:
        return
    by_side = {place: [named(*each) for each in exact if side(each[1]) == place] for place in SIDES}
    parts = [f"{len(names)} {SIDES[place]} ({', '.join(names)})" for place, names in by_side.items() if names]
    best = max(exact, key=lambda each: gain_of(each[1]))
    text = (
        f"**{TITLES[task]}**, methods that keep AR's answers: {'; '.join(parts)}. The fastest is {named(*best)}: "
        f"{gain_words(best[1])} × AR"
    )
    if lossy := [each for each in rows if not each[1].lossless]:
        cell, row = max(lossy, key=lambda each: gain_of(each[1]))
        ar = found.row(cell.name, "ar")
        has_score = row.quality is not None and not has_no_scores(ar)
        score = f", {metric_of(row.quality).label} {score_pair(row.metrics, row.quality)}" if has_score else ""
        text += f"; with other answers {named(cell, row)}: {gain_words(row)}{f' {RUNS_ON}' * runs_on(row, ar)}{score}"
    yield f"{text}."


def of_precisions(found: Measured, task: str) -> Iterator[str]:
    """Yields AR's speed in each precision beside the fastest method in bfloat16, and the speed-up of `sd` in each."""
    cells = [cell for group in ("main", "precision") for cell in measured_cells(CELLS, found, group)
             if cell.data.task == task and cell.name.endswith(("-chains", "-int8", "-q4"))]  # fmt: skip
    by_precision = {PRECISIONS[cell.precision]: cell.name for cell in cells}
    if by_precision.keys() != set(PRECISIONS.values()):
        return
    plain, gains = [], []
    for name in PRECISIONS.values():
        plain.append(f"{speed(found.row(by_precision[name], 'ar').metric('tokens_per_second'))} in {name}")
        gains.append(f"{number(found.row(by_precision[name], 'sd').metric('speedup'), 2)} in {name}")
    _, best = max(rows_of(found, "main", task), key=lambda each: each[1].value("tokens_per_second") or 0.0)
    yield (
        f"**{TITLES[task]}, precisions**: AR writes {', '.join(plain)} tok/s; the fastest method in bfloat16, "
        f"{label(best.method_name)}, {speed(best.metric('tokens_per_second'))}. sd is {', '.join(gains)} × AR."
    )


def of_other_pairs(found: Measured) -> Iterator[str]:
    """Yields the best row of other vocabularies, the range over languages, and the speed-ups in low-resource ones."""
    if foreign := rows_of(found, "vocabulary"):
        cell, row = max(foreign, key=lambda each: gain_of(each[1]))
        yield (
            f"**SmolLM2 and Gemma**, of about the same size: {sum(side(each) == FASTER for _, each in foreign)} of "
            f"{len(foreign)} rows of methods are faster than AR; the best is {label(row.method_name)} of {cell.name}: "
            f"{gain_words(row)} × AR."
        )
    for cell in measured_cells(CELLS, found, "fairness")[:1]:
        by_language = found.by_subset(cell.name, cell.methods[0]).values()
        best, worst = max(by_language, key=gain_of), min(by_language, key=gain_of)
        yield (
            f"**Languages**, {cell.methods[0]} of {cell.name}: {gain_words(best)} × AR in {best.subset}, "
            f"{gain_words(worst)} in {worst.subset}."
        )
    if low := rows_of(found, "ngram"):
        gains = (f"{label(row.method_name)} {gain_words(row)}" for _, row in low)
        yield f"**Low-resource languages**: {', '.join(gains)} × AR."
