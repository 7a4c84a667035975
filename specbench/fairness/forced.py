"""Teacher-forced numbers of drafters against their target, all on the same positions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from specbench.fairness.forecasts import Forecaster, batches
from specbench.fairness.positions import position_numbers
from specbench.fairness.spread import Array
from specbench.running.records import Key
from specbench.training.passes import Batch, Sample

Numbers = dict[Key, Array]  # of each text its positions' numbers [num_positions, positions.NUM_COLUMNS]


@torch.inference_mode()
def forced_numbers(
    target: Forecaster,
    drafters: Sequence[Forecaster],
    texts: Mapping[Key, Sample],
    vocab_size: int,
    report: Callable[[int], None] = lambda num_texts: None,
) -> list[Numbers]:
    """The numbers of each drafter at every learnt position of the texts; `report` is told how many texts are done.

    The target reads each text once, whatever the number of drafters.
    """
    keys, found = list(texts), [Numbers() for _ in drafters]
    num_done = 0
    for chosen in batches([texts[key] for key in keys], vocab_size):
        batch = Batch([texts[keys[number]] for number in chosen])
        target_logits = target.logits(batch)
        ends = np.cumsum([text.num_learnt for text in batch.samples])[:-1]
        for drafter, numbers in zip(drafters, found, strict=True):
            logits = drafter.logits(batch).to(target_logits.device)
            place = "cpu" if logits.device.type == "mps" else logits.device
            made = position_numbers(target_logits, logits, batch.learnt_ids.to(place)).numpy()
            numbers |= {keys[number]: part for number, part in zip(chosen, np.split(made, ends), strict=True)}
        num_done += len(chosen)
        report(num_done)
    return found
