"""The committed digests of built-in files. A file whose meaning changes needs a new version.

`python -m tools.lock` rewrites tools/versions.lock, and methods/README.md, the list of the methods by family. It fails
if a digest changed and the version did not.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.core.values import file_digest
from specbench.specs.catalogue import digest, load_file, load_method, method_families
from specbench.specs.task import TaskSpec

LOCK = Path(__file__).with_name("versions.lock")


class Entry(NamedTuple):
    version: int
    digest: str


def current() -> dict[str, Entry]:
    """Returns an entry for every task, method and sample file. A sample has the version of its task."""
    entries = {}
    for kind in ("methods", "tasks"):
        for path in sorted(builtin_dir(kind).glob("*.yaml")):
            spec = load_file(path)
            entries[f"{kind}/{path.name}"] = Entry(spec.version, digest(spec))
            subsets = [spec.subset(name) for name in spec.subset_names] if isinstance(spec, TaskSpec) else []
            samples = {each.sample for each in subsets} | {each.fewshot.sample for each in subsets if each.fewshot}
            for sample in map(Path, filter(None, samples)):
                if sample.is_file():
                    entries[f"tasks/samples/{sample.name}"] = Entry(spec.version, file_digest(sample))
    return entries


def read(path: Path = LOCK) -> dict[str, Entry]:
    """Reads the lock file, whose lines are path, version and digest of a file. A missing lock file is empty."""
    if not path.is_file():
        return {}
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        parts = line.split()
        if len(parts) != 3 or not parts[1].isdecimal():
            raise ConfigError(f"{path}, line {number}: is not `path version digest`: restore the file")
        entries[parts[0]] = Entry(int(parts[1]), parts[2])
    return entries


def unversioned_changes(locked: dict[str, Entry], now: dict[str, Entry]) -> list[str]:
    """Returns a line for each file whose digest changed while its version did not increase."""
    problems = []
    for path, entry in now.items():
        old = locked.get(path, entry)
        if entry.digest != old.digest and entry.version <= old.version:
            where = " in its task" if "samples/" in path else ""
            problems.append(
                f"{path}: its content changed (digest {old.digest} → {entry.digest}) but its version is "
                f"{entry.version}: write version: {old.version + 1}{where}, then run python -m tools.lock"
            )
    return problems


def check(path: Path = LOCK) -> list[str]:
    """Returns a line for each difference between the lock and the files."""
    locked, now = read(path), current()
    problems = unversioned_changes(locked, now)
    stale = sorted(name for name in {*locked, *now} if locked.get(name) != now.get(name))
    if not problems and stale:
        problems = [f"{name}: differs from {path.name}: run python -m tools.lock" for name in stale]
    return problems


def write(path: Path = LOCK) -> None:
    """Rewrites the lock. Raises ConfigError if a digest changed while its version did not increase."""
    now = current()
    problems = unversioned_changes(read(path), now)
    if problems:
        raise ConfigError("; ".join(problems))
    lines = [f"{name} {entry.version} {entry.digest}\n" for name, entry in sorted(now.items())]
    path.write_text("".join(lines), encoding="utf-8")


def methods_page() -> str:
    """Returns the list of the methods by what their drafts come from, in Markdown."""
    about = (
        "By what their drafts come from, as `specbench list methods` shows them. Each is a file of at most 12 lines, "
        "and `specbench show NAME` explains it. `python -m tools.lock` writes this page."
    )
    lines = ["# Methods", "", about]
    for family, names in method_families().items():
        lines += ["", f"## {family[0].upper()}{family[1:]}", ""]
        for spec in map(load_method, names):
            paper = (
                f" ([{spec.paper}](https://arxiv.org/abs/{spec.paper.removeprefix('arXiv:')}))" if spec.paper else ""
            )
            lines.append(f"- [`{spec.name}`]({spec.name}.yaml): {spec.title}{paper}")
    return "\n".join([*lines, ""])


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m tools.lock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    try:
        write()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    page = builtin_dir("methods") / "README.md"
    page.write_text(methods_page(), encoding="utf-8")
    print(f"wrote {LOCK} and {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
