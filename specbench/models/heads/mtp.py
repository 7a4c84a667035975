"""A layer for multi-token prediction in a file of its own, as speculators publishes those that FastMTP
(arXiv:2509.18362) trains. The layer of a target's own checkpoint is in eagle.py."""

from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import (
    MTP_LAYER,
    SPECULATORS,
    HeadCheckpoint,
    Tensors,
    assign,
    check_vocabulary,
    check_width,
    place,
)
from specbench.models.heads.eagle import EagleHead, EagleLayout
from specbench.models.heads.eagle_checkpoint import (
    decoder_config,
    decoder_settings,
    old_rope_settings,
    speculators_config,
)
from specbench.models.kv_cache import cache_parameter

CACHE_NAME = cache_parameter(Qwen3Attention.forward)
NUM_LAYERS = "num_nextn_predict_layers"


class MtpLayer(nn.Module):
    """A decoder layer of Qwen3 that reads the normalized embedding of a token and the normalized state before it, and
    whose output is normalized."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.token_layernorm, self.hidden_layernorm = Qwen3RMSNorm(width, eps), Qwen3RMSNorm(width, eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm = Qwen3RMSNorm(width, eps)
        self.self_attn = Qwen3Attention(config, layer_idx=0)
        self.post_attention_layernorm = Qwen3RMSNorm(width, eps)
        self.mlp = Qwen3MLP(config)
        self.final_layernorm = Qwen3RMSNorm(width, eps)

    def join(self, embeddings: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Returns what the attention reads before its norm: [..., width], from embeddings and states of this shape."""
        made: torch.Tensor = self.input_proj(
            torch.cat([self.token_layernorm(embeddings), self.hidden_layernorm(states)], dim=-1)
        )
        return made

    def forward(self, joined: torch.Tensor, rotation: Any, mask: torch.Tensor | None, cache: Any) -> torch.Tensor:
        attended, _ = self.self_attn(
            self.input_layernorm(joined), position_embeddings=rotation, attention_mask=mask, **{CACHE_NAME: cache}
        )
        states = joined + attended
        made: torch.Tensor = self.final_layernorm(states + self.mlp(self.post_attention_layernorm(states)))
        return made


class MtpLayerHead(EagleHead):
    """The layer as a draft head. It drafts the first token from the target's last hidden state and all others from its
    own output: every draft step has the same weights. Embeddings and output layer are the target's. `num_drafts`: the
    draft tokens that its training unrolled."""

    num_drafts = 1

    def __init__(self, config: Qwen3Config, layout: EagleLayout, embed_tokens: nn.Module, lm_head: nn.Module) -> None:
        nn.Module.__init__(self)
        self.config: Any = config
        self.layout, self.hidden_layers = layout, layout.hidden_layers
        self.embed_tokens, self.lm_head = embed_tokens, lm_head
        self.mtp_layers = nn.ModuleList([MtpLayer(config)])
        self.rotary_emb: Any = Qwen3RotaryEmbedding(config)
        self.register_buffer("d2t", None)

    @property
    def layer(self) -> MtpLayer:
        return self.mtp_layers[0]  # type: ignore[return-value]

    @property
    def own_weight(self) -> torch.Tensor:
        return self.layer.input_proj.weight

    def forward(
        self, ids: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None,
        cache: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        joined = self.layer.join(self.embed_tokens(ids).to(states.dtype), states)
        made: torch.Tensor = self.layer(joined, self.rotary_emb(joined, positions), mask, cache)
        return made


def mtp_layout(target: CausalLM) -> EagleLayout:
    """Returns the layout of a head that continues the target's last hidden state."""
    config = target.model.config.get_text_config()
    return EagleLayout(1, (config.num_hidden_layers,), config.hidden_size, target.vocab_size)


def load_mtp_layer(checkpoint: HeadCheckpoint, target: CausalLM) -> MtpLayerHead:
    """Returns the layer of a file. Raises ConfigError for one that does not fit the target or the layout."""
    checkpoint.check_proposals()
    checkpoint.check_booleans("use_sliding_window", "attention_bias")
    given = decoder_settings(checkpoint, "mtp")
    if (kind := given.get("model_type", "qwen3")) != "qwen3":
        raise checkpoint.problem(f"its layer is of model_type {kind!r:.40}, which is not supported, expected 'qwen3'")
    if given.get("use_sliding_window"):
        raise checkpoint.problem("use_sliding_window true is not supported, expected false")
    if (number := checkpoint.config.get(NUM_LAYERS, 1)) != 1:
        raise checkpoint.problem(f"{NUM_LAYERS} = {number!r:.40} is not supported, expected 1")
    config = decoder_config(
        checkpoint, given, Qwen3Config, Qwen3RotaryEmbedding,
        attention_bias=f"{MTP_LAYER}self_attn.q_proj.bias" in checkpoint.tensors,
    )  # fmt: skip
    check_vocabulary(checkpoint, [given.get("vocab_size")], target)
    check_width(checkpoint, config.hidden_size, target)
    embed_tokens, lm_head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    with torch.device("meta"):
        head = MtpLayerHead(config, mtp_layout(target), embed_tokens, lm_head)
    assign(head, checkpoint, checkpoint.tensors, ("embed_tokens.", "lm_head."))
    head.rotary_emb = Qwen3RotaryEmbedding(config)
    place(head, target)
    return head


def mtp_files(head: MtpLayerHead, tensors: Tensors, target: CausalLM) -> tuple[dict[str, object], Tensors]:
    """Returns the configuration and the tensors of a head as speculators writes them. It takes the number of the
    target's layers from the section of the layer, as that of the hidden state that the head continues."""
    layer = head.config.to_diff_dict()
    for key in ("transformers_version", "layer_types"):  # of one layer; the default fits any number of them
        layer.pop(key, None)
    (num_layers,) = head.hidden_layers
    layer |= {**old_rope_settings(head.config), "model_type": "qwen3", "num_hidden_layers": num_layers}
    return {
        "architectures": ["MTPDraftModel"], SPECULATORS: "mtp", NUM_LAYERS: 1,
        "speculators_config": speculators_config("mtp", head.num_drafts, target), "transformer_layer_config": layer,
    }, tensors  # fmt: skip
