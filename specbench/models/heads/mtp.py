"""The multi-token prediction layer in a target's own checkpoint (DeepSeek-V3, arXiv:2412.19437, §2.2)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.core.extras import require
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import one_line
from specbench.models.heads.checkpoints import cached_folder
from specbench.models.kv_cache import cache_parameter
from specbench.models.loading import is_local, model_source


class MtpHead(nn.Module):
    """The layer as a draft head with the interface of an EAGLE head. It drafts the first token from the target's last
    hidden state, and all others from its own output. Embeddings, rope and output layer are the target's."""

    def __init__(self, mtp: Any, target: CausalLM) -> None:
        super().__init__()
        self.mtp = mtp
        self.config: Any = mtp.config
        self.config._attn_implementation = target.model.config._attn_implementation
        self.hidden_layers = (target.model.config.get_text_config().num_hidden_layers,)
        self.layer_type = (getattr(mtp.config, "layer_types", None) or ["full_attention"])[0]
        self.windows = frozenset({self.layer_type == "sliding_attention"})

    @property
    def device(self) -> torch.device:
        return next(self.mtp.layers.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.mtp.layers.parameters()).dtype  # type: ignore[no-any-return]

    def project(self, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the target's last hidden state."""
        return hidden[0]

    def forward(
        self, ids: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None,
        cache: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """Returns the states after each token of `ids`, given the states before it: [num_rows, num_tokens, width]."""
        embeddings = self.mtp.embed_tokens(ids)
        options = {"layer_type": self.layer_type} if self.mtp.has_per_layer_rope else {}
        rotation = self.mtp.rotary_emb(embeddings, position_ids=positions, **options)
        made: torch.Tensor = self.mtp.layers[0](
            embeddings, states, position_embeddings=rotation, attention_mask=mask, position_ids=positions,
            **{cache_parameter(self.mtp.layers[0].forward): cache},
        )  # fmt: skip
        return self.mtp.shared_post_norm(made) if self.mtp.use_shared_post_norm else made

    def next_states(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the states that the next draft tokens read: [..., width]."""
        return states

    def logits(self, states: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Returns logits over the target's vocabulary: [..., vocab_size]."""
        made: torch.Tensor = self.mtp._project_to_logits(states)
        return made[..., :vocab_size]


def load_mtp(target: CausalLM) -> MtpHead:
    """Returns the target's layer for multi-token prediction. Raises ConfigError if transformers loads none for it."""
    config = target.model.config
    num_layers = getattr(config.get_text_config(), "num_mtp_layers", None)
    if num_layers != 1:
        raise ConfigError(
            f"drafter.type = 'mtp': target '{target.name}' has {num_layers or 'no'} layers for multi-token prediction "
            "that transformers loads, expected 1: name a --target that has one, such as a GLM-4.5 checkpoint"
        )
    require("accelerate", "drafter.type = 'mtp'")  # transformers loads the layer with it
    source, known = model_source(target.name), config.name_or_path
    try:
        from transformers.modeling_layers import MtpModel  # absent from the oldest versions that are supported

        config.name_or_path = source if is_local(source) else str(cached_folder(source, target.revision))
        mtp: Any = MtpModel.from_pretrained(target.model, device_map={"": target.device})
        head = MtpHead(mtp, target)
    except Exception as error:  # transformers raises many classes for absent and unknown weights
        raise ConfigError(
            f"drafter.type = 'mtp': the layer of target '{target.name}' cannot be loaded: {one_line(error)}"
        ) from error
    finally:
        config.name_or_path = known
    if mtp.rotary_emb is None:
        raise ConfigError(
            f"drafter.type = 'mtp': target '{target.name}' has no rotary embedding, which is not supported"
        )
    head.eval().requires_grad_(False)
    return head
