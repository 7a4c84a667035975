"""The numbers and theorems of `specbench fairness` on tables that are known by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specbench.analysis.fairness import groups as c
from specbench.analysis.fairness.drafters import (
    ACCEPTANCE,
    CROSS_ENTROPY,
    EXCLUDED,
    NUM_COLUMNS,
    batches,
    model_forecaster,
    ngram_forecaster,
    position_numbers,
)
from specbench.analysis.fairness.fairness import compare_drafters
from specbench.analysis.fairness.groups import (
    WIDTH,
    BoundViolation,
    GroupSums,
    bound_chain,
    check_bounds,
    check_fitness,
    estimate,
    forced_numbers_of,
    forced_sums,
    group_sums,
    max_over_min,
    measured_numbers,
    pinsker,
    ratios,
    spearman,
    summarize_family,
    tokens_per_pass,
    variance,
)
from specbench.analysis.fairness.representation import rank_languages as shares_of
from specbench.analysis.fairness.representation import share_of
from specbench.results.fairness import BoundChain, GroupNumbers
from specbench.specs.catalogue import load_task
from specbench.statistics.bootstrap import NUM_RESAMPLES, SHARE, Estimate, Resampler
from specbench.tasks.scoring import make_scorer
from specbench.training.passes import Batch, Sample, unfairness
from tests.support import records as records_
from tests.support import tiny

P = [[0.5, 0.5], [0.5, 0.5]]
Q = [[0.25, 0.75], [0.5, 0.5]]
TOKENS = [0, 1]
D = -(math.log(0.25) + math.log(0.75)) / 2
BY_HAND = [
    [D, D - math.log(2), 0.25, 0.75, 0.5, 0.75, 0.0, math.log(4)],
    [math.log(2), 0.0, 0.0, 1.0, 0.5, 0.5, 0.0, math.log(2)],
]


def logs(probs):
    return torch.tensor(probs, dtype=torch.float32).log()


def numbers(target=P, draft=Q, tokens=TOKENS):
    return position_numbers(logs(target), logs(draft), torch.tensor(tokens)).numpy()


def group(per_prompt, num_draft_tokens=2, measured=(), cost_ratio=0.25):
    """A group of prompts with the numbers of their positions, and measured columns where they are given."""
    sums = np.zeros((len(per_prompt), WIDTH))
    for row, prompt in zip(sums, per_prompt, strict=True):
        row[: c.POSITIONS + 1] = forced_sums(prompt, num_draft_tokens)
    for row, values in zip(sums, measured, strict=False):
        row[c.RATES :] = values
    return GroupSums(sums, num_draft_tokens, cost_ratio)


def test_every_number_of_a_position():
    assert numbers() == pytest.approx(np.array(BY_HAND), abs=1e-7)


def test_chunks_change_nothing(monkeypatch):
    whole = numbers()
    monkeypatch.setattr("specbench.analysis.fairness.drafters.CHUNK", 1)
    assert (numbers() == whole).all()


def test_a_token_that_the_drafter_excludes_counts_as_the_smallest_float32():
    found = numbers([[0.9, 0.1]], [[1.0, 0.0]], [1])[0]
    assert found[EXCLUDED] == pytest.approx(0.1) and found[ACCEPTANCE] == pytest.approx(0.9)
    assert found[CROSS_ENTROPY] == pytest.approx(-0.1 * math.log(torch.finfo(torch.float32).tiny), rel=1e-6)


def test_the_numbers_of_a_group_and_its_bounds():
    found = forced_numbers_of("sd, en", group([numbers()]), seed=0)
    kl = (D - math.log(2)) / 2
    assert found.num_positions == 2
    assert found.cross_entropy.value == pytest.approx((D + math.log(2)) / 2)
    assert found.token_loss.value == pytest.approx(1.5 * math.log(2))
    assert (found.kl.value, found.tv.value) == (pytest.approx(kl), pytest.approx(0.125))
    assert (found.acceptance_rate.value, found.target_misfit.value) == (pytest.approx(0.875), pytest.approx(0.5))
    assert found.draft_misfit.value == pytest.approx(0.625)
    assert found.tokens_per_pass.expected == pytest.approx((2.3125 + 3) / 2)
    assert found.tokens_per_pass.of_acceptance == pytest.approx(1 + 0.875 + 0.875**2)
    low = 1 - math.sqrt(kl / 2)
    assert found.tokens_per_pass.of_kl == pytest.approx(1 + low + low**2)
    assert found.speedup.expected == pytest.approx((2.3125 + 3) / 2 / 1.5)
    assert found.speedup_expected.value == pytest.approx(found.speedup.expected)
    assert found.cross_entropy.low is None  # one prompt has no interval


def test_without_a_cost_ratio_there_are_bounds_in_tokens_but_no_speedup():
    found = forced_numbers_of("sd, en", group([numbers()], cost_ratio=None), seed=0)
    assert found.speedup is None and found.speedup_expected == Estimate() and found.tokens_per_pass.expected > 2


def test_a_group_without_positions_has_nothing():
    assert forced_numbers_of("sd, en", GroupSums(np.zeros((3, WIDTH)), 2, 0.0), 0) is None


def test_the_formulas_of_spread():
    values = np.array([1.0, 2.0, 4.0])
    assert unfairness(values) == pytest.approx(10 / 3)
    assert unfairness(np.array([values, [2.0, 2.0, 2.0]])).tolist() == pytest.approx([10 / 3, 0])
    assert variance(values) == pytest.approx(14 / 9)
    assert max_over_min(values) == 4
    assert pinsker(0.5) == 0.5 and pinsker(3.0) == 0.0
    assert tokens_per_pass(np.array([0.5, 1.0]), 2).tolist() == [1.75, 3.0]


@given(st.lists(st.integers(0, 5), min_size=3, max_size=8), st.randoms())
def test_spearman_is_scipys(ranks, random):
    values = np.array([random.randint(0, 4) for _ in ranks], dtype=float)
    expected = np.nan if len(set(ranks)) == 1 or len(set(values)) == 1 else stats.spearmanr(ranks, values).statistic
    assert float(spearman(np.array(ranks, dtype=float), values)) == pytest.approx(expected, nan_ok=True)


def test_spearman_of_two_is_none():
    assert np.isnan(spearman(np.array([1.0, 2.0]), np.array([[1.0, 2.0]]))).all()


LOGIT = st.one_of(st.floats(-60, 60), st.just(-math.inf))


@settings(max_examples=50, deadline=None)  # each computes eight intervals
@given(st.data(), st.integers(2, 6), st.integers(1, 5), st.integers(1, 8))
def test_the_theorems_hold_on_any_distributions(data, vocab_size, num_positions, num_draft_tokens):
    row = st.lists(LOGIT, min_size=vocab_size - 1, max_size=vocab_size - 1)
    rows = st.lists(row.map(lambda logits: [0.0, *logits]), min_size=num_positions, max_size=num_positions)
    tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=num_positions, max_size=num_positions))
    found = position_numbers(torch.tensor(data.draw(rows)), torch.tensor(data.draw(rows)), torch.tensor(tokens)).numpy()
    made = forced_numbers_of("any", group([found], num_draft_tokens), 0)  # raises where one does not hold
    assert made.cross_entropy.value >= made.kl.value >= 0
    assert made.acceptance_rate.value == pytest.approx(1 - made.tv.value, abs=1e-9)


def test_a_rate_of_another_family_breaks_the_bounds():
    """Greedy decoding accepts every token of two models with the same best token; α_T is another number."""
    found = numbers([[0.6, 0.4]], [[0.9, 0.1]], [0])
    check_bounds("toy", forced_numbers_of("toy", group([found]), 0).tokens_per_pass)
    with pytest.raises(BoundViolation, match=r"toy: theorem 1 .* expected < of_acceptance .* of_acceptance = 3\.0000"):
        check_bounds(
            "toy", bound_chain(float(tokens_per_pass(found[:, ACCEPTANCE], 2).mean()), 1.0, *found[0, [1, 0]], 2)
        )
    certain = numbers([[1 - 1e-7, 1e-7]], [[0.6, 0.4]], [0])[0]
    check_fitness("toy", certain[ACCEPTANCE], certain[4], certain[5])
    with pytest.raises(BoundViolation, match=r"toy: theorem 2 .* = 0\.4000.* > r_p = 0\.0000"):
        check_fitness("toy", 1.0, certain[4], certain[5])
    with pytest.raises(BoundViolation, match="of_kl < of_cross_entropy"):
        check_bounds("toy", BoundChain(expected=3, of_acceptance=2, of_kl=1, of_cross_entropy=1.1))


def test_the_interval_of_unfairness_covers_it_and_plain_percentiles_do_not():
    rng = np.random.default_rng(0)
    means = 1 + 0.3 * np.linspace(0, 1, 6)
    covered, plain, num_tries = 0, 0, 40

    def of(sums):
        return unfairness(ratios(sums, 0, 1))

    for _ in range(num_tries):
        groups = [np.column_stack([rng.gamma(4, mean / 4, 12), np.ones(12)]) for mean in means]
        found = estimate(groups, of, seed=0, least=0.0)
        assert 0 <= found.low <= found.value <= found.high
        covered += found.low <= float(unfairness(means)) <= found.high
        drawn = of([g[rng.integers(0, 12, (NUM_RESAMPLES, 12))].sum(axis=1) for g in groups])
        plain += np.quantile(drawn, 0.025) <= float(unfairness(means)) <= np.quantile(drawn, 0.975)
    assert covered / num_tries >= 0.9 > 0.75 > plain / num_tries


def test_few_prompts_have_no_interval_and_one_seed_gives_one():
    few = [np.ones((4, 2)) * [[2, 1]]]
    assert estimate(few, lambda sums: ratios(sums, 0, 1)[..., 0], 0) == Estimate(value=2.0)
    many = [np.random.default_rng(1).random((9, 2))]
    found = [estimate(many, lambda sums: ratios(sums, 0, 1)[..., 0], seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2] and found[0].low < found[0].value < found[0].high


def test_an_interval_stays_where_the_number_can_be():
    rates, weights = np.array([0.9] * 7 + [1.0]), np.array([1.0] * 7 + [7.0])
    groups = [np.column_stack([rates * weights, weights])]
    wide, found = (estimate(groups, lambda s: ratios(s, 0, 1)[..., 0], 0, least=0.0, most=m) for m in (np.inf, 1.0))
    assert wide.high > 1 == found.high and found.low == wide.low < found.value < 1
    floor = estimate(groups, lambda s: 0.9 - ratios(s, 0, 1)[..., 0], 0, least=-0.05)
    assert floor.low == floor.value == pytest.approx(-0.05), "never beyond the value itself"


def test_a_number_of_one_group_has_the_interval_of_the_leaderboard():
    random = np.random.default_rng(0)
    rows = [[random.random(), 1, 9, random.integers(2, 5), 20, 1 + random.random(), 20, 3] for _ in range(20)]
    group_of_20 = group([numbers()] * 20, measured=rows)
    found, columns = measured_numbers(group_of_20, None, seed=3), np.array(rows, dtype=float).T
    prompts = Resampler(np.arange(20), 3)
    assert found.acceptance_rate == prompts.ratio(*columns[:2], bounds=SHARE)
    assert found.mean_acceptance_length == prompts.ratio(*columns[2:4])
    assert found.speedup == prompts.ratio(*columns[4:])


def toy_family(cross_entropies, rates=(0.9, 0.8, 0.6), num_prompts=6, cost_ratio=None):
    made = {}
    for name, divergence, rate in zip(("en", "de", "sw"), cross_entropies, rates, strict=True):
        one = np.array([[divergence, divergence / 2, 1 - rate, rate, 0.1, 1 - rate, 0.0, 1.0]])
        made[name] = group([one] * num_prompts, measured=[[rate, 1, 3, 1, 10, 2, 10, 4]] * num_prompts,
                           cost_ratio=cost_ratio)  # fmt: skip
    return made


def plain(name):
    return GroupNumbers(task="t", subset=name, language=name, num_prompts=6)


def test_a_family_by_hand():
    shares = {"en": 0.6, "de": 0.3, "sw": 0.0}
    ranks = {name: plain(name).model_copy(update={"representation_share": n}) for name, n in shares.items()}
    found = summarize_family(toy_family([1.0, 2.0, 4.0], cost_ratio=0.25), ranks, seed=0)
    assert [*found.unfairness.model_dump().values()] == pytest.approx([10 / 3] * 3)
    assert (found.lowest, found.groups) == ("en", ("en", "de", "sw"))
    rate = found.spreads["forced_acceptance_rate"]
    assert (rate.worst, rate.best, rate.max_over_min.value) == ("sw", "en", pytest.approx(1.5))
    assert rate.variance.value == pytest.approx(np.var([0.9, 0.8, 0.6]))
    assert found.spreads["speedup"].max_over_min.value == 1.0  # 10 tokens in 2 s, beside 10 in 4 s, in every group
    assert found.spreads["forced_speedup"].worst == "sw"
    assert found.correlations.representation_and_acceptance.value == pytest.approx(1)
    assert found.correlations.fitness_and_acceptance.value == pytest.approx(1)


def test_the_fitness_of_a_prompt_goes_with_the_rate_of_its_own_passes_and_not_of_decoding():
    groups = toy_family([1.0, 2.0, 4.0])
    for made, decoded in zip(groups.values(), (0.1, 0.2, 0.3), strict=True):
        made.sums[:, c.RATES] = decoded
    found = summarize_family(groups, {name: plain(name) for name in groups}, seed=0).correlations
    assert found.fitness_and_acceptance_over_prompts == pytest.approx(1)
    assert found.fitness_and_measured_over_prompts == pytest.approx(-1)
    for made in groups.values():
        made.sums[:, c.RATED] = 0
    found = summarize_family(groups, {name: plain(name) for name in groups}, seed=0).correlations
    assert found.fitness_and_measured_over_prompts is None


def test_equal_shares_are_no_order():
    """Of three languages two are never written: ρ of ranks 1, 2.5, 2.5 with 1, 2, 3, whatever their names."""
    for third in ("aa", "zz"):
        groups = dict(zip(("en", "de", third), toy_family([1.0, 2.0, 4.0]).values(), strict=True))
        numbers = {
            name: plain(name).model_copy(update={"representation_share": share, "representation_rank": rank})
            for name, share, rank in zip(groups, (0.6, 0.0, 0.0), (1, 2, 2), strict=True)
        }
        found = summarize_family(groups, numbers, seed=0).correlations.representation_and_acceptance
        assert found.value == pytest.approx(stats.spearmanr([0.6, 0, 0], [0.9, 0.8, 0.6]).statistic)
        assert found.value < 0.9


def test_what_is_not_known_of_every_group_is_left_out():
    groups = toy_family([1.0, 2.0, 4.0])
    groups["sw"].sums[:, c.RATED] = 0
    groups["sw"].sums[:, c.POSITIONS] = 0
    found = summarize_family(groups, {name: plain(name) for name in groups}, seed=0)
    assert found.unfairness is None and set(found.spreads) == {"speedup"}
    assert found.correlations.representation_and_measured is None


def test_a_change_of_drafter_by_hand():
    sides = (toy_family([1.0, 2.0, 4.0], cost_ratio=0.25),
             toy_family([1.0, 2.0, 2.0], rates=(0.9, 0.8, 0.8), cost_ratio=0.25))  # fmt: skip
    found = compare_drafters(("before", "after"), *sides, seed=0)
    change = found.family["unfairness"]
    assert (change.before.value, change.after.value) == (pytest.approx(10 / 3), pytest.approx(2 / 3))
    assert change.difference.value == pytest.approx(-8 / 3) and change.percent.value == pytest.approx(-80)
    assert found.groups["sw"]["acceptance_rate"].difference.value == pytest.approx(0.2)
    assert found.groups["sw"]["forced_acceptance_rate"].percent.value == pytest.approx(100 / 3)
    assert found.groups["en"]["cross_entropy"].difference.value == 0
    assert found.family["acceptance_rate.variance"].after.value < found.family["acceptance_rate.variance"].before.value


def test_the_intervals_of_a_change_stay_where_the_numbers_can_be():
    """Seven short prompts at 0.9 and a long one at 1 would reach beyond 1."""
    weights = np.array([1.0] * 7 + [7.0])
    high, low = (toy_family([1.0, 2.0, 4.0], num_prompts=8) for _ in range(2))
    for groups, rates in ((high, [0.9] * 7 + [1.0]), (low, [0.1] * 7 + [0.0])):
        for found in groups.values():
            for over, under in ((c.RATES, c.RATED), (ACCEPTANCE, c.POSITIONS)):
                found.sums[:, over], found.sums[:, under] = rates * weights, weights
    found = compare_drafters(("low", "high"), low, high, seed=0)
    for name in ("acceptance_rate", "forced_acceptance_rate"):
        change = found.groups["en"][name]
        assert change.before.low == 0 < change.before.value and change.after.high == 1 > change.after.value
        assert change.difference.high == 1 > change.difference.value
        assert found.family[f"{name}.variance"].after.high <= 0.25
        assert found.family[f"{name}.mean"].after.high <= 1 <= found.family[f"{name}.max_over_min"].after.low


def test_ranks_of_languages_and_those_never_written_last():
    shares = shares_of(["en", "en", "de", "en"])
    found = [share_of(shares, language) for language in ("en", "de", "sw")]
    assert [each.rank for each in found] == [1, 2, 3] and [each.share for each in found] == [0.75, 0.25, 0.0]
    assert [(s.language, s.rank) for s in shares_of(["de", "en", "en", "de", "fr", "es", "ja", "ja", "ja"])] == [
        ("ja", 1), ("de", 2), ("en", 2), ("es", 4), ("fr", 4)
    ]  # fmt: skip
    assert share_of(shares, None) is None


def test_acceptance_times_bleu():
    text = "the cat sat on the mat today"
    scorer = make_scorer(load_task("wmt").subset("de-en"))
    right, half = (scorer(answer, text).statistics["bleu"] for answer in (text, "the cat sat on a mat now"))
    group = toy_family([1.0, 2.0, 4.0])["de"]
    perfect = measured_numbers(replace(group, bleu=np.array([right] * 6)), scorer, seed=0)
    assert (perfect.bleu.value, perfect.adjusted_acceptance.value) == (pytest.approx(100), pytest.approx(80))
    mixed = measured_numbers(replace(group, bleu=np.array([right] * 3 + [half] * 3)), scorer, seed=0)
    assert mixed.adjusted_acceptance.value == pytest.approx(0.8 * mixed.bleu.value)
    assert mixed.adjusted_acceptance.low < mixed.adjusted_acceptance.value <= mixed.adjusted_acceptance.high < 100
    assert measured_numbers(group, None, seed=0).bleu is None


def test_bleu_is_that_of_all_answers_together():
    scorer = make_scorer(load_task("wmt").subset("de-en"))
    pairs = [("the cat sat on the mat", "the cat sat on a mat"), ("a dog ran far away", "a dog ran very far away")]
    found = [scorer(text, reference).statistics["bleu"] for text, reference in pairs]
    records = {
        ("t", "en", number, 0, 0): records_.record({
            "sd": records_.generation(steps=[[4, 4, 2 + number, 3 + number]], statistics={"bleu": statistics}),
            "ar": records_.generation(),
        })
        for number, statistics in enumerate(found)
    }  # fmt: skip
    group = measured_numbers(group_sums(list(records), records, "sd", {}, 4), scorer, 0)
    whole = scorer.corpus("bleu", [a + b for a, b in zip(*found, strict=True)])
    assert whole > 10 and group.adjusted_acceptance.value == pytest.approx(0.625 * whole)


def test_repeats_of_a_prompt_are_one_prompt():
    own = records_.generation(steps=[[2, 2, 1, 2]], token_ids=[0, 1, 2], decode_seconds=1.0)
    baseline = records_.generation(steps=[], token_ids=[0, 1, 2], decode_seconds=3.0)
    keys = [("t", "en", 0, 0, 0), ("t", "en", 0, 1, 0), ("t", "en", 1, 0, 0)]
    records = {key: records_.record({"sd": own, "ar": baseline}) for key in keys}
    found = group_sums(keys, records, "sd", dict.fromkeys(keys, numbers()), 2)
    assert found.bleu is None and found.sums[:, c.POSITIONS].tolist() == [4, 2]
    assert found.sums[1, c.RATES :].tolist() == [0.5, 1, 2, 1, 2, 1, 2, 3]


TEXTS = [
    Sample("", ids, given) for ids, given in (((5, 6, 7, 8, 9), 3), (tuple(range(1, 7)), 1), ((*range(3, 10), 1), 7))
]


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mamba2"])
def test_texts_in_one_batch_have_the_logits_of_each_alone(kind):
    model = tiny.causal_lm(kind)
    together = model_forecaster(model).logits(Batch(TEXTS))
    alone = [model.score(list(text.ids[:-1]), text.num_learnt).logits for text in TEXTS]
    assert together.shape == (8, model.vocab_size)
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)


class Bigrams:
    order, digest = 2, "abc"

    def continuations(self, context):
        token = context[-1]
        return np.array([token, token + 1], dtype=np.uint16), np.array([3, 1], dtype=np.uint32)


def test_an_ngram_model_forecasts_its_relative_frequencies():
    found = ngram_forecaster(Bigrams(), 12, "bigrams", torch.device("cpu")).logits(Batch(TEXTS[:1])).softmax(-1)
    assert found.shape == (2, 12)
    assert found[0, [7, 8]].tolist() == pytest.approx([0.75, 0.25]) and found[1, [8, 9]].sum() == pytest.approx(1)


def test_batches_hold_every_text_once_and_no_more_than_fits(monkeypatch):
    monkeypatch.setattr("specbench.analysis.fairness.drafters.MAX_LOGITS", 120)
    found = batches(TEXTS, vocab_size=10)
    assert sorted(number for batch in found for number in batch) == [0, 1, 2]
    assert all(len(b) == 1 or len(b) * max(len(TEXTS[n].ids) for n in b) * 10 <= 120 for b in found)
    assert len(found) == 2


def test_columns_are_as_wide_as_they_say():
    assert (len(BY_HAND[0]), c.AR_SECONDS + 1) == (NUM_COLUMNS, WIDTH)
