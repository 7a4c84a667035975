"""Recurrent and hybrid models behind bridges, where drafts are translated and thrown back: the emitted ids are AR's."""

from functools import cache
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


@cache
def model(network_kind: str, tokenizer_kind: str, seed: int) -> CausalLM:
    """One model for all tests, which leaves nothing of one prompt to the next."""
    return new_model(network_kind, tokenizer_kind, seed)


@cache
def plain(network_kind: str, tokenizer_kind: str, seed: int, num_tokens: int) -> list[int]:
    """The tokens of plain decoding."""
    target = new_model(network_kind, tokenizer_kind, seed)
    prompt = target.encode_prompt(TEXTS[0], chat=False)
    return generate("ar", ModelPair(target), prompt, num_tokens).token_ids


def new_model(network_kind: str, tokenizer_kind: str, seed: int) -> CausalLM:
    tokenizer = ALL[tokenizer_kind]()
    network = tiny.network(network_kind, seed, vocab_size=len(tokenizer), **tiny.two_layers(network_kind))
    return CausalLM(network, tokenizer, f"tiny-{network_kind}-{tokenizer_kind}", None)


@torch.no_grad()
def twin(original: CausalLM, tokenizer_kind: str) -> CausalLM:
    """Nearly the same network with its tokens renamed: what both vocabularies write has nearly the same embedding and
    logit, so that drafts are right until the first close call."""
    made = new_model(original.model.config.model_type, tokenizer_kind, seed=9)
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


def same_as_plain(
    method: str, kind: str, tokenizer_kind: str, drafter: CausalLM, num_tokens: int = 7
) -> GenerationOutput:
    """The generation of a method whose target has seed 1, checked against plain decoding."""
    target = model(kind, tokenizer_kind, 1)
    generation = generate(method, ModelPair(target, drafter), target.encode_prompt(TEXTS[0], chat=False), num_tokens)
    assert generation.token_ids == plain(kind, tokenizer_kind, 1, num_tokens)
    assert sum(step.num_drafted for step in generation.steps) > 0
    return generation


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_drafter(kind: str, method: str) -> None:
    drafter = model(kind, THEIRS.get(method, "byte_bpe"), 2)
    assert drafter.sequence.recurrent is not None
    same_as_plain(method, "llama", OURS, drafter)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_target(kind: str, method: str) -> None:
    assert model(kind, OURS, 1).sequence.recurrent is not None
    same_as_plain(method, kind, OURS, model("llama", THEIRS.get(method, "byte_bpe"), 2))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_that_agree_in_part(kind: str, method: str) -> None:
    """Drafts are kept whole, in part and not at all."""
    drafter = twin(model(kind, "byte_bpe", 1), WITH_ADDED)
    generation = same_as_plain(method, kind, "byte_bpe", drafter, num_tokens=24)
    num_accepted = sum(step.num_accepted for step in generation.steps)
    assert 0 < num_accepted < sum(step.num_verified for step in generation.steps)
