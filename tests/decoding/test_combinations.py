"""Every drafter with every rule through every bridge: illegal ones are refused when they are loaded, legal ones decode,
and those whose rule is lossless give the target's own tokens."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.mmap_store import vocabulary_digest
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.training.corpus_arrays import build_ngrams as build_ngram
from tests.support import tiny
from tests.support.tokenizers_made_here import ALL, TEXTS

DRAFTERS = ("model", "ngram", "prompt_lookup")
RULES: dict[str, dict[str, Any]] = {
    "rejection": {},
    "exact_match": {},
    "fuzzy": {"divergence": "js", "threshold": 0.3},
    "random_accept": {"probability": 0.5},
}
BRIDGES = ("shared", "intersection", "union", "retokenize", "string")
ILLEGAL = {
    *((drafter, rule, bridge) for drafter in DRAFTERS[1:] for rule in RULES for bridge in BRIDGES[1:]),
    ("model", "fuzzy", "retokenize"),
    ("model", "fuzzy", "string"),
    ("prompt_lookup", "fuzzy", "shared"),
}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    tokenizer = ALL["other_byte_bpe"]()
    return CausalLM(tiny.network(vocab_size=len(tokenizer), seed=1, num_hidden_layers=2), tokenizer, "target", None)


@pytest.fixture(scope="module")
def pairs(target: CausalLM) -> dict[str, ModelPair]:
    """For each bridge a draft model that fits it."""
    drafters = {}
    for bridge in BRIDGES:
        kind = {"shared": "other_byte_bpe", "string": "bytes_only"}.get(bridge, "byte_bpe")
        tokenizer = ALL[kind]()
        network = tiny.network(vocab_size=len(tokenizer), seed=2, num_hidden_layers=1)
        drafters[bridge] = ModelPair(target, CausalLM(network, tokenizer, f"drafter-{kind}", None))
    return drafters


def prompt_of(target: CausalLM) -> list[int]:
    return target.encode_prompt(TEXTS[0], chat=False)


def stop_of(target: CausalLM) -> StopRules:
    return StopRules(12, target.eos_token_ids)


@pytest.fixture(scope="module")
def plain(target: CausalLM) -> GenerationOutput:
    """The target's own greedy tokens."""
    decoder = build_decoder(load_method("ar"), ModelPair(target), Sampling(0.0))
    return decoder.generate(prompt_of(target), stop_of(target), seed=0)


@pytest.fixture(scope="module")
def ngram_folder(target: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ngram") / "model"
    documents = [target.text_vocabulary.encode(text) for text in TEXTS]
    build_ngram(documents, 2, target.vocab_size, folder, vocabulary_digest(target.vocabulary))
    return folder


def method(drafter: str, rule: str, bridge: str, folder: Path) -> MethodSpec:
    options = {"path": str(folder)} if drafter == "ngram" else {}
    data = {
        "name": "m", "version": 1, "title": "t", "num_draft_tokens": 3, "drafter": {"type": drafter, **options},
        "verification": {"rule": rule, **RULES[rule]}, "bridge": bridge,
    }  # fmt: skip
    return build(MethodSpec, data)


@pytest.mark.parametrize(("drafter", "rule", "bridge"), list(itertools.product(DRAFTERS, RULES, BRIDGES)))
def test_a_combination(
    drafter: str,
    rule: str,
    bridge: str,
    target: CausalLM,
    plain: GenerationOutput,
    pairs: dict[str, ModelPair],
    ngram_folder: Path,
) -> None:
    if (drafter, rule, bridge) in ILLEGAL:
        with pytest.raises(ConfigError, match=r"choose another|nothing to bridge"):
            method(drafter, rule, bridge, ngram_folder)
        return
    spec = method(drafter, rule, bridge, ngram_folder)
    assert spec.lossless == (rule in ("rejection", "exact_match"))
    for sampling in (Sampling(0.0), Sampling(0.8, top_k=20, top_p=0.95)):
        generation = build_decoder(spec, pairs[bridge], sampling).generate(prompt_of(target), stop_of(target), seed=0)
        assert sum(step.num_drafted for step in generation.steps) > 0
        if spec.lossless and sampling.greedy:
            assert generation.token_ids == plain.token_ids
