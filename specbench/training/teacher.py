"""Batched generation by a frozen model: every prompt has its own random stream, so batching changes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding.sampling import Sampling, process
from specbench.models.causal_lm import CausalLM
from specbench.training.passes import bare, device_of, takes
from specbench.training.roomy_cache import can_drop_rows, drop_rows, roomy_cache

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A prompt that is to be continued, and the seed of its random stream (greedy continuations need none)."""

    prompt_ids: Ids
    seed: int = 0


@dataclass(frozen=True)
class Generator:
    """A model that continues prompts. A continuation ends with one of `eos_token_ids`, which it then holds, or after
    `max_new_tokens`. Logits beyond `vocab_size` are padding of the output layer."""

    model: nn.Module
    vocab_size: int
    eos_token_ids: frozenset[int]
    sampling: Sampling
    max_new_tokens: int

    @classmethod
    def of(cls, model: CausalLM, sampling: Sampling, max_new_tokens: int) -> "Generator":
        return cls(model.model, model.vocab_size, model.eos_token_ids, sampling, max_new_tokens)

    def continue_all(self, jobs: Sequence[Job], batch_size: int) -> list[Ids]:
        """The continuations in the order of the jobs."""
        found = dict(pair for batch in self.batches(jobs, batch_size) for pair in batch)
        return [found[place] for place in range(len(jobs))]

    def batches(self, jobs: Sequence[Job], batch_size: int) -> Iterator[list[tuple[int, Ids]]]:
        """The places of jobs with their continuations, batch after batch; prompts of similar length go together."""
        order = sorted(range(len(jobs)), key=lambda place: len(jobs[place].prompt_ids))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield list(zip(chosen, self._continue([jobs[place] for place in chosen]), strict=True))

    @torch.no_grad()
    def _continue(self, jobs: Sequence[Job]) -> list[Ids]:
        was_training = self.model.training
        self.model.eval()
        uniforms = None if self.sampling.greedy else torch.stack([self._uniforms(job.seed) for job in jobs])
        found: list[list[int]] = [[] for _ in jobs]
        live = list(range(len(jobs)))  # the job of every row of the batch
        sequence = LeftPadded(self.model, [job.prompt_ids for job in jobs], self.max_new_tokens)
        for step in range(self.max_new_tokens):
            probs = process(sequence.logits[:, : self.vocab_size], self.sampling).cpu()
            tokens = probs.argmax(-1) if uniforms is None else inverse_draw(probs, uniforms[live, step])
            for job, token in zip(live, tokens.tolist(), strict=True):
                if not self._has_ended(found[job]):
                    found[job].append(token)
            going_on = [row for row, job in enumerate(live) if not self._has_ended(found[job])]
            if not going_on or step + 1 == self.max_new_tokens:
                break
            if sequence.can_drop_rows and 2 * len(going_on) <= len(live):
                sequence.keep(going_on)
                live, tokens = [live[row] for row in going_on], tokens[going_on]
            sequence.append(tokens)
        self.model.train(was_training)
        return [tuple(tokens) for tokens in found]

    def _has_ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.eos_token_ids

    def _uniforms(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.max_new_tokens, generator=generator, dtype=torch.float64)


def inverse_draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """A token of each distribution [num_rows, vocab]: the first whose cumulative probability exceeds the row's uniform
    number in [0, 1). A token of probability 0 is never drawn."""
    cumulative = probs.double().cumsum(-1)
    wanted = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1)  # where rounding leaves the uniform number above
    return torch.minimum(drawn, last)


class LeftPadded:
    """Prompts of several lengths, padded at their beginning, and their key-value cache; `logits` follow the last token
    of every row: [num_rows, output_size]. `room`: how many tokens will be appended."""

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int]], room: int) -> None:
        self._model = bare(model)
        self._device = device_of(model)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        self._mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self._options: dict[str, Any] = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}
        self._counts_positions = takes(model, "position_ids")
        self._cache_name = "past_key_values" if takes(model, "past_key_values") else "cache_params"
        self._cache = roomy_cache(self._model.config, room)
        self.can_drop_rows = can_drop_rows(self._cache)
        self.logits = self._feed(ids, (self._mask.cumsum(-1) - 1).clamp_min(0))

    def append(self, tokens: Tensor) -> None:
        """One more token of every row: [num_rows]."""
        self._mask = torch.cat([self._mask, torch.ones(len(tokens), 1, dtype=self._mask.dtype)], dim=1)
        self.logits = self._feed(tokens[:, None], self._mask.sum(-1, keepdim=True) - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some rows only."""
        self._mask, self.logits = self._mask[rows], self.logits[rows]
        drop_rows(self._cache, torch.tensor(rows, device=self._device))

    def _feed(self, ids: Tensor, positions: Tensor) -> Tensor:
        options = {**self._options, self._cache_name: self._cache}
        if self._counts_positions:
            options["position_ids"] = positions.to(self._device)
        is_prefill = ids.shape == self._mask.shape
        if not bool(self._mask.all()) and (is_prefill or self._counts_positions):  # others read one token at a time
            options["attention_mask"] = self._mask.to(self._device)
        output = self._model(input_ids=ids.to(self._device), use_cache=True, **options)
        logits: Tensor = output.logits[:, -1]
        return logits
