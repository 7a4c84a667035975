"""Heads that draft blocks: what new ones are made of, and that their files are read as they were trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import BlockHead, BlockModel
from specbench.models.heads.block_checkpoint import load_block
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.specs.components import build
from specbench.training.heads import DraftHead, read_by_target
from specbench.training.passes import Batch, Sample
from specbench.training.spec import TrainSpec
from tests.support import tiny
from tests.support.heads import (
    DFLASH,
    DOMINO,
    SPECULATORS_DSPARK,
    block_spec,
    block_tensors,
    check_is_written_again,
    save_head,
)

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
SAMPLES = [Sample("en", (*TEXT, 7, 9, 9, 3), 9)]


def target(kind: str = "llama", **more: Any) -> CausalLM:
    return tiny.causal_lm(kind, num_hidden_layers=8, **more)


def new_head(spec: TrainSpec, model: CausalLM) -> DraftHead:
    """A random head, whose corrections are random too."""
    head = DraftHead.of(spec, model)
    head.choose_vocabulary(spec, SAMPLES)
    torch.manual_seed(2)
    for parameter in head.own_parameters.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    head.model.eval().requires_grad_(False)
    return head


@torch.no_grad()
def logits_of(head: BlockHead, model: CausalLM) -> list[torch.Tensor]:
    """The logits of the draft tokens behind TEXT, given the ones before, and their confidence."""
    made = model.model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    block = BlockModel(head, 257, frozenset())
    block.read_target([made[layer][0] for layer in head.hidden_layers], range(len(TEXT) - 1))
    states, _ = block.read_block(TEXT, head.layout.num_drafts)
    memory, found = None, []
    for place, before in enumerate([TEXT[-1], 8, 200, 7][: len(states)]):
        state, token = states[place : place + 1], torch.tensor([before])
        correction, memory = head.correction(place, state, token, memory)
        base = head.base_logits(state)
        found.append(head.whole_logits(base if correction is None else base + correction, 257)[0])
        if head.has_confidence:
            found.append(torch.tensor([head.confidence(state, token)]))
    return found


LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # kind, its settings, some keys of the files
    "z-lab": (
        "dflash", {"mask_token_id": 250, "target_layer_ids": [1, 4]},
        {"architectures": ["DFlashDraftModel"], "block_size": 4, "num_target_layers": 8, "num_hidden_layers": 2,
         "dflash_config": {"mask_token_id": 250, "target_layer_ids": [1, 4]}},
    ),
    "speculators dflash": (
        "dflash", {"draft_vocab_size": 64},
        {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [2, 6], "sample_from_anchor": False,
         "draft_vocab_size": 64},
    ),
    "deepspec": (
        "dspark", {"markov_head_type": "gated"},
        {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [1, 5], "markov_rank": 6,
         "enable_confidence_head": True},
    ),
    "deepspec without confidence": ("dspark", {"confidence_weight": 0}, {"enable_confidence_head": False}),
    "speculators dspark": (
        "dspark", {"draft_vocab_size": 64, "markov_head_type": "rnn"},
        {"speculators_model_type": "dspark", "sample_from_anchor": True, "markov_head_type": "rnn"},
    ),
    "specforge": (
        "domino", {"target_layer_ids": [-1, 3, 6], "pure_draft_prefix_len": 1, "mask_token_id": 250},
        {"dflash_config": {
            "projector_type": "domino", "mask_token_id": 250, "target_layer_ids": [-1, 3, 6], "emb_dim": 7,
            "gru_hidden_dim": 5, "pure_draft_prefix_len": 1, "shift_label": False}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("model", ["llama", "scaled and padded embeddings"])
def test_a_head_is_read_as_it_was_trained(name: str, model: str, tmp_path: Path) -> None:
    kind, block, keys = LAYOUTS[name]
    loaded_by = target() if model == "llama" else target("gemma2", vocab_size=300)
    head = new_head(block_spec(kind, **block), loaded_by)
    expected = logits_of(head.model, loaded_by)
    head.save(tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.items() >= keys.items()
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.kind == kind
    again = load_block(checkpoint, loaded_by)
    assert again.layout == head.model.layout
    for ours, theirs in zip(logits_of(again, loaded_by), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    # Every tensor with a row for each of the target's tokens has as many as the configuration says.
    tensors = load_file(tmp_path / "model.safetensors")
    size = config.get("transformer_layer_config", config)["vocab_size"]
    assert size == loaded_by.padded_vocab_size
    for each in ("embed_tokens.weight", "markov_head.markov_w1.weight", "embed_proj.2.weight"):
        assert each not in tensors or len(tensors[each]) == size
    check_is_written_again(tmp_path, block_spec(kind, **block), head, loaded_by)


def test_a_new_head_drafts_by_the_target_s_frozen_output_layer_alone() -> None:
    model = target()
    for kind in ("dspark", "domino"):
        spec = block_spec(kind)
        head = DraftHead.of(spec, model)
        assert not {"embed_tokens.weight", "lm_head.weight"} & head.own_parameters.keys()
        state = torch.randn(3, 32)
        correction, _ = head.model.correction(0, state, torch.tensor([1, 2, 3]), None)
        assert not correction.any()
    spec = block_spec("dflash", draft_vocab_size=3)
    draft = DraftHead.of(spec, model)
    draft.choose_vocabulary(spec, SAMPLES)
    assert "lm_head.weight" not in draft.own_parameters
    tokens = (torch.arange(3) + draft.model.d2t).tolist()
    assert tokens == [3, 7, 9]
    assert torch.equal(draft.model.lm_head.weight, model.model.get_output_embeddings().weight[tokens])


def test_hidden_states_are_those_before_the_last_norm() -> None:
    """transformers gives the last layer's state after the norm, other programs before it."""
    model = target()
    states = model.model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    spec = block_spec("dflash", target_layer_ids=[-1, 2, 6])
    head = DraftHead.of(spec, model)
    assert head.model.hidden_layers == (0, 3, 7)
    found = read_by_target(model, Batch([Sample("en", (*TEXT, 1), 4)]), head.model)
    for ours, layer in zip(found.hidden, (0, 3, 7), strict=True):
        torch.testing.assert_close(ours, states[layer])
    layer = model.model.model.layers[6]
    given: list[torch.Tensor] = []
    layer.register_forward_hook(lambda *of: given.append(of[2] if torch.is_tensor(of[2]) else of[2][0]))
    read_by_target(model, Batch([Sample("en", (*TEXT, 1), 4)]), head.model)
    torch.testing.assert_close(given[0], found.hidden[2])  # the output of layer 6, as it is
    for wrong in ([1, 7], [4, 1], [2, 2]):
        with pytest.raises(
            ConfigError, match=r"dflash.target_layer_ids = .* from -1 \(the embeddings\) to 6, the last"
        ):
            DraftHead.of(block_spec("dflash", target_layer_ids=wrong), model)


@pytest.mark.parametrize(
    ("num_layers", "num_own", "expected"),
    [(8, 2, (2, 6)), (8, 1, (5,)), (4, 3, (2,)), (1, 5, (0,)), (36, 5, (2, 10, 18, 26, 34))],
)
def test_default_layers_exist(num_layers: int, num_own: int, expected: tuple[int, ...]) -> None:
    model = tiny.causal_lm(num_hidden_layers=num_layers)
    assert DraftHead.of(block_spec("dflash", num_layers=num_own), model).model.hidden_layers == expected


def test_the_mask_token_is_one_that_texts_do_not_have() -> None:
    samples = [Sample("en", tuple(token for token in range(257) if token not in (77, 99)), 1)]
    spec = block_spec("dflash")
    plain = DraftHead.of(spec, target())
    plain.choose_vocabulary(spec, samples)
    assert plain.model.layout.mask_token_id == 99
    padded = DraftHead.of(spec, target(vocab_size=300))
    padded.choose_vocabulary(spec, samples)
    assert padded.model.layout.mask_token_id == 257  # the first row that no token has
    given = block_spec("dflash", mask_token_id=257)
    draft = DraftHead.of(given, target())
    with pytest.raises(ConfigError, match=r"dflash.mask_token_id = 257: the embeddings of target .* have 257 rows"):
        draft.choose_vocabulary(given, samples)


def test_heads_that_trained_files_cannot_express_are_refused(tmp_path: Path) -> None:
    causal = {**DFLASH, "dflash_config": {**DFLASH["dflash_config"], "causal": True}}
    own_output = block_tensors(kind="domino", own=True)
    for name, config, tensors, kind, problem in (
        ("causal", causal, block_tensors(), "dflash", "its layers are causal or have windows"),
        ("own", DOMINO, own_output, "domino", "it has an output layer of its own"),
        ("other", SPECULATORS_DSPARK, block_tensors(kind="dspark", own=True, draft_vocab=64, confidence=False),
         "dflash", "of kind dspark, not dflash"),
    ):  # fmt: skip
        path = save_head(tmp_path / name, config, tensors)
        settings = block_spec(kind).model_dump(mode="json") | {"drafter": str(path)}
        with pytest.raises(ConfigError, match=problem):
            DraftHead.of(build(TrainSpec, settings), target())
