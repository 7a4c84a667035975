"""The folder of a run: created, resumed, and refused when it belongs to another configuration."""

from pathlib import Path

import pytest

from specbench.errors import ConfigError
from specbench.running.run_folder import RunFolder, default_folder, flatten

IDENTITY = {"seed": 0, "methods": {"sd": "sd@1:abc"}, "environment": {"versions": ["a", "b"]}}


def record(example: int) -> dict[str, object]:
    return {"task": "t", "subset": "en", "example": example, "repeat": 0}


def test_records_are_found_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", IDENTITY)
    assert folder.open() == {}
    folder.records.append(record(0))
    assert list(RunFolder(tmp_path / "run", IDENTITY).open()) == [("t", "en", 0, 0)]


def test_another_configuration_is_refused_naming_both_values(tmp_path: Path) -> None:
    RunFolder(tmp_path, IDENTITY).open()
    changed = {**IDENTITY, "seed": 5, "methods": {"sd": "sd@1:abd", "fsd": "fsd@1:xyz"}}
    with pytest.raises(ConfigError) as refused:
        RunFolder(tmp_path, changed).open()
    for part in ("seed: 0 → 5", 'methods.sd: "sd@1:abc" → "sd@1:abd"', 'methods.fsd: absent → "fsd@1:xyz"'):
        assert part in str(refused.value)


def test_records_without_a_configuration_are_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no run\.json"):
        RunFolder(tmp_path, IDENTITY).open()


def test_half_written_configuration(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        RunFolder(tmp_path, IDENTITY).open()


def test_the_default_folder_follows_the_configuration() -> None:
    assert default_folder("mgsm-sd", IDENTITY) == default_folder("mgsm-sd", dict(IDENTITY))
    assert default_folder("mgsm-sd", IDENTITY) != default_folder("mgsm-sd", {**IDENTITY, "seed": 1})


def test_flatten() -> None:
    assert flatten({"a": {"b": [1, "x"]}, "c": None}) == {"a.b.0": "1", "a.b.1": '"x"', "c": "null"}
