"""Divergences against closed forms, scipy, and each other."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from specbench.decoding.verification import DIVERGENCES, MAX_JS, TOP_K, js, js_reference, kl, reverse_kl, tv

GENERATOR = torch.Generator().manual_seed(0)
P = torch.softmax(2 * torch.randn(5, 300, generator=GENERATOR), -1)
Q = torch.softmax(2 * torch.randn(5, 300, generator=GENERATOR), -1)


def test_against_scipy() -> None:
    for row, (p, q) in enumerate(zip(P.double().numpy(), Q.double().numpy(), strict=True)):
        middle = (p + q) / 2
        assert kl(P, Q)[row] == pytest.approx(entropy(p, q), rel=1e-4)
        assert reverse_kl(P, Q)[row] == pytest.approx(entropy(q, p), rel=1e-4)
        assert js(P, Q)[row] == pytest.approx(jensenshannon(p, q) ** 2, rel=1e-4)
        assert js_reference(P, Q)[row] == pytest.approx((entropy(middle, p) + entropy(middle, q)) / 2, rel=1e-4)
        assert tv(P, Q)[row] == pytest.approx(abs(p - q).sum() / 2, rel=1e-4)


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_zero_for_equal_and_positive_for_different(name: str) -> None:
    assert DIVERGENCES[name](P, P).abs().max() < 1e-5
    assert DIVERGENCES[name](P, Q).min() > 1e-3


def test_disjoint_supports() -> None:
    p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    for unbounded in (kl, reverse_kl, js_reference):
        assert 40 < unbounded(p, q).item() < math.inf
    assert js(p, q).item() == pytest.approx(MAX_JS)
    assert tv(p, q).item() == 1.0


@pytest.mark.parametrize("name", ["kl", "js", "tv", "reverse_kl"])
def test_top_k_never_exceeds_the_full_divergence(name: str) -> None:
    """Merging tokens into one bucket can only lose divergence (data processing inequality)."""
    assert (DIVERGENCES[f"top_k_{name}"](P, Q) <= DIVERGENCES[name](P, Q) + 1e-6).all()
    small = P[:, :TOP_K] / P[:, :TOP_K].sum(-1, keepdim=True), Q[:, :TOP_K] / Q[:, :TOP_K].sum(-1, keepdim=True)
    torch.testing.assert_close(DIVERGENCES[f"top_k_{name}"](*small), DIVERGENCES[name](*small), rtol=1e-4, atol=1e-5)
