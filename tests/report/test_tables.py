import re

import pytest
from rich.console import Console

from specbench.models.near_ties import Divergence
from specbench.report.captions import model_name, reasons_by_task, verdict_word
from specbench.report.compare import ComparedSubset, changes_table
from specbench.report.tables import comparison_table, run_table
from specbench.results.row import Evidence, RowBatchWidth, RowDifferences, RowWarmUp
from specbench.statistics.bootstrap import Estimate
from tests.support.report_rows import METRICS, row

EVIDENCE = Evidence(task="mgsm", subsets=("en",), num_prompts=8, num_draws=None, temperature=None, p_value=None)
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
    assert "fewer than" not in text


def test_other_conditions_are_said():
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
    text = rendered(
        rows(sampling=sampling, lossless=True, drafter=None, data_source="local", data_location="/data/[en]/x")
    )
    for part in ("temperature 0.8, top-k 50, top-p 0.95", "lossless", "drafter none", "data: local (/data/[en]/x)"):
        assert part in text
    assert "lossy" not in text and "compiled" not in text
    assert re.search(r"float32 on .*, compiled", rendered(rows(engine="compiled")))


def test_subsets_that_are_sampled_in_different_ways_are_told_apart():
    warm = {"temperature": 0.8}
    mixed = [row(subset="en", metrics=METRICS), *(row(subset=s, metrics=METRICS, sampling=warm) for s in ("ja", "th"))]
    assert "greedy in en; temperature 0.8 in ja, th; float32 on" in rendered(mixed)


def test_many_data_files_are_counted():
    several = [row(subset=s, metrics=METRICS, data_location=f"data/mgsm_{s}.tsv") for s in SUBSETS]
    assert "data: sample (data/mgsm_bn.tsv and 10 more)" in rendered(several)


def test_what_does_not_exist_is_a_dash():
    text = rendered([row(subset="en", metrics={"speedup": Estimate(value=1.0)}, n=40)])
    line = next(line.split() for line in text.splitlines() if line.split()[:1] == ["en"])
    assert line == ["en", "40", "–", "–", "–", "–", "1.00", "–", "–"]


def test_few_examples_are_flagged():
    few = [row(subset="ja", metrics=METRICS, n=29), row(subset="sw", metrics=METRICS, n=30)]
    assert "fewer than 30 prompts in ja\n" in re.sub(" *\n", "\n", rendered(few))
    assert "sw" not in rendered(few).split("fewer than 30")[1]


def test_a_warm_up_too_short_to_tell_is_said_without_a_mark():
    """All subsets of equal warm-ups are named together; tested ones are not named."""
    ups = [RowWarmUp(blocks=n, seconds=1.0, steady=steady) for n, steady in ((1, None), (9, True), (1, None))]
    text = rendered([each.model_copy(update={"warm_up": up}) for each, up in zip(rows(), ups, strict=False)])
    assert "warm-up too short to test for a steady speed in de, all (" in " ".join(text.split())
    assert "--warm-up SECONDS allows more)" in " ".join(text.split()) and "†" not in text
    every = rendered([each.model_copy(update={"warm_up": ups[0]}) for each in rows()])
    assert "test for a steady speed (--warm-up" in " ".join(every.split())


def test_long_names_fold_and_numbers_stay_whole():
    name = "high_school_european_history_and_more_of_it"
    text = rendered([row(subset=name, metrics=METRICS, n=14042, method="a-method@12:00")], width=104)
    assert "10.00 [9.88, 11.12]" in text and "14042" in text and "100.0 → 62.5" in text and "…" not in text
    assert all(len(line) <= 104 for line in text.splitlines())
    folded = "".join(line.split()[0] for line in text.splitlines() if line.strip() and line.split()[0] in name)
    assert folded == name


def test_one_table_is_one_task_and_one_method():
    with pytest.raises(ValueError, match="one task and one method"):
        run_table([row(), row(method="sd@1:aa")])
    with pytest.raises(ValueError, match="one task and one method"):
        run_table([])


def test_cut_answers_are_said():
    cut = {**METRICS, "share_cut_by_length": Estimate(value=0.25)}
    text = rendered([row(subset="en", metrics=METRICS, n=250), row(subset="ja", metrics=cut, n=250)])
    assert "more than 10% of the answers were cut at max_new_tokens in ja" in text


def test_answers_that_a_context_cut_are_said_with_the_model_whose_it_is():
    cut = {**METRICS, "share_cut_by_context": Estimate(value=0.25)}
    options = {"drafter": {"type": "model"}}
    context = {"model": "org/drafter", "tokens": 64, "share_cut_ar": 0.5}

    def said(**changes):
        return " ".join(rendered([row(subset="en", options=options, metrics=cut, n=250, **changes)]).split())

    shares = "50% of ar, 25% of fsd in en"
    pause = "(--set drafter.beyond_context=pause lets the drafter pause there instead)"
    assert f"answers cut at the context of org/drafter, 64 tokens {pause}: {shares}" in said(context=context)
    of_target = said(context=context | {"model": "org/target"})
    assert f"answers cut at the context of org/target, 64 tokens: {shares}" in of_target
    assert "answers cut at the context: 25% of fsd in en" in said()  # a run of an earlier version
    none = rendered([row(subset="en", metrics=METRICS, n=250, context=context | {"share_cut_ar": 0.0})])
    assert "answers cut" not in none
    paused = " ".join(said(context={"pauses_at": 64, "share_paused": 0.125}).split())
    assert "tokens beyond the drafter's context of 64 tokens, where it drafts nothing" in paused
    assert "12% in en" in paused


def test_vocabularies_that_differ_in_a_few_tokens_are_said():
    ids = {"common": 2048, "target": 2048, "drafter": 2049}
    text = " ".join(rendered(rows(common_ids={"fsd": ids})).split())
    assert "vocabularies differ: 2,048 of the target's 2,048 and the drafter's 2,049 ids in common" in text


def test_a_drafter_that_decodes_a_share_of_the_queries_is_no_drafter_of_tokens():
    options = {"drafter": {"type": "none"}, "decodes_with": "random", "drafter_share": 0.25}
    text = rendered(rows(num_draft_tokens=0, options=options))
    assert "drafter org/drafter, alone with 25% of the queries, drawn at random, lossy" in text
    assert "draft tokens" not in text


def test_a_drafter_without_a_model_is_named_by_its_kind():
    options = {"drafter": {"type": "lookup"}, "verification": {"rule": "rejection"}}
    text = rendered(rows(drafter=None, options=options, lossless=True))
    assert "drafter lookup, 5 draft tokens, lossless (rule rejection)" in text


@pytest.mark.parametrize(
    ("verdict", "temperature", "said"),
    [
        ("greedy equal", 0.0, "verdict: greedy equal (this run's outputs equal AR's)"),
        ("lossless", 0.0, "verdict: lossless, stated without evidence"),
        ("lossless", 1.0, "verdict: lossless, stated without evidence"),
        ("near-tie only", 0.0, "verdict: near-tie only (this run's outputs compared with AR's)"),
        ("diverged", 0.0, "verdict: diverged (this run's outputs compared with AR's)"),
        ("diverged", 1.0, "verdict: diverged, stated without evidence"),
        ("lossy by design", 1.0, "verdict: lossy by design (declared by its rule)"),
        ("not audited", 1.0, "verdict: not audited"),
    ],
)
def test_a_verdict_is_said_with_what_it_comes_from(verdict, temperature, said):
    """An audit puts its verdict in place of that of the run's own outputs, and a sampled run's outputs say nothing."""
    text = rendered(rows(verdict=verdict, sampling={"temperature": temperature}))
    assert said in [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("verdict", "kinds", "said"),
    [
        ("width only", {"width": 2}, "width only (this run's outputs compared with AR's; width 2: the target itself"),
        ("diverged", {"rule": 1, "width": 2}, "diverged (this run's outputs compared with AR's; rule 1: an emitted"),
        ("diverged", {"unknown": 1}, "diverged (this run's outputs compared with AR's; unknown 1: the method's own"),
    ],
)
def test_the_kinds_of_differences_are_said(verdict, kinds, said):
    made = rows(verdict=verdict, divergence=kinds, sampling={"temperature": 0.0})
    assert f"verdict: {said}" in " ".join(rendered(made, width=300).split())
    words = {"width only": "width only", "diverged": "diverged (rule, width)" if "rule" in kinds else "diverged"}
    assert verdict_word(made[0]) == words[verdict]
    audited = made[0].model_copy(update={"evidence": EVIDENCE})
    assert verdict_word(audited) == verdict, "an audit's verdict is not about the run's own outputs"


def test_the_width_of_passes_is_said_where_it_explains_differences():
    width = {"tolerance": 0.75, "share_equal": 0.125}
    said = "the width of a pass explains gaps of up to 0.75: 12% of rows equal those of passes over one token)"
    for verdict in ("near-tie only", "width only", "diverged"):
        made = rows(verdict=verdict, batch_width=width, sampling={"temperature": 0.0})
        shown = " ".join(rendered(made, width=300).split())
        assert f"verdict: {verdict} (this run's outputs compared with AR's; {said}" in shown
        made[0] = made[0].model_copy(update={"evidence": EVIDENCE})
        assert "explains gaps" not in rendered(made[:1], width=300), "an audit has its own measurement"
    assert "explains gaps" not in rendered(rows(verdict="near-tie only", sampling={"temperature": 0.0}), width=300)
    of_earlier = rows(
        verdict="near-tie only", batch_width={**width, "share_equal": None}, sampling={"temperature": 0.0}
    )
    assert "explains gaps of up to 0.75)" in " ".join(rendered(of_earlier, width=300).split())


@pytest.mark.parametrize(("again", "said"), [(8, "14 of 30 answers differ, 8 of them decoded again"),
                                             (None, "14 of 30 answers differ")])  # fmt: skip
def test_the_verdict_says_how_many_answers_differ(again, said):
    differences = {"answers": 14, "compared": 30, "near_ties": 14, "decoded_again": again}
    made = rows(verdict="near-tie only", differences=differences, sampling={"temperature": 0.0})
    shown = " ".join(rendered(made, width=300).split())
    assert f"verdict: near-tie only (this run's outputs compared with AR's; {said})" in shown
    lossy = rows(verdict="lossy by design", differences=differences, sampling={"temperature": 0.0}, lossless=False)
    assert "answers differ" not in rendered(lossy, width=300)


def test_verdicts_that_differ_are_told_apart():
    mixed = [row(subset="en", metrics=METRICS, verdict="greedy equal"), row(subset="ja", metrics=METRICS)]
    assert "verdict: greedy equal (this run's outputs equal AR's) in en; not audited in ja" in rendered(mixed)


TRANSLATED = {
    **METRICS, "bleu_ar": Estimate(value=31.26), "bleu": Estimate(value=30.0), "chrf": Estimate(value=50.0),
}  # fmt: skip
SIGNED = {"bleu": "nrefs:1|tok:13a|version:2.6.0"}


def test_a_score_goes_by_its_own_name_and_unit():
    translated = [row(subset=s, metrics=TRANSLATED, quality="bleu", signatures=SIGNED, n=40) for s in ("fr-en", "all")]
    text = rendered(translated)
    assert "BLEU" in text and "31.3 → 30.0" in text and "accuracy" not in text
    assert [line.strip() for line in text.splitlines()].count("BLEU: nrefs:1|tok:13a|version:2.6.0") == 1
    chinese = row(subset="en-zh", metrics=TRANSLATED, quality="bleu", signatures={"bleu": "tok:zh"}, n=40)
    assert "BLEU: nrefs:1|tok:13a|version:2.6.0 in fr-en; tok:zh in en-zh" in rendered([translated[0], chinese])
    judged = {**METRICS, "judge_score_ar": Estimate(value=7.126), "judge_score": Estimate(value=7.0)}
    text = rendered([row(subset="writing", metrics=judged, quality="judge_score", n=40)])
    assert "judge 1–10" in text and "7.13 → 7.00" in text


def test_subsets_of_several_scores_name_each():
    mixed = [row(subset="qasper", metrics={"f1": Estimate(value=0.25)}, quality="f1", n=40),
             row(subset="gov_report", metrics={"rougeL": Estimate(value=0.5)}, quality="rougeL", n=40),
             row(subset="all", metrics={}, quality=None, n=80)]  # fmt: skip
    text = rendered(mixed)
    assert "score: F1 % in qasper; ROUGE-L % in gov_report" in text and "25.0" in text and "50.0" in text


def test_what_is_weak_about_a_score_is_said():
    weak = {
        **METRICS, "num_unscored": Estimate(value=3), "share_truncated": Estimate(value=0.25),
        "language_share": Estimate(value=0.8), "language_share_ar": Estimate(value=1.0),
        "num_programs_ended": Estimate(value=2),
    }  # fmt: skip
    text = rendered([row(subset="en", metrics=METRICS, n=250), row(subset="ja", metrics=weak, n=250)])
    for line in (
        "not scored (excluded from means): 3 answers in ja",
        "programs that a limit ended (time, output), counted as wrong: 2 answers in ja",
        "prompts truncated in the middle: 25% in ja",
        "asked language %, ar → method: 100.0 → 80.0 in ja",
    ):
        assert line in text
    assert "not scored" not in rendered([row(subset="en", metrics=METRICS, n=250)])


def test_a_judge_s_ratings_beside_a_score_of_the_task_are_said():
    judged = {"judge_score_ar": Estimate(value=3.0), "judge_score": Estimate(value=2.5)}
    text = rendered([row(subset=subset, metrics={**METRICS, **judged}) for subset in ("en", "de")])
    assert "judge 1–10, ar → method: 3.00 → 2.50 in en, de" in text
    text = rendered([row(subset="en", quality="judge_score", metrics=judged)])
    assert "3.00 → 2.50" in text and "ar → method:" not in text
    assert "judge" not in rendered([row(metrics={**METRICS, "judge_score": Estimate(), "judge_score_ar": Estimate()})])


def test_the_most_frequent_reason_for_no_score_is_told_by_task():
    assert reasons_by_task({}) == {}
    found = reasons_by_task({("a", "no\nanswer"): 2, ("b", "no answer"): 1, ("b", "late"): 3})
    other = "1 of all methods for other reasons (see `problem` in the records)"
    assert found == {"a": "no answer", "b": f"late; {other}"}
    rows = [row(subset="en", metrics={**METRICS, "num_unscored": Estimate(value=3)}, n=250)]
    assert "not scored (excluded from means): 3 answers in en, because late" in run_table(rows, "late").caption


def test_texts_without_a_reference_have_language_and_repetition():
    told = {"loop_free": Estimate(value=1.0), "loop_free_ar": Estimate(value=1.0),
            "language_share": Estimate(value=1.0), "language_share_ar": Estimate(value=1.0),
            "repetition_rate": Estimate(value=0.125), "repetition_rate_ar": Estimate(value=0.0)}  # fmt: skip
    text = rendered([row(subset="ja", metrics=told, quality="loop_free", n=40)])
    assert "loop-free %" in text and "asked language %, ar → method: 100.0 → 100.0 in ja" in text
    assert "repetition %, ar → method: 0.0 → 12.5 in ja" in text
    assert "cannot be identified" not in text
    del told["language_share"], told["language_share_ar"]
    text = rendered([row(subset="oci", metrics=told, quality="loop_free", n=40)])
    assert "language of the answers: cannot be identified in oci" in text


def test_what_drafts_is_said_in_words():
    plain = {"drafter": {"type": "none"}, "verification": {"rule": "rejection"}, "bridge": "shared"}
    text = rendered(rows(num_draft_tokens=0, options=plain))
    assert "drafter org/drafter, which decodes alone, lossy" in text and "rule" not in text
    text = rendered(rows(num_draft_tokens=0, options=plain, drafter=None, lossless=True))
    assert "drafter none, the target decodes alone, lossless" in text
    text = rendered(rows(num_draft_tokens=1, options={**plain, "bridge": "union"}))
    assert "1 draft token, bridge union, lossy" in text
    text = rendered(rows(drafter=None, options={"decoder": {"entry": "a:b", "revision": None, "options": {}}}))
    assert "drafter its own, 5 draft tokens" in text


def test_whether_the_drafter_is_the_one_that_the_method_names_is_said():
    plain, named = {"type": "model", "checkpoint": None}, {"type": "model", "checkpoint": "org/drafter"}
    instead = {**plain, "replaces": "embedded:drafter-scdf"}
    for drafter, own in (
        (plain, ""), (named, ""),
        (instead, ", which replaces the method's drafter embedded:drafter-scdf"),
    ):  # fmt: skip
        text = rendered(rows(options={"drafter": drafter}), width=200)
        assert f"drafter org/drafter{own}, 5 draft tokens" in " ".join(text.split())
        both = (("sw", plain), ("en", drafter))
        routes = {name: {"drafter": each, "num_draft_tokens": 5} for name, each in both}
        text = rendered(rows(options={"language": "given", "routes": routes}), width=200)
        assert ("the method's" in text) is (drafter is instead)


@pytest.mark.parametrize("num_prompts", [1, 4, 29])
def test_few_prompts_are_said_with_and_without_an_interval(num_prompts):
    """Below 5 prompts there is none, and the number is the weaker for it; the baseline's own is exact."""
    without = {**METRICS, "speedup": Estimate(value=1.2)}
    for metrics in (METRICS, without):
        told = rendered([row(subset="en", metrics=metrics, n=num_prompts)])
        assert "fewer than 30 prompts" in told
        assert ("in en; with fewer than 5 in a subset: no interval" in told) is (metrics is without)
        assert "fewer than" not in rendered([row(subset="en", metrics=metrics, n=num_prompts, method="ar@1:0")])
    assert "fewer than" not in rendered([row(subset="en", metrics={**METRICS, "speedup": Estimate()}, n=num_prompts)])


def test_names_of_methods_do_not_break():
    console = Console(width=100, force_terminal=False, no_color=True)
    names = ("ar", "random-allocation", "random-accept", "fsd-llama3.1")
    lines = [
        row(subset="en", metrics=METRICS, method=f"{name}@1:aa", drafter="my/drafter-bytes", verdict="greedy equal")
        for name in names
    ]
    with console.capture() as capture:
        console.print(comparison_table(lines))
    text = capture.get()
    assert all(name in text for name in names) and text.count("drafter-bytes") == 4
    assert max(map(len, text.splitlines())) <= 100


def test_methods_beside_each_other_share_the_score():
    console = Console(width=120, force_terminal=False, no_color=True)
    lines = [row(subset="fr-en", metrics=TRANSLATED, quality="bleu", method=f"{m}@1:aa") for m in ("ar", "sd", "fsd")]
    with console.capture() as capture:
        console.print(comparison_table(lines))
    text = capture.get()
    assert "BLEU" in text and "30.0" in text and "accuracy" not in text


def test_the_engine_of_each_row_is_said_by_its_name():
    """Only one of both models may be a GGUF file, or the drafter cannot be compiled."""
    console = Console(width=120, force_terminal=False, no_color=True)
    for engine, other, said in (
        ("llama.cpp", "llama.cpp target", "llama.cpp target, eager drafter: sd, tli; do not compare rows"),
        ("eager", "eager target, llama.cpp drafter", "eager target, llama.cpp drafter: sd, tli; do not compare rows"),
        ("compiled", "compiled target", "compiled target, eager drafter: sd, tli; do not compare rows"),
    ):
        engines = {"ar": engine, "sd": other, "tli": other, "pld": engine}
        lines = [row(subset="en", metrics=METRICS, method=f"{m}@1:aa", engine=e) for m, e in engines.items()]
        with console.capture() as capture:
            console.print(comparison_table(lines))
        text = " ".join(capture.get().split())
        assert said in text and text.count("do not compare rows of different engines") == 1
    with console.capture() as capture:
        console.print(comparison_table(lines[::3]))
    assert "different engines" not in capture.get()


def test_the_digest_of_a_file_is_shown_by_twelve_figures():
    assert model_name("a.gguf", f"sha256-{'0123456789abcdef' * 4}") == "a.gguf (0123456789ab)"
    assert model_name("folder", f"local-{'ab' * 20}") == f"folder ({'ab' * 6})"


@pytest.mark.parametrize(("num_prompts", "is_said"), [(29, True), (30, False)])
def test_few_prompts_are_said_of_methods_beside_each_other(num_prompts, is_said):
    console = Console(width=120, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(comparison_table([row(subset="en", metrics=METRICS, n=num_prompts)] * 2))
    assert capture.get().count("fewer than 30 prompts") == is_said


def test_long_names_leave_the_verdict_readable():
    names = {"ar": None, "pretrain-finetune": "embedded:drafter-pretrain-finetune", "fsd": "embedded:drafter"}
    many = [row(method=f"{name}@1", subset="all", metrics=METRICS, drafter=drafter, verdict="greedy equal")
            for name, drafter in names.items()]  # fmt: skip
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as capture:
        console.print(comparison_table(many))
    lines = capture.get().splitlines()
    assert all(len(line) <= 100 for line in lines) and "…" not in "".join(lines)
    words = [word for line in lines[:-4] for word in line.split()]
    assert words.count("greedy") == 2 and words.count("baseline") == 1
    assert all(" 62.5" in line for line in lines if "12346" in line)


def test_a_comparison_tells_the_kinds_of_differences_of_both_sides():
    first = row(metrics=METRICS, verdict="greedy equal", sampling={"temperature": 0.0})
    second = first.model_copy(update={"verdict": "width only", "divergence": Divergence(width=3)})
    both = ComparedSubset(first, second, 0, same_counts=False, agreement=None, changes=())
    caption = changes_table(both).caption
    assert "verdict: greedy equal → width only" in caption
    assert "width 3: the target itself depends on the width of a pass" in caption
    measured = second.model_copy(update={"batch_width": RowBatchWidth(tolerance=0.5, share_equal=0.0)})
    said = "the width of a pass explains gaps of up to 0.5: 0% of rows equal those of passes over one token"
    one, two = (
        changes_table(ComparedSubset(each, measured, 0, same_counts=False, agreement=None, changes=())).caption
        for each in (first, measured)
    )
    assert f"second: {said}" in one and f"first: {said}" not in one and two.count(said) == 1
    counted = second.model_copy(update={"differences": RowDifferences(answers=3, compared=8, decoded_again=3)})
    both = ComparedSubset(first, counted, 0, same_counts=False, agreement=None, changes=())
    assert "second: 3 of 8 answers differ, 3 of them decoded again" in changes_table(both).caption
    equal = ComparedSubset(first, first, 0, same_counts=False, agreement=None, changes=())
    assert not any(line.startswith("verdict") for line in changes_table(equal).caption)
