"""Leaderboards, and the files in the folder of a run, that no program of specbench wrote."""

import json
import shutil
from pathlib import Path

import pytest

from specbench.core import bounded
from specbench.core.bounded import MAX_BYTES
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.publish.forecast import records_in
from specbench.records.records import RecordFile
from specbench.results.leaderboard import load, write
from specbench.results.row import with_digest
from tests.attacks.bounds import refused, within_bounds
from tests.support.site_rows import some_rows

TEXTS = {  # JSON, or what makes it → what the error tells
    "brackets": (lambda: "[" * 1_000_000, "exceeds 64 levels"),
    "mappings": (lambda: '{"a":' * 1_000_000, "exceeds 64 levels"),
    "closed brackets": ("[" * 500 + "]" * 500, "exceeds 64 levels"),
    "a number of 2 MB": (lambda: "9" * 2_000_000, "has a number of 2,000,000"),
    "a number of 400 digits": ('{"format": 4, "rows": ' + "9" * 400 + "}", "has a number of 400 digits"),
    "a fraction of 2 MB": (
        lambda: '{"format": 0.' + "1" * 2_000_000 + ', "rows": []}',
        "has a number of 2,000,002 digits",
    ),
    "too many bytes": (lambda: " " * (MAX_BYTES + 1), "exceeds 67,108,864 bytes"),
    "6 million lists": (lambda: "[" + "[]," * 6_000_000 + "1]", "exceed 536,870,912 bytes of memory"),
    "6 million mappings": (lambda: "[" + "{}," * 6_000_000 + "1]", "exceed 536,870,912 bytes of memory"),
    "a key twice": ('{"format": 4, "rows": [], "format": 3}', "duplicate key 'format'"),
    "NaN": ('{"format": NaN, "rows": []}', "NaN is not a JSON number"),
    "Infinity": ('{"format": -Infinity, "rows": []}', "-Infinity is not a JSON number"),
    "beyond floats": ('{"format": 1e999, "rows": []}', "1e999 is too large for a float"),
    "half a surrogate pair": ('{"format": "\\udc80", "rows": []}', "half of a surrogate pair"),
    "NUL": ('{"format": "\\u0000", "rows": []}', "a NUL character"),
    "not UTF-8": (b'{"format": "\xff"}', "not UTF-8 text"),
    "a byte order mark": ("\ufeff{}", "not valid JSON"),
    "nothing": ("", "not valid JSON"),
    "two values": ("{} {}", "not valid JSON: Extra data"),
}


def put(path: Path, name: str, times: int = 1) -> None:
    """One of the texts, in as many lines; of one without a line break where it is once."""
    text = TEXTS[name][0]
    made = text() if callable(text) else text
    content = made if isinstance(made, bytes) else made.encode()
    path.write_bytes(content if times == 1 else (content + b"\n") * times)


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What the commands import is none of the attack's time."""


def test_texts_of_lists_count_without_what_is_in_them(tmp_path, monkeypatch):
    """A million texts take more than the bound, and one text that is as long does not."""
    monkeypatch.setattr(bounded, "MAX_MEMORY", 64_000_000)
    (tmp_path / "x.json").write_text("[" + '"",' * 1_000_000 + "1]")
    with within_bounds(), pytest.raises(ConfigError, match="exceed 64,000,000 bytes of memory"):
        bounded.read_json(tmp_path / "x.json", "")
    (tmp_path / "x.json").write_text('["' + "[,{" * 1_000_000 + '"]')
    assert len(bounded.read_json(tmp_path / "x.json", "")[0]) == 3_000_000


@pytest.mark.parametrize("name", TEXTS)
def test_a_leaderboard_is_refused(specbench, tmp_path, name):
    put(tmp_path / "x.json", name)
    with within_bounds():
        outcome = specbench("leaderboard", "validate", "x.json")
    refused(outcome, TEXTS[name][1])


@pytest.mark.parametrize(
    "command", [("site", "x.json", "--output", "site"), ("leaderboard", "show", "x.json")], ids=str
)
@pytest.mark.parametrize("name", ["brackets", "a number of 2 MB", "a key twice"])
def test_other_commands_refuse_it_too(specbench, tmp_path, name, command):
    put(tmp_path / "x.json", name)
    with within_bounds():
        outcome = specbench(*command)
    refused(outcome, TEXTS[name][1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a leaderboard; its other files are broken by the tests."""
    folder, board = tmp_path_factory.mktemp("run"), builtin_dir("leaderboards")
    row = next(row for row in load(board / "demo.json") if row.run == "demo/csqa")
    write(folder / "leaderboard.json", [row.model_copy(update={"run": None})])
    for name in ("run.json", "specs.json", "measurements.json", "records.jsonl"):
        shutil.copy(board / "demo" / "csqa" / name, folder / name)
    return folder


@pytest.mark.parametrize("file", ["specs.json", "records.jsonl"])
@pytest.mark.parametrize("name", ["brackets", "closed brackets", "a number of 2 MB", "a key twice"])
def test_a_file_of_a_run_is_refused(specbench, run, tmp_path, file, name):
    shutil.copytree(run, tmp_path / "run")
    put(tmp_path / "run" / file, name, times=2 if file == "records.jsonl" else 1)
    with within_bounds():
        outcome = specbench("leaderboard", "validate", "run/leaderboard.json", "--records")
    refused(outcome, TEXTS[name][1])
    assert f"run/{file}" in outcome[2]


@pytest.mark.parametrize("name", ["brackets", "closed brackets", "a number of 2 MB", "6 million mappings"])
def test_a_whole_record_beyond_a_bound_is_told_and_not_cut_off(tmp_path, name):
    path = tmp_path / "records.jsonl"
    put(path, name, times=2)
    size = path.stat().st_size
    with within_bounds(), pytest.raises(ConfigError, match=r"records\.jsonl, line 1: "):
        RecordFile(path).read()
    assert path.stat().st_size == size


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "too many bytes" and "6 million" not in name])
def test_an_estimate_passes_over_a_broken_record(tmp_path, name):
    put(tmp_path / "records.jsonl", name)
    with within_bounds():
        assert list(records_in(tmp_path)) == []


@pytest.mark.parametrize("name", ["brackets", "a number of 2 MB", "6 million mappings", "not UTF-8"])
def test_the_mark_of_a_site_is_no_danger(specbench, tmp_path, name):
    write(tmp_path / "x.json", some_rows(1))
    (tmp_path / "site").mkdir()
    put(tmp_path / "site" / "specbench-site.json", name)
    (tmp_path / "site" / "a.txt").write_text("mine")
    with within_bounds():
        outcome = specbench("site", "x.json", "--output", "site")
    refused(outcome, "holds a.txt, which belongs to no earlier site")


def test_five_thousand_rows_are_no_attack(tmp_path):
    write(tmp_path / "x.json", some_rows(1))
    content = json.loads((tmp_path / "x.json").read_text())
    row = json.dumps(content["rows"][0])
    (tmp_path / "x.json").write_text(f'{{"format": 1, "rows": [{", ".join([row] * 5000)}]}}')
    assert len(bounded.read_json(tmp_path / "x.json", "")["rows"]) == 5000


@pytest.mark.parametrize("left_out", ["value", "low", "high"])
@pytest.mark.parametrize("command", [("leaderboard", "validate"), ("leaderboard", "show")], ids=str)
def test_a_part_of_an_interval_is_refused(specbench, tmp_path, command, left_out):
    write(tmp_path / "x.json", some_rows(1)[1:2])
    content = json.loads((tmp_path / "x.json").read_text())
    del content["rows"][0]["metrics"]["speedup"][left_out]
    content["rows"][0] = with_digest(content["rows"][0])
    (tmp_path / "x.json").write_text(json.dumps(content))
    refused(specbench(*command, "x.json"), "an interval has two ends and a value between them")
