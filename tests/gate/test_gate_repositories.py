"""The regression check's action in repositories of users: one of a plug-in, and one of a model without any package.

The scripts of the action run as they are, in a git repository with two versions of which the second drafts worse. The
environments that they make hold the packages of this one, since nothing is downloaded.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from specbench.cli.info import write_skeleton
from tests.support import tiny

CHECKOUT = Path(__file__).resolve().parents[2]
STEPS = yaml.safe_load((CHECKOUT / ".github/actions/gate/action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
PYTHON3 = f"""#!/bin/sh
# "python3 -m venv FOLDER": an environment with the packages of this one
{sys.executable} -m venv --without-pip "$3"
cat > "$3/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/outer.pth" << END
{CHECKOUT}
import site; site.addsitedir('{sysconfig.get_path("purelib")}')
END
"""
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
SMALL = "--subset en --data sample --device cpu --threads 1 --set generation.max_new_tokens=24 --warm-up 0"


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "gc.auto=0"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Runs the action's scripts for a pull request whose base is the branch `main`, and whose head is checked out."""

    def run(repository: Path, **inputs: str) -> tuple[str, str]:
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir()
        (bin_folder / "python3").write_text(PYTHON3, encoding="utf-8")
        (bin_folder / "python3").chmod(0o755)
        git(tmp_path, "clone", "--quiet", "--branch", "main", str(repository), "gate-base")
        git(tmp_path, "clone", "--quiet", str(repository), "gate-head")
        settings = {
            "TORCH_INDEX": "", "SPECBENCH": "", "PACKAGE": ".", "TASK": "mgsm", "LIMIT": "2", "MAX_REGRESSION": "1%",
            "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary", **inputs,
        }  # fmt: skip
        path = f"{bin_folder}:{os.environ['PATH']}"
        (install, measure) = (step["run"] for step in STEPS if {"PACKAGE", "METHOD"} & {*step.get("env", {})})
        for script in (install, measure):
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
                env={**os.environ, **OFFLINE, **settings, "PATH": path},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return (tmp_path / "output").read_text(), (tmp_path / "gate.md").read_text()

    return run


@pytest.mark.slow
def test_a_plugin_that_drafts_worse(gate: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """Its method is that of its package, which each side has installed from its own checkout."""
    write_skeleton("plugin", "own-plugin", tmp_path)
    repository = tmp_path / "own-plugin"
    drafter = repository / "own_plugin/drafter.py"
    repeats = drafter.read_text(encoding="utf-8")
    git(repository, "init", "--quiet")
    looks_up = "ids[ids.index(ids[-1]) + 1 :][: min(self.times, num_draft_tokens)]"
    drafter.write_text(repeats.replace("ids[-1:] * min(self.times, num_draft_tokens)", looks_up), encoding="utf-8")
    commit(repository, "proposes what followed the last token before")
    git(repository, "checkout", "--quiet", "-b", "change")
    drafter.write_text(repeats, encoding="utf-8")
    commit(repository, "repeats the last token")
    result, report = gate(repository, METHOD="own-plugin-drafter", OPTIONS=SMALL)
    assert result == "result=1\n"
    assert re.search(r"own-plugin-drafter, en: τ 1\.[1-9]\d* → 1\.0\d\d", report), report


@pytest.mark.slow
def test_a_model_that_drafts_worse(gate: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """A repository of checkpoints and a method file, without a package: relative paths are of each side's checkout."""
    repository = tmp_path / "models"
    tiny.save(repository / "target", num_hidden_layers=1)
    git(repository, "init", "--quiet")
    for branch, noise in (("main", 0.03), ("change", 0.5)):
        network = tiny.network(num_hidden_layers=1, vocab_size=257)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += noise * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0
        network.save_pretrained(repository / "drafter")
        tiny.tokenizer().save_pretrained(repository / "drafter")
        git(repository, "checkout", "--quiet", "-B", branch)
        commit(repository, f"noise {noise}")
    result, report = gate(repository, METHOD="sd", OPTIONS=f"{SMALL} --target target --drafter drafter")
    assert result == "result=1\n"
    assert re.search(r"sd, en: τ [2-9]\.\d+ → 1\.", report) and "baseline: files of ../gate-base" in report, report
