"""Objectives on samples: distillation on the target's most probable tokens (P1 §3.3, App. B) and language modelling.
`build_objective` builds the objective of any training."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from torch import Tensor, nn

from specbench.core.errors import ConfigError
from specbench.decoding.decoder import stream_seed
from specbench.models.causal_lm import CausalLM, shortest_context
from specbench.models.heads.block import BlockHead
from specbench.models.heads.parallel import ParallelEagleHead
from specbench.running.prompts import PromptBudget, PromptRenderer
from specbench.training.block_losses import BlockLosses
from specbench.training.corrective import CorrectiveObjective
from specbench.training.data import TrainingData, total_steps
from specbench.training.heads import DraftHead, HeadLosses
from specbench.training.loop import GroupLosses, LogRow, LossPart
from specbench.training.parallel_losses import ParallelLosses
from specbench.training.passes import (
    MAX_CACHED_BYTES,
    MAX_LOGITS,
    Batch,
    Sample,
    batches_of,
    cross_entropy_sampled,
    learnt_logits,
    truncated_cross_entropy,
    truncated_probs,
)
from specbench.training.spec import TrainSpec
from specbench.training.teacher import GenerationCache, Ids, answer_prompts, self_distill


class TokenLosses(Protocol):
    """Returns the drafter's loss on every learnt token of a batch, [num_learnt]. `number`: that of the pass; None in a
    validation."""

    def __call__(self, batch: Batch, drafter: nn.Module, /, number: int | None) -> Tensor: ...


MINI_BATCH = 8  # samples in one forward pass


class SampleObjective:
    """The mean loss over all learnt tokens of a batch.

    `share` of each group's prompts (at least one) is held out with all answers. The seed determines the prompts. A
    prompt that is held out of one group is not learnt in any. The last batch of an epoch may be smaller. With
    `by_length`, a batch is one forward pass over samples of similar length, the same in every epoch; otherwise its
    samples are drawn from all, and a forward pass has at most `max_positions` tokens.
    """

    columns: tuple[str, ...] = ("lang", "loss", "num_tokens")

    def __init__(
        self, samples: Sequence[Sample], batch_size: int, share: float, seed: int, token_losses: TokenLosses,
        by_length: bool = False, max_positions: int | None = None,
    ) -> None:  # fmt: skip
        self._batch_size, self._seed, self._token_losses = batch_size, seed, token_losses
        self._max_positions = max_positions
        self.samples, self.held_out = split_held_out(samples, share, seed)
        self.num_items = len(self.samples)  # of an epoch
        # The batches of every epoch, if they do not change.
        self._batches = batches_of(self.samples, batch_size) if by_length else []
        self._of_validation = batches_of(self.held_out, MINI_BATCH, max_positions)

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        """Returns the mini-batches of a batch. Their weights sum to 1."""
        if self._batches:
            batches = [self._batches[self._place(number)]]
        else:
            batches = batches_of(self.batch(number), MINI_BATCH, self._max_positions)
        total = sum(batch.num_learnt for batch in batches)
        return [
            LossPart(batch.groups, batch.num_learnt / total, partial(self._token_losses, batch, number=number))
            for batch in batches
        ]

    def batch(self, number: int) -> list[Sample]:
        """Returns the samples of a pass. Every epoch has each sample once, in a different order."""
        if self._batches:
            return list(self._batches[self._place(number)].samples)
        epoch, place = divmod(number, -(-len(self.samples) // self._batch_size))
        order = shuffled(len(self.samples), self._seed, "epoch", epoch)
        return [self.samples[i] for i in order[place * self._batch_size : (place + 1) * self._batch_size]]

    def _place(self, number: int) -> int:
        """Returns the number of a pass's batch among those that do not change."""
        epoch, place = divmod(number, len(self._batches))
        return shuffled(len(self._batches), self._seed, "epoch", epoch)[place]

    def rows(self, drafter: nn.Module, number: int, losses: GroupLosses) -> list[LogRow]:
        return [{"lang": group, "loss": loss, "num_tokens": size} for group, (loss, size) in losses.items()]

    @torch.no_grad()
    def validation(self, drafter: nn.Module) -> float | None:
        """Returns the mean loss over the held-out tokens, if any."""
        if not self.held_out:
            return None
        total = sum(float(self._token_losses(batch, drafter, None).double().sum()) for batch in self._of_validation)
        return total / sum(batch.num_learnt for batch in self._of_validation)


def split_held_out(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Returns the learnt and the held-out samples. Samples with equal prompts stay together, also across groups. Raises
    ConfigError for a group that is too small for both."""
    if not share:
        return list(samples), []
    # 1. The different prompts of each group in random order. If only the first token is given, the text is the prompt.
    groups: dict[str, dict[Ids, list[Sample]]] = {}
    for sample in samples:
        prompt = sample.ids[: sample.num_given] if sample.num_given > 1 else sample.ids
        groups.setdefault(sample.group, {}).setdefault(prompt, []).append(sample)
    orders: dict[str, list[Ids]] = {}
    for group, by_prompt in groups.items():
        prompts = list(by_prompt)
        orders[group] = [prompts[i] for i in shuffled(len(prompts), seed, "held back", group)]

    # 2. The share, and at least one, is held out. The smallest group with a prompt decides about it, and larger groups
    # count it. A group holds out none of its own if smaller groups learn all its prompts.
    is_held_out: dict[Ids, bool] = {}
    for group in sorted(orders, key=lambda group: len(orders[group])):
        prompts = orders[group]
        remedy = "give more texts, or validation_share=0 and one learning rate"
        if len(prompts) < 2:
            raise ConfigError(
                f"data: '{group}' has one text (equal texts count once), and validation_share = {share:g} holds it "
                f"out: {remedy}"
            )
        number = max(1, round(share * len(prompts)))
        missing = number - sum(is_held_out.get(prompt, False) for prompt in prompts)
        free = [prompt for prompt in prompts if prompt not in is_held_out]
        is_held_out |= {prompt: place < missing for place, prompt in enumerate(free)}
        if all(is_held_out[prompt] for prompt in prompts):
            raise ConfigError(
                f"data: validation_share = {share:g} holds out every text of '{group}', since other languages have "
                f"equal texts: {remedy}"
            )

    learnt: list[Sample] = []
    held_out: list[Sample] = []
    for group, prompts in orders.items():
        for prompt in prompts:
            (held_out if is_held_out[prompt] else learnt).extend(groups[group][prompt])
    return learnt, held_out


def shuffled(number: int, seed: int, *purpose: str | int) -> list[int]:
    random = torch.Generator().manual_seed(stream_seed(seed, *purpose))
    order: list[int] = torch.randperm(number, generator=random).tolist()
    return order


ENTRY_BYTES = 12  # of a cached probability with its token id


class SoftTargets:
    """A drafter's cross-entropy on the target's `top_k` most probable tokens, without the tail.

    If there is memory for the probabilities of all samples, those of similar length are scored together and cached.
    Otherwise each batch is scored when it is used. In both cases the values do not depend on earlier calls.
    """

    def __init__(
        self, target: CausalLM, samples: Sequence[Sample], top_k: int, batch_size: int,
        limit_bytes: int = MAX_CACHED_BYTES,
    ) -> None:  # fmt: skip
        self._target, self._top_k = target, top_k
        num_bytes = sum(sample.num_learnt for sample in samples) * top_k * ENTRY_BYTES
        unique = list(dict.fromkeys(samples)) if num_bytes <= limit_bytes else []
        homes = batches_of(unique, batch_size, max_positions(target))
        self._home = {sample: batch for batch in homes for sample in batch.samples}
        self._kept: dict[Sample, tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch, drafter: nn.Module, number: int | None = None) -> Tensor:
        """Returns the loss on every learnt token: [num_learnt]."""
        logits = learnt_logits(drafter, batch, self._target.vocab_size)
        probs, token_ids = (values.to(logits.device) for values in self.of(batch))
        return truncated_cross_entropy(probs, token_ids, logits)

    def of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the target's probabilities and token ids, both [num_learnt, top_k]."""
        if not self._home:
            return self._scored(batch)
        for sample in batch.samples:
            if sample not in self._kept:
                home = self._home[sample]
                lengths = [each.num_learnt for each in home.samples]
                parts = (values.cpu().split(lengths) for values in self._scored(home))
                self._kept.update(zip(home.samples, zip(*parts, strict=True), strict=True))
        probs, token_ids = zip(*(self._kept[sample] for sample in batch.samples), strict=True)
        return torch.cat(probs), torch.cat(token_ids)

    @torch.no_grad()
    def _scored(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return truncated_probs(learnt_logits(self._target.model, batch, self._target.vocab_size), self._top_k)


def max_positions(target: CausalLM) -> int:
    """Returns how many tokens a forward pass may have whose logits over the target's vocabulary are all in memory."""
    return max(1, MAX_LOGITS // target.vocab_size)


def raw_samples(tokenizer: Any, data: TrainingData, max_tokens: int, end: int | None = None) -> list[Sample]:
    """Returns the texts of the data, learnt from their second token on. `end`: a token to append to each. Texts are cut
    to `max_tokens`.

    Raises ConfigError for a language without a text of two tokens.
    """
    samples: list[Sample] = []
    for language in data.languages:
        encoded = (tokenizer(text)["input_ids"] for text in data.texts(language))
        ended = ([*ids, *([] if end is None else [end])][:max_tokens] for ids in encoded)
        learnt = [Sample(language, tuple(ids), 1) for ids in ended if len(ids) > 1]
        if not learnt:
            raise ConfigError(
                f"data: no text of '{language}' has two tokens, so nothing can be learnt: give longer texts"
            )
        samples += learnt
    return samples


def build_objective(
    spec: TrainSpec, target: CausalLM, drafter: CausalLM | DraftHead, data: TrainingData, cache_folder: Path,
    console: Console | None = None,
) -> CorrectiveObjective | SampleObjective:  # fmt: skip
    """Returns the objective of a training. Its `num_items` are the prompts or samples of an epoch.

    target: without weights if it neither continues nor scores texts. drafter: has the target's vocabulary, and
    tokenizes raw texts. Samples are at most as long as the shorter context of the two. cache_folder: folder of the
    target's continuations. console: shows the progress of generation. Raises ConfigError if nothing can be learnt from
    the data, and if the target's server fails.
    """
    # 1. No text may be longer than what both models can read.
    is_head = isinstance(drafter, DraftHead)
    context = target.context_limit if isinstance(drafter, DraftHead) else shortest_context([target, drafter])
    limit = min(spec.max_text_tokens, context or spec.max_text_tokens)

    # 2. The samples: plain texts, or prompts with the target's answers.
    tokenizer = drafter.tokenizer
    if spec.distill is not None and spec.distill.corpus == "general":
        samples = raw_samples(tokenizer, data, limit)
    elif spec.finetune is not None and spec.finetune.stage == "pretrain":
        samples = raw_samples(tokenizer, data, limit, end=tokenizer.eos_token_id)
    else:
        texts = fitting_prompts(spec, target, data, context)
        if spec.scdf is not None:
            renderer = PromptRenderer()
            prompts = [(language, tuple(renderer.render(target, (text,)).ids)) for language, text in texts]
            return CorrectiveObjective(spec, target, prompts)
        store = GenerationCache(cache_folder, console)
        if spec.distill is not None:
            samples = answer_prompts(spec, target, texts, 0.0, store)
        else:
            samples = self_distill(spec, target, texts, store, limit)

    # 3. What the drafter learns at each token: the target's distribution, or the token.
    losses: TokenLosses
    if spec.distill is not None:
        losses = SoftTargets(target, samples, spec.distill.top_k, spec.generation_batch)
    elif isinstance(drafter, DraftHead):
        drafter.choose_vocabulary(spec, samples)
        if isinstance(drafter.model, BlockHead):
            losses = BlockLosses(spec, target, drafter.model)
        elif isinstance(drafter.model, ParallelEagleHead):
            losses = ParallelLosses(spec, target, drafter.model)
        else:
            losses = HeadLosses(spec, target, drafter.model)
    else:

        def losses(batch: Batch, drafter: nn.Module, number: int | None) -> Tensor:
            return cross_entropy_sampled(batch.learnt_ids, learnt_logits(drafter, batch, target.vocab_size))

    objective = SampleObjective(
        samples, spec.batch_size, spec.validation_share, spec.seed, losses, by_length=is_head,
        max_positions=max_positions(target),
    )  # fmt: skip
    if isinstance(losses, BlockLosses):
        losses.num_passes = total_steps(spec, objective.num_items) * spec.gradient_accumulation
    return objective


def fitting_prompts(
    spec: TrainSpec, target: CausalLM, data: TrainingData, context: int | None
) -> list[tuple[str, str]]:  # fmt: skip
    """Returns the prompts as (language, text). The middle of a prompt that is too long is removed, as in a run.

    context: the maximum tokens that both models can read, None without a limit. Raises ConfigError for a prompt without
    tokens, and if the context leaves no room for prompts besides the target's answer or s-CDF's drafts.
    """
    follows = {"max_new_tokens": spec.max_new_tokens}
    if spec.scdf is not None:
        follows["scdf.num_draft_tokens"] = spec.scdf.num_draft_tokens
    key = max(follows, key=follows.__getitem__)
    room = spec.max_prompt_tokens if context is None else context - follows[key]
    if room < 1:
        raise ConfigError(
            f"{key} = {follows[key]}: leaves no room for a prompt in the {context} tokens that both target and drafter "
            "can read: lower it"
        )
    renderer = PromptRenderer(budgets=[PromptBudget(target, min(spec.max_prompt_tokens, room))])
    texts = [
        (language, renderer.shorten((prompt.text,))[0])
        for language, prompts in data.prompts.items()
        for prompt in prompts
    ]
    for language, text in texts:
        if not renderer.render(target, (text,)).packed_ids:
            raise ConfigError(f"data: a prompt of '{language}' has no tokens: remove it")
    return texts
