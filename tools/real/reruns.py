"""What was measured twice: how the edition of a cell in this checkout agrees with the earlier ones, which the history
of Git has, and how cells agree that have measured the same method.

`python -m tools.real --reruns` writes the figures, which the page shows; nothing is measured.
"""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import combinations
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.values import WHOLE, bytes_digest, file_digest
from specbench.publish.bundle.agreement import Agreement, Answers, MeasuredRow, compare_runs, is_same_configuration
from specbench.publish.bundle.crate import About, Author
from specbench.publish.bundle.make import make_bundle
from specbench.results.answers import BASELINE
from specbench.results.metric_format import metric_of, number, with_interval
from specbench.results.row import Row
from specbench.results.runs import RecordedRun, rows_of_subsets
from specbench.statistics.bootstrap import Estimate
from tools.commands import ROOT
from tools.drafters.cells import table

from .archive import unpack
from .board import Archives
from .cells import CELLS, Cell
from .measured import label

FIGURES = ROOT / "docs" / "measured" / "real-reruns.json"
COMMAND = "python -m tools.real --reruns"


class FigurePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Edition(FigurePart):
    """One measurement of a cell. `commit`: that which brought it; null: it is not committed. `digest`: of its archive.
    `ar`: AR's tokens/s. `ar_drift`: AR's speed in the last third ÷ in the first third."""

    commit: str | None
    measured: str
    digest: str
    ar: Estimate
    ar_drift: Estimate


class AnswerCounts(FigurePart):
    compared: int
    equal: int
    explained: int


class Ratio(FigurePart):
    """Later ÷ earlier edition, paired by prompt. `error`: E_n."""

    ratio: Estimate
    error: float | None


class ComparedRow(FigurePart):
    """A method in both editions. `problem`: why they do not compare; null: they do. `answers_ar`: AR's own."""

    method: str
    problem: str | None = None
    agrees: bool | None = None
    answers: AnswerCounts | None = None
    answers_ar: AnswerCounts | None = None
    changes: dict[str, Ratio] = {}


class RerunCell(FigurePart):
    """`before`: the cell of the earlier edition, if it is another one with the same method."""

    cell: str
    before: str | None = None
    earlier: Edition
    later: Edition
    rows: tuple[ComparedRow, ...]


class Figures(FigurePart):
    cells: tuple[RerunCell, ...]


@dataclass(frozen=True)
class CommittedArchive:
    """An archive as a commit has it."""

    commit: str
    content: bytes

    @property
    def digest(self) -> str:
        return bytes_digest([self.content], WHOLE)


def earlier_editions(archive: Path) -> list[CommittedArchive]:
    """Returns the archives that commits had in the place of this one, newest first, each content once; none outside a
    Git checkout, and in a shallow one only those that it has."""
    found = {file_digest(archive, WHOLE): CommittedArchive("", b"")}
    for commit in _git(archive.parent, "log", "--format=%H", "--", archive.name).decode().split():
        content = _git(archive.parent, "show", f"{commit}:./{archive.name}")
        if content:
            edition = CommittedArchive(commit, content)
            found.setdefault(edition.digest, edition)
    return [each for each in found.values() if each.content]


def _git(folder: Path, *words: str) -> bytes:
    """Returns what a command of Git prints; nothing if it fails, as for a commit that removed the file."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError:
        return b""
    return done.stdout if done.returncode == 0 else b""


@cache
def has_change(commit: str | None, change: str) -> bool | None:
    """Returns whether a commit, or a state "COMMIT-dirty-…" on top of it, has a change, itself a commit; None if the
    history here does not tell."""
    if commit is None:
        return None
    try:
        words = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", change, commit.partition("-")[0]]
        code = subprocess.run(words, capture_output=True, check=False).returncode
    except OSError:
        return None
    return {0: True, 1: False}.get(code)


def unpack_earlier(archive: Path, name: str, folder: Path) -> Iterator[tuple[CommittedArchive, Path]]:
    """Unpacks the earlier editions of a cell, and yields each with its folder, NAME-COMMIT."""
    for edition in earlier_editions(archive):
        folder.mkdir(parents=True, exist_ok=True)
        packed = folder / f"{edition.commit[:8]}.tar.xz"
        packed.write_bytes(edition.content)
        place = folder / f"{name}-{edition.commit[:8]}"
        unpack(packed, place)
        yield edition, place


def figures(archives: Archives, cells: Sequence[Cell], scratch: Path) -> Figures:
    """Compares the cells with their earlier editions, and with other cells that have the same methods. `scratch`: a
    folder to unpack editions into."""
    found, current = [], []
    for cell in archives.measured(cells):
        archive, run = archives.archive(cell), RecordedRun(archives.unpacked(cell))
        later = edition_of(run, _commit_of(archive), file_digest(archive, WHOLE))
        current.append((cell.name, run, later))
        for edition, folder in unpack_earlier(archive, cell.name, scratch):
            other = RecordedRun(folder)
            earlier = edition_of(other, edition.commit, edition.digest)
            rows = tuple(compared_rows(other, run))
            found.append(RerunCell(cell=cell.name, earlier=earlier, later=later, rows=rows))
    current.sort(key=lambda each: each[2].measured)
    for (before, other, earlier), (name, run, later) in combinations(current, 2):
        rows = tuple(row for row in compared_rows(other, run) if row.problem != NO_ROW)
        if any(row.method != BASELINE for row in rows):
            found.append(RerunCell(cell=name, before=before, earlier=earlier, later=later, rows=rows))
    return Figures(cells=tuple(found))


def _commit_of(archive: Path) -> str | None:
    """Returns the commit that brought the archive as it is; None if none did."""
    commit = _git(archive.parent, "log", "-1", "--format=%H", "--", archive.name).decode().strip()
    is_as_committed = commit and _git(archive.parent, "show", f"{commit}:./{archive.name}") == archive.read_bytes()
    return commit if is_as_committed else None


def edition_of(run: RecordedRun, commit: str | None, digest: str) -> Edition:
    (ar,) = rows_of_subsets(run.rows_of("ar"), ())
    others = [row for row in rows_of_subsets(run.rows, ()) if not row.is_baseline]
    return Edition(
        commit=commit, measured=ar.created, digest=digest, ar=ar.metric("tokens_per_second"),
        ar_drift=others[0].metric("ar_drift") if others else Estimate(),
    )  # fmt: skip


NO_ROW = "the earlier edition has no row of this configuration"


def compared_rows(earlier: RecordedRun, later: RecordedRun) -> Iterator[ComparedRow]:
    """Yields how the editions of each method agree, by the comparison of `specbench bundle verify`."""
    before = rows_of_subsets(earlier.rows, ())
    for row in rows_of_subsets(later.rows, ()):
        other = next((each for each in before if is_same_configuration(each, row)), None)
        if other is None:
            yield ComparedRow(method=row.method_name, problem=NO_ROW)
            continue
        found = compare_runs(MeasuredRow(other, earlier), MeasuredRow(row, later))
        yield ComparedRow(method=row.method_name, problem=found) if isinstance(found, str) else compared(row, found)


def compared(row: Row, found: Agreement) -> ComparedRow:
    changes = {each.metric: Ratio(ratio=each.ratio, error=each.error) for each in found.changes}
    return ComparedRow(
        method=row.method_name, agrees=found.agrees, answers=_counts(found.answers),
        answers_ar=_counts(found.baseline_answers), changes=changes,
    )  # fmt: skip


def _counts(answers: Answers | None) -> AnswerCounts | None:
    if answers is None:
        return None
    return AnswerCounts(compared=answers.compared, equal=answers.equal, explained=answers.explained)


def write_figures(archives: Archives, scratch: Path, file: Path = FIGURES) -> Figures:
    found = figures(archives, CELLS, scratch)
    write_atomically(file, found.model_dump_json(indent=1) + "\n")
    return found


def bundle_of(archives: Archives, cells: Sequence[Cell], to: Path, scratch: Path) -> str:
    """Makes one bundle of the measured cells, with their earlier editions as runs of their own, so that `verify` finds
    which rows were measured again. Returns what it has in a line."""
    measured = archives.measured(cells)
    if not measured:
        raise ConfigError(f"{archives.board.with_suffix('')}: has no archives: measure a cell first")
    again = [place for cell in measured for _, place in unpack_earlier(archives.archive(cell), cell.name, scratch)]
    authors = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["authors"]
    about = About("Real models", [Author.of(each["name"]) for each in authors], LICENCE)
    made = make_bundle([*map(archives.unpacked, measured), *again], to, about)
    return f"{to}: {counted(len(made), 'run')}, {len(again)} of them earlier editions"


LICENCE = "Apache-2.0"  # the project's
HEAD = """
## Measured again

{names}The comparison is that of [`specbench bundle verify`](../guide/bundles.md#measure-again): ratios are later ÷
earlier, paired by prompt, with [E_n](../notes/statistics.md) in parentheses (up to 1 they agree). `{command}` makes
these figures from the archives. Tokens/s are not part of the agreement. AR reads all weights for each token, a method
for a step of several: where the machine's speed changes, as other programs on it may make it do, speed-ups may all move
to the same side. The runs recorded no cause.
"""
TWICE = "measured twice on the same machine, by two versions of the harness, both in the history of Git.\n"
OTHER = """
**{cell}**: the earlier edition of {measured} (commit {commit}) is of another configuration in all rows, and not
compared.
"""
SHARED = """
Of cells that have measured the same method on the same prompts, the later one is compared with the earlier one, too:
{pairs}.
"""
METRICS = ("speedup", "mean_acceptance_length", "tokens_per_second", "tokens_per_second_ar")


def known_reruns(archives: Archives, file: Path = FIGURES) -> list[RerunCell]:
    """Returns the comparisons of archives that are those of this checkout; none without figures."""
    if not file.is_file():
        return []
    known = Figures.model_validate_json(file.read_text(encoding="utf-8")).cells
    by_name = {cell.name: cell for cell in CELLS}

    def is_there(name: str, edition: Edition) -> bool:
        archive = archives.archive(by_name[name]) if name in by_name else None
        return archive is not None and archive.is_file() and file_digest(archive, WHOLE) == edition.digest

    current = [each for each in known if is_there(each.cell, each.later)]
    return [each for each in current if each.before is None or is_there(each.before, each.earlier)]


def moved(known: Sequence[RerunCell]) -> str:
    """Says in a sentence by how much speed-ups moved where the same answers were measured twice; empty without any."""
    found = [
        (each, row, row.changes["speedup"]) for each in known for row in each.rows
        if row.answers is not None and row.answers.equal == row.answers.compared and "speedup" in row.changes
    ]  # fmt: skip
    found = sorted(
        (each for each in found if each[2].ratio.value is not None), key=lambda each: each[2].ratio.value or 0
    )
    if not found:
        return ""
    ends = []
    for each, row, change in (found[0], found[-1]):
        of = each.cell if each.before is None else f"{each.cell} after {each.before}"
        ends.append(f"{change.ratio.value:.2f} ({label(row.method)} of {of})")
    apart = sum((change.error or 0) > 1 for *_, change in found)
    return (
        f"**Intervals are over prompts, not over days**: {len(found)} rows that [were measured "
        f"again](#measured-again) with the same answers had {' to '.join(dict.fromkeys(ends))} times their earlier "
        f"speed-up, and {apart} of them another one than the intervals allow (E_n above 1)."
    )


def reruns_part(known: Sequence[RerunCell]) -> str:
    """The section of the page: empty without comparisons."""
    again = [each for each in known if each.before is None]
    same = [each for each in again if any(row.problem != NO_ROW for row in each.rows)]
    shared = [each for each in known if each.before is not None]
    parts = list(map(cell_part, same))
    for each in again:
        if each not in same:
            when = datetime.fromisoformat(each.earlier.measured)
            commit = (each.earlier.commit or "none")[:8]
            parts.append(OTHER.format(cell=each.cell, measured=f"{when:%Y-%m-%d %H:%M} UTC", commit=commit))
    if shared:
        parts.append(SHARED.format(pairs="; ".join(f"{each.before} and {each.cell}" for each in shared)))
        parts += map(cell_part, shared)
    if not parts:
        return ""
    names = f"{', '.join(dict.fromkeys(each.cell for each in same))}: {TWICE}" if same else ""
    return "\n".join([HEAD.format(names=names, command=COMMAND), *parts])


def cell_part(found: RerunCell) -> str:
    """The table of a cell, when its editions were measured, and what explains where they differ."""
    heads = [
        "method",
        "agree",
        "answers equal",
        "of ar",
        *(metric_of(name).label.replace("\n", " ") for name in METRICS),
    ]
    lines = [
        [label(row.method), {True: "yes", False: "no", None: row.problem or "–"}[row.agrees],
         told(row.answers), told(row.answers_ar), *(ratio(row.changes.get(name)) for name in METRICS)]
        for row in found.rows
    ]  # fmt: skip
    return f"{editions(found)}\n\n{table(heads, lines, 1)}\n{explained(found)}\n"


def told(counts: AnswerCounts | None) -> str:
    if counts is None:
        return "sampled"
    return f"{counts.equal} of {counts.compared}" + (f" ({counts.explained} near-ties)" if counts.explained else "")


def ratio(change: Ratio | None) -> str:
    if change is None:
        return "–"
    return with_interval(change.ratio, 3) + ("" if change.error is None else f" ({change.error:.2f})")


def editions(found: RerunCell) -> str:
    """Says when the editions were measured, and how fast AR was in each."""
    ends = [datetime.fromisoformat(each.measured) for each in (found.earlier, found.later)]
    hours = (ends[1] - ends[0]).total_seconds() / 3600
    sides = []
    for when, each in zip(ends, (found.earlier, found.later), strict=True):
        drift = f", in the last third {with_interval(each.ar_drift)} times those of the first"
        sides.append(
            f"{when:%Y-%m-%d %H:%M} UTC (commit {'none yet' if each.commit is None else each.commit[:8]}; AR "
            f"{number(each.ar, 1)} tokens/s{'' if each.ar_drift.value is None else drift})"
        )
    if found.before is not None:
        return f"**{found.before}** ended at {sides[0]}, **{found.cell}** {hours:.1f} hours later, at {sides[1]}."
    return f"**{found.cell}**: ended at {sides[0]}, and again {hours:.1f} hours later, at {sides[1]}."


def explained(found: RerunCell) -> str:
    """Says what agrees, what differs, and how fast the machine was on the two days, as far as AR itself shows it."""
    known = [row for row in found.rows if row.agrees is not None]
    num_agree = sum(row.agrees is True for row in known)
    lines = [f"{num_agree} of {len(known)} rows agree in their answers, τ and speed-up."]
    for row in known:
        reasons = [
            f"{name}: {with_interval(row.changes[metric].ratio)}" for metric, name in JUDGED.items()
            if metric in row.changes and (row.changes[metric].error or 0) > 1
        ]  # fmt: skip
        for side, counts in (("its answers", row.answers), ("AR's", row.answers_ar)):
            if counts is not None and (rest := counts.compared - counts.equal - counts.explained):
                reasons.append(f"{rest} of {counts.compared} of {side} differ by more than near-ties and widths")
        if reasons:
            lines.append(f"{label(row.method)} differs: {'; '.join(reasons)}.")
    return " ".join([*lines, *_speeds(known)])


def _speeds(rows: Sequence[ComparedRow]) -> Iterator[str]:
    """Yields what the tokens/s of the two days say: those of AR, and of the methods beside it."""
    ar, own = (
        [each for row in rows if (found := row.changes.get(name)) and (each := found.ratio).value is not None]
        for name in ("tokens_per_second_ar", "tokens_per_second")
    )
    if not ar:
        return
    ratios = sorted(each.value for each in own if each.value is not None)
    own_speeds = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (*ratios[:1], *ratios[-1:])))
    methods = f", the methods at {own_speeds} times theirs" if own_speeds else ""
    yield f"AR ran at {with_interval(ar[0])} times its earlier speed{methods}."


JUDGED = {"speedup": "speed-up", "mean_acceptance_length": "τ"}
