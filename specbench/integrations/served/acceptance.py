"""Checks a server's acceptance counts of one answer, and converts them to this project's definitions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specbench.decoding.proposal import Step

Source = Literal["steps", "histogram", "totals", "counters"]
VARYING = ("ngram", "suffix")  # prefixes of the names of speculation methods that may draft few tokens or none


MAX_COUNT = 10**8  # tokens or passes of one answer, which an hour does not suffice for
MAX_SECONDS = 86_400.0


class Impossible(Exception):
    """A server reports a count or a time that cannot be true; the message says which."""


def read_count(told: Mapping[str, object], name: str, absent: int | None = None) -> int:
    """Returns a count that a server reports. Raises Impossible for anything but a whole number from 0 to MAX_COUNT, and
    KeyError if there is none and no value for that."""
    return _count(name, told[name] if absent is None else told.get(name, absent))


def read_counts(told: Mapping[str, object], name: str) -> list[int]:
    """Returns a list of counts that a server reports. Raises Impossible and KeyError as `read_count` does."""
    values = told[name]
    if not isinstance(values, list):
        raise Impossible(f"{name} is not a list")
    return [_count(name, value) for value in values]


def _count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise Impossible(f"{name} = {_shown(value)}")
    return value


def read_seconds(told: Mapping[str, object], name: str, unit: float = 1.0) -> float:
    """Returns a time that a server reports in units of `unit` seconds, 0.0 if it reports none. Raises Impossible for
    anything but a number from 0 to MAX_SECONDS."""
    value: Any = told.get(name, 0.0)
    if type(value) not in (int, float) or not 0 <= value * unit <= MAX_SECONDS:  # false for NaN
        raise Impossible(f"{name} = {_shown(value)}")
    return float(value * unit)


def _shown(value: Any) -> str:
    is_long = type(value) is int and abs(value) > MAX_COUNT
    text = f"{value:.3g}" if is_long and math.log10(abs(value)) < 300 else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


@dataclass(frozen=True)
class Acceptance:
    """The counts that a server reports for one answer. They include tokens that were accepted after its end.

    `num_passes`: target passes after the prefill. `num_judged`: Σ min(drafted, accepted + 1); None if only sums are
    known. `passes`: (drafted, accepted) of each pass; None if unknown. `reached`: element i is the number of passes
    that accepted more than i draft tokens; None if unknown. `note`: what the counts leave out, for the row.
    """

    source: Source
    num_passes: int | None
    num_drafted: int
    num_accepted: int
    num_judged: int | None = None
    passes: tuple[tuple[int, int], ...] | None = None
    reached: tuple[int, ...] | None = None
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.source} ({self.note})" if self.note else self.source


def from_passes(passes: Sequence[tuple[int, int]]) -> Acceptance:
    """Returns the acceptance of passes that are given as (drafted, accepted)."""
    return Acceptance(
        "steps", len(passes), sum(drafted for drafted, _ in passes), sum(accepted for _, accepted in passes),
        sum(min(drafted, accepted + 1) for drafted, accepted in passes), tuple(passes),
    )  # fmt: skip


def passes_of_event(num_tokens: int, drafted: int, accepted: int, num_draft_tokens: int) -> list[tuple[int, int]]:
    """Returns the passes behind one event of `num_tokens` new tokens, whose sums grew by `drafted` and `accepted`.

    An event has several tokens if a character has several, and several passes may have written them. The server does
    not report how the accepted tokens are distributed over these passes: they are counted in the last one. Raises
    Impossible if the sums fell, more tokens were accepted than drafted, or more drafted than these passes can draft.
    """
    length = num_draft_tokens or drafted or 1
    if not 0 <= accepted <= drafted or drafted > num_tokens * length:
        raise Impossible(f"{accepted} of {drafted} draft tokens accepted in an event of {num_tokens} tokens")
    found: list[tuple[int, int]] = []
    for number in (*([drafted % length] if drafted % length else []), *[length] * (drafted // length)):
        found.insert(0, (number, min(number, accepted)))
        accepted -= found[0][1]
    return [*[(0, 0)] * (num_tokens - sum(number + 1 for _, number in found)), *found]


def from_histogram(counts: Sequence[int], num_drafted: int, num_draft_tokens: int) -> Acceptance:
    """Returns the acceptance of a histogram: element a is the number of passes that accepted a draft tokens.

    The judged tokens are known only if every pass drafted `num_draft_tokens` tokens, the maximum.
    """
    judged = sum(number * min(num_draft_tokens, accepted + 1) for accepted, number in enumerate(counts))
    num_accepted = sum(number * accepted for accepted, number in enumerate(counts))
    reached = tuple(sum(counts[place + 1 :]) for place in range(num_draft_tokens))
    found = Acceptance("histogram", sum(counts), num_drafted, num_accepted, judged, reached=reached)
    return without_uncertain_judged(found, num_draft_tokens)


def from_histogram_or_totals(
    counts: Sequence[int] | None, num_passes: int, num_drafted: int, num_accepted: int, num_draft_tokens: int
) -> Acceptance:
    """Returns the acceptance of a histogram that covers all passes, else of the sums. Raises Impossible if they
    contradict each other."""
    if not counts or sum(counts) != num_passes:
        return Acceptance("totals", num_passes, num_drafted, num_accepted)
    found = from_histogram(counts, num_drafted, num_draft_tokens)
    check_sums(found, num_drafted, num_accepted)
    return found


def check_sums(found: Acceptance, num_drafted: int, num_accepted: int) -> None:
    """Raises Impossible if the sums that a server reports are not those of its parts."""
    for name, own, told in (
        ("drafted", found.num_drafted, num_drafted),
        ("accepted", found.num_accepted, num_accepted),
    ):
        if own != told:
            raise Impossible(f"{told} {name} tokens, but {own} in its {found.source}")


def without_uncertain_judged(found: Acceptance, num_draft_tokens: int) -> Acceptance:
    """Returns the acceptance, without its judged tokens if a pass drafted fewer than `num_draft_tokens` tokens."""
    if found.num_passes is None or found.num_drafted == found.num_passes * num_draft_tokens:
        return found
    note = f"α is not known, since not every step drafted {num_draft_tokens} tokens"
    return replace(found, num_judged=None, note=note)


def corrected_for_varying_drafts(found: Acceptance, num_tokens: int) -> Acceptance:
    """Returns the acceptance of an answer of `num_tokens` tokens whose drafter may draft few tokens or none.

    Engines do not count passes without a draft, but each of them emits one token. The judged tokens are known only from
    counts per step: some engines count every draft as if it had the maximum length.
    """
    notes, num_passes, num_judged = [], found.num_passes, found.num_judged
    if found.passes is None:
        num_judged = None
        notes.append("α is not known, since its drafter may draft fewer tokens than declared")
    if num_passes is not None and num_passes + found.num_accepted < num_tokens - 1:
        num_passes = num_tokens - 1 - found.num_accepted
        notes.append("the server does not report steps without a draft: steps = tokens − 1 − accepted")
    passes = found.passes if num_passes == found.num_passes else None
    return replace(found, num_passes=num_passes, num_judged=num_judged, passes=passes, note="; ".join(notes))


def cut_after_end(found: Acceptance, num_tokens: int) -> Acceptance | None:
    """Returns the acceptance of the first `num_tokens` tokens; None if the single passes are not known."""
    if found.passes is None:
        return None
    return replace(from_passes(found.passes[: len(steps_of(found.passes, num_tokens))]), note=found.note)


def contradiction(found: Acceptance, num_tokens: int, num_draft_tokens: int) -> str | None:
    """Returns why the counts do not fit an answer of `num_tokens` tokens; None if they fit."""
    if not 0 <= found.num_accepted <= found.num_drafted:
        return f"{_shown(found.num_accepted)} of {_shown(found.num_drafted)} draft tokens accepted"
    if found.passes is not None:
        wrong = [pair for pair in found.passes if not 0 <= pair[1] <= pair[0] <= num_draft_tokens]
        if wrong:
            return f"a step with {wrong[0][0]} drafted (of at most {num_draft_tokens}) and {wrong[0][1]} accepted"
    most = num_tokens - 1 if found.num_passes is None else found.num_passes
    if found.num_drafted > (most + 1) * num_draft_tokens > 0:  # a draft may be dropped at the end
        return f"{_shown(found.num_drafted)} draft tokens in {most} steps of at most {num_draft_tokens}"
    if found.num_passes is None:
        if found.num_accepted <= num_tokens - 1 + num_draft_tokens:
            return None
        return f"{found.num_accepted} accepted tokens for an answer of {num_tokens} tokens"
    num_after = found.num_passes + found.num_accepted - (num_tokens - 1)
    if 0 <= num_after <= num_draft_tokens and (not num_after or found.reached is None or found.reached[num_after - 1]):
        return None
    return f"{found.num_passes} steps with {found.num_accepted} accepted tokens for an answer of {num_tokens} tokens"


@dataclass(frozen=True)
class KeptCounts:
    """The accepted and judged tokens of an answer up to its end, as the decode loop counts them. `judged`: None if not
    known. `is_bound`: whether one more token may have been judged, so that accepted ÷ judged is an upper bound."""

    accepted: int
    judged: int | None
    is_bound: bool = False


def kept_counts(found: Acceptance, num_tokens: int, most_tokens: int, num_draft_tokens: int) -> KeptCounts:
    """Returns the counts of an answer of `num_tokens` tokens, of at most `most_tokens`, whose single steps are unknown.

    Only the last pass can differ from the decode loop's, in two ways: the server counts tokens that it accepted after
    the end of the answer, and it drafts a token for the last place that the limit allows, which the decode loop leaves
    to the target. The tokens that all passes emitted, less those of the answer, say how many of the last pass are after
    the end. Of the judged tokens one depends on whether the last pass accepted its whole draft. That is unknown if
    some of the passes that may have been the last one did, and others did not.
    """
    if found.num_passes is None or found.num_judged is None or found.reached is None or not found.num_passes:
        return KeptCounts(found.num_accepted, found.num_judged)
    num_after = found.num_passes + found.num_accepted - (num_tokens - 1)
    is_at_limit = num_tokens >= most_tokens
    if num_after <= 0 and not is_at_limit:
        return KeptCounts(found.num_accepted, found.num_judged)
    num_long_enough = found.num_passes if num_after <= 0 else found.reached[num_after - 1]
    num_whole = found.reached[num_draft_tokens - 1] if num_draft_tokens else 0
    accepted = found.num_accepted - num_after + (not is_at_limit)
    judged = found.num_judged - num_after - is_at_limit  # if the last pass rejected a token
    if num_whole == num_long_enough:
        return KeptCounts(accepted, judged + 1)
    return KeptCounts(accepted, judged, is_bound=num_whole > 0)


def steps_of(passes: Sequence[tuple[int, int]], num_tokens: int, most_tokens: int | None = None) -> list[Step]:
    """Returns the steps of an answer. The prefill emitted its first token; tokens after its end do not count.

    `most_tokens`: the limit of the answer's length. As in the decode loop, no token is drafted for the last place
    before it; a server may do so.
    """
    left, steps = num_tokens - 1, []
    num_before_limit = None if most_tokens is None else most_tokens - 1
    for drafted, accepted in passes:
        if left <= 0:
            break
        if num_before_limit is not None:
            drafted = min(drafted, num_before_limit - 1)
            accepted = min(accepted, drafted)
        emitted = min(accepted + 1, left)
        is_rejected = accepted < drafted and emitted > accepted
        kept = min(accepted, emitted)
        steps.append(Step(drafted, kept + is_rejected, kept, emitted))
        left -= emitted
        num_before_limit = None if num_before_limit is None else num_before_limit - emitted
    return steps
