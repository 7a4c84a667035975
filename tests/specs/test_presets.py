"""The shipped settings of fuzzy speculative decoding, and the control that accepts at random."""

import pytest

from specbench.core.environment import builtin_dir
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.specs.catalogue import load_method, method_names, with_overrides
from specbench.specs.method import MethodSpec
from tests.support import tiny

PUBLISHED = {"fsd-llama3.1": 0.3, "fsd-qwen2.5": 0.4, "fsd-gemma2": 0.7}
LEVELS = ("fsd-low", "fsd-med", "fsd-high")


def comment(name: str) -> str:
    lines = (builtin_dir("methods") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))


@pytest.mark.parametrize("name", [*PUBLISHED, *LEVELS])
def test_a_preset_is_fsd_with_other_values(name: str) -> None:
    preset, base = load_method(name), load_method("fsd")
    assert not preset.lossless and preset.same_vocabulary
    assert preset.drafter == base.drafter and preset.verification.rule == base.verification.rule
    assert preset.bridge == base.bridge and preset.paper == base.paper
    assert {
        key: value for key, value in preset.verification.options.items() if key not in ("threshold", "divergence")
    } == {"divergence_on": "raw"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_threshold_is_that_of_table_3(name: str) -> None:
    options = load_method(name).verification.options
    assert (options["divergence"], options["threshold"]) == ("reverse_kl", PUBLISHED[name])
    assert f"T = {PUBLISHED[name]} is published" in comment(name) and "table 3" in comment(name)
    assert "are not printed" in comment(name)


def test_the_paper_gives_no_levels_so_none_is_shipped() -> None:
    families = [name for name in method_names() if name.startswith(tuple(PUBLISHED))]
    assert sorted(families) == sorted(PUBLISHED)


def test_the_levels_rise() -> None:
    options = [load_method(name).verification.options for name in LEVELS]
    thresholds = [each["threshold"] for each in options]
    assert thresholds == sorted(set(thresholds)) and {each["divergence"] for each in options} == {"js"}
    assert all("embedded" in load_method(name).title and "measured" in comment(name) for name in LEVELS)


def accepted_and_verified(method: MethodSpec, num_tokens: int) -> tuple[int, int]:
    pair = ModelPair(tiny.causal_lm(seed=0, num_hidden_layers=1), tiny.causal_lm(seed=1, num_hidden_layers=1))
    decoder = build_decoder(method, pair, Sampling(1.0))
    steps = [step for seed in range(2) for step in decoder.generate([1, 2, 3], StopRules(num_tokens), seed=seed).steps]
    return sum(step.num_accepted for step in steps), sum(step.num_verified for step in steps)


@pytest.mark.parametrize(
    ("probability", "num_tokens"),
    [
        *((None, 80), (0.5, 80)),
        *(pytest.param(probability, 300, marks=pytest.mark.slow) for probability in (None, 0.5, 0.95)),
    ],
)
def test_random_acceptance_accepts_at_its_rate(probability: float | None, num_tokens: int) -> None:
    """Of a pair that agrees on nothing, and whatever the models say. The longer texts tell a rate that is 0.1 off."""
    [method] = with_overrides([], [load_method("random-accept")],
                              [f"verification.probability={probability}"] * (probability is not None))[1]  # fmt: skip
    assert not method.lossless and method.drafter.options["temperature"] == 0
    accepted, verified = accepted_and_verified(method, num_tokens)
    expected = probability or 0.8
    error = (expected * (1 - expected) / verified) ** 0.5
    assert verified > 1.5 * num_tokens
    assert abs(accepted / verified - expected) < 4 * error
    assert num_tokens == 80 or 4 * error < 0.1


def test_the_pair_of_that_test_agrees_on_little() -> None:
    accepted, verified = accepted_and_verified(load_method("sd"), 40)
    assert accepted / verified < 0.4
