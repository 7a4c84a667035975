import math
import random
import warnings

import pytest

from specbench.records.columns import Ints
from specbench.results import metrics as of_answers
from specbench.results.answers import Answer, RunAnswers, answers_of
from specbench.results.metrics import expected_speedup
from specbench.specs.catalogue import load_method
from tests.support.answers import metrics_of, summarize
from tests.support.records import autoregressive, changed, compared, generation, record


def steps_by_accepted_tokens(generations, num_draft_tokens):
    return of_answers.accepted_tokens_per_step(list(map(Answer.of, generations)), num_draft_tokens)


FUZZY = {"rule": "fuzzy", "divergence": "js", "threshold": 0.4}
REJECTION = {"rule": "rejection"}

# Example 0: 7 tokens in 2 steps. Step 1: 3 drafted, 3 verified, 2 accepted, 3 emitted; step 2: all 3 pass, bonus, but
# the cut at EOS leaves 3 of the 4 tokens. Example 1: 3 tokens in 1 step, 2 drafted, 2 verified, 1 accepted.
FIRST = compared(
    0,
    autoregressive(7, decode_seconds=6.0, ttft_seconds=1.0, target=[(1, 0.5), (1, 0.7), *[(2, 0.9)] * 4], score=1.0),
    generation(
        [[3, 3, 2, 3], [3, 3, 3, 3]], decode_seconds=2.0, ttft_seconds=1.5, draft_prefill_seconds=0.25, score=0.0,
        finish="length", rule_seconds=0.2, tokenizer_seconds=0.03,
        target=[(4, 0.5), (4, 0.7)], draft=[(1, 0.1), (1, 0.1), (1, 0.1), (2, 0.2), (1, 0.1)],
        overlap=[1.0, 0.5, 0.0, 1.0, 1.0, 1.0], divergence=[0.1, 0.1, 0.7, 0.1, 0.1, 0.1],
    ),
)  # fmt: skip
SECOND = compared(
    1,
    autoregressive(5, decode_seconds=4.0, ttft_seconds=2.0, target=[*[(1, 0.8)] * 3, (1, 1.2)], score=1.0),
    generation(
        [[2, 2, 1, 2]], decode_seconds=1.0, ttft_seconds=2.5, draft_prefill_seconds=0.35, score=1.0,
        rule_seconds=0.05, tokenizer_seconds=0.0,
        target=[(3, 0.6)], draft=[(1, 0.1), (1, 0.1)], overlap=[0.5, 0.0], divergence=[0.2, 0.6],
    ),
)  # fmt: skip
BY_HAND = {
    "num_prompts_timed": 2,
    "ar_drift": None,
    "new_tokens": 7 + 3,
    "tokens_per_second": (6 + 2) / (2 + 1),
    "tokens_per_second_ar": (6 + 4) / (6 + 4),
    "speedup": (8 / 3) / 1,
    "speedup_e2e": ((7 + 3) / (3.5 + 3.5)) / ((7 + 5) / (7 + 6)),
    "ttft_seconds": 2.0,
    "draft_prefill_seconds": 0.3,
    "tpot_seconds": (2 / 6 + 1 / 2) / 2,
    "draft_seconds": 0.8,
    "verify_seconds": 1.8,
    "overhead_seconds": 3 - 0.8 - 1.8,
    "rule_seconds": 0.2 + 0.05,
    "tokenizer_seconds": 0.03,
    "other_seconds": 0.4 - 0.25 - 0.03,
    "overhead_share": 0.4 / 3,
    "overhead_share_ar": (10 - 4.8 - 3.6) / 10,
    "cost_ratio": 0.1 / 0.8,
    "speedup_expected": (1 + 2 / 3 + 4 / 9 + 8 / 27) / (3 * 0.1 / 0.8 + 1),
    "acceptance_rate": (5 / 6 + 1 / 2) / 2,
    "acceptance_rate_pooled": 6 / 8,
    "acceptance_rate_expected": 5 / 8,
    "draft_efficiency": (5 / 6 + 1 / 2) / 2,
    "mean_acceptance_length": 8 / 3,
    "accepted_length": 6 / 3,
    "drafter_share": 6 / 10,
    "target_passes_per_token": (3 + 2) / 10,
    "divergence_bound": (5 + 1) / 2 * 0.4,
    "mean_divergence": 2.0 / 8,
    "accuracy": 0.5,
    "accuracy_ar": 1.0,
    "accuracy_difference": -0.5,
    "num_unscored": 0,
    "share_looping": 0.0,
    "share_looping_ar": 0.0,
    "share_in_loops": 0.0,
    "share_in_loops_ar": 0.0,
    "share_truncated": 0.0,
    "share_cut_by_length": 0.5,
    "share_cut_by_context": 0.0,
}
WITHOUT_INTERVAL = {
    "num_prompts_timed", "ar_drift", "new_tokens", "ttft_seconds", "draft_prefill_seconds", "tpot_seconds",
    "draft_seconds", "verify_seconds", "overhead_seconds", "rule_seconds", "tokenizer_seconds", "other_seconds",
    "cost_ratio", "speedup_expected", "num_unscored",
}  # fmt: skip


MANY = [changed(each, example=2 * n + each.example) for n in range(3) for each in (FIRST, SECOND)]  # for an interval


@pytest.fixture(scope="module")
def by_hand():
    return summarize([FIRST, SECOND], "m", num_draft_tokens=3, verification=FUZZY)


@pytest.mark.parametrize("name", BY_HAND)
def test_value_by_hand(by_hand, name):
    assert by_hand[name].value == pytest.approx(BY_HAND[name])


def test_these_metrics_and_no_others(by_hand):
    assert by_hand.keys() == BY_HAND.keys()
    many = summarize(MANY, "m", num_draft_tokens=3, verification=FUZZY)
    assert {name for name, metric in many.items() if metric.low is None} == WITHOUT_INTERVAL
    assert {metric.low for metric in by_hand.values()} == {None}


def test_prompts_at_which_any_method_loops_are_left_out_for_all() -> None:
    """Prompt 0 loops with the other method only, prompt 2 with AR only."""
    quick, slow = ([[59, 59, 59, 60]], {"decode_seconds": 1.0}), ([[1, 1, 1, 2]] * 30, {"decode_seconds": 20.0})
    made = {name: generation(steps, **times) for name, (steps, times) in {"quick": quick, "slow": slow}.items()}
    plain = autoregressive(61, decode_seconds=40.0)
    records = [
        record({"ar": plain, "m": made["quick"], "other": changed(made["slow"], token_ids=[7] * 61)}, example=0),
        record({"ar": plain, "m": made["slow"], "other": made["slow"]}, example=1),
        record({"ar": changed(plain, token_ids=[7] * 61), "m": made["quick"], "other": made["slow"]}, example=2),
    ]
    answers = RunAnswers(dict.fromkeys(("ar", "m", "other"), "target"), {})
    for each in records:
        answers.add(each)
    assert {key[2] for key in answers.looping} == {0, 2}
    for name, share, of_ar in (("m", 0.0, 1 / 3), ("other", 1 / 3, 1 / 3)):
        found = summarize(records, name, num_draft_tokens=59, verification=REJECTION, looping=answers.looping)
        assert [found[f"share_looping{side}"].value for side in ("", "_ar")] == pytest.approx([share, of_ar])
        assert found["share_in_loops_ar"].value == pytest.approx(59 / (3 * 61)), (
            "without the first token and the end of the text"
        )
        assert found["speedup_without_loops"].value == pytest.approx(2.0)
        assert found["mean_acceptance_length_without_loops"].value == pytest.approx(2.0)
    assert found["speedup"].value == pytest.approx(2.0)
    whole = summarize(records, "m", num_draft_tokens=59, verification=REJECTION, looping=answers.looping)
    assert whole["speedup"].value == pytest.approx(120 / 22), "with loops it looks faster"
    every = {each.key for each in records}
    nothing = summarize(records, "m", num_draft_tokens=59, verification=REJECTION, looping=every)
    assert nothing["speedup_without_loops"].value is None is nothing["mean_acceptance_length_without_loops"].value


def test_an_early_rejection_leaves_drafted_tokens_unverified():
    method = generation([[4, 1, 0, 1], [4, 3, 2, 3]], overlap=[0.5] * 4)
    metrics = summarize([compared(0, autoregressive(5), method)], "m", num_draft_tokens=4, verification=REJECTION)
    assert metrics["acceptance_rate"].value == metrics["acceptance_rate_pooled"].value == 2 / 4
    assert metrics["draft_efficiency"].value == 2 / 8
    assert metrics["divergence_bound"].value is None
    assert metrics["mean_divergence"].value is None and metrics["acceptance_rate_expected"].value == 0.5


def test_ar_beside_itself():
    metrics = summarize(MANY, "ar", num_draft_tokens=0, verification=REJECTION)
    for name in ("speedup", "speedup_e2e"):
        assert (metrics[name].value, metrics[name].low, metrics[name].high) == (1, None, None)
    assert metrics["tokens_per_second"] == metrics["tokens_per_second_ar"]
    for name in ("mean_acceptance_length", "target_passes_per_token"):
        assert metrics[name].value == 1
    nothing = {
        "acceptance_rate", "acceptance_rate_pooled", "acceptance_rate_expected", "draft_efficiency", "drafter_share",
        "accepted_length", "speedup_expected", "cost_ratio", "divergence_bound", "mean_divergence",
    }  # fmt: skip
    assert {name: metrics[name].value for name in nothing} == dict.fromkeys(nothing)
    difference = metrics["accuracy_difference"]
    assert (difference.value, difference.low, difference.high) == (0, None, None)


def test_ar_and_the_method_are_counted_the_same_way():
    # A "method" that does exactly what AR does, with and without the first token and EOS, must be worth exactly 1.
    for num_new_tokens in (2, 3, 50):
        sides = [[autoregressive(num_new_tokens + n, score=1.0) for n in range(5)] for _ in range(2)]
        same = [compared(n, ar, own) for n, (ar, own) in enumerate(zip(*sides, strict=True))]
        metrics = summarize(same, "m", num_draft_tokens=0, verification=REJECTION)
        assert metrics["speedup"].value == metrics["speedup_e2e"].value == 1
        assert metrics["speedup"].low == metrics["speedup"].high == 1
        assert metrics["accuracy_difference"].low < 0 < metrics["accuracy_difference"].high, "five prompts tell little"
        assert metrics["tokens_per_second"] == metrics["tokens_per_second_ar"]


@pytest.mark.parametrize("method", ["ar", "m"])
@pytest.mark.parametrize("num_more", [1, -1])
def test_a_token_that_no_step_emitted_is_a_defect_on_either_side(method, num_more):
    # Tokens behind EOS, or one side counted anew by another tokenizer: token ids and ledger then disagree.
    broken = compared(0, autoregressive(4), generation([[3, 3, 2, 3]]))
    ids = broken.methods[method].token_ids
    broken.methods[method].token_ids = Ints([*ids, 5] if num_more == 1 else ids[:-1])
    with pytest.raises(ValueError, match=f"example 0, repeat 0: {method}: "):
        broken.check({"ar": 0, "m": 3})


def test_a_draft_in_ar_is_a_defect():
    broken = compared(0, generation([[1, 1, 1, 1]]), autoregressive(2))
    with pytest.raises(ValueError, match="ar: step 0 has 1 drafted"):
        broken.check({"ar": 0, "m": 3})


def test_an_example_of_one_token_has_no_speed_and_leaves_the_pair():
    one_token = compared(2, autoregressive(1, decode_seconds=0.0), generation([], decode_seconds=0.0, ttft_seconds=2.0))
    one_sided = compared(
        3, autoregressive(9, decode_seconds=100.0), generation([], decode_seconds=0.0, ttft_seconds=2.0)
    )
    with_them = summarize([FIRST, SECOND, one_token, one_sided], "m", num_draft_tokens=3, verification=FUZZY)
    same = ("tokens_per_second", "tokens_per_second_ar", "speedup", "tpot_seconds", "acceptance_rate")
    for name in (*same, "num_prompts_timed"):
        assert with_them[name].value == pytest.approx(BY_HAND[name])
    assert with_them["speedup"].value == pytest.approx(
        with_them["tokens_per_second"].value / with_them["tokens_per_second_ar"].value
    )
    alone = summarize([one_token], "m", num_draft_tokens=3, verification=FUZZY)
    for name in ("tokens_per_second", "speedup", "tpot_seconds", "acceptance_rate", "mean_acceptance_length"):
        assert alone[name].value is None
    assert alone["new_tokens"].value == 1 and alone["speedup_e2e"].value == pytest.approx(0.25)


def test_repeats_count_in_the_value_but_are_one_prompt_for_the_interval():
    repeated = [*MANY, *(changed(each, repeat=1) for each in MANY)]
    once = summarize(MANY, "m", num_draft_tokens=3, verification=FUZZY)
    twice = summarize(repeated, "m", num_draft_tokens=3, verification=FUZZY)
    assert twice["new_tokens"].value == 2 * once["new_tokens"].value
    for name in BY_HAND.keys() - WITHOUT_INTERVAL:
        assert (twice[name].low, twice[name].high) == pytest.approx((once[name].low, once[name].high)), name


def test_one_prompt_has_no_interval_and_no_records_have_no_values():
    metrics = summarize([FIRST], "m", num_draft_tokens=3, verification=FUZZY)
    assert metrics["speedup"].value == 3 and metrics["speedup"].low is None
    empty = summarize([], "m", num_draft_tokens=3, verification=FUZZY)
    assert {name for name, metric in empty.items() if metric.value is not None} == {
        "num_prompts_timed", "new_tokens", "draft_seconds", "verify_seconds", "overhead_seconds", "rule_seconds",
        "tokenizer_seconds", "other_seconds",
    }  # fmt: skip


def test_records_of_earlier_versions_do_not_say_what_the_overhead_was_spent_on():
    old = changed(SECOND.methods["m"], rule_seconds=None, tokenizer_seconds=None)
    metrics = summarize([FIRST, compared(1, SECOND.methods["ar"], old)], "m", num_draft_tokens=3, verification=FUZZY)
    assert metrics["overhead_seconds"].value == pytest.approx(0.4)
    assert [metrics[f"{part}_seconds"].value for part in ("rule", "tokenizer", "other")] == [None] * 3


def test_a_drafter_that_decodes_alone_makes_draft_passes_and_no_target_passes():
    own = autoregressive(7, decode_seconds=2.0, target=[(1, 0.2)] * 6, finish="context")
    ar = autoregressive(7, decode_seconds=6.0, target=[(1, 0.8)] * 6)
    metrics = summarize(
        [compared(0, ar, own)], "m", num_draft_tokens=0, verification=REJECTION, decodes_with="drafter"
    )  # fmt: skip
    values = {
        "draft_seconds": 1.2, "verify_seconds": 0, "overhead_seconds": 0.8, "target_passes_per_token": 0,
        "cost_ratio": 0.25, "draft_prefill_seconds": None, "speedup": 3, "acceptance_rate": None,
    }  # fmt: skip
    assert {name: metrics[name].value for name in values} == pytest.approx(values)
    assert own.passes.target and not own.passes.draft


def shared_out(decoders):
    """One example per decoder: AR makes 5 tokens in 4 s, the target does as AR, the drafter makes 9 tokens in 2 s."""
    found = []
    for example, decoder in enumerate(decoders):
        ar = autoregressive(5, decode_seconds=4.0, target=[(1, 0.8)] * 4, score=1.0)
        drafted = autoregressive(9, decode_seconds=2.0, ttft_seconds=0.25, target=[(1, 0.2)] * 8, score=0.0)
        found.append(compared(example, ar, changed(ar if decoder == "target" else drafted, decoded_by=decoder)))
    return found


def shared_out_metrics(decoders):
    return summarize(shared_out(decoders), "m", num_draft_tokens=0, verification=REJECTION, decodes_with="random")


def test_queries_of_the_drafter_make_draft_passes_and_those_of_the_target_target_passes():
    metrics = shared_out_metrics(["target", "drafter", "drafter"])
    values = {
        "new_tokens": 5 + 2 * 9, "tokens_per_second": (4 + 2 * 8) / (4 + 2 * 2), "tokens_per_second_ar": 1,
        "speedup": 20 / 8, "speedup_e2e": ((5 + 18) / (4.5 + 2 * 2.25)) / (15 / 13.5), "accuracy": 1 / 3,
        "accuracy_ar": 1, "draft_seconds": 16 * 0.2, "verify_seconds": 4 * 0.8,
        "overhead_seconds": 8 - 3.2 - 3.2, "cost_ratio": 0.25, "drafter_share": 18 / 23,
        "target_passes_per_token": 5 / 23, "mean_acceptance_length": 1,
    }  # fmt: skip
    assert {name: metrics[name].value for name in values} == pytest.approx(values)
    nothing = {"acceptance_rate", "draft_efficiency", "accepted_length", "speedup_expected", "draft_prefill_seconds"}
    assert {name: metrics[name].value for name in nothing} == dict.fromkeys(nothing)


def test_a_share_of_nothing_is_ar_and_a_share_of_all_is_the_drafter_alone():
    none, every = shared_out_metrics(["target"] * 6), shared_out_metrics(["drafter"] * 6)
    assert none["speedup"].value == none["mean_acceptance_length"].value == 1
    assert none["drafter_share"].value == none["draft_seconds"].value == 0
    alone = [
        compared(each.example, each.methods["ar"], changed(each.methods["m"], decoded_by=None))
        for each in shared_out(["drafter"] * 6)
    ]
    floor = summarize(alone, "m", num_draft_tokens=0, verification=REJECTION, decodes_with="drafter")
    assert {name for name in floor if floor[name] != every[name]} == {"drafter_share"}
    assert every["drafter_share"].value == 1 and every["mean_acceptance_length"].value is None


def test_a_query_of_unknown_decoder_is_a_defect():
    with pytest.raises(ValueError, match="example 0, repeat 0: m: has no decoded_by"):
        summarize([FIRST], "m", num_draft_tokens=3, verification=FUZZY, decodes_with="random")


def test_an_end_for_want_of_context_is_no_end_by_length():
    ends = [
        compared(n, autoregressive(2), generation([], finish=end)) for n, end in enumerate(["context", "length"] * 2)
    ]
    ends.append(compared(4, autoregressive(2), generation([], finish="stop")))
    metrics = summarize(ends, "m", num_draft_tokens=3, verification=FUZZY)
    assert metrics["share_cut_by_context"].value == metrics["share_cut_by_length"].value == 0.4


def test_unscored_examples_have_no_accuracy():
    unscored = compared(4, autoregressive(3, score=1.0), generation([[3, 3, 1, 2]], score=None))
    metrics = summarize([FIRST, SECOND, unscored], "m", num_draft_tokens=3, verification=FUZZY)
    assert (metrics["accuracy"].value, metrics["accuracy_ar"].value) == (0.5, 1.0)
    alone = summarize([unscored], "m", num_draft_tokens=3, verification=FUZZY)
    assert alone["accuracy"].value is None and alone["accuracy_difference"].value is None


def test_infinite_numbers_become_null():
    method = generation([[2, 2, 1, 2]], divergence=[0.1, math.inf])
    metrics = summarize(
        [compared(0, autoregressive(3), method)], "m", num_draft_tokens=2, verification={**FUZZY, "threshold": math.inf}
    )
    assert metrics["mean_divergence"].value is None and metrics["divergence_bound"].value is None


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.999])
@pytest.mark.parametrize("gamma", [1, 2, 5, 20])
def test_expected_speedup_is_the_closed_form(alpha, gamma):
    for c in (0.0, 0.1, 0.7):
        closed = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))
        assert expected_speedup(alpha, gamma, c) == pytest.approx(closed)
        assert expected_speedup(1.0, gamma, c) == pytest.approx((gamma + 1) / (gamma * c + 1))


def test_no_speedup_is_expected_where_a_draft_token_is_no_draft_pass():
    known = summarize([FIRST, SECOND], "m", num_draft_tokens=3, verification=FUZZY)
    other = summarize([FIRST, SECOND], "m", num_draft_tokens=3, verification=FUZZY, drafts_token_by_token=False)
    assert {name for name in known if known[name] != other[name]} == {"speedup_expected"}
    assert other["speedup_expected"].value is None


def test_a_rate_that_counts_drafted_ends_is_of_records_that_have_it():
    """Of 3 + 2 positions, at 1 of which the drafter ended the text; records without them leave no trace."""
    steps = [[2, 2, 1, 2], [0, 0, 0, 1]]
    first = generation(steps, overlap=[0.5, 0.8], draw_overlap=[0.4, 0.2, 0.1])
    second = generation([[2, 2, 2, 3]], overlap=[0.9, 0.7], draw_overlap=[0.9, 0.6])
    both = [compared(number, autoregressive(5), own) for number, own in enumerate((first, second))]
    found = summarize(both, "m", num_draft_tokens=2, verification={"rule": "rejection"})
    assert found["acceptance_rate_unconditional"].value == pytest.approx(2.2 / 5)
    assert found["acceptance_rate_expected"].value == pytest.approx(2.9 / 4)
    assert "acceptance_rate_unconditional" not in summarize([FIRST], "m", num_draft_tokens=3, verification=FUZZY)


def test_a_method_is_measured_by_what_its_file_says():
    def named(records, name):
        return [changed(each, methods={**each.methods, name: each.methods["m"]}) for each in records]

    found = {name: metrics_of(named((FIRST, SECOND), name), load_method(name)) for name in ("fsd", "sd", "slem", "pld")}
    expected = {name: metrics["speedup_expected"].value is not None for name, metrics in found.items()}
    assert expected == {"fsd": True, "sd": True, "slem": False, "pld": False}
    assert found["fsd"]["divergence_bound"].value == pytest.approx(6 / 2 * 0.3)
    shared = named(shared_out(["target", "drafter"]), "random-allocation")
    assert metrics_of(shared, load_method("random-allocation"))["drafter_share"].value == 9 / 14


def test_expected_speedup_is_what_a_simulation_measures():
    # Independent acceptances: tokens per step over cost per step. 20,000 steps: the standard error is about 0.4 %.
    alpha, gamma, c = 0.8, 4, 0.1
    simulated = random.Random(0)
    tokens = 0
    for _ in range(20_000):
        accepted = 0
        while accepted < gamma and simulated.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    assert expected_speedup(alpha, gamma, c) == pytest.approx(tokens / (20_000 * (gamma * c + 1)), rel=0.02)


def simulated_records(subset, num_prompts):
    """Drafts accepted with probability 0.7, an AR pass of 1 s, a draft pass of 0.1 s, 10 % noise in time."""
    source = random.Random(subset)
    records = []
    for example in range(num_prompts):
        steps = []
        while sum(step[3] for step in steps) < 60:
            accepted = next((n for n in range(4) if source.random() > 0.7), 4)
            steps.append([4, min(accepted + 1, 4), accepted, accepted + 1])
        num_new_tokens = 1 + sum(step[3] for step in steps)
        target = [(5, source.gauss(1, 0.1)) for _ in steps]
        draft = [(1, source.gauss(0.1, 0.01)) for _ in range(4 * len(steps))]
        single = [(1, source.gauss(1, 0.1)) for _ in range(num_new_tokens - 1)]
        method = generation(
            steps,
            decode_seconds=sum(s for _, s in target + draft),
            target=target,
            draft=draft,
            score=float(source.random() < 0.6),
        )
        ar = autoregressive(num_new_tokens, decode_seconds=sum(s for _, s in single), target=single, score=1.0)
        records.append(compared(example, ar, method, subset=subset))
    return records


def test_a_simulated_run_gives_what_was_put_in_without_warnings():
    records = [r for subset in ("en", "ja", "sw") for r in simulated_records(subset, 24)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = summarize(records, "m", num_draft_tokens=4, verification=REJECTION)
    assert metrics["acceptance_rate"].value == pytest.approx(0.7, abs=0.03)
    assert metrics["cost_ratio"].value == pytest.approx(0.1, rel=0.02)
    assert metrics["speedup"].value == pytest.approx(metrics["speedup_expected"].value, rel=0.05)
    assert metrics["overhead_share"].value == pytest.approx(0, abs=1e-9)
    for metric in metrics.values():
        assert metric.low is None or metric.low - 1e-9 <= metric.value <= metric.high + 1e-9


def test_accepted_tokens_per_step_count_the_target_passes_by_what_they_accepted():
    """Of a drafter that decodes alone, and of an external decoder, nothing is known of such passes."""
    drafted = [FIRST.methods["m"], SECOND.methods["m"]]
    assert steps_by_accepted_tokens(drafted, 4) == (0, 1, 1, 1, 0)
    assert steps_by_accepted_tokens([autoregressive(7)], 0) == (6,)
    alone = autoregressive(7, decoded_by="drafter")
    assert steps_by_accepted_tokens([alone], 0) is None
    assert steps_by_accepted_tokens([alone, *drafted], 3) == (0, 1, 1, 1)
    external = {"num_first_tokens": 1, "num_target_passes": 2}
    assert steps_by_accepted_tokens([*drafted, autoregressive(1, external=external)], 3) is None


def of_parts(num_parts, part_of):
    """Returns 40 records of servers by turns, whose starts are faster or slower, each as a whole."""
    noise = random.Random(1)
    starts = [noise.uniform(1.0, 3.0) for _ in range(num_parts)]
    found = []
    for example in range(40):
        part = part_of(example)
        method = generation([[3, 3, 2, 3]], decode_seconds=starts[part] * noise.uniform(0.99, 1.01), score=example % 2)
        found.append(compared(example, autoregressive(7, decode_seconds=6.0, score=1.0), method, part=part))
    return found


def test_intervals_of_times_resample_the_parts_of_servers_by_turns():
    records = of_parts(8, lambda example: example // 5)
    with_parts, without = (
        summarize(each, "m", num_draft_tokens=3, verification=REJECTION)
        for each in (records, [changed(each, part=None) for each in records])
    )
    widths = [math.log(found["speedup"].high / found["speedup"].low) for found in (with_parts, without)]
    assert widths[0] > 1.5 * widths[1] and with_parts["speedup"].value == pytest.approx(without["speedup"].value)
    assert with_parts["num_prompts_timed"].value == 40
    assert with_parts["accuracy"] == without["accuracy"]  # an answer does not depend on the start of its server
    few = summarize(of_parts(4, lambda example: example // 10), "m", num_draft_tokens=3, verification=REJECTION)
    assert few["speedup"].low is None and few["accuracy"].low is not None


def test_changes_of_times_resample_parts_too():
    from types import SimpleNamespace

    from specbench.results.paired import Pairs, RowWithRecords

    records = of_parts(8, lambda example: example // 5)
    parts, plain = (answers_of(each, "m") for each in (records, [changed(each, part=None) for each in records]))
    side = RowWithRecords(SimpleNamespace(memory=None))
    for pair in ((parts, plain), (plain, parts)):
        assert len(set(Pairs(side, side, pair, pair).times.cluster.tolist())) == 8
    assert len(set(Pairs(side, side, (plain, plain), (plain, plain)).times.cluster.tolist())) == 40


def test_intervals_of_a_memory_that_lasts_for_a_run_cover_its_orders():
    """Every repeat is an order of the prompts, in which the method has another speed."""
    records = [
        compared(
            example,
            autoregressive(9, decode_seconds=8.0 + example),
            generation([[3, 3, 3, 4]] * 2, decode_seconds=(4.0 + example) / factor, left_out_own=example == 0),
            repeat=repeat,
        )
        for repeat, factor in enumerate((0.7, 1.0, 1.3)) for example in range(6)
    ]  # fmt: skip
    own, plain = (answers_of(records, name) for name in ("m", "ar"))
    options = {"is_baseline": False, "num_draft_tokens": 3, "verification": REJECTION}
    repeats, orders = (of_answers.summarize(own, plain, **options, in_orders=told) for told in (False, True))
    for name in ("speedup", "tokens_per_second"):
        assert orders[name].value == repeats[name].value
        assert orders[name].low < repeats[name].low and repeats[name].high < orders[name].high
    assert orders["tokens_per_second_ar"] == repeats["tokens_per_second_ar"], "AR remembers nothing"
    assert orders["num_own_answers"].value == 1 and "num_own_answers" not in of_answers.summarize(
        plain, plain, **options
    )


@pytest.mark.parametrize(("first", "second", "wider"), [(None, "shuffled", True), ("cold", "warm", False)])
def test_changes_to_a_memory_that_lasts_for_a_run_cover_its_orders(first, second, wider):
    from types import SimpleNamespace

    from specbench.results.paired import Pairs, RowWithRecords

    records = [
        compared(example, autoregressive(9), generation([[3, 3, 3, 4]] * 2), repeat=repeat)
        for repeat in range(3) for example in range(6)
    ]  # fmt: skip
    sides = [RowWithRecords(SimpleNamespace(memory=memory)) for memory in (first, second)]
    pair = (answers_of(records, "m"),) * 2
    pairs = Pairs(*sides, pair, pair)
    assert (pairs.prompts.order is not None, pairs.times.order is not None) == (wider, wider)
