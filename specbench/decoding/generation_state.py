"""The generation state: the tokens of one generation, and the only code that decides where it ends.

The output keeps the token that ended the generation (the EOS token, or the token that completed a stop string) and
nothing after it; the text is cut before the stop string. For every method, counts include only the kept tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.decoding.proposal import Proposal, Step, Verification
from specbench.models.meters import Stopwatch

Finish = Literal["eos", "stop", "length", "context"]


@dataclass(frozen=True)
class StopRules:
    """The conditions that end a generation.

    `decode_text` maps token ids to text; it is needed only for stop strings. `context_limit` is the number of positions
    that both models support; a generation that reaches it ends.
    """

    max_new_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    decode_text: Callable[[Sequence[int]], str] | None = None
    context_limit: int | None = None


@dataclass
class GenerationState:
    """The prompt and emitted tokens, the verification and the counts of every step, and the reason why the generation
    ended (None: it has not ended)."""

    prompt_ids: list[int]
    rules: StopRules
    ids: list[int] = field(init=False)
    steps: list[Step] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    finish: Finish | None = None
    tokenizing: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)
        # A stop string of n bytes spans at most n tokens with text; the margin allows for tokens without text.
        self._window = max((len(s.encode()) for s in self.rules.stop_strings), default=0) + 4

    @property
    def finished(self) -> bool:
        return self.finish is not None

    @property
    def new_ids(self) -> list[int]:
        return self.ids[len(self.prompt_ids) :]

    @property
    def num_new_tokens(self) -> int:
        return len(self.ids) - len(self.prompt_ids)

    @property
    def num_remaining(self) -> int:
        """The number of tokens that may still be emitted."""
        remaining = self.rules.max_new_tokens - self.num_new_tokens
        if self.rules.context_limit is not None:
            remaining = min(remaining, self.rules.context_limit - len(self.ids))
        return remaining

    def start(self, first_token: int) -> None:
        """Emits the token that was drawn after the prefill, which does not count as a step."""
        self._emit([first_token])

    def extend(self, proposal: Proposal, verification: Verification) -> Step:
        """Emits the accepted tokens and the next token, up to the generation's end. Returns the step's counts."""
        assert verification.num_accepted <= proposal.num_drafted, "more tokens were accepted than drafted"
        accepted = [proposal.token_ids[node] for node in verification.path]
        num_emitted = self._emit([*accepted, verification.next_token])
        num_accepted = min(verification.num_accepted, num_emitted)
        rejected = proposal.has_children(verification.path[-1] if verification.path else -1)
        num_judged = num_accepted + int(rejected and num_emitted > verification.num_accepted)
        siblings = proposal.siblings(verification.path[:num_accepted], num_judged)
        step = Step(proposal.num_drafted, num_judged, num_accepted, num_emitted, proposal.num_nodes, siblings)
        self.steps.append(step)
        self.verifications.append(verification)
        return step

    def _emit(self, token_ids: list[int]) -> int:
        for count, token in enumerate(token_ids, start=1):
            self.ids.append(token)
            self.finish = self._ending(token)
            if self.finish is not None:
                return count
        return len(token_ids)

    def _ending(self, token: int) -> Finish | None:
        if token in self.rules.eos_token_ids:
            return "eos"
        if self.rules.stop_strings and self._completes_stop_string():
            return "stop"
        if self.num_remaining <= 0:
            return "length" if self.num_new_tokens >= self.rules.max_new_tokens else "context"
        return None

    def _completes_stop_string(self) -> bool:
        assert self.rules.decode_text is not None
        start = max(len(self.prompt_ids), len(self.ids) - self._window)
        with self.tokenizing:
            tail = self.rules.decode_text(self.ids[start:])
        return any(stop in tail for stop in self.rules.stop_strings)

    def check(self, num_draft_tokens: int) -> None:
        """Raises AssertionError if the counts are inconsistent, which is a defect of the harness."""
        assert sum(step.num_emitted for step in self.steps) + 1 == self.num_new_tokens
        for step in self.steps:
            assert 0 <= step.num_accepted <= step.num_judged <= step.num_drafted <= num_draft_tokens, step
            assert 1 <= step.num_emitted <= step.num_accepted + 1, step


def text_before_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Returns the text before the first stop string."""
    cuts = [at for stop in stop_strings if (at := text.find(stop)) >= 0]
    return text[: min(cuts)] if cuts else text
