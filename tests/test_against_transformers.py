"""transformers as a second opinion on the embedded pair, greedy, float32: the same tokens, the same accepted runs."""

import pytest
import torch
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from specbench.catalogue import load_method, load_task
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.sampling import Sampling
from specbench.models.pair import ModelPair
from specbench.running.compose import compose

MAX_NEW_TOKENS = 96
GAMMA = 5
LANGUAGES = load_task("mgsm").subset_names


def ours(models: ModelPair, method: str, prompt: list[int], max_new_tokens: int = MAX_NEW_TOKENS) -> Generation:
    decoder = compose(load_method(method), models, Sampling(0.0))
    return decoder.generate(prompt, StopRules(max_new_tokens, decoder.model.eos_token_ids), seed=0)


@pytest.mark.parametrize("language", LANGUAGES)
def test_greedy_output_equals_generate(
    language: str, embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> None:
    assert len(embedded_prompts[language]) == 6  # 66 in all
    for prompt in embedded_prompts[language]:
        expected = embedded_pair.target.model.generate(
            torch.tensor([prompt]), max_new_tokens=MAX_NEW_TOKENS, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert ours(embedded_pair, "ar", prompt).token_ids == expected
        assert ours(embedded_pair, "sd", prompt).token_ids == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_accepted_lengths_equal_assisted_generation(
    language: str,
    embedded_pair: ModelPair,
    embedded_prompts: dict[str, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its draft length, schedule and threshold must be set on the assistant's config: as arguments they are ignored."""
    target, drafter = embedded_pair.target, embedded_pair.drafter
    assert drafter is not None
    config = drafter.model.generation_config
    monkeypatch.setattr(config, "num_assistant_tokens", GAMMA)
    monkeypatch.setattr(config, "num_assistant_tokens_schedule", "constant")
    monkeypatch.setattr(config, "assistant_confidence_threshold", 0)
    theirs: list[int] = []

    def record(self: object, input_ids: object, scores: object, num_matches: int) -> None:
        theirs.append(int(num_matches))

    monkeypatch.setattr(AssistedCandidateGenerator, "update_candidate_strategy", record)
    num_compared = 0
    for prompt in embedded_prompts[language]:
        generation = ours(embedded_pair, "sd", prompt)
        theirs.clear()
        # It drafts before the first target pass; ours draws one token from the prefill first, so it starts from there.
        target.model.generate(
            torch.tensor([[*prompt, generation.token_ids[0]]]), max_new_tokens=MAX_NEW_TOKENS - 1, do_sample=False,
            pad_token_id=0, assistant_model=drafter.model,
        )  # fmt: skip
        # The last step is cut at the end token or at the length limit, where the two count differently.
        accepted = [step.num_accepted for step in generation.steps]
        assert theirs[: len(accepted) - 1] == accepted[:-1]
        num_compared += len(accepted) - 1
    assert num_compared > 5 * len(embedded_prompts[language])
