"""The decode loop of all methods, and the state of a generation, the only code that decides where it ends. In
autoregressive decoding, every proposal is empty.

The output keeps the token that ended the generation (the EOS token, or the token that completed a stop string) and
nothing after it; the text is cut before the stop string. For every method, counts include only the kept tokens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from specbench.core.reasoning import Tags, part_answer
from specbench.decoding.drafters import EMPTY, Drafter
from specbench.decoding.proposal import Column, Proposal, Step, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_acceptance import FIRST_SAMPLE, MAX_SAMPLES, SAMPLED_EVERY, Acceptance, acceptance_by_level
from specbench.decoding.verification import VerificationRule
from specbench.models.meters import PassLog, Stopwatch
from specbench.models.scoring import ScoringModel
from specbench.records.generation import External, Finish

MARGIN = 4  # tokens without text, in a search for a text


@dataclass(frozen=True)
class StopRules:
    """The conditions that end a generation.

    `decode_text` maps token ids to text; it is needed only for stop strings. It drops special tokens, except those in
    the texts of its second argument, `keep`: the stop strings and tags that contain special tokens; None: the tags. A
    stop string that is a special token is among the `eos_token_ids`. `context_limit` is the number of positions that
    both models support; a generation that reaches it ends. `reasoning`: the tags of reasoning, inside which no stop
    string ends a generation; None if all text is the answer.
    """

    max_new_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    decode_text: Callable[..., str] | None = None
    context_limit: int | None = None
    reasoning: Tags | None = None
    keep: tuple[str, ...] | None = None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text in which stop strings and tags are searched."""
        assert self.decode_text is not None
        keep = self.reasoning or () if self.keep is None else self.keep
        return self.decode_text(token_ids, keep) if keep else self.decode_text(token_ids)

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Returns whether a prompt ends with the opening tag, which a chat template may write."""
        if self.reasoning is None:
            return False
        end = prompt_ids[-len(self.reasoning.open.encode()) - MARGIN :]
        return self.decode(end).rstrip().endswith(self.reasoning.open.strip())


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
        searched = [*self.rules.stop_strings, *(self.rules.reasoning or ())]
        # A text of n bytes spans at most n tokens with text; the margin allows for tokens without text.
        self._window = max((len(text.encode()) for text in searched), default=0) + MARGIN
        self.is_reasoning = bool(self.rules.stop_strings) and self.rules.opens_reasoning(self.prompt_ids)
        # Stop strings are searched in `_before` and the text of the tokens from `_start` on.
        self._start = len(self.ids)
        self._before = ""
        self._is_blank = False  # reasoning has ended, and so far only white space has followed

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
        num_verified = num_accepted + int(rejected and num_emitted > verification.num_accepted)
        siblings = proposal.siblings(verification.path[:num_accepted], num_verified)
        step = Step(proposal.num_drafted, num_verified, num_accepted, num_emitted, proposal.num_nodes, siblings)
        self.steps.append(step)
        self.verifications.append(verification)
        return step

    def _emit(self, token_ids: list[int]) -> int:
        for count, token in enumerate(token_ids, start=1):
            self.ids.append(token)
            if token in self.rules.eos_token_ids:
                self.finish = "eos"
            elif self.rules.stop_strings and self._completes_stop_string():
                self.finish = "stop"
            elif self.num_remaining <= 0:
                self.finish = "length" if self.num_new_tokens >= self.rules.max_new_tokens else "context"
            if self.finish is not None:
                return count
        return len(token_ids)

    def _completes_stop_string(self) -> bool:
        """Returns whether the last token completes a stop string outside of reasoning. The blank lines between
        reasoning and answer complete none. Before a closing tag that nothing opened is reasoning, too, but a stop
        string there has ended the generation unless the same token completes the tag."""
        start = max(self._start, len(self.ids) - self._window)
        with self.tokenizing:
            tail = self._before * (start == self._start) + self.rules.decode(self.ids[start:])
        tags = self.rules.reasoning
        while tags is not None:
            sought = (tags.close,) if self.is_reasoning else tags
            split = [tail.partition(tag) for tag in sought if tag in tail]
            if not split:
                break
            before, tag, after = min(split, key=lambda parts: len(parts[0]))
            if tag == tags.open and self._has_stop(before):
                return True
            self.is_reasoning, self._is_blank = tag == tags.open, tag == tags.close
            self._start, self._before, tail = len(self.ids), after, after
        if self._is_blank and not tail.endswith("\ufffd"):  # that is a part of a character
            tail = tail.lstrip()
            self._start, self._before, self._is_blank = len(self.ids), tail, not tail
        return not self.is_reasoning and self._has_stop(tail)

    def _has_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.rules.stop_strings)

    def check(self, num_draft_tokens: int) -> None:
        """Raises AssertionError if the counts are inconsistent, which is a defect of the harness."""
        assert sum(step.num_emitted for step in self.steps) + 1 == self.num_new_tokens
        for step in self.steps:
            assert 0 <= step.num_accepted <= step.num_verified <= step.num_drafted <= num_draft_tokens, step
            assert 1 <= step.num_emitted <= step.num_accepted + 1, step


def text_before_stop(text: str, stop_strings: Sequence[str]) -> str:
    cuts = [at for stop in stop_strings if (at := text.find(stop)) >= 0]
    return text[: min(cuts)] if cuts else text


@dataclass(frozen=True)
class WrittenText:
    """What a generation wrote, cut at the first stop string of its answer. `num_reasoning_tokens`: the tokens before
    the answer, tags included. `is_closed`: False if the text ends inside its reasoning, and the answer is empty."""

    text: str
    answer: str
    num_reasoning_tokens: int = 0
    is_closed: bool = True

    @classmethod
    def of(cls, rules: StopRules, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> "WrittenText":
        """Returns the text of a generation, without special tokens except tags."""
        tags = rules.reasoning
        is_open = rules.opens_reasoning(prompt_ids)
        text = rules.decode(token_ids)
        start = part_answer(text, tags, is_open).start if tags else 0
        cut = start + len(text_before_stop(text[start:], rules.stop_strings))
        if not set(rules.keep or ()).isdisjoint(rules.stop_strings):  # drop the special tokens before the cut, too
            assert rules.decode_text is not None
            num_whole = bisect_right(range(1, len(token_ids) + 1), cut, key=lambda n: len(rules.decode(token_ids[:n])))
            rest = text[len(rules.decode(token_ids[:num_whole])) : cut]
            text = rules.decode_text(token_ids[:num_whole], tags or ()) + rest
        else:
            text = text[:cut]
        if tags is None:
            return cls(text, text)
        end, start, is_closed = part_answer(text, tags, is_open)
        num_tokens = len(token_ids) if end else 0
        if end and is_closed:
            num_tokens = bisect_left(
                range(num_tokens), True, key=lambda number: rules.decode(token_ids[:number])[:end] == text[:end]
            )
        return cls(text, text[start:], num_tokens, is_closed)

    def record_fields(self) -> dict[str, object]:
        """Returns the fields of a record; of reasoning only if there is some."""
        fields: dict[str, object] = {"text": self.text}
        if self.num_reasoning_tokens:
            fields |= {"answer": self.answer, "reasoning_tokens": self.num_reasoning_tokens}
            fields |= {} if self.is_closed else {"reasoning_closed": False}
        return fields


POSITION_COLUMNS = ("target_prob", "draft_prob", "overlap", "divergence")


@dataclass(frozen=True)
class GenerationOutput:
    """The tokens and measurements of one generation.

    Seconds are wall-clock time. Passes are (query length, seconds), without the prefill. `rule_seconds` is the time of
    verification rules and draws, without passes that a rule runs. `tokenizer_seconds` is the time for retokenizing
    text in bridges and for the search for stop strings.

    `positions` holds p(x), q(x), Σ min(p, q) and the rule's divergence for each verified token; None if undefined.
    `draw_overlap` joins `Verification.draw_overlap` of all steps; None if no step has it.

    `tree_samples` holds `acceptance_by_level` of sampled steps; None for chains, and if no step has any.

    `draft_confidence` and `draft_entropy` are of each draft token of a draft length that is asked within drafts; None
    for others, and if a bridge proposes other tokens.

    `external` is set only by external decoders. Their prefill times may be unknown (None), their steps and passes are
    empty, and their decode time is not broken down.
    """

    token_ids: list[int]
    finish: Finish
    steps: list[Step]
    positions: dict[str, list[float] | None]
    target_passes: list[tuple[int, float]]
    draft_passes: list[tuple[int, float]]
    ttft_seconds: float | None
    draft_prefill_seconds: float | None
    decode_seconds: float
    rule_seconds: float | None = None
    tokenizer_seconds: float | None = None
    external: External | None = None
    draw_overlap: list[float] | None = None
    tree_samples: list[list[Acceptance]] | None = None
    draft_confidence: list[float] | None = None
    draft_entropy: list[float] | None = None


@torch.inference_mode()
def decode(
    target: ScoringModel, drafter: Drafter, rule: VerificationRule, prompt_ids: list[int], *, num_draft_tokens: int,
    sampling: Sampling, stop: StopRules, generator: torch.Generator,
) -> GenerationOutput:  # fmt: skip
    """Generates after `prompt_ids`: propose → score → verify → extend, until the generation state is finished.

    The prompt must hold at least one token and leave room for one more within the context limit.
    """
    # 1. Prefill: both models read the prompt, and the target's logits give the first token, which is not a step.
    state = GenerationState(prompt_ids, stop)
    clock = target.passes.clock
    start_seconds = clock.now()
    draft_prefill_seconds = read_prompt(target, drafter, state, sampling, generator)
    draft_passes = drafter.passes or PassLog(clock)
    tokenizing = drafter.tokenizing or Stopwatch()
    for log in (target.passes, draft_passes, state.tokenizing, tokenizing):
        log.clear()
    passes_of_rules: list[int] = []  # indices of draft passes
    trees: list[tuple[Proposal, Distributions, Sequence[int]]] = []  # at sampled steps

    first_token_seconds = clock.now()
    while not state.finished:
        # 2. Propose, but never more than may be emitted: the target's own token takes one place.
        room = drafter.room(len(state.ids))
        num_allowed = min(num_draft_tokens, state.num_remaining - 1, room)
        proposal = drafter.propose(state.ids, drafter.length.limit(num_allowed), generator) if room else EMPTY
        # 3. Score: one pass of the target over the whole proposal.
        output = target.score_proposal(state.ids, proposal)
        # 4. Verify. Passes of the draft model that a rule runs are the drafter's time, not the rule's.
        num_draft_passes = draft_passes.num_passes
        start = clock.mark()
        distributions = Distributions(output.logits, sampling)
        verification = rule(proposal, distributions, generator)
        target.passes.add_choice(start, clock.mark())
        passes_of_rules += range(num_draft_passes, draft_passes.num_passes)
        target.keep_accepted(proposal, verification.path)
        if len(state.steps) % SAMPLED_EVERY == FIRST_SAMPLE and len(trees) < MAX_SAMPLES and proposal.num_nodes:
            trees.append((proposal, distributions, verification.path))  # the rule has computed the probabilities
        # 5. Extend: the drafter learns what was accepted, and the state decides whether the generation ends.
        if room:
            drafter.observe(proposal, output, verification)
            drafter.length.observe(proposal.num_drafted, verification.num_accepted)
        state.extend(proposal, verification)
    last_token_seconds = clock.now()

    # 6. Report: marks of an accelerator can be read only now, behind the clock's last wait for the device.
    state.check(num_draft_tokens)
    assert state.finish is not None
    drafted = draft_passes.read()
    chosen = target.passes.choice_seconds() + draft_passes.choice_seconds()
    return GenerationOutput(
        token_ids=state.new_ids,
        finish=state.finish,
        steps=state.steps,
        positions={name: joined_column(name, state) for name in POSITION_COLUMNS},
        draw_overlap=joined_column("draw_overlap", state),
        tree_samples=list(filter(None, (acceptance_by_level(rule, *tree) for tree in trees))) or None,
        target_passes=target.passes.read(),
        draft_passes=drafted,
        ttft_seconds=first_token_seconds - start_seconds,
        draft_prefill_seconds=draft_prefill_seconds,
        decode_seconds=last_token_seconds - first_token_seconds,
        rule_seconds=max(0.0, chosen - sum(drafted[number][1] for number in passes_of_rules)),
        tokenizer_seconds=state.tokenizing.seconds + tokenizing.seconds,
        draft_confidence=drafter.length.confidences,
        draft_entropy=drafter.length.entropies,
    )


def read_prompt(
    target: ScoringModel, drafter: Drafter, state: GenerationState, sampling: Sampling, generator: torch.Generator
) -> float:
    """Reads the prompt and emits the first token. Returns the seconds that the drafter took to read it: before the
    target, or after it if the drafter reads hidden states. A drafter that pauses from the prompt on reads nothing."""
    clock = target.passes.clock
    start = clock.now()
    room = drafter.room(len(state.prompt_ids))
    drafter.length.begin_prompt()
    if room:
        drafter.prefill(state.prompt_ids)
    draft_seconds = clock.now() - start
    target.reset()
    target.hidden_layers = drafter.hidden_layers
    output = target.score(state.prompt_ids, 1)
    state.start(Distributions(output.logits, sampling).draw(0, generator))
    observed = clock.now()
    if room:
        drafter.observe(Proposal(), output, Verification(0, state.ids[-1]))
    return draft_seconds + clock.now() - observed


def joined_column(name: str, state: GenerationState) -> list[float] | None:
    """Returns one column of the verifications, for all verified positions, or, of `draw_overlap`, for all emitted
    tokens at whose positions the drafter drew a token; None if no step has it, or a step with verified tokens lacks
    it."""
    values: list[float] = []
    for verification, step in zip(state.verifications, state.steps, strict=True):
        column: Column = getattr(verification, name)
        if column is not None:
            numbers = column.tolist() if isinstance(column, torch.Tensor) else column
            values += numbers[: step.num_emitted if name == "draw_overlap" else step.num_verified]
        elif step.num_verified:
            return None
    return values or None
