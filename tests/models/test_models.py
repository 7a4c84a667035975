"""CausalLM: cached scores equal a plain forward pass, whatever was fed, cropped and grown before."""

import logging
import random
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoConfig

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair, context_limit_of
from specbench.models.eager import common_prefix
from specbench.models.gguf.header import turn_ends
from specbench.models.loading import check_causal
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import load_method
from tests.support import tiny
from tests.support.engines import plain_logits


@pytest.mark.parametrize("kind", sorted(tiny.KINDS))
@torch.no_grad()
def test_scores_equal_a_plain_pass_after_any_history(kind: str) -> None:
    model, rng = tiny.causal_lm(kind, **tiny.two_layers(kind)), random.Random(0)
    ids = [rng.randrange(256) for _ in range(20)]
    for _ in range(10):
        num_logits = rng.randint(1, 6)
        ids = ids[: rng.randint(10, len(ids))] + [rng.randrange(256) for _ in range(rng.randint(num_logits, 12))]
        torch.testing.assert_close(
            model.score(ids, num_logits).logits, plain_logits(model, ids, num_logits), atol=2e-4, rtol=1e-3
        )


@pytest.mark.parametrize("kind", sorted(tiny.KINDS))
def test_a_batch_scores_as_one_by_one(kind: str) -> None:
    """All suffixes in one pass, behind a cache that holds too little, exactly the ids, or too much."""
    model, single, rng = (
        tiny.causal_lm(kind, **tiny.two_layers(kind)),
        tiny.causal_lm(kind, **tiny.two_layers(kind)),
        random.Random(0),
    )
    ids = [rng.randrange(256) for _ in range(30)]
    for num_ids, length, num_suffixes in ((20, 1, 5), (20, 3, 4), (30, 2, 1), (12, 2, 3)):
        suffixes = [[rng.randrange(256) for _ in range(length)] for _ in range(num_suffixes)]
        expected = torch.cat([single.score(ids[:num_ids] + suffix, 1).logits for suffix in suffixes])
        actual = model.score_batch(ids[:num_ids], suffixes)
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-3)
        assert model.checkpoint() == num_ids
    torch.testing.assert_close(model.score(ids, 5).logits, plain_logits(model, ids, 5), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", sorted(tiny.KINDS))
def test_a_batch_is_read_behind_its_own_tokens_whatever_the_cache_holds(kind: str) -> None:
    """As many others, which differ in the last token or in an earlier one, and the beginning of more."""
    model, single = tiny.causal_lm(kind, **tiny.two_layers(kind)), tiny.causal_lm(kind, **tiny.two_layers(kind))
    ids, suffixes = list(range(40, 60)), [[5], [6]]
    expected = torch.cat([single.score(ids + suffix, 1).logits for suffix in suffixes])
    for held in ([*ids[:-1], 7], [*ids[:8], 7, *ids[9:]], [*ids, 8, 9], [*ids[:-1], 7, 8]):
        model.score(held, 1)
        torch.testing.assert_close(model.score_batch(ids, suffixes), expected, atol=2e-4, rtol=1e-3)
        assert model.checkpoint() == len(ids)


def test_batches_are_counted_and_split() -> None:
    model, ids = tiny.causal_lm(), list(range(9))
    suffixes = [[token, 1] for token in range(150)]
    scores = model.score_batch(ids, suffixes)
    assert [length for length, _ in model.passes.read()] == [9, 128, 128, 44]
    torch.testing.assert_close(scores[149:], plain_logits(model, [*ids, 149, 1], 1), atol=2e-4, rtol=1e-3)
    model.passes.clear()
    model.score_batch(ids, suffixes[:3])
    assert [length for length, _ in model.passes.read()] == [6]


@torch.no_grad()
def test_only_what_the_cache_lacks_is_fed() -> None:
    model = tiny.causal_lm()
    model.score(list(range(30)), 1)
    model.passes.clear()
    model.score([*range(30), 99, 98], 1)  # two new tokens
    model.score([*range(30), 99, 97, 96], 2)  # the last of them was replaced, one more follows
    model.score([*range(30), 99, 97, 96], 3)  # nothing new, but three rows are asked for
    assert [length for length, _ in model.passes.read()] == [2, 2, 3]


@torch.no_grad()
def test_append_and_crop_never_move_the_buffers_and_growth_doubles() -> None:
    model = tiny.causal_lm()
    model.score(list(range(100)), 1)
    layer = model.sequence.cache.layers[0]
    place = layer.keys.data_ptr()
    model.score([*range(100), 1, 2, 3], 1)
    model.rollback(50)
    model.score([*range(50), 7], 1)
    assert layer.keys.data_ptr() == place
    long = [i % 256 for i in range(600)]
    torch.testing.assert_close(model.score(long, 2).logits, plain_logits(model, long, 2), atol=2e-4, rtol=1e-3)
    assert layer.keys.shape[-2] == 1024


@torch.no_grad()
def test_checkpoint_and_rollback() -> None:
    model = tiny.causal_lm("mistral")
    model.score(list(range(40)), 1)
    point = model.checkpoint()
    model.score([*range(40), 5, 6, 7], 3)
    model.rollback(point)
    assert model.checkpoint() == 40
    torch.testing.assert_close(
        model.score([*range(40), 9], 1).logits, plain_logits(model, [*range(40), 9], 1), atol=2e-4, rtol=1e-3
    )


@torch.no_grad()
def test_rows_beyond_the_tokenizer_are_no_tokens() -> None:
    model = tiny.causal_lm(vocab_size=320)
    model.model.get_output_embeddings().weight.data[300] = 100.0
    assert model.vocab_size == 257
    assert model.score([1, 2, 3], 2).logits.shape == (2, 257)


def test_end_tokens_are_collected_from_all_configs() -> None:
    network = tiny.network()
    network.generation_config.eos_token_id = [3, 4]
    network.config.eos_token_id = 5
    model = CausalLM(network, tiny.tokenizer(), "tiny", None)
    assert model.eos_token_ids == {3, 4, 5, 256}


def test_special_tokens_that_end_texts_by_their_name_and_here_nothing_are_known() -> None:
    """A text that is no special token, and a special token of another meaning, are none of them."""
    made = tiny.tokenizer()
    for token, is_special in (("<|endoftext|>", True), ("</s>", False), ("<|image_pad|>", True), ("<|im_end|>", True)):
        made.add_tokens([AddedToken(token, special=is_special)], special_tokens=is_special)
    network = tiny.network(vocab_size=len(made))
    model = CausalLM(network, made, "tiny", None)
    assert (model.told_ends, model.unused_ends) == ("256 <|end|>", {"<|endoftext|>": 257, "<|im_end|>": 260})
    network.generation_config.eos_token_id = [260, 999]
    model = CausalLM(network, made, "tiny", None)
    assert (model.told_ends, model.unused_ends) == ("256 <|end|>, 260 <|im_end|>, 999", {"<|endoftext|>": 257})


def test_a_message_of_several_in_an_answer_does_not_end_it() -> None:
    assert turn_ends([b"<|end|>", b"<|im_end|>", b"<|image_pad|>"]) == {b"<|end|>", b"<|im_end|>"}
    assert turn_ends([b"<|end|>", b"<|return|>", b"<|call|>"]) == {b"<|return|>", b"<|call|>"}


def test_chat_template_is_one_user_turn() -> None:
    model = tiny.causal_lm()
    model.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [assistant]"
    assert model.decode_text(model.encode_prompt("hello", chat=True)) == "[user] hello [assistant]"
    assert model.decode_text(model.encode_prompt("hello", chat=False)) == "hello"


@pytest.mark.parametrize("chat", [False, True])
def test_a_long_prompt_is_no_warning_of_the_tokenizer(chat: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.causal_lm()
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    model.tokenizer.model_max_length = 4
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        assert len(model.encode_prompt("longer than four tokens", chat=chat)) > 4
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []


def test_chat_template_that_refuses_is_an_error() -> None:
    model = tiny.causal_lm()
    for template in ("{{ raise_exception('needs a system turn') }}", "{% if %}"):
        model.tokenizer.chat_template = template
        with pytest.raises(ConfigError, match=r"tiny-llama.*--chat never"):
            model.encode_prompt("hello", chat=True)


def test_common_prefix() -> None:
    assert [common_prefix([1, 2, 3], [1, 2]), common_prefix([1, 2], [1, 3, 4]), common_prefix([], [1])] == [2, 1, 0]


@pytest.mark.parametrize(
    ("kind", "options", "limit"),
    [
        ("gpt2", {"n_positions": 24}, 24),
        ("mpt", {"max_seq_len": 24}, 24),
        ("bloom", {}, None),
        ("mamba2", {}, None),
        ("xlnet", {}, None),  # declares -1
    ],
)
def test_the_context_of_a_configuration_by_any_of_its_names(
    kind: str, options: dict[str, Any], limit: int | None
) -> None:
    assert context_limit_of(AutoConfig.for_model(kind, **options).get_text_config()) == limit


def test_a_model_with_another_name_for_its_positions_decodes_up_to_them() -> None:
    """MPT, which transformers maps no name of positions to, as target and as drafter."""
    mpt, other = (
        tiny.causal_lm("mpt", max_seq_len=24, max_position_embeddings=None),
        tiny.causal_lm(num_hidden_layers=1),
    )
    check_causal(mpt)
    for target, drafter in ((mpt, other), (other, mpt)):
        limit = LoadedModels(target, {"sd": drafter}).context_limit([load_method("sd")])
        decoder = build_decoder(load_method("sd"), ModelPair(target, drafter), Sampling())
        made = decoder.generate(list(range(10)), StopRules(40, context_limit=limit), seed=0)
        assert made.finish == "context" and len(made.token_ids) == 14


def test_a_network_that_fails_beyond_undeclared_positions_is_one_line() -> None:
    model = tiny.causal_lm("gpt2", max_position_embeddings=16, num_hidden_layers=1)
    model.score(list(range(16)), 1)
    with pytest.raises(ConfigError, match=r"'tiny-gpt2' fails in a pass over 1 tokens after 16 others \(IndexError"):
        model.score(list(range(17)), 1)
