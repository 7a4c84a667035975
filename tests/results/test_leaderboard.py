import json
import multiprocessing
import os
import sys

import pytest

from specbench.core.errors import ConfigError
from specbench.results.leaderboard import check_writable, edit_rows, load, merge_rows, write
from specbench.results.row import LATER_FIELDS, RESULT_FIELDS, with_digest
from specbench.statistics.bootstrap import INTERVALS, Estimate
from tests.support.rows import FIELDS, row


def merge(path, rows):
    """Puts rows into a file; returns all rows."""
    with edit_rows(path) as known:
        known[:] = merge_rows(known, rows)
    return known


def test_rows_survive_the_file(tmp_path):
    rows = [row(), row(subset="サブ", metrics={}, drafter=None)]
    write(tmp_path / "board.json", rows)
    assert load(tmp_path / "board.json") == rows
    content = json.loads((tmp_path / "board.json").read_text(encoding="utf-8"))
    assert content["format"] == 1 and content["rows"][0]["metrics"]["speedup"]["low"] == 1.25
    assert [path.name for path in tmp_path.iterdir()] == ["board.json"]


def test_rows_of_earlier_versions_lack_some_fields(tmp_path):
    write(tmp_path / "board.json", [row()])
    content = json.loads((tmp_path / "board.json").read_text())
    old = {name: value for name, value in content["rows"][0].items() if name not in LATER_FIELDS}
    content["rows"][0] = with_digest(old)
    (tmp_path / "board.json").write_text(json.dumps(content))
    assert load(tmp_path / "board.json") == [row()]


def test_a_row_refuses_unknown_fields_and_change():
    with pytest.raises(ValueError, match="speed"):
        row(speed=1)
    with pytest.raises(ValueError, match="frozen"):
        row().n = 3
    with pytest.raises(ValueError, match="finite"):
        Estimate(value=float("nan"))


def test_an_infinite_threshold_can_be_written(tmp_path):
    endless = row(options={"verification": {"threshold": float("inf"), "list": (1, float("inf"))}})
    assert merge(tmp_path / "board.json", [endless]) == [endless] == load(tmp_path / "board.json")


def test_merge_replaces_the_same_result_and_keeps_the_others(tmp_path):
    path = tmp_path / "new" / "board.json"
    merge(path, [row(), row(subset="en")])
    again = row(metrics={"speedup": Estimate(value=2.0)}, created="2026-02-02T00:00:00Z", command="specbench run …")
    assert merge(path, [again]) == load(path) == [again, row(subset="en")]
    others = [
        row(**change)
        for change in ({"options": {}}, {"device": "GPU"}, {"n": 17}, {"sampling": {"temperature": 1.0}}, {"seed": 1})
    ]
    assert merge(path, others) == [again, row(subset="en"), *others]


def test_the_key_is_everything_but_the_outcome():
    told = set(FIELDS) - {"metrics", "created", "command"} | {
        "format",
        "engine",
        "served",
        "subsets",
        *LATER_FIELDS - RESULT_FIELDS,
    }
    assert set(json.loads(row().key)) == told
    assert row(quality="bleu", signatures={"bleu": "tok:zh"}).key == row().key
    other = INTERVALS.model_copy(update={"level": 0.9})
    assert row(intervals=other).key == row().key, "other intervals are of the same result"


def test_a_row_says_how_its_intervals_were_computed(tmp_path):
    write(tmp_path / "board.json", [row()])
    assert [each.intervals for each in load(tmp_path / "board.json")] == [INTERVALS]
    said = json.loads((tmp_path / "board.json").read_text(encoding="utf-8"))["rows"][0]["intervals"]
    assert (said["level"], said["resamples"]) == (0.95, 2000) and "bootstrap-t" in said["method"]["ratios of sums"]


WHOLE = json.dumps({"format": 1, "rows": [with_digest(row().model_dump(mode="json"))]})
BROKEN = {
    "empty": "",
    "half-written": WHOLE[: len(WHOLE) // 2],
    "a list": "[]",
    "no rows": '{"format": 1}',
    "another format": WHOLE.replace('"format": 1, "rows"', '"format": 4, "rows"'),
    "a row of another format": WHOLE.replace('{"format": 1, "task"', '{"format": 4, "task"'),
    "a format that is not a number": WHOLE.replace('"format": 1, "rows"', '"format": true, "rows"'),
    "a row without a key": WHOLE.replace('"run": null, ', ""),
    "no intervals": json.dumps(
        {"format": 1, "rows": [with_digest({**row().model_dump(mode="json"), "intervals": None})]}
    ),
    "unknown field": WHOLE.replace('"subset"', '"subsett"'),
    "wrong type": WHOLE.replace('"n": 16', '"n": "many"'),
    "not a number": WHOLE.replace("1.25", "NaN"),
    "more beside the rows": WHOLE[:-1] + ', "x": 1}',
    "deep": "[" * 100_000,
    "a row that is none": '{"format": 1, "rows": [3]}',
    "edited by hand": WHOLE.replace('"value": 1.5', '"value": 2.5'),
    "twice": WHOLE[:-2] + ", " + WHOLE[len('{"format": 1, "rows": [') :],
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_a_user_error_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "board.json"
    path.write_text(content, encoding="utf-8")
    for action in (load, lambda path: merge(path, [row()])):
        with pytest.raises(ConfigError) as raised:
            action(path)
        assert str(raised.value).startswith((f"{path}: ", f"{path}, line 1: ")) and "\n" not in str(raised.value)
    assert path.read_text(encoding="utf-8") == content


def test_errors_name_the_place_the_value_and_the_remedy(tmp_path):
    path = tmp_path / "board.json"
    path.write_text(BROKEN["wrong type"], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.0\.n = 'many': .*recomputed from the records"):
        load(path)
    path.write_text(BROKEN["another format"], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"format = 4.*reads format 1 only"):
        load(path)
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "board.json"
    write(path, [row()])
    before = path.read_bytes()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"No space left.*the file is unchanged"):
        patch.setattr(os, "fsync", refuse)
        write(path, [row(), row(subset="en")])
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["board.json"]


def test_a_path_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        merge(tmp_path / "file" / "board.json", [row()])


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "board.json")
    merge(tmp_path / "link.json", [row()])
    assert (tmp_path / "link.json").is_symlink() and load(tmp_path / "board.json") == [row()]


def write_many(path, writer, together):
    together.wait(60)
    for n in range(10):
        with edit_rows(path) as known:
            known[:] = merge_rows(known, [row(subset=f"{writer}-{n}")])


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks")
def test_two_writers_at_once_lose_no_rows(tmp_path):
    path, context = tmp_path / "board.json", multiprocessing.get_context("fork")
    together = context.Barrier(3)
    writers = [context.Process(target=write_many, args=(path, name, together)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert {r.subset for r in load(path)} == {f"{name}-{n}" for name in "abc" for n in range(10)}


@pytest.mark.parametrize("name", ["x" * 300, "x" * 250, "file/board.json", "folder", "."])
def test_a_place_that_cannot_be_written_is_told_before(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be written .*; nothing was measured"):
        check_writable(tmp_path / name)


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path):
    write(tmp_path / "board.json", [row()])
    check_writable(tmp_path / "board.json")
    check_writable(tmp_path / "new.json")
    assert [path.name for path in tmp_path.iterdir()] == ["board.json"] and load(tmp_path / "board.json") == [row()]
