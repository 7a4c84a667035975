"""Paired changes between two methods or runs, the ranks that they give, and what `show` and `compare` print."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specbench.core.errors import ConfigError
from specbench.core.files import locked
from specbench.core.table import TableFormat
from specbench.report.compare import compare, subsets_table
from specbench.report.ranking import rank_rows, ranking_tables, show, widening
from specbench.results.leaderboard import load, write
from specbench.results.leaderboard_files import add_runs
from specbench.results.metric_format import metric_of
from specbench.results.metrics import speeds
from specbench.results.paired import (
    KINDS,
    NO_FORM,
    NO_RECORDS,
    OTHER_PROMPTS,
    RowWithRecords,
    pair_up,
    unpaired_ratio,
)
from specbench.results.runs import RecordedRun, read_input
from specbench.specs.catalogue import load_method
from specbench.statistics.bootstrap import Estimate, Resampler, interval
from tests.support.records import changed, generation, record
from tests.support.rows import row
from tests.support.runs import run_into
from tests.support.scripted_server import SD, Script
from tests.support.served_runs import pair
from tests.support.served_runs import run as run_servers

PAIRED = {metric: kind for metric, kind in KINDS.items() if metric not in ("tpot_ratio", "e2e_ratio")}  # those of loads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two methods on five prompts of two languages."""
    path = tmp_path_factory.mktemp("ranks") / "run"
    run_into(path, "sd,ngram", subsets=("en", "sw"), limit=5)
    return path


def side(folder, method, subset="all"):
    run = RecordedRun(folder)
    return run.with_records(next(r for r in run.rows if (r.method_name, r.subset) == (method, subset)))


def test_changes_are_those_of_the_rows_numbers(folder):
    first, second = side(folder, "sd"), side(folder, "ngram")
    pairs = pair_up(first, second)
    assert pairs.num_prompts == first.row.n == 10
    for metric, kind in PAIRED.items():
        change = pairs.change(metric)
        mine, other = (each.row.metrics[metric].value for each in (first, second))
        assert change.paired and change.kind == kind
        assert change.change.value == pytest.approx(other / mine if kind == "ratio" else other - mine)
        assert change.change.low <= change.change.value <= change.change.high
        back = pair_up(second, first).change(metric).change.value
        assert change.change.value == pytest.approx(1 / back if kind == "ratio" else -back)


def test_end_to_end_speedups_are_paired_with_the_time_to_the_first_token():
    """Two methods decode alike and differ in prefill, on prompts whose lengths differ much more."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(20, 400, 40).tolist()

    def answer(count: int, first: float, speed: float):
        noise = rng.lognormal(0, 0.02)
        return generation(token_ids=[0] * count, ttft_seconds=first * noise, decode_seconds=count / speed * noise)

    records = [
        record({"ar": answer(n, 0.5, 50), "sd": answer(n, 0.5, 100), "slow": answer(n, 2.0, 100)}, example=number)
        for number, n in enumerate(tokens)
    ]  # fmt: skip
    sides = []
    for name in ("sd", "slow"):
        method = load_method("sd").model_copy(update={"name": name})
        each = RowWithRecords.of(row(method=f"{name}@1:0"), records, method, {})
        metrics = speeds(Resampler.of(each.own, 0), each.own, each.baseline, is_baseline=False)
        sides.append(replace(each, row=each.row.model_copy(update={"metrics": metrics})))
    pairs = pair_up(*sides)
    whole = {name: sum(r.methods[name].ttft_seconds + r.methods[name].decode_seconds for r in records)
             for name in ("sd", "slow")}  # fmt: skip
    change = pairs.change("speedup_e2e")
    assert change.paired and change.kind == "ratio"
    assert change.change.value == pytest.approx(whole["sd"] / whole["slow"])
    assert change.separable and change.change.high < 0.75 and not pairs.change("speedup").separable
    unpaired = unpaired_ratio(*(side.row.metrics["speedup_e2e"] for side in sides))
    assert change.change.high - change.change.low < unpaired.high - unpaired.low


@pytest.mark.slow
def test_served_rows_have_paired_end_to_end_speedups(specbench, tmp_path):
    scripts = {**pair("vllm"), "late": Script("vllm", passes=SD, delay_seconds=0.003)}
    run_servers(tmp_path, scripts, num_examples=5)
    code, out, _ = specbench("compare", f"{tmp_path / 'run'}:draft", f"{tmp_path / 'run'}:late", "--json")
    (found,) = json.loads(out)["compared"]
    change = found["changes"]["speedup_e2e"]
    assert code == 0 and change["paired"] and change["ratio"]["low"] <= change["ratio"]["value"] < 1
    rows = {each.method_name: each for each in load(tmp_path / "run/leaderboard.json")}
    ratio = rows["late"].value("speedup_e2e") / rows["draft"].value("speedup_e2e")
    assert change["ratio"]["value"] == pytest.approx(ratio)
    _, out, _ = specbench("compare", f"{tmp_path / 'run'}:draft", f"{tmp_path / 'run'}:late")
    (line,) = [line for line in out.splitlines() if line.strip().startswith("speed-up e2e")]
    assert "×" in line and "[" in line and "not paired" not in line


def test_the_same_side_twice_is_not_separable_and_scores_are_paired(folder):
    first = side(folder, "sd")
    for metric in (*PAIRED, first.row.quality):
        change = pair_up(first, first).change(metric)
        assert change.paired and not change.separable and change.change.value == (KINDS.get(metric) == "ratio")


def test_pairs_are_of_the_same_prompts_only(folder):
    first, second = side(folder, "sd"), side(folder, "ngram")
    others = [changed(each, prompt="other") if each.subset == "sw" else each for each in second.records]
    pairs = pair_up(first, RowWithRecords.of(second.row, others[1:], second.method, second.scoring))
    assert pairs.num_prompts == 4 and {each.subset for each in pairs.own[0]} == {"en"}
    assert not pair_up(first, RowWithRecords(second.row)).change("speedup").paired


def test_pairing_cancels_what_makes_a_prompt_fast_for_both():
    """100 prompts whose speed-ups differ by far more than the two methods do: paired, 5 % are seen nearly always; where
    there is no difference, one is seen in about 5 % of all runs."""
    rng = np.random.default_rng(0)
    missed = seen = wide = 0
    for number in range(50):
        tokens = rng.lognormal(4, 1, 100)
        own = tokens / rng.lognormal(4, 0.4, 100)
        baseline = tokens / 50 * rng.normal(1, 0.03, 100)
        other = own * rng.normal(1, 0.03, 100)
        again = tokens / 50 * rng.normal(1, 0.03, 100)
        low, high = interval([tokens, own, tokens, baseline, tokens, other, tokens, again], number)
        missed += not low <= 1 <= high
        low, high = interval([tokens, own / 1.05, tokens, baseline, tokens, other, tokens, again], number)
        seen += low > 1
        low, high = interval([tokens, own, tokens, baseline], number)
        wide += high / low > 1.05
    assert missed <= 6 and seen >= 45 and wide == 50  # 7 or more of 50 at 5 %: 1 in 85


def equal_sides(rng, num_methods, num_prompts):
    """Rows of methods that are equally fast, on prompts with long tails."""
    methods = [load_method("sd").model_copy(update={"name": f"m{number}"}) for number in range(num_methods)]
    tokens = rng.lognormal(4, 1, num_prompts).astype(int) + 2

    def answer(count, speed):
        return generation(token_ids=[0] * count, decode_seconds=count / speed / rng.lognormal(0, 0.8))

    records = [
        record({"ar": answer(count, 50), **{method.name: answer(count, 100) for method in methods}}, example=number)
        for number, count in enumerate(tokens.tolist())
    ]
    rows = [row(method=f"{m.name}@1:0", n=num_prompts, metrics={"speedup": Estimate(value=2.0)}) for m in methods]
    return [RowWithRecords.of(each, records, method, {}) for each, method in zip(rows, methods, strict=True)]


def test_of_tables_of_equal_methods_few_claim_that_two_are_separable():
    rng = np.random.default_rng(0)
    found = [rank_rows(equal_sides(rng, 6, 30), "speedup") for _ in range(10)]
    assert all(not each.unpaired and not each.unknown for table in found for each in table)
    assert sum(any(each.text != "1–6" for each in table) for table in found) <= 1
    assert widening(1, 30) == 1 and 1.5 < widening(28, 1000) < widening(28, 30) < widening(28, 10)


def test_the_ar_of_a_table_is_exactly_1_and_a_row_without_interval_is_told_apart():
    ar = RowWithRecords(row(method="ar@1:0", metrics={"speedup": Estimate(value=1.0)}))
    sides = [ar, *(RowWithRecords(each) for each in rows_of((2.7, 2.9)))]
    assert [each.text for each in rank_rows(sides, "speedup")] == ["1", "2"]
    unknown = RowWithRecords(row(method="few@1:0", metrics={"speedup": Estimate(value=2.0)}))
    found = rank_rows([*sides, unknown], "speedup")
    assert [(each.text, each.unknown) for each in found] == [("1–2", 1), ("1–3", 2), ("2–3", 1)]
    change = pair_up(unknown, ar).change("speedup")
    assert not change.separable and not change.has_interval and pair_up(sides[1], ar).change("speedup").separable
    words = text_of(ranking_tables({str(number): each for number, each in enumerate([*sides, unknown])}))
    assert "ratio contains 1, or there is none" in " ".join(words.split())


def test_scores_that_were_computed_in_two_ways_share_no_table(tmp_path):
    made = [
        row(
            method=f"m{n}@1:0", quality="bleu", signatures={"bleu": text, "other": str(n)}, metrics={"bleu": Estimate()}
        )
        for n, text in enumerate(("tok:13a", "tok:zh", "tok:zh"))
    ]
    write(tmp_path / "a.json", made)
    shown = show([tmp_path / "a.json"], "bleu", [], [])
    assert [len(table.rows) for table in shown[:2]] == [1, 2] and "bleu: tok:zh" in text_of(shown)


def test_it_is_said_why_rows_are_not_paired(folder):
    first, second = side(folder, "sd"), side(folder, "ngram")
    other = [changed(each, prompt="other") for each in second.records]
    assert pair_up(first, second).change("speedup").unpaired is None
    assert pair_up(first, second).change("ttft_seconds").unpaired == NO_FORM
    assert pair_up(first, RowWithRecords(second.row)).change("speedup").unpaired == NO_RECORDS
    others = RowWithRecords.of(second.row, other, second.method, second.scoring)
    assert pair_up(first, others).change("speedup").unpaired == OTHER_PROMPTS
    other = [changed(each, reference="other") for each in second.records]
    others = RowWithRecords.of(second.row, other, second.method, second.scoring)
    assert pair_up(first, others).change("speedup").unpaired == OTHER_PROMPTS, "what is right differs"
    words = " ".join(text_of(ranking_tables({"0": first, "1": second}, "overhead_share")).split())
    assert NO_FORM in words and NO_RECORDS not in words


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks")
def test_readers_do_not_keep_each_other_out_and_a_writer_is_told_of_once(folder, tmp_path):
    add_runs([folder], tmp_path / "board.json")
    with locked(folder / ".lock", wait=False, shared=True):
        assert "not paired" not in text_of(show([tmp_path / "board.json"], "speedup", [], []))
    with locked(folder / ".lock", wait=False):
        words = " ".join(text_of(show([tmp_path / "board.json"], "speedup", [], [])).split())
        found = compare(read_input(f"{folder}:sd"), read_input(f"{folder}:ngram"))
    assert words.count("another process") == 1 and "not paired, 3 rows" in words
    assert len(found.unread) == 1 and found.as_json()["unread"] == list(found.unread)


def test_subsets_of_few_prompts_are_said(folder):
    found = compare(read_input(f"{folder}:sd"), read_input(f"{folder}:ngram"))
    parts = [each for each in found.compared if each.subset != "all"]
    assert "fewer than 30 prompts in en, sw" in text_of([subsets_table(parts)])


def rows_of(*intervals):
    """Rows of several methods without records, with the intervals of their speed-ups."""
    return [
        row(method=f"m{number}@1:0", metrics={"speedup": Estimate(value=(low + high) / 2, low=low, high=high)})
        for number, (low, high) in enumerate(intervals)
    ]


def test_ranks_overlap_where_intervals_do():
    sides = [RowWithRecords(each) for each in rows_of((1.0, 1.2), (2.0, 2.2), (1.1, 1.3), (3.0, 3.1))]
    found = rank_rows([*sides, RowWithRecords(row(method="none@1:0", metrics={}))], "speedup")
    assert [(each.row.method[:2], each.text) for each in found] == [
        ("m3", "1"), ("m1", "2"), ("m2", "3–4"), ("m0", "3–4"), ("no", ""),
    ]  # fmt: skip
    assert not any(not each.unpaired for each in found[:4])
    unknown = [RowWithRecords(row(method=f"{n}@1:0", metrics={"ttft_seconds": Estimate(value=n)})) for n in (2, 1)]
    assert [(each.row.method, each.text) for each in rank_rows(unknown, "ttft_seconds")] == [
        ("1@1:0", "1–2"), ("2@1:0", "1–2"),
    ]  # fmt: skip
    assert metric_of("ttft_seconds").lower_is_better and not metric_of("speedup").lower_is_better


DEMO = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"


def text_of(shown):
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        for each in shown:
            console.print(each)
    return captured.get()


def test_rows_of_other_conditions_have_tables_of_their_own(tmp_path):
    others = [row(dtype="float16"), row(sampling={"temperature": 1})]
    write(tmp_path / "a.json", [*rows_of((1.0, 1.2), (2.0, 2.2)), *others])
    write(tmp_path / "b.json", rows_of((1.0, 1.2))[:1])
    shown = show([tmp_path / "a.json", tmp_path / "b.json"], "speedup", [], [])
    assert len(shown) == 6 and [len(table.rows) for table in shown[:3]] == [2, 1, 1]
    text = " ".join(text_of(shown).split())
    assert "not all rows are paired (records not found)" in text and "1:1" in text and f"2: {tmp_path}" in text
    assert len(show([tmp_path / "a.json"], "speedup", ["sampling.temperature=1.0"], [])) == 1
    assert len(show([tmp_path / "a.json"], "speedup", ["method=m1"], ["ja"])[0].rows) == 1


def test_several_rows_of_a_method_say_what_they_differ_in(tmp_path):
    rows = [row(options={"verification": {"rule": "fuzzy", "threshold": t}}) for t in (0.25, 0.5)]
    write(tmp_path / "a.json", rows)
    text = text_of(show([tmp_path / "a.json"], "speedup", [], []))
    assert "fsd threshold=0.25" in text and "fsd threshold=0.5" in text and "rule=" not in text


def test_show_ranks_a_run_by_paired_intervals(specbench, folder, tmp_path):
    add_runs([folder], tmp_path / "board.json")
    code, out, _ = specbench("leaderboard", "show", "board.json")
    assert code == 0 and "mgsm" in out and "not paired" not in out and max(map(len, out.splitlines())) <= 100
    code, out, _ = specbench("leaderboard", "show", "board.json", "--subset", "en,sw", "--sort", "ttft_seconds")
    assert code == 0 and "or there is none" in " ".join(out.split()) and out.count("ranked by ttft_seconds") == 1


def test_what_all_captions_have_in_common_is_printed_once(tmp_path):
    board, tasks = tmp_path / "board.json", ("csqa", "humaneval")
    write(board, [
        each.model_copy(update={"run": str(DEMO.parent / each.run)})
        for each in load(DEMO) if each.task_name in tasks
    ])  # fmt: skip
    found = show([board], "speedup", [], [])
    text = text_of(found)
    *tables_, line = found
    assert len(tables_) == 2 and line.startswith("all tables: data: sample; ranked by speedup (ratio); a rank such")
    assert text.count("Bonferroni") == text.count("data: sample") == text.count("ranked by speedup") == 1
    assert text.count("target embedded:target") == 2  # with the number of prompts, which differs
    latex = show([board], "speedup", [], [], TableFormat("latex"))
    assert [each.count("Bonferroni") for each in latex] == [1] * 2


def test_of_the_baselines_of_several_runs_the_newest_is_ranked(tmp_path):
    speeds = {"pld": 40.0, "sd": 50.0}
    for number, (name, speed) in enumerate(speeds.items(), start=1):
        created = f"2026-10-0{number}T12:00:00+00:00"
        rates = {"tokens_per_second_ar": Estimate(value=speed), "tokens_per_second": Estimate(value=speed)}
        rows = [
            row(method=f"{each}@1", created=created, metrics={**rates, "speedup": Estimate(value=1.0)})
            for each in ("ar", name)
        ]
        write(tmp_path / f"{name}.json", rows)
    files = [tmp_path / "sd.json", tmp_path / "pld.json"]
    (table, *_) = show(files, "speedup", [], [])
    assert sorted((cells[1], cells[2], cells[6]) for cells in table.rows) == [
        ("1:0", "ar", "50.0"), ("1:1", "sd", "50.0"), ("2:1", "pld", "40.0")
    ]  # fmt: skip
    assert any("rows of 2 runs" in line for line in table.caption)


def test_compare_two_methods_of_a_run(specbench, folder):
    code, out, _ = specbench("compare", f"{folder}:sd", f"{folder}:ngram")
    assert code == 0 and "options.drafter.type" in out and "paired over 10 prompts" in out
    assert max(map(len, out.splitlines())) <= 100 and out.index("configuration") < out.index("speed-up")
    code, out, _ = specbench("compare", f"{folder}:sd", f"{folder}:ngram", "--subset", "sw", "--json")
    found = json.loads(out)
    assert code == 0 and found["comparable"] and [each["subset"] for each in found["compared"]] == ["sw"]
    assert found["compared"][0]["changes"]["tokens_per_second_ar"]["ratio"]["value"] == pytest.approx(1)


def test_runs_of_several_methods_are_compared_method_by_method(specbench, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    rows = [r.model_copy(update={"created": "2030"}) for r in load(again / "leaderboard.json")]
    for number, each in enumerate(rows):
        if each.method_name == "ngram":
            rows[number] = each.model_copy(update={"num_draft_tokens": 9})
    write(again / "leaderboard.json", rows)
    code, out, _ = specbench("compare", str(folder), str(again))
    assert code == 0 and out.count("outputs and steps are equal") == 2, "sd and ngram, once over all subsets"
    assert all(f"mgsm · all · {name}" in out and f"by subset · {name}" in out for name in ("sd", "ngram"))
    assert "ngram: num_draft_tokens" in out and "sd: num_draft_tokens" not in out
    write(again / "leaderboard.json", [each for each in rows if each.method_name != "ngram"])
    _, out, _ = specbench("compare", str(folder), str(again), "--json")
    found = json.loads(out)
    assert found["methods_of_one_side"] == ["ngram"] and {*map(tuple, (c["methods"] for c in found["compared"]))} == {
        ("sd", "sd")
    }


def test_compare_two_runs_and_two_rows_of_a_file(folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    write(
        again / "leaderboard.json", [r.model_copy(update={"created": "2030"}) for r in load(again / "leaderboard.json")]
    )
    found = compare(read_input(f"{folder}:sd"), read_input(f"{again}:sd"))
    assert not found.hindrances and not found.differing and {each.num_paired for each in found.compared} == {5, 10}
    lengths = [each.change("mean_acceptance_length").change for each in found.compared]
    assert all((each.value, each.low, each.high) == (1, 1, 1) for each in lengths), "the same tokens, twice"
    add_runs([folder], tmp_path / "board.json")
    numbers = {(r.method_name, r.subset): n for n, r in enumerate(load(tmp_path / "board.json"))}
    sides = [read_input(f"{tmp_path}/board.json:{numbers[method, 'sw']}") for method in ("sd", "ngram")]
    one = compare(*sides)
    assert [each.subset for each in one.compared] == ["sw"] and one.compared[0].num_paired == 5


def test_what_must_match_and_does_not_comes_first(tmp_path):
    write(tmp_path / "a.json", [row()])
    write(tmp_path / "b.json", [row(device="GPU", dtype="float16", num_draft_tokens=7)])
    found = compare(read_input(str(tmp_path / "a.json")), read_input(str(tmp_path / "b.json")))
    assert [each.field for each in found.hindrances] == ["dtype", "device"]
    assert [each.field for each in found.differing] == ["num_draft_tokens"] and not found.compared[0].num_paired
    assert not found.as_json()["comparable"]


MISTAKES = {
    "none": "no such folder or file",
    "a.json": "are the same rows",
    "e.json": "no task, subset and method in common.* name one of each, as PATH:METHOD",
    "a.json:m9": "no rows of method 'm9'",
    "a.json:7": "has no row 7: the last one is 2",
    "c.json": "several rows of mgsm@1 ja fsd@1",
    "d.json": "no task and subset in common",
    "a.json:m1": "are the same rows",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_of_compare_are_one_line(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    write("a.json", [*rows_of((1.0, 1.2), (2.0, 2.2)), row(method="ar@1:0")])
    write("c.json", [row(), row(dtype="float16")])
    write("d.json", [row(subset="xx")])
    write("e.json", [*rows_of((1.0, 1.2), (2.0, 2.2))[:1], row(method="m7@1:0")])
    with pytest.raises(ConfigError, match=MISTAKES[text]):
        compare(read_input("a.json:m1"), read_input(text))


def test_of_costs_less_is_better() -> None:
    for metric in ("ttft_seconds", "repetition_rate", "repetition_rate_ar", "share_cut_by_length", "word_perplexity"):
        assert metric_of(metric).lower_is_better, metric
    for metric in ("speedup", "num_prompts_timed", "share_contained", "bleu_difference", "new_tokens"):
        assert not metric_of(metric).lower_is_better, metric


def test_ranks_do_not_fall_down_the_table() -> None:
    """1–4 stands above 1–3 if only the second row is separable from the fourth: the second gets 1–4 too."""
    intervals = [(1.0, 1.1), (1.0, 3.0), (2.3, 2.5), (0.9, 5.0)]
    assert [each.text for each in rank_rows(list(map(RowWithRecords, rows_of(*intervals))), "speedup")] == [
        "1–4", "1–4", "1–4", "2–4"
    ]  # fmt: skip
