"""The session with GGUF files that is timed, with an installation that is there already, and its page."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.support import gguf_files
from tools import laptop
from tools.commands import ROOT
from tools.laptop import DRAFTER, MEASURED, PAIR, RUN, TARGET, Files, page, read

PIP = """Processing ./specbench
Processing /opt/wheels/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (from specbench-lm==0.1.0)
Collecting numpy<3,>=2.0 (from specbench-lm==0.1.0)
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (6.6 kB)
  Using cached scipy-1.17.0-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (62 kB)
Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)
Using cached scipy-1.17.0-cp311-cp311-manylinux_2_27_x86_64.whl (35.3 MB)
  Downloading llama_cpp_python-0.3.36.tar.gz (54.1 MB)
Building wheels for collected packages: specbench-lm, llama-cpp-python
  Created wheel for specbench-lm: filename=specbench_lm-0.1.0-py3-none-any.whl size=1 sha256=0
  Created wheel for llama-cpp-python: filename=llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl size=1 sha256=0
Successfully installed numpy-2.4.6
"""


def test_where_pip_took_packages_from() -> None:
    found = Files.of(PIP)
    assert found.downloaded == ["llama_cpp_python-0.3.36.tar.gz", "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl"]
    assert found.cached == ["scipy-1.17.0-cp311-cp311-manylinux_2_27_x86_64.whl"]
    assert found.local == ["torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"]
    assert found.built == ["llama-cpp-python", "specbench-lm"]


def test_the_command_is_that_of_the_guide() -> None:
    """With files in the place of the hub's names, and a name for its folder."""
    guide = (ROOT / "docs" / "guide" / "gguf.md").read_text(encoding="utf-8")
    (command,) = (line for line in guide.splitlines() if line.startswith("specbench run "))
    hub = "Qwen/Qwen2.5-Coder-{}-Instruct-GGUF:Q4_K_M"
    files = {hub.format("1.5B"): TARGET, hub.format("0.5B"): DRAFTER}
    assert [files.get(word, word) for word in shlex.split(command)] == shlex.split(RUN)[:-2]


def test_the_committed_page_is_that_of_the_committed_session() -> None:
    text = (MEASURED / "laptop.md").read_text(encoding="utf-8")
    assert text == page(read(MEASURED)) and "/tmp" not in text and str(ROOT) not in text


@pytest.mark.slow
def test_a_session_is_timed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has this specbench, as if pip had installed it there, and the models are small."""
    models, told = tmp_path / "models", tmp_path / "pip.txt"
    models.mkdir()
    told.write_text(PIP)
    for name, model in ((TARGET, "drafter"), (DRAFTER, "drafter-scdf")):
        (models / name).symlink_to(gguf_files.embedded(model))
    program = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m specbench "$@"\n'
    (tmp_path / "program").write_text(program)
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(laptop, "MAKE", "mkdir -p environment/bin")
    install = f"cp {tmp_path / 'program'} environment/bin/specbench; cat {told} # pip {{words}}"
    monkeypatch.setattr(laptop, "INSTALL", install)
    fewer = "--limit 1 --set generation.max_new_tokens=8"
    shorter = [command.replace("--limit 8", fewer) for command in laptop.COMMANDS]
    monkeypatch.setattr(laptop, "COMMANDS", shorter)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr("sys.argv", ["laptop", str(models), "--place", str(place)])
    laptop.main()
    found = json.loads((place / "laptop.json").read_text(encoding="utf-8"))
    assert [step["command"] for step in found["steps"]][2:] == shorter
    assert found["files"]["local"] and [row["method"] for row in found["rows"]] == ["ar", "pld", "sd"]
    assert all(step["wall"] >= 0 for step in found["steps"]) and sum(step["cpu"] for step in found["steps"]) > 1
    *_, first, again, _ = found["steps"]
    assert again["cpu"] < first["cpu"] + 1 and str(tmp_path) not in found["advice"]
    text = (place / "laptop.md").read_text(encoding="utf-8")
    assert text == page(found) and f"| `{shorter[-1]}` |" in text and "| sd | 1 | " in text
    assert "1 file (scipy-1.17.0" in text and "llama-cpp-python, specbench-lm" in text


def test_a_session_whose_command_fails_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laptop, "MAKE", "echo it cannot be made; exit 3")
    for name in (TARGET, DRAFTER):
        (tmp_path / name).touch()
    monkeypatch.setattr("sys.argv", ["laptop", str(tmp_path), "--place", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"exit 3: exit status 3\nit cannot be made"):
        laptop.main()
    assert not (tmp_path / "laptop.json").exists() and not (tmp_path / "laptop.md").exists()


def test_models_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["laptop", str(tmp_path), "--place", str(tmp_path)])
    with pytest.raises(SystemExit):
        laptop.main()
    assert f"{tmp_path / TARGET} is missing" in capsys.readouterr().err and PAIR.startswith(f"--target {TARGET}")
