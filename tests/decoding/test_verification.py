"""Rules on hand-made distributions: what stands, what comes next, and the evidence they leave."""

import math

import pytest
import torch

from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal
from specbench.decoding.sampling import Distributions, Sampling, residual
from specbench.decoding.verification import DIVERGENCES, Fuzzy, RandomAccept, count_leading, rejection

TARGET = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
DRAFT = torch.tensor([[0.6, 0.3, 0.1], [0.8, 0.1, 0.1]])
GENERATOR = torch.Generator().manual_seed(0)


def rows(probs: torch.Tensor, temperature: float) -> Distributions:
    return Distributions(probs.log(), Sampling(temperature))


class Carried:
    """A draft of which a part went to tokens that the target has not."""

    def __init__(self, probs: torch.Tensor) -> None:
        self.probs = self.raw_probs = probs


@pytest.mark.parametrize("name", ["js", "kl", "reverse_kl", "tv", "js_reference", "top_k_js", "top_k_tv"])
def test_fuzzy_rules_count_what_was_drafted_outside_the_target(name: str) -> None:
    """The divergence is that of the distributions over both vocabularies, not of what is left of the draft."""
    carried = 0.1 * TARGET[:1]
    over_both = torch.tensor([[0.7, 0.2, 0.1, 0.0]]), torch.tensor([[0.07, 0.02, 0.01, 0.9]])
    rule = Fuzzy(divergence=name, threshold=0.05)  # type: ignore[arg-type]
    verification = rule(Proposal([0], Carried(carried)), rows(TARGET[:2], 1.0), GENERATOR)  # type: ignore[arg-type]
    torch.testing.assert_close(verification.divergence, DIVERGENCES[name](*over_both), rtol=1e-3, atol=1e-4)
    assert verification.num_accepted == 0


def test_a_row_that_rounding_left_below_1_has_no_foreign_part_beside_one_that_has() -> None:
    carried = torch.stack([(1 - 5e-5) * TARGET[0], 0.1 * TARGET[1]])
    rule = Fuzzy(divergence="reverse_kl", threshold=0.05)
    verification = rule(Proposal([0, 1], Carried(carried)), rows(TARGET, 1.0), GENERATOR)  # type: ignore[arg-type]
    assert (
        verification.divergence is not None
        and abs(verification.divergence[0]) < 1e-4
        and verification.divergence[1] > 50
    )
    assert verification.num_accepted == 1


def test_random_acceptance_never_counts_on_a_foreign_token() -> None:
    verification = RandomAccept(probability=1.0)(Proposal([1, OUT_OF_VOCABULARY]), rows(TARGET[:2], 1.0), GENERATOR)
    assert verification.num_accepted == 1
    assert verification.overlap == [1.0, 0.0]


def test_greedy_rejection_compares_with_the_best_token() -> None:
    verification = rejection(Proposal([0, 0], rows(DRAFT, 0.0)), rows(TARGET, 0.0), GENERATOR)
    assert (verification.num_accepted, verification.next_token) == (1, 1)
    assert verification.target_prob == [1.0, 0.0]
    assert verification.overlap == [1.0, 0.0]


def test_greedy_target_with_sampled_drafts_reports_the_draft_mass_on_the_best_token() -> None:
    verification = rejection(Proposal([1, 0], rows(DRAFT, 1.0)), rows(TARGET, 0.0), GENERATOR)
    assert verification.num_accepted == 0
    torch.testing.assert_close(verification.draft_prob, torch.tensor([0.3, 0.8]))
    torch.testing.assert_close(verification.overlap, torch.tensor([0.6, 0.1]))


def test_sampled_rejection_reports_probabilities_and_overlap() -> None:
    verification = rejection(Proposal([0, 1], rows(DRAFT, 1.0)), rows(TARGET, 1.0), GENERATOR)
    assert verification.num_accepted == 2  # p > q at both: accepted with certainty
    torch.testing.assert_close(verification.target_prob, torch.tensor([0.7, 0.8]))
    torch.testing.assert_close(verification.draft_prob, torch.tensor([0.6, 0.1]))
    torch.testing.assert_close(verification.overlap, torch.tensor([0.9, 0.3]))


def test_token_the_target_excludes_is_always_rejected() -> None:
    target = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    for _ in range(50):
        verification = rejection(Proposal([2], rows(DRAFT[:1], 1.0)), rows(target, 1.0), GENERATOR)
        assert verification.num_accepted == 0
        assert verification.next_token != 2


def test_residual_falls_back_to_the_target() -> None:
    torch.testing.assert_close(residual(TARGET[0], DRAFT[0]), torch.tensor([0.1, 0.0, 0.0]))
    assert torch.equal(residual(TARGET[0], TARGET[0]), TARGET[0])


def test_leading() -> None:
    assert [
        count_leading([]),
        count_leading([True, True]),
        count_leading([True, False, True]),
        count_leading([False]),
    ] == [0, 2, 1, 0]


@pytest.mark.parametrize(("threshold", "accepted"), [(0.0, 0), (0.05, 1), (0.6, 2), (math.inf, 2)])
def test_fuzzy_accepts_below_the_threshold(threshold: float, accepted: int) -> None:
    rule = Fuzzy(divergence="js", threshold=threshold)
    verification = rule(Proposal([0, 0], rows(DRAFT, 0.0)), rows(TARGET, 0.0), GENERATOR)
    assert verification.num_accepted == accepted
    assert verification.next_token == TARGET[accepted].argmax()  # drawn from p itself
    assert verification.divergence is not None and len(verification.divergence) == 2


def test_fuzzy_on_raw_ignores_the_temperature_and_on_processed_does_not() -> None:
    raw = Fuzzy(divergence="tv", threshold=0.5)
    processed = Fuzzy(divergence="tv", threshold=0.5, divergence_on="processed")
    hot, cold = rows(TARGET, 2.0), rows(TARGET, 0.5)
    at = [rule(Proposal([0, 0], rows(DRAFT, t)), target, GENERATOR).divergence for rule in (raw, processed)
          for t, target in ((2.0, hot), (0.5, cold))]  # fmt: skip
    torch.testing.assert_close(at[0], at[1])
    assert (at[2] - at[3]).abs().min() > 0.01


def test_fuzzy_leaves_the_probabilities_that_it_compared() -> None:
    verification = Fuzzy(divergence="tv", threshold=1.0)(
        Proposal([0, 1], rows(DRAFT, 0.0)), rows(TARGET, 0.0), GENERATOR
    )
    torch.testing.assert_close(verification.target_prob, torch.tensor([0.7, 0.8]))
    torch.testing.assert_close(verification.draft_prob, torch.tensor([0.6, 0.1]))
    torch.testing.assert_close(verification.divergence, torch.tensor([0.1, 0.7]))
    assert verification.overlap is None


def test_reference_formula_accepts_at_the_threshold() -> None:
    same = Proposal([0], rows(TARGET[:1], 0.0))
    for name, accepted in (("js_reference", 1), ("tv", 0)):
        verification = Fuzzy(divergence=name, threshold=0.0)(same, rows(TARGET[:2], 0.0), GENERATOR)
        assert verification.num_accepted == accepted


def test_js_above_its_maximum_warns() -> None:
    with pytest.warns(UserWarning, match="accepts everything"):
        Fuzzy(divergence="js", threshold=0.7)
