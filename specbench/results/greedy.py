"""Finds where a method's greedy outputs differ from AR's, and whether the target is nearly undecided there."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, cycle, repeat
from statistics import median

import torch

from specbench.models.scoring import ScoringModel
from specbench.results.verdict import BaselineAnswer, Greedy, Noise, TokenDifference, first_difference
from specbench.running.records import Record
from specbench.specs.method import MethodSpec

DecodeText = Callable[[Sequence[int]], str]


def compare_greedy(
    target: ScoringModel,
    answers: Sequence[BaselineAnswer],
    outputs: Sequence[list[int]],
    tolerance: float,
    decode_text: DecodeText,
    num_judged: int | None = None,
    num_accepted: int | None = None,
) -> Greedy:
    """Compares greedy outputs with AR's answers, one output per answer. Only outputs that differ are scored again.
    `num_judged`, `num_accepted`: the draft tokens judged and accepted while the outputs were made."""
    found = find_differences(target, answers, outputs, tolerance, decode_text)
    serious = [each for each in found if not each.near_tie]
    return Greedy(
        num_prompts=len(answers), num_equal=len(answers) - len(found), num_near_ties=len(found) - len(serious),
        num_judged=num_judged, num_accepted=num_accepted,
        median_position=median(each.position for each in found) if found else None,
        example=next(iter([*serious, *found]), None),
    )  # fmt: skip


def find_differences(
    target: ScoringModel, answers: Sequence[BaselineAnswer], outputs: Sequence[list[int]], tolerance: float,
    decode_text: DecodeText = str,
) -> list[TokenDifference]:  # fmt: skip
    """Returns the first difference of each output that differs from its answer."""
    pairs = zip(answers, outputs, strict=True)
    found = [find_difference(target, answer, output, tolerance, decode_text) for answer, output in pairs]
    return [each for each in found if each is not None]


def find_difference(
    target: ScoringModel, answer: BaselineAnswer, output: list[int], tolerance: float, decode_text: DecodeText
) -> TokenDifference | None:
    """Returns the first difference of an output; None without one. It is a near-tie if and only if the logits of both
    tokens are within `tolerance` of the highest."""
    position = first_difference(answer.token_ids, output)
    if position is None:
        return None
    tokens = [ids[position] if position < len(ids) else None for ids in (answer.token_ids, output)]
    gap = None
    ids = [token for token in tokens if token is not None]
    if len(ids) == 2:
        gap = logit_gap(target, [*answer.prompt_ids, *answer.token_ids[:position]], ids)
    ar_token, method_token = (None if token is None else decode_text([token]) for token in tokens)
    return TokenDifference(
        prompt=answer.name, position=position, ar_token=ar_token, method_token=method_token, gap=gap,
        near_tie=gap is not None and gap <= tolerance,
    )  # fmt: skip


@torch.inference_mode()
def logit_gap(target: ScoringModel, ids: list[int], tokens: Sequence[int]) -> float:
    """Returns the highest logit after `ids` − the lowest logit of the tokens. It is computed twice, with all of `ids`
    in one pass and with the last token in a pass of its own; the larger value counts."""
    target.reset()
    rows = [target.score(ids, 1).logits[-1].float()]
    if len(ids) > 1:
        target.reset()
        target.score(ids[:-1], 1)
        rows.append(target.score(ids, 1).logits[-1].float())
    return max(float(row.max() - row[token]) for row in rows for token in tokens)


SAFETY = 2.0  # the audited positions are a sample: the logits of others may change twice as much
ULPS = 2.0  # a tolerance is at least this many rounding steps of the largest logit
NUM_TOP = 10


@torch.inference_mode()
def measure_noise(target: ScoringModel, answers: Sequence[BaselineAnswer], max_query_length: int) -> Noise:
    """Measures the noise of the target's logits along AR's answers: passes over one token against passes over 2 …
    `max_query_length` tokens, and against one pass over all. The tolerance is SAFETY times the largest change of a gap.
    The model keeps only its last sequence."""
    largest, smallest_step, squares, num_positions, num_changed = 0.0, 0.0, 0.0, 0, 0
    for answer in answers:
        alone = forced_logits(target, answer, repeat(1))
        others = [
            forced_logits(target, answer, cycle(range(2, max(2, max_query_length) + 1))),
            one_pass_logits(target, answer),
        ]
        ids = torch.tensor(answer.token_ids, device=alone.device)
        num_changed += any(bool((rows.argmax(-1) != ids).any()) for rows in others)
        num_positions += len(answer.token_ids)
        step = torch.finfo(alone.dtype).eps * float(alone.abs().max())
        smallest_step = max(smallest_step, step)
        largest = max(largest, *(gap_change(alone, rows) for rows in others))
        squares += max(log_change(alone, rows) for rows in others)
    return Noise(
        num_prompts=len(answers), num_positions=num_positions, num_changed=num_changed, max_gap_change=largest,
        tolerance=max(SAFETY * largest, ULPS * smallest_step), mean_square_change=squares / max(1, num_positions),
    )  # fmt: skip


def forced_logits(target: ScoringModel, answer: BaselineAnswer, query_lengths: Iterable[int]) -> torch.Tensor:
    """Returns the logits before each token of the answer, [num_tokens, vocab], from passes over the last
    `query_lengths` tokens."""
    target.reset()
    ids = [*answer.prompt_ids, *answer.token_ids]
    start = len(answer.prompt_ids)
    rows = []
    for end, length in zip(range(start, len(ids)), chain([1], query_lengths), strict=False):
        rows.append(target.score(ids[:end], min(length, end)).logits[-1].clone())
    return torch.stack(rows)


def one_pass_logits(target: ScoringModel, answer: BaselineAnswer) -> torch.Tensor:
    """Returns the logits before each token of the answer, [num_tokens, vocab], from one pass over all tokens."""
    target.reset()
    return target.score([*answer.prompt_ids, *answer.token_ids[:-1]], len(answer.token_ids)).logits.clone()


def gap_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """Returns the largest change of a distance between the highest logit of a position and another of its NUM_TOP
    highest."""
    top = first.topk(min(NUM_TOP, first.shape[-1]), dim=-1).indices
    moved = (second.float() - first.float()).gather(1, top)
    return float((moved[:, :1] - moved).abs().max())


def log_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """Returns Σ over positions of E_p[(Δ ln p)²]."""
    logs, others = (torch.log_softmax(rows.float(), dim=-1) for rows in (first, second))
    return float((logs.exp() * (logs - others).square()).nan_to_num().sum())


NUM_NOISE_ANSWERS = 4
NUM_NOISE_TOKENS = 64


def count_ties(
    records: Sequence[Record], method: MethodSpec, target: ScoringModel, prompt_ids: Callable[[Record], list[int]]
) -> tuple[int, float]:
    """Returns how many differences between a method's greedy answers and AR's are near-ties, and the tolerance in
    logits.

    `records`: the records whose answers differ, with the same history on both sides. `prompt_ids`: returns the prompt
    of a record. The target scores the first difference of each, and the beginnings of AR's first answers for the noise.
    The model keeps only its last sequence.
    """
    answers = [
        BaselineAnswer(f"{record['subset']} {record['id']}", prompt_ids(record), record["methods"]["ar"]["token_ids"])
        for record in records
    ]
    outputs = [record["methods"][method.name]["token_ids"] for record in records]
    tolerance = near_tie_tolerance(target, answers, method.most_draft_tokens + 1)
    return sum(each.near_tie for each in find_differences(target, answers, outputs, tolerance)), tolerance


def near_tie_tolerance(target: ScoringModel, answers: Sequence[BaselineAnswer], max_query_length: int) -> float:
    """Returns the tolerance in logits, measured along the beginnings of the first NUM_NOISE_ANSWERS answers."""
    beginnings = [
        BaselineAnswer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]
    ]
    return measure_noise(target, beginnings, max_query_length).tolerance
