import errno
import json
import os
import subprocess
import sys

import pytest

from specbench.core.errors import ConfigError
from specbench.records.generation import convert
from specbench.records.records import LineFile, Record, RecordFile
from tests.support.records import generation, whole
from tests.support.records import record as example_record

RECORDS = [{"example": n, "text": f"¿cuánto? {n} தமிழ் \r\n", "positions": None} for n in range(4)]


def lines_of(path):
    """Any lines: what the file guarantees does not depend on their kind."""
    return LineFile(path, dict)


@pytest.fixture
def written(tmp_path):
    file = lines_of(tmp_path / "records.jsonl")
    for record in RECORDS:
        file.append(record)
    return file


def test_what_is_appended_is_read_back_one_line_each(written):
    assert lines_of(written.path).read() == RECORDS
    assert written.path.read_bytes().count(b"\n") == len(RECORDS)


def test_an_absent_file_holds_no_records_and_is_not_made(tmp_path):
    assert lines_of(tmp_path / "none.jsonl").read() == []
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_not_unicode_survives(tmp_path):
    file = lines_of(tmp_path / "records.jsonl")
    file.append({"text": "\ud800 half a pair"})
    assert file.read() == [{"text": "\ud800 half a pair"}]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_one_line_and_nothing_is_written(written, number):
    record = {"example": 4, "methods": {"sd": {"positions": {"divergence": [0.5, number]}}}}
    with pytest.raises(ConfigError, match=rf"methods.sd.positions.divergence.1 would be {number}, which") as raised:
        written.append(record)
    assert "\n" not in str(raised.value) and written.read() == RECORDS


def test_a_file_cut_at_any_byte_keeps_every_whole_record_and_can_be_continued(written):
    content = written.path.read_bytes()
    start_of_last = len(content) - len(content.splitlines(keepends=True)[-1])
    for size in [0, 1, *range(start_of_last - 2, len(content) + 1)]:
        written.path.write_bytes(content[:size])
        whole = content[:size].count(b"\n")
        whole += content[size : size + 1] == b"\n"  # only the line break is missing: the record is whole
        assert lines_of(written.path).read() == RECORDS[:whole]
        assert written.path.read_bytes() == b"".join(content.splitlines(keepends=True)[:whole])
        written.path.write_bytes(content[:size])
        lines_of(written.path).append({"next": 1})
        assert lines_of(written.path).read() == [*RECORDS[:whole], {"next": 1}]


@pytest.mark.parametrize("tail", [b"\0\0\0\0\0", b'{"a": 1', b"12\n", b'{"text": "\xe0\xa4', b"null\n", b"\n"])
def test_a_last_line_that_does_not_parse_is_cut_off(written, tail):
    sound = written.path.read_bytes()
    written.path.write_bytes(sound + tail)
    assert lines_of(written.path).read() == RECORDS
    assert written.path.read_bytes().rstrip(b"\n") == sound.rstrip(b"\n")


@pytest.mark.parametrize("garbage", ["nonsense", '{"half": ', "[1, 2]", "7"])
def test_garbage_before_the_last_line_is_refused_and_left_alone(written, garbage):
    lines = written.path.read_text(encoding="utf-8").split("\n")
    lines.insert(2, garbage)
    written.path.write_text("\n".join(lines), encoding="utf-8")
    before = written.path.read_bytes()
    with pytest.raises(ConfigError, match=r"records\.jsonl, line 3: .*delete that line") as raised:
        lines_of(written.path).read()
    assert garbage.strip() in str(raised.value)
    assert written.path.read_bytes() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_refuses_is_one_line_that_says_how_to_go_on(written, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch, pytest.raises(ConfigError) as raised:
        patch.setattr(os, "fsync", refuse)
        written.append({"example": 4})
    message = str(raised.value)
    assert str(written.path) in message and os.strerror(number) in message
    assert "nothing measured is lost" in message and "same command" in message and "\n" not in message


def test_a_folder_in_place_of_the_file_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot read"):
        lines_of(tmp_path).read()
    with pytest.raises(ConfigError, match="resume"):
        lines_of(tmp_path / "file" / "records.jsonl").append({})


FULL_DISK = """
import resource, signal, sys
from specbench.core.errors import ConfigError
from specbench.records.generation import convert
from specbench.records.records import LineFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))
file = LineFile(sys.argv[1], dict)
try:
    for n in range(10):
        file.append({"n": n, "text": "x" * 80})
except ConfigError:
    sys.exit(2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
def test_a_line_half_written_for_want_of_space_is_measured_again(tmp_path):
    path = tmp_path / "records.jsonl"
    assert subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], check=False).returncode == 2
    assert path.stat().st_size == 250 and not path.read_bytes().endswith(b"\n")
    file = lines_of(path)
    assert [record["n"] for record in file.read()] == [0, 1]
    file.append({"n": 2})
    assert [record["n"] for record in lines_of(path).read()] == [0, 1, 2]


def test_after_a_half_failed_write_the_same_object_mends_the_file_first(written, monkeypatch):
    def tear(descriptor):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 5)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, pytest.raises(ConfigError):
        patch.setattr(os, "fsync", tear)
        written.append({"example": 4, "text": "torn"})
    written.append({"example": 5})
    lines = written.path.read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1]) == {"example": 5} and len(lines) == len(RECORDS) + 1


def record(steps, num_new_tokens, positions=None, **others):
    part = generation(token_ids=[0] * num_new_tokens, steps=steps, positions=positions or {"overlap": None}, **others)
    return example_record({"sd": part}, subset="ja", example=7, repeat=1)


SOUND = [[3, 2, 1, 2], [3, 3, 3, 4]]


def test_sound_counts_pass():
    record(SOUND, 7).check_counts("sd", 3)
    record([], 1).check_counts("sd", 0)
    record(SOUND, 7, {"overlap": [0.5] * 5, "divergence": None}).check_counts("sd", 3)
    record(SOUND, 7, draw_overlap=[0.5] * 6).check_counts("sd", 3)  # one of them drew the end of a text


@pytest.mark.parametrize(
    ("broken", "num_draft_tokens"),
    [
        (record(SOUND, 6), 3),  # a token that no step emitted is missing
        (record(SOUND, 8), 3),
        (record(SOUND, 7), 2),  # more drafted than asked for
        (record([[3, 2, 3, 2]], 3), 3),  # more accepted than verified
        (record([[2, 3, 2, 2]], 3), 3),  # more verified than drafted
        (record([[3, 3, 1, 3]], 4), 3),  # more emitted than accepted and one
        (record([[3, 2, -1, 0]], 1), 3),
        (record(SOUND, 7, {"overlap": [0.5] * 4}), 3),
        (record(SOUND, 7, draw_overlap=[0.5] * 4), 3),  # fewer than verified
        (record(SOUND, 7, draw_overlap=[0.5] * 7), 3),  # more than emitted in steps
    ],
)
def test_counts_that_contradict_each_other_name_the_record(broken, num_draft_tokens):
    with pytest.raises(ValueError, match="subset ja, example 7, repeat 1: sd: "):
        broken.check_counts("sd", num_draft_tokens)


def test_a_record_without_the_method_is_named():
    with pytest.raises(ValueError, match=r"example 7.*no method fsd"):
        record(SOUND, 7).check_counts("fsd", 3)


def without(key, record):
    return {name: value for name, value in record.items() if name != key}


def test_a_whole_record_passes_also_after_it_was_written(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append(convert(whole(), Record))
    assert file.read(lambda record: record.check({"sd": 3})) == [convert(whole(), Record)]


def test_an_infinite_divergence_that_an_earlier_version_wrote_is_read(tmp_path):
    """It is not JSON, and is not written any more."""
    file, record = RecordFile(tmp_path / "records.jsonl"), whole()
    record["methods"]["sd"]["positions"]["divergence"] = [0.5, float("inf")]
    file.path.write_text(json.dumps(record) + "\n")
    (found,) = file.read(lambda record: record.check({"sd": 3}))
    assert found.methods["sd"].positions["divergence"] == [0.5, float("inf")]


DAMAGED = {
    "no subset": (without("subset", whole()), "subset: is missing"),
    "no prompt": (without("prompt", whole()), "prompt: is missing"),
    "methods of no kind": ({**whole(), "methods": 3}, "methods = 3: is not a mapping"),
    "no method": ({**whole(), "methods": {}}, "methods: , but the run has sd"),
    "another method": (
        {**whole(), "methods": whole()["methods"] | {"fsd": whole()["methods"]["sd"]}},
        "the run has sd",
    ),
    "no positions": (whole(positions=None), "methods.sd.positions"),
    "no tokens": (whole(token_ids=[]), "token_ids: is empty"),
    "a token that is none": (whole(token_ids=["1", 2, 3]), "methods.sd.token_ids"),
    "a negative token": (whole(token_ids=[1, -2, 3]), "methods.sd.token_ids"),
    "half a step": (whole(steps=[[3, 2]]), "methods.sd.steps"),
    "time before the start": (whole(decode_seconds=-1.0), "methods.sd.decode_seconds"),
    "no time": (whole(ttft_seconds=float("nan")), "methods.sd.ttft_seconds"),
    "half a pass": (whole(passes={"target": [[4]], "draft": []}), "methods.sd.passes.target"),
    "an unknown end": (whole(finish="tired"), "methods.sd.finish"),
    "more reasoning than tokens": (whole(answer="", reasoning_tokens=4), "4 reasoning_tokens of 3 new tokens"),
    "no text": (whole(text=None), "methods.sd.text"),
    "an answer that is not text": (whole(answer=18), "methods.sd.answer"),
    "contradictory counts": (whole(token_ids=[1]), "2 emitted + 1 ≠ 1 new tokens"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_a_user_error_with_file_and_line(tmp_path, name):
    damaged, expected = DAMAGED[name]
    file = RecordFile(tmp_path / "records.jsonl")
    file.path.write_text(f"{json.dumps(whole())}\n{json.dumps(damaged)}\n")
    with pytest.raises(ConfigError) as raised:
        RecordFile(file.path).read(lambda record: record.check({"sd": 3}))
    assert str(raised.value).startswith(f"{file.path}, line 2: ") and expected in str(raised.value)
    assert "delete that line" in str(raised.value) and "\n" not in str(raised.value)


def test_a_line_nested_too_deep_is_none(written):
    written.path.write_bytes(b"[" * 100_000 + b"\n" + written.path.read_bytes())
    with pytest.raises(ConfigError, match=r"line 1: exceeds"):
        lines_of(written.path).read()
