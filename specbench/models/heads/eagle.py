"""Draft heads of one decoder layer, which drafts the next token from the target's hidden states and the last token.

EAGLE-1 and EAGLE-2 (arXiv:2401.15077, arXiv:2406.16858) continue the target's last hidden state and use its output
layer. EAGLE-3 (arXiv:2503.01840) joins the hidden states of three layers and has its own output layer. The layer for
multi-token prediction (DeepSeek-V3, arXiv:2412.19437, §2.2) is in the target's own checkpoint. `EagleModel` gives a
head the interface of a draft model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import one_line
from specbench.models.heads.checkpoints import HeadModule, cached_folder
from specbench.models.kv_cache import PreallocatedLayer, by_layer_type, cache_parameter, tree_inputs
from specbench.models.loading import is_local, model_source
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel


class MtpHead(HeadModule):
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
        self._cache_name = cache_parameter(mtp.layers[0].forward)

    @property
    def own_weight(self) -> torch.Tensor:
        return next(self.mtp.layers.parameters())  # type: ignore[no-any-return]

    def project(self, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        return hidden[0]

    def forward(
        self, ids: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None,
        cache: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        embeddings = self.mtp.embed_tokens(ids)
        options = {"layer_type": self.layer_type} if self.mtp.has_per_layer_rope else {}
        rotation = self.mtp.rotary_emb(embeddings, position_ids=positions, **options)
        made: torch.Tensor = self.mtp.layers[0](
            embeddings, states, position_embeddings=rotation, attention_mask=mask, position_ids=positions,
            **{self._cache_name: cache},
        )  # fmt: skip
        return self.mtp.shared_post_norm(made) if self.mtp.use_shared_post_norm else made

    def next_states(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def logits(self, states: torch.Tensor, vocab_size: int) -> torch.Tensor:
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


CACHE_NAME = cache_parameter(LlamaAttention.forward)


@dataclass(frozen=True)
class EagleLayout:
    """The properties in which heads of different generations and producers differ.

    `hidden_layers` are the target's layers whose hidden states the head reads, as in transformers' `hidden_states`.
    `generation` is 1 for EAGLE-1 and EAGLE-2, whose networks are equal, and 3 for EAGLE-3. `has_bias` is about `fc` in
    EAGLE-1, `has_qkv_bias` about the inputs of the attention. The other fields are about EAGLE-3:

    - `draft_vocab_size`: the number of tokens that the head can draft;
    - `norm_before_residual`: the residual of the layer is the normalized state, not the state;
    - `norm_before_fc`: the joined hidden states are normalized before they are projected;
    - `norm_per_layer`: each of the hidden states is normalized before they are joined;
    - `norm_output`: the next draft token reads the normalized state, not the state;
    - `norm_logits`: the output layer reads the normalized state, not the state.
    """

    generation: int
    hidden_layers: tuple[int, ...]
    target_width: int
    draft_vocab_size: int
    has_bias: bool = True
    has_qkv_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    norm_per_layer: bool = False
    norm_output: bool = False
    norm_logits: bool = True


class EagleLayer(nn.Module):
    """A LLaMA decoder layer. EAGLE-3's layer takes [embedding; state]; EAGLE-1's has no norm before its
    attention."""

    def __init__(self, config: LlamaConfig, layout: EagleLayout) -> None:
        super().__init__()
        self.layout = layout
        self.self_attn = LlamaAttention(config, layer_idx=0)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        num_read = config.hidden_size * (2 if layout.generation == 3 else 1)
        for name in ("q_proj", "k_proj", "v_proj"):
            num_made = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(num_read, num_made, bias=layout.has_qkv_bias))
        if layout.generation == 3:
            self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, states: torch.Tensor, embeddings: torch.Tensor, rotation: Any, mask: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """Returns [num_rows, num_tokens, width] from states and embeddings of this shape."""
        read, residual = states, states
        if self.layout.generation == 3:
            normed = self.hidden_norm(states)
            read = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
            residual = normed if self.layout.norm_before_residual else states
        attended, _ = self.self_attn(read, position_embeddings=rotation, attention_mask=mask, **{CACHE_NAME: cache})
        states = residual + attended
        made: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return made


class EagleHead(HeadModule):
    """A head with the parameter names of the published EAGLE-3 checkpoints; EAGLE-1 calls `midlayer` layers.0.

    `embed_tokens` and `lm_head` are the target's if the checkpoint has none. `d2t` [draft_vocab_size] holds the offset
    from each draft token to the target's token; None if they are equal.
    """

    d2t: torch.Tensor | None
    windows = frozenset({False})  # no layer has a sliding window

    def __init__(
        self, config: LlamaConfig, layout: EagleLayout, embed_tokens: nn.Module, lm_head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config, self.layout, self.hidden_layers = config, layout, layout.hidden_layers
        width = config.hidden_size
        self.embed_tokens = embed_tokens
        self.midlayer = EagleLayer(config, layout)
        if layout.generation == 3:
            num_layers = len(layout.hidden_layers)
            self.fc = nn.Linear(num_layers * layout.target_width, width, bias=False)
            self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
            self.lm_head = lm_head or nn.Linear(width, layout.draft_vocab_size, bias=False)
            if layout.norm_before_fc:
                self.input_norm = LlamaRMSNorm(num_layers * layout.target_width, config.rms_norm_eps)
            if layout.norm_per_layer:
                norms = (LlamaRMSNorm(layout.target_width, config.rms_norm_eps) for _ in range(num_layers))
                self.fc_norm = nn.ModuleList(norms)
        else:
            assert lm_head is not None
            self.fc = nn.Linear(2 * width, width, bias=layout.has_bias)
            self.lm_head = lm_head
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.register_buffer("d2t", None)

    def output_layers(self) -> list[nn.Module]:
        return [self.lm_head]

    @property
    def own_weight(self) -> torch.Tensor:
        return self.fc.weight

    def project(self, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the states of the target's tokens, [..., width], from the target's hidden states, one tensor
        [..., target_width] for each of `layout.hidden_layers`."""
        if self.layout.generation == 1:
            return hidden[0]
        if self.layout.norm_per_layer:
            hidden = [norm(states) for norm, states in zip(self.fc_norm, hidden, strict=True)]
        joined = torch.cat(list(hidden), dim=-1)
        made: torch.Tensor = self.fc(self.input_norm(joined) if self.layout.norm_before_fc else joined)
        return made

    def forward(
        self, ids: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None,
        cache: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """Returns the states after each token of `ids`, given the states before it: [num_rows, num_tokens, width].

        `positions` [1, num_tokens] are the positions of the states before the tokens.
        """
        embeddings = self.embed_tokens(ids).to(states.dtype)
        if self.layout.generation == 1:
            states = self.fc(torch.cat([embeddings, states], dim=-1))
        rotation = self.rotary_emb(states, positions)
        made: torch.Tensor = self.midlayer(states, embeddings, rotation, mask, cache)
        return made

    def next_states(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the states that the next draft tokens read: [..., width]."""
        made: torch.Tensor = self.norm(states) if self.layout.norm_output else states
        return made

    def draft_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Returns logits over the draft vocabulary: [..., draft_vocab_size]."""
        has_norm = self.layout.generation == 3 and self.layout.norm_logits
        made: torch.Tensor = self.lm_head(self.norm(states) if has_norm else states)
        return made

    def logits(self, states: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Returns logits over the target's vocabulary, −∞ for tokens that the head cannot draft: [..., vocab_size]."""
        return over_vocabulary(self.draft_logits(states), self.d2t, vocab_size)


def over_vocabulary(drafted: torch.Tensor, d2t: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Returns logits of the draft vocabulary [..., draft_vocab_size] as logits over the target's [..., vocab_size], −∞
    for tokens that are not drafted. `d2t`: see `EagleHead`."""
    if d2t is None:
        return drafted[..., :vocab_size]
    token_ids = torch.arange(len(d2t), device=drafted.device) + d2t
    whole = drafted.new_full((*drafted.shape[:-1], vocab_size), float("-inf"))
    return whole.index_copy(-1, token_ids, drafted)


class EagleModel(ScoringModel):
    """Scores draft tokens with a head. The state of a token comes from the target if the target has read the token
    (`read_target`); otherwise it is the head's own output for the token before.

    The head reads token i + 1 with the state of token i. When the target has read new tokens, the cache drops the keys
    and values of drafted tokens and keeps only those of target states.
    """

    def __init__(self, head: EagleHead | MtpHead, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.head = head
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.passes = PassLog(Clock(head.device))
        self._layer = PreallocatedLayer(is_sliding=False)
        self._cache = Cache(layers=[self._layer])
        self.reset()

    def reset(self) -> None:
        self._unread: list[torch.Tensor] = []  # target states that the head has not read, each [num_tokens, width]
        self._num_read = 0  # number of target states that the head has read
        self._num_states = 0  # number of all target states
        self._root = torch.empty(0)  # the head's output for the last target state, [1, width]
        self._made = torch.empty(0)  # the states of the drafted tokens, [num_drafted, width]
        self._logits = torch.empty(0)  # the logits of the last pass, [num_logits, vocab_size]
        self._layer.truncate(0)

    def read_target(self, hidden: Sequence[torch.Tensor], rows: Sequence[int]) -> None:
        """Adds the `rows` of a target pass's hidden states, [num_read, width] for each layer, to the sequence. Drops
        drafted tokens."""
        kept = torch.tensor(rows, dtype=torch.long, device=hidden[0].device)
        states = self.head.project([layer.index_select(0, kept).to(self.head.dtype) for layer in hidden])
        self._unread.append(states)
        self._num_states += len(rows)
        self._layer.truncate(self._num_read)

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        """Returns the logits after the last token of `ids`: [1, vocab_size]."""
        assert num_logits == 1 and pending is None
        drafted = ids[self._num_states + 1 :]
        self._read_context(ids)
        for token in drafted[len(self._made) :]:
            before = self._made[-1:] if len(self._made) else self._root
            self._extend([token], before, range(-1, len(self._made)))
        return Output(self._logits[-1:])

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        """Returns the logits after the last `num_logits` tokens of a tree that follows `ids`: [num_logits, vocab_size].

        The tree begins with the tree read last, and the parents of its other tokens are in that tree or are the root.
        """
        self._read_context(ids)
        num_known = len(self._made)
        if num_known < len(tree_ids):
            states = torch.cat([self._root, *([self._made] if num_known else [])])
            above = torch.tensor([1 + parent for parent in parents[num_known:]], device=states.device)
            self._extend(tree_ids[num_known:], states.index_select(0, above), parents)
        return Output(self._logits[-num_logits:])

    def keep_path(self, path: Sequence[int]) -> None:
        """Does nothing: `read_target` drops the drafted tokens."""

    def _read_context(self, ids: list[int]) -> None:
        """Reads the tokens of the text whose states came from the target since the last call."""
        if not self._unread:
            return
        states, self._unread = torch.cat(self._unread), []
        tokens = ids[self._num_read + 1 : self._num_states + 1]
        self._layer.truncate(self._num_read)
        made = self._forward(tokens, states, self._num_states, (), 1)
        self._num_read = self._num_states
        self._root, self._made = made[-1:], made[:0]

    def _extend(self, tokens: list[int], states: torch.Tensor, parents: Sequence[int]) -> None:
        """Reads drafted tokens, given the states before them. `parents`: the parents of all drafted tokens."""
        made = self._forward(tokens, self.head.next_states(states), self._num_read, parents, len(tokens))
        self._made = torch.cat([self._made, made])

    def _forward(
        self, tokens: list[int], states: torch.Tensor, num_prefix: int, parents: Sequence[int], num_logits: int
    ) -> torch.Tensor:
        """Runs one timed pass over the last tokens of a sequence and its tree: [num_tokens, width]. Stores the logits
        after the last `num_logits` tokens."""
        start = self.passes.clock.mark()
        ids = torch.tensor([tokens], dtype=torch.long, device=self.head.device)
        end = num_prefix + len(parents)
        positions, masks = tree_inputs(
            self.head, self.head.windows, num_prefix, parents, end - len(tokens), len(tokens), end
        )
        made: torch.Tensor = self.head(ids, states[None], positions[None], by_layer_type(masks), self._cache)[0]
        self._logits = self.head.logits(made[-num_logits:], self.vocab_size)
        self.passes.add(len(tokens), start, self.passes.clock.mark())
        return made
