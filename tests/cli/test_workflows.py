"""The files of .github: their commands are those of this version."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from specbench.cli import make_app

GITHUB = Path(__file__).resolve().parents[2] / ".github"
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
        line.partition("specbench ")[2].split()
        for line in lines
        if re.search(r"(^|/|-m )specbench [a-z]", line.strip())
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


RECORDER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> {calls}
case "$*" in *"import llama_cpp"*) exit {binding} ;; esac
"""


@pytest.mark.parametrize("binding", [0, 1])
def test_the_tests_of_llama_cpp_run_every_week_and_are_not_skipped(tmp_path: Path, binding: int) -> None:
    """Without the binding the script fails: pytest would skip them all, and say that they passed."""
    workflow = yaml.safe_load((GITHUB / "workflows" / "gguf.yml").read_text())
    assert workflow[True]["schedule"] and ".ci/gguf" in scripts(workflow)  # YAML 1.1 reads the key `on` as true
    script = GITHUB.parent / ".ci" / "gguf"
    for name in ("python", "pytest"):
        (tmp_path / name).write_text(RECORDER.format(calls=tmp_path / "calls", binding=binding))
        (tmp_path / name).chmod(0o755)
    done = subprocess.run([script], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    install, _, *tested = (tmp_path / "calls").read_text().splitlines()
    assert "[test,gguf]" in install and done.returncode == binding and len(tested) == 1 - binding
    for words in map(str.split, tested):
        files = {Path(word).name for word in words if word.startswith("tests/")}
        assert {"test_llama_cpp_engine.py", "test_llama_cpp_faults.py", "test_gguf.py"} <= files
        assert all((GITHUB.parent / word).is_file() for word in words if word.startswith("tests/"))


GH = """#!/usr/bin/env bash
echo "$@" >> calls
case "$*" in
  *--jq*) echo "$OLD" ;;
  *) exit "$WRITES" ;;
esac
"""


@pytest.mark.parametrize(
    ("old", "exit_code", "expected"),
    [("", 0, "--method POST c/comments"), ("17", 0, "--method PATCH c/17"), ("", 1, "--method POST c/comments")],
)
def test_a_pull_request_has_one_comment_and_a_token_that_may_only_read_fails_nothing(
    tmp_path: Path, old: str, exit_code: int, expected: str
) -> None:
    steps = yaml.safe_load((GITHUB / "actions" / "gate" / "action.yml").read_text())["runs"]["steps"]
    (script,) = (step["run"] for step in steps if "GH_TOKEN" in step.get("env", {}))
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "gate.md").write_text("all is well")
    settings = {"OLD": old, "WRITES": str(exit_code), "COMMENTS": "c/comments", "COMMENT": "c"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, **settings, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2 and expected in calls[1] and "-F body=@comment.md" in calls[1]
    assert (tmp_path / "comment.md").read_text().splitlines() == ["<!-- specbench gate -->", "all is well"]
    assert ("::warning::no comment" in done.stdout) == bool(exit_code)
