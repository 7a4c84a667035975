"""The training of the embedded models: batches of similar length, loss on the completion only, Muon for matrices and
AdamW for the rest."""

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tools.embedded.recipes import Stage
from tools.embedded.rows import training_rows
from tools.world import WORLDS


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Returns nearly orthogonal matrices from [num_matrices, rows, columns], by five quintic Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.mT if tall else matrices
    result = result / (result.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = result @ result.mT
        result = 3.4445 * result + (-4.7750 * gram + 2.0315 * gram @ gram) @ result
    orthogonal_matrices: torch.Tensor = result.mT if tall else result
    return orthogonal_matrices


class Muon(torch.optim.Optimizer):
    """The optimizer for weight matrices; AdamW optimizes embeddings and gains."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Performs one update; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                shapes[param.shape].append(param)
            for shape, params in shapes.items():
                updates = []
                for param in params:
                    assert param.grad is not None
                    average = self.state[param].setdefault("average", torch.zeros_like(param))
                    average.lerp_(param.grad, 1 - group["momentum"])
                    updates.append(param.grad.lerp(average, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for param, update in zip(params, orthogonal(torch.stack(updates)), strict=True):
                    param.mul_(1 - group["lr"] * group["decay"]).sub_(update, alpha=scale)


CHUNK = 1024


Example = tuple[list[int], list[int]]  # token ids and labels (-100 for tokens that are not learnt)


def encode_example(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Example:
    """Returns texts that are given and learnt in turn, each encoded separately as a model receives them; END is learnt
    at the end.

    A start token, if the tokenizer has one, precedes the first text.
    """
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
    """Yields endless chunks of encoded training examples."""
    while True:
        rows = training_rows(worlds, CHUNK, random, mix_power)
        yield [encode_example(tokenizer, WORLDS[row["task"]].example(row)) for row in rows]


def batches(
    chunks: Iterator[list[Example]], batch_tokens: int, random: Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields ids [batch, length] (padded with 0) and labels (-100 for tokens that are not learnt), batched by
    length."""
    for chunk in chunks:
        groups = group_by_length(chunk, batch_tokens)
        random.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            yield (
                torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in group]),
                torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in group]),
            )


def group_by_length(examples: list[Example], batch_tokens: int) -> list[list[Example]]:
    """Returns the examples in batches of similar length, none above `batch_tokens` including padding; a longer example
    is alone."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=lambda example: len(example[0])):
        if not groups or (len(groups[-1]) + 1) * len(example[0]) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    return groups


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy over the completions; logits are computed only for their positions."""
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    wanted = labels[:, 1:] != -100
    logits: torch.Tensor = model.lm_head(hidden[wanted])
    return functional.cross_entropy(logits, labels[:, 1:][wanted])


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    kept = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in kept]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)]


def train_stage(
    model: LlamaForCausalLM,
    stage: Stage,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    report: Callable[[str], None],
) -> float:
    """Runs one stage. Returns the mean loss of its last hundred steps."""
    optimizers = _optimizers(model)
    losses = []
    started = time.perf_counter()
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


HEAD_WIDTH = 32


def new_model(
    num_layers: int, width: int, vocab_size: int, end_id: int, pad_id: int, max_length: int, start_id: int | None = None
) -> LlamaForCausalLM:
    """Returns a Llama of `num_layers` blocks and `width` hidden units, heads of 32, tied embeddings, random weights."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=start_id,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    return LlamaForCausalLM(config)


def _identity_copy(block: nn.Module) -> nn.Module:
    """Returns a copy of a block that is an identity at first: its two output projections are zero."""
    new = copy.deepcopy(block)
    nn.init.zeros_(new.self_attn.o_proj.weight)  # type: ignore[union-attr, arg-type]
    nn.init.zeros_(new.mlp.down_proj.weight)  # type: ignore[union-attr, arg-type]
    return new


def grow_model(model: LlamaForCausalLM, num_layers: int) -> None:
    """Inserts identity blocks evenly after the trained ones, until there are `num_layers`. In place."""
    old = list(model.model.layers)
    blocks: list[nn.Module] = []
    for position, block in enumerate(old):
        share = (position + 1) * num_layers // len(old) - position * num_layers // len(old)
        blocks.append(block)
        blocks.extend(_identity_copy(block) for _ in range(share - 1))
    for index, block in enumerate(blocks):
        block.self_attn.layer_idx = index  # type: ignore[union-attr]
    model.model.layers = nn.ModuleList(blocks)
    model.config.num_hidden_layers = num_layers
