"""Teacher-forced numbers of drafters against their target, all on the same positions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from specbench.fairness.forecasts import Forecaster, Text, batches
from specbench.fairness.positions import position_numbers
from specbench.fairness.spread import Array
from specbench.running.records import Key

Numbers = dict[Key, Array]  # of each text its positions' numbers [num_positions, positions.NUM_COLUMNS]


@torch.inference_mode()
def forced_numbers(
    target: Forecaster,
    drafters: Sequence[Forecaster],
    texts: Mapping[Key, Text],
    vocab_size: int,
    report: Callable[[int], None] = lambda num_texts: None,
) -> list[Numbers]:
    """The numbers of each drafter at every position of the texts; `report` is told how many texts are done.

    The target reads each text once, whatever the number of drafters.
    """
    keys, found = list(texts), [Numbers() for _ in drafters]
    num_done = 0
    for batch in batches([texts[key] for key in keys], vocab_size):
        chosen = [texts[keys[number]] for number in batch]
        target_logits = target.logits(chosen)
        tokens = torch.tensor([token for text in chosen for token in text.new_ids])
        ends = np.cumsum([len(text.new_ids) for text in chosen])[:-1]
        for drafter, numbers in zip(drafters, found, strict=True):
            logits = drafter.logits(chosen).to(target_logits.device)
            place = "cpu" if logits.device.type == "mps" else logits.device
            made = position_numbers(target_logits, logits, tokens.to(place)).numpy()
            numbers |= {keys[number]: part for number, part in zip(batch, np.split(made, ends), strict=True)}
        num_done += len(batch)
        report(num_done)
    return found
