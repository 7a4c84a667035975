"""Which versions of a scorer's packages made the scores of a run, and whether those here are others.

Scores that are made again by another version may differ although nobody changed them. What a run noted tells this apart
from scores that nobody got: the packages in environment.json, the versions in run.json, and sacrebleu's signatures.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from specbench.built_in import __version__
from specbench.core.environment import DISTRIBUTION
from specbench.records.folder import read_environments
from specbench.results.runs import RecordedRun
from specbench.specs.task import TaskSpec

SACREBLEU = "sacrebleu"
OTHER_VERSION = "another version of the scorer"  # in the names of fields that were therefore not confirmed
SIGNED = re.compile(r"\bversion:([^|&\s]+)")  # in sacrebleu's signature


@dataclass(frozen=True)
class ScorerVersions:
    """`noted`: by package, the versions with which a run says that it scored; none for what it does not say."""

    noted: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RecordedRun) -> "ScorerVersions":
        noted: dict[str, set[str]] = {}
        for name, found in _noted(run):
            noted.setdefault(name, set()).add(found)
        return cls({name: frozenset(found) for name, found in noted.items()})

    def others(self, task: TaskSpec) -> str:
        """Returns the packages of a task's scorer that a run noted with another version than the one here, such as
        "sacrebleu 2.5.1 there and 2.6.0 here"; empty if there are none."""
        packages = () if task.scorer is None else (DISTRIBUTION, *task.scorer.features.packages)
        told = []
        for name in packages:
            noted, here = self.noted.get(name, frozenset()), version_here(name)
            if noted and noted != {here}:
                told.append(f"{name} {' and '.join(sorted(noted))} there and {here or 'none'} here")
        return "; ".join(told)


def _noted(run: RecordedRun) -> Iterator[tuple[str, str]]:
    versions = (run.identity.get("environment") or {}).get("versions") or {}
    if own := versions.get("specbench"):
        yield DISTRIBUTION, str(own)
    for environment in read_environments(run.path):
        packages = environment.get("packages")
        for name, found in packages.items() if isinstance(packages, dict) else ():
            if name != DISTRIBUTION or not own:
                yield str(name), str(found)
    for row in run.rows:
        yield from ((SACREBLEU, found) for found in signed_versions(row.signatures.values()))


def signed_versions(signatures: Iterable[str]) -> list[str]:
    """Returns the versions of sacrebleu in its signatures."""
    return [found for text in signatures for found in SIGNED.findall(text)]


def without_version(signature: str) -> str:
    return SIGNED.sub("version:", signature)


def version_here(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    if package == DISTRIBUTION:
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None
