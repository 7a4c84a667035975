"""What tests of a distribution share: the number of draws, a small vocabulary, and the test."""

from collections import Counter
from typing import Any

import torch
from scipy import stats

from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from tests.support.toys import TextModel

NUM_DRAWS = 300
VOCAB = 3
PROMPT = [0, 1]
PLAIN = Sampling(temperature=1.0)


def chi_square_p(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The p-value of the counts under the expected distribution, cells below five expected draws merged."""
    num_draws = counts.total()
    observed_cells, expected_cells, rest_observed, rest_expected = [], [], 0, 0.0
    for tokens, mass in expected.items():
        if mass * num_draws < 5:
            rest_observed += counts[tokens]
            rest_expected += mass * num_draws
        else:
            observed_cells.append(counts[tokens])
            expected_cells.append(mass * num_draws)
    if rest_expected:
        observed_cells.append(rest_observed)
        expected_cells.append(rest_expected)
    scale = num_draws / sum(expected_cells)
    return float(stats.chisquare(observed_cells, [cell * scale for cell in expected_cells]).pvalue)


def draws(
    target: TextModel,
    drafter: Drafter,
    rule: Any,
    gamma: int,
    seed: int,
    sampling: Sampling = PLAIN,
    num_draws: int = NUM_DRAWS,
) -> Counter[tuple[int, ...]]:
    """The first three tokens of each of many generations."""
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(num_draws):
        generation = decode(
            target, drafter, rule, PROMPT, num_draft_tokens=gamma, sampling=sampling,
            stop=StopRules(max_new_tokens=4), generator=generator,
        )  # fmt: skip
        counts[tuple(generation.token_ids[:3])] += 1
    return counts
