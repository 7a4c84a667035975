"""The drafter with an n-gram language model: one table look-up per draft token (arXiv:2605.30580, §3.3)."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Annotated, TypeVar

import numpy as np
import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import DenseProbs, Sampling, residual
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.corpus_models import NgramModel, Span
from specbench.models.devices import upload
from specbench.models.loading import model_source
from specbench.models.meters import Clock, PassLog
from specbench.models.mmap_store import Array, ArrayModel, vocabulary_digest
from specbench.specs.components import DraftTemperature

RAW = Sampling(temperature=1.0)
MAX_KEPT = 4096  # distributions of the contexts used last


class NgramDistribution:
    """The distribution after one context: relative frequencies of its continuations, processed by `sampling`."""

    def __init__(self, model: NgramModel, span: Span, sampling: Sampling) -> None:
        self.model, self.span, self.sampling = model, span, sampling

    @property
    def best(self) -> int:
        return self.model.first(self.span)

    @cached_property
    def probs(self) -> Array:
        """The probabilities of the n most frequent continuations, which tokens are drawn from: float32 [n]."""
        return process_counts(self.model.at(self.span)[1], self.sampling)

    @cached_property
    def cumulated(self) -> Array:
        cumulated: Array = np.cumsum(self.probs, dtype=np.float64)
        return cumulated

    @property
    def token_ids(self) -> Array:
        """The n most frequent continuations: int64 [n]."""
        return self.model.at(self.span)[0][: len(self.probs)].astype(np.int64)

    @property
    def entropy(self) -> float:
        """The entropy of `probs` in nats."""
        return float(-(self.probs * np.log(self.probs)).sum())

    def prob(self, token: int) -> float:
        return float(self.probs[self.token_ids == token].sum())

    def draw(self, uniform: float) -> int:
        """Returns the token at which the cumulative probability exceeds `uniform`, a draw from [0, 1)."""
        place = int(self.cumulated.searchsorted(uniform * self.cumulated[-1], side="right"))
        return int(self.model.at(self.span)[0][place])


def process_counts(counts: Array, sampling: Sampling) -> Array:
    """Returns the nonzero probabilities, float32, that `sampling.process` would compute from log counts as logits.

    The counts [n] must be in descending order: then every truncation keeps a prefix, and nothing needs sorting.
    """
    if sampling.greedy:
        return np.ones(1, dtype=np.float32)
    if sampling.top_k is not None and sampling.top_k < len(counts):
        counts = counts[: bisect_right(counts.data, -int(counts[sampling.top_k - 1]), key=lambda count: -count)]
    weights: Array = counts.astype(np.float32)
    if sampling.temperature != 1.0:
        weights = np.exp(np.log(weights / weights[0]) / np.float32(sampling.temperature))
    probs: Array = weights / weights.sum()
    if sampling.top_p is not None and sampling.top_p < 1.0:
        mass_before = np.cumsum(probs) - probs
        probs = probs[: max(1, int(mass_before.searchsorted(sampling.top_p)))]
        probs = probs / probs.sum()
    return probs


class SparseProbs(DenseProbs):
    """Draft distributions in which few tokens have a nonzero probability; row i belongs to draft token i."""

    def __init__(self, rows: Sequence[NgramDistribution], vocab_size: int, device: torch.device) -> None:
        self.rows, self.vocab_size, self.device = rows, vocab_size, device
        self.is_one_hot = rows[0].sampling.greedy

    @cached_property
    def _numbers(self) -> torch.Tensor:
        return self._tensor(np.repeat(np.arange(len(self.rows)), [len(row.probs) for row in self.rows]))

    @cached_property
    def _token_ids(self) -> torch.Tensor:
        return self._tensor(np.concatenate([row.token_ids for row in self.rows]))

    @cached_property
    def _probs(self) -> torch.Tensor:
        return self._tensor(np.concatenate([row.probs for row in self.rows]))

    def _tensor(self, array: Array) -> torch.Tensor:
        return upload(torch.from_numpy(array), self.device)

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._sums(self._probs * (self._token_ids == token_ids[self._numbers]))

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        return self._sums(torch.minimum(self._probs, target_probs[self._numbers, self._token_ids]))

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        own = torch.where(self._numbers == index, self._probs, 0.0)
        return residual(target_probs, torch.zeros_like(target_probs).index_add_(0, self._token_ids, own))

    @property
    def probs(self) -> torch.Tensor:
        """The probabilities that the draft tokens were drawn from: [num_drafted, vocab]."""
        dense = torch.zeros(len(self.rows), self.vocab_size, device=self.device)
        return dense.index_put_((self._numbers, self._token_ids), self._probs)

    @cached_property
    def raw_probs(self) -> torch.Tensor:
        """The relative frequencies, at temperature 1 and untruncated: [num_drafted, vocab]."""
        raw = [NgramDistribution(row.model, row.span, RAW) for row in self.rows]
        return SparseProbs(raw, self.vocab_size, self.device).probs

    def _sums(self, values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(self.rows), device=self.device).index_add_(0, self._numbers, values)


EMBEDDED_TARGET = "embedded:target"
RESOLUTION = 1 << 52  # steps of uniform draws; then u < 1 times a float64 rounds to less than that float64


PATH = "Folder of the n-gram model, as `specbench train ngram` writes it; null: the one of the embedded target."
NEEDS = "an n-gram model over the target's tokens (`specbench train ngram`; one ships with the embedded target)"


@DRAFTERS.register("ngram", needs=NEEDS, looks_up=True)
class NgramDrafter(Drafter):
    """An n-gram model over the target's own tokens drafts with one table look-up per token, with the run's sampling
    parameters or its own temperature. A model made with another tokenizer raises ConfigError."""

    # A drafted EOS ends the draft. One pass, look-up and draw, is logged per draft token.

    sampling: Sampling

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        model: NgramModel | None = None,  # in place of the one at `path`
        *,
        path: Annotated[str | None, Field(description=PATH)] = None,
        temperature: DraftTemperature = None,
    ) -> None:
        super().__init__(sampling=sampling.at(temperature))
        if model is None:
            model, self.name = model_for(models.target, NgramModel, path)
            self.revision = model.digest
        self.ngram, self.target = model, models.target
        self._after = lru_cache(MAX_KEPT)(lambda span: NgramDistribution(self.ngram, span, self.sampling))
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        mark = self.passes.clock.mark
        num_before = self.ngram.order - 1
        context = ids[max(0, len(ids) - num_before) :]
        rows: list[NgramDistribution] = []
        token_ids: list[int] = []
        start = mark()
        uniforms = None if self.sampling.greedy else draw_uniforms(num_draft_tokens, generator)
        for number in range(num_draft_tokens):
            row = self._after(self.ngram.span(context))
            raw = NgramDistribution(self.ngram, row.span, RAW) if self.length.is_asked else None
            if raw is not None and not self.length.draws(raw.entropy):
                break
            token = row.best if uniforms is None else row.draw(uniforms[number])
            rows.append(row)
            token_ids.append(token)
            context = [*context, token][-num_before:] if num_before else []
            end = mark()
            self.passes.add(1, start, end)
            start = end
            if raw is not None and not self.length.goes_on(raw.prob(token)):
                break
            if token in self.target.eos_token_ids:
                break
        return (
            Proposal(token_ids, SparseProbs(rows, self.target.vocab_size, self.target.device)) if rows else Proposal()
        )


def draw_uniforms(count: int, generator: torch.Generator) -> list[float]:
    """Returns uniform draws from [0, 1), in one transfer, since each transfer waits for the accelerator."""
    numbers = torch.randint(RESOLUTION, (count,), generator=generator, device=generator.device).tolist()
    return [number / RESOLUTION for number in numbers]


AnyModel = TypeVar("AnyModel", bound=ArrayModel)


def model_for(
    target: CausalLM, model_type: type[AnyModel], path: str | None, key: str = "drafter.path"
) -> tuple[AnyModel, str]:
    """Returns the model in the folder `path`, or the one that comes with the embedded target, and its name. `key`: the
    option that names the folder.

    Raises ConfigError if there is none, and for a folder that is not a complete model or has another tokenizer.
    """
    command = f"specbench train {model_type.command} --target {target.name}"
    how = f"train one with `{command}` and give --set {key}=DIR"
    if path is None and target.name != EMBEDDED_TARGET:
        raise ConfigError(f"{key} is missing: target '{target.name}' has no {model_type.noun} of its own: {how}")
    name = f"embedded:{model_type.command}" if path is None else path
    model = model_type.load(model_source(name) if path is None else path)
    if model.tokenizer_digest != vocabulary_digest(target.vocabulary) or model.max_token_id >= target.vocab_size:
        raise ConfigError(
            f"{key} = '{path or model.path}': it was made with another tokenizer than that of target "
            f"'{target.name}': {how}"
        )
    return model, name
