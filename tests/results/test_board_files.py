"""Board files: rows added, checked, joined, recomputed and shown; and what is refused."""

import json
import multiprocessing
import os
import re
import shutil
import sys
from itertools import cycle

import pytest

from specbench.analysis.audit.report import verdict_in_report
from specbench.core.errors import ConfigError
from specbench.results.conditions import FieldDifference, conditions, conditions_that_differ
from specbench.results.fairness import Correlations, FairnessSummary
from specbench.results.leaderboard import BoardFile, edit_rows, load, schema, set_verdicts, write
from specbench.results.leaderboard_files import add_runs, compare_with_run, merge_files, validate
from specbench.results.row import (
    FORMAT,
    LATER_FIELDS,
    Evidence,
    Row,
    RowBatchWidth,
    RowDifferences,
    RowSampling,
    RowShots,
    with_digest,
)
from specbench.results.runs import RecordedRun
from specbench.statistics.bootstrap import INTERVALS, Estimate
from tests.support.rows import row
from tests.support.runs import run_into

EVIDENCE = Evidence(task="mgsm", subsets=("en",), num_prompts=4, num_draws=9, temperature=1, p_value=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of sd, a lossy method and the drafter alone on two prompts of two languages."""
    path = tmp_path_factory.mktemp("boards") / "run"
    run_into(path, "sd,fsd,draft-only", subsets=("en", "sw"), limit=2)
    return path


@pytest.fixture(scope="module")
def whole_board(folder, tmp_path_factory):
    """Lies as deep as the folders of tests, from which its rows find their run too."""
    path = tmp_path_factory.mktemp("whole") / "board.json"
    add_runs([folder], path)
    return path


@pytest.fixture
def board(whole_board, tmp_path):
    return shutil.copy(whole_board, tmp_path / "board.json")


def mismatches(row, run):
    return compare_with_run(row, run, run.path / "leaderboard.json")[0]


def edited(path, change, seal=True):
    """Change the content of a file's rows by hand, with or without their digests."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for each in content["rows"]:
        change(each)
    if seal:
        content["rows"] = [with_digest(each) for each in content["rows"]]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_rows_of_a_run_say_where_it_is_and_are_added_once(folder, board):
    rows = load(board)
    assert len(rows) == 12 and {(board.parent / each.run).resolve() for each in rows} == {folder.resolve()}
    assert [each.model_copy(update={"run": None}) for each in rows] == load(folder / "leaderboard.json")
    added = add_runs([folder], board)
    assert (added.new, added.replaced, added.known, added.total) == (0, (), 12, 12) and load(board) == rows


def test_a_new_result_takes_the_place_of_the_old_and_the_same_keeps_its_verdict(folder, board):
    edited(board, lambda each: each.update(verdict="lossless"))
    assert add_runs([folder], board).known == 12 and {each.verdict for each in load(board)} == {"lossless"}
    edited(board, lambda each: each.update(created="2020-01-01T00:00:00+00:00"))
    assert len(add_runs([folder], board).replaced) == 12 and "lossless" not in {each.verdict for each in load(board)}


def test_every_row_is_recomputed_from_its_records_to_the_last_digit(folder, board):
    for path in (board, folder / "leaderboard.json"):
        found = validate(path, with_records=True)
        assert (found.num_rows, found.num_recomputed, found.problems) == (12, 12, ())


def test_a_row_of_an_earlier_version_lacks_the_later_fields(folder, tmp_path):
    copy, path = tmp_path / "run", tmp_path / "run" / "leaderboard.json"
    shutil.copytree(folder, copy)
    measured = json.loads((copy / "measurements.json").read_text(encoding="utf-8"))
    for name in ("context", "pauses", "common_ids"):
        del measured["measurements"][0][name]
    for each in measured["measurements"][0]["subsets"]:
        del each["coverage"]
    (copy / "measurements.json").write_text(json.dumps(measured), encoding="utf-8")
    identity = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**identity, "end_tokens": None}), encoding="utf-8")

    def as_earlier(each):
        for field in LATER_FIELDS:
            del each[field]

    edited(path, as_earlier)
    merge_files([path], tmp_path / "board.json")  # which writes the later fields, empty
    for file in (path, tmp_path / "board.json"):
        assert validate(file, with_records=True).problems == ()
    edited(path, lambda each: each["warm_up"].update(blocks=each["warm_up"]["blocks"] + 1))
    problems = validate(path, with_records=True).problems
    assert len(problems) == 12 and all("or remove the row and add its run again" in each for each in problems)


def test_rows_of_routes_shares_outside_code_and_corpus_scores_are_recomputed(tmp_path):
    run_into(tmp_path / "run", "routed,random-allocation,hf-pld", subsets=("de-en", "en-de"), task="wmt", limit=1)
    found = validate(tmp_path / "run" / "leaderboard.json", with_records=True)
    assert (found.num_recomputed, found.problems) == (12, ())


def test_a_row_is_recomputed_after_its_run_has_grown(tmp_path, tiny_pair):
    """The old row is of the first examples of each subset; the folder's own rows are of them all."""
    asked = {"methods": "pld", "subsets": ("en", "sw"), "target": tiny_pair[0]}
    run_into(tmp_path / "run", **asked, limit=1, leaderboard=tmp_path / "board.json")
    run_into(tmp_path / "run", **asked, limit=2)
    for path, num in ((tmp_path / "board.json", 1), (tmp_path / "run" / "leaderboard.json", 2)):
        assert {each.n for each in load(path) if each.subset != "all"} == {num}
        assert validate(path, with_records=True).problems == ()


def test_a_row_over_all_is_recomputed_from_its_own_subsets(tmp_path, tiny_pair):
    """The folder's last command was of others."""
    asked = {"methods": "pld", "limit": 2, "target": tiny_pair[0]}
    run_into(tmp_path / "run", **asked, subsets=("en", "sw"), leaderboard=tmp_path / "board.json")
    run_into(tmp_path / "run", **asked, subsets=("bn", "de"))
    assert validate(tmp_path / "board.json", with_records=True, verdict_in=verdict_in_report).problems == ()
    write(tmp_path / "board.json", [each for each in load(tmp_path / "board.json") if each.subset == "all"])
    assert validate(tmp_path / "board.json", with_records=True, verdict_in=verdict_in_report).problems == (), (
        "also without the rows of its subsets"
    )


def test_a_run_json_that_is_not_whole_is_one_problem_of_each_row(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    for text in ("{}", "[]", '{"seed": 0, "target": 3}'):
        (tmp_path / "run" / "run.json").write_text(text)
        problems = validate(tmp_path / "run" / "leaderboard.json", with_records=True).problems
        expected = "is not a mapping" if text == "[]" else "run.json: is incomplete"
        assert len(problems) == 12 and all(expected in problem for problem in problems)


def test_what_the_run_noted_of_its_command_is_compared(folder, tmp_path):
    """The notes are of another run than the records where an edit of them goes unnoticed."""
    shutil.copytree(folder, tmp_path / "run")
    path, board = tmp_path / "run" / "measurements.json", tmp_path / "run" / "leaderboard.json"
    notes = json.loads(path.read_text(encoding="utf-8"))
    (measurement,) = notes["measurements"]
    parts = [{**part, "source": "hub", "revision": "a" * 40} for part in measurement["subsets"]]
    path.write_text(json.dumps({"measurements": [{**measurement, "subsets": parts, "chat": True}]}))
    edited(board, lambda each: each.update(data_source="hub", data_revision="a" * 40, chat=True))
    assert validate(board, with_records=True, verdict_in=verdict_in_report).problems == ()
    path.write_text(json.dumps(notes))
    problems = validate(board, with_records=True, verdict_in=verdict_in_report).problems
    assert len(problems) == 12 and all("data_source = 'hub'" in each and "chat = True" in each for each in problems)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode")
def test_a_folder_whose_name_is_not_utf_8_is_one_clear_error(folder, tmp_path):
    odd = tmp_path / os.fsdecode(b"run-\xff")
    shutil.copytree(folder, odd)
    with pytest.raises(ConfigError, match="not UTF-8"):
        add_runs([odd], tmp_path / "board.json")
    assert not list(tmp_path.glob("*board.json*.tmp")) and not (tmp_path / "board.json").exists()


def test_merging_keeps_what_an_audit_found_and_refuses_contradictions(tmp_path):
    numbers = FairnessSummary(groups=("en",), unfairness=Estimate(value=0.3), spreads={}, correlations=Correlations())
    plain, audited = row(), row(verdict="lossless", evidence=EVIDENCE)
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for file, each in zip(files, (plain, audited, row(fairness=numbers)), strict=True):
        write(file, [each])
    for number, order in enumerate((files, files[::-1])):
        merge_files(order, tmp_path / f"all-{number}.json")
        (found,) = load(tmp_path / f"all-{number}.json")
        assert (found.verdict, found.evidence, found.fairness) == ("lossless", EVIDENCE, numbers)
    assert merge_files(files[1:], files[0]).known == 1 and load(files[0])[0].verdict == "lossless"
    write(files[2], [row(verdict="diverged", evidence=EVIDENCE)])
    with pytest.raises(ConfigError, match="two verdicts, diverged and lossless"):
        merge_files(files[1:], tmp_path / "none.json")
    with pytest.raises(ConfigError, match="two verdicts, diverged and lossless"):
        merge_files(files[2:], files[1])


def test_a_judged_row_and_the_same_without_its_ratings_are_one(tmp_path):
    judged = row(signatures={"judge_score": "a judge"}, created="2027")
    for number, order in enumerate(((judged, row()), (row(), judged))):
        files = [tmp_path / f"{number}-{place}.json" for place in range(2)]
        for file, each in zip(files, order, strict=True):
            write(file, [each])
        merge_files(files, tmp_path / f"all-{number}.json")
        assert load(tmp_path / f"all-{number}.json") == [judged]
    write(tmp_path / "other.json", [row(metrics={"speedup": Estimate(value=3.0)})])
    assert merge_files([tmp_path / "other.json"], tmp_path / "all-0.json").total == 2


EDITS = {
    "speedup.value": lambda each: each["metrics"]["speedup"].update(value=9.5),
    "tokens_per_second.high": lambda each: each["metrics"]["tokens_per_second"].update(low=0.0, high=1e6),
    "metrics.invented": lambda each: each["metrics"].update(invented={"value": 1.0, "low": None, "high": None}),
    "metrics.tokens_per_second ": lambda each: each["metrics"].pop("tokens_per_second"),
    "device": lambda each: each.update(device="Faster GPU"),
    "lossless": lambda each: each.update(lossless=not each["lossless"]),
    "verdict": lambda each: each.update(verdict="near-tie only"),
    "options": lambda each: each["options"]["verification"].update(threshold=3),
    "n = 99": lambda each: each.update(n=99, subsets={}, coverage=None),
    "repeats = 2": lambda each: each.update(repeats=2),
    "drafter": lambda each: each.update(drafter="org/other"),
    "sampling": lambda each: each.update(sampling={"temperature": 0.7, "top_k": None, "top_p": None}),
    "language": lambda each: each.update(language="xx"),
}


@pytest.mark.parametrize(("field", "subset"), [*zip(EDITS, cycle(("en", "all")), strict=False)])
def test_a_row_that_is_not_that_of_its_records_is_refused_even_with_a_new_digest(board, field, subset):
    write(board, [each for each in load(board) if each.subset == subset])
    edited(board, EDITS[field], seal=False)
    with pytest.raises(ConfigError, match=rf"rows\.0 \(mgsm@\d+ {subset} ar@1\): digest = .* edited by hand"):
        load(board)
    edited(board, lambda each: None)
    found = validate(board, with_records=True, verdict_in=verdict_in_report)
    assert len(found.problems) == 4 and all(field.strip() in problem for problem in found.problems)


def test_a_verdict_that_only_an_audit_gives_needs_its_evidence(folder):
    """And a lossy rule, or outputs that differ, leave none of it."""
    run = RecordedRun(folder)
    named = {each.method_name: each for each in run.rows if each.subset == "en"}
    half = (
        EVIDENCE.model_copy(update=part) for part in ({"num_prompts": None}, {"num_draws": None}, {"p_value": 1e-9})
    )
    refused = [
        *(("sd", verdict, None) for verdict in ("lossless", "undecided", "diverged", "lossy by design")),
        *(("sd", "lossless", each) for each in half),
        *(("fsd", verdict, each) for verdict in ("lossless", "greedy equal") for each in (None, EVIDENCE)),
    ]
    for name, verdict, evidence in refused:
        edit = named[name].model_copy(update={"verdict": verdict, "evidence": evidence})
        assert [each.field for each in mismatches(edit, run)] == ["verdict"], (name, verdict, evidence)
    for verdict in ("lossless", "undecided", "diverged"):
        assert not mismatches(named["sd"].model_copy(update={"verdict": verdict, "evidence": EVIDENCE}), run)


def test_rows_without_a_place_are_looked_for_in_the_folders_that_are_named(folder, board, tmp_path):
    edited(board, lambda each: each.update(run="gone"))
    assert "its run is not at" in validate(board, with_records=True, verdict_in=verdict_in_report).problems[0]
    assert validate(board, with_records=True, verdict_in=verdict_in_report, folders=[folder]).problems == ()
    (tmp_path / "moved").mkdir()
    merge_files([board], tmp_path / "moved" / "board.json")
    assert load(tmp_path / "moved" / "board.json")[0].run == "../gone"


def test_a_folder_without_its_specs_says_what_to_do(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "old")
    (tmp_path / "old" / "specs.json").unlink()
    problems = validate(tmp_path / "old" / "leaderboard.json", with_records=True).problems
    assert "specs.json: cannot be read: No such file or directory: repeat the command" in problems[0]


def test_rows_that_do_not_go_together_are_refused_with_both_values(tmp_path):
    first, path = tmp_path / "a.json", tmp_path / "b.json"
    write(first, [row()])
    strangers = {
        "device = GPU, .*has Some CPU, 1 thread.*one device": {"device": "GPU"},
        r"versions\.torch = 2\.12.*has 2\.13.*versions": {"versions": {"torch": "2.12.0", "transformers": "5.23.0"}},
        "task mgsm: version = 2.*has 1": {"task": "mgsm@2:0123456789ab", "subset": "en"},
        "method fsd: version = 2.*has 1": {"method": "fsd@2:ba9876543210", "subset": "en"},
        "target_revision = e+": {"target_revision": "e" * 40, "subset": "en"},
    }
    for message, change in strangers.items():
        write(path, [row(**change)])
        with pytest.raises(ConfigError, match=message):
            merge_files([first, path], tmp_path / "all.json")
        assert not (tmp_path / "all.json").exists()
        write(path, [row(), row(**change)])
        assert validate(path, with_records=False).problems
    write(path, [row(subset="en"), row(sampling={"temperature": 0.5}), row(target="org/other", dtype="bfloat16")])
    assert merge_files([first, path], tmp_path / "all.json").new == 4 and not validate(path, False).problems


APART = {
    "intervals = .*one method of intervals": (
        {}, {"subset": "en", "intervals": INTERVALS.model_copy(update={"resamples": 9})}
    ),
    r"versions\.transformers = 5\.22": ({}, {"versions": {"torch": "2.13.0", "transformers": "5.22.0"}}),
    "drafter_revision = b+": ({"drafter_revision": "a" * 40}, {"subset": "en", "drafter_revision": "b" * 40}),
    "data_revision = b+": ({"data_revision": "a" * 40}, {"seed": 1, "data_revision": "b" * 40}),
}  # fmt: skip


@pytest.mark.parametrize("message", APART)
def test_neither_files_nor_runs_bring_versions_into_one_file_that_differ(tmp_path, message):
    first, second = APART[message]
    write(tmp_path / "board.json", [row(**first)])
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "leaderboard.json", [row(**second)])
    for put in (
        lambda: add_runs([tmp_path / "run"], tmp_path / "board.json"),
        lambda: merge_files([tmp_path / "run" / "leaderboard.json"], tmp_path / "board.json"),
    ):
        with pytest.raises(ConfigError, match=message):
            put()
        assert load(tmp_path / "board.json") == [row(**first)]


def test_every_field_that_a_run_tells_is_compared_with_it(folder):
    run = RecordedRun(folder)
    honest = next(each for each in run.rows if each.subset == "en" and each.method.startswith("sd@"))
    assert mismatches(honest, run) == []
    edits = {
        "seed": 7, "target": "org/other", "target_revision": "a" * 40, "drafter": "org/other", "commit": "abc",
        "drafter_revision": "a" * 40, "data_source": "hub", "device": "Faster", "dtype": "float16",
        "attention": "eager", "versions": {"torch": "9"}, "engine": "compiled",
        "num_draft_tokens": 9, "lossless": False, "quality": "bleu",
        "signatures": {"bleu": "x"}, "intervals": INTERVALS.model_copy(update={"level": 0.5}), "options": {},
        "sampling": RowSampling(temperature=1.0), "language": "xx", "accepted_tokens_per_step": (1, 2, 3),
    }  # fmt: skip
    for field, value in edits.items():
        found = mismatches(honest.model_copy(update={field: value}), run)
        assert field in {each.field.partition(".")[0] for each in found}, field


def test_a_verdict_is_one_that_rule_and_outputs_allow(folder):
    """An audit's needs its evidence, and outputs that differ are not called clean by any."""
    run = RecordedRun(folder)
    sd, fsd, alone = (
        next(each for each in run.rows if each.subset == "en" and each.method.startswith(f"{name}@"))
        for name in ("sd", "fsd", "draft-only")
    )
    assert (sd.verdict, fsd.verdict) == ("greedy equal", "lossy by design")
    kept = [(sd, "lossless", EVIDENCE), (sd, "diverged", EVIDENCE)]
    wrong = [(sd, "lossless", None), (sd, "not audited", None), (sd, "undecided", None), (sd, "diverged", None),
             (fsd, "lossless", None), (fsd, "lossless", EVIDENCE), (fsd, "greedy equal", None),
             (alone, "lossless", EVIDENCE)]  # fmt: skip
    for each, verdict, evidence in (*kept, *wrong):
        found = mismatches(each.model_copy(update={"verdict": verdict, "evidence": evidence}), run)
        expected = [] if (each, verdict, evidence) in kept else ["verdict"]
        assert [one.field for one in found] == expected, (each.method, verdict)


def test_outputs_that_differ_are_not_called_clean_by_any_audit(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    path, notes = tmp_path / "run" / "records.jsonl", tmp_path / "run" / "measurements.json"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for each in records:
        each["methods"]["sd"]["token_ids"][0] += 1
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    problems = validate(tmp_path / "run" / "leaderboard.json", with_records=True).problems
    assert len(problems) == 3 and all("ties: 0 answers of sd in mgsm differ from AR's" in each for each in problems)
    content = json.loads(notes.read_text(encoding="utf-8"))
    num = len({each["example"] for each in records if each["subset"] == "en"})
    ties = {"task": "mgsm", "method": "sd", "num_different": num, "num_near_ties": num - 1, "tolerance": 1e-3}
    content["measurements"][0]["ties"] = [{**ties, "subset": subset} for subset in ("en", "sw")]
    notes.write_text(json.dumps(content))
    run = RecordedRun(tmp_path / "run")
    own = {each.subset: run.recompute_row(each) for each in run.rows if each.method_name == "sd"}
    assert {each.batch_width for each in own.values()} == {RowBatchWidth(tolerance=1e-3, share_equal=None)}
    assert own["en"].differences == RowDifferences(answers=num, compared=num, near_ties=num - 1)
    for place in (0, 1):
        content["measurements"][0]["ties"][place]["num_decoded_again"] = 1
    for place, share in enumerate((0.5, 0.25)):
        content["measurements"][0]["ties"][place] |= {"share_equal": share, "tolerance": share / 10}
    notes.write_text(json.dumps(content))
    run = RecordedRun(tmp_path / "run")
    own = {each.subset: run.recompute_row(each) for each in run.rows if each.method_name == "sd"}
    assert own["all"].differences == RowDifferences(
        answers=2 * num, compared=2 * num, near_ties=2 * (num - 1), decoded_again=2
    )
    widths = {name: each.batch_width for name, each in own.items()}
    assert widths == {
        "en": RowBatchWidth(tolerance=0.05, share_equal=0.5),
        "sw": RowBatchWidth(tolerance=0.025, share_equal=0.25),
        "all": RowBatchWidth(tolerance=0.05, share_equal=0.25),
    }
    sd = next(each for each in run.rows if each.method.startswith("sd@") and each.subset == "en")
    for verdict, evidence, is_wrong in (("lossless", EVIDENCE, True), ("greedy equal", None, True),
                                        ("near-tie only", None, True), ("diverged", EVIDENCE, False),
                                        ("diverged", None, False)):  # fmt: skip
        found = mismatches(sd.model_copy(update={"verdict": verdict, "evidence": evidence}), run)
        assert ("verdict" in {each.field for each in found}) == is_wrong, verdict


def test_two_results_of_one_configuration_are_refused_in_files_and_replaced_by_runs(tmp_path):
    write(tmp_path / "a.json", [row()])
    write(tmp_path / "b.json", [row(created="2026-02-02T00:00:00Z", metrics={"speedup": Estimate(value=2.0)})])
    with pytest.raises(ConfigError, match=r"2026-02-02.*2026-01-01.*speed-up 2\.0000 and 1\.5000"):
        merge_files([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "c.json")
    merge_files([tmp_path / "a.json", tmp_path / "a.json"], tmp_path / "c.json")
    assert load(tmp_path / "c.json") == [row()]
    with pytest.raises(ConfigError, match=r"c\.json has another result"):
        merge_files([tmp_path / "b.json"], tmp_path / "c.json")
    assert load(tmp_path / "c.json") == [row()]


NUM_AT_ONCE = 3  # processes


def add_one(folder, board, together):
    together.wait(60)
    add_runs([folder], board)


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks")
def test_processes_that_add_at_once_lose_no_row(tmp_path):
    names = [f"subset-{number}" for number in range(NUM_AT_ONCE)]
    for name in names:
        (tmp_path / name).mkdir()
        write(tmp_path / name / "leaderboard.json", [row(subset=f"{name}-{part}") for part in range(3)])
    context = multiprocessing.get_context("fork")
    together = context.Barrier(len(names))
    board = tmp_path / "board.json"
    adders = [context.Process(target=add_one, args=(tmp_path / name, board, together)) for name in names]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join(60)
    assert [adder.exitcode for adder in adders] == [0] * NUM_AT_ONCE
    assert {each.subset for each in load(tmp_path / "board.json")} == {
        f"{n}-{part}" for n in names for part in range(3)
    }
    assert not list(tmp_path.glob("*.tmp"))


def judge_one(board, name, together):
    together.wait(60)
    set_verdicts(board, lambda each: ("lossless", EVIDENCE) if each.subset == name else None)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_verdicts_that_come_at_once_lose_none(tmp_path):
    names = [f"subset-{number}" for number in range(NUM_AT_ONCE)]
    board = tmp_path / "board.json"
    write(board, [row(subset=name) for name in names])
    context = multiprocessing.get_context("fork")
    together = context.Barrier(len(names))
    auditors = [context.Process(target=judge_one, args=(board, name, together)) for name in names]
    for auditor in auditors:
        auditor.start()
    for auditor in auditors:
        auditor.join(60)
    assert [auditor.exitcode for auditor in auditors] == [0] * NUM_AT_ONCE
    assert {each.verdict for each in load(board)} == {"lossless"}


def test_what_must_match_is_told_with_both_values_and_may_be_ignored():
    first = row()
    assert conditions_that_differ(first, row(method="sd@1:0", drafter="x", num_draft_tokens=2)) == []
    versions = {"torch": "2.12.0", "transformers": "5.23.0"}
    level = INTERVALS.model_copy(update={"level": 0.9})
    other = row(sampling={"temperature": 0.5}, versions=versions, dtype="float16", intervals=level)
    found = conditions_that_differ(first, other)
    assert [each.field for each in found] == [
        "sampling.temperature", "dtype", "versions.torch", "intervals.level",
    ]  # fmt: skip
    assert found[0] == FieldDifference("sampling.temperature", 0.0, 0.5) and str(found[1]) == "dtype: float32 ≠ float16"
    assert conditions_that_differ(first, other, ignore=("sampling", "versions.torch", "intervals", "dtype")) == []
    assert conditions_that_differ(row(signatures={"bleu": "a"}), row(signatures={"chrf": "b"})) == []
    assert conditions_that_differ(row(signatures={"bleu": "a"}), row(signatures={"bleu": "b"}))
    assert len(conditions(first)) == len(set(conditions(first)))
    assert [str(each) for each in conditions_that_differ(row(), row(engine="compiled"))] == ["engine: eager ≠ compiled"]


def test_other_worked_examples_are_other_conditions_and_another_result():
    shots = [RowShots(num=2, source="local", location="dev", digest=each, num_checked=16) for each in "ab"]
    first, second = (row(shots=each) for each in shots)
    assert [each.field for each in conditions_that_differ(first, second)] == ["shots.digest"]
    assert [each.field for each in conditions_that_differ(first, row())] == [
        "shots.digest"
    ] and not conditions_that_differ(first, first)
    assert len({first.key, second.key, row().key}) == 3


def test_the_schema_takes_what_is_written_and_nothing_else(board, folder):
    made = schema()
    assert made["x-format"] == FORMAT
    assert made["properties"]["format"]["const"] == FORMAT == Row.model_fields["format"].default
    for path in (board, folder / "leaderboard.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        again = BoardFile.model_validate(content).model_dump(mode="json")
        assert again == content
        assert set(made["$defs"]["WrittenRow"]["required"]) == set(content["rows"][0])


def test_a_validator_of_json_schema_agrees(board):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    content = json.loads(board.read_text(encoding="utf-8"))
    assert not list(validator.iter_errors(content))
    for change in (lambda each: each.update(n="many"), lambda each: each.pop("digest"), lambda each: each.update(x=1)):
        wrong = {**content, "rows": [dict(content["rows"][0])]}
        change(wrong["rows"][0])
        assert list(validator.iter_errors(wrong))


def test_all_problems_of_a_file_are_found(specbench, board):
    content = json.loads(board.read_text(encoding="utf-8"))
    rows = content["rows"]
    rows[0]["seed"] = 1
    rows[1] |= {"n": "many", "seed": None}
    del rows[2]["task"], rows[2]["n"]
    rows[3] = 4
    rows.append(rows[5])
    rows.append(with_digest({**rows[6], "device": "GPU"}))
    board.write_text(json.dumps(content), encoding="utf-8")
    found = validate(board, with_records=False).problems
    places = ["rows.0 (", "rows.1.seed", "rows.1.n", "rows.2.task", "rows.2.n", "rows.3 = 4", "rows.12 (", "rows.13 ("]
    assert [next(place for place in places if place in problem) for problem in found] == places
    with pytest.raises(ConfigError, match=r"rows\.0 \("):
        load(board)
    content["rows"] = [5] * 60
    board.write_text(json.dumps(content), encoding="utf-8")
    code, _, err = specbench("leaderboard", "validate", board)
    assert code == 2 and len(err.splitlines()) == 51 and err.endswith(f"{board}: and 10 more problems\n")


WRONG_PATHS = {
    "leaderboard show RUN": "this is a folder, not a leaderboard file (JSON): the rows are in RUN/leaderboard.json",
    "leaderboard validate RUN/records.jsonl": "not a leaderboard (JSON): the rows are in RUN/leaderboard.json",
    "leaderboard merge RUN/run.json --leaderboard all.json": "…]}; the rows are in RUN/leaderboard.json",
    "site my.yaml --output site": "this is a YAML file, not a leaderboard (JSON)",
    "compare my.yaml RUN": "this is a YAML file, not a leaderboard (JSON)",
    "leaderboard show . --sort n": "this is a folder, not a leaderboard file (JSON): `specbench leaderboard add",
    "leaderboard show none.json": "No such file or directory: check the path; `specbench leaderboard add",
    "leaderboard add RUN/leaderboard.json --leaderboard x.json": "is a file (`specbench leaderboard merge` takes file",
    "fairness RUN/leaderboard.json": "is a file: give the folder of a finished run",
    "validate RUN": "this is a folder, not a YAML file",
    "validate one.json": "this is a leaderboard file: `specbench leaderboard validate` checks it",
    "validate RUN/records.jsonl": "this is a JSON lines file, not YAML",
    "board show board.json": "'board.json': this is a file, but not a .yaml file: give the name of a board",
    "run --task mgsm --method board.json": "'board.json': this is a file, but not a .yaml file: give the name of a",
}


@pytest.mark.parametrize("command", WRONG_PATHS)
def test_a_path_of_another_kind_is_named(specbench, folder, board, tmp_path, command):
    (tmp_path / "my.yaml").write_text("name: mine\n", encoding="utf-8")
    write(tmp_path / "one.json", [row()])
    code, _, err = specbench(*(word.replace("RUN", str(folder)) for word in command.split()))
    assert code == 2 and WRONG_PATHS[command].replace("RUN/", f"{folder}/") in err and err.count("\n") == 1


def test_the_commands_say_what_they_did_and_what_is_wrong(specbench, folder, board, tmp_path):
    code, out, _ = specbench("leaderboard", "add", folder, "--leaderboard", "new.json")
    assert code == 0 and "12 rows added" in out
    code, out, _ = specbench("leaderboard", "validate", "new.json", board, "--records")
    assert code == 0 and out.count("12 rows, all recomputed from the folders of their runs") == 2
    shutil.copy(board, tmp_path / "half.json")
    (tmp_path / "half.json").write_text(board.read_text()[:5000])
    code, out, _ = specbench("leaderboard", "add", folder, "--leaderboard", "new.json")
    assert code == 0 and "replaced:" not in out
    edited(tmp_path / "new.json", lambda each: each.update(created="2020-01-01T00:00:00+00:00"))
    code, out, _ = specbench("leaderboard", "add", folder, "--leaderboard", "new.json")
    assert out.count("replaced: mgsm@4 ") == 12 and "created 2020-01-01T00:00:00+00:00 → " in out
    edited(board, EDITS["speedup.value"], seal=False)
    code, out, err = specbench("leaderboard", "validate", "new.json", "half.json", board)
    assert code == 2 and out.startswith("ok: new.json") and re.search(r"half\.json, line \d+: not valid JSON", err)
    assert "edited by hand" in err and "Traceback" not in err
    for arguments, told in (
        (("add", tmp_path / "none", "--leaderboard", "new.json"), "no such folder"),
        (("add", "new.json", "--leaderboard", "new.json"), "leaderboard merge"),
        (("show", "new.json", "--sort", "speedupp"), "did you mean 'speedup'"),
        (("show", "new.json", "--filter", "method=sdd"), "no row has this value"),
        (("show", "new.json", "--filter", "methd=sd"), "did you mean 'method'"),
        (("show", "new.json", "--filter", "method"), "KEY=VALUE"),
        (("show", "new.json", "--subset", "xx"), "no row has it"),
        (("validate", "new.json", "--run", folder), "without --records"),
    ):
        code, _, err = specbench("leaderboard", *arguments)
        assert code == 2 and told in err and "Traceback" not in err
    code, out, _ = specbench("schema")
    assert code == 0 and json.loads(out) == schema()


MEASURING = {
    "run": ("run", "--method", "sd"),
    "sweep": ("sweep", "--method", "fsd"),
    "sweep by runs": ("sweep", "--method", "sd", "--path", "num_draft_tokens", "--values", "1,2"),
    "recipe": ("sweep", "--method", "sd", "--recipe", "joint-temperature"),
}


@pytest.mark.parametrize("words", MEASURING.values(), ids=MEASURING)
def test_nothing_is_loaded_or_measured_for_a_file_of_another_machine(specbench, tmp_path, monkeypatch, words):
    write(tmp_path / "board.json", [row()])
    monkeypatch.setattr("specbench.running.models.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    folder = "--runs" if words[0] == "sweep" else "--output"
    options = ("--subset", "en", "--limit", "1", "--leaderboard", "board.json", folder, "run")
    code, _, err = specbench(*words, "--task", "mgsm", *options)
    assert code == 2 and "device = Some CPU" in err and "nothing was measured" in err
    assert not (tmp_path / "run").exists()


def test_a_file_is_read_once_before_a_run(specbench, folder, tmp_path, monkeypatch):
    """And once more when its rows are put into it."""
    add_runs([folder], tmp_path / "board.json")
    read, loaded = [], []
    monkeypatch.setattr("specbench.results.conditions.load", lambda path: read.append(path) or load(path))
    monkeypatch.setattr("specbench.running.models.load_model", lambda *_, **__: loaded.append(len(read)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        specbench("run", "--task", "mgsm", "--method", "sd", "--threads", "1", "--leaderboard", "board.json")
    assert loaded == [1]


def write_and_die(path):
    os.fsync = lambda number: os._exit(9)
    with edit_rows(path) as rows:
        rows += [each.model_copy(update={"subset": "xx"}) for each in rows]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_writer_that_is_killed_at_work_leaves_the_old_file(tmp_path):
    path = tmp_path / "board.json"
    write(path, [row()])
    writer = multiprocessing.get_context("fork").Process(target=write_and_die, args=(path,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 9
    assert load(path) == [row()] and not validate(path, with_records=False).problems
