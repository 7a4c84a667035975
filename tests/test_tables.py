import pytest
from rich.console import Console

from specbench.results.bootstrap import Metric
from specbench.results.tables import run_table
from tests.test_leaderboard import row

METRICS = {
    "acceptance_rate": Metric(value=0.7426, low=0.7, high=0.8),
    "mean_acceptance_length": Metric(value=3.219),
    "tokens_per_second_ar": Metric(value=1234.56),
    "tokens_per_second": Metric(value=12345.67),
    "speedup": Metric(value=10.0012, low=9.876, high=11.119),
    "speedup_expected": Metric(value=2.345),
    "accuracy_ar": Metric(value=1.0),
    "accuracy": Metric(value=0.6251),
}
SUBSETS = ["bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh"]


def rendered(rows, width=100):
    console = Console(width=width, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(run_table(rows))
    return capture.get()


def rows(**changes):
    every = [row(subset=s, metrics=METRICS, n=250, **changes) for s in SUBSETS]
    return [row(subset="all", metrics=METRICS, n=2750, **changes), *every]


def test_a_line_per_subset_then_all_with_every_number_whole():
    lines = rendered(rows()).splitlines()
    numbers = ["0.743", "3.22", "1235", "12346", "10.00", "[9.88,", "11.12]", "2.35", "100.0", "→", "62.5"]
    data = [line.split() for line in lines if "12346" in line]
    assert data == [[s, "250", *numbers] for s in SUBSETS] + [["all", "2750", *numbers]]
    assert all(len(line) <= 100 for line in lines)
    assert "…" not in "".join(lines)


def test_the_head_and_caption_say_what_was_run():
    text = rendered(rows())
    for part in ("mgsm@1 · fsd@1", "target org/target (ffffffffffff)", "drafter org/drafter, 5 draft tokens", "greedy",
                 "float32 on Some CPU, 1 thread", "data: sample (tasks/samples/mgsm.jsonl)", "lossy"):  # fmt: skip
        assert part in text
    assert "few prompts" not in text


def test_other_conditions_are_said():
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
    text = rendered(
        rows(sampling=sampling, lossless=True, drafter=None, data_source="local", data_location="/data/[en]/x")
    )
    for part in ("temperature 0.8, top-k 50, top-p 0.95", "lossless", "drafter none", "data: local (/data/[en]/x)"):
        assert part in text
    assert "lossy" not in text


def test_subsets_that_are_sampled_in_different_ways_are_told_apart():
    warm = {"temperature": 0.8}
    mixed = [row(subset="en", metrics=METRICS), *(row(subset=s, metrics=METRICS, sampling=warm) for s in ("ja", "th"))]
    assert "greedy in en; temperature 0.8 in ja, th; float32 on" in rendered(mixed)


def test_many_data_files_are_counted():
    several = [row(subset=s, metrics=METRICS, data_location=f"data/mgsm_{s}.tsv") for s in SUBSETS]
    assert "data: sample (data/mgsm_bn.tsv and 10 more)" in rendered(several)


def test_what_does_not_exist_is_a_dash():
    text = rendered([row(subset="en", metrics={"speedup": Metric(value=1.0)}, n=40)])
    line = next(line.split() for line in text.splitlines() if line.split()[:1] == ["en"])
    assert line == ["en", "40", "–", "–", "–", "–", "1.00", "–", "–"]


def test_few_examples_are_flagged():
    few = [row(subset="ja", metrics=METRICS, n=29), row(subset="sw", metrics=METRICS, n=30)]
    assert "intervals rest on few prompts: n < 30 in ja" in rendered(few)
    assert "sw" not in rendered(few).split("n < 30")[1]


def test_long_names_fold_and_numbers_stay_whole():
    name = "high_school_european_history_and_more_of_it"
    text = rendered([row(subset=name, metrics=METRICS, n=14042, method="a-method-of-mine@12:00")])
    assert "10.00 [9.88, 11.12]" in text and "14042" in text and "100.0 → 62.5" in text and "…" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    folded = "".join(line.split()[0] for line in text.splitlines() if line.strip() and line.split()[0] in name)
    assert folded == name


def test_one_table_is_one_task_and_one_method():
    with pytest.raises(ValueError, match="one task and one method"):
        run_table([row(), row(method="sd@1:aa")])
    with pytest.raises(ValueError, match="one task and one method"):
        run_table([])


def test_cut_answers_are_said():
    cut = {**METRICS, "share_cut_by_length": Metric(value=0.25)}
    text = rendered([row(subset="en", metrics=METRICS, n=250), row(subset="ja", metrics=cut, n=250)])
    assert "more than 10% of the answers were cut at max_new_tokens in ja" in text


def test_a_drafter_that_decodes_a_share_of_the_queries_is_no_drafter_of_tokens():
    options = {"drafter": {"type": "none"}, "decodes_with": "random", "drafter_share": 0.25}
    text = rendered(rows(num_draft_tokens=0, options=options))
    assert "drafter org/drafter, alone with 25% of the queries, drawn at random, lossy" in text
    assert "draft tokens" not in text


def test_a_drafter_without_a_model_is_named_by_its_kind():
    options = {"drafter": {"type": "lookup"}, "verification": {"rule": "rejection"}}
    text = rendered(rows(drafter=None, options=options, lossless=True))
    assert "drafter lookup, 5 draft tokens, lossless (rule rejection)" in text
