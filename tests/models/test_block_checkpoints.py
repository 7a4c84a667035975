"""Heads that draft blocks, in published layouts: their logits are those of plain loops, and what does not fit is
refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.drafters.blocks import BlockDrafter
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import BlockModel, LayerMask
from specbench.models.heads.block_checkpoint import load_block
from specbench.models.heads.checkpoints import read_checkpoint
from tests.support import tiny
from tests.support.heads import (
    BLOCK,
    DEEPSPEC,
    DFLASH,
    DOMINO,
    DRAFT_VOCAB,
    MASK,
    SPECULATORS_DSPARK,
    VOCAB,
    WIDTH,
    Draws,
    PlainBlock,
    Tensors,
    block_tensors,
    save_head,
)

Config = dict[str, Any]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
TOKENS = [35, 8, 9, 79]  # anchor and draft tokens


@cache
def target() -> CausalLM:
    model = tiny.causal_lm(num_hidden_layers=8)
    model.model.double()
    return model


@dataclass(frozen=True)
class Layout:
    """A published layout: the files, the plain network that they describe, and the hidden states that it reads."""

    config: Config
    tensors: Tensors
    plain: Callable[..., PlainBlock] = PlainBlock
    layers: tuple[int, ...] = (2, 5)
    kind: str = "dflash"


def plain(**options: Any) -> Callable[..., PlainBlock]:
    return lambda *given: PlainBlock(*given, **options)


def dflash(**more: Any) -> Config:
    """Keys of dflash_config; those of the layer are given as `layer`."""
    layer = more.pop("layer", {})
    return {**DFLASH, **layer, "dflash_config": {**DFLASH["dflash_config"], **more}}


def without(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


def speculators(**more: Any) -> Config:
    return {
        **without(SPECULATORS_DSPARK, "markov_rank", "markov_head_type"),
        "speculators_model_type": "dflash",
        **more,
    }


def sliding(**more: Any) -> Config:
    return {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5, **more}


def domino(**more: Any) -> Config:
    return {**DOMINO, "dflash_config": {**DOMINO["dflash_config"], **more}}


NEXT = plain(from_anchor=True)
MARKOV = {kind: block_tensors(kind="dspark", markov=kind, own=True) for kind in ("vanilla", "gated", "rnn")}
REDUCED = {"kind": "dspark", "own": True, "draft_vocab": DRAFT_VOCAB, "confidence": False}
LAYOUTS = {
    "z-lab": Layout(DFLASH, block_tensors()),
    "its default layers": Layout(
        {**DFLASH, "dflash_config": {"mask_token_id": MASK}}, block_tensors(), layers=(2, 6)
    ),
    "a prefix of NeMo": Layout(DFLASH, {f"model.{name}": value for name, value in block_tensors().items()}),
    "another rope": Layout(dflash(layer={"rope_theta": 1e6}), block_tensors(), plain(rope_theta=1e6)),
    "causal": Layout(
        dflash(causal=True), block_tensors(), plain(sees=lambda layer, row, place: place <= row)
    ),
    "a sliding layer": Layout(
        dflash(layer=sliding()), block_tensors(),
        plain(sees=lambda layer, row, place: layer == 0 or row - 4 <= place <= row),
    ),
    "a sliding layer that is not causal": Layout(
        dflash(layer=sliding(is_causal=False)), block_tensors(),
        plain(sees=lambda layer, row, place: layer == 0 or place >= row - 4),
    ),
    "deepspec dflash": Layout(
        without({**DEEPSPEC, "markov_rank": 0, "enable_confidence_head": False}, "markov_head_type"),
        block_tensors(own=True), NEXT,
    ),
    "deepspec embeddings": Layout(
        {**DEEPSPEC, "markov_rank": 0, "enable_confidence_head": False, "target_layer_ids": [-1, 4]},
        block_tensors(own=True), NEXT, (0, 5),
    ),
    **{
        f"dspark {kind}": Layout(
            {**DEEPSPEC, "markov_head_type": kind}, MARKOV[kind], plain(from_anchor=True, markov=kind), kind="dspark"
        )
        for kind in MARKOV
    },
    "specforge dspark": Layout(
        dflash(projector_type="dspark", markov_rank=6, markov_head_type="vanilla"),
        {
            f"logit_head.{name}" if "_head." in name else name: value
            for name, value in block_tensors(kind="dspark", confidence=False).items()
        }, NEXT, kind="dspark",
    ),
    "speculators dspark": Layout(SPECULATORS_DSPARK, block_tensors(**REDUCED), NEXT, kind="dspark"),
    "speculators dspark without the anchor": Layout(
        {**SPECULATORS_DSPARK, "sample_from_anchor": False}, block_tensors(**REDUCED), kind="dspark"
    ),
    "speculators dflash": Layout(speculators(), block_tensors(own=True, draft_vocab=DRAFT_VOCAB)),
    "speculators dflash with a window": Layout(
        speculators(transformer_layer_config={**BLOCK, **sliding()}, sliding_window_non_causal=True),
        block_tensors(own=True, draft_vocab=DRAFT_VOCAB),
        plain(sees=lambda layer, row, place: layer == 0 or place >= len(TEXT) - 5),
    ),
    "domino": Layout(DOMINO, block_tensors(kind="domino"), NEXT, kind="domino"),
    "domino without a shift": Layout(
        domino(shift_label=False, pure_draft_prefix_len=0), block_tensors(kind="domino"), plain(num_plain=0),
        kind="domino",
    ),
}  # fmt: skip


def features(layers: Sequence[int], text: Sequence[int] = TEXT) -> list[list[torch.Tensor]]:
    with torch.no_grad():
        made = target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return [[made[layer][0, place] for layer in layers] for place in range(len(text))]


def loaded(config: Config, tensors: Tensors, folder: Path) -> BlockModel:
    head = load_block(read_checkpoint(str(save_head(folder, config, tensors))), target())
    return BlockModel(head, VOCAB, frozenset())


@torch.no_grad()
def found_logits(model: BlockModel, tokens: Sequence[int]) -> list[torch.Tensor]:
    """The logits that the head gives after TEXT for each draft token, given the tokens before it."""
    states, _ = model.read_block([*TEXT, tokens[0]], 4)
    base, memory, found = model.head.base_logits(states), None, []
    for place, token in enumerate(tokens[: len(states)]):
        row = slice(place, place + 1)
        correction, memory = model.head.correction(place, states[row], torch.tensor([token]), memory)
        logits = base[row] if correction is None else base[row] + correction
        found.append(model.head.whole_logits(logits, VOCAB)[0])
    return found


def read_text(model: BlockModel, layers: Sequence[int], text: Sequence[int] = TEXT) -> None:
    rows = features(layers, text)
    model.read_target([torch.stack([row[number] for row in rows]) for number in range(len(layers))], range(len(text)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_plain_loops(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    checkpoint = read_checkpoint(str(save_head(tmp_path, layout.config, layout.tensors)))
    assert checkpoint.kind == layout.kind
    model = loaded(layout.config, layout.tensors, tmp_path)
    assert model.head.hidden_layers == layout.layers
    read_text(model, layout.layers)
    own = {name.removeprefix("model.").removeprefix("logit_head."): value for name, value in layout.tensors.items()}
    embeddings = own.get("embed_tokens.weight", target().model.get_input_embeddings().weight.data)
    lm_head = own.get("lm_head.weight", target().model.get_output_embeddings().weight.data)
    network = layout.plain(own, embeddings, lm_head)
    expected = network.logits(features(layout.layers), TOKENS)
    found = found_logits(model, TOKENS)
    num_drafts = 4 if network.from_anchor and layout.kind != "domino" else 3
    assert len(found) == model.head.layout.num_drafts == num_drafts
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=f"draft token {place}")


WRONG = {  # misreadings of a layout: the plain network with one of them differs
    "the other alignment": ("z-lab", {"from_anchor": True}),
    "causal in the block": ("z-lab", {"sees": lambda layer, row, place: place <= row}),
    "the anchor in the context": ("z-lab", {"sees": lambda layer, row, place: place != len(TEXT)}),
    "the window of SpecForge": (
        "speculators dflash with a window", {"sees": lambda layer, row, place: layer == 0 or place >= row - 4}
    ),
    "no correction of the first token": ("domino without a shift", {"num_plain": 1}),
    "another correction": ("dspark gated", {"markov": "vanilla"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_misreading_has_other_logits(name: str, tmp_path: Path) -> None:
    of, change = WRONG[name]
    layout = LAYOUTS[of]
    model = loaded(layout.config, layout.tensors, tmp_path)
    read_text(model, layout.layers)
    embeddings = layout.tensors.get("embed_tokens.weight", target().model.get_input_embeddings().weight.data)
    lm_head = layout.tensors.get("lm_head.weight", target().model.get_output_embeddings().weight.data)
    network = replace(layout.plain(layout.tensors, embeddings, lm_head), **change)
    expected = network.logits(features(layout.layers), TOKENS)
    assert not torch.allclose(found_logits(model, TOKENS)[0], expected[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["z-lab", "dspark rnn", "domino", "a sliding layer"])
@torch.no_grad()
def test_drafting_step_by_step_is_reading_everything_anew(name: str, tmp_path: Path) -> None:
    """Neither keys and values of a block nor the memory of a correction pass from step to step."""
    layout = LAYOUTS[name]
    model = loaded(layout.config, layout.tensors, tmp_path)
    text = list(range(40, 64))
    rows = features(layout.layers, text)
    end = 6
    model.read_target([torch.stack([row[n] for row in rows[:end]]) for n in range(2)], range(end))
    drafter = BlockDrafter(model, Sampling(0.0))
    for num_new in (1, 3, 2, 4, 1, 5):
        stepwise = drafter.propose(text[: end + 1], 3, torch.Generator())
        fresh = loaded(layout.config, layout.tensors, tmp_path)
        fresh.read_target([torch.stack([row[n] for row in rows[:end]]) for n in range(2)], range(end))
        anew = BlockDrafter(fresh, Sampling(0.0)).propose(text[: end + 1], 3, torch.Generator())
        assert isinstance(stepwise.probs, Distributions) and isinstance(anew.probs, Distributions)
        assert stepwise.token_ids == anew.token_ids
        torch.testing.assert_close(stepwise.probs.logits, anew.probs.logits)
        states = [torch.stack([row[n] for row in rows[: end + num_new + 2]]) for n in range(2)]
        model.read_target(states, range(end, end + num_new))  # the pass has read tokens that were rejected, too
        end += num_new


@torch.no_grad()
def test_only_later_corrections_see_a_token(tmp_path: Path) -> None:
    """A factorised head ignores the draft tokens; in a chain the distribution of a token depends on those before it."""
    for name in ("z-lab", "dspark vanilla", "dspark rnn", "domino"):
        layout = LAYOUTS[name]
        first, second = loaded(layout.config, layout.tensors, tmp_path), loaded(layout.config, layout.tensors, tmp_path)
        for model in (first, second):
            read_text(model, layout.layers)
        before = found_logits(first, [35, 8, 9, 79])
        after = found_logits(second, [35, 8, 200, 79])
        changed = [not torch.allclose(a, b) for a, b in zip(before, after, strict=True)]
        # Draft token 2, at place 1, is changed: those after it are corrected.
        assert changed == [False] * len(changed) if name == "z-lab" else changed[:2] == [False] * 2 and changed[2]


def test_a_mask_token_may_pad_the_vocabulary(tmp_path: Path) -> None:
    """As with Qwen3, whose tokenizer ends before the mask token; rows beyond the tokenizer are never drafted."""
    model = tiny.causal_lm(num_hidden_layers=8, vocab_size=300)
    config = {**dflash(mask_token_id=280), "vocab_size": 300}
    head = load_block(read_checkpoint(str(save_head(tmp_path, config, block_tensors()))), model)
    assert head.layout.mask_token_id == 280 and head.layout.draft_vocab_size == VOCAB
    assert head.base_logits(torch.ones(2, WIDTH)).shape == (2, VOCAB)


HIDDEN = "hidden_norm.weight"
REFUSED: dict[str, tuple[Config, Tensors, str]] = {
    "no mask token": (without(DFLASH, "dflash_config"), block_tensors(), "config.json has no mask_token_id"),
    "a mask token that has no row": (dflash(mask_token_id=257), block_tensors(), "the embeddings have 257 rows"),
    "two mask tokens": ({**DFLASH, "mask_token_id": 3}, block_tensors(), "mask_token_id 3, and in dflash_config 250"),
    "no block size": (without(DFLASH, "block_size"), block_tensors(), "no block_size: expected a whole number from 2"),
    "a block of one": ({**DFLASH, "block_size": 1}, block_tensors(), "has 1 as block_size"),
    "a block beyond all bounds": ({**DFLASH, "block_size": 10**12}, block_tensors(), "whole number from 2 to 256"),
    "a layer with a huge number": (
        DFLASH, {**block_tensors(), "layers.99999999999.norm.weight": torch.ones(2)}, "unknown tensor layers.9999",
    ),
    "the last layer": (dflash(target_layer_ids=[1, 7]), block_tensors(), r"hidden states \[2, 8\].*0 to 7 before its"),
    "layers that are none": (dflash(target_layer_ids=["1"]), block_tensors(), "target_layer_ids .*expected a list"),
    "other layers": (dflash(target_layer_ids=[1, 2, 3]), block_tensors(), "fc.weight reads 64 values, and 3 hidden"),
    "speculators without layers": (
        without(speculators(), "aux_hidden_state_layer_ids"), block_tensors(own=True, draft_vocab=DRAFT_VOCAB),
        "has aux_hidden_state_layer_ids None",
    ),
    "another target": ({**DFLASH, "num_target_layers": 36}, block_tensors(), "num_target_layers = 36, and target"),
    "another vocabulary": ({**DFLASH, "vocab_size": 9}, block_tensors(), "its vocabulary has 9 tokens"),
    "another number of layers": ({**DFLASH, "num_hidden_layers": 5}, block_tensors(), "num_hidden_layers 5, and the"),
    "a gap in the layers": (
        DFLASH, {name.replace("layers.1", "layers.2"): value for name, value in block_tensors().items()},
        r"num_hidden_layers 2, and the file has the layers \[0, 2\]",
    ),
    "an unknown tensor": (
        DFLASH, {**block_tensors(), "mask_embedding": torch.ones(WIDTH)}, "unknown tensor mask_embedding",
    ),
    "fused projections": (
        DFLASH, {**block_tensors(), "layers.0.self_attn.qkv_proj.weight": torch.ones(64, WIDTH)},
        "unknown tensor layers.0.self_attn.qkv_proj.weight",
    ),
    "a missing tensor": (
        DFLASH, without(block_tensors(), "layers.1.self_attn.k_norm.weight"),
        r"missing tensor layers.1.self_attn.k_norm.weight \[8\]",
    ),
    "a reduced vocabulary without d2t": (
        speculators(), without(block_tensors(own=True, draft_vocab=DRAFT_VOCAB), "d2t"), "no tensor d2t says which",
    ),
    "sinks": (dflash(attention_sink_bias=True), block_tensors(), "attention_sink_bias = true is not supported"),
    "a window by another key": (dflash(use_swa=True), block_tensors(), "use_swa = true is not supported"),
    "rotation of neighbours": (dflash(layer={"is_neox_style": False}), block_tensors(), "is_neox_style = false"),
    "a soft cap": (dflash(layer={"final_logit_softcapping": 30.0}), block_tensors(), "final_logit_softcapping = 30.0"),
    "scaled embeddings": (dflash(input_embedding_scale=2.0), block_tensors(), "input_embedding_scale = 2.0"),
    "a part of the rope": (dflash(layer={"partial_rotary_factor": 0.25}), block_tensors(), "partial_rotary_factor"),
    "a text for a boolean": (dflash(causal="no"), block_tensors(), "config.json has causal 'no', expected true or"),
    "two causalities": (dflash(causal=True, layer={"is_causal": False}), block_tensors(), "is_causal and dflash"),
    "a sliding layer without a window": (
        dflash(layer=sliding(sliding_window=None)), block_tensors(), "has sliding_window None",
    ),
    "a window that is switched off": (
        dflash(layer=sliding(use_sliding_window=False)), block_tensors(), "use_sliding_window false, and layer_types",
    ),
    "layer types of another number": (
        dflash(layer={"layer_types": ["full_attention"]}), block_tensors(), "has layer_types .*expected 2 of",
    ),
    "a window of speculators": (
        speculators(transformer_layer_config={**BLOCK, **sliding()}), block_tensors(own=True, draft_vocab=DRAFT_VOCAB),
        "no sliding_window_non_causal, whose default differs between programs",
    ),
    "a correction that is not there": (
        dflash(projector_type="domino"), block_tensors(), "says 'domino', and its tensors are those of dflash: missing",
    ),
    "a correction that is not told": (
        dflash(projector_type="domino"), block_tensors(kind="dspark"), "says 'domino', and its tensors are those of ds",
    ),
    "a Markov head that is not there": (DEEPSPEC, block_tensors(own=True), "says 'dspark', and its tensors are those"),
    "another rank": ({**DEEPSPEC, "markov_rank": 8}, MARKOV["vanilla"], "has markov_rank 8, and .*has 6 columns"),
    "a Markov head of another type": ({**DEEPSPEC, "markov_head_type": "gated"}, MARKOV["vanilla"], "missing tensor m"),
    "an unknown Markov head": ({**DEEPSPEC, "markov_head_type": "rmn"}, MARKOV["vanilla"], "did you mean 'rnn'"),
    "confidence that is not there": (
        DEEPSPEC, block_tensors(kind="dspark", own=True, confidence=False), "enable_confidence_head true, and the file",
    ),
    "confidence without the token": (
        {**DEEPSPEC, "confidence_head_with_markov": False}, MARKOV["vanilla"], r"has shape \[1, 38\], expected \[1, 32",
    ),
    "a Domino without sizes": (
        {**DOMINO, "dflash_config": without(DOMINO["dflash_config"], "emb_dim")}, block_tensors(kind="domino"),
        "has no emb_dim",
    ),
    "lossy acceptance": (
        {**SPECULATORS_DSPARK, "speculators_config": {"proposal_methods": [{"verifier_accept_k": 2}]}},
        block_tensors(**REDUCED), "verifier_accept_k 2, which describes a lossy verification: set it to 1",
    ),
    "tolerant acceptance": (
        {**SPECULATORS_DSPARK, "speculators_config": {"proposal_methods": [{"accept_tolerance": 0.1}]}},
        block_tensors(**REDUCED), "accept_tolerance 0.1",
    ),
    "values that are none": (DFLASH, {**block_tensors(), HIDDEN: torch.full((WIDTH,), torch.nan)}, "holds NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    config, tensors, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as error:
        loaded(config, tensors, tmp_path)
    assert str(error.value).startswith("drafter.path = '") and "\n" not in str(error.value)


def test_a_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(str(save_head(tmp_path, DOMINO, block_tensors(kind="domino"))))
    with pytest.raises(ConfigError, match="of kind domino, not dflash: use a method of domino"):
        checkpoint.expect("dflash")


def test_masks_of_windows() -> None:
    visible = LayerMask(window=3).visible(4, 3, torch.device("cpu"))
    assert visible is not None
    assert visible.int().tolist() == [[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert LayerMask().visible(4, 3, torch.device("cpu")) is None


def test_the_confidence_is_that_of_the_formula(tmp_path: Path) -> None:
    layout = LAYOUTS["dspark vanilla"]
    model = loaded(layout.config, layout.tensors, tmp_path)
    state = Draws(3)(1, WIDTH).double()
    read = torch.cat([state[0], layout.tensors["markov_head.markov_w1.weight"][8].double()])
    raw = layout.tensors["confidence_head.proj.weight"][0].double() @ read + layout.tensors["confidence_head.proj.bias"]
    assert model.head.has_confidence
    assert model.head.confidence(state, torch.tensor([8])) == pytest.approx(float(torch.sigmoid(raw)), rel=1e-5)
