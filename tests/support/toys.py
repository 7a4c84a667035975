"""Toy models with known tables: the next-token distribution depends on the last two tokens only."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from specbench.models.causal_lm import ModelPair
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output, ScoringModel


def models(eos_token_ids: Sequence[int] = (), context_limit: int | None = None) -> ModelPair:
    """The models of a drafter that needs only the target's end tokens and context."""
    target = SimpleNamespace(eos_token_ids=frozenset(eos_token_ids), context_limit=context_limit)
    return ModelPair(target)  # type: ignore[arg-type]


class TableModel(ScoringModel):
    """Logits from a fixed random table [vocab, vocab, vocab], indexed by the last two tokens.

    With `prefers_pending` it scores pending tokens, as a model on a GPU does: `_seen` holds None for them.
    """

    def __init__(
        self,
        vocab_size: int,
        seed: int,
        spread: float = 1.5,
        eos_token_ids: Sequence[int] = (),
        prefers_pending: bool = False,
    ) -> None:
        self.table = spread * torch.randn(
            vocab_size, vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)
        )
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.prefers_pending = prefers_pending
        self.passes = PassLog(Clock(torch.device("cpu")))
        self.query_lengths: list[int] = []
        self._seen: list[int | None] = []

    def reset(self) -> None:
        self._seen = []

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        num_known = len(ids)
        if pending is not None:
            assert self.prefers_pending
            ids = ids + pending.tolist()
        same = [
            seen == token or (seen is None and place >= num_known)
            for place, (seen, token) in enumerate(zip(self._seen, ids, strict=False))
        ]
        known = same.index(False) if False in same else len(same)
        self.query_lengths.append(len(ids) - min(known, len(ids) - num_logits))
        self.passes.add(self.query_lengths[-1], 0.0, 0.0)
        self._seen = [*ids[:num_known], *([None] * (len(ids) - num_known))]
        ends = range(len(ids) - num_logits, len(ids))
        return Output(torch.stack([self.table[ids[end - 1] if end else 0, ids[end]] for end in ends]))

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        self._tree, self._before = list(tree_ids), list(ids)
        self.passes.add(len(tree_ids) + 1, 0.0, 0.0)
        before = [tree_ids[parent] if parent >= 0 else ids[-1] for parent in parents]
        rows = self.table[[ids[-2] if len(ids) > 1 else 0, *before], [ids[-1], *tree_ids]]
        return Output(rows[-num_logits:])

    def keep_path(self, path: Sequence[int]) -> None:
        self.score(self._before + [self._tree[node] for node in path], 1)

    def resolve_pending(self, token_ids: list[int]) -> None:
        num_unknown = self._seen.count(None)
        if num_unknown:
            self._seen[-num_unknown:] = token_ids[:num_unknown]

    def probs(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.softmax(self.table[ids[-2] if len(ids) > 1 else 0, ids[-1]], dim=-1)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Returns the nodes from the root of a tree to a node; −1 is the root."""
    return [] if node < 0 else [*path_to(parents[node], parents), node]


def joint(model: TableModel, prompt: Sequence[int], length: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of the next `length` tokens at temperature 1."""
    result = {}
    for tokens in itertools.product(range(model.vocab_size), repeat=length):
        ids, mass = list(prompt), 1.0
        for token in tokens:
            mass *= float(model.probs(ids)[token])
            ids.append(token)
        result[tokens] = mass
    return result


class ToyVocabulary:
    """Tokens that write given strings, cut greedily by the longest; a token that writes None is special."""

    def __init__(self, texts: Sequence[str | None], bos_ids: Sequence[int] = ()) -> None:
        self.size = len(texts)
        self.token_bytes = [None if text is None else text.encode() for text in texts]
        self.plain = [text is not None for text in texts]
        self.id_of = {written: i for i, written in enumerate(self.token_bytes) if written is not None}
        self.bos_ids = list(bos_ids)
        self._encoded: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = self._cut(text)
        return list(self._encoded[text])

    def _cut(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            fitting = [written.decode() for written in self.id_of if text.startswith(written.decode())]
            if not fitting:  # a letter that the vocabulary does not have
                text = text[1:]
                continue
            ids.append(self.id_of[max(fitting, key=len).encode()])
            text = text[len(max(fitting, key=len)) :]
        return ids

    def encode_after(self, before: str, text: str) -> list[int] | None:
        known, whole = self.encode(before), self.encode(before + text)
        return whole[len(known) :] if whole[: len(known)] == known else None

    def to_bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.token_bytes[i] or b"" for i in ids)

    def text(self, ids: Sequence[int]) -> tuple[str, int]:
        return self.to_bytes(ids).decode(), 0


class TextModel(TableModel):
    """A table model whose tokens write strings; special tokens (None) end a text."""

    def __init__(
        self, texts: Sequence[str | None], seed: int, bos_ids: Sequence[int] = (), spread: float = 1.5
    ) -> None:
        ends = [i for i, text in enumerate(texts) if text is None and i not in bos_ids]
        super().__init__(len(texts), seed, spread, ends)
        self.text_vocabulary = ToyVocabulary(texts, bos_ids)
        self.name = f"toy of {len(texts)}"
        self.device = torch.device("cpu")
        self.context_limit: int | None = None
