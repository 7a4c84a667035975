"""An objective over fixed samples in shuffled epochs: what distillation and language modelling share."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import ConfigError
from specbench.running.compose import stream_seed
from specbench.training.objective import Part
from specbench.training.passes import Batch, Sample, batches_of

TokenLosses = Callable[[Batch, nn.Module], Tensor]  # the drafter's loss on every learnt token of a batch, [num_learnt]
Ids = tuple[int, ...]
MINI_BATCH = 8  # samples that go through the models together


class SampleObjective:
    """The mean loss over all learnt tokens of a batch. Each mini-batch of it holds samples of one group, whose loss is
    then known.

    `share` of each group's prompts (at least one) is held back with all their answers, the same ones for the same seed;
    a prompt that is held back of one group is learnt in none. The last batch of an epoch may be smaller.
    """

    columns: tuple[str, ...] = ("lang", "loss", "num_tokens")

    def __init__(
        self, samples: Sequence[Sample], batch_size: int, share: float, seed: int, token_losses: TokenLosses
    ) -> None:
        self._batch_size, self._seed, self._token_losses = batch_size, seed, token_losses
        self.samples, self.held_back = split(samples, share, seed)
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    @property
    def num_items(self) -> int:
        """The samples of an epoch."""
        return len(self.samples)

    def parts(self, drafter: nn.Module, number: int) -> list[Part]:
        """The mini-batches of a batch; their weights add up to 1."""
        self._sums, self._counts = {}, {}
        chosen = self.batch(number)
        total = sum(sample.num_learnt for sample in chosen)
        groups = dict.fromkeys(sample.group for sample in chosen)
        return [
            Part(group, batch.num_learnt / total, batch.num_learnt, partial(self._loss, group, batch))
            for group in groups
            for batch in batches_of([sample for sample in chosen if sample.group == group], MINI_BATCH)
        ]

    def batch(self, number: int) -> list[Sample]:
        """The samples of a pass: every epoch has all of them once, in its own order."""
        per_epoch = -(-len(self.samples) // self._batch_size)
        epoch, place = divmod(number, per_epoch)
        order = shuffled(len(self.samples), self._seed, "epoch", epoch)
        return [self.samples[i] for i in order[place * self._batch_size : (place + 1) * self._batch_size]]

    def rows(self, drafter: nn.Module, number: int) -> list[dict[str, Any]]:
        """Loss and tokens of each group in the pass's batch (of several processes, this one's)."""
        return [
            {"lang": group, "loss": self._sums[group] / self._counts[group], "num_tokens": self._counts[group]}
            for group in self._counts
        ]

    @torch.no_grad()
    def validation(self, drafter: nn.Module) -> float | None:
        """Mean loss over the tokens that are held back."""
        if not self.held_back:
            return None
        batches = batches_of(self.held_back, MINI_BATCH)
        total = sum(float(self._token_losses(batch, drafter).double().sum()) for batch in batches)
        return total / sum(batch.num_learnt for batch in batches)

    def _loss(self, group: str, batch: Batch, drafter: nn.Module) -> Tensor:
        loss = self._token_losses(batch, drafter).mean()
        self._sums[group] = self._sums.get(group, 0.0) + float(loss.detach()) * batch.num_learnt
        self._counts[group] = self._counts.get(group, 0) + batch.num_learnt
        return loss


def split(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """What is learnt and what is held back, of every group; samples of one prompt stay together, also those of several
    groups. Raises ConfigError for a group too small for both."""
    if not share:
        return list(samples), []
    groups: dict[str, dict[Ids, list[Sample]]] = {}
    for sample in samples:
        groups.setdefault(sample.group, {}).setdefault(prompt_of(sample), []).append(sample)
    prompts = {group: list(by_prompt) for group, by_prompt in groups.items()}
    orders = {
        group: [found[i] for i in shuffled(len(found), seed, "held back", group)] for group, found in prompts.items()
    }
    chosen = held_back_prompts(orders, share)
    learnt: list[Sample] = []
    held_back: list[Sample] = []
    for group, by_prompt in groups.items():
        for prompt in orders[group]:
            (held_back if prompt in chosen else learnt).extend(by_prompt[prompt])
    return learnt, held_back


def held_back_prompts(orders: Mapping[str, Sequence[Ids]], share: float) -> set[Ids]:
    """The prompts that are held back of all groups, given each group's different ones in random order: the first of
    them, as many as the share and at least one.

    A prompt that several groups have is decided on by the smallest of them, and counts in the others; a group all of
    whose prompts are learnt by smaller ones holds none back.
    """
    decided: dict[Ids, bool] = {}
    for group in sorted(orders, key=lambda group: len(orders[group])):
        prompts = orders[group]
        rest = "give more texts, or validation_share=0 and one learning rate"
        if len(prompts) < 2:
            raise ConfigError(
                f"data: '{group}' has one text (equal ones count once), and validation_share = {share:g} holds one "
                f"back: {rest}"
            )
        number = max(1, round(share * len(prompts)))
        missing = number - sum(decided.get(prompt, False) for prompt in prompts)
        free = [prompt for prompt in prompts if prompt not in decided]
        decided |= {prompt: place < missing for place, prompt in enumerate(free)}
        if all(decided[prompt] for prompt in prompts):
            raise ConfigError(
                f"data: validation_share = {share:g} holds back every text of '{group}', with those of other languages "
                f"that are equal: {rest}"
            )
    return {prompt for prompt, is_held_back in decided.items() if is_held_back}


def prompt_of(sample: Sample) -> Ids:
    """What makes two samples alike: the prompt that is read, or the whole of a text that is learnt from its second
    token on."""
    return sample.ids[: sample.num_given] if sample.num_given > 1 else sample.ids


def shuffled(number: int, seed: int, *purpose: str | int) -> list[int]:
    """The places 0 to number − 1 in an order that the seed and its purpose alone decide."""
    random = torch.Generator().manual_seed(stream_seed(seed, *purpose))
    order: list[int] = torch.randperm(number, generator=random).tolist()
    return order
