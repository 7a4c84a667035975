"""What tools share that run the command line: its process, and links."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.commands import ROOT, link, run_specbench


def test_a_link_follows_its_source(tmp_path: Path) -> None:
    """A folder that was moved leaves a link to nothing, and another model may have the name of an earlier one."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    place = tmp_path / "models" / "model"
    for name in ("first", "second", "gone", "first"):
        link(place, tmp_path / name)
        assert place.resolve() == (tmp_path / name).resolve()


def test_commands_are_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        told.update(options, command=command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("tools.commands.subprocess", SimpleNamespace(run=run))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    run_specbench(["list", "tasks"], tmp_path, 3, subprocess.PIPE)
    assert told["command"][1:] == ["-m", "specbench", "list", "tasks"] and told["cwd"] == tmp_path
    assert told["env"]["PYTHONPATH"] == os.pathsep.join([str(ROOT), "elsewhere"])
    assert told["env"]["OMP_NUM_THREADS"] == "3"
