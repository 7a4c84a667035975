"""New draft heads, and what they start with: random weights, or parts of the target."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import (
    BlockHead,
    BlockLayout,
    DominoHead,
    DominoLayout,
    DSparkHead,
    LayerMask,
    MarkovLayout,
)
from specbench.models.heads.block_checkpoint import default_layer_ids, load_block
from specbench.models.heads.checkpoints import HeadCheckpoint
from specbench.models.heads.eagle import EagleHead, EagleLayout
from specbench.models.heads.medusa import MedusaHeads
from specbench.models.heads.mtp import MtpLayerHead, mtp_layout
from specbench.models.heads.parallel import ParallelEagleHead
from specbench.training.passes import Sample
from specbench.training.spec import MedusaSpec, MtpSpec, PEagleSpec, TrainSpec

OUTPUT_SCALE = 0.4  # new Medusa output layer ÷ the target's: the target's layer is too sharp at first
NORM_SCALE = 0.5  # norm before the output layer of a new head ÷ the target's, for the same reason
SHAPE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip


def shape_of(target: CausalLM, fields: Sequence[str]) -> dict[str, Any]:
    given = target.model.config.get_text_config()
    return {name: getattr(given, name) for name in fields if getattr(given, name, None) is not None}


def output_weight(target: CausalLM) -> Tensor:
    """Returns the weight of the target's output layer: [vocab_size, width]."""
    weight: Tensor = target.model.get_output_embeddings().weight
    return weight.detach()[: target.vocab_size]


def new_medusa(spec: MedusaSpec, target: CausalLM) -> MedusaHeads:
    """Returns heads with scaled copies of the target's output layer, or with that layer itself."""
    weight = output_weight(target)
    heads = MedusaHeads(spec.num_heads, spec.num_blocks, weight.shape[1], len(weight) if spec.own_output else 1)
    if spec.own_output:
        for output in heads.output_layers():
            output.weight.data = OUTPUT_SCALE * weight.float()
    else:
        heads.vocab_size = len(weight)
        heads.share_output(target.model.get_output_embeddings())
    return heads


def new_eagle(spec: TrainSpec, target: CausalLM) -> EagleHead:
    """Returns a head with random weights; for EAGLE-3, with the target's output layer and a scaled norm, and in a warm
    start with the target's last layer."""
    is_third = spec.eagle3 is not None
    config, layout = decoder_layer_of(target, generation=3 if is_third else 1)
    if spec.eagle3 is not None and spec.eagle3.norm_output:
        layout = replace(layout, norm_per_layer=True, norm_output=True)
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    head = EagleHead(config, layout, embed_tokens, None if is_third else lm_head)
    if spec.eagle3 is not None:
        start_output(head, target)
        if spec.eagle3.warm_start:
            start_warm(head, target)
    return head


def new_peagle(spec: PEagleSpec, target: CausalLM) -> ParallelEagleHead:
    """Returns a head that starts as a new EAGLE-3 head does, with a copy of the target's embeddings and a random state
    of the mask tokens. The layers after the first change nothing yet. Its mask token is chosen later."""
    config, layout = decoder_layer_of(target, generation=3)
    num_rows = target.padded_vocab_size
    embed_tokens = nn.Embedding(num_rows, config.hidden_size)
    with torch.no_grad():  # some targets scale their embeddings, and the head does not
        embed_tokens.weight.copy_(target.model.get_input_embeddings()(torch.arange(num_rows, device=target.device)))
    head = ParallelEagleHead(config, layout, embed_tokens, spec.num_layers, spec.mask_token_id or 0)
    nn.init.normal_(head.mask_hidden)
    later: Any = head.layers.values()
    for layer in later:
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            nn.init.zeros_(last.weight)
    start_output(head, target)
    if spec.warm_start:
        start_warm(head, target)
    return head


def new_mtp(spec: MtpSpec, target: CausalLM) -> MtpLayerHead:
    """Returns a random layer of the target's shape, with a scaled norm. With the target's last layer in it, a layer
    learns faster for a few steps and then more slowly."""
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    head = MtpLayerHead(qwen3_layers(target, 1), mtp_layout(target), embed_tokens, lm_head)
    head.num_drafts = spec.num_draft_steps
    scale_norm(head.layer.final_layernorm, target)
    return head


def decoder_layer_of(target: CausalLM, generation: Literal[1, 3]) -> tuple[LlamaConfig, EagleLayout]:
    """Returns the configuration of a decoder layer of the target's shape, and the layout of a head of EAGLE's
    generation."""
    given = target.model.config.get_text_config()
    fields = (*SHAPE, "head_dim", "rope_parameters", "bos_token_id", "eos_token_id")
    config = LlamaConfig(
        vocab_size=given.vocab_size, num_hidden_layers=1, tie_word_embeddings=False, **shape_of(target, fields)
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    num_layers = given.num_hidden_layers
    layers = (min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0))  # a target may have fewer than five
    layout = EagleLayout(
        generation=generation,
        hidden_layers=layers if generation == 3 else (num_layers,),
        target_width=given.hidden_size,
        draft_vocab_size=target.vocab_size,
    )
    return config, layout


def start_output(head: EagleHead, target: CausalLM) -> None:
    """Gives a head with an output layer of its own the target's, and a scaled norm before it."""
    head.lm_head.weight = nn.Parameter(output_weight(target).float().clone())
    scale_norm(head.norm, target)


def scale_norm(norm: nn.Module, target: CausalLM) -> None:
    """Gives the norm before an output layer the gain of the target's last RMS norm, scaled."""
    norms = [module for module in target.model.modules() if type(module).__name__.endswith("RMSNorm")]
    if norms:
        cast(nn.Parameter, norm.weight).data = NORM_SCALE * gain_of(norms[-1])


def gain_of(norm: nn.Module) -> Tensor:
    """Returns what an RMS norm multiplies with, which is the weight, or 1 + weight in some models."""
    weight: Any = norm.weight
    with torch.no_grad():
        return norm(torch.ones_like(weight)).float()  # type: ignore[no-any-return]


def start_warm(head: EagleHead, target: CausalLM) -> None:
    """Gives a new EAGLE-3 head the target's last layer, which continues the last of the hidden states that the head
    reads. What the head has and the layer lacks, such as the part of the attention that reads the embeddings, begins at
    0. A target whose last layer is of another kind changes nothing."""
    layers: Any = getattr(target.model.get_decoder(), "layers", None)
    last, own = (layers[-1] if layers is not None else None), head.midlayer
    parts = [("self_attn", name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    parts += [("mlp", name) for name in ("gate_proj", "up_proj", "down_proj")]
    width = head.config.hidden_size
    pairs = []
    for block, name in parts:
        of_target = getattr(getattr(getattr(last, block, None), name, None), "weight", None)
        of_head = getattr(getattr(own, block), name).weight
        if not isinstance(of_target, Tensor):
            return
        columns = of_head[:, -of_target.shape[1] :]
        if columns.shape != of_target.shape:
            return
        pairs.append((of_head, columns, of_target))
    norms = (own.hidden_norm, "input_layernorm"), (own.post_attention_layernorm, "post_attention_layernorm")
    with torch.no_grad():
        for whole, columns, weight in pairs:
            whole.zero_()
            columns.copy_(weight)
        for norm, name in norms:
            if isinstance(of_target := getattr(last, name, None), nn.Module):
                norm.weight.copy_(gain_of(of_target))
        head.fc.weight.zero_()
        head.fc.weight[:, -width:].copy_(torch.eye(width))


def new_block_head(spec: TrainSpec, target: CausalLM) -> BlockHead:
    """Returns a head with random layers of the target's shape, a scaled norm, and corrections that change nothing yet.
    Its mask token and its restricted vocabulary are chosen later. Raises ConfigError for layers that the target does
    not have."""
    block, given = spec.block, target.model.config.get_text_config()
    assert block is not None
    config = qwen3_layers(target, block.num_layers)
    num_drafted = getattr(block, "draft_vocab_size", None)
    from_anchor = spec.dspark is not None
    layout = BlockLayout(
        hidden_layers=hidden_layers(spec, given.num_hidden_layers),
        target_width=given.hidden_size,
        block_size=block.block_size,
        mask_token_id=0 if block.mask_token_id is None else block.mask_token_id,
        from_anchor=from_anchor,
        num_drafts=block.block_size if from_anchor else block.block_size - 1,
        masks=(LayerMask(),) * block.num_layers,
        draft_vocab_size=num_drafted or target.vocab_size,
    )
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    if num_drafted is not None:
        lm_head = nn.Linear(given.hidden_size, num_drafted, bias=False)  # gets rows of the target's later
    elif spec.dspark is not None and getattr(lm_head, "bias", None) is not None:
        raise ConfigError(
            f"target = '{spec.target}': its output layer has a bias, which files of DSpark heads do not have: train "
            "another kind of head"
        )
    if spec.dspark is not None:
        markov = MarkovLayout(
            spec.dspark.markov_head_type, target.vocab_size, spec.dspark.markov_rank,
            confidence=spec.dspark.confidence_weight > 0,
        )  # fmt: skip
        dspark = DSparkHead(config, layout, embed_tokens, lm_head, markov)
        nn.init.zeros_(dspark.markov_head.markov_w2.weight)
        head: BlockHead = dspark
    elif spec.domino is not None:
        sizes = DominoLayout(spec.domino.gru_hidden_dim, spec.domino.emb_dim, spec.domino.pure_draft_prefix_len)
        domino = DominoHead(config, layout, embed_tokens, lm_head, sizes)
        nn.init.zeros_(cast(nn.Linear, domino.embed_proj[2]).weight)
        head = domino
    else:
        head = BlockHead(config, layout, embed_tokens, lm_head)
    scale_norm(head.norm, target)
    return head


def qwen3_layers(target: CausalLM, num_layers: int) -> Qwen3Config:
    """Returns the configuration of decoder layers of the target's shape."""
    given = target.model.config.get_text_config()
    head_dim = getattr(given, "head_dim", None) or given.hidden_size // given.num_attention_heads
    rope = getattr(given, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # some targets have one for each type of layer
    if rope.get("partial_rotary_factor", 1) != 1 or "rope_type" not in rope or "mrope_section" in rope:
        rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}  # the head's own
    config = Qwen3Config(
        vocab_size=target.padded_vocab_size, num_hidden_layers=num_layers, head_dim=head_dim, rope_parameters=rope,
        tie_word_embeddings=False, **shape_of(target, SHAPE),
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return config


def hidden_layers(spec: TrainSpec, num_layers: int) -> tuple[int, ...]:
    """Returns the target's layers whose hidden states a new head that drafts blocks reads, as in `hidden_states`. The
    last layer is not among them: transformers gives its state after the norm, other programs before it. Raises
    ConfigError for layers that the target does not have."""
    assert spec.block is not None
    ids = spec.block.target_layer_ids
    if ids is None:
        found = default_layer_ids(num_layers, spec.block.num_layers)  # of four layers or fewer, some do not exist
        return tuple(sorted({min(max(layer, -1), num_layers - 2) + 1 for layer in found}))
    if list(ids) != sorted(set(ids)) or ids[-1] > num_layers - 2:
        raise ConfigError(
            f"{spec.kind}.target_layer_ids = {list(ids)}: give different layers in ascending order, from -1 (the "
            f"embeddings) to {num_layers - 2}, the last but one of target '{spec.target}'"
        )
    return tuple(layer + 1 for layer in ids)


def block_head_of(checkpoint: HeadCheckpoint, target: CausalLM) -> BlockHead:
    """Returns a head that is trained further. Raises ConfigError if trained heads cannot express its layout."""
    head = load_block(checkpoint, target)
    if any(mask != LayerMask() for mask in head.layout.masks):
        raise checkpoint.problem(
            "its layers are causal or have windows, which the layout of trained heads does not have: train a new head"
        )
    is_plain = head.lm_head is target.model.get_output_embeddings()
    if isinstance(head, DominoHead) and not is_plain:
        raise checkpoint.problem(
            "it has an output layer of its own, which the layout of trained Domino heads does not have: train a new one"
        )
    return head


def choose_mask_token(
    head: BlockHead | ParallelEagleHead, spec: TrainSpec, target: CausalLM, samples: Sequence[Sample]
) -> None:
    """Gives a new head its mask token, which needs a row of the embeddings, if possible one that no text reaches.
    Raises ConfigError for a given one that has no row."""
    settings = spec.peagle or spec.block
    assert settings is not None
    token, num_rows = settings.mask_token_id, target.padded_vocab_size
    if token is not None and token >= num_rows:
        raise ConfigError(
            f"{spec.kind}.mask_token_id = {token}: the embeddings of target '{spec.target}' have {num_rows} rows: give "
            "a lower one, or null"
        )
    if token is None and num_rows > target.vocab_size:
        token = target.vocab_size
    elif token is None:
        counts = Counter(token for sample in samples for token in sample.ids)
        special = set(target.tokenizer.all_special_ids)
        token = min(range(target.vocab_size), key=lambda each: (counts[each], each not in special, -each))
    if isinstance(head, ParallelEagleHead):
        head.mask_token_id = token
    else:
        head.layout = replace(head.layout, mask_token_id=token)
