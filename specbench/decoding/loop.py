"""The decode loop of all methods. Autoregressive decoding is the case of an empty proposal."""

from dataclasses import dataclass

import torch

from specbench.decoding.drafters import Drafter
from specbench.decoding.generation_state import Finish, GenerationState, StopRules
from specbench.decoding.proposal import Column, OnDeviceProposal, Proposal, Step, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_acceptance import FIRST_SAMPLE, MAX_SAMPLES, SAMPLED_EVERY, root_acceptance
from specbench.decoding.verification import VerificationRule
from specbench.models.scoring import Output, ScoringModel
from specbench.models.timing import PassLog, Stopwatch

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
    verification rules and draws, without the passes that a rule makes. `tokenizer_seconds` is the time of bridges that
    retokenize text and of the search for stop strings.

    `positions` holds p(x), q(x), Σ min(p, q) and the rule's divergence for each judged draft token; None where
    undefined. `draw_overlap` joins `Verification.draw_overlap` of all steps; None where no step has it.

    `tree_samples` holds the values of `root_acceptance` at sampled steps; None for chains, and where no step has any.

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
    tree_samples: list[tuple[float, float]] | None = None


@torch.inference_mode()
def decode(
    target: ScoringModel,
    drafter: Drafter,
    rule: VerificationRule,
    prompt_ids: list[int],
    *,
    num_draft_tokens: int,
    sampling: Sampling,
    stop: StopRules,
    generator: torch.Generator,
) -> Generation:
    """Generates after `prompt_ids`: propose → score → verify → extend, until the generation state is finished.

    The prompt must hold at least one token and leave room for one more within the context limit.
    """
    state = GenerationState(prompt_ids, stop)
    clock = target.passes.clock
    verifications: list[Verification] = []
    start_seconds = clock.now()
    drafter.prefill(prompt_ids)
    draft_ready_seconds = clock.now()
    target.reset()
    target.hidden_layers = drafter.hidden_layers
    output = target.score(prompt_ids, 1)
    state.start(Distributions(output.logits, sampling).draw(0, generator))
    drafter.observe(Proposal(), output, Verification(0, state.ids[-1]))
    draft_passes, tokenizing = drafter.passes, drafter.tokenizing
    clear(target.passes, draft_passes, state.tokenizing, tokenizing)
    passes_of_rules: list[int] = []  # indices of draft passes
    trees: list[tuple[TreeProposal, Distributions]] = []  # at sampled steps

    first_token_seconds = clock.now()
    while not state.finished:
        proposal = drafter.propose(state.ids, min(num_draft_tokens, state.num_remaining - 1), generator)
        output = scored(target, state.ids, proposal)
        num_draft_passes, start = num_logged(draft_passes), clock.mark()
        distributions = Distributions(output.logits, sampling)
        verification = rule(proposal, distributions, generator)
        target.passes.add_choice(start, clock.mark())
        passes_of_rules += range(num_draft_passes, num_logged(draft_passes))
        if isinstance(proposal, OnDeviceProposal):
            target.resolve_pending(proposal.scored_ids)
        if isinstance(proposal, TreeProposal):
            target.keep_path(verification.path)
            if len(verifications) % SAMPLED_EVERY == FIRST_SAMPLE and len(trees) < MAX_SAMPLES:
                trees.append((proposal, distributions))
        drafter.observe(proposal, output, verification)
        state.extend(proposal, verification)
        verifications.append(verification)
    last_token_seconds = clock.now()

    state.check(num_draft_tokens)
    assert state.finish is not None
    drafted = draft_passes.read() if draft_passes is not None else []
    chosen = target.passes.choice_seconds() + (draft_passes.choice_seconds() if draft_passes is not None else 0.0)
    return Generation(
        token_ids=state.new_ids,
        finish=state.finish,
        steps=state.steps,
        positions={name: judged_column(name, verifications, state.steps) for name in POSITION_COLUMNS},
        draw_overlap=draw_overlap_column(verifications, state.steps),
        tree_samples=[each for tree in trees if (each := root_acceptance(rule, *tree)) is not None] or None,
        target_passes=target.passes.read(),
        draft_passes=drafted,
        ttft_seconds=first_token_seconds - start_seconds,
        draft_prefill_seconds=draft_ready_seconds - start_seconds,
        decode_seconds=last_token_seconds - first_token_seconds,
        rule_seconds=max(0.0, chosen - sum(drafted[number][1] for number in passes_of_rules)),
        tokenizer_seconds=state.tokenizing.seconds + (tokenizing.seconds if tokenizing is not None else 0.0),
    )


def scored(target: ScoringModel, ids: list[int], proposal: Proposal) -> Output:
    """Returns the target's logits after `ids` and after each draft token that it reads: [num_scored + 1, vocab]."""
    if isinstance(proposal, TreeProposal):
        return target.score_tree(ids, proposal.token_ids, proposal.parents, len(proposal.token_ids) + 1)
    if isinstance(proposal, OnDeviceProposal):
        return target.score(ids, len(proposal.tokens) + 1, proposal.scored_tokens)
    return target.score(ids + proposal.scored_ids, len(proposal.scored_ids) + 1)


def clear(*logs: PassLog | Stopwatch | None) -> None:
    for log in logs:
        if log is not None:
            log.clear()


def num_logged(passes: PassLog | None) -> int:
    return 0 if passes is None else passes.num_passes


def judged_column(name: str, verifications: list[Verification], steps: list[Step]) -> list[float] | None:
    """Returns one column of the verifications for all judged positions; None if the rule does not provide it."""
    values: list[float] = []
    for verification, step in zip(verifications, steps, strict=True):
        column: Column = getattr(verification, name)
        if step.num_judged == 0:
            continue
        if column is None:
            return None
        values += listed(column)[: step.num_judged]
    return values or None


def draw_overlap_column(verifications: list[Verification], steps: list[Step]) -> list[float] | None:
    """Returns `Verification.draw_overlap` for the positions of all emitted tokens at which the drafter drew a token.

    None if a step with judged tokens has no such column, or if no step has one.
    """
    values: list[float] = []
    for verification, step in zip(verifications, steps, strict=True):
        if verification.draw_overlap is not None:
            values += listed(verification.draw_overlap)[: step.num_emitted]
        elif step.num_judged:
            return None
    return values or None


def listed(column: torch.Tensor | list[float]) -> list[float]:
    return column.tolist() if isinstance(column, torch.Tensor) else column
