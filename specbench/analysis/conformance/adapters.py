"""Adapters: they call a foreign verifier with the arguments it expects and return the tokens that it emits.

An adapter takes drafts and returns one list of tokens each. Signatures of kernels are those of vLLM's
`rejection_sample`, SGLang's `tree_speculative_sampling_target_only` and transformers' `_speculative_sampling`.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.analysis.conformance.tables import Draft, Kind
from specbench.core.errors import ConfigError, naming_code

Probs = NDArray[np.float64]
CHAINS: tuple[Kind, ...] = ("chain",)
TREES: tuple[Kind, ...] = ("tree", "tree:without_replacement", "tree:fixed")
BATCH = 256  # requests in one call of a kernel that takes several


class Adapter:
    """Calls a function of a user. `name`: of the function, for messages."""

    kinds: tuple[Kind, ...] = CHAINS
    batch = 1

    def __init__(self, function: Callable[..., Any], name: str, seed: int, device: str = "cpu") -> None:
        self.function, self.name, self.device = function, name, device
        self.rng = np.random.default_rng(seed)

    def emit(self, drafts: Sequence[Draft]) -> list[list[int]]:
        """Returns the tokens that the verifier emits for each draft of one table."""
        emitted: list[list[int]] = []
        for start in range(0, len(drafts), self.batch):
            part = drafts[start : start + self.batch]
            with naming_code(f"{self.name} (table '{part[0].table.name}')"):
                found = self.call(part)
            if len(found) != len(part):
                raise ConfigError(f"{self.name}: returned {len(found)} rows of tokens for {len(part)} requests")
            emitted += [self._checked(tokens, draft) for tokens, draft in zip(found, part, strict=True)]
        return emitted

    def call(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        raise NotImplementedError

    def _checked(self, tokens: Any, draft: Draft) -> list[int]:
        """Returns the emitted tokens as integers. Raises ConfigError if they cannot be tokens."""
        table = draft.table

        def error(problem: str) -> ConfigError:
            return ConfigError(f"{self.name} (table '{table.name}', draft {list(draft.tokens)}): {problem}")

        if isinstance(tokens, torch.Tensor):
            tokens = tokens.detach().cpu().numpy()
        try:
            array = np.asarray(tokens)
        except ValueError:  # lists of different lengths
            array = np.empty((0, 0))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            shown = f"{tokens!r:.60}" if array.ndim else type(tokens).__name__
            raise error(f"returned {shown}, not a list of token ids: return the emitted tokens, such as [2, 0]")
        found: list[int] = array.tolist()
        most, vocab = table.length + 1, table.vocab
        if not 1 <= len(found) <= most:
            remedy = "return the accepted draft tokens and the next token"
            raise error(f"returned {len(found)} tokens, not 1 to {most}: {remedy}")
        for token in found:
            if not 0 <= token < vocab:
                raise error(f"returned token {token}, but tokens are 0 to {vocab - 1}")
        return found


@lru_cache(None)
def _probs(draft: Draft) -> tuple[Probs, Probs]:
    """Returns p and q after the root and after each draft token, [nodes + 1, vocab] each."""
    return np.array(draft.p, dtype=np.float64), np.array(draft.q, dtype=np.float64)


class PythonFunction(Adapter):
    """`verify(p, q, drafts, rng) -> tokens` with numpy arrays.

    - chain: p [n + 1, vocab], q [n, vocab], drafts [n].
    - paths: p [k, n + 1, vocab], q [k, n, vocab], drafts [k, n].
    - trees: p, q [n + 1, vocab], after the root and after each node; drafts [n]; the keyword `parents` [n], −1 for
      children of the root.
    """

    kinds = (*CHAINS, "paths", *TREES)

    def call(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        return [self.function(*self.arguments(draft), self.generator(), **self.keywords(draft)) for draft in drafts]

    def generator(self) -> Any:
        return self.rng

    def as_array(self, values: Any) -> Any:
        """Returns a copy, since the function may change what it gets."""
        return np.array(values)

    def arguments(self, draft: Draft) -> tuple[Any, Any, Any]:
        p, q = _probs(draft)
        tokens = np.array(draft.tokens)
        table = draft.table
        if table.kind == "chain":
            q = q[:-1]
        elif table.kind == "paths":
            firsts, length = table.children(-1), table.length
            nodes = np.array([range(first, first + length) for first in firsts])
            rows = np.concatenate([np.zeros((len(firsts), 1), dtype=np.int64), nodes + 1], axis=1)
            p, q, tokens = p[rows], q[rows[:, :-1]], tokens[nodes]
        return self.as_array(p), self.as_array(q), self.as_array(tokens)

    def keywords(self, draft: Draft) -> dict[str, Any]:
        table = draft.table
        return {"parents": self.as_array(table.parents)} if table.kind in TREES else {}


class TorchFunction(PythonFunction):
    """As PythonFunction with tensors, probabilities in float32, and a torch.Generator."""

    def __init__(self, function: Callable[..., Any], name: str, seed: int, device: str = "cpu") -> None:
        super().__init__(function, name, seed, device)
        self._generator = torch.Generator(device).manual_seed(seed)

    def generator(self) -> Any:
        return self._generator

    def as_array(self, values: Any) -> Any:
        found = torch.tensor(np.asarray(values), device=self.device)
        return found.float() if found.is_floating_point() else found


def _tensor(values: Any, device: str) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32, device=device)


class Transformers(Adapter):
    """`_speculative_sampling(candidate_input_ids, candidate_logits, candidate_length, new_logits)` of
    transformers.generation.utils; returns (tokens [1, m], number of accepted tokens)."""

    def call(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        (draft,) = drafts
        p, q = _probs(draft)
        tokens, _ = self.function(
            torch.tensor([draft.tokens], device=self.device), _tensor(q[None, :-1], self.device).log(),
            len(draft.tokens), _tensor(p[None], self.device).log(),
        )  # fmt: skip
        return [tokens[0]]


class VLLM(Adapter):
    """`rejection_sample(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs,
    target_logits, bonus_token_ids, sampling_metadata)` of vLLM; older versions take `target_probs`. Bonus tokens are
    drawn here, as vLLM draws them elsewhere. Returns [batch, max_spec_len + 1], −1 after the emitted tokens."""

    batch = BATCH

    def call(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        num, length = len(drafts), drafts[0].table.length
        both = [_probs(draft) for draft in drafts]
        p = _tensor(np.concatenate([p[:-1] for p, _ in both]), self.device)
        q = _tensor(np.concatenate([q[:-1] for _, q in both]), self.device)
        bonus = torch.multinomial(_tensor([p[-1] for p, _ in both], self.device), 1).to(torch.int32)
        metadata = SimpleNamespace(
            all_greedy=False, all_random=True, temperature=torch.ones(num, device=self.device), generators={},
            top_k=None, top_p=None, max_num_logprobs=None, no_penalties=True,
        )  # fmt: skip
        found = self.function(
            torch.tensor([token for draft in drafts for token in draft.tokens], dtype=torch.int32, device=self.device),
            [length] * num, length,
            torch.arange(1, num + 1, dtype=torch.int32, device=self.device) * length,
            q, p if "target_probs" in _parameters(self.function) else p.log(), bonus, metadata,
        )  # fmt: skip
        return [[token for token in row if token != -1] for row in found.tolist()]


class SGLang(Adapter):
    """`tree_speculative_sampling_target_only` of SGLang and its ports, by keyword; writes `predicts`, `accept_index`
    and `accept_token_num`. It takes any draft, as it does not use q."""

    kinds = (*CHAINS, *TREES)
    batch = BATCH

    def call(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        table, num, device = drafts[0].table, len(drafts), self.device
        size = len(table.parents) + 1  # the first is the root, the last token of the text

        def links(of_node: Callable[[int], int]) -> torch.Tensor:
            return torch.tensor([of_node(node) for node in range(-1, size - 1)], device=device).expand(num, -1).clone()

        def next_sibling(node: int) -> int:
            after = [other for other in range(node + 1, size - 1) if table.parents[other] == table.parents[node]]
            return after[0] + 1 if node >= 0 and after else -1

        probs = _tensor([_probs(draft)[0] for draft in drafts], device)
        predicts = torch.zeros(num * size, dtype=torch.int32, device=device)
        accept_index = torch.full((num, table.length + 1), -1, dtype=torch.int32, device=device)
        accept_token_num = torch.zeros(num, dtype=torch.int32, device=device)
        given: dict[str, Any] = {
            "predicts": predicts, "accept_index": accept_index, "accept_token_num": accept_token_num,
            "candidates": torch.tensor([[0, *draft.tokens] for draft in drafts], device=device),
            "retrive_index": torch.arange(num * size, device=device).view(num, size),
            "retrive_next_token": links(lambda node: next((child + 1 for child in table.children(node)), -1)),
            "retrive_next_sibling": links(next_sibling),
            "uniform_samples": torch.rand((num, size), device=device),
            "uniform_samples_for_final_sampling": torch.rand(num, device=device),
            "target_probs": probs, "draft_probs": torch.zeros_like(probs),
            "threshold_single": 1.0, "threshold_acc": 1.0, "deterministic": True,
        }  # fmt: skip
        known = _parameters(self.function)
        self.function(**{key: value for key, value in given.items() if key in known or not known})
        places = [row[: count + 1] for row, count in zip(accept_index.tolist(), accept_token_num.tolist(), strict=True)]
        tokens = predicts.tolist()
        return [[tokens[place] if 0 <= place < len(tokens) else -1 for place in row] for row in places]


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Returns the names of a function's parameters; none if it has no signature or takes any keyword."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
        return frozenset()
    return frozenset(parameter.name for parameter in found)


ADAPTERS: dict[str, type[Adapter]] = {
    "numpy": PythonFunction, "torch": TorchFunction, "transformers": Transformers, "vllm": VLLM, "sglang": SGLang,
}  # fmt: skip
