"""The benchmark of trees runs, and both sides give the same logits."""

import pytest

from specbench.models.loading import load_model
from tools.bench_trees import Step, measure, median_ratio


@pytest.mark.parametrize("num_tokens", [6, 26])
def test_both_sides_read_the_same(num_tokens: int) -> None:
    step = Step(load_model("embedded:drafter", device="cpu"), num_tokens, 30)
    assert len(step.tree_ids) == num_tokens - 1 and len(step.path) == 3
    for _ in range(2):
        assert float((step.tree() - step.bare()).abs().max()) < 1e-4
        step.keep()
        step.rewind()
    found = measure(step, 5)
    assert found.shape == (5, 3, 2) and (found[:, :, 0] > 0).all()
    ratio = median_ratio(found[:, 0, 0], found[:, 0, 0])
    assert ratio == "1.000 [1.000, 1.000]"
