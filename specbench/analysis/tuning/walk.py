"""Re-walking a recorded generation at another threshold and a shorter draft length.

In a recorded step the divergences of all drafted positions are known, so what another setting would have accepted from
that context is known too. The walk decodes the answer anew from this evidence. As long as every emitted token is the
recorded one, the next context is recorded as well (with a greedy target and greedy drafts also where the steps begin at
other places), and the step is *exact*: a real run makes the same one. From the first token that would be another the
walk is an *estimate*: it goes on in the rest of the drafted window, whose divergences are given its own draft tokens,
and behind it at the same place of the recorded answer, as if that were the text. So the recorded contexts are used at
the places where they stand, and as often as the other setting would begin a step there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.tuning.evidence import Window
from specbench.decoding.proposal import FOREIGN


@dataclass(frozen=True)
class Setting:
    """What is asked of a walk: a threshold, `inclusive` where the rule accepts at the threshold, and a draft length."""

    threshold: float
    num_draft_tokens: int
    inclusive: bool = False

    def accepts(self, divergence: float) -> bool:
        """The rule's own comparison, in float32 as there."""
        limit = float(np.float32(self.threshold))
        return divergence <= limit if self.inclusive else divergence < limit


@dataclass(frozen=True)
class Recorded:
    """One recorded generation. `max_tokens`: new tokens that limit or context allow; `num_draft_tokens`: the longest
    draft of the recording; `greedy_target` and `greedy_drafts`: without both, another decision moves the random
    stream, and nothing behind it is exact."""

    windows: Sequence[Window]
    num_tokens: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    num_draft_tokens: int
    greedy_target: bool
    greedy_drafts: bool


@dataclass(frozen=True)
class WalkedStep:
    """The counts of a step as the ledger would keep them, and whether a real run makes exactly this step."""

    num_drafted: int
    num_judged: int
    num_accepted: int
    num_emitted: int
    exact: bool


def walk(recorded: Recorded, setting: Setting) -> list[WalkedStep]:
    """The steps of the generation at another setting. Raises ValueError for a longer draft than the recorded one."""
    if setting.num_draft_tokens > recorded.num_draft_tokens:
        raise ValueError(f"recorded with {recorded.num_draft_tokens} draft tokens, asked {setting.num_draft_tokens}")
    walker = _Walker(recorded, setting)
    steps = []
    while not walker.ended:
        steps.append(walker.step())
    return steps


class _Walker:
    """`position`: new tokens so far. `window`, `offset`: the recorded context that stands for this place, so that
    always position = window.start + offset; behind the accepted tokens lies the rest of the draft."""

    def __init__(self, recorded: Recorded, setting: Setting) -> None:
        self.recorded, self.setting = recorded, setting
        self.owners = [index for index, w in enumerate(recorded.windows) for _ in range(w.num_accepted + 1)]
        # What stands for the place behind a window that was accepted whole: the drafter's next token is not recorded.
        self.after_accepted = [d for w in recorded.windows for d in w.divergence[1 : w.num_accepted + 1]]
        self.replays = recorded.greedy_target and recorded.greedy_drafts
        self.exact = recorded.greedy_drafts or setting.num_draft_tokens == recorded.num_draft_tokens
        self.ended = recorded.num_tokens <= 1
        self.position = 1
        if not self.ended:
            self.look_up()

    def look_up(self) -> None:
        """Stand at this place of the recorded answer."""
        if self.position < self.recorded.num_tokens:
            self.window = self.recorded.windows[self.owners[self.position - 1]]
            self.offset = self.position - self.window.start

    def step(self) -> WalkedStep:
        start, begins_as_recorded, recorded_step = self.position, self.offset == 0, self.window
        num_drafted = self.num_drafted()
        accepted = self.accept(num_drafted)
        rejected = accepted < num_drafted
        num_emitted = accepted
        if not self.ended:
            self.emit_own()
            num_emitted += 1
        if not self.replays and not (begins_as_recorded and accepted == recorded_step.num_accepted):
            self.exact = False
        assert num_emitted == self.position - start
        return WalkedStep(num_drafted, accepted + int(rejected and num_emitted > accepted), accepted, num_emitted,
                          self.exact)  # fmt: skip

    def num_drafted(self) -> int:
        """What the drafter would propose from here: up to an EOS of its own, and never the last token."""
        most = min(self.setting.num_draft_tokens, self.recorded.max_tokens - self.position - 1)
        known = self.window.token_ids[self.offset : self.offset + most]
        ends = [count for count, token in enumerate(known, start=1) if token in self.recorded.eos_token_ids]
        return ends[0] if ends else max(0, most)

    def accept(self, num_drafted: int) -> int:
        """Move over the draft tokens that stand; how many."""
        for count in range(num_drafted):
            if self.ended:
                return count
            if self.offset >= len(self.window.token_ids) and self.offset > self.window.num_accepted:
                self.look_up()  # the rest of the draft is used up
            if self.offset >= len(self.window.token_ids):
                if not self.accept_unknown():
                    return count
            elif not self.accept_known():
                return count
        return num_drafted

    def accept_known(self) -> bool:
        window, offset = self.window, self.offset
        token = window.token_ids[offset]
        if token == FOREIGN or not self.setting.accepts(window.divergence[offset]):
            return False
        same_text = offset < window.num_accepted or (offset == window.num_accepted and token == window.next_token)
        self.exact &= same_text
        self.move(token, stay=offset != window.num_accepted or not same_text)
        return True

    def accept_unknown(self) -> bool:
        """Behind a window that was accepted whole: judged by a recorded divergence of a like place."""
        self.exact = False
        pool = self.after_accepted
        if pool and not self.setting.accepts(pool[self.position % len(pool)]):
            return False
        self.move(None, stay=False)
        return True

    def emit_own(self) -> None:
        """Move over the token of the target itself."""
        window, offset = self.window, self.offset
        if offset == window.num_accepted:
            self.move(window.next_token, stay=False)
            return
        own = window.own[offset] if window.own is not None and offset < len(window.own) else None
        follows_draft = offset < len(window.token_ids) and own == window.token_ids[offset]
        self.exact &= follows_draft
        self.move(own, stay=follows_draft)

    def move(self, token: int | None, stay: bool) -> None:
        """One token on: within the drafted window, or to the next place of the recorded answer."""
        self.position += 1
        self.offset += 1
        self.ended = self.position >= self.recorded.num_tokens or token in self.recorded.eos_token_ids
        if not stay:
            self.look_up()
