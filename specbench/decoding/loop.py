"""The decode loop of all methods. In autoregressive decoding, every proposal is empty."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.decoding.drafters import Drafter
from specbench.decoding.generation_state import Finish, GenerationState, StopRules
from specbench.decoding.proposal import Column, Proposal, Step, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_acceptance import (
    FIRST_SAMPLE,
    MAX_SAMPLES,
    SAMPLED_EVERY,
    Acceptance,
    acceptance_by_level,
)
from specbench.decoding.verification import VerificationRule
from specbench.models.meters import PassLog, Stopwatch
from specbench.models.scoring import ScoringModel

POSITION_COLUMNS = ("target_prob", "draft_prob", "overlap", "divergence")


@dataclass(frozen=True)
class ExternalCounts:
    """The counts that a decoder with its own loop reports.

    `num_first_tokens` is the number of tokens already generated when the clock of `decode_seconds` started (0: the
    clock started with the prefill). `num_target_passes` includes the prefill; None if unknown.
    """

    num_first_tokens: int
    num_target_passes: int | None


@dataclass(frozen=True)
class Generation:
    """The tokens and measurements of one generation.

    Seconds are wall-clock time. Passes are (query length, seconds), without the prefill. `rule_seconds` is the time of
    verification rules and draws, without passes that a rule runs. `tokenizer_seconds` is the time for retokenizing
    text in bridges and for the search for stop strings.

    `positions` holds p(x), q(x), Σ min(p, q) and the rule's divergence for each judged draft token; None if undefined.
    `draw_overlap` joins `Verification.draw_overlap` of all steps; None if no step has it.

    `tree_samples` holds `acceptance_by_level` of sampled steps; None for chains, and if no step has any.

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
    external: ExternalCounts | None = None
    draw_overlap: list[float] | None = None
    tree_samples: list[list[Acceptance]] | None = None


@torch.inference_mode()
def decode(
    target: ScoringModel, drafter: Drafter, rule: VerificationRule, prompt_ids: list[int], *, num_draft_tokens: int,
    sampling: Sampling, stop: StopRules, generator: torch.Generator,
) -> Generation:  # fmt: skip
    """Generates after `prompt_ids`: propose → score → verify → extend, until the generation state is finished.

    The prompt must hold at least one token and leave room for one more within the context limit.
    """
    state = GenerationState(prompt_ids, stop)
    clock = target.passes.clock
    start_seconds = clock.now()
    draft_prefill_seconds = read_prompt(target, drafter, state, sampling, generator)
    draft_passes, tokenizing = drafter.passes or PassLog(clock), drafter.tokenizing or Stopwatch()
    for log in (target.passes, draft_passes, state.tokenizing, tokenizing):
        log.clear()
    passes_of_rules: list[int] = []  # indices of draft passes
    trees: list[tuple[Proposal, Distributions, Sequence[int]]] = []  # at sampled steps

    first_token_seconds = clock.now()
    while not state.finished:
        proposal = drafter.propose(state.ids, min(num_draft_tokens, state.num_remaining - 1), generator)
        output = proposal.scored_by(target, state.ids)
        num_draft_passes, start = draft_passes.num_passes, clock.mark()
        distributions = Distributions(output.logits, sampling)
        verification = rule(proposal, distributions, generator)
        target.passes.add_choice(start, clock.mark())
        passes_of_rules += range(num_draft_passes, draft_passes.num_passes)
        proposal.update_target(target, verification)
        if len(state.steps) % SAMPLED_EVERY == FIRST_SAMPLE and len(trees) < MAX_SAMPLES and proposal.num_nodes:
            trees.append((proposal, distributions, verification.path))  # the rule has computed the probabilities
        drafter.observe(proposal, output, verification)
        state.extend(proposal, verification)
    last_token_seconds = clock.now()

    state.check(num_draft_tokens)
    assert state.finish is not None
    drafted = draft_passes.read()
    chosen = target.passes.choice_seconds() + draft_passes.choice_seconds()
    return Generation(
        token_ids=state.new_ids,
        finish=state.finish,
        steps=state.steps,
        positions={name: judged_column(name, state) for name in POSITION_COLUMNS},
        draw_overlap=draw_overlap_column(state),
        tree_samples=list(filter(None, (acceptance_by_level(rule, *tree) for tree in trees))) or None,
        target_passes=target.passes.read(),
        draft_passes=drafted,
        ttft_seconds=first_token_seconds - start_seconds,
        draft_prefill_seconds=draft_prefill_seconds,
        decode_seconds=last_token_seconds - first_token_seconds,
        rule_seconds=max(0.0, chosen - sum(drafted[number][1] for number in passes_of_rules)),
        tokenizer_seconds=state.tokenizing.seconds + tokenizing.seconds,
    )


def read_prompt(
    target: ScoringModel, drafter: Drafter, state: GenerationState, sampling: Sampling, generator: torch.Generator
) -> float:
    """Reads the prompt and emits the first token. Returns the seconds that the drafter took to read it: before the
    target, or after it if the drafter reads hidden states."""
    clock = target.passes.clock
    start = clock.now()
    drafter.prefill(state.prompt_ids)
    draft_seconds = clock.now() - start
    target.reset()
    target.hidden_layers = drafter.hidden_layers
    output = target.score(state.prompt_ids, 1)
    state.start(Distributions(output.logits, sampling).draw(0, generator))
    observed = clock.now()
    drafter.observe(Proposal(), output, Verification(0, state.ids[-1]))
    return draft_seconds + clock.now() - observed


def judged_column(name: str, state: GenerationState) -> list[float] | None:
    """Returns one column of the verifications, for all judged positions; None if the rule does not provide it."""
    values: list[float] = []
    for verification, step in zip(state.verifications, state.steps, strict=True):
        column: Column = getattr(verification, name)
        if step.num_judged == 0:
            continue
        if column is None:
            return None
        values += as_list(column)[: step.num_judged]
    return values or None


def draw_overlap_column(state: GenerationState) -> list[float] | None:
    """Returns `Verification.draw_overlap` for all emitted tokens at whose positions the drafter drew a token; None if a
    step with judged tokens lacks this column, or if no step has it."""
    values: list[float] = []
    for verification, step in zip(state.verifications, state.steps, strict=True):
        if verification.draw_overlap is not None:
            values += as_list(verification.draw_overlap)[: step.num_emitted]
        elif step.num_judged:
            return None
    return values or None


def as_list(column: torch.Tensor | list[float]) -> list[float]:
    return column.tolist() if isinstance(column, torch.Tensor) else column
