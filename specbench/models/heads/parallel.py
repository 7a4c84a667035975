"""P-EAGLE (arXiv:2602.01469): an EAGLE-3 head of several layers that drafts all tokens in one causal pass. The rows of
the tokens after the first have a mask token and a learned state in place of the token and the state before them."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specbench.models.heads.eagle import EagleHead, EagleLayout, over_vocabulary
from specbench.models.kv_cache import PreallocatedLayer, cache_parameter
from specbench.models.meters import Clock, PassLog


class ParallelEagleHead(EagleHead):
    """An EAGLE-3 head with ordinary layers after its first, and a state of the mask tokens."""

    is_chain, has_confidence = False, False
    num_drafts = 1  # draft tokens that a training taught it, which its files name; any number can be drafted

    def __init__(
        self, config: LlamaConfig, layout: EagleLayout, embed_tokens: nn.Module, num_layers: int, mask_token_id: int
    ) -> None:
        super().__init__(config, layout, embed_tokens)
        self.mask_token_id = mask_token_id
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, len(layout.hidden_layers) * layout.target_width))
        # The files call the first layer layers.0, which has other inputs and is `midlayer` here.
        self.layers = nn.ModuleDict({str(n): LlamaDecoderLayer(config, layer_idx=n) for n in range(1, num_layers)})

    def mask_state(self) -> torch.Tensor:
        """Returns the state of a mask token, [1, width]: projected like the target's hidden states."""
        return self.project(self.mask_hidden[0].chunk(len(self.layout.hidden_layers), dim=-1))

    def read(
        self, tokens: torch.Tensor, states: torch.Tensor, anchors: torch.Tensor, depths: torch.Tensor,
        cache: Cache | None = None, num_cached: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Returns the last layer's states, [num_new + num_masks, width], of a pass over rows of the text and of mask
        tokens, of drafting and training alike.

        The rows of the text begin behind the `num_cached` that the cache holds: `tokens` [num_new], and the projected
        `states` before them, [num_new, width]. A mask token follows the row of the text `anchors` [num_masks] as the
        `depths` [num_masks]-th one, from 1. It sees the rows of the text up to there, and the mask tokens before it
        that follow the same row; several drafts behind different rows thus do not see each other.
        """
        text = torch.arange(num_cached + len(tokens), device=self.device)
        anchors, depths = torch.cat([text, anchors]), torch.cat([torch.zeros_like(text), depths])
        asks = slice(num_cached, None)
        is_before = (depths == 0) & (anchors <= anchors[asks, None])
        sees = is_before | ((anchors == anchors[asks, None]) & (depths <= depths[asks, None]))
        positions, mask = (anchors + depths)[None, asks], sees[None, None]
        num_masks = len(anchors) - len(text)
        ids = torch.cat([tokens, tokens.new_full((num_masks,), self.mask_token_id)])
        states = torch.cat([states, self.mask_state().expand(num_masks, -1)])
        made: torch.Tensor = self(ids[None], states[None], positions, mask, cache)
        rotation = self.rotary_emb(made, positions)
        for layer in self.layers.values():
            made = layer(made, attention_mask=mask, position_embeddings=rotation, **{LAYER_CACHE_NAME: cache})
        return made[0]

    def output_layers(self) -> list[nn.Module]:
        """Returns the layers with a row for each token, which the optimizer Muon leaves to AdamW."""
        return [self.embed_tokens, self.lm_head]

    def base_logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.draft_logits(states)

    def whole_logits(self, drafted: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return over_vocabulary(drafted, self.d2t, vocab_size)


LAYER_CACHE_NAME = cache_parameter(LlamaDecoderLayer.forward)


class ParallelModel:
    """The text's part in the drafts of a P-EAGLE head: the cached keys and values of the rows whose states came from
    the target. Row i has the target's state of token i and reads token i + 1."""

    def __init__(self, head: ParallelEagleHead, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.head = head
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.longest: int | None = None
        self.passes = PassLog(Clock(head.device))
        self._layers = [PreallocatedLayer(is_sliding=False) for _ in range(1 + len(head.layers))]
        self._cache = Cache(layers=list(self._layers))
        self.reset()

    def reset(self) -> None:
        self._unread: list[torch.Tensor] = []  # states that the head has not read, each [num_tokens, width]
        self._num_read = 0
        self._root = torch.empty(0)  # the head's state at the last row that it has read, [1, width]
        for layer in self._layers:
            layer.truncate(0)

    def read_target(self, hidden: Sequence[torch.Tensor], rows: Sequence[int]) -> None:
        """Adds the `rows` of a target pass's hidden states, [num_read, width] for each layer, to the sequence."""
        kept = torch.tensor(rows, dtype=torch.long, device=hidden[0].device)
        chosen = [layer.index_select(0, kept).to(self.head.device, self.head.dtype) for layer in hidden]
        self._unread.append(self.head.project(chosen))

    def read_context(self, ids: list[int]) -> None:
        """Reads the tokens of `ids` whose states came since the last call."""
        self._read(ids, 0)

    def read_block(self, ids: list[int], num_drafts: int) -> tuple[torch.Tensor, int]:
        """Returns the states that draft the tokens after `ids`, [num_drafts, width], and the number of rows that the
        pass read. The target must have read all but the last token."""
        return self._read(ids, num_drafts - 1)

    def _read(self, ids: list[int], num_masks: int) -> tuple[torch.Tensor, int]:
        if not self._unread and not num_masks:
            return self._root, 0
        states = torch.cat(self._unread) if self._unread else self.head.mask_state()[:0]
        self._unread, num_new = [], len(states)
        end = self._num_read + num_new
        assert end == len(ids) - 1
        tokens = torch.tensor(ids[self._num_read + 1 :], dtype=torch.long, device=self.head.device)
        depths = torch.arange(1, num_masks + 1, device=self.head.device)
        made = self.head.read(tokens, states, torch.full_like(depths, end - 1), depths, self._cache, self._num_read)
        for layer in self._layers:
            layer.truncate(end)  # the rows of mask tokens are not part of the text
        if num_new:
            self._root = made[num_new - 1 : num_new]
        self._num_read = end
        return torch.cat([self._root, made[num_new:]]), len(made)
