"""The folder of a run: created, resumed, and refused when it belongs to another configuration."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.core import dotted
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder, changed_settings
from specbench.models import machine
from specbench.records.folder import RunFolder, add_environment, read_environments, write_specs
from specbench.records.generation import Record, convert
from specbench.records.records import Key
from specbench.specs.catalogue import load_method, load_task, versioned_name
from tests.support.records import whole

IDENTITY = {"seed": 0, "methods": {"sd": "sd@1:abc"}, "environment": {"versions": ["a", "b"]}}


METHODS = {"sd": 3}


def open_and_close(folder: RunFolder) -> list[Key]:
    with folder.open(METHODS) as done:
        return list(done)


def test_records_are_found_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", IDENTITY)
    with folder.open(METHODS) as done:
        assert done == {}
        folder.records.append(convert(whole(), Record))
    assert open_and_close(RunFolder(tmp_path / "run", IDENTITY)) == [("t", "en", 0, 0, 0)]


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", IDENTITY)
    open_and_close(folder)
    folder.records.append(convert(whole(token_ids=[1, 2]), Record))
    with pytest.raises(ConfigError, match=r"records\.jsonl, line 1: .*≠ 2 new tokens"):
        open_and_close(folder)


def test_another_configuration_is_refused_naming_both_values(tmp_path: Path) -> None:
    open_and_close(RunFolder(tmp_path, IDENTITY))
    changed = {**IDENTITY, "seed": 5, "methods": {"sd": "sd@1:abd", "fsd": "fsd@1:xyz"}}
    with pytest.raises(ConfigError) as refused:
        open_and_close(RunFolder(tmp_path, changed))
    for part in ("--seed: 0 → 5", 'method sd: "sd@1:abc" → "sd@1:abd"', 'method fsd: absent → "fsd@1:xyz"'):
        assert part in str(refused.value)
    assert str(refused.value).endswith("choose another --output, or repeat the old command to resume it")


def test_the_command_that_began_a_folder_is_told_and_is_no_setting(tmp_path: Path) -> None:
    open_and_close(RunFolder(tmp_path, IDENTITY, command="specbench run --seed 0"))
    assert open_and_close(RunFolder(tmp_path, IDENTITY, command="specbench run --limit 9")) == []
    with pytest.raises(ConfigError, match=r"to resume it: specbench run --seed 0$"):
        open_and_close(RunFolder(tmp_path, {**IDENTITY, "seed": 5}, command="specbench run --seed 5"))


@pytest.mark.parametrize(
    "before", ["environment.num_threads", "target.name", "drafters.sd.name", "data.mgsm", "code_execution"]
)
def test_a_changed_setting_has_the_name_of_its_option(tmp_path: Path, before: str) -> None:
    flags = {"environment.num_threads": "--threads", "target.name": "--target", "data.mgsm": "--data mgsm",
             "drafters.sd.name": "drafter of method sd", "code_execution": "--allow-code-execution"}  # fmt: skip
    open_and_close(RunFolder(tmp_path, dotted.put(IDENTITY, before, 1)))
    with pytest.raises(ConfigError) as refused:
        open_and_close(RunFolder(tmp_path, dotted.put(IDENTITY, before, 2)))
    assert f"({flags[before]}: 1 → 2)" in str(refused.value)


def test_the_number_of_threads_is_told_once(tmp_path: Path) -> None:
    """It is in the name of the CPU, too."""
    conditions = [
        {"device": f"Some CPU, {threads}", "num_threads": int(threads[0])} for threads in ("1 thread", "2 threads")
    ]
    open_and_close(RunFolder(tmp_path, {"environment": conditions[0]}))
    with pytest.raises(ConfigError, match=r"configuration \(--threads: 1 → 2\)"):
        open_and_close(RunFolder(tmp_path, {"environment": conditions[1]}))
    other = {**conditions[0], "device": "Another CPU, 1 thread"}
    with pytest.raises(ConfigError, match=r'configuration \(device \(--device\): "Some CPU" → "Another CPU"\)'):
        open_and_close(RunFolder(tmp_path, {"environment": other}))


@pytest.mark.parametrize("key", ["environment.commit", "environment.versions.torch", "environment.python"])
def test_no_command_brings_the_old_version_back(tmp_path: Path, key: str) -> None:
    for version in ("1", "2"):
        folder = RunFolder(tmp_path, dotted.put({"seed": int(version)}, key, version))
        if version == "1":
            open_and_close(folder)
    with pytest.raises(ConfigError, match="or repeat the old command with the old version to resume it"):
        open_and_close(folder)


def test_the_keys_of_a_changed_task_or_method_are_named(tmp_path: Path) -> None:
    """Once for all subsets; a folder without its specs names the digests."""

    def folder(max_new_tokens: int, num_draft_tokens: int) -> tuple[RunFolder, Any]:
        task, method = load_task("gsm8k"), load_method("fsd")
        task = task.model_copy(
            update={"generation": task.generation.model_copy(update={"max_new_tokens": max_new_tokens})}
        )
        method = method.model_copy(update={"num_draft_tokens": num_draft_tokens})
        spec: Any = SimpleNamespace(tasks=(task,), methods=(method,))
        named = {"tasks": {"gsm8k": versioned_name(task)}, "methods": {"fsd": versioned_name(method)}}
        return RunFolder(tmp_path, named, spec=spec), spec

    made, spec = folder(24, 3)
    open_and_close(made)
    for is_known in (False, True):
        if is_known:
            write_specs(tmp_path, spec)
        with pytest.raises(ConfigError) as refused:
            open_and_close(folder(25, 4)[0])
        told = (
            "(num_draft_tokens of method fsd: 3 → 4; generation.max_new_tokens of task gsm8k: 24 → 25)",
            '(method fsd: "fsd@',
        )
        assert told[not is_known] in str(refused.value)


def test_data_that_moved_on_the_hub_is_refused_naming_both_commits(tmp_path: Path) -> None:
    """Another subset of the same run is added, and its commit is held fast from then on."""
    for subset, commit in (("t/en", "a1"), ("t/de", "b1"), ("t/en", "a1")):
        open_and_close(RunFolder(tmp_path, {**IDENTITY, "data_revisions": {subset: commit}}))
    for subset, before in (("t/en", "a1"), ("t/de", "b1")):
        with pytest.raises(ConfigError) as refused:
            open_and_close(RunFolder(tmp_path, {**IDENTITY, "data_revisions": {subset: "c2"}}))
        assert f'(data_revisions.{subset}: "{before}" → "c2")' in str(refused.value)


def test_records_without_a_configuration_are_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no run\.json"):
        open_and_close(RunFolder(tmp_path, IDENTITY))


def test_a_lost_configuration_is_written_again_where_the_name_is_its_digest(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, IDENTITY, named_by_digest=True)
    with folder.open(METHODS):
        folder.records.append(convert(whole(), Record))
    written = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(written[:-9])
    with pytest.raises(ConfigError, match=r"not valid JSON: .*: delete it and repeat the command, or choose another"):
        open_and_close(folder)
    (tmp_path / "run.json").unlink()
    assert open_and_close(folder) == [("t", "en", 0, 0, 0)]
    assert (tmp_path / "run.json").read_text() == written


def test_a_place_that_is_no_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=r"task\.yaml: cannot be written .it is a file, not a folder"):
        open_and_close(RunFolder(tmp_path / "task.yaml", IDENTITY))


@pytest.mark.parametrize("content", [b"{", b'{"seed": "\xff"}', b"[" * 100_000])
def test_a_configuration_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"not valid JSON|not UTF-8|exceeds 64 levels"):
        open_and_close(RunFolder(tmp_path, IDENTITY))


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks")
def test_a_folder_in_use_is_refused_and_free_again_after(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, IDENTITY)
    with folder.open(METHODS), pytest.raises(ConfigError) as caught:
        open_and_close(RunFolder(tmp_path, IDENTITY))
    problem = f"--output {tmp_path}: another process is using it: wait for it, or choose another --output"
    assert str(caught.value) == problem
    with folder.open(METHODS), pytest.raises(ConfigError) as caught:
        ResumableFolder(tmp_path).check_free()
    assert str(caught.value) == problem
    ResumableFolder(tmp_path).check_free()
    ResumableFolder(tmp_path / "new").check_free()
    assert not (tmp_path / "new").exists()
    with pytest.raises(KeyboardInterrupt), folder.open(METHODS):
        raise KeyboardInterrupt
    assert open_and_close(folder) == []


def test_records_that_cannot_be_written_are_told_before(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(IDENTITY))
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        open_and_close(RunFolder(tmp_path, IDENTITY))


def test_nested_values_have_dotted_paths() -> None:
    nested = {"a": {"b": [1, "x"], "d": {}, "e": []}, "c": None}
    assert dotted.flat(nested) == {"a.b": [1, "x"], "a.d": {}, "a.e": [], "c": None}
    assert dotted.flat(nested, lists=True) == {"a.b.0": 1, "a.b.1": "x", "a.d": {}, "a.e": {}, "c": None}
    assert dotted.flat({}) == {}


def test_changed_settings_are_named_by_their_dotted_keys() -> None:
    changes = changed_settings({"a": {"b": [1, "x"], "d": {}}, "c": None}, {"a": {"b": [1]}, "c": "é"})
    assert changes == ['a.b.1: "x" → absent', 'c: null → "é"']


def test_a_setting_that_a_later_version_adds_changes_nothing_where_nobody_gave_it() -> None:
    assert changed_settings({"a": 1}, {"a": 1, "later": None}) == []
    assert changed_settings({"a": 1}, {"a": 1, "later": 2}) == ["later: absent → 2"]
    assert changed_settings({"given": 2}, {"given": None}) == ["given: 2 → null"]


def test_each_environment_is_noted_once(tmp_path: Path) -> None:
    """A broken file is not a reason to end a run: no row depends on it."""
    for details in ({"python": "3.11"}, {"python": "3.11"}, {"python": "3.12"}):
        add_environment(tmp_path, details)
    assert read_environments(tmp_path) == [{"python": "3.11"}, {"python": "3.12"}]
    (tmp_path / "environment.json").write_text('{"environments": 3')
    assert read_environments(tmp_path) == []
    add_environment(tmp_path, {"python": "3.13"})
    assert read_environments(tmp_path) == [{"python": "3.13"}]


def test_details_of_this_machine() -> None:
    """All packages as pip tells them, and the files that differ from the commit exactly if there are some."""
    found = machine.details()
    assert found["packages"]["numpy"] == metadata.version("numpy") and len(found["packages"]) > 20
    assert found["cpu"]["num_cpus"] == os.cpu_count()
    assert bool(found.get("changed_files")) is ("-dirty-" in (found["commit"] or ""))
