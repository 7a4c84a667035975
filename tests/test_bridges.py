"""The shared bridge lets through equal vocabularies only."""

import pytest

from specbench.decoding.bridges import VocabularyMismatch, shared
from specbench.models.causal_lm import CausalLM
from tests import tiny


def test_equal_vocabularies_pass_the_drafter_on() -> None:
    drafter = object()
    assert shared(tiny.causal_lm(seed=0), tiny.causal_lm(seed=1), drafter) is drafter


def test_wider_logits_do_not_matter() -> None:
    assert shared(tiny.causal_lm(), tiny.causal_lm(vocab_size=512), "drafter") == "drafter"


def test_same_tokenizer_but_narrower_output_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match="gives 250 tokens a probability where the target gives 257"):
        shared(tiny.causal_lm(), tiny.causal_lm(vocab_size=250), "drafter")


def test_other_vocabulary_is_refused_with_both_sizes() -> None:
    other = CausalLM(tiny.network(vocab_size=260), tiny.tokenizer(num_extra=3), "other", None)
    with pytest.raises(VocabularyMismatch, match=r"'other' \(260 tokens\).*'tiny-llama' \(257 tokens; 256 in common"):
        shared(tiny.causal_lm(), other, None)
