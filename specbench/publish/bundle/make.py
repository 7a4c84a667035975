"""Runs → one archive. Their files are copied without secrets and home folders, and nothing else enters."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import check_output, writing
from specbench.publish.bundle import crate
from specbench.publish.bundle.archive import write_archive
from specbench.publish.bundle.crate import About, BundledRun
from specbench.publish.bundle.scrub import Scrubber
from specbench.publish.bundle.texts import window_without_texts, without_texts
from specbench.records.folder import FILE as SPECS
from specbench.records.folder import read_environments
from specbench.records.records import MAX_LINE, RECORDS
from specbench.records.windows import LOAD_RECORDS
from specbench.results.leaderboard import ROWS
from specbench.results.row import DIGEST, with_digest
from specbench.results.runs import NEEDED_FILES, RUN_FILES, RecordedRun, finished_run
from specbench.specs.catalogue import versioned_name
from specbench.tasks.judge import JUDGEMENTS_FILE


def make_bundle(
    folders: Sequence[Path], to: Path, about: About, *, with_texts: bool = True, scrubber: Scrubber | None = None
) -> list[BundledRun]:
    """Writes the archive of finished runs, the same bytes for the same runs. `with_texts`: otherwise digests stand for
    what models wrote. Raises ConfigError for a folder that is not a finished run or has a link, and for a disk
    error."""
    check_output("--output", to)
    scrub = scrubber or Scrubber.of_user()
    about = About(scrub.text(about.title), about.authors, about.licence, about.doi)
    with (
        TemporaryDirectory(prefix="specbench-bundle-") as scratch,
        writing(scratch, "set TMPDIR to a folder with space"),
    ):
        folder = Path(scratch)
        names = _run_names([scrub.text(path.resolve().name) for path in folders])
        runs = [_bundled(path, name, folder, scrub, with_texts) for path, name in zip(folders, names, strict=True)]
        written = {crate.COMMANDS: crate.commands(runs)}
        if about.authors:
            written[crate.CITATION] = crate.citation(about, max(run.measured_at for run in runs)[:10])
        written[crate.README] = crate.readme(about, runs, to.name, with_texts)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        files = [*sorted(written), *(name for run in runs for name in run.files)]
        (folder / crate.METADATA).write_text(crate.metadata(about, runs, folder, files), encoding="utf-8")
        files.insert(0, crate.METADATA)
        (folder / crate.MANIFEST).write_text(crate.manifest(folder, files), encoding="utf-8")
        write_archive(folder, [crate.README, crate.MANIFEST, *(name for name in files if name != crate.README)], to)
    return runs


def _run_names(names: Sequence[str]) -> list[str]:
    """Returns names of folders that every system can have, each once."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "run"
        numbered = (f"{plain}-{number}" for number in range(2, len(names) + 2))
        taken = {each.casefold() for each in found}
        found.append(next(each for each in (plain, *numbered) if each.casefold() not in taken))
    return found


def _bundled(path: Path, name: str, folder: Path, scrub: Scrubber, with_texts: bool) -> BundledRun:
    """Copies the files of a run."""
    run = finished_run(path)
    copy = folder / "runs" / name
    copy.mkdir(parents=True)
    present = [each for each in RUN_FILES if (path / each).is_file()]
    for each in NEEDED_FILES:
        if each not in present:
            raise ConfigError(f"run '{path}': has no {each}: repeat its command, which writes it again")
    for each in present:
        if (path / each).is_symlink():
            raise ConfigError(f"{path / each}: is a link, and a bundle holds plain files only: put the file there")
    (copy / SPECS).write_text(_settings(path / SPECS, scrub, {}), encoding="utf-8")
    before, after = (
        [*map(versioned_name, each.tasks), *map(versioned_name, each.method_specs)] for each in (run, RecordedRun(copy))
    )  # names hold the digest of the spec, which a scrubbed path may change
    renamed = {old: new for old, new in zip(before, after, strict=True) if old != new}
    for each in present:
        if each == RECORDS:
            _copy_lines(path / each, copy / each, scrub, None if with_texts else without_texts)
        elif each == LOAD_RECORDS:
            _copy_lines(path / each, copy / each, scrub, None if with_texts else window_without_texts)
        elif each == JUDGEMENTS_FILE:
            _copy_lines(path / each, copy / each, scrub, None if with_texts else _without_reply)
        elif each != SPECS:
            (copy / each).write_text(_settings(path / each, scrub, renamed), encoding="utf-8")
    found = RecordedRun(copy)
    return BundledRun(
        name, [f"runs/{name}/{each}" for each in present], found.rows, found.identity, found.measurements,
        read_environments(copy),
    )  # fmt: skip


def _settings(path: Path, scrub: Scrubber, renamed: Mapping[str, str]) -> str:
    """Returns the content of a JSON file with the new names of its specs, and with new digests of rows."""
    content = bounded.read_json(path, "repeat the command of the run", strict=False)
    content = _with_names(scrub.value(content), renamed)
    if path.name == ROWS:
        content["rows"] = [with_digest({key: row[key] for key in row if key != DIGEST}) for row in content["rows"]]
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _with_names(value: Any, renamed: Mapping[str, str]) -> Any:
    if not renamed:
        return value
    if isinstance(value, str):
        return renamed.get(value, value)
    if isinstance(value, list):
        return [_with_names(each, renamed) for each in value]
    return {key: _with_names(each, renamed) for key, each in value.items()} if isinstance(value, dict) else value


def _without_reply(judgement: dict[str, Any]) -> dict[str, Any]:
    return {**judgement, "reply": None}


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the whole lines of a file of records, one at a time."""
    with path.open("rb") as file:
        for number in range(1, bounded.MAX_LINES + 1):
            line = file.readline(2 * MAX_LINE)
            if not line:
                return
            if not line.endswith(b"\n"):
                raise ConfigError(f"{path}, line {number}: is cut off: repeat the command of the run")
            yield line
    raise ConfigError(f"{path}: exceeds {bounded.MAX_LINES:,} lines")


def _copy_lines(
    path: Path, to: Path, scrub: Scrubber, reduced: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> None:
    """Copies lines of JSON. One without anything to change keeps its bytes."""
    with to.open("wb") as written:
        for number, line in enumerate(_lines(path), start=1):
            text = line.decode("utf-8", "surrogatepass")
            if reduced is None and scrub.is_clean_line(text):
                written.write(line)
                continue
            try:
                value = scrub.value(bounded.json_value(text, False, MAX_LINE), is_written_by_model=True)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: {error}: repeat the command of the run") from error
            made = json.dumps(reduced(value) if reduced else value, ensure_ascii=False, separators=(",", ":"))
            written.write(made.encode("utf-8", "surrogatepass") + b"\n")
