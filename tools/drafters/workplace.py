"""The folder that everything is made in, and the command line that makes it."""

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specbench.core.files import write_atomically
from tools.commands import run_specbench


@dataclass(frozen=True)
class Workplace:
    """`folder` is where all commands run. What is there is not made again, and another command for it is refused.
    `commands`: all of them, in order."""

    folder: Path
    commands: list[str] = field(default_factory=list)

    def path(self, *names: str) -> Path:
        return self.folder.joinpath(*names)

    def specbench(self, made: str, *words: str) -> None:
        """Runs `specbench` with these words unless `made`, the file that tells that it has ended, is there."""
        self._make(made, shlex.join(["specbench", *words]), words, keeps_output=False)

    def report(self, made: str, *words: str) -> str:
        """Returns the output of `specbench … --json`, kept in a file."""
        self._make(made, f"{shlex.join(['specbench', *words])} > {made}", words, keeps_output=True)
        return self.path(made).read_text(encoding="utf-8")

    def told(self, made: str) -> str:
        """Returns the command that made a file."""
        return self._command_file(made).read_text(encoding="utf-8")

    def _command_file(self, made: str) -> Path:
        return self.path("commands", made.replace("/", "-") + ".txt")

    def _make(self, made: str, command: str, words: tuple[str, ...], keeps_output: bool) -> None:
        self.commands.append(command)
        if self.path(made).exists():
            if self.told(made) != command:
                raise SystemExit(f"{self.path(made)}: was made by another command: delete it, or give another --work")
            return
        print(command, flush=True)
        found = self._run(words)
        self.path(made).parent.mkdir(parents=True, exist_ok=True)
        self._command_file(made).parent.mkdir(exist_ok=True)
        write_atomically(self._command_file(made), command)
        if keeps_output:
            write_atomically(self.path(made), found)

    def _run(self, words: tuple[str, ...]) -> str:
        found = run_specbench(words, self.folder, 1, subprocess.PIPE)
        if found.returncode:
            raise SystemExit(f"{shlex.join(words)}: ended with {found.returncode}")
        return found.stdout

    def write_yaml(self, name: str, content: Mapping[str, Any]) -> str:
        """A YAML file of plain values; returns its name."""
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        plain = json.loads(json.dumps(content))
        self.path(name).write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return name

    def method(self, name: str, drafter: Mapping[str, str], num_draft_tokens: int = 5) -> str:
        """A method file that is `sd` with another drafter or another draft length; returns its name."""
        return self.write_yaml(f"methods/{name}.yaml", {
            "name": name, "version": 1, "title": f"Speculative decoding: {name}", "drafter": dict(drafter),
            "verification": {"rule": "rejection"}, "num_draft_tokens": num_draft_tokens,
        })  # fmt: skip


def checkpoint(folder: str) -> dict[str, str]:
    """A draft model by its folder."""
    return {"type": "model", "checkpoint": folder}
