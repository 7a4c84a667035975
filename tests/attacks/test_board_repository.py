"""Submissions to a board that would change it, fill it, run something, or bring what is somebody else's."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.publish.board import changes
from specbench.publish.board.check import check_submission
from specbench.publish.board.stored import stored_runs
from specbench.publish.bundle.crate import README
from specbench.publish.bundle.signature import sign
from tests.attacks.bounds import within_bounds
from tests.attacks.test_bundles import FORGED, HOSTILE, TEXT
from tests.attacks.test_rules import each_record, rows_anew
from tests.publish.test_bundle import needs_ssh
from tests.support.board_repositories import bundle_of, git, new_board, set_key, submission
from tests.support.bundles import archive, files_in, independent_runs, member, rewritten

Edit = Callable[[Path], object]
RUN = "runs/run0/"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return independent_runs(tmp_path_factory.mktemp("runs"), 2, limit=3)


@pytest.fixture(scope="module")
def bundles(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle that the board has, and one of another run."""
    folder = tmp_path_factory.mktemp("bundles")
    return {name: bundle_of(run, folder / f"{name}.tar.gz") for run, name in zip(runs, ("theirs", "mine"), strict=True)}


@pytest.fixture(scope="module")
def board(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_board(tmp_path_factory.mktemp("board") / "board", bundles["theirs"])


def problems(board: Path, submitted: Path) -> list[str]:
    """What a check finds, which stays within bounds, and leaves both folders as they are."""
    before = [sorted(folder.rglob("*")) for folder in (board, submitted)]
    with within_bounds():
        found = check_submission(submitted, str(board))
    assert [sorted(folder.rglob("*")) for folder in (board, submitted)] == before
    assert all("\n" not in line and len(line) < 1000 for line in found.problems)
    assert found.markdown().startswith("## Refused" if found.problems else "## Accepted")
    return list(found.problems)


def test_an_honest_submission_is_accepted(board: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    assert problems(board, submission(board, tmp_path / "mine", bundles["mine"])) == []


def append(name: str) -> Edit:
    return lambda folder: (folder / name).open("a").write("# mine\n")


def add(name: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("import os\n")

    return edit


def link(name: str, to: str) -> Edit:
    return lambda folder: (folder / name).symlink_to(to)


def bundles_elsewhere(folder: Path) -> None:
    shutil.rmtree(folder / "bundles")
    (folder / "bundles").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "bundles" / "x.tar.gz")


THEIRS = "bundles/theirs.tar.gz"
# What a submission does beside its bundle, and words of a line about it.
TOUCHED: dict[str, tuple[Edit, str]] = {
    "the rules": (append("board.yaml"), "board.yaml: was changed, and a submission adds files in bundles/ only"),
    "whose keys are known": (append("allowed_signers"), "allowed_signers: was changed"),
    "the workflow": (append(".github/workflows/board.yml"), ".github/workflows/board.yml: was changed"),
    "another workflow": (add(".github/workflows/mine.yml"), ".github/workflows/mine.yml: was added"),
    "a settings file of git": (add("bundles/.gitattributes"), "bundles/.gitattributes: is not a name of a bundle"),
    "a module that Python would import": (add("sitecustomize.py"), "sitecustomize.py: was added"),
    "rows": (add("leaderboards/mine.json"), "leaderboards/mine.json: was added"),
    "the page": (append("BOARD.md"), "BOARD.md: was changed"),
    "a page of the site": (add("site/index.html"), "site/index.html: was added"),
    "another's bundle": (append(THEIRS), f"{THEIRS}: was changed: bundles that are here stay as they are"),
    "another's bundle is deleted": (lambda folder: (folder / THEIRS).unlink(), f"{THEIRS}: was deleted"),
    "another's bundle is renamed": (
        lambda folder: (folder / THEIRS).rename(folder / "bundles" / "eve.tar.gz"), f"{THEIRS}: was deleted"),
    "another's bundle is signed": (add(f"{THEIRS}.sig"), "signs theirs.tar.gz, which this submission does not add"),
    "a name in another case": (
        lambda folder: shutil.copy(folder / "bundles" / "mine.tar.gz", folder / "bundles" / "Theirs.tar.gz"),
        "Theirs.tar.gz: is the name of another bundle on some systems"),
    "a signature of a megabyte": (
        lambda folder: (folder / "bundles" / "mine.tar.gz.sig").write_bytes(bytes(2**20)), "has 1,048,576 bytes"),
    "a signature that is a link": (link("bundles/mine.tar.gz.sig", "/etc/passwd"), "mine.tar.gz.sig: is a link"),
    "a script": (add("bundles/setup.py"), "bundles/setup.py: is not a name of a bundle"),
    "a folder below": (add("bundles/more/x.tar.gz"), "bundles/more/x.tar.gz: is not a name of a bundle"),
    "a hidden bundle": (add("bundles/.x.tar.gz"), "is not a name of a bundle"),
    "a name that is an option": (add("bundles/--help.tar.gz"), "is not a name of a bundle"),
    "a name with a line break": (add("bundles/a\nb.tar.gz"), "'bundles/a\\nb.tar.gz': is not a name of a bundle"),
    "a long name": (add(f"bundles/{'x' * 150}.tar.gz"), "is not a name of a bundle"),
    "a link to a file": (link("bundles/x.tar.gz", "/etc/passwd"), "bundles/x.tar.gz: is a link"),
    "a link to another's bundle": (link("bundles/x.tar.gz", "theirs.tar.gz"), "bundles/x.tar.gz: is a link"),
    "a link to nothing": (link("bundles/x.tar.gz", "absent"), "bundles/x.tar.gz: is a link"),
    "a link to a folder": (link("bundles/x.tar.gz", "/etc"), "bundles/x.tar.gz: is a link"),
    "a link for all bundles": (bundles_elsewhere, "bundles: was added, and a submission adds files in bundles/ only"),
    "a pipe": (pipe, "bundles/x.tar.gz: is a link, a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOUCHED)
def test_what_a_submission_may_not_touch(board: Path, bundles: dict[str, Path], tmp_path: Path, name: str) -> None:
    edit, word = TOUCHED[name]
    own = [bundles["mine"]] if "signature" in name or "case" in name else []
    submitted = submission(board, tmp_path / "mine", *own)
    edit(submitted)
    found = problems(board, submitted)
    assert any(word in line for line in found), found
    assert len(found) <= 3


def test_a_sound_bundle_beside_a_change_is_read_all_the_same(
    board: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    submitted = submission(board, tmp_path / "mine", bundles["mine"])
    append("board.yaml")(submitted)
    found = check_submission(submitted, str(board))
    assert len(found.problems) == 1 and found.num_rows == 2 and found.table is not None


def test_the_same_by_git(board: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    """All of it at once, committed; and a repository within the repository."""
    submitted = submission(board, tmp_path / "mine")
    git(submitted, "init", "-q", "-b", "main")
    git(submitted, "add", "-A")
    git(submitted, "commit", "-q", "-m", "A board")
    shutil.copy(bundles["mine"], submitted / "bundles")
    skipped = (
        "a link for all bundles", "a pipe", "another's bundle", "another's bundle is deleted", "a page of the site",
        "a signature that is a link",
    )  # fmt: skip
    wanted = {name: each for name, each in TOUCHED.items() if name not in skipped and not name.startswith("a link to")}
    for edit, _ in wanted.values():
        edit(submitted)
    TOUCHED["a link to a file"][0](submitted)
    git(submitted, "init", "-q", "bundles/inner")
    git(submitted / "bundles" / "inner", "commit", "-q", "--allow-empty", "-m", "x")
    add("site/index.html")(submitted)
    git(submitted, "add", "-A", "-f")
    git(submitted, "commit", "-q", "-m", "Mine")
    found = "\n".join(check_submission(submitted, "HEAD^1").problems)
    told = [name.partition(": ")[0] for name in (word for _, word in wanted.values()) if name.startswith("bundles/")]
    for word in (
        *told,
        "theirs.tar.gz: was deleted",
        "bundles/x.tar.gz: is a link",
        "bundles/inner: is a link, a folder",
    ):
        assert word in found, word
    assert "was added, and a submission adds files in bundles/ only" in found and "was changed" in found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_in_a_submission(board: Path, tmp_path: Path, name: str) -> None:
    members, word = HOSTILE[name]
    submitted = submission(board, tmp_path / "mine")
    archive(submitted / "bundles" / "x.tar.gz", members)
    [line] = problems(board, submitted)
    assert line.startswith("bundles/x.tar.gz: ") and word in line and str(tmp_path) not in line
    assert not Path("/tmp/specbench-outside").exists()


@pytest.mark.parametrize(
    "name", ["a faster row", "more accepted tokens", "another machine", "a private key", "no specs"]
)
def test_a_forged_bundle_in_a_submission(board: Path, bundles: dict[str, Path], tmp_path: Path, name: str) -> None:
    forge, word = FORGED[name]
    files = {path.replace("run1", "run0"): content for path, content in files_in(bundles["mine"]).items()}
    forge(files)
    submitted = submission(board, tmp_path / "mine")
    rewritten(bundles["mine"], files, submitted / "bundles" / "x.tar.gz")
    found = problems(board, submitted)
    assert any(word in line for line in found), found


def test_huge_and_many_bundles(board: Path, tmp_path: Path) -> None:
    """Neither is opened: its size is that of the file, which takes no space here."""
    submitted = submission(board, tmp_path / "mine")
    (submitted / "bundles" / "huge.tar.gz").touch()
    os.truncate(submitted / "bundles" / "huge.tar.gz", 2**40)
    [line] = problems(board, submitted)
    assert "huge.tar.gz: has 1,099,511,627,776 bytes, and board.yaml has largest_bundle_mb = 50" in line
    for number in range(12):
        (submitted / "bundles" / f"{number}.tar.gz").write_bytes(b"")
    (submitted / "bundles" / "huge.tar.gz").unlink()
    found = problems(board, submitted)
    assert "is one of 12 new bundles, and board.yaml has most_bundles = 10" in found[0] and len(found) == 11


def test_an_archive_that_expands(board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.core import bounded

    monkeypatch.setattr(bounded, "MAX_BYTES", 2**21)
    submitted = submission(board, tmp_path / "mine")
    archive(submitted / "bundles" / "x.tar.gz", [(member("runs/x/records.jsonl"), bytes(2**23)), (member("x"), TEXT)])
    [line] = problems(board, submitted)
    assert "bundles/x.tar.gz: expands to more than" in line


def test_a_folder_of_very_many_files(board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.core.errors import ConfigError

    monkeypatch.setattr(changes, "MAX_FILES", 30)
    submitted = submission(board, tmp_path / "mine")
    for number in range(40):
        (submitted / "bundles" / f"{number}.txt").touch()
    with pytest.raises(ConfigError, match="has more than 30 files"):
        check_submission(submitted, str(board))


# What becomes of another's bundle before it is submitted anew, and a word of the line about it.
def other_title(files: dict[str, bytes]) -> None:
    files[README] = b"# My own measurements\n"


def other_run(files: dict[str, bytes]) -> None:
    for name in [name for name in files if name.startswith(RUN)]:
        files[name.replace("run0", "mine")] = files.pop(name)


def records_of(edit: Callable[[int, Any], object]) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        records = [json.loads(line) for line in files[f"{RUN}records.jsonl"].splitlines()]
        for number, record in enumerate(records):
            edit(number, record)
        files[f"{RUN}records.jsonl"] = b"".join(json.dumps(record).encode() + b"\n" for record in records)

    return change


def other_ids(number: int, record: Any) -> None:
    record |= {"id": f"mine-{number}", "process": "mine", "prompt": f"{number:012x}"}


def one_time(number: int, record: Any) -> None:
    record["process"] = "mine"
    if number == 0:
        record["methods"]["sd"]["decode_seconds"] *= 1.01


def all_times(number: int, record: Any) -> None:
    for generation in record["methods"].values():
        generation["decode_seconds"] *= 1.01


COPIES: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "another name": (lambda files: None, "has the same records as"),
    "another title": (other_title, "has the same records as"),
    "another name of the run": (other_run, "mine has the same records as"),
    "other ids and process": (records_of(other_ids), "has 6 of 6 times in common"),
    "one other time": (records_of(one_time), "has 5 of 6 times in common"),
    "all times a little longer": (records_of(all_times), "has 3 of 3 moments in common"),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_another_s_run(board: Path, bundles: dict[str, Path], tmp_path: Path, name: str) -> None:
    edit, word = COPIES[name]
    files = files_in(bundles["theirs"])
    edit(files)
    submitted = submission(board, tmp_path / "mine")
    rewritten(bundles["theirs"], files, submitted / "bundles" / "eve.tar.gz")
    found = problems(board, submitted)
    assert any(f"{word} " in line and "bundles/theirs.tar.gz: run0: it is one measurement" in line for line in found), (
        found
    )


def test_one_run_twice_in_a_submission(board: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    submitted = submission(board, tmp_path / "mine", bundles["mine"])
    shutil.copy(bundles["mine"], submitted / "bundles" / "more.tar.gz")
    [line] = problems(board, submitted)
    assert "bundles/more.tar.gz: run1 has the same records as bundles/mine.tar.gz: run1" in line


def test_a_run_that_is_dated_back(board: Path, runs: list[Path], tmp_path: Path) -> None:
    """The first run of a configuration stands, so that an earlier date would replace what the board has."""
    shutil.copytree(runs[1], tmp_path / "run")
    each_record(tmp_path / "run", lambda _, record: record.update(measured_at=record["measured_at"] - 1e6))
    rows_anew(tmp_path / "run")
    submitted = submission(board, tmp_path / "mine", bundle_of(tmp_path / "run", tmp_path / "early.tar.gz"))
    [line] = problems(board, submitted)
    assert "bundles/early.tar.gz: run: mgsm@4 en ar@1: created = " in line
    assert "is before bundles/theirs.tar.gz measured it" in line


@needs_ssh
def test_a_signature_by_a_key_that_nobody_knows(board: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    """The bundle is accepted where signatures are optional, its rows are not signed, and the reviewer is told why."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    submitted = submission(board, tmp_path / "mine", bundles["mine"])
    sign(submitted / "bundles" / "mine.tar.gz", tmp_path / "key")
    found = check_submission(submitted, str(board))
    assert found.problems == [] and "signed by" not in found.markdown()
    told = "mine.tar.gz.sig is by a key that allowed_signers does not have"
    assert f"bundles/mine.tar.gz: its rows are not signed: {told}" in found.marks
    set_key(board_of := submission(board, tmp_path / "strict"), "signatures", "required")
    (line,) = (each for each in check_submission(submitted, str(board_of)).problems if "signature" in each)
    assert told in line and str(tmp_path) not in line and "/tmp" not in line


def test_independent_runs_are_no_copies(bundles: dict[str, Path]) -> None:
    first, second = stored_runs([bundles["theirs"], bundles["mine"]])
    assert first.copy_of(second) is None and first.copy_of(first) == "has the same records as"


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("targets", "[{name: Qwen/Qwen3-8B}]", "target = embedded:drafter"),
        ("tasks", "[{task: gsm8k}]", "task = mgsm@4:"),
        ("tasks", "[{task: mgsm, subsets: [en, de]}]", "asks for de, too"),
        ("conditions", "{sampling.temperature: 1}", "sampling.temperature = 0.0"),
        ("refused_marks", "[chosen prompts]", "'chosen prompts' is in refused_marks"),
    ],
)
def test_the_rules_are_those_of_the_board(
    board: Path, bundles: dict[str, Path], tmp_path: Path, key: str, value: str, word: str
) -> None:
    """Also where the submission brings rules of its own, under which its rows would be accepted."""
    strict = submission(board, tmp_path / "board")
    set_key(strict, key, value)
    submitted = submission(board, tmp_path / "mine", bundles["mine"])
    found = problems(strict, submitted)
    assert "board.yaml: was changed" in found[0] and any(word in line for line in found[1:]), found


def test_stale_versions(board: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    newer = submission(board, tmp_path / "board")
    text = (newer / "board.yaml").read_text("utf-8").replace('specbench: "0.1.0"', 'transformers: "99.1"')
    (newer / "board.yaml").write_text(text, "utf-8")
    submitted = submission(newer, tmp_path / "mine", bundles["mine"])
    [line] = problems(newer, submitted)
    assert (
        "versions.transformers = 5." in line and "board.yaml takes 99.1 or newer: update it and measure again" in line
    )


def test_texts_of_strangers_are_no_markup(board: Path, tmp_path: Path) -> None:
    """A report mentions nobody and links nowhere."""
    submitted = submission(board, tmp_path / "mine")
    name = "@everyone ![x](https://example.org) <img src=x>"
    (submitted / "bundles" / name).mkdir(parents=True)
    (submitted / "bundles" / name / "x.tar.gz").touch()
    with tarfile.open(submitted / "bundles" / "x.tar.gz", "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(member(name, tarfile.DIRTYPE))
    found = check_submission(submitted, str(board))
    assert len(found.problems) == 2
    told = found.markdown()
    assert "@everyone" not in told and "<img" not in told.replace("\\<img", "") and "![x]" not in told
