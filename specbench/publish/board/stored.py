"""The runs in bundles that a board has, as far as a new bundle is compared with them: rows, and what tells a copy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, file_digest
from specbench.publish.board.changes import BUNDLES
from specbench.publish.bundle.agreement import COPIED, is_same_configuration
from specbench.publish.bundle.archive import unpack
from specbench.records.records import MAX_LINE, RECORDS
from specbench.results.conditions import conditions_that_differ
from specbench.results.leaderboard import ROWS, load
from specbench.results.row import Row


class _Times(msgspec.Struct):
    decode_seconds: float = 0.0


class _Timed(msgspec.Struct):
    """A line of records, as far as it tells when and how fast it was measured."""

    measured_at: float | None = None
    methods: dict[str, _Times] = {}


@dataclass(frozen=True)
class StoredRun:
    """A run in a bundle. `digest`: of its records. `times`: the decode times of all answers of all methods in seconds,
    each once. `moments`: the Unix times at which its measurements ended."""

    bundle: str
    name: str
    rows: Sequence[Row]
    digest: str
    times: NDArray[np.float64]
    moments: NDArray[np.float64]

    def __str__(self) -> str:
        return f"{self.bundle}: {self.name}"

    def copy_of(self, other: "StoredRun") -> str | None:
        """Returns why two runs are one measurement, whatever their names are; None if nothing tells it. Clocks do not
        give the same times twice. Whoever edits every time is not found."""
        if self.digest == other.digest:
            return "has the same records as"
        for own, theirs, what in ((self.times, other.times, "times"), (self.moments, other.moments, "moments")):
            fewest = min(len(own), len(theirs))
            same = len(np.intersect1d(own, theirs, assume_unique=True))
            if fewest and same > COPIED * fewest:
                return f"has {same:,} of {len(own):,} {what} in common with"
        return None


def stored_run(bundle: str, folder: Path, rows: Sequence[Row] | None = None) -> StoredRun:
    """Returns a run of an unpacked bundle. `rows`: those of it that are known already; None reads them."""
    times: set[float] = set()
    moments: set[float] = set()
    decoder = msgspec.json.Decoder(_Timed)
    path = folder / RECORDS
    with path.open("rb") as file:
        while line := file.readline(2 * MAX_LINE):
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{bundle}: {folder.name}/{RECORDS}: is not a file of records ({error})") from error
            times.update(each.decode_seconds for each in found.methods.values() if each.decode_seconds > 0)
            moments.update(() if found.measured_at is None else (found.measured_at,))
    if rows is None:
        rows = load(folder / ROWS)
    return StoredRun(
        bundle, folder.name, rows, file_digest(path, WHOLE), *(np.array(sorted(s)) for s in (times, moments))
    )


def stored_runs(files: Sequence[Path]) -> list[StoredRun]:
    """Returns the runs of bundles that a board has, which were checked when they came. One is unpacked at a time."""
    found = []
    for file in files:
        with TemporaryDirectory(prefix="specbench-bundle-") as scratch:
            names = unpack(file, Path(scratch))
            runs = dict.fromkeys(name.split("/")[1] for name in names if name.endswith(f"/{RECORDS}"))
            found += [stored_run(file.name, Path(scratch) / "runs" / name) for name in runs]
    return found


def is_measured_again(first: Row, row: Row) -> bool:
    """Returns whether a row is of the first one's configuration, machine and libraries; the commit may be another."""
    if first.device != row.device or first.names != row.names:
        return False
    if first.key == row.key:
        return True
    return is_same_configuration(first, row) and not conditions_that_differ(first, row, {"target", "seed"})


def measured_targets(runs: Sequence[StoredRun]) -> Mapping[str, str | None]:
    """Returns the revisions of the targets that a board has, by name."""
    return {row.target: row.target_revision for run in reversed(runs) for row in run.rows}


def placed(row: Row, bundle: str, run: str) -> Row:
    """Returns a row of a bundle as the board's files have it: with the place of its records, in the archive."""
    return row.model_copy(update={"run": f"../{BUNDLES}/{bundle}/runs/{run}"})


def row_name(row: Row, bundle: str, run: str) -> str:
    """Returns the first 8 hex digits of the digest of a board's row, by which commands name it."""
    return placed(row, bundle, run).content_digest[:NAME_DIGITS]


NAME_DIGITS = 8
