"""A store reads each record when it is asked for, and of a large run only the methods that are needed."""

import json
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.records import store as module
from specbench.records.records import RecordFile
from specbench.records.store import RecordList, RecordStore
from tests.support import records as made_of

DEMO = Path(__file__).parents[2] / "leaderboards/demo/wmt/records.jsonl"


@pytest.fixture(params=[2**26, 60_000, 0], ids=["all kept", "some kept", "none kept"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecordStore:
    monkeypatch.setattr(module, "KEPT", request.param)
    return RecordStore(RecordFile(DEMO))


def test_it_holds_the_records_of_the_file(made: RecordStore) -> None:
    records = RecordFile(DEMO).read()
    assert list(made) == [record.key for record in records] and list(made.values()) == records
    assert made == {record.key: record for record in records} == made
    assert made != {record.key: record for record in records[1:]}
    assert ("wmt", "none", 0, 0, 0) not in made and made.get(("wmt", "none", 0, 0, 0)) is None


def test_a_part_has_some_records_with_at_least_some_methods(made: RecordStore) -> None:
    keys = list(made)[4:1:-1]
    part = made.only(keys, ["ar", "tli"])
    assert list(part) == keys
    for key, record in part.items():
        whole = made[key]
        assert {name: record.methods[name] for name in ("ar", "tli")} == {
            name: whole.methods[name] for name in ("ar", "tli")
        }
        assert (record.key, record.prompt, record.reference, record.order) == (
            whole.key, whole.prompt, whole.reference, whole.order,
        )  # fmt: skip


def test_of_a_record_on_disk_only_these_methods_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 0)
    part = RecordStore(RecordFile(DEMO)).only(methods=["scdf", "ar"])
    assert all(set(record.methods) == {"scdf", "ar"} for record in part.values())


def test_equal_answers_of_two_methods_are_two_parts_of_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "KEPT", 0)
    file = RecordFile(tmp_path / "records.jsonl")
    file.append(made_of.record({name: made_of.generation() for name in ("ar", "sd", "pld")}))
    (found,) = RecordStore(file).only(methods=["ar", "sd"]).values()
    assert list(found.methods) == ["ar", "sd"] and found.methods["ar"] == found.methods["sd"]


def test_a_list_reads_its_records_in_its_order(made: RecordStore) -> None:
    keys = sorted(made)
    records = RecordList(made, keys)
    assert [record.key for record in records] == keys and len(records) == len(keys)
    assert [record.key for record in records[1:3]] == keys[1:3] and records[-1].key == keys[-1]


def test_a_new_record_is_written_and_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second, *_ = RecordFile(DEMO).read()
    for number, kept in enumerate((0, 2**20)):
        monkeypatch.setattr(module, "KEPT", kept)
        store = RecordStore(RecordFile(tmp_path / f"{number}.jsonl"))
        for record in (first, second):
            store.add(record)
        assert store[first.key] == first and store[second.key] == second
        assert RecordFile(tmp_path / f"{number}.jsonl").read() == [first, second]


def test_a_file_that_was_changed_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "KEPT", 0)
    path = tmp_path / "records.jsonl"
    lines = DEMO.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    store = RecordStore(RecordFile(path))
    path.write_bytes(lines[1])
    with pytest.raises(ConfigError, match=r"records\.jsonl: was changed while it was read"):
        list(store.values())


def test_the_lines_of_earlier_versions_are_read_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "KEPT", 0)
    path = tmp_path / "records.jsonl"
    line = json.loads(DEMO.read_bytes().splitlines()[0])
    line["reference"] = "\ud800"  # half a character, which an earlier version wrote
    path.write_text(json.dumps(line) + "\n")
    (record,) = RecordStore(RecordFile(path)).only(methods=["ar"]).values()
    assert record.reference == "\ud800" and "ar" in record.methods
