"""What a pass of s-CDF looks at: languages, prompts of each, and the target's continuations of them."""

from collections import Counter
from collections.abc import Sequence

import torch

from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.running.compose import stream_seed
from specbench.training.blocks import ScdfSpec
from specbench.training.passes import Batch, Sample, batches_of
from specbench.training.spec import TrainSpec
from specbench.training.teacher import Generator, Ids, Job

Prompts = Sequence[tuple[str, Ids]]  # language and token ids


class Draws:
    """Draws the data of any pass; every draw is a function of the seed and the number of the pass."""

    def __init__(self, spec: TrainSpec, settings: ScdfSpec, target: CausalLM, prompts: Prompts) -> None:
        self._spec, self._settings = spec, settings
        self._prompts: dict[str, list[Ids]] = {language: [] for language, _ in prompts}
        for language, ids in prompts:
            self._prompts[language].append(ids)
        self._generator = Generator.of(target, Sampling(settings.temperature), spec.max_new_tokens)

    def languages(self, number: int) -> Counter[str]:
        """How often each language is drawn for a pass: once, or as the proportions have it."""
        names, settings = list(self._prompts), self._settings
        random = self._random("languages", number)
        if settings.weighting == "balanced":
            shares = torch.tensor([settings.proportions.get(name, 0.0) for name in names], dtype=torch.float64)
            drawn = torch.multinomial(shares, settings.languages_per_pass, replacement=True, generator=random)
        else:
            drawn = torch.randperm(len(names), generator=random)[: settings.languages_per_pass]
        return Counter(names[place] for place in sorted(drawn.tolist()))

    def batches(self, number: int, languages: Counter[str]) -> dict[str, list[Batch]]:
        """The prompts of a pass with the target's sampled continuations, in mini-batches by language."""
        chosen = [
            (language, ids)
            for language, times in languages.items()
            for ids in self._prompts_of(number, language, times)
        ]
        jobs = [Job(ids, stream_seed(self._spec.seed, "continuation", number, i)) for i, (_, ids) in enumerate(chosen)]
        ends = self._generator.continue_all(jobs, self._spec.generation_batch)
        samples: dict[str, list[Sample]] = {language: [] for language in languages}
        for (language, ids), end in zip(chosen, ends, strict=True):
            samples[language].append(Sample(language, (*ids, *end), len(ids)))
        return {language: batches_of(found, self._settings.mini_batch) for language, found in samples.items()}

    def _prompts_of(self, number: int, language: str, times: int) -> list[Ids]:
        pool = self._prompts[language]
        wanted = times * self._settings.prompts_per_language
        return [pool[place] for place in drawn_places(len(pool), wanted, self._random("prompts", number, language))]

    def _random(self, *purpose: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self._spec.seed, *purpose))


def drawn_places(num_items: int, number: int, random: torch.Generator) -> list[int]:
    """`number` of `num_items` places in random order; none comes again before all have come."""
    rounds = -(-number // num_items)
    return [place for _ in range(rounds) for place in torch.randperm(num_items, generator=random).tolist()][:number]
