"""The noise floor of greedy decoding: the target's logits at the same positions, scored with other query lengths.

Matrix products of other shapes round differently, so two correct decoders may part where two logits are as good as
equal. How far the gaps between logits move is measured, not assumed.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, cycle, repeat

import torch

from specbench.audit.outputs import Answer
from specbench.audit.verdict import Noise
from specbench.decoding.drafters.model import ScoringModel

SAFETY = 2.0  # the audited positions are a sample: others may move twice as far
ULPS = 2.0  # a tolerance is at least this many rounding steps of the largest logit
NUM_TOP = 10


@torch.inference_mode()
def measure_noise(target: ScoringModel, answers: Sequence[Answer], max_query_length: int) -> Noise:
    """The target's logits along AR's answers, one token a pass, against 2 … `max_query_length` a pass and all at once.

    Leaves nothing in the model but its last sequence.
    """
    largest, smallest_step, squares, num_positions, num_changed = 0.0, 0.0, 0.0, 0, 0
    for answer in answers:
        alone = forced(target, answer, repeat(1))
        others = [forced(target, answer, cycle(range(2, max(2, max_query_length) + 1))), whole(target, answer)]
        chosen = torch.tensor(answer.token_ids, device=alone.device)
        num_changed += any(bool((rows.argmax(-1) != chosen).any()) for rows in others)
        num_positions += len(answer.token_ids)
        step = torch.finfo(alone.dtype).eps * float(alone.abs().max())
        smallest_step = max(smallest_step, step)
        largest = max(largest, *(gap_change(alone, rows) for rows in others))
        squares += max(log_change(alone, rows) for rows in others)
    return Noise(
        num_prompts=len(answers), num_positions=num_positions, num_changed=num_changed, max_gap_change=largest,
        tolerance=max(SAFETY * largest, ULPS * smallest_step), mean_square_change=squares / max(1, num_positions),
    )  # fmt: skip


def forced(target: ScoringModel, answer: Answer, query_lengths: Iterable[int]) -> torch.Tensor:
    """The logits that precede each token of the answer, [num_tokens, vocab], fed with the last 1, 2, … tokens again."""
    target.reset()
    ids = [*answer.prompt_ids, *answer.token_ids]
    start = len(answer.prompt_ids)
    rows = []
    for end, length in zip(range(start, len(ids)), chain([1], query_lengths), strict=False):
        rows.append(target.score(ids[:end], min(length, end))[-1].clone())
    return torch.stack(rows)


def whole(target: ScoringModel, answer: Answer) -> torch.Tensor:
    """The same logits from one pass over everything."""
    target.reset()
    return target.score([*answer.prompt_ids, *answer.token_ids[:-1]], len(answer.token_ids)).clone()


def gap_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest change of the distance between the highest logit of a position and one of the next highest."""
    top = first.topk(min(NUM_TOP, first.shape[-1]), dim=-1).indices
    moved = (second.float() - first.float()).gather(1, top)
    return float((moved[:, :1] - moved).abs().max())


def log_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """Σ over positions of E_p[(Δ ln p)²]."""
    logs, others = (torch.log_softmax(rows.float(), dim=-1) for rows in (first, second))
    return float((logs.exp() * (logs - others).square()).nan_to_num().sum())
