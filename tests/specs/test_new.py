"""`specbench new` writes files that run as they are; those of the guide are the same."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.cli.info import NEXT, SKELETONS, write_skeleton
from specbench.core.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]
Specbench = Callable[..., tuple[int, str, str]]


def test_a_task_and_a_method_run_at_once(specbench: Specbench) -> None:
    code, out, _ = specbench("new", "task", "adding")
    assert code == 0 and out.split()[:2] == ["adding.jsonl", "adding.yaml"]
    assert "next: specbench run --task adding.yaml --method sd" in out
    code, out, _ = specbench("new", "method", "careful")
    assert code == 0 and "careful.yaml" in out
    code, out, err = specbench("validate", "adding.yaml", "careful.yaml")
    assert (code, err) == (0, "") and "(task adding)" in out and "(method careful)" in out
    code, out, err = specbench(
        "run", "--task", "adding.yaml", "--method", "careful.yaml", "--set", "generation.max_new_tokens=4"
    )
    assert code == 0 and "adding@1 · careful@1" in out, err


def test_nothing_is_overwritten(specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # as under `python -m`: every folder here can be imported
    (tmp_path / "mine.jsonl").write_text("mine")
    code, _, err = specbench("new", "task", "mine")
    assert code == 2 and "mine.jsonl: already exists: choose another name, or remove it" in err
    assert (tmp_path / "mine.jsonl").read_text() == "mine" and not (tmp_path / "mine.yaml").exists()
    (tmp_path / "mine").mkdir()
    code, _, err = specbench("new", "plugin", "mine")
    assert code == 2 and "mine: already exists" in err and not list((tmp_path / "mine").iterdir())
    (tmp_path / "my_own").mkdir()
    assert specbench("new", "plugin", "my-own")[0] == 0


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("tasks", "mine", "unknown kind 'tasks': did you mean 'task'"),
        ("task", "../mine", "not a valid name: use letters, digits"),
        ("method", "", "not a valid name"),
        ("plugin", "9lives", "not a valid name: use lowercase letters"),
        ("plugin", "class", "not a valid name"),
        ("plugin", "json", "a Python module 'json' already exists: choose another name"),
    ],
)
def test_bad_names_are_refused(kind: str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        write_skeleton(kind, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_skeleton("task", "mine", tmp_path / "file")


BOTH = """
import sys
from specbench.cli import main
for words in {words}:
    sys.argv = ["specbench", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""  # one process, which imports once what both commands need


@pytest.mark.slow
def test_a_plugin_is_installed_and_runs_at_once(tmp_path: Path) -> None:
    """With pip, as a user installs it: its methods and its task are valid, and a run measures all of its parts."""
    write_skeleton("plugin", "quick-one", tmp_path)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    installed = tmp_path / "installed"
    subprocess.run([*pip, "--target", str(installed), str(tmp_path / "quick-one")], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), str(CHECKOUT)])}

    files = sorted(str(path) for path in (installed / "quick_one").rglob("*.yaml"))
    run = ["run", "--task", "quick-one-task", "--method", "quick-one-drafter,quick-one-rule,quick-one-engine",
           "--set", "generation.max_new_tokens=6", "--warm-up", "0"]  # fmt: skip
    command = [sys.executable, "-c", BOTH.format(words=(["validate", *files], run))]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert out.count("ok: ") == len(files) == 4
    assert "begins" in out and "rule quick-one-rule, probability 0.3" in out
    assert "external decoder quick_one.engine:Engine" in out and out.count("verdict: greedy equal") == 2


def test_the_drafter_of_the_plugin_is_short() -> None:
    text = (SKELETONS / "plugin" / "my_plugin" / "drafter.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line]) <= 15


def test_the_guide_shows_the_files_of_the_plugin() -> None:
    guide = (CHECKOUT / "docs" / "guide" / "plugins.md").read_text(encoding="utf-8")
    assert all(guide.count(line) == 1 for line in guide.splitlines() if line.startswith("| entry point group"))
    assert NEXT["plugin"].startswith("pip install -e {name} && ") and "`pip install -e my-plugin`" in guide
    for name in ("drafter.py", "rule.py", "scorer.py", "engine.py"):
        text = (SKELETONS / "plugin" / "my_plugin" / name).read_text(encoding="utf-8")
        assert f"```python\n{text}```\n" in guide, name
    assert f"```toml\n{(SKELETONS / 'plugin' / 'pyproject.toml').read_text(encoding='utf-8')}```\n" in guide
