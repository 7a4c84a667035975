"""The source files of code outside this package, and their revision, which distinguishes edited code from the measured
one. This package itself is identified by its commit, or by a digest of its files."""

import ast
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.metadata import entry_points, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType

from specbench.built_in import BUILT_IN
from specbench.core.environment import PACKAGE, builtin_dir
from specbench.core.values import WHOLE, bytes_digest, file_digest

OWN = "specbench"
# Code of these counts by the libraries' versions, which rows hold.
LIBRARIES = {OWN, "torch", "transformers", "numpy", *sys.stdlib_module_names} - {"__main__"}
SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
MAX_FILES = 256  # of one component, the nearest imports first
_REVISIONS: dict[tuple[int, ...], tuple[list[object], str | None]] = {}


def code_revision(modules: Iterable[str | ModuleType | None]) -> str | None:
    """Returns "local-" and 12 hex digits over the files of modules and of what they import, as `source_files` finds
    them; None if all belong to LIBRARIES or have no file.

    The revision of a module that is imported already is taken once: a file that is edited later is not what runs.
    """
    named = [sys.modules.get(each, each) if isinstance(each, str) else each for each in modules if each is not None]
    loaded = [each for each in named if isinstance(each, ModuleType)]
    kept = [getattr(each, "__spec__", None) or each for each in loaded]  # a module that is loaded again has another one
    key = tuple(map(id, kept))
    if len(loaded) == len(named) and key in _REVISIONS:
        return _REVISIONS[key][1]
    places = [
        (each, _file_of(each)) if isinstance(each, str) else (each.__name__, _loaded_file(each)) for each in named
    ]
    revision = digest_of(
        source_files((_plain_name(name, file), file) for name, file in places if file and not is_library(name))
    )
    if len(loaded) == len(named):
        _REVISIONS[key] = kept, revision  # they are kept, so that nothing else gets their ids
    return revision


def digest_of(files: dict[str, Path]) -> str | None:
    """Returns the revision of files by name; that of a single file is the digest of its bytes. None without files."""
    if not files:
        return None
    if len(files) == 1:
        return f"local-{file_digest(next(iter(files.values())))}"
    lines = (f"{name} {file_digest(files[name], WHOLE)}\n" for name in sorted(files))
    return f"local-{bytes_digest(line.encode() for line in lines)}"


@cache
def package_digest() -> str:
    """Returns 12 hex digits over the source files, tasks and methods of this package."""
    files = [*PACKAGE.rglob("*.py"), *(file for kind in ("tasks", "methods") for file in builtin_dir(kind).rglob("*"))]
    return bytes_digest(file.read_bytes() for file in sorted(files) if file.is_file() and file.suffix != ".pyc")


def plugins_digest() -> str | None:
    """Returns 12 hex digits over the packages of all installed plug-ins with their YAML files, whether a run uses them
    or not; None without any. Nothing is imported."""
    groups = (*BUILT_IN, *(f"{OWN}.{kind}" for kind in ("tasks", "methods")))
    tops = {point.module.partition(".")[0] for group in groups for point in entry_points(group=group)} - {OWN}
    lines = []
    for top in sorted(tops):
        spec = find_spec(top)
        folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
        files = {str(file.relative_to(folder)): file for folder in folders for file in folder.rglob("*")}
        if not folders and spec is not None and spec.origin is not None:
            files = {name: file for name, file in source_files([(top, Path(spec.origin))]).items()}
        read = sorted(name for name, file in files.items() if file.suffix in (*SUFFIXES, ".yaml", ".yml"))
        lines += [f"{top} {name} {file_digest(files[name], WHOLE)}\n" for name in read]
    return bytes_digest(line.encode() for line in lines) if tops else None


def is_outside(part: object) -> bool:
    """Returns whether a function, a class or the class of an object is outside this package."""
    named = part if isinstance(part, type | FunctionType) else type(part)
    return str(named.__module__).partition(".")[0] != OWN


def is_library(module: object) -> bool:
    """Returns whether the code of a module counts by its name only."""
    return str(module).partition(".")[0] in LIBRARIES


def source_files(modules: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Returns by dotted name the files of modules, given by name and file, and of the modules that they import anywhere
    in their code: those beside them, and others that are not installed. Of installed code only modules of the same
    distribution count, since a distribution has a version. At most MAX_FILES files."""
    found: dict[str, Path] = {}
    waiting = deque((name, file, _root_of(name, file)) for name, file in modules)
    while waiting and len(found) < MAX_FILES:
        name, file, root = waiting.popleft()
        if name in found or not file.is_file():
            continue
        found[name] = file
        related = _same_distribution(name.partition(".")[0]) if _is_installed(root) else None
        for imported in _imports(name, file):
            if imported in found or is_library(imported):
                continue
            if related is not None and imported.partition(".")[0] not in related:
                continue
            if (beside := _file_in(root, imported)) is not None:
                waiting.append((imported, beside, root))
                continue
            other = _loaded_file(sys.modules.get(imported)) or _file_of(imported)
            if other is not None and not any(map(_is_installed, other.absolute().parents)):
                waiting.append((imported, other, _root_of(imported, other)))
    return found


def _plain_name(name: str, file: Path) -> str:
    """Returns a module's name; that of its file for a script, and for a file that was loaded under another name."""
    return name if "." in name or file.stem == "__init__" else file.stem


def _root_of(name: str, file: Path) -> Path:
    """Returns the folder from which a module is imported: the one that holds its top-level package."""
    depth = name.count(".") + (file.stem == "__init__")
    folders = file.absolute().parents
    return folders[min(depth, len(folders) - 1)]


@cache
def _is_installed(folder: Path) -> bool:
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib", "platstdlib")}
    return folder.name in ("site-packages", "dist-packages") or folder.resolve() in places


@cache
def _same_distribution(top: str) -> frozenset[str]:
    """Returns the top-level names of the distributions that install `top`, with `top` itself."""
    by_name = packages_distributions()
    own = set(by_name.get(top, ()))
    return frozenset({top, *(name for name, others in by_name.items() if own & set(others))})


def _imports(name: str, file: Path) -> Iterator[str]:
    """Yields the names of modules that a source file imports, parents first; of an unreadable file and of an extension
    none. A name may be that of a function instead, which no file has."""
    if file.suffix not in SOURCE_SUFFIXES:
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            names = [str(node.args[0].value)] if called in ("import_module", "__import__") else []
        for each in names:
            parts = each.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _file_in(root: Path, name: str) -> Path | None:
    """Returns the file of a module in the folder from which it is imported; None if there is none."""
    path = root.joinpath(*name.split("."))
    places = (
        place for suffix in SUFFIXES for place in (path / f"__init__{suffix}", path.with_name(path.name + suffix))
    )
    return next((place for place in places if place.is_file()), None)


def _loaded_file(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None


def _file_of(name: str) -> Path | None:
    """Returns the file of a module that may not be imported yet; None if there is none."""
    if is_library(name):
        return None
    top = name.partition(".")[0]
    try:
        spec = find_spec(top)  # imports nothing
    except (ValueError, ImportError):
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return _file_in(_root_of(top, Path(spec.origin)), name)
