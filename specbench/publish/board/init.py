"""A new board repository: board.yaml, the workflow that checks and publishes, and what `merge` writes of no bundle."""

import json
from collections.abc import Sequence
from pathlib import Path

from specbench.built_in import __version__
from specbench.core.errors import ConfigError
from specbench.core.files import writing
from specbench.publish.board.changes import KEPT
from specbench.publish.board.check import SIGNERS
from specbench.publish.board.merge import LEADERBOARDS, PAGE, SITE, merge_board
from specbench.publish.board.rules import RULES_FILE
from specbench.publish.board.spec import FILE

SKELETON = Path(__file__).parent / "skeleton"
WORKFLOW = ".github/workflows/board.yml"
GIT_IGNORE = f"/{SITE}/\n/.*.lock\n/.*.building/\n/.*.earlier/\n/rerun-*/\n/specs/\n"  # what commands make here
GIT_ATTRIBUTES = "* -text\n*.tar.gz binary\n"  # bytes are signed and compared: git must not change line ends


def init_board(
    folder: Path, title: str, address: str | None = None, tasks: Sequence[str] = (), targets: Sequence[str] = (),
    install: str | None = None,
) -> list[str]:  # fmt: skip
    """Writes a board repository into a new or empty folder. Returns the names of its files. `install`: what pip
    installs in its workflow, by default this version. Raises ConfigError for a folder that has files, and for
    a disk error."""
    if folder.is_file() or (folder.is_dir() and any(path.name != ".git" for path in folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder, or one that has nothing but .git")
    written = {
        FILE: _board_yaml(title, address, tasks, targets),
        WORKFLOW: _filled("board.yml", install=install or f"specbench-lm=={__version__}"),
        "README.md": _filled("README.md", title=title),
        SIGNERS: _filled(SIGNERS), ".gitignore": GIT_IGNORE, ".gitattributes": GIT_ATTRIBUTES, KEPT: "",
    }  # fmt: skip
    with writing(folder, "name another folder"):
        for name, text in written.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    merge_board(folder)
    return [*written, RULES_FILE, PAGE, f"{LEADERBOARDS}/"]


def _filled(name: str, **values: str) -> str:
    text = (SKELETON / name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"<{key}>", value)
    return text


def _board_yaml(title: str, address: str | None, tasks: Sequence[str], targets: Sequence[str]) -> str:
    """Returns board.yaml with a comment on every key. Every JSON text is a YAML text."""
    quoted = {"title": json.dumps(title, ensure_ascii=False), "address": json.dumps(address, ensure_ascii=False)}
    task_lines = "".join(f"\n  - task: {json.dumps(name, ensure_ascii=False)}" for name in tasks) or " []"
    target_lines = "".join(f"\n  - name: {json.dumps(name, ensure_ascii=False)}" for name in targets) or " []"
    return _filled(FILE, **quoted, tasks=task_lines, targets=target_lines, version=__version__)
