"""Bridges on real tokenizers: the emitted ids are AR's, contexts are translated, no special token crosses.

Most models look their logits up; real networks decode through every bridge in test_combinations.py."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from specbench.analysis.vocab.vocab import injectivity
from specbench.core.errors import ConfigError
from specbench.decoding.bridges import Translation, VocabularyMismatch, common_ids, shared
from specbench.decoding.bridges.token_level import SharedTokens
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.scoring import Output, ScoringModel
from specbench.models.vocabulary import Vocabulary
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support import tiny, tokenizers_made_here
from tests.support.bridges import GREEDY, RowsModel, generate
from tests.support.tokenizers_made_here import ALL, EXACT, TEXTS

BRIDGED = ("tli", "union", "slem")


@cache
def tokenizer_of(kind: str) -> Any:
    return ALL[kind]()


@cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(kind))


def model(kind: str, seed: int = 0) -> RowsModel:
    made = RowsModel(tokenizer_of(kind), f"rows-{kind}", seed)
    made.text_vocabulary = vocabulary_of(kind)
    return made


def pair_of(target: RowsModel, drafter: ScoringModel) -> ModelPair:
    return ModelPair(target, drafter)  # type: ignore[arg-type]


def small(seed: int = 0, **options: Any) -> CausalLM:
    return tiny.causal_lm(seed=seed, num_hidden_layers=1, **options)


def test_equal_vocabularies_pass_the_drafter_on() -> None:
    pair = ModelPair(small(), small(1))
    drafter = object()
    assert shared(pair, GREEDY, lambda model: drafter) is drafter  # type: ignore[arg-type, return-value]


def test_wider_logits_do_not_matter() -> None:
    pair = ModelPair(small(), small(vocab_size=512))
    assert shared(pair, GREEDY, lambda model: "drafter") == "drafter"  # type: ignore[arg-type, return-value]


def test_same_tokenizer_but_narrower_output_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match=r"257 tokens, 250 logits.*257 tokens, 257 logits"):
        shared(ModelPair(small(), small(vocab_size=250)), GREEDY, None)  # type: ignore[arg-type]


def test_other_vocabulary_is_refused_with_both_sizes() -> None:
    other = CausalLM(tiny.network(vocab_size=260, num_hidden_layers=1), tiny.tokenizer(num_extra=3), "other", None)
    with pytest.raises(VocabularyMismatch, match=r"'other' \(260 .*'tiny-llama' \(257 .*; 256 tokens in common"):
        shared(ModelPair(small(), other), GREEDY, None)  # type: ignore[arg-type]
    with pytest.raises(VocabularyMismatch, match=r"\(257 tokens, 257 logits; 257 tokens in common"):
        shared(ModelPair(small(), with_added(3)), GREEDY, None)  # type: ignore[arg-type]


def with_added(num_extra: int, seed: int = 1, **options: Any) -> CausalLM:
    """A model whose vocabulary has all tokens of `tiny.tokenizer()`, and added ones behind them."""
    made = tiny.tokenizer()
    made.add_tokens([f"<extra {number}>" for number in range(num_extra)])
    network = tiny.network(seed=seed, vocab_size=len(made), num_hidden_layers=1, **options)
    return CausalLM(network, made, f"with-{num_extra}", None)


@pytest.mark.parametrize("method", ["sd", "sd-tree", "fsd", "synthetic"])
@pytest.mark.parametrize("has_more", ["drafter", "target"])
def test_a_few_added_tokens_are_never_drafted(method: str, has_more: str) -> None:
    """257 tokens beside 259, either way. The text holds a token that the drafter lacks, whose last byte it reads."""
    few, more = small(), with_added(2)
    target, drafter = (few, more) if has_more == "drafter" else (more, few)
    prompt = [*target.encode_prompt("A text", chat=False), *([257] if has_more == "target" else [])]
    decoder = build_decoder(load_method(method), ModelPair(target, drafter), GREEDY)
    assert isinstance(decoder, DraftingDecoder)
    read: list[list[int]] = []
    score = drafter.sequence.score
    drafter.sequence.score = lambda ids, *given: read.append(ids) or score(ids, *given)  # type: ignore[method-assign]
    made = decoder.generate(prompt, StopRules(16), seed=1)
    assert sum(step.num_drafted for step in made.steps) > 0
    if method != "fsd":
        plain = build_decoder(load_method("ar"), ModelPair(target), GREEDY)
        assert made.token_ids == plain.generate(prompt, StopRules(16), seed=1).token_ids
    if has_more == "target":
        assert target.vocabulary["<extra 0>"] == 257 and {ids[6] for ids in read} == {drafter.vocabulary[">"]}
    if method == "sd":
        drafted = decoder.drafter.propose(prompt, 1, torch.Generator().manual_seed(0))
        assert isinstance(drafted.probs, Distributions) and drafted.probs.raw_probs.shape[-1] == target.vocab_size
        assert (drafted.probs.raw_probs > 0).sum() == 257


def test_ids_are_common_if_they_mean_the_same_bytes() -> None:
    """The same strings under the same ids, which one decoder reads as bytes and the other as characters."""
    byte_level = small()
    characters = {token: i for token, i in byte_level.vocabulary.items() if i < 256}
    backend = Tokenizer(models.BPE(characters, merges=[]))
    backend.decoder = decoders.Fuse()
    tokenizer = tokenizers_made_here.wrap(backend, eos_token="<|end|>")
    tokenizer.add_tokens(["<extra>"])
    network = tiny.network(vocab_size=258, num_hidden_layers=1)
    common = common_ids(byte_level, CausalLM(network, tokenizer, "characters", None))
    assert common is not None
    assert {"a", "<|end|>"} < {token for token, i in byte_level.vocabulary.items() if i in common}
    assert byte_level.vocabulary["Ġ"] not in common and len(common) < 257


def test_another_number_of_logits_is_shared_where_both_have_one() -> None:
    narrow = small(vocab_size=255)
    assert common_ids(small(), narrow) == frozenset(range(255))
    made = build_decoder(load_method("sd"), ModelPair(small(), narrow), GREEDY).generate([1, 256], StopRules(8), 1)
    assert len(made.token_ids) == 8


def with_methods(pairs: list[tuple[str, str]]) -> Iterator[Any]:
    """Every pair of tokenizers with every method; the fast tests have one method of each pair in turn."""
    for number, (ours, theirs) in enumerate(pairs):
        for place, method in enumerate(BRIDGED):
            marks = [pytest.mark.slow] * (number % len(BRIDGED) != place)
            yield pytest.param(method, ours, theirs, marks=marks)


@pytest.mark.parametrize(
    ("method", "ours", "theirs"),
    list(with_methods([(a, b) for a in ("byte_bpe", "sentencepiece") for b in ALL if a != b])),
)
def test_greedy_output_is_that_of_the_target(method: str, ours: str, theirs: str) -> None:
    """Random models write text that is not text: incomplete characters, rare segmentations, special tokens."""
    pair = pair_of(model(ours, 1), model(theirs, 2))
    prompt = pair.target.encode_prompt(TEXTS[3], chat=False)
    assert generate(method, pair, prompt).token_ids == generate("ar", pair, prompt).token_ids


@settings(max_examples=8, deadline=None)
@given(
    st.text(min_size=1, max_size=40), st.sampled_from((*BRIDGED, "slrs")), st.sampled_from(sorted(ALL)),
    st.sampled_from(sorted(ALL)), st.integers(0, 3),
)  # fmt: skip
def test_any_prompt_and_any_pair(text: str, method: str, ours: str, theirs: str, seed: int) -> None:
    """String-level rejection sampling drafts with the tokenizer that it is for, of one token per byte."""
    pair = pair_of(model(ours, seed), model("bytes_only" if method == "slrs" else theirs, seed + 7))
    prompt = pair.target.encode_prompt(text, chat=False)
    assume(prompt)  # some tokenizers drop what is only spaces
    assert generate(method, pair, prompt, 12).token_ids == generate("ar", pair, prompt, 12).token_ids


class Permuted(ScoringModel):
    """The target with its ids renamed: row i of the output is token order[i]."""

    def __init__(self, target: RowsModel, order: torch.Tensor) -> None:
        self._target, self._order = target, order
        self._place = torch.argsort(order)
        inner = target.text_vocabulary
        self.text_vocabulary = PermutedVocabulary(inner, order.tolist())
        self.name, self.vocab_size, self.context_limit = "permuted", target.vocab_size, target.context_limit
        self.passes = target.passes
        self.eos_token_ids = frozenset(int(self._place[token]) for token in target.eos_token_ids)

    def reset(self) -> None:
        self._target.reset()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return Output(self._target.score(self._order[ids].tolist(), num_logits).logits[:, self._order])


class PermutedVocabulary:
    def __init__(self, inner: Vocabulary, order: list[int]) -> None:
        place = {token: i for i, token in enumerate(order)}
        self._rename = lambda ids: None if ids is None else [place[token] for token in ids]
        self._inner = inner
        self.token_bytes = [inner.token_bytes[token] for token in order]
        self.plain = [inner.plain[token] for token in order]
        self.id_of = {written: place[token] for written, token in inner.id_of.items()}
        self.bos_ids = self._rename(inner.bos_ids)

    def encode(self, text: str) -> list[int]:
        return self._rename(self._inner.encode(text))

    def encode_after(self, before: str, text: str) -> list[int] | None:
        return self._rename(self._inner.encode_after(before, text))

    def to_bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.token_bytes[index] or b"" for index in ids)


def permuted_pair(target: RowsModel, copy: RowsModel, seed: int) -> ModelPair:
    order = torch.randperm(target.vocab_size, generator=torch.Generator().manual_seed(seed))
    return pair_of(target, Permuted(copy, order))


def plain_model(kind: str) -> RowsModel:
    """A model that never emits what cannot cross: special tokens, and byte tokens of characters with their own."""
    made = model(kind, 3)
    is_plain = torch.zeros(made.vocab_size, dtype=torch.bool)
    is_plain[list(made.text_vocabulary.id_of.values())] = True
    made.rows[:, ~is_plain] = float("-inf")
    return made


@pytest.mark.parametrize("method", ["tli", "union"])
@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece_without_prefix", "bytes_only"])
def test_the_permuted_oracle_is_always_right(method: str, temperature: float, kind: str) -> None:
    """The target with renamed ids as the drafter: every verified token is accepted, also where the sampled tokens are
    not cut as the tokenizer would cut them."""
    pair = permuted_pair(plain_model(kind), plain_model(kind), 5)
    prompt = pair.target.encode_prompt(TEXTS[0], chat=False)
    steps = generate(method, pair, prompt, 40, Sampling(temperature)).steps
    assert sum(step.num_verified for step in steps) > 20
    assert sum(step.num_accepted for step in steps) == sum(step.num_verified for step in steps)


@pytest.mark.parametrize("ours", sorted(EXACT))
@pytest.mark.parametrize("theirs", sorted(EXACT))
def test_a_context_is_what_the_drafter_would_read(ours: str, theirs: str) -> None:
    """A text that grows token by token is translated to the tokens that the draft tokenizer writes for it, wherever
    what was read so far is a whole text."""
    target, draft = vocabulary_of(ours), vocabulary_of(theirs)
    for text in TEXTS:
        ids = target.encode(text)
        translation = Translation(target, draft)
        translation.start(ids[:5])
        for end in range(6, len(ids) + 1, 7):
            translation.read(ids[:end])
        draft_ids, num_held = translation.read(ids)
        assert num_held == 0
        assert draft.text(draft_ids)[0] == text
        assert draft_ids == draft.bos_ids + draft.encode(text)


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=60), st.sampled_from(sorted(ALL)), st.sampled_from(sorted(ALL)), st.data())
def test_a_text_comes_back_through_a_pair_that_is_injective_on_it(
    text: str, ours: str, theirs: str, data: st.DataObject
) -> None:
    """What `specbench vocab` calls injective, read in two parts."""
    pair = [(tokenizer_of(name), vocabulary_of(name)) for name in (ours, theirs)]
    reports = [injectivity(tokenizer, vocabulary, [text]) for tokenizer, vocabulary in pair]
    assume(not any(report.num_changed_by_bridges for report in reports))
    target, draft = (vocabulary for _, vocabulary in pair)
    ids = target.encode(text)
    translation = Translation(target, draft)
    translation.start(ids[: data.draw(st.integers(0, len(ids)))])
    draft_ids, num_held = translation.read(ids)
    assert num_held == 0
    assert draft.text(draft_ids)[0] == text


def test_only_the_tail_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = vocabulary_of("byte_bpe"), vocabulary_of("other_byte_bpe")
    ids = target.encode(" ".join(TEXTS[:4]) * 3)
    lengths: list[int] = []
    encode = Vocabulary.encode
    monkeypatch.setattr(Vocabulary, "encode", lambda self, text: (lengths.append(len(text)), encode(self, text))[1])
    translation = Translation(target, draft)
    translation.start(ids[:200])
    lengths.clear()
    for end in range(201, len(ids)):
        translation.read(ids[:end])
    assert max(lengths) < 200  # of more than a thousand characters


def test_special_and_added_tokens_never_cross() -> None:
    ours, theirs = model("byte_bpe_with_added"), model("byte_bpe_with_bos")
    common = SharedTokens(ours, theirs)
    names = ours.tokenizer.convert_ids_to_tokens(list(common.target_of.values()))
    assert not {"<|end|>", "<|start|>", "<think>", "garçon naïf"} & set(names)
    assert len(common.target_of) > 200
    for draft_id, target_id in common.target_of.items():
        written = theirs.text_vocabulary.token_bytes[draft_id]
        assert written == ours.text_vocabulary.token_bytes[target_id]


def test_vocabularies_without_a_common_token_are_refused() -> None:
    class Other:
        name, vocab_size, eos_token_ids = "other", 3, frozenset({2})
        text_vocabulary = type("V", (), {"id_of": {b"\xf8\xf9": 0}})()

    with pytest.raises(ConfigError, match="'other' has no token in common with target 'tiny-llama'"):
        SharedTokens(small(), Other())  # type: ignore[arg-type]


def test_a_prompt_beyond_the_drafters_context_is_refused() -> None:
    pair = pair_of(model("byte_bpe"), model("bytes_only"))
    prompt = pair.target.encode_prompt(TEXTS[0] * 6, chat=False)
    assert len(prompt) < 512
    with pytest.raises(ConfigError, match="but its context is 512 tokens; use a drafter with a longer context"):
        generate("slem", pair, prompt)


def test_where_the_drafters_context_ends_decoding_goes_on() -> None:
    pair = pair_of(model("byte_bpe", 3), model("bytes_only", 2))
    text = (TEXTS[0] * 6)[:500]
    prompt = pair.target.encode_prompt(text, chat=False)
    generation = generate("slem", pair, prompt, 40)
    assert generation.token_ids == generate("ar", pair, prompt, 40).token_ids
    assert generation.steps[-1].num_drafted == 0 < sum(step.num_drafted for step in generation.steps)


def method(**keys: object) -> MethodSpec:
    return build(MethodSpec, {"name": "m", "version": 1, "title": "t", "num_draft_tokens": 3, **keys})


def test_what_a_bridge_cannot_carry_is_refused() -> None:
    fuzzy = {"rule": "fuzzy", "divergence": "js", "threshold": 0.1}
    with pytest.raises(ConfigError, match="needs raw_probs, which bridge 'retokenize' cannot carry"):
        method(drafter={"type": "model"}, verification=fuzzy, bridge="retokenize")
    with pytest.raises(ConfigError, match="bridge = 'union': drafter 'none' drafts the target's own tokens"):
        method(drafter={"type": "none"}, verification={"rule": "rejection"}, bridge="union", num_draft_tokens=0)
    method(drafter={"type": "model"}, verification=fuzzy, bridge="intersection")


@pytest.mark.parametrize("bridge", ["intersection", "union"])
def test_fuzzy_rules_work_through_token_bridges(bridge: str) -> None:
    """At T = 0 nothing is accepted and the output is AR's; at infinity everything but foreign tokens is."""
    pair = pair_of(model("byte_bpe", 1), model("other_byte_bpe", 2))
    prompt = pair.target.encode_prompt(TEXTS[1], chat=False)
    fuzzy = {"rule": "fuzzy", "divergence": "js"}
    outputs = {}
    for threshold in (0.0, float("inf")):
        spec = method(drafter={"type": "model"}, verification={**fuzzy, "threshold": threshold}, bridge=bridge)
        outputs[threshold] = build_decoder(spec, pair, GREEDY).generate(prompt, StopRules(12), seed=1)
    assert outputs[0.0].token_ids == generate("ar", pair, prompt).token_ids
    assert sum(step.num_accepted for step in outputs[0.0].steps) == 0
    accepted = sum(step.num_accepted for step in outputs[float("inf")].steps)
    verified = sum(step.num_verified for step in outputs[float("inf")].steps)
    assert 0 < accepted <= verified
    assert accepted == verified or bridge == "union"
