"""Draft lengths replayed from a recorded run: the steps of the same texts with another length.

The record holds, of each draft token, its verdict and the drafter's confidence and entropy. Both depend on the text
before the token only, not on where steps begin, so that they tell where another length would have ended each draft. One
kind of position is unknown: after a draft that was accepted whole the target's own token follows, and nothing was
drafted there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from specbench.decoding.draft_length import DraftLength, make_length
from specbench.records.columns import StepCounts
from specbench.records.records import Generation, Record
from specbench.results.answers import BASELINE, answers_of
from specbench.results.draft_lengths import Costs
from specbench.specs.components import build
from specbench.specs.method import MethodSpec

RULES = ("rejection", "exact_match")  # the text has the same distribution with any draft length
RECORDING = {"policy": "confidence", "threshold": 0.0}  # never ends a draft, and records what other lengths read


@dataclass(frozen=True)
class RecordedVerdicts:
    """The verdicts of one generation. `accepted`: whether the draft token at each new position was accepted; None if
    nothing was drafted there.

    drafted: the number of draft tokens, by the position where a recorded step began. ends: the positions before which
    the drafter itself ended a draft, each with whether the draft token before it was rejected; a draft in which that
    token is accepted has another text and may go on. most_tokens: the new tokens that the limits allow.
    """

    accepted: Sequence[bool | None]
    drafted: Mapping[int, int]
    ends: frozenset[tuple[int, bool]]
    most_tokens: int

    @classmethod
    def of(cls, generation: Generation, num_draft_tokens: int, max_new_tokens: int) -> "RecordedVerdicts":
        """Reads the steps of a record. `num_draft_tokens`: the recorded draft length."""
        num_tokens = len(generation.token_ids)
        most = num_tokens if generation.finish in ("length", "context") else max_new_tokens
        accepted: list[bool | None] = [None] * num_tokens
        drafted, ends = {}, set()
        start = 1  # the token of the prefill
        for step in generation.steps:
            place = start + step.accepted
            accepted[start:place] = [True] * step.accepted
            is_ended = step.verified == step.drafted < min(num_draft_tokens, most - start - 1)
            is_rejected = step.verified > step.accepted
            if place < num_tokens and is_rejected:
                accepted[place] = False
            if is_ended:
                ends.add((start + step.drafted, is_rejected))
            drafted[start] = step.drafted
            start += step.emitted
        return cls(accepted, drafted, frozenset(ends), most)

    def steps(self, num_draft_tokens: int, unknown: bool) -> tuple[list[StepCounts], int]:
        """Returns the steps with drafts of at most `num_draft_tokens`, and the number of missing verdicts. `unknown`
        takes the place of a missing verdict: True gives the fewest possible steps, False the most."""
        counts, num_missing, start = [], 0, 1
        accepted, num_tokens = self.accepted, len(self.accepted)
        while start < num_tokens:
            length = max(0, min(num_draft_tokens, self.most_tokens - start - 1))
            end, place = start + min(length, self.drafted.get(start, length)), start
            while place < end and place < num_tokens:
                verdict = accepted[place]
                if verdict is None:
                    num_missing += 1
                    verdict = unknown
                if self.ends and (place + 1, not verdict) in self.ends:
                    end = place + 1
                if not verdict:
                    break
                place += 1
            is_rejected = place < end and place < num_tokens
            emitted = min(place + 1, num_tokens) - start
            counts.append(StepCounts(end - start, place - start + is_rejected, place - start, emitted))
            start = place + 1
        return counts, num_missing


Signals = tuple[float, float]  # confidence and entropy of a draft token


@dataclass(frozen=True)
class _Tail:
    """The rest of a recorded draft. `is_cut`: whether it ended at the draft length, and not by the drafter."""

    draft: Sequence[Signals] = ()
    is_cut: bool = True

    def after(self) -> "_Tail":
        return _Tail(self.draft[1:], self.is_cut)


@dataclass(frozen=True)
class RecordedDrafts:
    """A generation whose record holds the confidence and the entropy of each draft token. `verdicts`: of the same."""

    verdicts: RecordedVerdicts
    confidences: Sequence[float]
    entropies: Sequence[float]
    steps: Sequence[StepCounts]
    num_draft_tokens: int

    @classmethod
    def of(cls, generation: Generation, num_draft_tokens: int, max_new_tokens: int) -> "RecordedDrafts":
        """`num_draft_tokens`: the recorded draft length. Raises ValueError for a record without these numbers."""
        confidences, entropies = generation.draft_confidence, generation.draft_entropy
        if confidences is None or entropies is None:
            raise ValueError("has no draft_confidence: record it with a draft length that is asked within drafts")
        verdicts = RecordedVerdicts.of(generation, num_draft_tokens, max_new_tokens)
        return cls(verdicts, confidences, entropies, list(generation.steps), num_draft_tokens)

    @cached_property
    def _tails(self) -> dict[int, "_Tail"]:
        """By position of the text, the rest of the recorded draft from there on. Of a rejected token, it is the draft
        that followed it; behind the end of the text, what was drafted beyond it."""
        tails, start, place = {}, 1, 0
        for step in self.steps:
            rows = slice(place, place + step.drafted)
            draft = list(zip(self.confidences[rows], self.entropies[rows], strict=True))
            is_cut = step.drafted == min(self.num_draft_tokens, self.verdicts.most_tokens - start - 1)
            for number in range(min(step.verified + (step.emitted == step.accepted), step.drafted)):
                tails[start + number] = _Tail(draft[number:], is_cut)
            start, place = start + step.emitted, place + step.drafted
        return tails

    def replay(self, length: DraftLength, num_draft_tokens: int, unknown: bool) -> "Replay":
        """Returns the steps with another length and at most `num_draft_tokens` tokens. `unknown`: takes the place of a
        missing verdict."""
        length.begin_prompt()
        found, start = Replay(), 1
        while start < len(self.verdicts.accepted):
            start += self._step(length, start, num_draft_tokens, unknown, found)
        return found

    def _step(self, length: DraftLength, start: int, num_draft_tokens: int, unknown: bool, found: "Replay") -> int:
        """Adds the step that begins at a position of the text. Returns the number of tokens that it emits."""
        known, num_tokens = self.verdicts, len(self.verdicts.accepted)
        most = length.limit(max(0, min(num_draft_tokens, known.most_tokens - start - 1)))
        num_drafted, num_passes, place, is_rejected = 0, 0, start, False
        rest: _Tail | None = None  # what is left of a draft that the text does not follow any more
        while num_drafted < most:
            # 1. The next token of the draft, if it is known.
            is_text = rest is None and place < num_tokens
            tail = rest if rest is not None else self._tails.get(place)
            if not is_text and (tail is None or not tail.draft):
                found.num_cut += tail is None or tail.is_cut
                break
            confidence, entropy = tail.draft[0] if tail is not None else self._before(place)
            # 2. The length decides.
            num_passes += 1
            if not length.draws(entropy):
                break
            num_drafted += 1
            goes_on = length.goes_on(confidence)
            # 3. The verdict on it, as long as the draft is the text.
            after = _Tail() if tail is None else tail.after()
            if not is_text:
                rest = after
            else:
                verdict = known.accepted[place]
                found.num_verdicts += 1
                found.num_missing += verdict is None
                is_accepted = unknown if verdict is None else verdict
                goes_on = goes_on and (place + 1, not is_accepted) not in known.ends
                place, is_rejected = place + is_accepted, not is_accepted
                if is_rejected or place == num_tokens:
                    rest = after
            if not goes_on:
                break
        emitted = min(place + 1, num_tokens) - start
        found.steps.append(StepCounts(num_drafted, place - start + is_rejected, place - start, emitted))
        found.num_passes.append(num_passes)
        length.observe(num_drafted, place - start)
        return emitted

    def _before(self, place: int) -> Signals:
        """Returns the numbers of the nearest recorded token before a position at which nothing was drafted."""
        while place > 1:
            place -= 1
            if place in self._tails:
                return self._tails[place].draft[0]
        return 0.5, 1.0


@dataclass
class Replay:
    """Replayed steps. `num_passes`: draft passes of each, of which one may have drawn nothing. `num_verdicts`: those
    needed, of which `num_missing` are not recorded. `num_cut`: drafts that might have gone on where the recorded one
    was cut, after a rejected token."""

    steps: list[StepCounts] = field(default_factory=list)
    num_passes: list[int] = field(default_factory=list)
    num_verdicts: int = 0
    num_missing: int = 0
    num_cut: int = 0


def replayed_rates(
    records: Sequence[Record], method: MethodSpec, lengths: Sequence[Mapping[str, Any]],
    most_tokens: Mapping[tuple[str, str], int], draft_cost: float, costs: Costs,
) -> dict[str, float]:  # fmt: skip
    """Returns by draft length the emitted tokens per pass of AR over the recorded generations, with the overhead that
    was measured per step. Missing verdicts count as accepted. `most_tokens`: of an answer, by task and subset."""
    answers, baseline = answers_of(records, method.name), answers_of(records, BASELINE)
    target_pass = float(np.concatenate([a.token_passes for a in baseline]).mean())
    seconds = sum(a.decode_seconds - a.pass_seconds for a in answers)
    overhead = seconds / max(1, sum(a.num_steps for a in answers)) / target_pass
    most = method.num_draft_tokens
    drafts = [
        RecordedDrafts.of(record.methods[method.name], most, most_tokens[record.task, record.subset])
        for record in records
    ]
    rates = {}
    for each in lengths:
        length = length_of(with_length(method, each, most))
        replays = [drafted.replay(length, most, unknown=True) for drafted in drafts]
        steps = [step for replayed in replays for step in replayed.steps]
        num_passes = sum(number for replayed in replays for number in replayed.num_passes)
        verifying = float(costs(np.array([step.drafted + 1 for step in steps])).sum())
        spent = num_passes * draft_cost + verifying + overhead * len(steps)
        rates[length_name(each)] = sum(step.emitted for step in steps) / spent
    return rates


def is_recording(method: MethodSpec) -> bool:
    """Returns whether a method's records hold what other draft lengths read, of drafts that none of them ended."""
    length = method.draft_length
    if length is None or not method.drafter.features.asks_length or not has_same_texts(method):
        return False
    options = length.options
    return length.policy == "confidence" and options["threshold"] == 0 and options["update"] == "none"


def has_same_texts(method: MethodSpec) -> bool:
    """Returns whether the verdicts on a method's draft tokens depend only on the text before them."""
    is_chain_of_target_tokens = method.drafter.type == "model" and method.bridge.type == "shared"
    is_alone = method.decodes_with != "target" or method.routes is not None
    return is_chain_of_target_tokens and not is_alone and method.verification.rule in RULES


def candidate_lengths(draft_cost: float, verify_costs: Sequence[float], asked: bool = True) -> list[dict[str, Any]]:
    """Returns the draft lengths that `tune` and `predict` try, as they are written in a method's file. `asked`: whether
    the drafter asks within drafts."""
    costs = {"policy": "costs", "draft_cost": round(draft_cost, 4), "verify_costs": [round(v, 4) for v in verify_costs]}
    others = [{"policy": "heuristic", "first": 5}, costs]
    if not asked:
        return others
    return [
        *({"policy": "confidence", "threshold": threshold} for threshold in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
        {"policy": "confidence", "threshold": 0.4, "update": "roc"},
        *({"policy": "adaedl", "threshold": threshold, "update": "none"} for threshold in (0.1, 0.3, 0.5, 0.7)),
        {"policy": "adaedl", "threshold": 0.3, "update": "acceptance"},
        *({"policy": "svip", "threshold": threshold} for threshold in (0.1, 0.2, 0.3, 0.4, 0.6)),
        *others,
    ]


def with_length(method: MethodSpec, length: Mapping[str, Any] | None, num_draft_tokens: int) -> MethodSpec:
    data = method.model_dump(exclude={"sweep"})
    return build(MethodSpec, {**data, "draft_length": length, "num_draft_tokens": num_draft_tokens})


def length_of(method: MethodSpec) -> DraftLength:
    """Returns a method's draft length, to be asked outside of a drafter."""
    spec = method.draft_length
    assert spec is not None
    return make_length(spec.factory, spec.options, method.drafter.features.asks_length)


def length_name(length: Mapping[str, Any]) -> str:
    """Returns a draft length in a few words: its policy, and the values that tell it from its defaults."""
    words = [str(length["policy"])]
    words += [f"{length[key]:g}" for key in ("threshold", "first") if key in length]
    words += [str(length[key]) for key in ("update", "state") if length.get(key) not in (None, "none", "prompt")]
    return " ".join(words)
