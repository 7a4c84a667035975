"""Bundles: what is in them, what they show, and what levels rows get by them."""

import json
import random
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, bytes_digest
from specbench.publish.bundle import crate
from specbench.publish.bundle.agreement import Answers, MeasuredRow, _has_both, compare_runs, is_same_configuration
from specbench.publish.bundle.archive import unpack, write_archive
from specbench.publish.bundle.crate import About, Author
from specbench.publish.bundle.make import make_bundle
from specbench.publish.bundle.signature import sign
from specbench.publish.bundle.tables import as_json, tables
from specbench.publish.bundle.verify import CONTENT, checklist, levels_of, verified, verify
from specbench.records.records import RecordFile
from specbench.report.display import columns
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import add_runs
from specbench.results.level import STATED, Level, level_of
from specbench.results.row import Evidence, Row
from specbench.results.runs import RecordedRun
from tests.support.bundles import NOTHING, bundled, files_in, independent_runs, rewritten

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return independent_runs(tmp_path_factory.mktemp("runs"), 3)


@pytest.fixture(scope="module")
def bundle(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(runs[:1], tmp_path_factory.mktemp("bundle") / "mine.tar.gz")


def levels(files: list[Path], signers: Path | None = None) -> list[str]:
    """The levels of the rows of the first bundle."""
    with verified(files, signers) as found:
        verification = verify(found)
        return [str(verification.level_of(found[0], each)) for each in found[0].rows]


def test_all_rows_of_a_bundle_are_recomputed_from_it_alone(bundle: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(bundle, tmp_path / "theirs.tar.gz"))
    assert levels([alone]) == ["recomputed"] * 2
    with verified([alone]) as [found]:
        answers = {each.question: each.answer for each in checklist(found, verify([found]))}
        assert found.all_problems() == []
    assert answers == {
        "available: identifier": None, "available: licence": False, "available: citation": False,
        "functional: complete": True, "functional: readable": True, "functional: coverage": False,
        "functional: environment": True,
        "reproduced: from the records": True, "reproduced: by another run": None, "signed": None,
    }  # fmt: skip


def test_the_same_runs_give_the_same_bytes(runs: list[Path], bundle: Path, tmp_path: Path) -> None:
    assert bundled(runs[:1], tmp_path / "mine.tar.gz").read_bytes() == bundle.read_bytes()


def test_its_metadata_are_a_ro_crate(runs: list[Path], tmp_path: Path) -> None:
    """The root has what version 1.2 requires, every file and run is an entity, and names lead to entities."""
    about = About(
        "Two runs", [Author.of("Ada <0000-0002-1825-0097>"), Author.of("Bob")], "CC-BY-4.0", "10.5281/zenodo.1"
    )
    make_bundle(runs[:2], tmp_path / "two.tar.gz", about, scrubber=NOTHING)
    files = files_in(tmp_path / "two.tar.gz")
    graph = json.loads(files[crate.METADATA])["@graph"]
    by_id = {each["@id"]: each for each in graph}
    assert len(by_id) == len(graph)
    assert by_id[crate.METADATA] | {"conformsTo": None} == {
        "@id": crate.METADATA, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": None,
    }  # fmt: skip
    root = by_id["./"]
    assert root["@type"] == "Dataset" and root["name"] == "Two runs" and root["description"]
    assert root["datePublished"] == max(row.created for run in runs[:2] for row in load(run / "leaderboard.json"))[:10]
    assert (
        by_id[root["license"]["@id"]]["name"] == "CC-BY-4.0"
        and root["identifier"] == "https://doi.org/10.5281/zenodo.1"
    )
    assert [by_id[each["@id"]]["name"] for each in root["author"]] == ["Ada", "Bob"]
    reached = {part["@id"] for each in graph for part in each.get("hasPart", ())}
    assert {*files} - {crate.METADATA, crate.MANIFEST} == {name for name in reached if not name.endswith("/")}
    for name in files.keys() - {crate.METADATA, crate.MANIFEST}:
        assert by_id[name]["sha256"] == bytes_digest([files[name]], WHOLE)
        assert by_id[name]["contentSize"] == str(len(files[name]))
    commands = [each["description"] for each in graph if each["@type"] == "CreateAction"]
    assert commands == ["specbench run --task mgsm"] * 2 and b"specbench run --task mgsm" in files["commands.txt"]
    assert any(each["@id"] == "#data-run0-1-mgsm-en" and each["@type"] == "Dataset" for each in graph)
    assert b'name: "Ada"' in files[crate.CITATION] and b"license: " in files[crate.CITATION]
    assert b"specbench bundle verify two.tar.gz" in files[crate.README]


def test_its_digests_are_checked_without_specbench(bundle: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "xzf", str(bundle)], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--quiet", "-c", crate.MANIFEST], cwd=tmp_path, check=True)


def test_it_has_the_environment_that_measured(bundle: Path) -> None:
    [found] = json.loads(files_in(bundle)["runs/run0/environment.json"])["environments"]
    assert found["packages"]["torch"] and found["python"] and found["cpu"]["num_cpus"] > 0
    assert "changed_files" in found or found["commit"] is None


def test_without_texts_digests_stay_and_rows_are_stated(runs: list[Path], bundle: Path, tmp_path: Path) -> None:
    made = bundled(runs[:1], tmp_path / "private.tar.gz", with_texts=False)
    files = files_in(made)
    told = b"".join(files.values())
    for record in RecordFile(runs[0] / "records.jsonl").stream():
        for generation in record.methods.values():
            assert json.dumps(generation.text)[1:-1].encode() not in files["runs/run0/records.jsonl"]
            assert str(generation.token_ids.tolist())[1:-1].replace(" ", "").encode() not in told
    left = [json.loads(line) for line in files["runs/run0/records.jsonl"].splitlines()]
    whole = [json.loads(line) for line in files_in(bundle)["runs/run0/records.jsonl"].splitlines()]
    for mine, theirs in zip(left, whole, strict=True):
        for name, generation in mine["methods"].items():
            assert generation["text"] == f"sha256:{bytes_digest([theirs['methods'][name]['text'].encode()], WHOLE)}"
            assert len(generation["token_ids"]) == len(theirs["methods"][name]["token_ids"])
        same = [each["methods"]["ar"]["token_ids"] == each["methods"]["sd"]["token_ids"] for each in (mine, theirs)]
        assert same[0] == same[1]
    assert levels([made]) == ["stated"] * 2
    with verified([made]) as [found]:
        assert found.all_problems() == [] and all(CONTENT in each.stated for each in found.rows)


def test_a_forged_time_is_found_without_texts_too(runs: list[Path], tmp_path: Path) -> None:
    made = bundled(runs[:1], tmp_path / "private.tar.gz", with_texts=False)
    files = files_in(made)
    record, *others = files["runs/run0/records.jsonl"].splitlines(keepends=True)
    changed = json.loads(record)
    changed["methods"]["sd"]["decode_seconds"] /= 2
    files["runs/run0/records.jsonl"] = json.dumps(changed).encode() + b"\n" + b"".join(others)
    with verified([rewritten(made, files, tmp_path / "forged.tar.gz")]) as [found]:
        assert any("speedup" in (each.wrong or "") or "tokens_per" in (each.wrong or "") for each in found.rows)


def test_independent_runs_agree(runs: list[Path], tmp_path: Path) -> None:
    """Their greedy answers are equal, and three have a variance between runs and the interval of one more."""
    files = [bundled([run], tmp_path / f"{run.name}.tar.gz") for run in runs]
    with verified(files) as found:
        verification = verify(found)
        [ar, sd] = [verification.level_of(found[0], each) for each in found[0].rows]
        told = as_json(verification)
    assert sd.rerun is not None and (sd.rerun.num_runs, sd.rerun.machines, sd.rerun.operators) == (3, 1, 0)
    assert ar.rerun is not None and ar.rerun.agrees, "AR wrote the same greedy answers"
    assert len(told["agreements"]) == 6 and {each["answers"]["equal"] for each in told["agreements"]} == {6}
    of_length = [each for each in told["effects"] if each["metric"] == "mean_acceptance_length"]
    assert [each["variance_between"] for each in of_length] == [0.0], "τ of greedy answers is the same in every run"
    low, high = next(each for each in told["effects"] if each["metric"] == "speedup")["prediction"]
    assert low < high


def test_sampled_runs_of_other_seeds_agree_within_their_draws(tmp_path: Path) -> None:
    """Their answers are draws, which nobody compares; τ is, within the interval of its change by prompt. Of AR nothing
    is, so that it counts as measured once."""
    runs = independent_runs(tmp_path, 2, temperature=1.0)
    with verified([bundled(runs, tmp_path / "both.tar.gz")]) as found:
        [of_sd] = as_json(verify(found))["agreements"]
        marks = [verify(found).level_of(found[0], each).rerun for each in found[0].rows]
        [table] = [each for each in tables(verify(found)) if each.title == "Runs of one configuration"]
    assert of_sd["answers"] is None and "sampled" in str(table.rows)
    [length] = [each for each in of_sd["changes"] if each["metric"] == "mean_acceptance_length"]
    assert length["value"] != 1 and length["low"] < 1 < length["high"] and length["normalized_error"] < 1
    assert [mark and mark.num_runs for mark in marks] == [None, 2] * 2
    wrong = [f"{row.place}: {row.wrong}" for row in found[0].rows if row.wrong]
    assert not wrong


def test_a_copied_run_is_no_other_run(runs: list[Path], tmp_path: Path) -> None:
    """Neither as it is, nor with another process and time."""
    copy = Path(shutil.copytree(runs[0], tmp_path / "copy"))
    with verified([bundled([runs[0], copy], tmp_path / "twice.tar.gz")]) as found:
        told = as_json(verify(found))
        assert levels([found[0].file]) == ["recomputed"] * 4 and "of one process" in told["not_counted"][0]
    text = (copy / "records.jsonl").read_text(encoding="utf-8")
    (copy / "records.jsonl").write_text(text.replace("process-0", "process-9"), encoding="utf-8")
    with verified([bundled([runs[0], copy], tmp_path / "twice.tar.gz")]) as found:
        assert "their times are copies" in as_json(verify(found))["not_counted"][0]


def test_answers_that_differ_are_told(runs: list[Path], tmp_path: Path) -> None:
    """A run whose last token of an answer differs does not agree, since nothing explains it."""
    copy = Path(shutil.copytree(runs[1], tmp_path / "other"))
    lines = (copy / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    record = json.loads(lines[0])
    for generation in record["methods"].values():
        generation["token_ids"][-1] += 1
    (copy / "records.jsonl").write_text(json.dumps(record) + "\n" + "".join(lines[1:]), encoding="utf-8")
    rows = [MeasuredRow(RecordedRun(path).rows[1], RecordedRun(path)) for path in (runs[0], copy)]
    found = compare_runs(*rows)
    assert not isinstance(found, str) and found.answers == Answers(6, 5, 0) and not found.agrees
    assert str(found.answers) == "5 of 6 equal, 1 differ otherwise"


def test_a_difference_that_one_run_has_itself_is_explained(runs: list[Path]) -> None:
    """AR and a method of one run differ at a near-tie; the other run's AR went the method's way."""
    record = next(RecordFile(runs[0] / "records.jsonl").stream())
    ids = record.methods["ar"].token_ids.tolist()
    other = [*ids[:3], ids[3] + 1, *ids[4:]]
    assert not _has_both(record, ids, other, {"ar", "sd"})
    record.methods["sd"].token_ids[3] += 1
    assert _has_both(record, ids, other, {"ar", "sd"}) and not _has_both(record, ids, other, {"ar"})
    assert not _has_both(record, ids, ids[:3], {"ar", "sd"}), "an answer that ends earlier is not a near-tie"


def test_a_configuration_is_the_same_on_another_machine(runs: list[Path]) -> None:
    row: Row = RecordedRun(runs[0]).rows[1]
    elsewhere = {"device": "Another CPU, 8 threads", "versions": {"torch": "9"}, "commit": "0" * 40, "created": "x"}
    assert is_same_configuration(row, row.model_copy(update=elsewhere))
    for other in (
        {"seed": 1},
        {"num_draft_tokens": 9},
        {"dtype": "float64"},
        {"n": 5},
        {"drafter_revision": "local-1"},
    ):
        assert not is_same_configuration(row, row.model_copy(update=other)), other
    sampled = row.model_copy(update={"sampling": row.sampling.model_copy(update={"temperature": 1.0})})
    assert is_same_configuration(sampled, sampled.model_copy(update={"seed": 1}))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A throw-away key, and a file of allowed signers beside it."""
    path = tmp_path_factory.mktemp("keys") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    public = path.with_suffix(".pub").read_text().strip()
    path.with_name("allowed").write_text(f'ada@example.org namespaces="specbench-bundle" {public}\n')
    return path


@needs_ssh
def test_a_signature_says_who(bundle: Path, key: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copy(bundle, tmp_path / "mine.tar.gz"))
    allowed = key.with_name("allowed")
    assert sign(mine, key).name == "mine.tar.gz.sig"
    assert levels([mine], allowed) == ["recomputed · signed by ada@example.org"] * 2
    with verified([mine]) as [found]:
        assert found.signer is None and "SHA256:" in found.about_signature, "whose key it is, nobody said"
    nobody = tmp_path / "nobody"
    nobody.write_text("")
    assert levels([mine], nobody) == ["recomputed"] * 2
    other = tmp_path / "other"
    other.write_text(allowed.read_text().replace("specbench-bundle", "git"))
    assert levels([mine], other) == ["recomputed"] * 2, "a key for other things"
    files = files_in(mine)
    rewritten(mine, files | {crate.README: files[crate.README] + b"\nMore.\n"}, mine)
    assert levels([mine], allowed) == ["recomputed"] * 2, "the bytes changed after it was signed"


def test_levels_of_a_board_are_those_that_bundles_show(runs: list[Path], bundle: Path, tmp_path: Path) -> None:
    """A row of the bundle is recomputed; one with another number or of another run stays stated."""
    add_runs(runs[:1], tmp_path / "board.json")
    rows = load(tmp_path / "board.json")
    metrics = rows[0].metrics | {"new_tokens": rows[0].metrics["new_tokens"].model_copy(update={"value": 1.0})}
    changed = [rows[0].model_copy(update={"metrics": metrics}), rows[1]]
    found = levels_of(changed, [bundle])
    flat = columns(changed, found)
    assert [each["level"] for each in flat] == ["stated", "recomputed"]
    assert [each["level"] for each in columns(rows)] == ["stated"] * 2
    elsewhere = [row.model_copy(update={"created": "2020-01-01T00:00:00+00:00"}) for row in rows]
    assert levels_of(elsewhere, [bundle]) == {}, "of another time"


def test_levels_are_shown(specbench, runs: list[Path], bundle: Path, tmp_path: Path) -> None:
    add_runs(runs[:1], tmp_path / "board.json")
    code, out, _ = specbench("leaderboard", "show", "board.json", "--bundle", bundle, "--format", "markdown")
    assert code == 0 and "recomputed" in out
    code, out, _ = specbench("leaderboard", "show", "board.json", "--format", "markdown")
    assert code == 0 and "recomputed" not in out
    assert specbench("site", "board.json", "--output", "site", "--bundle", bundle)[0] == 0
    assert "recomputed" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    [page, *_] = (tmp_path / "site" / "rows").glob("*.html")
    assert "recomputed from its records" in page.read_text(encoding="utf-8")
    code, _, err = specbench("leaderboard", "export", "board.json", "--output", "x.csv", "--signers", "nobody")
    assert code == 2 and "--bundle" in err


def test_commands(specbench, runs: list[Path], tmp_path: Path) -> None:
    code, out, err = specbench("bundle", runs[0], runs[1], "--output", "both.tar.gz", "--author", "Ada")
    assert (code, err) == (0, "") and "2 runs, 4 rows" in out
    code, out, _ = specbench("bundle", "verify", "both.tar.gz", "--json")
    assert code == 0 and json.loads(out)["bundles"][0]["rows"][0]["num_runs"] == 2
    code, out, _ = specbench("bundle", "verify", "both.tar.gz")
    assert code == 0 and "reproduced: from the records" in out and "2 runs" in out
    code, _, err = specbench("bundle", "sign", "both.tar.gz", "--key", "absent")
    assert code == 2 and err.startswith("error: --key absent: no such file")
    code, _, err = specbench("bundle", "nothing", "--output", "x.tar.gz")
    assert (
        code == 2
        and err
        == "error: run 'nothing': no such folder: give the folder of a finished run, as `specbench run` prints it\n"
    )
    code, _, err = specbench("bundle", runs[0], "--output", "x.tar.gz", "--author", "Ada <me@example.org>")
    assert code == 2 and "NAME <ORCID>" in err


def packed_and_unpacked(folder: Path, num_bytes: int) -> int:
    """Packs and unpacks a file of this many bytes. Returns the most memory that Python had for it."""
    (folder / "from" / "runs").mkdir(parents=True)
    (folder / "to").mkdir()
    rng = random.Random(0)
    with (folder / "from" / "runs" / "big").open("wb") as file:
        for _ in range(num_bytes // 2**20):
            file.write(rng.randbytes(2**16) + bytes(2**20 - 2**16))
    tracemalloc.start()
    try:
        write_archive(folder / "from", ["runs/big"], folder / "x.tar.gz")
        assert unpack(folder / "x.tar.gz", folder / "to") == ["runs/big"]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (folder / "to" / "runs" / "big").stat().st_size == num_bytes
    return most


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    assert packed_and_unpacked(tmp_path, 16 * 2**20) < 8 * 2**20


@pytest.mark.slow
def test_an_archive_of_a_quarter_of_a_gigabyte(tmp_path: Path) -> None:
    assert packed_and_unpacked(tmp_path, 2**28) < 8 * 2**20


@pytest.mark.slow
def test_a_large_run_is_bundled_in_bounded_memory(runs: list[Path], tmp_path: Path) -> None:
    """A file of records of 200 MB, of which only lines are in memory. Reading any JSON file takes 64 MiB at once."""
    copy = Path(shutil.copytree(runs[0], tmp_path / "large"))
    record = json.loads((copy / "records.jsonl").read_text(encoding="utf-8").splitlines()[0])
    record["methods"]["ar"]["text"] = "word " * 20_000
    with (copy / "records.jsonl").open("a", encoding="utf-8") as file:
        for number in range(2000):
            file.write(json.dumps(record | {"example": 100 + number}) + "\n")
    tracemalloc.start()
    try:
        bundled([copy], tmp_path / "large.tar.gz")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 72 * 2**20


def test_a_folder_that_cannot_be_bundled(runs: list[Path], tmp_path: Path) -> None:
    linked = Path(shutil.copytree(runs[0], tmp_path / "linked"))
    (linked / "records.jsonl").unlink()
    (linked / "records.jsonl").symlink_to(runs[0] / "records.jsonl")
    with pytest.raises(ConfigError, match=r"records\.jsonl: is a link"):
        bundled([linked], tmp_path / "x.tar.gz")
    absent = Path(shutil.copytree(runs[0], tmp_path / "absent"))
    (absent / "specs.json").unlink()
    with pytest.raises(ConfigError, match=r"has no specs\.json"):
        bundled([absent], tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_row_of_a_board_that_was_edited_stays_stated(runs: list[Path], bundle: Path) -> None:
    """In any field; what an audit or fairness added is told, if the answers do not contradict it."""
    row = load(runs[0] / "leaderboard.json")[1]
    evidence = Evidence(task="mgsm", subsets=("en",), num_prompts=6, num_draws=9, temperature=1, p_value=0.5)

    def found(**changes: object) -> Level:
        edited = row.model_copy(update=changes)
        return level_of(edited, levels_of([row, edited], [bundle]))  # beside the row itself

    assert str(found()) == "recomputed" and found(verdict="lossless") == found(lossless=False) == STATED
    assert found(language="sw") == STATED
    level = found(verdict="lossless", evidence=evidence)
    assert level.name == "recomputed" and level.except_for == ("verdict", "evidence")
    assert found(verdict="lossless", evidence=evidence.model_copy(update={"p_value": 1e-9})) == STATED
