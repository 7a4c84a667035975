"""Stochastic corrective drafter fine-tuning (s-CDF) and its baselines (P0 §7, Alg. 1, App. D)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from specbench.decoding.decoder import stream_seed
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.training.loop import GroupLosses, LogRow, LossPart
from specbench.training.passes import (
    MAX_CACHED_BYTES,
    Batch,
    Sample,
    batches_of,
    corrective_weights,
    cross_entropy_full,
    cross_entropy_sampled,
    learnt_logits,
    unfairness,
    unwrapped,
)
from specbench.training.spec import TrainSpec
from specbench.training.teacher import GenerationJob, Generator, Ids

Logits = Callable[[Batch], Tensor]  # the logits before every learnt token, [num_learnt, vocab]


def num_accepted(target_probs: Tensor, draft_probs: Tensor, uniforms: Tensor) -> int:
    """Returns the length of a draft's accepted prefix: tokens are accepted while u < min(1, p/q). All arguments are
    [num_drafted]: the drafted tokens' probabilities by target and drafter, and uniform numbers in [0, 1)."""
    accepted = uniforms < (target_probs / draft_probs).clamp_max(1.0)
    return int(accepted.int().cumprod(-1).sum())


def proxy_acceptance(drafts: Sequence[Sample], target: Logits, drafter: Logits, batch_size: int, seed: int) -> float:
    """Returns the share of drafted tokens that are in accepted prefixes of greedy drafts. `drafts`: prompts with their
    drafts as learnt tokens."""
    generator = torch.Generator().manual_seed(seed)
    accepted = 0
    for batch in batches_of(drafts, batch_size):
        target_probs, draft_probs = (token_probs(of, batch) for of in (target, drafter))
        uniforms = torch.rand(batch.num_learnt, generator=generator, dtype=torch.float64)
        lengths = [sample.num_learnt for sample in batch.samples]
        for parts in zip(*(values.split(lengths) for values in (target_probs, draft_probs, uniforms)), strict=True):
            accepted += num_accepted(*parts)
    return accepted / sum(sample.num_learnt for sample in drafts)


def prompt_misfit(prompts: Sequence[Sample], model: Logits, batch_size: int) -> float | None:
    """Returns 1 − the mean raw probability of the prompts' tokens, which is the total variation to the data as a point
    mass (P0 eq. 7). Returns None if no prompt has two tokens."""
    longer = [prompt for prompt in prompts if prompt.num_learnt]
    probs = [token_probs(model, batch) for batch in batches_of(longer, batch_size)]
    return float(1 - torch.cat(probs).mean()) if probs else None


def token_probs(model: Logits, batch: Batch) -> Tensor:
    """Returns the raw probability of every learnt token, float64 on the CPU: [num_learnt]."""
    return cross_entropy_sampled(batch.learnt_ids, model(batch)).cpu().double().neg().exp()


@dataclass(frozen=True)
class MeasuredLanguage:
    """The mini-batches of a language in a pass, and the drafter's losses on the tokens of each before the update."""

    batches: Sequence[Batch]
    losses: Sequence[Tensor]

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_learnt for batch in self.batches)

    @property
    def divergence(self) -> float:
        """Returns D, the mean loss over all tokens."""
        return float(torch.cat([*self.losses]).double().mean())

    @property
    def prompts(self) -> list[Ids]:
        return [sample.ids[: sample.num_given] for batch in self.batches for sample in batch.samples]


class CorrectiveObjective:
    """The loss of a language is D, the drafter's cross-entropy on the target's continuations. Its weight is
    (D − min D) / m, or a baseline's weight. With several processes, each measures all languages, and they share the
    computation of gradients. `prompts`: language and token ids."""

    columns: tuple[str, ...] = (
        "star_lang", "lang", "r", "weight", "unfairness", "acceptance", "prompt_tv_q", "prompt_tv_p",
    )  # fmt: skip

    def __init__(self, spec: TrainSpec, target: CausalLM, prompts: Sequence[tuple[str, Ids]]) -> None:
        assert spec.scdf is not None
        self.num_items = len(prompts)
        self._spec, self._settings, self._target = spec, spec.scdf, target
        self._prompts: dict[str, list[Ids]] = {}
        for language, ids in prompts:
            self._prompts.setdefault(language, []).append(ids)
        self._generator = Generator.of(target, Sampling(spec.scdf.temperature), spec.max_new_tokens)
        self._kept: dict[int, Tensor] = {}  # the target's logits by the id of a batch of this pass
        self._measured: dict[str, MeasuredLanguage] = {}
        self._weights: dict[str, float] = {}

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        """Returns the mini-batches of a pass with constant weights: Σ weight · ∇loss is the gradient of P0 eq. 9."""
        # 1. Languages, their prompts, and the target's continuations.
        self._kept.clear()
        languages = self._draw_languages(number)
        batches = self._draw_batches(number, languages)
        # 2. The drafter's loss on each language before the update.
        with torch.no_grad():
            self._measured = {
                language: MeasuredLanguage(each, [self._losses(batch, drafter) for batch in each])
                for language, each in batches.items()
            }
        # 3. The weights of the languages, and with them the mini-batches.
        shares = [times / languages.total() for times in languages.values()]  # of the draws, for the baselines
        if self._settings.weighting == "corrective":
            shares = corrective_weights([self._measured[language].divergence for language in languages])
        self._weights = dict(zip(languages, shares, strict=True))
        parts = []
        for language, measured in self._measured.items():
            weight = self._weights[language]
            for batch, known in zip(measured.batches, measured.losses, strict=True):
                share = batch.num_learnt / measured.num_tokens
                # Without a weight no gradient is needed, and the losses are known.
                losses = partial(self._losses, batch) if weight else partial(lambda known, _: known, known)
                parts.append(LossPart(batch.groups, weight * share, losses))
        return parts

    def rows(self, drafter: nn.Module, number: int, losses: GroupLosses) -> list[LogRow]:
        """Returns D, weights and 𝒰 of the last pass, with acceptance and misfit, which are measured on its prompts
        now."""
        spec = self._spec
        settings = self._settings
        vocab_size = self._target.vocab_size
        of_target = partial(learnt_logits, self._target.model, vocab_size=vocab_size)
        of_drafter = partial(learnt_logits, drafter, vocab_size=vocab_size)
        ends = self._target.eos_token_ids
        greedy = Generator(unwrapped(drafter), vocab_size, ends, Sampling(), settings.num_draft_tokens)
        divergences = {language: each.divergence for language, each in self._measured.items()}
        seed = partial(stream_seed, self._spec.seed, "acceptance", number)
        shared: LogRow = {
            "star_lang": min(divergences, key=divergences.__getitem__),
            "unfairness": float(unfairness(np.array(list(divergences.values())))),
        }
        rows = []
        for language, each in self._measured.items():
            drafted = greedy.continue_all([GenerationJob(ids) for ids in each.prompts], spec.generation_batch)
            drafts = [Sample("", (*ids, *end), len(ids)) for ids, end in zip(each.prompts, drafted, strict=True)]
            given = [Sample("", ids, 1) for ids in each.prompts]
            size = settings.mini_batch
            with torch.no_grad():
                rows.append({
                    **shared, "lang": language, "r": divergences[language], "weight": self._weights[language],
                    "acceptance": proxy_acceptance(drafts, of_target, of_drafter, size, seed(language)),
                    "prompt_tv_q": prompt_misfit(given, of_drafter, size),
                    "prompt_tv_p": prompt_misfit(given, of_target, size),
                })  # fmt: skip
        return rows

    def validation(self, drafter: nn.Module) -> float | None:
        return None

    def _draw_languages(self, number: int) -> Counter[str]:
        """Returns the number of draws of each language for a pass: one, or a random number according to proportions."""
        names = list(self._prompts)
        settings = self._settings
        random = self._random("languages", number)
        if settings.weighting == "balanced":
            shares = torch.tensor([settings.proportions.get(name, 0.0) for name in names], dtype=torch.float64)
            drawn = torch.multinomial(shares, settings.languages_per_pass, replacement=True, generator=random)
        else:
            drawn = torch.randperm(len(names), generator=random)[: settings.languages_per_pass]
        return Counter(names[place] for place in sorted(drawn.tolist()))

    def _draw_batches(self, number: int, languages: Counter[str]) -> dict[str, list[Batch]]:
        """Returns the prompts of a pass with sampled continuations by the target, as mini-batches by language."""
        prompts: list[tuple[str, Ids]] = []
        for language, times in languages.items():
            pool = self._prompts[language]
            random = self._random("prompts", number, language)
            wanted = times * self._settings.prompts_per_language
            # None is repeated before all were drawn.
            rounds = -(-wanted // len(pool))
            drawn = [place for _ in range(rounds) for place in torch.randperm(len(pool), generator=random).tolist()]
            prompts += [(language, pool[place]) for place in drawn[:wanted]]
        seed = partial(stream_seed, self._spec.seed, "continuation", number)
        jobs = [GenerationJob(ids, seed(place)) for place, (_, ids) in enumerate(prompts)]
        ends = self._generator.continue_all(jobs, self._spec.generation_batch)
        samples: dict[str, list[Sample]] = {language: [] for language in languages}
        for (language, ids), end in zip(prompts, ends, strict=True):
            samples[language].append(Sample(language, (*ids, *end), len(ids)))
        return {language: batches_of(each, self._settings.mini_batch) for language, each in samples.items()}

    def _random(self, *purpose: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self._spec.seed, *purpose))

    def _losses(self, batch: Batch, drafter: nn.Module) -> Tensor:
        draft_logits = learnt_logits(drafter, batch, self._target.vocab_size)
        if self._settings.estimator == "sampled":
            return cross_entropy_sampled(batch.learnt_ids, draft_logits)
        # Every batch is read twice, before the weights are known and for the gradients.
        target_logits = self._kept.get(id(batch))
        if target_logits is None:
            with torch.no_grad():
                target_logits = learnt_logits(self._target.model, batch, self._target.vocab_size)
            if sum(kept.nbytes for kept in self._kept.values()) + target_logits.nbytes <= MAX_CACHED_BYTES:
                self._kept[id(batch)] = target_logits
        return cross_entropy_full(target_logits, draft_logits)
