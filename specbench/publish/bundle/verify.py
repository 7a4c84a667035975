"""Bundles → what an archive shows, from the archive alone: digests, rows made again, who signed it, and other runs."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, file_digest
from specbench.publish.bundle import crate
from specbench.publish.bundle.agreement import MeasuredRow, Reruns, is_same_configuration, reruns_of
from specbench.publish.bundle.archive import unpack
from specbench.publish.bundle.contradictions import Checked, check_records
from specbench.publish.bundle.scrub import Scrubber
from specbench.publish.bundle.signature import signer_of
from specbench.publish.bundle.texts import without_content
from specbench.publish.rules import Finding as RuleFinding
from specbench.publish.rules import check_rules
from specbench.records.folder import read_environments
from specbench.results.leaderboard import ROWS, read
from specbench.results.leaderboard_files import MAX_FIELDS, compare_with_run, mismatch_text
from specbench.results.level import STATED, Level, Levels
from specbench.results.row import LATER_METRICS, Row
from specbench.results.runs import NEEDED_FILES, RUN_FILES, RecordedRun

CONTENT = "what depends on the content of answers (texts are left out)"
RUN_FILE = re.compile(r"runs/([A-Za-z0-9_.-]+)/([a-z.]+)")
LACKED = {*LATER_METRICS, "differences", "batch_width"}  # which rows of earlier versions do not have at all
OF_BUNDLE = {crate.README, crate.METADATA, crate.MANIFEST, crate.COMMANDS, crate.CITATION}


@dataclass(frozen=True)
class CheckedRow:
    """A row of a bundle. `wrong`: why it is not what its records give; None if it is. `stated`: fields that the records
    cannot confirm."""

    row: Row
    wrong: str | None
    stated: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        if self.wrong is not None or CONTENT in self.stated:
            return STATED
        return Level("recomputed", self.stated)


@dataclass(frozen=True)
class CheckedRun:
    """`checked`: what its records contradict. `problem`: why its rows could not be read."""

    name: str
    run: RecordedRun
    rows: Sequence[CheckedRow]
    checked: Checked = field(default_factory=Checked)
    problem: str | None = None

    @property
    def has_texts(self) -> bool:
        return self.checked.has_texts

    @property
    def sound_rows(self) -> list[Row]:
        return [each.row for each in self.rows if each.wrong is None]


@dataclass(frozen=True)
class CheckedBundle:
    """An unpacked bundle. `problems`: of its files, digests and metadata, a line each. `signer`: None if nobody known
    signed it, as `about_signature` says. `targets`: the revisions by which a board knows targets. It can be read while
    its folder exists."""

    file: Path
    runs: Sequence[CheckedRun]
    problems: Sequence[str]
    licence: str | None
    identifier: str | None
    signer: str | None
    about_signature: str
    num_files: int
    has_citation: bool
    has_environments: bool
    targets: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[CheckedRow]:
        return [row for run in self.runs for row in run.rows]

    @property
    def num_recomputed(self) -> int:
        return sum(each.level.name == "recomputed" for each in self.rows)

    @cached_property
    def findings(self) -> list[RuleFinding]:
        """What rules find in the rows that their records confirm."""
        runs = [(each.name, each.run, each.sound_rows, each.has_texts) for each in self.runs if each.problem is None]
        return check_rules(runs, self.targets)

    def all_problems(self) -> list[str]:
        """Returns a line for whatever contradicts the bundle, or that a rule refuses."""
        wrong = [f"{each.row.place}: {each.wrong}" for each in self.rows if each.wrong]
        broken = [f"{run.name}: {run.problem}" for run in self.runs if run.problem]
        refused = [str(each) for each in self.findings if each.weight == "refused"]
        return [*self.problems, *broken, *wrong, *refused]

    def measured_rows(self) -> Iterator[MeasuredRow]:
        """Yields the rows that records confirm as far as they can."""
        for run in self.runs:
            for each in run.rows:
                if each.wrong is None:
                    yield MeasuredRow(each.row, run.run, self.signer, f"{self.file.name}:{run.name}")


@contextmanager
def verified(
    files: Sequence[Path], allowed_signers: Path | None = None, targets: Mapping[str, str | None] | None = None
) -> Iterator[list[CheckedBundle]]:
    """Yields what bundles show. They are unpacked into a temporary folder, which is gone when the block ends.
    `targets`: as in `CheckedBundle`. Raises ConfigError for a file that is not a bundle."""
    with ExitStack() as stack:
        found = []
        for file in files:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="specbench-bundle-")))
            found.append(_checked(file, folder, allowed_signers, targets or {}))
        yield found


def _checked(
    file: Path, folder: Path, allowed_signers: Path | None, targets: Mapping[str, str | None]
) -> CheckedBundle:
    if not file.exists():
        raise ConfigError(f"{file}: no such file: give a bundle that `specbench bundle` made")
    if not file.is_file():
        raise ConfigError(f"{file}: is a folder or a device: give the file of a bundle")
    signer, about_signature = signer_of(file, allowed_signers)
    names = unpack(file, folder)
    problems = [*_file_problems(folder, names), *crate.problems_of(folder)]
    runs: dict[str, set[str]] = {}
    for name in names:
        if found := RUN_FILE.fullmatch(name):
            runs.setdefault(found[1], set()).add(found[2])
    if not runs:
        raise ConfigError(f"{file}: has no runs: give a bundle that `specbench bundle` made")
    checked = [_checked_run(folder / "runs" / name, present) for name, present in runs.items()]
    problems += [f"{run.name}: {line}" for run in checked for line in run.checked.problems]
    sound = [run for run in checked if run.problem is None]
    if len(sound) == len(checked):
        rows = [each.row for run in sound for each in run.rows]
        problems += crate.unlike_runs(folder, rows, [each for run in sound for each in run.run.measurements])
    licence, identifier = crate.stated_in(folder)
    return CheckedBundle(
        file, checked, problems, licence, identifier, signer, about_signature, len(names), crate.CITATION in names,
        all(read_environments(folder / "runs" / name) for name in runs), targets,
    )  # fmt: skip


def _file_problems(folder: Path, names: Sequence[str]) -> list[str]:
    """Returns a line for each file that is missing, strange, or not what the list of digests says."""
    known: dict[str, str] = {}
    twice: list[str] = []
    try:
        for line in bounded.read_text(folder / crate.MANIFEST, "ask for a whole bundle").splitlines():
            digest, _, name = line.partition("  ")
            twice += [name] * (name in known)
            known[name] = digest
    except ConfigError:
        return [f"{crate.MANIFEST}: is absent or unreadable, so no digest can be compared"]
    problems = [f"{crate.MANIFEST}: lists {name!r:.100} twice" for name in dict.fromkeys(twice)]
    problems += [f"{name}: is absent" for name in sorted(known.keys() - set(names))]
    for name in names:
        if name == crate.MANIFEST:
            continue
        found = RUN_FILE.fullmatch(name)
        if name not in OF_BUNDLE and (found is None or found[2] not in RUN_FILES):
            problems.append(f"{name!r:.100}: is not a file of a bundle")
        elif name not in known:
            problems.append(f"{name}: {crate.MANIFEST} does not list it")
        elif (digest := file_digest(folder / name, WHOLE)) != known[name]:
            problems.append(f"{name}: has the digest {digest[:12]}…, but {crate.MANIFEST} says {known[name][:12]:.12}…")
    return problems + [f"{name}: is absent" for name in (crate.README, crate.COMMANDS) if name not in names]


def _checked_run(folder: Path, present: set[str]) -> CheckedRun:
    """Makes all rows of a run again from its records."""
    run = RecordedRun(folder)
    if absent := [name for name in NEEDED_FILES if name not in present]:
        return CheckedRun(folder.name, run, (), problem=f"{absent[0]} is absent")
    try:
        rows, problems = read(folder / ROWS)
        found = check_records(run)
    except (ConfigError, ValueError) as error:
        return CheckedRun(folder.name, run, (), problem=_without_place(error, folder))
    wrong = [_without_place(ConfigError(each), folder) for each in problems]
    if not rows and not wrong:
        wrong = [f"{ROWS} has no rows"]
    checked = [_checked_row(row, run, folder, found) for row in rows.values()]
    return CheckedRun(folder.name, run, checked, found, wrong[0] if wrong else None)


def _checked_row(row: Row, run: RecordedRun, folder: Path, found: Checked) -> CheckedRow:
    try:
        if row.run is not None:
            raise ConfigError("it names another folder as its run")
        if found.has_texts:
            differ, stated = compare_with_run(row, run, folder / ROWS)
            stated = [*stated, *(found.unscored if row.quality is not None else ())]
        else:
            differ, stated = compare_with_run(row, run, folder / ROWS, part_of=without_content)
            stated = [CONTENT, *stated]
    except (ConfigError, ValueError) as error:
        return CheckedRow(row, f"cannot be computed: {_without_place(error, folder)}")
    if not differ:
        return CheckedRow(row, None, tuple(name for name in stated if name not in LACKED))
    more = f" and {len(differ) - MAX_FIELDS} more" if len(differ) > MAX_FIELDS else ""
    return CheckedRow(row, f"{'; '.join(map(mismatch_text, differ[:MAX_FIELDS]))}{more}")


def _without_place(error: Exception, folder: Path) -> str:
    """Returns the message of an error with names within the bundle instead of those of the temporary folder."""
    return str(error).replace(f"{folder.parent.parent}/", "").replace(str(folder), folder.name)


@dataclass(frozen=True)
class Verification:
    """Bundles and, for each row of the first, all runs of its configuration in all of them."""

    bundles: Sequence[CheckedBundle]
    reruns: Mapping[tuple[str, str], Reruns] = field(default_factory=dict)  # by key and time of the row

    def level_of(self, bundle: CheckedBundle, checked: CheckedRow) -> Level:
        """Returns the level of a row with its marks. A row that contradicts its records has none."""
        level = checked.level
        if checked.wrong is not None or bundle.problems:
            return STATED
        signed = (bundle.signer,) if bundle.signer else ()
        rerun = self.reruns.get((checked.row.key, checked.row.created))
        return Level(level.name, level.except_for, signed, rerun.mark if rerun else None)

    def levels_of(self, rows: Sequence[Row]) -> Levels:
        """Returns the level of each row whose run the bundles have, by its digest: the row itself is compared with what
        the records give. Homes and secrets, which bundles lack, do not count as a difference."""
        scrub = Scrubber.of_user()
        by_key: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            by_key.setdefault((scrub.text(row.key), row.created), []).append(row)
        found: dict[str, Level] = {}
        for bundle in self.bundles:
            for run in bundle.runs:
                for bundled in run.rows:
                    for row in by_key.get((bundled.row.key, bundled.row.created), ()):
                        scrubbed = Row.model_validate(scrub.value(row.model_dump(mode="json")) | {"run": None})
                        is_bundled = scrubbed.model_dump() == bundled.row.model_dump()
                        checked = bundled if is_bundled else _checked_row(scrubbed, run.run, run.run.path, run.checked)
                        digest = row.content_digest
                        found[digest] = _joined(found.get(digest), self.level_of(bundle, checked))
        return found


def verify(bundles: Sequence[CheckedBundle]) -> Verification:
    """Finds the independent runs of each configuration. They count for every row of them."""
    groups: list[list[MeasuredRow]] = []
    for bundle in bundles:
        for each in bundle.measured_rows() if not bundle.problems else ():
            group = next((group for group in groups if is_same_configuration(group[0].row, each.row)), None)
            if group is None:
                groups.append([each])
            else:
                group.append(each)
    found = {}
    for group in groups:
        if len(group) > 1:
            result = reruns_of(group)
            found.update({(each.row.key, each.row.created): result for each in result.runs})
    return Verification(bundles, found)


def levels_of(rows: Sequence[Row], files: Sequence[Path], allowed_signers: Path | None = None) -> Levels:
    """Returns the level of each row whose run bundles have, as `Verification.levels_of`. Warns of each bundle that
    something contradicts, whose rows are therefore stated."""
    with verified(files, allowed_signers) as bundles:
        for bundle in bundles:
            if problems := bundle.all_problems():
                more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
                remedy = f"specbench bundle verify {bundle.file} tells all"
                warnings.warn(f"{bundle.file}: {problems[0]}{more}: {remedy}", UserWarning, stacklevel=1)
        return verify(bundles).levels_of(rows)


def _joined(known: Level | None, level: Level) -> Level:
    """Returns what two bundles with the same row show together."""
    if known is None:
        return level
    best = known if known.name == "recomputed" else level
    signed = tuple(dict.fromkeys((*known.signed_by, *level.signed_by)))
    return Level(best.name, best.except_for, signed, known.rerun or level.rerun)


@dataclass(frozen=True)
class Finding:
    """An answer to a question of artefact reviews. `answer`: None if the archive alone cannot tell."""

    question: str
    answer: bool | None
    found: str


def checklist(bundle: CheckedBundle, verification: Verification) -> list[Finding]:
    """Returns what was found of a bundle for the badges of artefact reviews (ACM, version 1.1): available, functional,
    reproduced; and who signed it."""
    rows = bundle.rows
    # 1. Available: in an archive with an identifier, and one may use it.
    if bundle.identifier is not None:
        identifier = Finding("available: identifier", True, f"{bundle.identifier} (not looked up)")
    else:
        identifier = Finding("available: identifier", None, "no DOI is stated")
    licence = Finding("available: licence", bundle.licence is not None, bundle.licence or "none is stated")
    cites = Finding("available: citation", bundle.has_citation, crate.CITATION if bundle.has_citation else "no authors")
    # 2. Functional: complete, consistent, documented.
    if bundle.problems:
        more = f", and {len(bundle.problems) - 1} more" if len(bundle.problems) > 1 else ""
        complete = Finding("functional: complete", False, f"{bundle.problems[0]}{more}")
    else:
        told = f"{counted(bundle.num_files, 'file')}, digests and RO-Crate metadata are right"
        complete = Finding("functional: complete", True, told)
    broken = [f"{run.name}: {run.problem}" for run in bundle.runs if run.problem]
    num_records = sum(len(run.run.records) for run in bundle.runs if run.problem is None)
    told = f"{counted(num_records, 'record')} of {counted(len(bundle.runs), 'run')}"
    readable = Finding("functional: readable", not broken, broken[0] if broken else told)
    told = "packages, CPU, GPU and source" if bundle.has_environments else "versions, commit and device alone"
    environment = Finding("functional: environment", bundle.has_environments, told)
    coverage = _coverage(bundle)
    # 3. Reproduced: the rows from the records, and the records by another run.
    wrong = [f"{each.row.place}: {each.wrong}" for each in rows if each.wrong]
    stated = dict.fromkeys(name for each in rows for name in each.stated)
    told = f"{bundle.num_recomputed} of {counted(len(rows), 'row')} recomputed"
    told = wrong[0] if wrong else f"{told}; stated: {', '.join(stated)}" if stated else told
    recomputed = Finding("reproduced: from the records", 0 < bundle.num_recomputed == len(rows), told)
    marks = [mark for each in rows if (mark := verification.level_of(bundle, each).rerun) is not None]
    num_agree = sum(mark.agrees for mark in marks)
    times = max((mark.num_runs for mark in marks), default=0)
    told = f"{num_agree} of {counted(len(marks), 'row')} with up to {times} runs agree"
    rerun = Finding(
        "reproduced: by another run", num_agree == len(marks) if marks else None, told if marks else "one run only"
    )
    signed = Finding("signed", True if bundle.signer else None, bundle.about_signature)
    return [identifier, licence, cites, complete, readable, coverage, environment, recomputed, rerun, signed]


def _coverage(bundle: CheckedBundle) -> Finding:
    """Returns whether the runs measured all examples of their data: yes, no, or not told by one of them."""
    parts = [part for run in bundle.runs if run.problem is None for part in run.run.last_measured.values()]
    alike: dict[str, dict[str, None]] = {}
    for part in parts:
        alike.setdefault(part.told_examples, {})[f"{part.task} {part.subset}"] = None
    found = "; ".join(f"{', '.join(places)}: {told}" for told, places in alike.items())
    chosen = {None if part.coverage is None else part.coverage.chosen for part in parts}
    is_told = None not in chosen
    found += "" if is_told else "; total unknown"
    answer = chosen == {"all"} if chosen and is_told else None
    return Finding("functional: coverage", answer, found or "no run can be read")
