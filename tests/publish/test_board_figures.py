"""The published figures of the papers: what their texts print, and what their tables say of each other."""

import json
from functools import cache
from pathlib import Path

import pytest

from specbench.cli.train import NUM_STEPS
from specbench.publish.suite_runs import board_names, load_suite, read_suite, runs_of
from specbench.publish.suite_spec import FigureGroup, PublishedTable
from specbench.running.request import run_spec

NUM_FIGURES = {
    "p0": {"§8.2": 4, "§6": 1, "§8.3": 2},
    "p1": {"§4": 24},
    "p2": {"1": 24, "2": 18 * 12 - 3 * 2 * 4, "3": 36},
    "p3": {"1": 6 * 12 - 6, "3": 4, "5": 11, "6": 6, "7": 4},
    "eagle3": {
        "1": 8 * 12 + 3 * 2,
        "1, temperature 1": 2 * 12 + 2 * 2,
        "1 of EAGLE-2, temperature 0": 3 * 12 + 4 * 2,
        "1 of EAGLE-2, temperature 1": 2 * 4,
    },
    "spec-bench": {"3090": 10 * 8, "A100": (10 + 11 + 10) * 8},
    "p4": {"1": 35 * 4, "2": 25 * 4, "5": 14, "6": 90 * 4, "7": 90 * 4, "8": 8, "9": 12, "10": 109, "11": 5},
}
board = cache(read_suite)


def table(name: str, number: str) -> PublishedTable:
    return next(each for each in board(name).published if each.number == number)


def values(group: FigureGroup) -> dict[str, list[float | None]]:
    return {row.label: [each and each.value for each in row.figures] for row in group.rows}


@pytest.mark.parametrize("name", NUM_FIGURES)
def test_every_cell_of_the_tables_is_there(name: str) -> None:
    assert {each.number: len(each.references()) for each in board(name).published} == NUM_FIGURES[name]
    for each in board(name).published:
        assert each.hardware and each.differs
        for place in each.references():  # what has a metric of ours has a run and a method to measure it with
            assert each.elsewhere or not place.metric or not place.method or place.task


def test_p0_has_the_figures_of_its_text() -> None:
    assert values(table("p0", "§8.2").groups[0]) == {"English": [62.5, 0.47], "Japanese": [54.5, 1.08]}
    assert values(table("p0", "§8.3").groups[0]) == {"en, es, ru, zh, de": [-20, -12]}
    assert values(table("p0", "§6").groups[0]) == {"Qwen2.5 3B · 0.5B": [0.44]}


def test_p1_has_the_means_of_section_4_and_one_rate_beside_both_definitions() -> None:
    found = values(table("p1", "§4").groups[0])
    assert {name: (row[0], row[2], row[3], row[5]) for name, row in found.items()} == {
        "baseline": (0.40, 1.02, 0.46, 1.09),
        "distilled (task)": (0.60, 1.28, 0.43, 1.03),
        "distilled (general)": (0.39, 1.03, 0.47, 1.10),
        "n-gram": (0.24, 1.30, 0.30, 1.39),
    }
    assert all(row[0] == row[1] and row[3] == row[4] for row in found.values())


def test_p2_names_its_thresholds_and_table_3_repeats_table_2() -> None:
    third = {group.pair: group for group in table("p2", "3").groups}
    assert {pair: str(group.heading)[-3:] for pair, group in third.items()} == {
        "qwen2.5": "0.4",
        "llama3.1": "0.3",
        "gemma2": "0.7",
    }
    for group in table("p2", "2").groups:
        rows = values(group)
        slower, fastest = rows["M_T"], rows["FSD (High)"]
        assert all(0 < fast / slow < 3 for fast, slow in zip(fastest[1::3], slower[1::3], strict=True) if fast and slow)
        again = values(third[group.pair])
        for first, second in zip(rows["SD"][0::3], again.values(), strict=True):
            assert first is not None and second[0] == pytest.approx(first, abs=0.11)  # two differ by 0.1 in print


def test_p3_prints_the_mean_of_its_languages_and_repeats_itself() -> None:
    rows = values(table("p3", "1").groups[0])
    assert len(rows) == 6 and rows["PLD"][6:] == [None] * 6
    for row in rows.values():
        for part in (row[:6], row[6:]):
            if None not in part:
                assert sum(part[:5]) / 5 == pytest.approx(part[5], abs=0.0101)  # type: ignore[arg-type]
    ours, base = rows["SpS, pretrain-and-finetune"], rows["SpS, Yang et al. 2024"]
    sixth = values(table("p3", "6").groups[0])
    fifth = values(table("p3", "5").groups[0])
    assert sixth["Vicuna 68M, pretrain-and-finetune"] == [ours[0], fifth["SpS, pretrain-and-finetune"][0]]
    assert sixth["Vicuna 68M, Yang et al. 2024"] == [base[0], fifth["SpS, Yang et al. 2024"][0]]
    assert values(table("p3", "7").groups[0])["SpS, pretrain-and-finetune"] == [ours[0], 2.51]


def test_p2_drafts_greedily_and_p3_times_the_whole_call() -> None:
    sd = run_spec(runs_of(board("p2"), pair="llama3.1")[0].request).methods[2]
    assert sd.name == "sd" and sd.drafter.options["temperature"] == 0 and sd.lossless
    metrics = {each.number: {place.metric for place in each.references()} for each in board("p3").published}
    assert all(metrics[number] == {"speedup_e2e"} for number in ("1", "3", "7"))
    assert metrics["6"] == {"speedup_e2e", "mean_acceptance_length"}


@pytest.mark.parametrize("name", NUM_FIGURES)
def test_a_figure_that_ours_stands_beside_names_its_models(name: str) -> None:
    """Else the number of any pair would stand beside it. What s-CDF changes is a mean over pairs."""
    for each in board(name).published:
        for place in each.references():
            if place.method and place.metric and each.number != "§8.3":
                assert place.pair or place.target, each.number


def test_eagle3_prints_the_mean_of_its_datasets() -> None:
    """That of the speed-ups of Llama 3.3 70B differs by 0.042 in print, all others by rounding."""
    for number in ("1", "1, temperature 1"):
        for group in table("eagle3", number).groups:
            for row in values(group).values():
                for part in (row[0::2], row[1::2]):
                    if None not in part:
                        assert sum(part[:5]) / 5 == pytest.approx(part[5], abs=0.0425)  # type: ignore[arg-type]


def test_spec_bench_accepts_as_much_on_every_device() -> None:
    """Of Vicuna 7B: #MAT depends on the method, the overall speed-up also on the device."""
    (first,), (second, *_) = (table("spec-bench", device).groups for device in ("3090", "A100"))
    one, other = values(first), values(second)
    assert set(one) == set(other) and one["Recycling"][7] == 1.4 and other["Recycling"][7] == 2.22
    for method, row in one.items():
        assert row[6] == pytest.approx(other[method][6], abs=0.2 if method == "REST" else 0.031)
        assert min(row[:6]) <= (row[7] or 0) <= max(row[:6])  # type: ignore[type-var]


def test_p4_has_speed_ups_that_follow_from_its_tokens_per_second() -> None:
    for number in ("1", "2", "6", "7"):
        for group in table("p4", number).groups:
            rows = values(group)
            baseline = rows["AR"]
            assert baseline[3] == 1.0 and baseline[2]
            for ttft, tpot, rate, speedup in rows.values():
                assert ttft and tpot and rate and speedup
                assert rate / baseline[2] == pytest.approx(speedup, rel=0.05, abs=0.02)
                assert tpot * rate / 1000 == pytest.approx(1, abs=0.25) and 10 < ttft < 3000


@pytest.mark.parametrize(("short", "full"), [("1", "6"), ("2", "7")])
def test_p4_repeats_its_short_tables_in_the_full_ones(short: str, full: str) -> None:
    complete = {(group.heading, group.hardware): values(group) for group in table("p4", full).groups}
    assert len(complete) == 25
    for group in table("p4", short).groups:
        assert complete[group.heading, group.hardware] == values(group)


def test_p4_counts_shared_tokens() -> None:
    targets, drafters = (values(group) for group in table("p4", "8").groups)
    assert {label: size for label, (size,) in (targets | drafters).items()} == {
        "Llama-3.1-70B": 128256, "Gemma-2-9b": 256000, "Mixtral-8x22B-Instruct-v0.1": 32768,
        "Phi-3-medium-128k-instruct": 32011, "CodeLlama-13b-Instruct-hf": 32016, "Qwen2-0.5B-Instruct": 151646,
        "tiny_starcoder_py": 49152, "vicuna-68m": 32000,
    }  # fmt: skip
    for label, (shared, ratio) in values(table("p4", "9").groups[0]).items():
        target, drafter = label.split(" · ")
        (size,), (other,) = targets[target], drafters[drafter]
        assert shared and size and other and shared <= min(size, other)
        assert shared / size == pytest.approx(ratio, abs=0.0052)  # table 9 of table 8
    assert all(0.7 < share <= 1 for group in table("p4", "10").groups for row in values(group).values()
               for share in row if share is not None)  # fmt: skip


def test_p4_joins_no_token_in_more_ways_than_lemma_3_1_allows() -> None:
    found = values(table("p4", "5").groups[0])
    assert found["mean"] == [6.21, 144.31] and found["standard deviation"] == [2.87, 880.98]  # as appendix C says
    assert (found["median"][1], found["75 %"][1], found["maximum"][1]) == (15, 56, 65536)
    for label in ("minimum", "25 %", "median", "75 %", "maximum"):
        length, number = found[label]
        assert length and number and number <= 2 ** (length - 1)
    assert found["maximum"][1] == 2 ** ((found["maximum"][0] or 0) - 1)


def test_p4_measures_a_method_on_a_pair_only_where_the_paper_has_it() -> None:
    pairs = board("p4").pairs
    for number in ("1", "2", "6", "7"):
        for place in table("p4", number).references():
            if place.pair is not None and "codellama-7b" not in place.pair:
                assert pairs[place.pair].methods.get(str(place.method), "measured") is not None
                assert pairs[place.pair].target == place.target


def test_p0_says_how_its_representation_and_its_updates_are_read() -> None:
    """Both are in its text: the commands that it names give them."""
    text = " ".join(" ".join(each.differs) for each in board("p0").published)
    for said in ("K = 100,000", '--prompt " " --samples 100000', "NLTK's classifier", "lingua", "--num-steps 250"):
        assert said in text
    assert NUM_STEPS["scdf"].startswith("250 with 4 passes")


@pytest.mark.parametrize("name", board_names())
def test_every_cell_of_every_pair_can_be_asked_for(name: str, tmp_path, monkeypatch) -> None:
    """Tasks, subsets, overrides and drafters fit each other; nothing is loaded."""
    board = load_suite(name)
    monkeypatch.chdir(tmp_path)
    for file in (pair.servers for pair in board.pairs.values() if pair.servers is not None):
        speculation = {"method": "eagle3", "num_draft_tokens": 4}
        servers = {
            each: {"url": f"http://127.0.0.1:{number + 1}", "speculation": speculation if number else "none"}
            for number, each in enumerate(("ar", *board.methods))
        }
        Path(file).write_text(json.dumps({"tokenizer": "embedded:target", "servers": servers}))
    runs = runs_of(board)
    assert {run.pair_name for run in runs} == board.pairs.keys()
    assert {run.task.label for run in runs} == {task.label for task in board.tasks}
    one_of_each = {key: run for run in runs for key in (run.pair_name, run.task.label)}
    for run in one_of_each.values():
        spec = run_spec(run.request)
        assert [method.name for method in spec.methods] == ["ar", *run.methods]
