"""The target's logits where a greedy output differs from AR's: whether the target is nearly undecided there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from statistics import median
from typing import TYPE_CHECKING

from specbench.records.records import Record
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import FilePart

if TYPE_CHECKING:
    import torch

    from specbench.models.scoring import ScoringModel

DecodeText = Callable[[Sequence[int]], str]


class TokenDifference(FilePart):
    """The first token at which a method's greedy output differs from AR's.

    `position`: counts new tokens from 0. A token is None if its output had ended. `gap`: the highest logit of the
    target there − the lower logit of the two tokens; None if one output had ended.
    """

    prompt: str
    position: int
    ar_token: str | None
    method_token: str | None
    gap: float | None
    near_tie: bool


class Greedy(FilePart):
    """A method's greedy outputs against AR's.

    `num_judged`, `num_accepted`: the verified and accepted draft tokens; null for a decoder that does not count them.
    `example`: the first difference that is not a near-tie; if all are, the first one.
    """

    num_prompts: int
    num_equal: int
    num_near_ties: int
    num_judged: int | None
    num_accepted: int | None = None
    median_position: float | None  # of the first differences
    example: TokenDifference | None

    @property
    def num_diverged(self) -> int:
        return self.num_prompts - self.num_equal - self.num_near_ties


class Noise(FilePart):
    """The change of the target's logits with the number of tokens that one pass scores.

    `num_changed`: prompts for which AR picks another token at some position if computed with other query lengths.
    `max_gap_change`: the largest change of a gap between the highest logit and one of the next nine. `tolerance`: the
    largest gap of a near-tie (see `measure_noise`). `mean_square_change`: E_p[(Δ ln p)²] per position, the noise
    in the probabilities of a correct method.
    """

    num_prompts: int
    num_positions: int
    num_changed: int
    max_gap_change: float
    tolerance: float
    mean_square_change: float


@dataclass(frozen=True)
class BaselineAnswer:
    """A prompt of the audit and AR's greedy output for it."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Returns the first position at which two outputs differ: if one is the start of the other, the position after its
    end. None if they are equal."""
    if list(first) == list(second):
        return None
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def compare_greedy(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], outputs: Sequence[list[int]], tolerance: float,
    decode_text: DecodeText, num_verified: int | None = None, num_accepted: int | None = None,
) -> Greedy:  # fmt: skip
    """Compares greedy outputs with AR's answers, one output per answer. Only outputs that differ are scored again.
    `num_verified`, `num_accepted`: the draft tokens verified and accepted while the outputs were made."""
    differences = find_differences(target, answers, outputs, tolerance, decode_text)
    serious = [each for each in differences if not each.near_tie]
    return Greedy(
        num_prompts=len(answers), num_equal=len(answers) - len(differences),
        num_near_ties=len(differences) - len(serious),
        num_judged=num_verified, num_accepted=num_accepted,
        median_position=median(each.position for each in differences) if differences else None,
        example=next(iter([*serious, *differences]), None),
    )  # fmt: skip


def find_differences(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], outputs: Sequence[list[int]], tolerance: float,
    decode_text: DecodeText = str,
) -> list[TokenDifference]:  # fmt: skip
    """Returns the first difference of each output that differs from its answer. It is a near-tie if and only if the
    logits of both tokens are within `tolerance` of the highest."""
    differences = []
    for answer, output in zip(answers, outputs, strict=True):
        position = first_difference(answer.token_ids, output)
        if position is None:
            continue
        tokens = [ids[position] if position < len(ids) else None for ids in (answer.token_ids, output)]
        ids = [token for token in tokens if token is not None]
        gap = None
        if len(ids) == 2:
            gap = logit_gap(target, [*answer.prompt_ids, *answer.token_ids[:position]], ids)
        ar_token, method_token = (None if token is None else decode_text([token]) for token in tokens)
        differences.append(
            TokenDifference(
                prompt=answer.name, position=position, ar_token=ar_token, method_token=method_token, gap=gap,
                near_tie=gap is not None and gap <= tolerance,
            )
        )  # fmt: skip
    return differences


def logit_gap(target: "ScoringModel", ids: list[int], tokens: Sequence[int]) -> float:
    """Returns the highest logit after `ids` − the lowest logit of the tokens. It is computed twice, with all of `ids`
    in one pass and with the last token in a pass of its own; the larger value counts."""
    import torch

    with torch.inference_mode():
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


def measure_noise(target: "ScoringModel", answers: Sequence[BaselineAnswer], max_query_length: int) -> Noise:
    """Measures the noise of the target's logits along AR's answers: passes over one token against passes over 2 …
    `max_query_length` tokens, and against one pass over all. The tolerance is SAFETY times the largest change of a gap.
    The model keeps only its last sequence."""
    import torch

    largest, smallest_step, squares, num_positions, num_changed = 0.0, 0.0, 0.0, 0, 0
    for answer in answers:
        with torch.inference_mode():
            alone = forced_logits(target, answer, repeat(1))
            others = [forced_logits(target, answer, cycle(range(2, max(2, max_query_length) + 1)))]
            target.reset()
            whole = target.score([*answer.prompt_ids, *answer.token_ids[:-1]], len(answer.token_ids))
            others.append(whole.logits.clone())
            ids = torch.tensor(answer.token_ids, device=alone.device)
            num_changed += any(bool((rows.argmax(-1) != ids).any()) for rows in others)
            num_positions += len(answer.token_ids)
            smallest_step = max(smallest_step, torch.finfo(alone.dtype).eps * float(alone.abs().max()))
            largest = max(largest, *(gap_change(alone, rows) for rows in others))
            squares += max(log_change(alone, rows) for rows in others)
    return Noise(
        num_prompts=len(answers), num_positions=num_positions, num_changed=num_changed, max_gap_change=largest,
        tolerance=max(SAFETY * largest, ULPS * smallest_step), mean_square_change=squares / max(1, num_positions),
    )  # fmt: skip


def forced_logits(target: "ScoringModel", answer: BaselineAnswer, query_lengths: Iterable[int]) -> "torch.Tensor":
    """Returns the logits before each token of the answer, [num_tokens, vocab], from passes over the last
    `query_lengths` tokens."""
    import torch

    target.reset()
    ids = [*answer.prompt_ids, *answer.token_ids]
    ends = range(len(answer.prompt_ids), len(ids))
    pairs = zip(ends, chain([1], query_lengths), strict=False)
    return torch.stack([target.score(ids[:end], min(length, end)).logits[-1].clone() for end, length in pairs])


def gap_change(first: "torch.Tensor", second: "torch.Tensor") -> float:
    """Returns the largest change of a distance between the highest logit of a position and another of its NUM_TOP
    highest."""
    top = first.topk(min(NUM_TOP, first.shape[-1]), dim=-1).indices
    moved = (second.float() - first.float()).gather(1, top)
    return float((moved[:, :1] - moved).abs().max())


def log_change(first: "torch.Tensor", second: "torch.Tensor") -> float:
    """Returns Σ over positions of E_p[(Δ ln p)²]."""
    logs, others = (rows.float().log_softmax(dim=-1) for rows in (first, second))
    return float((logs.exp() * (logs - others).square()).nan_to_num().sum())


NUM_NOISE_ANSWERS = 4
NUM_NOISE_TOKENS = 64


def count_ties(
    records: Sequence[Record], method: MethodSpec, target: "ScoringModel", prompt_ids: Callable[[Record], list[int]]
) -> tuple[int, float]:
    """Returns how many differences between a method's greedy answers and AR's are near-ties, and the tolerance in
    logits.

    `records`: the records whose answers differ, with the same history on both sides. `prompt_ids`: returns the prompt
    of a record. The target scores the first difference of each, and the beginnings of AR's first answers for the noise.
    The model keeps only its last sequence.
    """
    answers = [
        BaselineAnswer(f"{record.subset} {record.id}", prompt_ids(record), record.methods["ar"].token_ids.tolist())
        for record in records
    ]
    outputs = [record.methods[method.name].token_ids.tolist() for record in records]
    tolerance = near_tie_tolerance(target, answers, method.most_draft_tokens + 1)
    return sum(each.near_tie for each in find_differences(target, answers, outputs, tolerance)), tolerance


def near_tie_tolerance(target: "ScoringModel", answers: Sequence[BaselineAnswer], max_query_length: int) -> float:
    """Returns the tolerance in logits, measured along the beginnings of the first NUM_NOISE_ANSWERS answers."""
    beginnings = [
        BaselineAnswer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]
    ]
    return measure_noise(target, beginnings, max_query_length).tolerance
