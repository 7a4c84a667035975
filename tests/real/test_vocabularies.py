"""Drafters of another vocabulary: SmolLM2 (49,152 tokens), Gemma 3 (262,144) and Qwen2.5 (151,936) draft for one
another, and the target's greedy answers stay what they are."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges import check_equal as check_equal_vocabularies
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from tests.support.public_models import Answered, answered, check_equal, generate, outputs_of

pytestmark = pytest.mark.real

NUM_TOKENS = 20
CAPITALS = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
JAPANESE = "日本の首都は東京です。フランスの首都は"


@pytest.fixture(scope="module")
def answers(smollm: CausalLM, gemma: CausalLM) -> dict[str, Answered]:
    """An answer in the chat template, which ends by itself, and two without one, of which one is in another script."""
    chat = ("Name three primary colors, separated by commas.", True)
    return {
        "smollm": answered(smollm, [chat], NUM_TOKENS + 8, max_width=3),
        "gemma": answered(gemma, [(CAPITALS, False), (JAPANESE, False)], NUM_TOKENS, max_width=2),
    }


@pytest.fixture(scope="module")
def draft_model(real_models: Path) -> Callable[[str], CausalLM]:
    """In bfloat16, since the rounding of a drafter changes no output."""
    return cache(lambda name: load_model(str(real_models / name), device="cpu", dtype="bfloat16"))


def test_gemma_writes_what_generate_writes(answers: dict[str, Answered]) -> None:
    known = answers["gemma"]
    assert known.num_tokens == 2 * NUM_TOKENS
    for answer in known.answers:
        assert generate(known.target.model, answer.prompt_ids, NUM_TOKENS) == answer.token_ids


@pytest.mark.parametrize(
    ("target", "drafter", "method"),
    [
        *(("smollm", "gemma3-270m", method) for method in ("slem", "tli", "union", "slrs", "hf-slem", "hf-tli")),
        *(("gemma", "smollm2-135m", method) for method in ("slem", "tli", "union", "slrs")),
        *(("smollm", "qwen-coder-0.5b", method) for method in ("slem", "tli")),
    ],
)
def test_a_drafter_of_another_vocabulary(
    target: str, drafter: str, method: str, answers: dict[str, Answered], draft_model: Callable[[str], CausalLM]
) -> None:
    known, model = answers[target], draft_model(drafter)
    with pytest.raises(VocabularyMismatch):
        check_equal_vocabularies(known.target, model)
    found = outputs_of(method, ModelPair(known.target, model), known)
    assert known.tolerance < 0.05
    check_equal(found, known, num_near_ties=1)
