"""Bundles of strangers: archives that would write elsewhere, fill the disk or never end; and forged ones."""

import gzip
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.publish.bundle import archive as archives
from specbench.publish.bundle.archive import unpack
from specbench.publish.bundle.crate import MANIFEST, METADATA, README
from specbench.publish.bundle.verify import verified, verify
from specbench.results.row import DIGEST, with_digest
from tests.attacks.bounds import refused, within_bounds
from tests.support.bundles import archive, bundled, files_in, independent_runs, member, rewritten

Files = dict[str, bytes]
RUN = "runs/run0/"
TEXT = b"text"
# What an archive has, and a word of the line that refuses it.
HOSTILE: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "a path upwards": ([(member("../outside"), TEXT)], "leads out of the folder"),
    "a path upwards within": ([(member("runs/../../outside"), TEXT)], "leads out of the folder"),
    "a whole path": ([(member("/tmp/specbench-outside"), TEXT)], "leads out of the folder"),
    "a path of Windows": ([(member("C:\\outside"), TEXT)], "not every system"),
    "a drive": ([(member("C:outside"), TEXT)], "not every system"),
    "a stream of NTFS": ([(member("README.md:hidden"), TEXT)], "not every system"),
    "a device's name": ([(member("runs/NUL.txt"), TEXT)], "not every system"),
    "a point at the end": ([(member("README.md."), TEXT)], "not every system"),
    "a line break": ([(member("a\nb"), TEXT)], "not every system"),
    "an empty part": ([(member("runs//x"), TEXT)], "leads out of the folder"),
    "a link": ([(member("x", tarfile.SYMTYPE, "/etc/passwd"), b"")], "is a link"),
    "a link, then a file in it": (
        [(member("runs", tarfile.SYMTYPE, "/tmp"), b""), (member("runs/x"), TEXT)], "is a link"),
    "a hard link": ([(member("x", tarfile.LNKTYPE, "../../etc/passwd"), b"")], "is a link"),
    "a device": ([(member("x", tarfile.CHRTYPE), b"")], "is a device"),
    "a block device": ([(member("x", tarfile.BLKTYPE), b"")], "is a device"),
    "a pipe": ([(member("x", tarfile.FIFOTYPE), b"")], "is a pipe"),
    "a folder": ([(member("runs", tarfile.DIRTYPE), b"")], "is a folder"),
    "a sparse file": ([(member("x", tarfile.GNUTYPE_SPARSE), TEXT)], "another kind"),
    "a name twice": ([(member("x"), TEXT), (member("x"), b"other")], "'x' twice"),
    "a name in another case": ([(member("README.md"), TEXT), (member("readme.MD"), b"other")], "one file on some"),
    "a name in another form": ([(member("e\u0301"), TEXT), (member("\u00e9"), b"other")], "one file on some"),
    "a file and a folder": ([(member("runs"), TEXT), (member("runs/x"), TEXT)], "a file and a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(specbench: Callable[..., Any], tmp_path: Path, name: str) -> None:
    members, word = HOSTILE[name]
    archive(tmp_path / "x.tar.gz", members)
    before = sorted(tmp_path.parent.iterdir())
    with within_bounds():
        outcome = specbench("bundle", "verify", "x.tar.gz")
    refused(outcome, word)
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar.gz"] and sorted(tmp_path.parent.iterdir()) == before
    assert not Path("/tmp/specbench-outside").exists()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_extended_header_is_refused(tmp_path: Path, form: int) -> None:
    """Its size would be read at once."""
    archive(tmp_path / "x.tar.gz", [(member("long/" * 40 + "ü"), TEXT)], form)
    with within_bounds(), pytest.raises(ConfigError, match="another kind"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "to")


def zeros(path: Path, header: tarfile.TarInfo, num_bytes: int) -> None:
    """A file of zeros in an archive that may end before the file does."""
    with gzip.open(path, "wb", 9) as packed:
        packed.write(header.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(num_bytes // 2**20):
            packed.write(bytes(2**20))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says how large it is, one that does not stop where it said, and one that is cut off."""
    header = member("records.jsonl")
    header.size = 2**33 - 1
    zeros(tmp_path / "large.tar.gz", header, 2**20)
    with within_bounds(), pytest.raises(ConfigError, match="expands to more than"):
        unpack(tmp_path / "large.tar.gz", tmp_path / "to")
    monkeypatch.setattr(bounded, "MAX_BYTES", 2**22)
    header.size = 2**20
    zeros(tmp_path / "endless.tar.gz", header, 2**23)
    with within_bounds(), pytest.raises(ConfigError, match="goes on behind its end"):
        unpack(tmp_path / "endless.tar.gz", tmp_path / "to2")
    header.size = 2**22
    zeros(tmp_path / "cut.tar.gz", header, 2**21)
    with pytest.raises(ConfigError, match="is cut off"):
        unpack(tmp_path / "cut.tar.gz", tmp_path / "to3")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 5)
    archive(tmp_path / "x.tar.gz", [(member(str(number)), b"") for number in range(9)])
    with pytest.raises(ConfigError, match="too many files"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "to")


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "is cut off"), (b"no archive", "is not a bundle"), (gzip.compress(b"x" * 600), "is not a bundle"),
     (gzip.compress(bytes(1024)), "has no runs"), (gzip.compress(bytes(1024))[:-6], "is cut off")],
    ids=["empty", "text", "compressed text", "no members", "cut"],
)  # fmt: skip
def test_what_is_no_archive_is_refused(
    specbench: Callable[..., Any], tmp_path: Path, content: bytes, word: str
) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    refused(specbench("bundle", "verify", "x.tar.gz"), word)
    refused(specbench("bundle", "verify", "absent.tar.gz"), "no such file")
    refused(specbench("bundle", "verify", "."), "is a folder or a device")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    return bundled(independent_runs(folder, 1, limit=3), folder / "honest.tar.gz")


def edited(files: Files, name: str, edit: Callable[[Any], None]) -> None:
    content = json.loads(files[RUN + name])
    edit(content)
    files[RUN + name] = json.dumps(content).encode()


def faster(board: Any) -> None:
    """A speed-up that nobody measured, with a digest that fits."""
    board["rows"][1]["metrics"]["speedup"]["value"] *= 1.5
    row = {key: value for key, value in board["rows"][1].items() if key != DIGEST}
    board["rows"][1] = with_digest(row)


def first_record(files: Files, edit: Callable[[Any], None]) -> None:
    first, *others = files[RUN + "records.jsonl"].splitlines(keepends=True)
    record = json.loads(first)
    edit(record)
    files[RUN + "records.jsonl"] = json.dumps(record).encode() + b"\n" + b"".join(others)


def without_first_record(files: Files) -> None:
    files[RUN + "records.jsonl"] = b"".join(files[RUN + "records.jsonl"].splitlines(keepends=True)[1:])


def slower_baseline(record: Any) -> None:
    record["methods"]["ar"]["decode_seconds"] *= 3


def more_accepted(record: Any) -> None:
    record["methods"]["sd"]["steps"][0] = [5, 5, 5, 6]


def another_answer(record: Any) -> None:
    record["methods"]["sd"]["token_ids"][-1] += 1


def level_in_row(board: Any) -> None:
    board["rows"][1]["level"] = "recomputed"
    row = {key: value for key, value in board["rows"][1].items() if key != DIGEST}
    board["rows"][1] = with_digest(row)


# Each changes an honest bundle, whose list of digests is then made anew, and a word of what finds it.
FORGED: dict[str, tuple[Callable[[Files], object], str]] = {
    "a faster row": (lambda files: edited(files, "leaderboard.json", faster), "metrics.speedup"),
    "a slower baseline": (lambda files: first_record(files, slower_baseline), "metrics."),
    "more accepted tokens": (lambda files: first_record(files, more_accepted), "emitted"),
    "another answer": (lambda files: first_record(files, another_answer), "answers of sd"),
    "a record less": (without_first_record, "measured 3"),
    "another machine": (
        lambda files: edited(files, "run.json", lambda run: run["environment"].update(device="H100")), "device"),
    "another commit": (
        lambda files: edited(files, "run.json", lambda run: run["environment"].update(commit="0" * 40)), "commit"),
    "another target": (
        lambda files: edited(files, "run.json", lambda run: run["target"].update(revision="f" * 40)), "target_rev"),
    "another method": (
        lambda files: edited(files, "specs.json", lambda specs: specs["methods"][1].update(num_draft_tokens=9)), "sd@"),
    "other data": (
        lambda files: edited(files, "measurements.json",
                             lambda each: each["measurements"][0]["subsets"][0].update(source="hub")), "data_source"),
    "a level in a row": (lambda files: edited(files, "leaderboard.json", level_in_row), "level"),
    "rows of another run": (
        lambda files: edited(files, "leaderboard.json", lambda board: [
            board["rows"].__setitem__(0, with_digest({**{k: v for k, v in board["rows"][0].items() if k != DIGEST},
                                                      "run": "/tmp/other"}))]), "another folder"),
    "no rows": (lambda files: edited(files, "leaderboard.json", lambda board: board["rows"].clear()), "has no rows"),
    "no specs": (lambda files: files.pop(RUN + "specs.json"), "specs.json is absent"),
    "no README": (lambda files: files.pop(README), "README.md: is absent"),
    "a private key": (lambda files: files.update({"id_ed25519": b"-----BEGIN"}), "is not a file of a bundle"),
    "a script": (lambda files: files.update({RUN + "setup.py": b"import os"}), "is not a file of a bundle"),
    "no licence": (
        lambda files: files.update({METADATA: files[METADATA].replace(b'"license"', b'"licence"')}), "lacks license"),
    "metadata that nest": (lambda files: files.update({METADATA: b"[" * 100_000}), METADATA),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_bundle_is_found(specbench: Callable[..., Any], honest: Path, tmp_path: Path, name: str) -> None:
    """None of the rows that it is about keeps a level."""
    change, word = FORGED[name]
    files = files_in(honest)
    change(files)
    forged = rewritten(honest, files, tmp_path / "forged.tar.gz")
    with within_bounds():
        code, _, err = specbench("bundle", "verify", "forged.tar.gz")
    assert code == 2 and word in err and "Traceback" not in err
    assert all(line.startswith("error: forged.tar.gz: ") for line in err.splitlines())
    assert "/tmp" not in err.replace("/tmp/other", ""), "the temporary folder is not named"
    with verified([forged]) as [found]:
        verification = verify([found])
        levels = [str(verification.level_of(found, each)) for each in found.rows]
    assert "stated" in levels or len(levels) < 2, "the row is refused"


def test_a_control_an_honest_bundle_is_sound(specbench: Callable[..., Any], honest: Path, tmp_path: Path) -> None:
    rewritten(honest, files_in(honest), tmp_path / "same.tar.gz")
    assert specbench("bundle", "verify", "same.tar.gz")[0] == 0


def test_a_changed_file_is_found_by_its_digest(specbench: Callable[..., Any], honest: Path, tmp_path: Path) -> None:
    files = files_in(honest) | {README: b"# Something else\n"}
    archive(tmp_path / "x.tar.gz", [(member(name), content) for name, content in files.items()])
    code, _, err = specbench("bundle", "verify", "x.tar.gz")
    assert code == 2 and "README.md: has the digest" in err
    (tmp_path / "board.json").write_bytes(files[f"{RUN}leaderboard.json"])
    code, out, err = specbench("leaderboard", "show", "board.json", "--bundle", "x.tar.gz")
    assert code == 0 and "recomputed" not in out
    assert "warning: x.tar.gz: README.md: has the digest" in err and "specbench bundle verify x.tar.gz tells all" in err
    del files[MANIFEST]
    archive(tmp_path / "x.tar.gz", [(member(name), content) for name, content in files.items()])
    assert "is absent or unreadable" in specbench("bundle", "verify", "x.tar.gz")[2]


def test_a_disk_that_is_full(specbench: Callable[..., Any], honest: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copy(honest, tmp_path / "x.tar.gz")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "to")
