"""The fixed prompts of the distribution test: places in prompts and answers of the task where much is undecided.

Where the target is sure of the next token, a wrong method draws what a right one draws. So each prompt of the test is
the beginning of a task prompt with AR's answer, cut where the next tokens have the largest entropy and, if there is a
draft model of the same vocabulary, where its drafts are accepted sometimes: entropy × α(1 − α), α = Σ min(p, q). At
least one is cut where the coming pair of tokens has occurred before, so that prompt lookup has something to find.
No draw of a method enters the choice, so the test stays what it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.audit.outputs import Answer
from specbench.decoding.drafters.model import ScoringModel
from specbench.decoding.sampling import Sampling, process

MAX_POSITIONS = 192  # at the end of each prompt with its answer
LITTLE = 0.01  # what entropy alone counts where drafts are never, or always, accepted


@dataclass(frozen=True)
class Cut:
    """The beginning of a task prompt and its answer, and how much is undecided behind it."""

    name: str
    ids: list[int]
    weight: float
    repeats: bool


@torch.inference_mode()
def choose_prompts(
    target: ScoringModel,
    drafter: ScoringModel | None,
    answers: Sequence[Answer],
    sampling: Sampling,
    num_prompts: int,
    num_tokens: int,
) -> list[Cut]:
    """The best cut of each of the best `num_prompts` answers, for draws of `num_tokens` tokens."""
    per_answer = [cuts(target, drafter, answer, sampling, num_tokens) for answer in answers]
    best = sorted((max(group, key=weight) for group in per_answer if group), key=weight, reverse=True)
    chosen = best[:num_prompts]
    if any(cut.repeats for cut in chosen):
        return chosen
    kept = chosen[: num_prompts - 1]
    repeating = [cut for group in per_answer for cut in group if cut.repeats]
    others = [cut for cut in repeating if cut.name not in {one.name for one in kept}]
    return [*kept, max(others or repeating, key=weight)] if repeating else chosen


def weight(cut: Cut) -> float:
    return cut.weight


def cuts(
    target: ScoringModel, drafter: ScoringModel | None, answer: Answer, sampling: Sampling, num_tokens: int
) -> list[Cut]:
    """Every cut of one prompt with its answer (without the token that ended it), after the first token."""
    ids = [*answer.prompt_ids, *answer.token_ids[:-1]]
    num_rows = min(len(ids), MAX_POSITIONS)
    target_probs = probs_along(target, ids, num_rows, sampling)
    entropy = -torch.xlogy(target_probs, target_probs).sum(-1)
    value = entropy * LITTLE
    if drafter is not None:
        alpha = torch.minimum(target_probs, probs_along(drafter, ids, num_rows, sampling)).sum(-1)
        value += entropy * alpha * (1 - alpha)
    start = len(ids) - num_rows
    pairs: dict[tuple[int, int], int] = {}
    for place in range(1, len(ids)):
        pairs.setdefault((ids[place - 1], ids[place]), place)
    found = []
    for row in range(max(1, num_rows - num_tokens + 1)):
        length = start + row + 1  # row i is the distribution after ids[: start + i + 1]
        repeats = length < len(ids) and pairs[ids[length - 1], ids[length]] < length - 1
        found.append(Cut(answer.name, ids[:length], float(value[row : row + num_tokens].sum()), repeats))
    return found


def probs_along(model: ScoringModel, ids: list[int], num_rows: int, sampling: Sampling) -> torch.Tensor:
    model.reset()
    return process(model.score(ids, num_rows), sampling)
