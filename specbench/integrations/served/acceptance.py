"""Checks a server's acceptance counts of one answer, and converts them to this project's definitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specbench.decoding.proposal import Step

Source = Literal["steps", "histogram", "totals", "counters"]
VARYING = ("ngram", "suffix")  # prefixes of the names of speculation methods that may draft few tokens or none


MAX_COUNT = 10**8  # tokens or passes of one answer, which an hour does not suffice for
MAX_SECONDS = 86_400.0


class Impossible(Exception):
    """A server reports a count or a time that cannot be true; the message says which."""


def read_count(event: Mapping[str, object], name: str, absent: int | None = None) -> int:
    """Returns a count that a server reports. Raises Impossible for anything but a whole number from 0 to MAX_COUNT, and
    KeyError if there is none and no value for that."""
    return _count(name, event[name] if absent is None else event.get(name, absent))


def read_counts(event: Mapping[str, object], name: str) -> list[int]:
    """Returns a list of counts that a server reports. Raises Impossible and KeyError as `read_count` does."""
    values = event[name]
    if not isinstance(values, list):
        raise Impossible(f"{name} is not a list")
    return [_count(name, value) for value in values]


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise Impossible(f"{name} = {value!r:.40}")
    return value


def read_seconds(event: Mapping[str, object], name: str, unit: float = 1.0) -> float:
    """Returns a time that a server reports in units of `unit` seconds, 0.0 if it reports none. Raises Impossible for
    anything but a number from 0 to MAX_SECONDS."""
    value = event.get(name, 0.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value * unit <= MAX_SECONDS:
        raise Impossible(f"{name} = {value!r:.40}")  # also NaN
    return float(value * unit)


@dataclass(frozen=True)
class Acceptance:
    """The counts that a server reports for one answer. They include tokens that were accepted after its end.

    `num_passes`: target passes after the prefill. `num_verified`: Σ min(drafted, accepted + 1); None if only sums are
    known. `passes`: (drafted, accepted) of each pass; None if unknown. `reached`: element i is the number of passes
    that accepted more than i draft tokens; None if unknown. `note`: what the counts leave out, for the row.
    """

    source: Source
    num_passes: int | None
    num_drafted: int
    num_accepted: int
    num_verified: int | None = None
    passes: tuple[tuple[int, int], ...] | None = None
    reached: tuple[int, ...] | None = None
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.source} ({self.note})" if self.note else self.source


# How servers report acceptance.


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


def from_reached(
    source: Source, num_passes: int | None, num_drafted: int, num_accepted: int, reached: tuple[int, ...] | None,
    num_draft_tokens: int,
) -> Acceptance:  # fmt: skip
    """Returns the acceptance of passes of which `reached[i]` accepted more than i draft tokens; None if unknown.

    A pass verified one token more than it accepted, or its whole draft. The sum is known only if every pass drafted
    `num_draft_tokens` tokens, the maximum.
    """
    verified, note = None, ""
    if num_passes is not None and num_drafted != num_passes * num_draft_tokens:
        note = f"α is not known, since not every step drafted {num_draft_tokens} tokens"
    elif num_passes is not None and reached:
        verified = num_passes + num_accepted - reached[-1]
    return Acceptance(source, num_passes, num_drafted, num_accepted, verified, reached=reached, note=note)


def from_histogram(
    counts: Sequence[int] | None, num_passes: int | None, num_drafted: int, num_accepted: int, num_draft_tokens: int
) -> Acceptance:
    """Returns the acceptance of a histogram, whose element a is the number of passes that accepted a draft tokens; that
    of the sums if it does not cover all passes. `num_passes`: None if only the histogram has it. Raises Impossible if
    they contradict each other."""
    if counts is None or num_passes not in (None, sum(counts)):
        return Acceptance("totals", num_passes, num_drafted, num_accepted)
    reached = tuple(sum(counts[place + 1 :]) for place in range(num_draft_tokens))
    in_parts = sum(number * accepted for accepted, number in enumerate(counts))
    found = from_reached("histogram", sum(counts), num_drafted, in_parts, reached, num_draft_tokens)
    return with_sums(found, num_drafted, num_accepted)


def with_sums(found: Acceptance, num_drafted: int, num_accepted: int) -> Acceptance:
    """Returns the acceptance. Raises Impossible if the sums that a server reports are not those of its parts."""
    if (found.num_drafted, found.num_accepted) != (num_drafted, num_accepted):
        raise Impossible(
            f"{num_accepted} of {num_drafted} draft tokens accepted, but {found.num_accepted} of {found.num_drafted} "
            f"in its {found.source}"
        )
    return found


# What they mean for an answer.


def corrected_for_varying_drafts(found: Acceptance, num_tokens: int) -> Acceptance:
    """Returns the acceptance of an answer of `num_tokens` tokens whose drafter may draft few tokens or none.

    Engines do not count passes without a draft, but each of them emits one token. The verified tokens are known only
    from counts per step: some engines count every draft as if it had the maximum length.
    """
    notes = []
    num_passes = found.num_passes
    num_verified = found.num_verified
    if found.passes is None:
        num_verified = None
        notes.append("α is not known, since its drafter may draft fewer tokens than declared")
    if num_passes is not None and num_passes + found.num_accepted < num_tokens - 1:
        num_passes = num_tokens - 1 - found.num_accepted
        notes.append("the server does not report steps without a draft: steps = tokens − 1 − accepted")
    passes = found.passes if num_passes == found.num_passes else None
    return replace(found, num_passes=num_passes, num_verified=num_verified, passes=passes, note="; ".join(notes))


def contradiction(found: Acceptance, num_tokens: int, num_draft_tokens: int) -> str | None:
    """Returns why the counts do not fit an answer of `num_tokens` tokens; None if they fit."""
    if not 0 <= found.num_accepted <= found.num_drafted:
        return f"{found.num_accepted} of {found.num_drafted} draft tokens accepted"
    if found.passes is not None:
        wrong = [pair for pair in found.passes if not 0 <= pair[1] <= pair[0] <= num_draft_tokens]
        if wrong:
            return f"a step with {wrong[0][0]} drafted (of at most {num_draft_tokens}) and {wrong[0][1]} accepted"
    most = num_tokens - 1 if found.num_passes is None else found.num_passes
    if found.num_drafted > (most + 1) * num_draft_tokens > 0:  # a draft may be dropped at the end
        return f"{found.num_drafted} draft tokens in {most} steps of at most {num_draft_tokens}"
    if found.num_passes is None:
        if found.num_accepted <= num_tokens - 1 + num_draft_tokens:
            return None
        return f"{found.num_accepted} accepted tokens for an answer of {num_tokens} tokens"
    num_after = found.num_passes + found.num_accepted - (num_tokens - 1)
    if 0 <= num_after <= num_draft_tokens and (not num_after or found.reached is None or found.reached[num_after - 1]):
        return None
    return f"{found.num_passes} steps with {found.num_accepted} accepted tokens for an answer of {num_tokens} tokens"


class KeptCounts(NamedTuple):
    """The accepted and verified tokens of an answer up to its end, as the decode loop counts them. `verified`: None if
    not known. `is_bound`: whether one more token may have been verified, so that accepted ÷ verified is an upper
    bound."""

    accepted: int
    verified: int | None
    is_bound: bool = False


def kept_counts(found: Acceptance, num_tokens: int, most_tokens: int, num_draft_tokens: int) -> KeptCounts:
    """Returns the counts of an answer of `num_tokens` tokens, of at most `most_tokens`, whose single steps are unknown.

    Only the last pass can differ from the decode loop's, in two ways: the server counts tokens that it accepted after
    the end of the answer, and it drafts a token for the last place that the limit allows, which the decode loop leaves
    to the target. The tokens that all passes emitted, less those of the answer, say how many of the last pass are after
    the end. Of the verified tokens one depends on whether the last pass accepted its whole draft. That is unknown if
    some of the passes that may have been the last one did, and others did not.
    """
    if found.num_verified is None or found.reached is None or not found.num_passes:
        return KeptCounts(found.num_accepted, found.num_verified)
    num_after = found.num_passes + found.num_accepted - (num_tokens - 1)
    is_at_limit = num_tokens >= most_tokens
    if num_after <= 0 and not is_at_limit:
        return KeptCounts(found.num_accepted, found.num_verified)
    num_long_enough = found.num_passes if num_after <= 0 else found.reached[num_after - 1]
    num_whole = found.reached[num_draft_tokens - 1] if num_draft_tokens else 0
    accepted = found.num_accepted - num_after + (not is_at_limit)
    verified = found.num_verified - num_after - is_at_limit  # if the last pass rejected a token
    if num_whole == num_long_enough:
        return KeptCounts(accepted, verified + 1)
    return KeptCounts(accepted, verified, is_bound=num_whole > 0)


def steps_of(passes: Sequence[tuple[int, int]], num_tokens: int, most_tokens: int | None = None) -> list[Step]:
    """Returns the steps of an answer. The prefill emitted its first token; tokens after its end do not count.

    `most_tokens`: the limit of the answer's length. As in the decode loop, no token is drafted for the last place
    before it; a server may do so.
    """
    left = num_tokens - 1
    steps = []
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
