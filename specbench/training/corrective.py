"""Stochastic corrective drafter fine-tuning, s-CDF, and its baselines (P0 §7, Alg. 1, App. D)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specbench.models.causal_lm import CausalLM
from specbench.running.compose import stream_seed
from specbench.training.blocks import ScdfSpec
from specbench.training.divergence import corrective_weights, cross_entropy_full, cross_entropy_sampled, unfairness
from specbench.training.draws import Draws, Prompts
from specbench.training.objective import Part
from specbench.training.passes import Batch, FrozenLogits, learnt_logits
from specbench.training.proxies import Proxies
from specbench.training.spec import TrainSpec


@dataclass(frozen=True)
class Measured:
    """The mini-batches of one language in one pass, and the drafter's loss on each before the update."""

    batches: Sequence[Batch]
    losses: Sequence[float]

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_learnt for batch in self.batches)

    @property
    def divergence(self) -> float:
        """D: the mean over all tokens, however they are batched."""
        pairs = zip(self.batches, self.losses, strict=True)
        return sum(batch.num_learnt * loss for batch, loss in pairs) / self.num_tokens

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [sample.ids[: sample.num_given] for batch in self.batches for sample in batch.samples]


class CorrectiveObjective:
    """Each language's loss is D, its drafter's cross-entropy on the target's own continuations; its weight is
    (D − min D) / m, or that of a baseline. Several processes measure all of it each, and share the gradients' work."""

    columns: tuple[str, ...] = (
        "star_lang", "lang", "r", "weight", "unfairness", "acceptance", "prompt_tv_q", "prompt_tv_p",
    )  # fmt: skip

    def __init__(self, spec: TrainSpec, target: CausalLM, prompts: Prompts) -> None:
        assert spec.scdf is not None
        self.num_items = len(prompts)
        self._seed, self._settings = spec.seed, spec.scdf
        self._vocab_size = target.vocab_size
        self._draws = Draws(spec, spec.scdf, target, prompts)
        self._frozen = FrozenLogits(target.model, target.vocab_size)
        self._proxies = Proxies(target, spec.scdf.num_draft_tokens, spec.scdf.mini_batch, spec.generation_batch)
        self._measured: Mapping[str, Measured] = {}
        self._weights: Mapping[str, float] = {}

    def parts(self, drafter: nn.Module, number: int) -> list[Part]:
        """The mini-batches of a pass with their constant weights: Σ weight · ∇loss is the gradient of P0 eq. 9."""
        self._frozen.forget()
        languages = self._draws.languages(number)
        batches = self._draws.batches(number, languages)
        self._measured = {language: self._measure(language, found, drafter) for language, found in batches.items()}
        self._weights = weights(self._settings, self._measured, languages)
        return [self._part(language, place) for language, found in batches.items() for place in range(len(found))]

    def rows(self, drafter: nn.Module, number: int) -> list[dict[str, Any]]:
        """D, weights and 𝒰 as the pass has found them; acceptance and misfit are measured now, on its prompts."""
        divergences = {language: each.divergence for language, each in self._measured.items()}
        shared = {
            "star_lang": min(divergences, key=divergences.__getitem__),
            "unfairness": float(unfairness(np.array(list(divergences.values())))),
        }
        return [
            {
                **shared, "lang": language, "r": divergences[language], "weight": self._weights[language],
                **self._proxies.of(drafter, each.prompts, stream_seed(self._seed, "acceptance", number, language)),
            }
            for language, each in self._measured.items()
        ]  # fmt: skip

    def validation(self, drafter: nn.Module) -> float | None:
        """Nothing is held back."""
        return None

    @torch.no_grad()
    def _measure(self, language: str, batches: Sequence[Batch], drafter: nn.Module) -> Measured:
        losses = [float(self._loss((language, place), batch, drafter)) for place, batch in enumerate(batches)]
        return Measured(batches, losses)

    def _loss(self, key: tuple[str, int], batch: Batch, drafter: nn.Module) -> Tensor:
        """The estimate of D on one mini-batch."""
        draft_logits = learnt_logits(drafter, batch, self._vocab_size)
        if self._settings.estimator == "sampled":
            return cross_entropy_sampled(batch.learnt_ids.to(draft_logits.device), draft_logits).mean()
        return cross_entropy_full(self._frozen.of(key, batch), draft_logits).mean()

    def _part(self, language: str, place: int) -> Part:
        """A mini-batch with its share of its language's weight; what has no weight is not computed again."""
        measured, weight = self._measured[language], self._weights[language]
        batch = measured.batches[place]
        if weight == 0.0:
            known = torch.tensor(measured.losses[place])
            return Part(language, 0.0, batch.num_learnt, lambda drafter: known)
        share = batch.num_learnt / measured.num_tokens
        return Part(language, weight * share, batch.num_learnt, partial(self._loss, (language, place), batch))


def weights(settings: ScdfSpec, measured: Mapping[str, Measured], languages: Counter[str]) -> dict[str, float]:
    """The constant weight of each language's D in a pass; how often it was drawn counts for the baselines."""
    if settings.weighting == "corrective":
        found = corrective_weights([measured[language].divergence for language in languages])
        return dict(zip(languages, found, strict=True))
    return {language: times / languages.total() for language, times in languages.items()}
