"""Drafters with heads that draft a block of tokens in one pass."""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import EMPTY, Drafter
from specbench.decoding.drafters.heads import BeyondHead, HeadPath
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.heads import published_head
from specbench.models.heads.block import BlockHead, BlockModel
from specbench.models.heads.block_checkpoint import load_block
from specbench.models.heads.checkpoints import HeadRevision, read_checkpoint
from specbench.models.heads.eagle_checkpoint import decoder_settings, load_eagle
from specbench.models.heads.parallel import ParallelEagleHead, ParallelModel
from specbench.models.scoring import Output
from specbench.specs.components import DraftTemperature

Head = Annotated[Literal["dflash", "dspark", "domino", "peagle"], Field(description="The kind of the head.")]
DRAFT = (
    "argmax: the most probable token of each position; sample: tokens drawn from the head's distributions; null: "
    "argmax for dflash and peagle, whose positions do not know each other's tokens, sample for dspark and domino."
)
Draft = Annotated[Literal["argmax", "sample"] | None, Field(description=DRAFT)]
MIN_CONFIDENCE = (
    "The draft ends before the first token whose confidence, as the head estimates it from the tokens before, is below "
    "this value; 0: never."
)
MinConfidence = Annotated[float, Field(ge=0, le=1, description=MIN_CONFIDENCE)]
NEEDS = "a {head} head of the target (a published one is found by the target's name)"
ONE_BY_ONE = "corrects the logits of each draft token, and it is drawn"
WHOLE = "one pass reads the block: each of its rows sees the text before the block and the whole block; "
AHEAD = "; in some heads the row of the last token drafts the next one, and each row is one ahead"
ALONE = "no draft token depends on another one, so that by default the most probable ones are proposed"
STEPS = {
    "dflash": f"{WHOLE}{ALONE}{AHEAD}",
    "dspark": f"{WHOLE}then a Markov head on the token before {ONE_BY_ONE}{AHEAD}",
    "domino": f"{WHOLE}then a GRU over the tokens before {ONE_BY_ONE}{AHEAD}",
    "peagle": f"one causal pass reads the block: each row sees the rows before it and drafts the next token; {ALONE}",
}


def block_drawing(*, head: str, **_: object) -> tuple[list[str], str]:
    draft = "draft               the    mat    ." if head == "peagle" else "draft                      the    mat    ."
    return [
        "text   The cat sat  on        the target's hidden states of these tokens, but not of the last one",
        "block               on   [mask] [mask] [mask]",
        draft,
    ], STEPS[head]


class BlockDrafter(Drafter):
    """A drafter with a head that drafts blocks. The head reads the hidden states of the tokens that the target has
    read."""

    sampling: Sampling

    def __init__(self, model: BlockModel | ParallelModel, sampling: Sampling, min_confidence: float = 0.0) -> None:
        super().__init__(None, sampling)
        self.block, self.passes = model, model.passes
        self.hidden_layers = model.head.hidden_layers
        self.longest = model.longest
        self.min_confidence = min_confidence
        self._prompt_ids: list[int] | None = None  # the prompt, until the target has read it

    def prefill(self, prompt_ids: list[int]) -> None:
        self._prompt_ids = prompt_ids
        self.block.reset()

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if not num_draft_tokens:
            return EMPTY
        start = self.block.passes.clock.mark()
        states, num_rows = self.block.read_block(ids, num_draft_tokens)
        head = self.block.head
        if isinstance(head, BlockHead) and head.is_chain:
            # The pass includes the draws, because each correction needs the token before it.
            tokens, distributions = self._draw_chain(head, ids[-1], states, generator)
            self.block.passes.add(num_rows, start, self.block.passes.clock.mark())
        else:
            logits = head.whole_logits(head.base_logits(states), self.block.vocab_size)
            end = self.block.passes.clock.mark()
            self.block.passes.add(num_rows, start, end)
            distributions = Distributions(logits, self.sampling)
            tokens = self._up_to_end(distributions.draw_all(generator).tolist())
            self.block.passes.add_choice(end, self.block.passes.clock.mark())
            if len(tokens) < len(logits):
                distributions = Distributions(logits[: len(tokens)], self.sampling)
        return Proposal(tokens, distributions) if tokens else EMPTY

    def _up_to_end(self, tokens: Sequence[int]) -> list[int]:
        """Returns the tokens up to the first end token."""
        ends = [place for place, token in enumerate(tokens) if token in self.block.eos_token_ids]
        return list(tokens[: ends[0] + 1] if ends else tokens)

    def _draw_chain(
        self, head: BlockHead, anchor: int, states: torch.Tensor, generator: torch.Generator
    ) -> tuple[list[int], Distributions]:
        """Draws token by token, each from its distribution given those before it."""
        base = head.base_logits(states)
        tokens: list[int] = []
        rows: list[Distributions] = []
        before, memory = torch.tensor([anchor], device=head.device), None
        for place in range(len(states)):
            state = states[place : place + 1]
            # Only the tokens before this one may decide whether it is drafted: a cut by the token itself would
            # change the distribution of the drafts, and so that of the output.
            if self.min_confidence and head.confidence(state, before) < self.min_confidence:
                break
            correction, memory = head.correction(place, state, before, memory)
            logits = base[place : place + 1] if correction is None else base[place : place + 1] + correction
            rows.append(Distributions(head.whole_logits(logits, self.block.vocab_size), self.sampling))
            tokens.append(rows[-1].draw(0, generator))
            if tokens[-1] in self.block.eos_token_ids:
                break
            before = torch.tensor(tokens[-1:], device=head.device)
        return tokens, Distributions.concat(rows) if rows else Distributions(base[:0], self.sampling)

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        num_states = len(output.hidden[0])
        if self._prompt_ids is not None:
            self.block.read_target(output.hidden, range(num_states))
            self.block.read_context([*self._prompt_ids, verification.next_token])
            self._prompt_ids = None
            return
        root = num_states - 1 - len(proposal.scored_ids)
        self.block.read_target(output.hidden, [root, *(root + 1 + node for node in verification.path)])


@DRAFTERS.register("block", needs=NEEDS, embedded=False, drawing=block_drawing)
def block_drafter(
    models: ModelPair, sampling: Sampling, *, head: Head, path: HeadPath = None, revision: HeadRevision = None,
    draft: Draft = None, temperature: DraftTemperature = None, min_confidence: MinConfidence = 0.0,
    beyond_context: BeyondHead = None,
) -> BlockDrafter:  # fmt: skip
    """A head drafts a block of tokens in one pass over the last token and mask tokens, and reads the target's hidden
    states of the whole text."""
    target = models.target
    checkpoint = read_checkpoint(path or published_head(head, target.name), revision)
    checkpoint.expect(head)
    model: BlockModel | ParallelModel
    if head == "peagle":
        parallel = cast(ParallelEagleHead, load_eagle(checkpoint, target))
        model = ParallelModel(parallel, target.vocab_size, target.eos_token_ids)
    else:
        model = BlockModel(load_block(checkpoint, target), target.vocab_size, target.eos_token_ids)
    is_argmax = (draft or ("sample" if model.head.is_chain else "argmax")) == "argmax"
    if is_argmax and temperature:
        raise ConfigError(
            f"drafter.temperature = {temperature:g}: has no effect on drafts of the most probable tokens: give "
            "drafter.draft=sample, or leave it out"
        )
    if min_confidence and not model.head.has_confidence:
        raise ConfigError(
            f"drafter.min_confidence = {min_confidence:g}: '{checkpoint.name}' has no confidence head: leave it out"
        )
    drafter = BlockDrafter(model, sampling.at(0.0 if is_argmax else temperature), min_confidence)
    drafter.name, drafter.revision = checkpoint.name, checkpoint.revision
    settings = decoder_settings(checkpoint, "dflash", "dspark", "peagle")
    drafter.trained_length = settings.get("max_position_embeddings")
    if beyond_context == "pause":
        drafter.pauses_at = drafter.trained_length
        if drafter.pauses_at is None:
            raise checkpoint.problem("config.json has no max_position_embeddings: leave drafter.beyond_context out")
    return drafter
