"""`specbench new`: writes the skeleton of a task, a method or a plug-in."""

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from specbench.core.console import stdout
from specbench.core.environment import is_installed
from specbench.core.errors import ConfigError, nearest

SKELETONS = Path(__file__).parent / "skeletons"
# The command that runs the skeleton of a kind. {name} is the given name.
NEXT = {
    "task": "specbench run --task {name}.yaml --method sd",
    "method": "specbench run --task mgsm --method {name}.yaml --subset en --limit 2",
    "plugin": "pip install --no-build-isolation -e {name} && "
    "specbench run --task {name}-task --method {name}-drafter,{name}-rule,{name}-engine",
}
NAMES = {"task": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "method": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "plugin": r"[a-z][a-z0-9_-]*"}


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="task, method or plugin.")],
    name: Annotated[str, typer.Argument(help="Its name, also used for the files in the current folder.")],
) -> None:
    """Write the skeleton of a task, a method or a plug-in into the current folder. Existing files are never replaced.

    The skeleton runs as it is: a task with two rows, a fuzzy method, or a package with a drafter, a verification rule,
    a scorer, an engine, and methods and a task that use them.
    """
    for path in write_skeleton(kind, name, Path()):
        stdout.print(path, soft_wrap=True)
    stdout.print(f"next: {NEXT[kind].format(name=name)}", soft_wrap=True)


def write_skeleton(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the files of a skeleton below a folder and returns their paths. Raises ConfigError for an unknown kind, an
    unsuitable name, an existing file or folder, and a plug-in named like an installed module."""
    if kind not in NEXT:
        raise ConfigError(f"specbench new {kind}: unknown kind '{kind}': {nearest(kind, NEXT)}")
    module = name.replace("-", "_")
    if not re.fullmatch(NAMES[kind], name) or (kind == "plugin" and keyword.iskeyword(module)):
        letters = "small letters, digits, - and _" if kind == "plugin" else "letters, digits, -, _ and ."
        raise ConfigError(f"specbench new {kind} {name}: not a valid name: use {letters}, beginning with a letter")
    source, target = SKELETONS / kind, folder / name if kind == "plugin" else folder
    if kind == "plugin" and target.exists():
        raise ConfigError(f"{target}: already exists: choose another name, or remove it")
    if kind == "plugin" and is_installed(module):
        raise ConfigError(f"specbench new plugin {name}: Python has a module '{module}' already: choose another name")
    written = {}
    for file in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        path = target / _named(file.relative_to(source).as_posix(), kind, name)
        if path.exists():
            raise ConfigError(f"{path}: already exists: choose another name, or remove it")
        written[path] = _named(file.read_text(encoding="utf-8"), kind, name)
    for path, text in written.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error
    return list(written)


def _named(text: str, kind: str, name: str) -> str:
    """Returns a text of a skeleton with the given name in place of the skeleton's."""
    return text.replace(f"my-{kind}", name).replace(f"my_{kind}", name.replace("-", "_"))
