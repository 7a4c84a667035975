"""A method's greedy outputs against AR's: where they part, and whether the target was undecided there."""

from collections.abc import Callable, Sequence
from statistics import median

import torch

from specbench.audit.outputs import Answer, first_difference
from specbench.audit.verdict import Difference, Greedy
from specbench.decoding.drafters.model import ScoringModel

DecodeText = Callable[[Sequence[int]], str]


def compare(
    target: ScoringModel,
    answers: Sequence[Answer],
    outputs: Sequence[list[int]],
    tolerance: float,
    decode_text: DecodeText,
    num_judged: int | None = None,
) -> Greedy:
    """One output per answer of AR, written while `num_judged` draft tokens were judged; only those that differ are
    scored again."""
    found = [
        difference(target, answer, output, tolerance, decode_text)
        for answer, output in zip(answers, outputs, strict=True)
    ]
    differences = [each for each in found if each is not None]
    serious = [each for each in differences if not each.near_tie]
    return Greedy(
        num_prompts=len(answers), num_equal=len(answers) - len(differences),
        num_near_ties=len(differences) - len(serious),
        num_judged=num_judged,
        median_position=median(each.position for each in differences) if differences else None,
        example=next(iter([*serious, *differences]), None),
    )  # fmt: skip


def difference(
    target: ScoringModel, answer: Answer, output: list[int], tolerance: float, decode_text: DecodeText
) -> Difference | None:
    """The first difference, a near-tie iff both tokens' logits are within `tolerance` of the highest."""
    position = first_difference(answer.token_ids, output)
    if position is None:
        return None
    tokens = [ids[position] if position < len(ids) else None for ids in (answer.token_ids, output)]
    gap = None
    chosen = [token for token in tokens if token is not None]
    if len(chosen) == 2:
        gap = logit_gap(target, [*answer.prompt_ids, *answer.token_ids[:position]], chosen)
    ar_token, method_token = (None if token is None else decode_text([token]) for token in tokens)
    return Difference(
        prompt=answer.name, position=position, ar_token=ar_token, method_token=method_token, gap=gap,
        near_tie=gap is not None and gap <= tolerance,
    )  # fmt: skip


@torch.inference_mode()
def logit_gap(target: ScoringModel, ids: list[int], tokens: Sequence[int]) -> float:
    """How far the lowest of the tokens' logits is below the highest logit after `ids`: the larger of two fresh
    scorings, all of `ids` in one pass and the last token alone."""
    target.reset()
    rows = [target.score(ids, 1)[-1].float()]
    if len(ids) > 1:
        target.reset()
        target.score(ids[:-1], 1)
        rows.append(target.score(ids, 1)[-1].float())
    return max(float(row.max() - row[token]) for row in rows for token in tokens)
