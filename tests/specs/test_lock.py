"""The committed lock: a meaning that moves needs a new version."""

import shutil

import pytest

from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.specs import catalogue
from tools import lock


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of some built-in files with a fresh lock, free to be changed."""
    for name in (
        "methods/ar.yaml",
        "methods/fsd.yaml",
        "methods/sd.yaml",
        "tasks/mgsm.yaml",
        "tasks/samples/mgsm.jsonl",
    ):
        kind, _, file = name.partition("/")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(builtin_dir(kind) / file, tmp_path / name)
    for module in (catalogue, lock):
        monkeypatch.setattr(module, "builtin_dir", lambda kind: tmp_path / kind)
    lock.write(tmp_path / "versions.lock")
    return tmp_path


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_committed_lock_is_that_of_the_files():
    assert lock.check() == []


def test_the_lock_names_every_file():
    files = [*builtin_dir("tasks").glob("*.yaml"), *builtin_dir("methods").glob("*.yaml")]
    named = {f"{path.parent.name}/{path.name}" for path in files}
    named |= {f"tasks/samples/{path.name}" for path in (builtin_dir("tasks") / "samples").glob("*.jsonl")}
    assert set(lock.read()) == named


def test_an_unchanged_copy_passes(copy):
    assert lock.check(copy / "versions.lock") == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("methods/fsd.yaml", "threshold: 0.3", "threshold: 0.4"),
        ("methods/sd.yaml", "num_draft_tokens: 5", "num_draft_tokens: 6"),
        ("tasks/mgsm.yaml", "Pregunta:", "Pregunta :"),
        ("tasks/mgsm.yaml", "max_new_tokens: 320", "max_new_tokens: 321"),
    ],
)
def test_a_moved_meaning_needs_a_new_version(copy, file, old, new):
    path = copy / "versions.lock"
    before, version = path.read_text(), lock.read(path)[file].version
    change(copy / file, old, new)
    (problem,) = lock.check(path)
    assert problem.startswith(f"{file}: its content changed (digest ")
    assert f"write version: {version + 1}" in problem
    with pytest.raises(ConfigError, match="its content changed"):
        lock.write(path)
    assert path.read_text() == before
    change(copy / file, f"version: {version}", f"version: {version + 1}")
    assert all("run python -m tools.lock" in problem for problem in lock.check(path))
    lock.write(path)
    assert lock.check(path) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("methods/fsd.yaml", "title: Fuzzy", "title: A fuzzy"),
        ("methods/fsd.yaml", "[5, 10, 15, 20]", "[5, 10]"),
        ("methods/fsd.yaml", "divergence: js,", "divergence: js, divergence_on: raw,"),
        ("tasks/mgsm.yaml", "paper: arXiv:2210.03057", "paper: arXiv:2210.03057v1"),
    ],
)
def test_words_may_change_freely(copy, file, old, new):
    change(copy / file, old, new)
    assert lock.check(copy / "versions.lock") == []


def test_a_changed_sample_needs_a_new_version_of_its_task(copy):
    sample = copy / "tasks" / "samples" / "mgsm.jsonl"
    change(sample, "\n", " \n")
    (problem,) = lock.check(copy / "versions.lock")
    assert problem.startswith("tasks/samples/mgsm.jsonl: its content changed")
    version = lock.read(copy / "versions.lock")["tasks/samples/mgsm.jsonl"].version
    assert f"write version: {version + 1} in its task" in problem


def test_new_and_removed_files_are_stale(copy):
    change(copy / "methods" / "sd.yaml", "name: sd", "name: sd2")
    (copy / "methods" / "sd.yaml").rename(copy / "methods" / "sd2.yaml")
    problems = lock.check(copy / "versions.lock")
    assert [problem.partition(":")[0] for problem in problems] == ["methods/sd.yaml", "methods/sd2.yaml"]


def test_a_version_cannot_go_back(copy):
    change(copy / "methods" / "sd.yaml", "version: 1", "version: 3")
    lock.write(copy / "versions.lock")
    change(copy / "methods" / "sd.yaml", "version: 3", "version: 2")
    change(copy / "methods" / "sd.yaml", "num_draft_tokens: 5", "num_draft_tokens: 6")
    assert "its content changed" in lock.check(copy / "versions.lock")[0]


def test_a_broken_lock_names_its_line(tmp_path):
    (tmp_path / "versions.lock").write_text("methods/sd.yaml 1 abc\nmethods/fsd.yaml one abc\n")
    with pytest.raises(ConfigError, match=r"versions\.lock, line 2: is not `path version digest`"):
        lock.check(tmp_path / "versions.lock")


def test_the_committed_list_of_the_methods_is_that_of_the_files():
    page = (builtin_dir("methods") / "README.md").read_text(encoding="utf-8")
    assert page == lock.methods_page(), "run python -m tools.lock"


def test_methods_are_short():
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in builtin_dir("methods").glob("*.yaml")
    }
    assert len(lengths) > 50 and {name: length for name, length in lengths.items() if length > 12} == {}
