"""A folder of one piece of work: held by one process, resumed by the same work, replaced as a whole."""

import sys
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder, replacing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no file locks")


def test_a_folder_is_held_once_and_resumed_by_the_same_work(tmp_path: Path) -> None:
    folder = ResumableFolder(tmp_path / "new", "--runs")
    again = ResumableFolder(tmp_path / "new", "--runs")
    with folder.held({"seed": 0}), pytest.raises(ConfigError, match=r"--runs .*new: another process"), again.held():
        pass
    with folder.held({"seed": 0}):
        pass


def test_other_work_is_refused_naming_what_differs(tmp_path: Path) -> None:
    with ResumableFolder(tmp_path).held({"a": 1, "b": {"c": [1]}, "d": 1, "e": 1}):
        pass
    changed = {"a": 2, "b": {"c": [2]}, "d": 2, "f": 1}
    with pytest.raises(ConfigError) as refused, ResumableFolder(tmp_path).held(changed):
        pass
    assert "(a: 1 → 2; b.c.0: 1 → 2; d: 1 → 2 and 2 more)" in str(refused.value)


def test_a_damaged_identity_and_a_file_in_the_place_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(ConfigError, match=r"delete .* to start again"), ResumableFolder(tmp_path).held({}):
        pass
    with pytest.raises(ConfigError, match="it is a file"), ResumableFolder(tmp_path / "identity.json").held({}):
        pass


def test_a_folder_is_replaced_when_all_is_written_and_not_before(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with replacing(tmp_path / "made") as building:
            (building / "file.txt").write_text(text)
            assert not (tmp_path / "made").exists() or (tmp_path / "made" / "file.txt").read_text() == "first"
        assert (tmp_path / "made" / "file.txt").read_text() == text
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "made") as building:
        (building / "file.txt").write_text("third")
        raise KeyboardInterrupt
    assert (tmp_path / "made" / "file.txt").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made.lock", "made"]
    with replacing(tmp_path / "made"), pytest.raises(BlockingIOError), replacing(tmp_path / "made"):
        pass


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Another program may delete the folder while this one works in it."""
    folder = ResumableFolder(tmp_path / "out")
    with folder.held({}):
        (folder.path / "identity.json").unlink()
        with pytest.raises(ConfigError) as refused, folder.writing():
            (folder.path / "rate-0" / "log.csv").write_text("")
    assert f"({folder.path / 'rate-0' / 'log.csv'}: No such file" in str(refused.value)
