"""A row of a board → the commands by which a third party measures it again, and the third party's run as a bundle that
says whether it agrees."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import Version

from specbench.core import bounded
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import write_output, writing
from specbench.core.table import Table
from specbench.publish.board.changes import BUNDLES, ENDING, NAME
from specbench.publish.board.check import signers_of
from specbench.publish.board.merge import LEADERBOARDS
from specbench.publish.board.spec import read_board
from specbench.publish.board.stored import NAME_DIGITS
from specbench.publish.bundle.agreement import (
    Agreement,
    MeasuredRow,
    compare_runs,
    configuration_differences,
    is_same_configuration,
)
from specbench.publish.bundle.crate import About
from specbench.publish.bundle.make import make_bundle
from specbench.publish.bundle.signature import SUFFIX
from specbench.publish.bundle.tables import agreement_table
from specbench.publish.bundle.verify import CheckedBundle, verified, verify
from specbench.publish.hub.forms import dumped
from specbench.records.folder import FILE as SPECS
from specbench.results.leaderboard import load
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun
from specbench.specs.catalogue import load_method, load_task, versioned_name, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import OPTIONS, RunOptions, spec_of
from specbench.specs.task import TaskSpec

PLACE = re.compile(rf"\.\./{BUNDLES}/({NAME.pattern}{re.escape(ENDING)})/runs/([A-Za-z0-9_.-]+)")
PACKAGES = {"specbench": "specbench-lm", "torch": "torch", "transformers": "transformers"}
VERSION_PATTERN = re.compile(r"\d[\w.+]*", re.ASCII)
TORCH_BUILD = re.compile(r"\+(cpu|cu\d{2,4}|rocm\d[\d.]{0,8}|xpu)$", re.ASCII)  # each has an index of wheels
SERVED = "servers"  # the key of a request by which servers ran the methods
MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class FoundRow:
    """A row of a board: its name, the bundle that has it, and its run there."""

    name: str
    row: Row
    bundle: Path
    run: str


def find_row(folder: Path, name: str) -> FoundRow:
    """Returns the row of a board whose digest begins with a name. Raises ConfigError if none or several do."""
    read_board(folder)
    files = sorted((folder / LEADERBOARDS).glob("*.json"))
    rows = {row.content_digest: row for file in files for row in load(file)}
    found = [digest for digest in rows if name and digest.startswith(name.lower())]
    if len(found) != 1:
        told = "no row" if not found else f"{len(found)} rows"
        raise ConfigError(
            f"specbench board rerun {name:.40}: {folder / LEADERBOARDS} has {told} of this name: give the first "
            f"{NAME_DIGITS} digits of a row as BOARD.md has them, of the {len(rows)} rows there (specbench board merge "
            "writes it)"
        )
    row = rows[found[0]]
    place = PLACE.fullmatch(row.run or "")
    if place is None:
        raise ConfigError(
            f"row {name}: run = {row.run!r:.100}: is not a bundle of this board: repeat specbench board merge"
        )
    return FoundRow(found[0][:NAME_DIGITS], row, folder / BUNDLES / place[1], place[2])


@contextmanager
def opened(
    folder: Path, found: FoundRow, others: Sequence[Path] = ()
) -> Iterator[tuple[MeasuredRow, list[CheckedBundle]]]:
    """Yields a row with its run, and all bundles: that of the row first. Raises ConfigError if a bundle has a problem
    or lacks the row."""
    with verified([found.bundle, *others], signers_of(folder)) as bundles:
        for bundle in bundles:
            for problem in bundle.all_problems():
                raise ConfigError(f"{bundle.file}: {problem}")
        wanted = (found.row.key, found.row.created)
        rows = [each for each in bundles[0].measured_rows() if (each.row.key, each.row.created) == wanted]
        if not rows:
            raise ConfigError(f"{found.bundle}: lacks the row {found.name}: repeat specbench board merge")
        yield rows[0], bundles


# 1. The commands


def rerun_lines(folder: Path, found: FoundRow, specs: Path | None = None) -> list[str]:
    """Returns the commands that measure a row again, with what to compare before, as comments. `specs`: where a task or
    a method that is not built in is written to. Texts of the bundle are a stranger's: they are quoted for a shell, and
    never leave a comment."""
    with opened(folder, found) as (measured, _):
        row, run = measured.row, measured.run
        parts = [each for each in run.measurement_of(row).of_task(row.task_name) if each.subset in row.examples]
        lines = [
            f"# {row.place}, {row.target}: {found.bundle.name}, {found.run}",
            "",
            "# 1. The versions that measured it",
        ]
        versions = {
            name: Version(text).base_version
            for name, text in row.versions.items()
            if name in PACKAGES and text is not None and VERSION_PATTERN.fullmatch(text)
        }
        packages = [f"{package}=={versions[name]}" for name, package in PACKAGES.items() if name in versions]
        build = TORCH_BUILD.search(row.versions.get("torch") or "")
        index = f" --extra-index-url https://download.pytorch.org/whl/{build[1]}" if build else ""
        lines += ["python3 -m venv rerun && . rerun/bin/activate", f"pip install {shlex.join(packages)}{index}"]
        lines += [f"# its code is commit {row.commit}"] if row.commit else []
        lines += ["", "# 2. Models and data"]
        for role, name, revision in (
            ("target", row.target, row.target_revision),
            ("drafter", row.drafter, row.drafter_revision),
        ):
            if name is not None:
                lines.append(f"# {role} {name}" + (f", revision {revision}" if revision else ""))
        for part in parts:
            digest = f", digest or commit {part.revision}" if part.revision else ""
            few = f", {part.worked.num} few-shot examples of digest {part.worked.digest}" if part.worked.num else ""
            lines.append(
                f"# {part.task} {part.subset}: {part.num_examples} examples of {part.source} {part.location}{digest}"
                f"{few}"
            )
        about = [f"dtype {row.dtype}", f"engine {row.engine}", f"attention {row.attention}", f"seed {row.seed}"]
        about += [f"drafts of {row.num_draft_tokens} tokens", f"temperature {row.sampling.temperature:g}"]
        lines += ["", f"# 3. Measure: {', '.join(about)}; there on {row.device}"]
        lines += [*_command(found, row, run, specs), "", "# 4. File it"]
        lines.append(
            shlex.join(
                ["specbench", "board", "rerun", found.name, "--board", str(folder), "--with", f"rerun-{found.name}"]
            )
        )
    return [" ".join(line.split()) if line.startswith("#") else line for line in lines]


def _command(found: FoundRow, row: Row, run: RecordedRun, specs: Path | None) -> list[str]:
    """Returns the command that measures a row, and what it needs beside it, as comments."""
    request = run.measurement_of(row).request
    if not request or SERVED in request:
        return [f"# as it was measured: start the same servers, and name another --output: {row.command}"]
    asked = build(spec_of("Request"), {name: value for name, value in request.items() if name in OPTIONS}, "request: ")
    options = RunOptions(**{name: getattr(asked, name) for name in OPTIONS})
    sizes = set(row.examples.values())
    is_sample = (options.target or EMBEDDED).startswith(EMBEDDED) and options.limit is None
    resolved = {"dtype": row.dtype, "engine": row.engine}  # what "auto" was there
    resolved = {name: value for name, value in resolved.items() if value in OPTIONS[name].choices}
    options = replace(
        options, **resolved, seed=row.seed,  # type: ignore[arg-type]  # they are choices
        target_revision=_of_hub(row.target_revision) or options.target_revision,
        drafter_revision=(_of_hub(row.drafter_revision) if row.drafter == options.drafter else None)
        or options.drafter_revision,
        subsets=options.subsets if row.subset == ALL else None if row.subset == "default" else (row.subset,),
        limit=sizes.pop() if is_sample and len(sizes) == 1 else options.limit,
    )  # fmt: skip
    words, overrides, lines = _spec_words(found, row, run, options.overrides, specs)
    options = replace(options, overrides=tuple(overrides))
    for name in ("trust_remote_code", "allow_code_execution"):
        if getattr(options, name):
            lines.append(f"# {OPTIONS[name].flag}: {OPTIONS[name].help} Look at it before.")
    return [*lines, shlex.join(["specbench", "run", *words, *options.words(), "--output", f"rerun-{found.name}"])]


def _of_hub(revision: str | None) -> str | None:
    return None if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision) else revision


def _spec_words(
    found: FoundRow, row: Row, run: RecordedRun, overrides: Sequence[str], specs: Path | None
) -> tuple[list[str], list[str], list[str]]:
    """Returns the words of a command that name task and method, the overrides that they need, and comments. A spec that
    is not the built-in one with these overrides is taken from the bundle as a file, which has them already."""
    words: list[str] = []
    kept: dict[str, None] = {}
    comments: list[str] = []
    recorded = bounded.read_mapping(run.path / SPECS, "ask for a whole bundle")
    load_spec: dict[str, Callable[[str], TaskSpec | MethodSpec]] = {"task": load_task, "method": load_method}
    for kind, name, wanted in (("task", row.task_name, row.task), ("method", row.method_name, row.method)):
        with suppress(ConfigError):
            spec = load_spec[kind](name)
            taken = [pair for pair in overrides if _with_pairs(spec, [pair]) is not None]
            if (same := _with_pairs(spec, taken)) is not None and versioned_name(same) == wanted:
                words += [f"--{kind}", name]
                kept |= dict.fromkeys(taken)
                continue
        file = (specs or Path("specs")) / f"{name}.yaml"
        words += [f"--{kind}", str(file)]
        if specs is None:
            comments.append(f"# {wanted} is not built in: specbench board rerun {found.name} --specs specs writes it")
        else:
            content = next(each for each in recorded[f"{kind}s"] if each["name"] == name)  # type: ignore[attr-defined]
            write_output("--specs", file, dumped(content))
    return words, list(kept), comments


def _with_pairs(spec: TaskSpec | MethodSpec, pairs: Sequence[str]) -> TaskSpec | MethodSpec | None:
    """Returns a spec with overrides; None if it does not take all of them."""
    try:
        if isinstance(spec, TaskSpec):
            return with_overrides([spec], [], pairs)[0][0]
        return with_overrides([], [spec], pairs)[1][0]
    except ConfigError:
        return None


# 2. The result


@dataclass(frozen=True)
class FiledRun:
    """`file`: the bundle in the board. `agreement`: of the row; `table`: of all rows of the new run with others."""

    file: Path
    agreement: Agreement
    table: Table | None


def file_rerun(folder: Path, found: FoundRow, given: Path, about: About, name: str | None = None) -> FiledRun:
    """Puts a third party's run, or the bundle of one, into a board if it is an independent run of the row's
    configuration, whether it agrees or not. `name`: of the bundle, without its ending. Raises ConfigError for another
    configuration, a copy, and a bundle that does not verify."""
    to = _place(folder, found, name)
    with TemporaryDirectory(prefix="specbench-board-") as scratch:
        file = Path(scratch) / to.name
        if given.is_dir():
            make_bundle([given], file, replace(about, licence=about.licence or read_board(folder).licence))
        elif given.is_file():
            shutil.copyfile(given, file)
            signature = given.with_name(given.name + SUFFIX)
            if signature.is_file():
                shutil.copyfile(signature, file.with_name(file.name + SUFFIX))
        else:
            raise ConfigError(f"--with {given}: no such folder or file: give the folder of a run, or a bundle")
        try:
            with opened(folder, found, [file]) as (measured, bundles):
                agreement = _agreement(measured, bundles[1], given)
                table = agreement_table(verify(bundles))
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(file), f"--with {given}")) from error
        with writing(to, "repair the disk"):
            for path in sorted(Path(scratch).iterdir(), reverse=True):  # the signature first: it is nobody's without
                shutil.copyfile(path, to.with_name(path.name))
    return FiledRun(to, agreement, table)


def _place(folder: Path, found: FoundRow, name: str | None) -> Path:
    if name is not None:
        if not NAME.fullmatch(name):
            raise ConfigError(f"--name {name}: use up to 100 letters, digits, '_', '.' and '-', beginning with no sign")
        to = folder / BUNDLES / f"{name}{ENDING}"
        if to.exists():
            raise ConfigError(f"--name {name}: {to} exists: choose another name")
        return to
    numbers = iter(range(1, 10_000))
    return next(to for n in numbers if not (to := folder / BUNDLES / f"rerun-{found.name}-{n}{ENDING}").exists())


def _agreement(first: MeasuredRow, bundle: CheckedBundle, given: Path) -> Agreement:
    """Returns how the row's configuration in another bundle agrees with it."""
    rows = list(bundle.measured_rows())
    same = next((each for each in rows if is_same_configuration(first.row, each.row)), None)
    if same is None:
        closest = min(
            (each for each in rows if each.row.names == first.row.names), default=None,
            key=lambda each: len(configuration_differences(first.row, each.row)),
        )  # fmt: skip
        if closest is None:
            measured = ", ".join(dict.fromkeys(each.row.place for each in rows))
            raise ConfigError(f"--with {given}: has no row of {first.row.place}, but {measured:.200}: measure it again")
        differ = [
            f"{each.field} = {_short(each.second)}, and the board's row has {_short(each.first)}"
            for each in configuration_differences(first.row, closest.row)
        ]
        more = f", and {len(differ) - MOST_DIFFERENCES} more differ" if len(differ) > MOST_DIFFERENCES else ""
        raise ConfigError(
            f"--with {given}: {closest.row.place} is another configuration: "
            f"{'; '.join(differ[:MOST_DIFFERENCES])}{more}: measure by the command that specbench board rerun prints"
        )
    agreement = compare_runs(first, same)
    if isinstance(agreement, str):
        raise ConfigError(
            f"--with {given}: does not count as a re-run of {first.row.place}: {agreement}: measure it again"
        )
    return agreement


def _short(value: object) -> str:
    return f"{json.dumps(value, ensure_ascii=False, default=str):.100}"
