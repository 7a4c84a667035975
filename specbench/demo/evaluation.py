"""Figures of the members on held-out rows: exact answers by greedy decoding, and how often drafter and target agree."""

import re
from collections import defaultdict
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specbench.demo.world import WORLDS

Row = dict[str, Any]


@torch.inference_mode()
def greedy_ids(model: Any, prompts: list[list[int]], num_new: int, batch_size: int = 64) -> list[list[int]]:
    """The greedy continuation of each prompt, up to and with the end token. Prompts of similar length run together."""
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch_size):
        group = order[start : start + batch_size]
        width = max(len(prompts[index]) for index in group)
        ids = torch.tensor([[pad] * (width - len(prompts[index])) + prompts[index] for index in group])
        generated = model.generate(
            input_ids=ids, attention_mask=torch.where(ids == pad, 0, 1), max_new_tokens=num_new, do_sample=False
        )
        for index, row in zip(group, generated[:, width:].tolist(), strict=True):
            outputs[index] = row[: row.index(end) + 1] if end in row else row
    return outputs


def is_exact(text: str, row: Row) -> bool:
    """Whether the last number of the text is the answer."""
    numbers = re.findall(r"\d+", text)
    return bool(numbers) and int(numbers[-1]) == row["answer_number"]


def by_subset(rows: list[Row], values: list[float]) -> dict[str, float]:
    """The mean value of each subset, and of all rows as `all`."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        groups[row["subset"]].append(value)
    means = {subset: round(sum(group) / len(group), 4) for subset, group in groups.items()}
    return {**means, "all": round(sum(values) / len(values), 4)}


@torch.inference_mode()
def agreement(target: Any, drafter: Any, prompt: list[int], output: list[int]) -> float:
    """The share of output positions where both models' most likely tokens are the same, given the same text before."""
    ids = torch.tensor([prompt + output])
    positions = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
    best = [model(ids).logits[0, positions].argmax(-1) for model in (target, drafter)]
    return float((best[0] == best[1]).float().mean())


def evaluate(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row], target: Any, drafter: Any, num_new: int
) -> dict[str, Any]:
    """Exact match of both models and their agreement on the target's greedy outputs, per subset and for `all`."""
    prompts = [tokenizer(WORLDS[row["task"]].example(row)[0]).input_ids for row in rows]
    outputs: dict[str, list[list[int]]] = {}
    figures: dict[str, Any] = {"num_rows": len(rows)}
    for name, model in (("target", target), ("drafter", drafter)):
        outputs[name] = greedy_ids(model, prompts, num_new)
        exact = [is_exact(str(tokenizer.decode(ids)), row) for ids, row in zip(outputs[name], rows, strict=True)]
        figures[f"{name}_exact"] = by_subset(rows, [float(value) for value in exact])
    pairs = zip(prompts, outputs["target"], strict=True)
    figures["agreement"] = by_subset(rows, [agreement(target, drafter, *pair) for pair in pairs])
    return figures
