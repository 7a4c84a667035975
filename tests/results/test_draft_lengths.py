"""The oracle of draft lengths against all choices, and the numbers of rows."""

from itertools import product

import numpy as np
import pytest

from specbench.core.registry import DRAFT_LENGTHS
from specbench.results.answers import answers_of
from specbench.results.draft_lengths import costs_of_widths, length_metrics, oracle_lengths
from specbench.results.metrics import metrics_of
from specbench.results.row_metrics import ROW_METRICS
from specbench.specs.catalogue import load_method
from specbench.statistics.bootstrap import Resampler
from tests.support.records import autoregressive, compared, generation


@pytest.mark.parametrize("seed", range(12))
def test_the_oracle_is_the_best_of_all_choices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, 5, 6)
    drafted = accepted + rng.integers(0, 3, 6)
    emitted = accepted + rng.integers(0, 2, 6).clip(1 - accepted, 1)
    steps = np.column_stack([drafted, accepted, emitted, rng.integers(1, 4, 6)])
    verify = np.cumsum(rng.uniform(0, 0.8, 12)) + 1
    draft_cost = float(rng.uniform(0, 0.8))

    def costs(widths):
        return verify[np.asarray(widths) - 1]

    def rate(lengths) -> float:
        tokens = sum(n * min(k + 1, e) for k, (_, _, e, n) in zip(lengths, steps, strict=True))
        return tokens / sum(n * (k * draft_cost + costs(k + 1)) for k, n in zip(lengths, steps[:, 3], strict=True))

    best = max(rate(lengths) for lengths in product(*(range(a + 1) for a in accepted)))
    lengths, found = oracle_lengths(steps, draft_cost, costs)
    assert found == pytest.approx(best)
    assert rate(lengths) == pytest.approx(best)
    assert (lengths <= accepted).all()


def test_free_tokens_are_all_drafted_and_dear_ones_none() -> None:
    steps = np.array([[5, 3, 4, 2], [5, 0, 1, 1]])
    for draft_cost, expected in ((0.0, [3, 0]), (5.0, [0, 0])):
        lengths, _ = oracle_lengths(steps, draft_cost, lambda widths: np.ones(np.shape(widths)))
        assert lengths.tolist() == expected
    assert oracle_lengths(np.zeros((0, 4)), 1.0, np.ones_like)[1] == 0.0


def records(num_prompts: int = 6):
    """Steps of two drafted tokens, both accepted, and of four, of which none is. A draft pass costs 0.25, a target pass
    over n tokens 1 + (n − 1) / 10."""
    found = []
    for example in range(num_prompts):
        steps = [[2, 2, 2, 3], [4, 1, 0, 1]] * 10
        own = generation(
            steps, decode_seconds=40.0, target=[(step[0] + 1, 0.5 * (1 + step[0] / 10)) for step in steps],
            draft=[(1, 0.125)] * sum(step[0] for step in steps),
        )  # fmt: skip
        alone = autoregressive(41, target=[(1, 0.5)] * 40, decode_seconds=20.0)
        found.append(compared(example, alone, own, prompt=f"p{example}"))
    return found


def test_a_share_of_the_oracle_is_that_of_the_costs() -> None:
    """The oracle drafts the two tokens that are accepted, and none in the other steps."""
    own, baseline = answers_of(records(), "m"), answers_of(records(), "ar")
    assert costs_of_widths(own, baseline)(np.array([1, 3, 4, 5])) == pytest.approx([1.0, 1.2, 1.3, 1.4])
    found = length_metrics(Resampler.of(own, 0), own, baseline, 0.25)
    assert found["draft_length"].value == 3.0
    measured = 4 / (2 * 0.25 + 1.2 + 4 * 0.25 + 1.4)
    assert found["oracle_share"].value == pytest.approx(measured / (4 / (2 * 0.25 + 1.2 + 1.0)))


def test_a_pass_after_which_nothing_was_drawn_is_a_cost() -> None:
    own, baseline, wasted = answers_of(records(), "m"), answers_of(records(), "ar"), answers_of(records(), "m")
    for answer in wasted:
        _, *others = answer.columns
        answer.columns = np.concatenate([answer.draft_passes, np.full(60, 0.125)]), *others
    prompts = Resampler.of(own, 0)
    shares = [length_metrics(prompts, side, baseline, 0.25)["oracle_share"].value or 0.0 for side in (wasted, own)]
    assert shares[0] < shares[1]


def test_only_methods_with_a_draft_length_have_these_numbers() -> None:
    own, baseline = answers_of(records(), "m"), answers_of(records(), "ar")
    names = {"draft_length", "oracle_share"}
    assert names <= ROW_METRICS.keys()
    varying = metrics_of(own, baseline, load_method("sd-svip"))
    assert names <= varying.keys()
    assert varying["speedup_expected"].value is None, "it assumes drafts of one length"
    assert names.isdisjoint(metrics_of(own, baseline, load_method("sd")))


def test_unknown_costs_have_no_oracle() -> None:
    own, baseline = answers_of(records(), "m"), answers_of(records(), "ar")
    assert length_metrics(Resampler.of(own, 0), own, baseline, None)["oracle_share"].value is None


def test_every_policy_is_a_built_in_one() -> None:
    assert DRAFT_LENGTHS.names() == ["adaedl", "confidence", "costs", "heuristic", "svip"]
