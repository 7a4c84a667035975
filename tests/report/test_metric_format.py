"""`specbench/results/metric_format.py`: the glossary explains exactly the metrics that a row has."""

import pytest

from specbench.core.metric import Metric
from specbench.core.registry import SCORERS
from specbench.results.metric_format import all_metrics, bounds_of, find_metric, metric_of, score
from specbench.results.row_metrics import ROW_METRICS
from specbench.statistics.bootstrap import Estimate
from tests.support.answers import summarize
from tests.support.records import autoregressive, compared, generation

# Of `draw_overlap`, trees, what was consumed, servers, loops, memories, models that reason, draft lengths that vary.
ONLY_OF_SOME_DRAFTS = {
    "acceptance_rate_unconditional", "tree_nodes", "tree_depth", "draft_passes_per_step",
    "cpu_joules_per_token", "cpu_joules_per_token_ar", "gpu_joules_per_token", "gpu_joules_per_token_ar",
    "peak_host_bytes", "peak_host_bytes_ar", "peak_device_bytes", "peak_device_bytes_ar",
    "tree_acceptance_expected@k", "tree_acceptance_optimal@k", "verification_cost",
    "verification_cost@k", "speedup_of_costs", "rank_chance@k",
    "e2e_seconds", "accepted_per_drafted", "ar_changed",
    *(f"{name}_p{share}_seconds" for name in ("ttft", "ttfa", "tpot", "itl", "e2e") for share in (90, 95, 99)),
    "itl_seconds",
    "tokens_per_second_user", "speedup_user", "pass_ratio", "tpot_ratio", "e2e_ratio",
    "speedup_without_loops", "mean_acceptance_length_without_loops",
    "reasoning_share", "reasoning_share_ar", "share_cut_in_reasoning", "share_cut_in_reasoning_ar",
    "reasoning_tokens", "reasoning_tokens_ar", "answer_tokens", "answer_tokens_ar", "ttfa_seconds",
    "draft_length", "oracle_share", "num_own_answers",
}  # fmt: skip
OF_PROGRAMS_AND_JUDGES = {"num_programs_ended", "num_unjudged"}


def explained(name: str) -> tuple[str, str] | None:
    found = find_metric(name)
    return None if found is None else (found.unit, found.explanation)


def test_every_metric_is_explained_and_nothing_else() -> None:
    metrics = summarize([], "sd", num_draft_tokens=5, verification={"rule": "rejection"})
    assert set(metrics) | ONLY_OF_SOME_DRAFTS == set(ROW_METRICS) - OF_PROGRAMS_AND_JUDGES
    assert all(each.unit and each.explanation for each in all_metrics().values())


def test_scores_are_explained_with_what_is_derived_from_them() -> None:
    told = "bleu: the baseline's score, over the answers for which both have one"
    assert explained("bleu_ar") == ("0 … 100", told)
    assert explained("accuracy_difference") == ("share", "accuracy: method − baseline, paired by example")
    assert explained("pass@10") == explained("pass@k") and explained("rank_chance@2") == explained("rank_chance@k")
    assert explained("tokens_per_second_ar") != explained("speedup")
    assert explained("unheard_of") is None and explained("unheard_of_ar") is None


def test_a_rate_of_conversations_is_said_to_be_the_mean_over_turns() -> None:
    """9 of 13 in one turn and 8 of 14 in the next."""
    turns = [
        compared(0, autoregressive(20), generation([[13, 13, 9, 10], [14, 14, 8, 9]][turn : turn + 1]), turn=turn)
        for turn in (0, 1)
    ]
    found = summarize(turns, "m", num_draft_tokens=14, verification={"rule": "rejection"})
    for name in ("acceptance_rate", "draft_efficiency"):
        assert found[name].value == pytest.approx((9 / 13 + 8 / 14) / 2)
        assert ROW_METRICS[name].explanation.endswith("mean over answers (each turn of a conversation is an answer)")
    assert found["acceptance_rate_pooled"].value == pytest.approx(17 / 27)


def test_an_answer_of_one_token_is_said_to_be_in_no_speed() -> None:
    one = compared(1, autoregressive(20, decode_seconds=1.0), generation([], decode_seconds=50.0))
    found = summarize(
        [compared(0, autoregressive(20, decode_seconds=1.0), autoregressive(20, decode_seconds=2.0)), one],
        "m", num_draft_tokens=1, verification={"rule": "rejection"},
    )  # fmt: skip
    assert (found["tokens_per_second"].value, found["tokens_per_second_ar"].value) == (9.5, 19.0)
    assert ROW_METRICS["tokens_per_second"].explanation.endswith("and answers of one token are excluded on both sides")


@pytest.fixture
def polite(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """The metric that the scorer of a plug-in declares, until the end of the test."""
    monkeypatch.setattr(SCORERS, "_features", {**SCORERS._features})
    metric = Metric("polite", "share", "answers that say please", label="polite %", bounds=(0.0, 1.0), factor=100.0)

    @SCORERS.declare(metrics=(metric,))
    def factory() -> None:
        """A scorer."""

    return metric


def test_the_scorer_of_a_plug_in_declares_its_metrics(polite: Metric) -> None:
    assert metric_of("polite") == polite and "polite" in all_metrics()
    assert score(Estimate(value=0.5), "polite") == "50.000" and bounds_of("polite") == (0.0, 1.0)
    assert explained("polite_difference") == ("share", "polite: method − baseline, paired by example")
    assert metric_of("not_declared").label == "not_declared"
