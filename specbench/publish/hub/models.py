"""The rows of one model, and whether the model is one of the hub."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError, nearest
from specbench.publish.bundle.verify import levels_of
from specbench.publish.hub.forms import is_repository
from specbench.publish.paper.rows import Selection, read_rows
from specbench.publish.suite_runs import RUNS
from specbench.report.captions import model_name
from specbench.results.leaderboard import ROWS
from specbench.results.level import Levels
from specbench.results.row import ALL, Row
from specbench.results.runs import filter_rows, rows_of_subsets

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ModelRows:
    """The rows in which a model drafts, and those of methods on it as the target, without AR's. `all`: of all models
    and of AR. `levels`: of rows that bundles have."""

    name: str
    as_drafter: tuple[Row, ...]
    as_target: tuple[Row, ...]
    all: tuple[Row, ...]
    levels: Levels | None = None

    @property
    def revisions(self) -> list[str | None]:
        own = [row.drafter_revision for row in self.as_drafter] + [row.target_revision for row in self.as_target]
        return list(dict.fromkeys(own))


def rows_of_model(
    name: str, sources: Sequence[Path], filters: Sequence[str] = (), subsets: Sequence[str] = (),
    bundles: Sequence[Path] = (), signers: Path | None = None, *, each_subset: bool = False,
) -> ModelRows:  # fmt: skip
    """Returns the rows of a model, named as in the rows or by the last part of that name. `sources`: leaderboard files
    and folders of runs or sweeps; without any, all finished runs in `runs`. `subsets`: by default the rows over all
    subsets, where a task has several; with `each_subset` those of single subsets. `bundles`, `signers`: confirm rows.
    Raises ConfigError for an unknown model with the nearest name, and for unknown filters and subsets."""
    if signers is not None and not bundles:
        raise ConfigError(f"--signers {signers}: has no effect without --bundle: add --bundle, or remove it")
    found = list(sources) or [path.parent for path in sorted(RUNS.glob(f"*/{ROWS}"))]
    if not found:
        raise ConfigError(f"no finished runs in {RUNS}: name leaderboard files or folders of runs")
    rows = [row for row, _ in read_rows(found, Selection()).chosen]
    known = list(dict.fromkeys(each for row in rows for each in (row.drafter, row.target) if each))
    same = [each for each in known if name in (each, each.rstrip("/").rpartition("/")[2])]
    full = name if name in known else same[0] if len(same) == 1 else None
    if full is None:
        listed = ", ".join(same or [each for each in known if name.lower() in each.lower()])
        if listed:
            raise ConfigError(f"'{name}': is a part of a model's name: give the whole name: {listed}")
        places = ", ".join(map(str, found))
        raise ConfigError(f"'{name}': no row of {places} has this model: {nearest(name, known)}")
    own = [row for row in rows if full in (row.drafter, row.target) and not row.is_baseline]
    if not own:
        raise ConfigError(f"'{full}': has rows of AR only: measure a method on it, or with it as the drafter")
    filtered = filter_rows(own, filters)
    if each_subset and not subsets:
        chosen = [row for row in filtered if row.subset != ALL]
    else:
        chosen = rows_of_subsets(filtered, subsets)
    drafts = tuple(row for row in chosen if row.drafter == full)
    on_target = tuple(row for row in chosen if row.drafter != full)
    levels = levels_of(chosen, bundles, signers) if bundles else None
    return ModelRows(full, drafts, on_target, tuple(rows), levels)


def why_not_on_hub(name: str, revision: str | None) -> str | None:
    """Returns why a row's model is not known to be one of the hub; None if it is: a name of a repository with a commit.
    A local folder may have a name of the same form, and a copy of other weights may have any name."""
    if name.startswith(EMBEDDED):
        return "a demonstration model inside specbench, not one of the hub"
    if revision is not None and COMMIT.fullmatch(revision) and is_repository(name):
        return None
    if revision is None:
        return "the row has no revision, so that nobody can tell which weights were measured"
    if revision.startswith("local-"):
        return "a local folder, not a model of the hub, whatever its name; its weights may be others"
    return f"identified by {revision}, not by a commit on the hub"


def told_model(name: str, revision: str | None) -> str:
    """Returns a model with its revision, and a note if it is none of the hub."""
    reason = why_not_on_hub(name, revision)
    return model_name(name, revision) + (f" [{reason}]" if reason else "")
