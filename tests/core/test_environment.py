import json
import platform
import re
import shutil
import subprocess

import pytest
import torch

from specbench.models import machine as module
from specbench.models.machine import commit, environment


def test_says_what_the_numbers_were_measured_on():
    found = environment("cpu", "float32", "sdpa")
    assert (found["dtype"], found["attention"]) == ("float32", "sdpa")
    public, _, local = torch.__version__.partition("+")  # of a wheel whose metadata has no local part
    assert found["versions"]["torch"] in (public, f"{public}+{local}")
    assert found["versions"]["python"] == found["python"] == platform.python_version()
    assert set(found["versions"]) == {"python", "torch", "transformers", "datasets", "specbench"}
    assert found["num_threads"] == torch.get_num_threads() and found["platform"]
    assert found["device"].endswith("1 thread") or f"{torch.get_num_threads()} threads" in found["device"]
    assert json.loads(json.dumps(found)) == found


def test_never_raises(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError

    monkeypatch.setattr(module.subprocess, "run", fail)
    monkeypatch.setattr(module, "version", fail)
    monkeypatch.setattr(module, "_cpu_model", fail)
    found = environment("cpu", "float32", "sdpa")
    assert found["commit"] is None and found["versions"]["torch"] is None and found["device"] == "cpu"
    assert environment("no such device", "float32", "sdpa")["device"] == "no such device"


def test_cuda_devices_are_called_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU at {device}")
    assert environment("cuda:1", "bfloat16", "sdpa")["device"] == "GPU at cuda:1"


def test_cpu_model(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz: 2\nmodel name\t: Other\n")
    assert module._cpu_model(cpuinfo) == "Fast CPU @ 3 GHz: 2"
    cpuinfo.write_text("processor\t: 0\n")
    assert module._cpu_model(cpuinfo) == (platform.processor() or platform.machine())
    assert module._cpu_model(tmp_path / "none")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "checkout"
    for name in ("specbench", "tasks", "methods"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("1")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "--quiet", "--message=one")
    return folder


def git(folder, *arguments):
    environment_variables = {"PATH": module.os.environ["PATH"], "HOME": str(folder)}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment_variables).stdout.strip()


def test_commit_of_a_checkout(checkout):
    head = git(checkout, "rev-parse", "HEAD")
    assert commit(checkout) == head
    (checkout / "notes.txt").write_text("changes nothing that is measured")
    assert commit(checkout) == head
    (checkout / "methods" / "mine.yaml").write_text("name: mine")
    dirty = commit(checkout)
    assert re.fullmatch(f"{head}-dirty-[0-9a-f]{{8}}", dirty) and commit(checkout) == dirty


def test_two_states_of_a_checkout_have_two_names(checkout):
    (checkout / "methods" / "mine.yaml").write_text("name: mine")
    states = [commit(checkout)]
    (checkout / "methods" / "mine.yaml").write_text("name: yours")
    states.append(commit(checkout))
    (checkout / "specbench" / "file").write_text("2")
    states.append(commit(checkout))
    (checkout / "specbench" / "file").unlink()
    states.append(commit(checkout))
    (checkout / "specbench" / "ümläut").write_text("3")
    states.append(commit(checkout))
    assert len(set(states)) == 5


def test_a_hook_of_another_repository_changes_nothing(checkout, tmp_path, monkeypatch):
    head = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit(checkout) == head


def test_a_package_inside_another_repository_has_no_commit(checkout, tmp_path):
    assert commit(checkout / "specbench") is None
    assert commit(tmp_path) is None
    assert commit(tmp_path / "none") is None


def test_a_repository_without_commits_has_none(tmp_path, checkout):
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert commit(empty) is None
