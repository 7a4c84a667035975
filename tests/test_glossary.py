"""The glossary explains exactly the metrics that a row has."""

from specbench.results.glossary import MEANINGS, OF_SCORES, SCORES, meaning
from specbench.results.metrics import summarize


def test_every_metric_is_explained_and_nothing_else() -> None:
    metrics = summarize([], "sd", num_draft_tokens=5, verification={"rule": "rejection"})
    assert set(metrics) == set(MEANINGS) - set(SCORES) - set(OF_SCORES)
    assert all(unit and said for unit, said in MEANINGS.values())


def test_scores_are_explained_with_what_is_derived_from_them() -> None:
    assert meaning("bleu_ar") == ("0 … 100", "bleu: the same of the baseline, over the answers that both have one for")
    assert meaning("accuracy_difference") == ("share", "accuracy: method − baseline, paired by example")
    assert meaning("pass@10") == meaning("pass@k") and meaning("tokens_per_second_ar") != meaning("speedup")
    assert meaning("unheard_of") is None and meaning("unheard_of_ar") is None
