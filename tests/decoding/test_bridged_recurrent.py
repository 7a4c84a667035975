"""Recurrent and hybrid models behind bridges, where drafts are translated and thrown back: the emitted ids are AR's."""

from typing import Any

import pytest
import torch

from specbench.decoding.loop import GenerationOutput
from specbench.models.causal_lm import CausalLM, ModelPair
from tests.support import tiny
from tests.support.bridges import generate
from tests.support.tokenizers_made_here import ALL, TEXTS

RECURRENT = ("qwen3_5_text", "mamba2")
METHODS = ("tli", "union", "slem", "slrs")
OURS, THEIRS, WITH_ADDED = "other_byte_bpe", {"slrs": "bytes_only"}, "byte_bpe_with_added"
NOISE = 0.01


def model(network_kind: str, tokenizer_kind: str, seed: int) -> CausalLM:
    tokenizer = ALL[tokenizer_kind]()
    network = tiny.network(network_kind, seed, vocab_size=len(tokenizer), **tiny.two_layers(network_kind))
    return CausalLM(network, tokenizer, f"tiny-{network_kind}-{tokenizer_kind}", None)


@torch.no_grad()
def twin(original: CausalLM, tokenizer_kind: str) -> CausalLM:
    """Nearly the same network with its tokens renamed: what both vocabularies write has nearly the same embedding and
    logit, so that drafts are right until the first close call."""
    made = model(original.model.config.model_type, tokenizer_kind, seed=9)
    known = original.text_vocabulary.id_of
    pairs = [(row, known[written]) for written, row in made.text_vocabulary.id_of.items() if written in known]
    rows, sources = (list(column) for column in zip(*pairs, strict=True))
    state: dict[str, Any] = original.model.state_dict()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.model.state_dict().items():
        if parameter.shape == state[name].shape:
            parameter.copy_(state[name])
        else:
            parameter[rows] = state[name][sources]
        parameter += NOISE * torch.randn(parameter.shape, generator=generator)
    return made


def same_as_plain(method: str, models: ModelPair, num_tokens: int = 7) -> GenerationOutput:
    """The method's generation, checked against AR's."""
    prompt = models.target.encode_prompt(TEXTS[0], chat=False)
    generation = generate(method, models, prompt, num_tokens)
    assert generation.token_ids == generate("ar", models, prompt, num_tokens).token_ids
    assert sum(step.num_drafted for step in generation.steps) > 0
    return generation


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_drafter(kind: str, method: str) -> None:
    drafter = model(kind, THEIRS.get(method, "byte_bpe"), seed=2)
    assert drafter.sequence.recurrent is not None
    same_as_plain(method, ModelPair(model("llama", OURS, seed=1), drafter))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_target(kind: str, method: str) -> None:
    target = model(kind, OURS, seed=1)
    assert target.sequence.recurrent is not None
    same_as_plain(method, ModelPair(target, model("llama", THEIRS.get(method, "byte_bpe"), seed=2)))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_that_agree_in_part(kind: str, method: str) -> None:
    """Drafts are kept whole, in part and not at all."""
    target = model(kind, "byte_bpe", seed=1)
    generation = same_as_plain(method, ModelPair(target, twin(target, WITH_ADDED)), num_tokens=24)
    num_accepted = sum(step.num_accepted for step in generation.steps)
    assert 0 < num_accepted < sum(step.num_verified for step in generation.steps)
