"""Replays a recorded generation at another threshold and a shorter draft length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal, Verification
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import VerificationRule
from specbench.running.records import ACCEPTED, EMITTED, Generation, Record, RecordFile

KEY = "drafted"  # key of a generation in the records, next to `steps` and `positions`


class RecordingRule(VerificationRule):
    """A verification rule that decides like the given rule and records the divergences of all drafted positions.

    While decoding it stores only references, so that the run is not slower; numbers are read afterwards.
    """

    def __init__(self, rule: VerificationRule) -> None:
        self._rule = rule
        self.compares_processed = rule.compares_processed
        self._steps: list[tuple[list[int], Verification, torch.Tensor | None]] = []

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        verification, greedy = self._rule(proposal, target, generator), target.sampling.greedy
        self._steps.append((proposal.token_ids, verification, target.best if greedy else None))
        return verification

    def take(self, num_steps: int) -> dict[str, Any]:
        """Returns the evidence of the last `num_steps` steps, and forgets all steps. Evidence: the draft tokens, their
        divergences and, if the target is greedy, its own token at every drafted position and at the next one."""
        steps, self._steps = self._steps[len(self._steps) - num_steps :], []
        own = [tokens.tolist() for _, _, tokens in steps if tokens is not None]
        return {
            "token_ids": [token_ids for token_ids, _, _ in steps],
            "divergence": [_values(verification) for _, verification, _ in steps],
            "own": own if len(own) == num_steps else None,
        }


def _values(verification: Verification) -> list[float]:
    column = verification.divergence
    return [] if column is None else column.tolist() if isinstance(column, torch.Tensor) else list(column)


def record_evidence(decoder: Decoder) -> DraftingDecoder:
    """Returns the decoder with a rule that records evidence."""
    assert isinstance(decoder, DraftingDecoder)
    return replace(decoder, rule=RecordingRule(decoder.rule))


class EvidenceFile(RecordFile):
    """A file of records with the evidence of one method's rule."""

    def __init__(self, path: Path, rules: Mapping[tuple[str, str], RecordingRule], method: str) -> None:
        super().__init__(path)
        self._rules = rules  # by (task, subset)
        self._method = method

    def append(self, record: Record) -> None:
        """Adds the evidence to the record, then writes the record."""
        generation = record["methods"][self._method]
        generation[KEY] = self._rules[record["task"], record["subset"]].take(len(generation["steps"]))
        super().append(record)


@dataclass(frozen=True)
class RecordedStep:
    """One recorded step, which emitted `num_accepted` draft tokens and then `next_token`.

    start: the number of new tokens before the step. own: the greedy target's token at every drafted position and after
    the last one; None if the target samples.
    """

    start: int
    token_ids: tuple[int, ...]
    divergence: tuple[float, ...]
    own: tuple[int, ...] | None
    num_accepted: int
    next_token: int | None  # None if the end of the text cut it off


def recorded_steps(generation: Generation) -> list[RecordedStep]:
    """Returns the steps of a recorded generation. Raises KeyError if it was recorded without evidence."""
    evidence = generation[KEY]
    made = []
    start = 1  # the token of the prefill
    for number, step in enumerate(generation["steps"]):
        end = start + step[EMITTED]
        own = evidence["own"]
        window = RecordedStep(
            start, tuple(evidence["token_ids"][number]), tuple(evidence["divergence"][number]),
            tuple(own[number]) if own is not None else None, step[ACCEPTED],
            generation["token_ids"][end - 1] if step[EMITTED] > step[ACCEPTED] else None,
        )  # fmt: skip
        made.append(window)
        start = end
    return made


@dataclass(frozen=True)
class ReplaySetting:
    """The threshold and the draft length of a replay. `inclusive`: whether the rule accepts at the threshold."""

    threshold: float
    num_draft_tokens: int
    inclusive: bool = False

    def accepts(self, divergence: float) -> bool:
        """Returns whether the rule accepts a divergence; the comparison is in float32, as in the rule."""
        limit = float(np.float32(self.threshold))
        return divergence <= limit if self.inclusive else divergence < limit


@dataclass(frozen=True)
class RecordedGeneration:
    """One recorded generation. `max_tokens`: the new tokens that limit and context allow; `num_draft_tokens`: the
    recorded draft length; `greedy_target`, `greedy_drafts`: unless both are greedy, another decision changes the random
    stream, and no later step is exact."""

    windows: Sequence[RecordedStep]
    num_tokens: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    num_draft_tokens: int
    greedy_target: bool
    greedy_drafts: bool


@dataclass(frozen=True)
class ReplayedStep:
    """The counts of a step, as in the generation state. `exact`: whether a real run makes exactly this step."""

    num_drafted: int
    num_judged: int
    num_accepted: int
    num_emitted: int
    exact: bool


def replay(recorded: RecordedGeneration, setting: ReplaySetting) -> list[ReplayedStep]:
    """Returns the steps of the generation at another setting. Raises ValueError if its drafts are longer than the
    recorded ones."""
    if setting.num_draft_tokens > recorded.num_draft_tokens:
        raise ValueError(f"recorded with {recorded.num_draft_tokens} draft tokens, not {setting.num_draft_tokens}")
    replayer = _Replayer(recorded, setting)
    steps = []
    while not replayer.ended:
        steps.append(replayer.step())
    return steps


class _Replayer:
    """The state of a replay. `position`: the number of new tokens so far. `window`, `offset`: the recorded step that
    stands for this position and the index into its draft tokens; always position = window.start + offset."""

    def __init__(self, recorded: RecordedGeneration, setting: ReplaySetting) -> None:
        self.recorded, self.setting = recorded, setting
        self.owners = [index for index, w in enumerate(recorded.windows) for _ in range(w.num_accepted + 1)]
        # Divergences that replace the unknown one after a fully accepted draft, where no draft token is recorded.
        self.after_accepted = [d for w in recorded.windows for d in w.divergence[1 : w.num_accepted + 1]]
        self.is_reproducible = recorded.greedy_target and recorded.greedy_drafts
        self.exact = recorded.greedy_drafts or setting.num_draft_tokens == recorded.num_draft_tokens
        self.ended = recorded.num_tokens <= 1
        self.position = 1
        if not self.ended:
            self.look_up()

    def look_up(self) -> None:
        """Moves to the recorded step that contains this position."""
        if self.position < self.recorded.num_tokens:
            self.window = self.recorded.windows[self.owners[self.position - 1]]
            self.offset = self.position - self.window.start

    def step(self) -> ReplayedStep:
        start, begins_as_recorded, recorded_step = self.position, self.offset == 0, self.window
        num_drafted = self.num_drafted()
        accepted = self.accept(num_drafted)
        rejected = accepted < num_drafted
        num_emitted = accepted
        if not self.ended:
            self.emit_own()
            num_emitted += 1
        if not self.is_reproducible and not (begins_as_recorded and accepted == recorded_step.num_accepted):
            self.exact = False
        assert num_emitted == self.position - start
        return ReplayedStep(num_drafted, accepted + int(rejected and num_emitted > accepted), accepted, num_emitted,
                          self.exact)  # fmt: skip

    def num_drafted(self) -> int:
        """Returns the number of tokens that the drafter proposes here: up to its own EOS, and never the last token."""
        most = min(self.setting.num_draft_tokens, self.recorded.max_tokens - self.position - 1)
        known = self.window.token_ids[self.offset : self.offset + most]
        ends = [count for count, token in enumerate(known, start=1) if token in self.recorded.eos_token_ids]
        return ends[0] if ends else max(0, most)

    def accept(self, num_drafted: int) -> int:
        """Moves past the accepted draft tokens. Returns their number."""
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
        if token == OUT_OF_VOCABULARY or not self.setting.accepts(window.divergence[offset]):
            return False
        same_text = offset < window.num_accepted or (offset == window.num_accepted and token == window.next_token)
        self.exact &= same_text
        self.move(token, stay=offset != window.num_accepted or not same_text)
        return True

    def accept_unknown(self) -> bool:
        """Judges the token after a fully accepted draft by the recorded divergence at another such position."""
        self.exact = False
        pool = self.after_accepted
        if pool and not self.setting.accepts(pool[self.position % len(pool)]):
            return False
        self.move(None, stay=False)
        return True

    def emit_own(self) -> None:
        """Moves past the target's own token."""
        window, offset = self.window, self.offset
        if offset == window.num_accepted:
            self.move(window.next_token, stay=False)
            return
        own = window.own[offset] if window.own is not None and offset < len(window.own) else None
        follows_draft = offset < len(window.token_ids) and own == window.token_ids[offset]
        self.exact &= follows_draft
        self.move(own, stay=follows_draft)

    def move(self, token: int | None, stay: bool) -> None:
        """Moves by one token. `stay`: within the drafted tokens of this step, else along the recorded answer."""
        self.position += 1
        self.offset += 1
        self.ended = self.position >= self.recorded.num_tokens or token in self.recorded.eos_token_ids
        if not stay:
            self.look_up()
