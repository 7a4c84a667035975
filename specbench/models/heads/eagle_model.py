"""An EAGLE head as a model of one cached sequence: drafters score tokens with it as with any draft model."""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.mtp import MtpHead
from specbench.models.kv_cache import PreallocatedLayer
from specbench.models.scoring import Output, ScoringModel
from specbench.models.timing import Clock, PassLog
from specbench.models.tree_attention import by_layer_type, tree_inputs


class EagleModel(ScoringModel):
    """Scores the tokens after the target's text. The state of a token comes from the target if the target has read it
    (`read_target`), else it is the head's own output for the token before.

    The head reads token i + 1 with the state of token i. Its cache keeps the keys and values of target states only:
    those of drafted tokens are dropped when the target has read the next ones.
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
        self._unread: list[torch.Tensor] = []  # states of the target that the head has not read, each [num_tokens, w]
        self._num_read = 0  # states of the target that the head has read
        self._num_states = 0  # states of the target in all
        self._root = torch.empty(0)  # what the head made of the last state of the target, [1, width]
        self._made = torch.empty(0)  # the states of the drafted tokens, [num_drafted, width]
        self._logits = torch.empty(0)  # of the last pass, [num_logits, vocab_size]
        self._layer.truncate(0)

    def read_target(self, hidden: Sequence[torch.Tensor], rows: Sequence[int]) -> None:
        """Adds the hidden states `rows` of a pass of the target, [num_read, width] for each layer, to the sequence.
        Drafted tokens are forgotten."""
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

        The tree begins with the one read last, and the parents of the other tokens are in it or are the root.
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
        """Reads the tokens of the text whose states the target has given."""
        if not self._unread:
            return
        states, self._unread = torch.cat(self._unread), []
        tokens = ids[self._num_read + 1 : self._num_states + 1]
        self._layer.truncate(self._num_read)
        made = self._forward(tokens, states, self._num_states, (), 1)
        self._num_read = self._num_states
        self._root, self._made = made[-1:], made[:0]

    def _extend(self, tokens: list[int], states: torch.Tensor, parents: Sequence[int]) -> None:
        """Reads drafted tokens, given the states before them; `parents` are those of all drafted tokens."""
        made = self._forward(tokens, self.head.next_states(states), self._num_read, parents, len(tokens))
        self._made = torch.cat([self._made, made])

    def _forward(
        self, tokens: list[int], states: torch.Tensor, num_prefix: int, parents: Sequence[int], num_logits: int
    ) -> torch.Tensor:
        """Runs one timed pass over the last tokens of a sequence and its tree: [num_tokens, width]. Keeps the logits
        after the last `num_logits` of them."""
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
