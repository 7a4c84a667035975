"""The steps of an external decoder: checked against the identities of the ledger, and cut where the ledger cut."""

from collections.abc import Sequence

from specbench.decoding.proposal import Step
from specbench.errors import ConfigError
from specbench.external.contract import Counts


def checked(steps: Sequence[Counts], num_draft_tokens: int) -> list[Step]:
    """The steps as they were given. Raises ConfigError naming the first that contradicts itself."""
    found = []
    for number, counts in enumerate(steps):
        if not isinstance(counts, Step):
            try:
                counts = Step(*(int(count) for count in counts))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"step {number} is {counts!r}: write (drafted, judged, accepted, emitted)") from error
        sound = 0 <= counts.num_accepted <= counts.num_judged <= counts.num_drafted <= num_draft_tokens
        if not sound or not 1 <= counts.num_emitted <= counts.num_accepted + 1:
            raise ConfigError(
                f"step {number} has {counts.num_drafted} drafted (of at most {num_draft_tokens}), {counts.num_judged} "
                f"judged, {counts.num_accepted} accepted, {counts.num_emitted} emitted: give accepted ≤ judged ≤ "
                "drafted and 1 ≤ emitted ≤ accepted + 1"
            )
        found.append(counts)
    return found


def cut(steps: Sequence[Step], num_returned: int, num_kept: int) -> tuple[list[Step], int]:
    """The steps up to the last kept token, the first token of all in none of them; and the number of target passes.

    Raises ConfigError where the steps do not emit what was returned.
    """
    num_emitted = sum(step.num_emitted for step in steps)
    reads_prompt = num_emitted == num_returned  # the first step's pass is the one that reads the prompt
    if not reads_prompt and num_emitted + 1 != num_returned:
        raise ConfigError(f"its steps emit {num_emitted} tokens, but it returned {num_returned}: count each token once")
    left = num_kept - (not reads_prompt)
    kept: list[Step] = []
    for step in steps:
        if left <= 0:
            break
        kept.append(step if step.num_emitted <= left else _shortened(step, left))
        left -= step.num_emitted
    if reads_prompt:
        first = kept[0]
        kept[0] = Step(first.num_drafted, first.num_judged, first.num_accepted, first.num_emitted - 1)
    return kept, len(kept) + (not reads_prompt)


def _shortened(step: Step, num_emitted: int) -> Step:
    """A step that the cut ended: what it dropped counts neither as accepted nor as judged."""
    num_accepted = min(step.num_accepted, num_emitted)
    return Step(step.num_drafted, num_accepted, num_accepted, num_emitted)
