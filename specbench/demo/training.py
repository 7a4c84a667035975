"""The training loop: batches of equal length, loss on the completion only, Muon for matrices and AdamW for the rest."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from specbench.demo.muon import Muon
from specbench.demo.recipe import Stage
from specbench.demo.world import WORLDS, training_rows

CHUNK = 1024


Example = tuple[list[int], list[int]]  # token ids and labels (-100 where nothing is learnt)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Example:
    """Texts that are given and learnt in turn, each encoded apart as a model meets them; END is learnt at the end.

    A start token, where the tokenizer has one, comes before the first text."""
    ids: list[int] = []
    labels: list[int] = []
    for index, text in enumerate(texts):
        piece: list[int] = tokenizer(text, add_special_tokens=index == 0).input_ids
        ids += piece
        labels += piece if index % 2 else [-100] * len(piece)
    end: int = tokenizer.eos_token_id
    return [*ids, end], [*labels, end]


def world_examples(
    tokenizer: PreTrainedTokenizerBase, worlds: Mapping[str, float], mix_power: float, random: Random
) -> Iterator[list[Example]]:
    """Endless chunks of encoded training examples."""
    while True:
        rows = training_rows(worlds, CHUNK, random, mix_power)
        yield [encode(tokenizer, WORLDS[row["task"]].example(row)) for row in rows]


def batches(
    chunks: Iterator[list[Example]], batch_tokens: int, random: Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids [batch, length] (padded with 0) and labels (-100 where nothing is learnt), batched by length."""
    for chunk in chunks:
        groups = grouped(chunk, batch_tokens)
        random.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            yield (
                torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in group]),
                torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in group]),
            )


def grouped(examples: list[Example], batch_tokens: int) -> list[list[Example]]:
    """The examples in batches of similar length, none above `batch_tokens`, padding included; one too long is alone."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=lambda example: len(example[0])):
        if not groups or (len(groups[-1]) + 1) * len(example[0]) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    return groups


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the completions; logits are made for their positions only."""
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    wanted = labels[:, 1:] != -100
    logits: torch.Tensor = model.lm_head(hidden[wanted])
    return functional.cross_entropy(logits, labels[:, 1:][wanted])


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    kept = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in kept]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)]


def train(
    model: LlamaForCausalLM,
    stage: Stage,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    report: Callable[[str], None],
) -> float:
    """Run one stage; returns the mean loss of its last hundred steps."""
    optimizers, losses, started = _optimizers(model), [], time.perf_counter()
    model.train()
    for step in range(stage.num_steps):
        share = step / stage.num_steps
        rate = stage.last_rate + (stage.first_rate - stage.last_rate) * (1 + math.cos(math.pi * share)) / 2
        rate *= min(1.0, (step + 1) / 50)
        for optimizer, factor in zip(optimizers, (1.0, 0.15), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        loss = loss_of(model, *next(data))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 100 == 0 or step + 1 == stage.num_steps:
            recent = sum(losses[-100:]) / len(losses[-100:])
            seconds = time.perf_counter() - started
            report(f"layers {stage.num_layers} step {step + 1}/{stage.num_steps} loss {recent:.4f} {seconds:.0f} s")
    return sum(losses[-100:]) / len(losses[-100:])
