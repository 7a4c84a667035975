"""transformers as a second opinion on the embedded pair, greedy, float32: the same tokens, the same accepted runs."""

from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.specs.catalogue import load_method, load_task

MAX_NEW_TOKENS = 24
GAMMA = 5
LANGUAGES = load_task("mgsm").subset_names
QUICK = ("th",)  # the fast tests take it


def ours(models: ModelPair, prompt: list[int]) -> GenerationOutput:
    decoder = build_decoder(load_method("sd"), models, Sampling(0.0))
    return decoder.generate(prompt, StopRules(MAX_NEW_TOKENS, decoder.model.eos_token_ids), seed=0)


def generate(target: CausalLM, prompt: list[int], max_new_tokens: int, **options: Any) -> list[int]:
    made = target.model.generate(
        torch.tensor([prompt]), max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0, **options
    )
    return [int(token) for token in made[0, len(prompt) :]]


@pytest.fixture
def theirs(embedded_pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where assisted generation leaves its accepted lengths, drafting as we do.

    Its draft length, schedule and threshold must be set on the assistant's config: as arguments they are ignored.
    """
    assert embedded_pair.drafter is not None
    config = embedded_pair.drafter.model.generation_config
    monkeypatch.setattr(config, "num_assistant_tokens", GAMMA)
    monkeypatch.setattr(config, "num_assistant_tokens_schedule", "constant")
    monkeypatch.setattr(config, "assistant_confidence_threshold", 0)
    accepted: list[int] = []

    def record(self: object, input_ids: object, scores: object, num_matches: int) -> None:
        accepted.append(int(num_matches))

    monkeypatch.setattr(AssistedCandidateGenerator, "update_candidate_strategy", record)
    return accepted


@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LANGUAGES]
)
def test_output_equals_generate_and_accepted_tokens_per_step_assisted_generation(
    language: str, embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]], theirs: list[int]
) -> None:
    """One prompt of each language, not the same one of all. That AR too writes the same is shown by
    `test_bench_transformers.py`."""
    target, drafter = embedded_pair.target, embedded_pair.drafter
    prompt = embedded_prompts[language][LANGUAGES.index(language) % 3]
    assert drafter is not None
    expected = generate(target, prompt, MAX_NEW_TOKENS)
    generation = ours(embedded_pair, prompt)
    assert generation.token_ids == expected
    # It drafts before the first target pass; ours draws one token from the prefill first, so it starts from there.
    assisted = generate(target, [*prompt, expected[0]], MAX_NEW_TOKENS - 1, assistant_model=drafter.model)
    assert assisted == expected[1:]
    # The last step is cut at the end token or at the length limit, where the two count differently.
    accepted = [step.num_accepted for step in generation.steps]
    assert len(accepted) > 3
    assert theirs[: len(accepted) - 1] == accepted[:-1]
