"""Drafters: they propose draft tokens. Here are their base classes, the one that drafts nothing, and the one that is a
small language model.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.draft_length import FIXED, DraftLength
from specbench.decoding.proposal import (
    Draws,
    OnDeviceProposal,
    PointMass,
    Proposal,
    TreeProposal,
    Verification,
    up_to_end,
)
from specbench.decoding.sampling import Distributions, Sampling, entropies
from specbench.models.causal_lm import ModelPair
from specbench.models.devices import upload
from specbench.models.meters import Clock, PassLog, Stopwatch
from specbench.models.scoring import Output, ScoringModel
from specbench.specs.components import DraftTemperature

SHORTEST = 8  # tokens; passes over smaller trees are not faster


class Drafter:
    """Proposes draft tokens for a sequence and owns all of its state.

    `model` is the draft model. `passes` logs its passes, or the look-ups of a drafter without a model. `tokenizing` is
    the time that the drafter spends in tokenizers. `sampling` holds the parameters for its draws. Each is None if the
    drafter has none. `inner_identity`: name and revision of the model or data that drafts for `model`. `hidden_layers`
    are the target's layers whose hidden states `observe` receives, numbered as in transformers' `hidden_states`. `name`
    and `revision` identify the drafter's own data or weights in a run's identity.
    """

    name: str | None = None
    revision: str | None = None
    inner_identity: tuple[str, str | None] | None = None
    model: ScoringModel | None = None
    passes: PassLog | None = None
    tokenizing: Stopwatch | None = None
    sampling: Sampling | None = None
    hidden_layers: tuple[int, ...] = ()
    draws: Draws | None = None  # None for a drafter that proposes no trees
    learns_over_prompts: bool = False  # whether the speed of a prompt depends on the prompts before it
    memory_kind: str | None = None  # what it remembers of other prompts (see `memory_of`); None: it has no memory
    left_out_own: bool | None = None  # whether it left out this prompt's own earlier answer; None: it knows no others
    max_nodes: int | None = None  # of its trees, if they vary in size
    length: DraftLength = FIXED  # how many tokens a step drafts
    longest: int | None = None  # the number of tokens beyond which it cannot draft; None: there is none
    pauses_at: int | None = None  # the number of tokens from which on it drafts nothing; None: there is none
    trained_length: int | None = None  # of a head, the max_position_embeddings of its config.json

    def __init__(self, model: ScoringModel | None = None, sampling: Sampling | None = None) -> None:
        self.model = model
        self.sampling = sampling
        self.passes = None if model is None else model.passes

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Called before the clock starts. A drafter that needs the target's tokens in advance calls `decode`."""

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        """Prepares drafts of `num_draft_tokens` tokens before anything is measured.

        Returns the number of CUDA graphs that it recorded and the seconds that the recording took.
        """
        return 0, 0.0

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths, in tokens, for which the target's passes over the drafter's trees are prepared. A pass
        reads a tree of up to `num_draft_tokens` levels and the token before it, padded to the next length."""
        return () if self.max_nodes is None else padded_lengths(self.max_nodes)

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths of the levels of the drafter's trees that `model` reads, one pass each."""
        return ()

    def chain_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths of the passes over chains that `model` makes besides those over one and two tokens."""
        return ()

    def room(self, num_tokens: int) -> int:
        """Returns how many tokens it may draft after `num_tokens`; 0 if it pauses there, until the answer ends."""
        return sys.maxsize if self.pauses_at is None else max(0, self.pauses_at - num_tokens)

    def use_length(self, length: DraftLength) -> None:
        """Sets the draft length. A drafter that drafts for another one passes it on."""
        self.length = length
        self.learns_over_prompts = self.learns_over_prompts or length.learns_over_prompts

    def begin_cell(self) -> None:
        """Called after the warm-up of each subset of a task, and before each further order of its prompts. A drafter
        that `learns_over_prompts` forgets everything here."""

    def prefill(self, prompt_ids: list[int]) -> None:
        """Resets the cache and prefills a new prompt, before the decode clock starts. By default, only the draft
        model, if there is one, does so."""
        if self.model is not None:
            self.model.reset()
            self.model.score(prompt_ids, 1)

    def rewind(self, ids: list[int]) -> None:
        """Called before `propose` if `ids` do not continue the tokens of the last proposal's text, some of which were
        taken back. This happens only where the drafter drafts for a draft model. Drafters that read each token once
        forget here what is not in `ids`."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`."""
        raise NotImplementedError

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        """Called after each target pass with the target's output, for drafters that use what it computed or accepted.

        The first pass is over the prompt: its proposal is empty, and its next token is the first token of the answer.
        """


COLD, WARM, WARM_HALF, SHUFFLED = "cold", "warm", "warm half", "shuffled"


def memory_of(drafter: Drafter) -> str | None:
    """Returns what a drafter remembers of other prompts. cold: nothing; warm: answers to all others, from another run;
    warm half: answers to the other half of these; shuffled: what the prompts before it taught it or its draft length,
    in random order. None if it has no memory."""
    return SHUFFLED if drafter.learns_over_prompts else drafter.memory_kind


EMPTY = Proposal()


@DRAFTERS.register("none")
class NoDrafter(Drafter):
    """Drafts nothing: every step is one target pass over one token."""

    def __init__(self, models: Any = None, sampling: Sampling | None = None) -> None:
        super().__init__()

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return EMPTY


class LookUpDrafter(Drafter):
    """A drafter without a model: every proposal is one look-up, logged as a pass with its number of draft tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int] | None]:
        """Returns at most `num_draft_tokens` levels of tokens that may follow `ids`, and their parents; None for a
        chain."""
        raise NotImplementedError

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        start = self.passes.clock.mark()
        token_ids, parents = self.look_up(ids, num_draft_tokens)
        self.passes.add(len(token_ids), start, self.passes.clock.mark())
        if not token_ids:
            return Proposal()
        return Proposal(token_ids, PointMass(token_ids)) if parents is None else TreeProposal(token_ids, parents)


def padded_lengths(num_nodes: int) -> tuple[int, ...]:
    """Returns the lengths of passes over drafts of up to `num_nodes` tokens that vary in size, such as trees: the
    maximum and, for smaller drafts, a half and a quarter of it, so that less than half of a pass is padding."""
    longest = num_nodes + 1
    return tuple(-(-longest // divisor) for divisor in (1, 2, 4) if longest // divisor >= SHORTEST or divisor == 1)


class ModelDrafter(Drafter):
    """A model that drafts token by token; a drafted EOS ends the draft.

    If reading a token would wait for the device, the drafter does not stop at an EOS; the draft is cut there when the
    step's outcome is read.
    """

    model: ScoringModel
    sampling: Sampling

    def __init__(self, model: ScoringModel, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self._last: OnDeviceProposal | None = None
        self._is_end: torch.Tensor | None = None  # computed once per generation

    def prefill(self, prompt_ids: list[int]) -> None:
        self._last = self._is_end = None
        super().prefill(prompt_ids)

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        return (0, 0.0) if self.length.is_asked else self.model.reserve_draft(num_draft_tokens, self.sampling)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        length = self.length
        if self.model.prefers_pending and num_draft_tokens and not length.is_asked:
            return self._propose_on_device(ids, num_draft_tokens, generator)
        mark = self.model.passes.clock.mark
        drafted_ids = list(ids)
        rows: list[Distributions] = []
        for _ in range(num_draft_tokens):
            distribution = Distributions(self.model.score(drafted_ids, 1).logits, self.sampling)
            start = mark()
            raw = distribution.raw_probs[0] if length.is_asked else None
            if raw is not None and not length.draws(float(entropies(raw))):
                break
            token = distribution.draw(0, generator)
            self.model.passes.add_choice(start, mark())
            drafted_ids.append(token)
            rows.append(distribution)
            if raw is not None and not length.goes_on(float(raw[token])):
                break
            if token in self.model.eos_token_ids:
                break
        return Proposal(drafted_ids[len(ids) :], Distributions.concat(rows) if rows else None)

    def _propose_on_device(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> OnDeviceProposal:
        if self._last is not None:
            self.model.resolve_pending(self._last.scored_ids)
        draft = self.model.draft(ids, num_draft_tokens, self.sampling, generator)
        if draft is not None:  # one recorded graph made all passes and draws
            tokens = draft.tokens
            distributions = Distributions(draft.logits, self.sampling, draft.probs)
        else:
            mark = self.model.passes.clock.mark
            tokens = torch.empty(0, dtype=torch.long, device=generator.device)
            rows: list[Distributions] = []
            for number in range(num_draft_tokens):
                pending = tokens if number else None
                rows.append(Distributions(self.model.score(ids, 1, pending).logits, self.sampling))
                start = mark()
                token = rows[-1].draw_all(generator)
                self.model.passes.add_choice(start, mark())
                tokens = torch.cat([tokens, token]) if number else token
            distributions = Distributions.concat(rows)
        if self._is_end is None:
            self._is_end = end_mask(self.model.eos_token_ids, distributions.logits.shape[-1], tokens.device)
        is_proposed = up_to_end(self._is_end.index_select(0, tokens))
        self._last = OnDeviceProposal(tokens, is_proposed, distributions)
        return self._last


def end_mask(ends: frozenset[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Returns a mask of the tokens in `ends`: [vocab]."""
    token_ids = torch.tensor([token for token in ends if token < vocab_size], dtype=torch.long)
    table = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    return table.index_fill_(0, upload(token_ids, device), True)


BEYOND = (
    "Where the drafter's context is shorter than the target's: null ends the answers of all methods there; pause lets "
    "the drafter draft nothing beyond it, so that the target's context is the limit."
)
BeyondContext = Annotated[Literal["pause"] | None, Field(description=BEYOND)]


CHECKPOINT = (
    "The draft model: a folder, a hub id or embedded:NAME (which belongs to embedded:target and to no other target); "
    "null: the one of --drafter."
)
Checkpoint = Annotated[str | None, Field(min_length=1, description=CHECKPOINT)]


@DRAFTERS.register("model")
def model_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    temperature: DraftTemperature = None,
    checkpoint: Checkpoint = None,
    beyond_context: BeyondContext = None,
) -> ModelDrafter:
    """A small language model drafts token by token, with the run's sampling parameters or its own temperature
    (0: greedy drafts, as in arXiv:2502.20704)."""
    del checkpoint, beyond_context  # already loaded as models.drafter; `build_decoder` sets pauses_at
    assert models.drafter is not None
    return ModelDrafter(models.drafter, sampling.at(temperature))
