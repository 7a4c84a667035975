"""The files of .github: their commands are those of this version."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from specbench.cli import make_app

GITHUB = Path(__file__).resolve().parents[1] / ".github"
FILES = sorted(GITHUB.rglob("*.yml"))
OPTIONS = re.compile(r"--[a-z][a-z-]+")


def scripts(content: Any) -> list[str]:
    """Returns every value of a key `run` that is a text."""
    if isinstance(content, list):
        return [script for each in content for script in scripts(each)]
    if not isinstance(content, dict):
        return []
    own = [content["run"]] if isinstance(content.get("run"), str) else []
    return own + [script for value in content.values() for script in scripts(value)]


def commands(script: str) -> list[list[str]]:
    """Returns the words of each call of specbench in a script."""
    lines = script.replace("\\\n", " ").splitlines()
    return [
        line.partition("specbench ")[2].split() for line in lines if re.search(r"(^|/)specbench [a-z]", line.strip())
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(GITHUB)))
def test_scripts_are_bash_and_call_what_exists(path: Path) -> None:
    group: Any = typer.main.get_command(make_app())
    found = scripts(yaml.safe_load(path.read_text()))
    assert found
    for script in found:
        plain = re.sub(r"\$\{\{.*?\}\}", "x", script)
        subprocess.run(["bash", "-n"], input=plain, text=True, check=True)
        for words in commands(plain):
            known = {option for each in group.commands[words[0]].params for option in each.opts}
            assert set(OPTIONS.findall(" ".join(words))) <= known, words


def test_the_files_call_specbench() -> None:
    called = {
        words[0] for path in FILES for script in scripts(yaml.safe_load(path.read_text())) for words in commands(script)
    }
    assert {"fetch", "check"} <= called
