"""The wheel and the editable install carry the built-in files: `specbench list` works from an environment elsewhere.

The environment is empty but for the dependencies, which are taken from the one that runs the tests.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def environment(folder: Path) -> Path:
    """An environment without specbench whose dependencies are this one's; returns its folder of scripts."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr


def clean() -> dict[str, str]:
    """The environment without what would lead to another installation."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


def specbench(scripts: Path, *arguments: str) -> str:
    done = subprocess.run(
        [scripts / "specbench", *arguments], capture_output=True, text=True, cwd=scripts, env=clean(), timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_from(scripts: Path) -> Path:
    code = "import specbench, pathlib; print(pathlib.Path(specbench.__file__).resolve())"
    words = [scripts / "python", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=scripts, env=clean(), check=True)
    return Path(done.stdout.strip())


def test_the_wheel_is_told_of_every_board() -> None:
    wheel = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    told = {Path(name) for name in wheel["targets"]["wheel"]["force-include"]}
    boards = {file.relative_to(CHECKOUT) for file in (CHECKOUT / "leaderboards").glob("*.yaml")}
    assert boards <= told


@pytest.mark.slow
def test_the_wheel_works_elsewhere(tmp_path: Path) -> None:
    pip("wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "dist"))
    scripts = environment(tmp_path / "empty")
    wheel = next((tmp_path / "dist").glob("specbench_lm-*.whl"))
    boards = {f"specbench/builtin/leaderboards/{file.name}" for file in (CHECKOUT / "leaderboards").glob("*.yaml")}
    with zipfile.ZipFile(wheel) as content:
        held = {name for name in content.namelist() if "/leaderboards/" in name and "builtin" in name}
    assert held == boards | {"specbench/builtin/leaderboards/demo.json"}, "records are not installed"
    pip("--python", str(scripts / "python"), "install", "--no-deps", "--no-compile", str(wheel))
    assert imported_from(scripts).is_relative_to((tmp_path / "empty").resolve())
    listed = specbench(scripts, "list")
    for name in ("mgsm", "ar", "sd", "fsd", "draft-only"):
        assert name in listed
    short = ("--limit", "1", "--set", "generation.max_new_tokens=8")
    ran = specbench(scripts, "run", "--task", "mgsm", "--method", "sd", "--subset", "en", *short)
    assert "data: sample" in ran


@pytest.mark.slow
def test_an_editable_install_works_elsewhere(tmp_path: Path) -> None:
    scripts = environment(tmp_path / "empty")
    pip("--python", str(scripts / "python"), "install", "--no-deps", "--no-compile", "--no-build-isolation", "-e", ".")
    assert imported_from(scripts).is_relative_to(CHECKOUT)
    assert "mgsm" in specbench(scripts, "list", "tasks")
