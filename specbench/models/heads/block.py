"""Draft heads that draft a block of tokens in one pass: DFlash (arXiv:2602.06036), DSpark (arXiv:2607.05147) and Domino
(arXiv:2605.29707).

They share the backbone. Its input is the last token of the text and mask tokens, and its layers also attend to the
target's hidden states of the whole text, which all of them read from the same projection. In DFlash the draft tokens do
not depend on each other: their distribution is factorised. DSpark and Domino correct the logits of each token by those
drafted before it, so that their drafts are chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen3Config
from transformers.cache_utils import CacheLayerMixin
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from specbench.models.heads.checkpoints import HeadModule
from specbench.models.heads.eagle import over_vocabulary
from specbench.models.kv_cache import PreallocatedLayer
from specbench.models.meters import Clock, PassLog

MarkovType = Literal["vanilla", "gated", "rnn"]
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, each [1, num_positions, head_dim]


@dataclass(frozen=True)
class LayerMask:
    """What the rows of a block see in one layer. Each sees the text before the block and the whole block, unless:

    - `causal`: it sees no later row of the block;
    - `window`: it sees `window` positions up to its own, or, with `from_anchor`, that many before the block.
    """

    causal: bool = False
    window: int | None = None
    from_anchor: bool = False

    def visible(
        self, num_context: int, num_rows: int, device: torch.device, starts: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Returns which positions (columns: the context, then the rows) each row of the blocks sees:
        [num_blocks * num_rows, num_context + num_blocks * num_rows]; None if each sees all.

        `starts` [num_blocks]: the first positions of blocks inside the context, of which each sees what is before it,
        and none sees another; None: one block, right behind the context.
        """
        if starts is None and not self.causal and self.window is None:
            return None
        context = torch.arange(num_context, device=device)
        starts = torch.tensor([num_context], device=device) if starts is None else starts
        first = starts.repeat_interleave(num_rows)[:, None]  # of the block of each row
        block = torch.arange(len(starts), device=device).repeat_interleave(num_rows)
        own = first + torch.arange(num_rows, device=device).repeat(len(starts))[:, None]
        places = torch.cat([context, own[:, 0]])
        visible = torch.cat([context < first, block == block[:, None]], dim=1)
        if self.causal:
            visible &= places <= own
        if self.window is not None:
            visible &= places >= (first - self.window if self.from_anchor else own - (self.window - 1))
        return visible


@dataclass(frozen=True)
class BlockLayout:
    """The properties in which heads of different kinds and producers differ.

    `hidden_layers` are the target's layers whose hidden states the head reads, as in transformers' `hidden_states`.
    `block_size` is the number of rows of the block, the anchor included: the last token of the text. `from_anchor`:
    the row of the anchor drafts the first token, and the row of each mask token the one after its own position; without
    it, the row of a mask token drafts the token at its own position. `masks` are those of the layers.
    `draft_vocab_size` is the number of tokens that the head can draft.
    """

    hidden_layers: tuple[int, ...]
    target_width: int
    block_size: int
    mask_token_id: int
    from_anchor: bool
    num_drafts: int
    masks: tuple[LayerMask, ...]
    draft_vocab_size: int
    has_attention_bias: bool = False


class BlockAttention(nn.Module):
    """Attention of the rows of a block to the context and to the block. Queries, keys and values have Qwen3's norms."""

    def __init__(self, config: Qwen3Config, has_bias: bool) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * self.head_dim, bias=has_bias)
        num_kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.k_proj = nn.Linear(width, num_kv_heads * self.head_dim, bias=has_bias)
        self.v_proj = nn.Linear(width, num_kv_heads * self.head_dim, bias=has_bias)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, width, bias=has_bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)

    def _heads(self, values: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = values.unflatten(-1, (-1, self.head_dim))
        return made

    def keys_and_values(self, read: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rotated keys and the values of context or block: [1, num_heads, num_read, head_dim] each."""
        keys = self.k_norm(self._heads(self.k_proj(read))).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, *rotation)
        return keys, self._heads(self.v_proj(read)).transpose(1, 2)

    def forward(
        self, states: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rotation: Rotation,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        queries = self.q_norm(self._heads(self.q_proj(states))).transpose(1, 2)
        queries, _ = apply_rotary_pos_emb(queries, queries, *rotation)
        made = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        projected: torch.Tensor = self.o_proj(made.transpose(1, 2).flatten(-2))
        return projected


class BlockLayer(nn.Module):
    """A Qwen3 decoder layer over the rows of a block."""

    def __init__(self, config: Qwen3Config, layout: BlockLayout) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config, layout.has_attention_bias)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, states: torch.Tensor, rotation: Rotation, mask: torch.Tensor | None, cache: CacheLayerMixin
    ) -> torch.Tensor:
        """Returns [1, num_rows, width]. The cache holds the context's keys and values, and gets those of the block."""
        normed = self.input_layernorm(states)
        keys, values = cache.update(*self.self_attn.keys_and_values(normed, rotation))
        states = states + self.self_attn(normed, keys, values, rotation, mask)
        made: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return made


class BlockHead(HeadModule):
    """A head with the parameter names of the published checkpoints: DFlash itself, whose draft is factorised.

    `embed_tokens` and `lm_head` are the target's if the checkpoint has none. `d2t` [draft_vocab_size] holds the offset
    from each draft token to the target's token; None if they are equal.
    """

    is_chain = False
    d2t: torch.Tensor | None

    def __init__(self, config: Qwen3Config, layout: BlockLayout, embed_tokens: nn.Module, lm_head: nn.Module) -> None:
        super().__init__()
        self.config, self.layout, self.hidden_layers = config, layout, layout.hidden_layers
        width = config.hidden_size
        self.embed_tokens, self.lm_head = embed_tokens, lm_head
        self.fc = nn.Linear(len(layout.hidden_layers) * layout.target_width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config, layout) for _ in layout.masks)
        self.norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.register_buffer("d2t", None)

    @property
    def own_weight(self) -> torch.Tensor:
        return self.fc.weight

    def project(self, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the context states of the target's tokens, [..., width], from the target's hidden states, one tensor
        [..., target_width] for each of `layout.hidden_layers`."""
        made: torch.Tensor = self.hidden_norm(self.fc(torch.cat(list(hidden), dim=-1)))
        return made

    def read_context(self, context: torch.Tensor, start: int, caches: Sequence[CacheLayerMixin]) -> None:
        """Adds the context states [num_read, width] of the positions from `start` on to the caches."""
        places = torch.arange(start, start + len(context), device=context.device)[None]
        rotation = self.rotary_emb(context, places)
        for layer, cache in zip(self.layers, caches, strict=True):
            cache.update(*cast(BlockLayer, layer).self_attn.keys_and_values(context[None], rotation))

    def forward(
        self, anchors: torch.Tensor, num_context: int, caches: Sequence[CacheLayerMixin],
        starts: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Returns the states of the rows that draft, [num_blocks, num_drafts, width].

        Each block begins with a token of `anchors` [num_blocks]. The caches hold a text of `num_context` tokens, and
        get the blocks. `starts` [num_blocks]: the positions of the anchors in this text, each of which sees what is
        before it, as in a training; None: one block, right behind the text.
        """
        size = self.layout.block_size
        ids = torch.full((len(anchors), size), self.layout.mask_token_id, dtype=torch.long, device=self.device)
        ids[:, 0] = anchors
        states = self.embed_tokens(ids.flatten()[None]).to(self.dtype)
        first = torch.tensor([num_context], device=self.device) if starts is None else starts
        places = first[:, None] + torch.arange(size, device=self.device)
        rotation = self.rotary_emb(states, places.flatten()[None])
        for layer, mask, cache in zip(self.layers, self.layout.masks, caches, strict=True):
            states = layer(states, rotation, mask.visible(num_context, size, self.device, starts), cache)
        row = 0 if self.layout.from_anchor else 1
        made: torch.Tensor = self.norm(states[0].unflatten(0, ids.shape)[:, row : row + self.layout.num_drafts])
        return made

    def output_layers(self) -> list[nn.Module]:
        """Returns the layers with a row for each token, which the optimizer Muon leaves to AdamW."""
        return [self.embed_tokens, self.lm_head]

    def base_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Returns logits over the draft vocabulary, without the correction by earlier draft tokens:
        [..., draft_vocab_size]."""
        made: torch.Tensor = self.lm_head(states)
        return made[..., : self.layout.draft_vocab_size]

    def correction(
        self, place: int, state: torch.Tensor, token: torch.Tensor, memory: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns what is added to the logits of draft token `place` of each block, [num_blocks, draft_vocab_size]
        (None: nothing), and what the next token's correction remembers. `state` [num_blocks, width]: the one that
        drafts the token. `token` [num_blocks]: the token before it. `memory`: as the token before left it, None at the
        first."""
        return None, None

    @property
    def has_confidence(self) -> bool:
        """Whether the head estimates the chance that a draft token is accepted."""
        return False

    def confidence(self, state: torch.Tensor, token: torch.Tensor) -> float:
        """Returns the chance that the draft token after `token` is accepted, given that those before it are; it depends
        on these alone."""
        raise NotImplementedError

    def whole_logits(self, drafted: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Returns logits over the target's vocabulary, −∞ for tokens that the head cannot draft: [..., vocab_size]."""
        return over_vocabulary(drafted, self.d2t, vocab_size)


class MarkovHead(nn.Module):
    """DSpark's correction of the logits by the token before: vanilla, gated by the state, or with a memory (rnn)."""

    def __init__(self, kind: MarkovType, vocab_size: int, draft_vocab_size: int, rank: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        if kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def forward(
        self, state: torch.Tensor, token: torch.Tensor, memory: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        before = self.markov_w1(token)
        if self.kind == "gated":
            before = torch.sigmoid(self.gate_proj(torch.cat([state, before], dim=-1))) * before
        elif self.kind == "rnn":
            memory = torch.zeros_like(before) if memory is None else memory
            gate, candidate, output = self.joint_proj(torch.cat([memory, before, state], dim=-1)).chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            memory = gate * memory + (1 - gate) * torch.tanh(candidate)
            before = torch.tanh(output)
        return self.markov_w2(before), memory


class ConfidenceHead(nn.Module):
    """The estimate of the chance that a draft token is accepted."""

    def __init__(self, num_read: int, has_bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(num_read, 1, bias=has_bias)

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        weight, bias = self.proj.weight.float(), None if self.proj.bias is None else self.proj.bias.float()
        return functional.linear(read.float(), weight, bias)[..., 0]  # near chances of 0 and 1 bfloat16 is coarse


@dataclass(frozen=True)
class MarkovLayout:
    """`vocab_size` and `rank` are those of the Markov head, `confidence` whether there is a confidence head,
    `confidence_reads_token` whether it reads the token before."""

    kind: MarkovType
    vocab_size: int
    rank: int
    confidence: bool = False
    confidence_has_bias: bool = True
    confidence_reads_token: bool = True


class DSparkHead(BlockHead):
    """DSpark: a Markov head over the draft tokens, and a confidence head."""

    is_chain = True

    def __init__(
        self, config: Qwen3Config, layout: BlockLayout, embed_tokens: nn.Module, lm_head: nn.Module,
        markov: MarkovLayout,
    ) -> None:  # fmt: skip
        super().__init__(config, layout, embed_tokens, lm_head)
        width, rank = config.hidden_size, markov.rank
        self.markov = markov
        self.markov_head = MarkovHead(markov.kind, markov.vocab_size, layout.draft_vocab_size, rank, width)
        if markov.confidence:
            num_read = width + rank if markov.confidence_reads_token else width
            self.confidence_head = ConfidenceHead(num_read, markov.confidence_has_bias)

    def output_layers(self) -> list[nn.Module]:
        return [*super().output_layers(), self.markov_head.markov_w1, self.markov_head.markov_w2]

    def correction(
        self, place: int, state: torch.Tensor, token: torch.Tensor, memory: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        made: tuple[torch.Tensor, torch.Tensor | None] = self.markov_head(state, token, memory)
        return made

    @property
    def has_confidence(self) -> bool:
        return self.markov.confidence

    def confidence_logits(self, state: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the confidence in the draft tokens after `token` [num_blocks]: [num_blocks]."""
        reads = [state, self.markov_head.markov_w1(token)] if self.markov.confidence_reads_token else [state]
        made: torch.Tensor = self.confidence_head(torch.cat(reads, dim=-1))
        return made

    def confidence(self, state: torch.Tensor, token: torch.Tensor) -> float:
        return float(torch.sigmoid(self.confidence_logits(state, token)))


@dataclass(frozen=True)
class DominoLayout:
    """The sizes of Domino's correction, and the number of draft tokens that have none."""

    gru_width: int
    inner_width: int
    num_plain: int = 0


class DominoHead(BlockHead):
    """Domino: a GRU over the embeddings of anchor and draft tokens, which begins anew in each block."""

    is_chain = True

    def __init__(
        self, config: Qwen3Config, layout: BlockLayout, embed_tokens: nn.Module, lm_head: nn.Module,
        domino: DominoLayout,
    ) -> None:  # fmt: skip
        super().__init__(config, layout, embed_tokens, lm_head)
        width = config.hidden_size
        self.domino = domino
        self.prefix_gru = nn.GRU(width, domino.gru_width, batch_first=True, bias=False)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + domino.gru_width, domino.inner_width, bias=False), nn.SiLU(),
            nn.Linear(domino.inner_width, layout.draft_vocab_size, bias=False),
        )  # fmt: skip

    def output_layers(self) -> list[nn.Module]:
        return [*super().output_layers(), self.embed_proj[2]]

    def correction(
        self, place: int, state: torch.Tensor, token: torch.Tensor, memory: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        embedding = self.embed_tokens(token).to(state.dtype)
        read, memory = self.prefix_gru(embedding[:, None], memory)
        if place < self.domino.num_plain:
            return None, memory
        made: torch.Tensor = self.embed_proj(torch.cat([state, read[:, 0]], dim=-1))
        return made, memory


class BlockModel:
    """The text's part in the drafts of a block head: the cached keys and values of the target's hidden states."""

    def __init__(self, head: BlockHead, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.head = head
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.longest = head.layout.num_drafts
        self.passes = PassLog(Clock(head.device))
        self._caches = [PreallocatedLayer(is_sliding=False) for _ in head.layers]
        self.reset()

    def reset(self) -> None:
        self._unread: list[torch.Tensor] = []  # context states that no layer has read, each [num_tokens, width]
        self._num_read = 0
        for cache in self._caches:
            cache.truncate(0)

    def read_target(self, hidden: Sequence[torch.Tensor], rows: Sequence[int]) -> None:
        """Adds the `rows` of a target pass's hidden states, [num_read, width] for each layer, to the sequence."""
        kept = torch.tensor(rows, dtype=torch.long, device=hidden[0].device)
        chosen = [layer.index_select(0, kept).to(self.head.device, self.head.dtype) for layer in hidden]
        self._unread.append(self.head.project(chosen))

    def read_context(self, ids: list[int]) -> int:
        """Reads the target's hidden states that came since the last call. Returns their number."""
        if not self._unread:
            return 0
        context, self._unread = torch.cat(self._unread), []
        self.head.read_context(context, self._num_read, self._caches)
        self._num_read += len(context)
        return len(context)

    def read_block(self, ids: list[int], num_drafts: int) -> tuple[torch.Tensor, int]:
        """Returns the states that draft the tokens after `ids`, [num_drafts, width], and the number of rows that the
        pass read. The target must have read all but the last token."""
        num_read = self.read_context(ids)
        assert self._num_read == len(ids) - 1
        anchor = torch.tensor(ids[-1:], device=self.head.device)
        states: torch.Tensor = self.head(anchor, self._num_read, self._caches)[0]
        for cache in self._caches:  # the keys and values of the block are of mask tokens
            cache.truncate(self._num_read)
        return states[:num_drafts], num_read + self.head.layout.block_size
