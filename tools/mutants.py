"""Checks that the fast tests catch defects in the package: each entry of mutants.yaml is put into a copy and tested.

    python -m tools.mutants                          all of them
    python -m tools.mutants swapped-p-and-q …        some of them
    python -m tools.mutants --check                  only whether every entry fits the source

For each mutant the test files nearest to its module run first, then all that name it, then all other tests, up to the
first failure. Exit code 0: all caught; 1: one or more missed; 2: an entry does not fit the source, or the tests fail
without any mutant.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import yaml

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".yaml")
IGNORED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "*.egg-info", ".venv", "venv")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", re.MULTILINE)
NUM_FIRST = 4  # test files that run before the others, without the start of workers
CAUGHT, PASSED, NO_TESTS = (1, 2), 0, 5  # exit codes of pytest; 2: several workers failed at once


class Unfit(Exception):
    """An entry of the table, or the state of the tests, from which nothing can be concluded."""


@dataclass(frozen=True)
class Mutant:
    """One defect: the text `old`, which occurs once in the package, becomes `new`."""

    name: str
    why: str
    old: str
    new: str

    def file(self, root: Path, texts: Mapping[Path, str] | None = None) -> Path:
        """Returns the source file that holds `old`. Raises Unfit unless exactly one place of one file does. `texts`:
        those of all source files, if they are read already."""
        texts = source_texts(root) if texts is None else texts
        found = {path: text.count(self.old) for path, text in texts.items()}
        places = {path.relative_to(root): count for path, count in found.items() if count}
        if sum(places.values()) != 1:
            told = ", ".join(f"{path} ({count} times)" for path, count in places.items()) or "in no file"
            raise Unfit(
                f"{self.name}: the text must stand in specbench/ exactly once, and it stands {told}: {self.old!r}"
            )
        return next(iter(places))

    def apply(self, root: Path) -> Path:
        """Puts the defect into a copy of the repository; returns the file that has it."""
        path = self.file(root)
        (root / path).write_text((root / path).read_text().replace(self.old, self.new))
        compile((root / path).read_text(), str(path), "exec")
        return path


def source_texts(root: Path) -> dict[Path, str]:
    """Returns the source files of the package with their texts."""
    return {path: path.read_text() for path in sorted((root / "specbench").rglob("*.py"))}


def read_table(path: Path = TABLE) -> list[Mutant]:
    """Returns the entries of the table. Raises Unfit for two of one name."""
    mutants = [Mutant(**entry) for entry in yaml.safe_load(path.read_text())]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise Unfit(f"{path.name}: two mutants have one name")
    return mutants


def nearest_tests(root: Path, source: Path) -> list[str]:
    """Returns the test files that bear the name of a source file, then those that name its module, or else its package,
    the most often naming first."""
    module = ".".join(source.with_suffix("").parts)
    texts = {path: path.read_text() for path in sorted((root / "tests").rglob("test_*.py"))}
    for name in (module, module.rpartition(".")[0]):
        found = [path for path, text in texts.items() if name in text or source.stem in path.stem]
        if found:
            found.sort(key=lambda path: (source.stem not in path.stem, -texts[path].count(name)))
            return [str(path.relative_to(root)) for path in found]
    return []


def run_tests(root: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs pytest in a copy of the repository up to the first failure; returns its exit code and its output."""
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    # The test of the table fails for every mutant, since its text is gone from the source.
    itself = "--ignore=tests/tools/test_mutants.py"
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", itself, *arguments]
    made = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return made.returncode, made.stdout + made.stderr


def caught_by(root: Path, source: Path, workers: Sequence[str]) -> str | None:
    """Returns the first test that fails, None where none does. Raises Unfit where pytest itself fails."""
    nearest = nearest_tests(root, source)
    first, others = nearest[:NUM_FIRST], nearest[NUM_FIRST:]
    rest = [*workers, *(f"--ignore={path}" for path in nearest)]
    for arguments in filter(None, (first and ["-n", "0", *first], others and [*workers, *others], rest)):
        code, output = run_tests(root, arguments)
        failed = FAILED.search(output)
        if code in CAUGHT and failed:
            check_sound(failed[1])
            return failed[1]
        if code not in (PASSED, NO_TESTS):
            raise Unfit(f"pytest ended with exit code {code}:\n{output[-2000:]}")
    return None


def check_sound(test: str) -> None:
    """Raises Unfit for a test that fails without any mutant."""
    code, output = run_tests(ROOT, ["-n", "0", test])
    if code != PASSED:
        raise Unfit(f"{test} fails without a mutant too (exit code {code}):\n{output[-2000:]}")


def copies(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Path, Path]]:
    """One copy of the repository per mutant, with it: (mutant, root, source file)."""
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            root = Path(folder) / ROOT.name
            shutil.copytree(ROOT, root, ignore=IGNORED)
            yield mutant, root, mutant.apply(root)


def judge(mutants: Sequence[Mutant], workers: Sequence[str]) -> int:
    """Tests every mutant and prints what caught it; returns how many were missed."""
    num_missed = 0
    for mutant, root, source in copies(mutants):
        start = perf_counter()
        test = caught_by(root, source, workers)
        num_missed += test is None
        told = f"caught by {test}" if test else f"MISSED: {mutant.why}"
        print(f"{mutant.name} ({source}): {told} [{perf_counter() - start:.0f} s]", flush=True)
    print(f"{len(mutants) - num_missed} of {len(mutants)} caught")
    return num_missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to test; all without any")
    parser.add_argument("--check", action="store_true", help="only find the text of every mutant in the source")
    parser.add_argument("-n", dest="workers", default="auto", help="worker processes of pytest (default: auto)")
    options = parser.parse_args()
    try:
        table = read_table()
        if unknown := sorted(set(options.names) - {mutant.name for mutant in table}):
            raise Unfit(f"no mutant is called {', '.join(unknown)}: there are {', '.join(each.name for each in table)}")
        chosen = [mutant for mutant in table if mutant.name in options.names or not options.names]
        for mutant in chosen:
            print(f"{mutant.name}: {mutant.file(ROOT)}") if options.check else mutant.file(ROOT)
        return 0 if options.check else int(judge(chosen, ["-n", options.workers]) > 0)
    except Unfit as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
