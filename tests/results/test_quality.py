"""Scores of recorded answers: means, corpus scores, pass@k, languages, and what could not be judged."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from specbench.core.registry import SCORERS
from specbench.results.answers import answers_of
from specbench.results.metric_format import find_metric, metric_of
from specbench.results.scores import (
    CorpusStatistics,
    ScoringSpec,
    corpus_metrics,
    main_metric,
    signatures,
)
from specbench.running.measure import score_fields
from specbench.statistics.bootstrap import Resampler, expanded_confidence, stratified_confidence
from specbench.tasks.scoring import Score, Scorer
from tests.support.answers import summarize
from tests.support.records import autoregressive, changed, compared

BLEU, NUMBER, ROUGE, TEXT, CHOICE = (SCORERS.get(name)() for name in ("bleu", "number", "rouge", "text", "choice"))


def answer(scorer, text, reference):
    return autoregressive(3, text=text, **score_fields(scorer, text, reference))


def record(scorer, example, own, ar, reference="", **fields):
    answers = answer(scorer, ar, reference), answer(scorer, own, reference)
    return compared(example, *answers, reference=reference, **fields)


def summary(records, asked, seed=0):
    return summarize(records, "m", num_draft_tokens=0, verification={"rule": "rejection"}, scoring=asked, seed=seed)


SENTENCES = [
    "The cat sat on the mat.", "Three men walked home at night.", "It is two miles to the sea.",
    "She sold nine eggs at the market.", "He read a long book about ships.", "They live near the old bridge.",
    "We had bread and cheese for lunch.", "A small dog ran after the red ball.",
]  # fmt: skip


def spoilt(sentence, share, source):
    """The sentence with some words replaced."""
    return " ".join(word if source.random() > share else "word" for word in sentence.split())


def translations(num_prompts, subset="en"):
    source = random.Random(subset)
    texts = [f"{SENTENCES[n % 8][:-1]} again {n}." for n in range(num_prompts)]
    return [
        record(BLEU, n, spoilt(text, 0.4, source), spoilt(text, 0.2, source), text, subset=subset)
        for n, text in enumerate(texts)
    ]


def corpus(records, method):
    answers = [record.methods[method].text for record in records]
    return sacrebleu.corpus_bleu(answers, [[record.reference for record in records]])


def test_corpus_bleu_is_that_of_all_answers_together():
    records = translations(40)
    metrics = summary(records, {"en": ScoringSpec(BLEU)})
    own, ar = corpus(records, "m").score, corpus(records, "ar").score
    assert metrics["bleu"].value == pytest.approx(own) and metrics["bleu_ar"].value == pytest.approx(ar)
    assert metrics["bleu_difference"].value == pytest.approx(own - ar)
    mean = sum(record.methods["m"].score for record in records) / 40
    assert abs(metrics["bleu"].value - mean) > 0.1, "it is not a mean of sentence scores"
    hypotheses = [record.methods["m"].text for record in records]
    chrf = sacrebleu.corpus_chrf(hypotheses, [[r.reference for r in records]], word_order=2).score
    assert metrics["chrf"].value == pytest.approx(chrf)
    assert "accuracy" not in metrics and metrics["num_unscored"].value == 0


def test_intervals_of_bleu_are_those_of_sacrebleus_bootstrap():
    records = translations(60)
    metrics = summary(records, {"en": ScoringSpec(BLEU)})
    hypotheses, references = ([r.methods["m"].text for r in records], [[r.reference for r in records]])
    theirs = sacrebleu.BLEU().corpus_score(hypotheses, references, n_bootstrap=2000)
    bleu, difference = metrics["bleu"], metrics["bleu_difference"]
    assert (bleu.high - bleu.low) / 2 == pytest.approx(theirs._ci, rel=0.15)
    assert bleu.low < bleu.value < bleu.high and difference.high < 0
    others = [each.methods["ar"] for each in records[1:] + records[:1]]
    mixed = [changed(r, methods={**r.methods, "ar": ar}) for r, ar in zip(records, others, strict=True)]
    apart = summary(mixed, {"en": ScoringSpec(BLEU)})
    assert apart["bleu"] == bleu, "the interval of one side does not hang on the other"


def test_bleu_of_a_method_that_writes_what_ar_writes_differs_by_nothing():
    records = [changed(r, methods=dict.fromkeys(("ar", "m"), r.methods["ar"])) for r in translations(20)]
    difference = summary(records, {"en": ScoringSpec(BLEU)})["bleu_difference"]
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_bleu_of_several_subsets_is_the_mean_of_theirs():
    german, english = translations(12, "de"), translations(30)
    asked = {"en": ScoringSpec(BLEU), "de": ScoringSpec(BLEU)}
    whole = summary(german + english, asked)["bleu"]
    assert whole.value == pytest.approx((corpus(german, "m").score + corpus(english, "m").score) / 2)
    assert whole.low < whole.value < whole.high
    assert summary(german[:4] + english, asked)["bleu"].low is None, "too few prompts in one of them"
    assert summary(english, asked)["bleu"] == summary(english, {"en": ScoringSpec(BLEU)})["bleu"]


def test_repeats_and_turns_of_one_prompt_are_drawn_together():
    records = translations(20)
    once = summary(records, {"en": ScoringSpec(BLEU)})["bleu"]
    twice = summary([changed(r, repeat=n) for r in records for n in range(2)], {"en": ScoringSpec(BLEU)})["bleu"]
    turns = summary([changed(r, turn=n) for r in records for n in range(2)], {"en": ScoringSpec(BLEU)})["bleu"]
    assert (twice.value, twice.low, twice.high) == pytest.approx((once.value, once.low, once.high))
    assert turns == twice


def test_what_has_no_reference_is_counted_and_in_no_mean():
    records = translations(10)
    missing = [record(BLEU, 10 + n, "anything", "else", None) for n in range(3)]
    metrics = summary(records + missing, {"en": ScoringSpec(BLEU)})
    assert metrics["bleu"] == summary(records, {"en": ScoringSpec(BLEU)})["bleu"]
    assert metrics["num_unscored"].value == 3
    none = summary(missing, {"en": ScoringSpec(BLEU)})
    assert none["bleu"].value is None and none["bleu_difference"].value is None and none["num_unscored"].value == 3


def test_programs_that_a_limit_ended_are_counted():
    scorer = Passing()
    records = [record(scorer, n, "a", "a", "a") for n in range(6)]
    assert "num_programs_ended" not in summary(records, {"en": ScoringSpec(scorer)})
    for each in (answer for one in records for answer in one.methods.values()):
        each.outcome = {"status": "passed", "reason": ""}
    for number, method, status in ((0, "m", "timed out"), (1, "ar", "printed too much"), (2, "m", "failed")):
        records[number].methods[method].outcome["status"] = status
    assert summary(records, {"en": ScoringSpec(scorer)})["num_programs_ended"].value == 2
    assert find_metric("num_programs_ended") is not None


def test_means_have_their_own_names_and_are_paired():
    records = [record(NUMBER, n, f"so {n}", f"so {n + (n < 2)}", f"{n}") for n in range(8)]
    records.append(record(NUMBER, 8, "8", "8", None))
    metrics = summary(records, {"en": ScoringSpec(NUMBER)})
    values = [metrics[name].value for name in ("accuracy", "accuracy_ar", "accuracy_difference", "num_unscored")]
    assert values == [1, 6 / 8, 2 / 8, 1]
    texts = [record(ROUGE, n, "a b c", "a b c d", "a b c d") for n in range(6)]
    metrics = summary(texts, {"en": ScoringSpec(ROUGE)})
    assert metrics["rouge1"].value == pytest.approx(6 / 7) and metrics["rouge1_ar"].value == 1
    assert metrics["rougeL_difference"].value == pytest.approx(-1 / 7) and metrics["rouge2"].value == pytest.approx(0.8)


class Passing(Scorer):
    """A scorer whose metrics are of all answers to a prompt: pass@k as human-eval computes it."""

    names = ("pass@1", "pass@2")
    combines_samples = True

    def __call__(self, text, reference):
        return Score({"pass@1": float(text == reference)})

    def of_samples(self, name, values):
        return human_eval(len(values), int(sum(values)), int(name[-1])) if len(values) >= int(name[-1]) else None


def human_eval(n, c, k):
    """estimate_pass_at_k of openai/human-eval."""
    import numpy as np

    return 1.0 if n - c < k else float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def test_pass_at_k_is_of_all_answers_to_a_prompt():
    passed = {0: "11101", 1: "00000", 2: "10000", 3: "11111", 4: "01010"}
    records = [
        record(Passing(), example, bit, "1", "1", repeat=repeat)
        for example, bits in passed.items() for repeat, bit in enumerate(bits)
    ]  # fmt: skip
    metrics = summary(records, {"en": ScoringSpec(Passing())})
    counts = [bits.count("1") for bits in passed.values()]
    for k in (1, 2):
        assert metrics[f"pass@{k}"].value == pytest.approx(sum(human_eval(5, c, k) for c in counts) / 5)
        assert metrics[f"pass@{k}_ar"].value == 1
    assert metrics["pass@1"].value == pytest.approx(sum(counts) / 25)
    assert metrics["pass@2"].low < metrics["pass@2"].value < metrics["pass@2"].high
    once = summary([r for r in records if r.repeat == 0], {"en": ScoringSpec(Passing())})
    assert once["pass@1"].value == 3 / 5 and once["pass@2"].value is None


def test_pass_at_k_of_our_scorer_is_human_evals():
    scorer = SCORERS.get("code")(k=[1, 5, 10])
    for n, k in itertools.product((5, 10, 20), (1, 5, 10)):
        for c in range(n + 1):
            found = scorer.of_samples(f"pass@{k}", [1.0] * c + [0.0] * (n - c))
            assert found == (pytest.approx(human_eval(n, c, k)) if n >= k else None)


GERMAN, ENGLISH = "Das Haus steht am Fluss und ist sehr alt.", "The house is by the river and very old."


def test_share_of_the_asked_language():
    records = [record(TEXT, n, GERMAN if n < 3 else ENGLISH, GERMAN, subset="de") for n in range(4)]
    records.append(record(TEXT, 4, "41", GERMAN, subset="de"))
    metrics = summary(records, {"de": ScoringSpec(TEXT, "de")})
    assert (metrics["language_share"].value, metrics["language_share_ar"].value) == (0.6, 1)
    assert metrics["language_share_difference"].value == pytest.approx(-0.4)
    assert "language_share" not in summary(records, {"de": ScoringSpec(TEXT)})
    assert "language_share" not in summary(records, {"de": ScoringSpec(TEXT, "x-demo")})
    letters = [record(CHOICE, n, "B", "The answer is B", "B", subset="de") for n in range(4)]
    assert "language_share" not in summary(letters, {"de": ScoringSpec(CHOICE, "de")}), "a letter is in no language"
    both = [*records, *(record(TEXT, n, "bla bla", "bla", subset="demo") for n in range(5))]
    assert (
        summary(both, {"de": ScoringSpec(TEXT, "de"), "demo": ScoringSpec(TEXT, "x-demo")})["language_share"].value
        == 0.6
    )
    unscored = [
        changed(r, methods={name: changed(g, score=None, scores={}) for name, g in r.methods.items()}) for r in records
    ]
    alone = summary(unscored, {"de": ScoringSpec(None, "de")})
    assert alone["language_share"].value == 0.6 and alone["num_unscored"].value is None


def test_shortened_prompts_are_counted_per_method():
    records = [record(TEXT, n, "a", "a", truncated_tokens=5 * (n == 0)) for n in range(4)]
    records[1].methods["m"].truncated_tokens = 7
    assert summary(records, {"en": ScoringSpec(TEXT)})["share_truncated"].value == 0.5


def test_a_conversation_that_a_method_did_not_outgrow_is_not_cut():
    records = [record(TEXT, n, "a", "a", truncated_tokens=9) for n in range(4)]
    for each in records:
        each.methods["m"].truncated_tokens = 0
    assert summary(records, {"en": ScoringSpec(TEXT)})["share_truncated"].value == 0


def test_intervals_of_many_small_subsets_are_as_wide_as_each_asks_for():
    """Every subset is resampled by itself, so each one's variance lacks n / (n - 1), however many there are.

    600 draws of 10 subsets of 5 prompts with normal scores: intervals that were moved out for 50 prompts, as they are
    all together, held the true mean in 0.908 of them; moved out by subset, in 0.945.
    """
    assert stratified_confidence(np.ones(1), np.array([7])) == pytest.approx(expanded_confidence(7)), (
        "one subset: as all other metrics"
    )
    assert stratified_confidence(np.array([1, 1e-9]), np.array([5, 500])) == pytest.approx(
        expanded_confidence(5), abs=1e-4
    )
    assert stratified_confidence(np.zeros(3), np.array([5, 5, 5])) == 0.95
    scores = np.random.default_rng(0).normal(30, 10, (10, 5, 2))
    metric = corpus_metrics(
        [CorpusStatistics(np.stack([each, np.zeros((5, 2))]), lambda sums: sums[0] / 5) for each in scores],
        Resampler.of_units(50, seed=0),
    )[0]
    errors = scores[:, :, 0].var(axis=1, ddof=1) / 5  # the squared standard error of each subset's mean
    freedom = errors.sum() ** 2 / (errors**2 / 4).sum()
    half = stats.t.ppf(0.975, freedom) * errors.sum() ** 0.5 / 10
    assert (metric.high - metric.low) / 2 == pytest.approx(half, rel=0.04)


def test_the_metric_that_stands_for_quality():
    assert main_metric({"en": ScoringSpec(BLEU), "de": ScoringSpec(SCORERS.get("bleu")(tokenizer="zh"))}) == "bleu"
    assert main_metric({"a": ScoringSpec(NUMBER), "b": ScoringSpec()}) == "accuracy"
    assert (
        main_metric({"a": ScoringSpec(NUMBER), "b": ScoringSpec(ROUGE)}) is None
        and main_metric({"a": ScoringSpec()}) is None
    )


def test_signatures_have_the_tokenizer_and_the_number_of_references():
    chinese = SCORERS.get("bleu")(tokenizer="zh")
    rows = [
        compared(0, autoregressive(1), subset=subset, reference=reference)
        for subset, reference in (("en", ["a", "b"]), ("zh", "a"), ("zh", None))
    ]
    own = answers_of(rows, "ar")
    found = signatures({"en": ScoringSpec(BLEU), "zh": ScoringSpec(chinese), "de": ScoringSpec(NUMBER)}, own)
    english, other = found["bleu"].split(" & ")
    assert "nrefs:2|" in english and "tok:13a" in english and "nrefs:1|" in other and "tok:zh" in other
    other = answers_of([compared(0, autoregressive(1), reference="a")], "ar")
    mixed = signatures({"en": ScoringSpec(BLEU)}, [*own, *other])
    assert "nrefs:var|" in mixed["chrf"] and "nw:2" in mixed["chrf"]
    assert signatures({"en": ScoringSpec(NUMBER)}, own) == {}


def test_every_score_has_a_unit_and_a_meaning():
    for name in ("number", "choice", "exact_match", "f1", "rouge", "bleu", "text", "code"):
        for metric in SCORERS.get(name)().names:
            assert find_metric(metric) and find_metric(f"{metric}_ar") and find_metric(f"{metric}_difference")
            assert metric_of(metric).label != metric
    for name in ("exact_match,strict-match", "f1,none", "rougeL,none"):  # some are percentages already
        assert (metric_of(name).label, metric_of(name).factor) == (name, 1.0)
    assert metric_of("bleu,none").most == 100 and find_metric("bleu,none").meaning == find_metric("bleu").meaning
    assert find_metric("of_a_plug_in") is None and metric_of("of_a_plug_in").label == "of_a_plug_in"
    assert metric_of("bleu").factor == 1 and metric_of("accuracy").factor == 100


def test_a_metric_that_only_records_have_is_a_mean_too():
    records = translations(6)
    for each in records:
        for method, value in (("m", 7.0), ("ar", 8.0)):
            each.methods[method].scores["judge_score"] = value
    metrics = summary(records, {"en": ScoringSpec(BLEU)})
    assert metrics["judge_score"].value == 7 and metrics["judge_score_difference"].value == -1
    assert SimpleNamespace(**metric_of("judge_score").__dict__).digits == 2
