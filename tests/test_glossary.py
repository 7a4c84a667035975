"""The glossary explains exactly the metrics that a row has."""

from specbench.results.glossary import MEANINGS
from specbench.results.metrics import summarize


def test_every_metric_is_explained_and_nothing_else() -> None:
    metrics = summarize([], "sd", num_draft_tokens=5, verification={"rule": "rejection"})
    assert set(metrics) == set(MEANINGS)
    assert all(unit and meaning for unit, meaning in MEANINGS.values())
