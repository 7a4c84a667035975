"""The losses of heads that draft blocks: DFlash, DSpark and Domino."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as computed_again
from transformers.cache_utils import DynamicLayer

from specbench.decoding.decoder import stream_seed
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.block import BlockHead, DSparkHead
from specbench.training.heads import MAX_GRAPH, TargetOutput, TargetPasses
from specbench.training.passes import Batch, Sample, in_float32, unwrapped
from specbench.training.spec import TrainSpec

MAX_ROWS = 2048  # of blocks in one pass; its mask grows with their square


class BlockLosses:
    """The loss of a head on every learnt token of a batch: [num_learnt].

    At the anchors of a text, which are drawn for each pass, the head drafts a block. The loss of its draft token k = 1,
    2, … has the weight decay^(k − 1), and the tokens before it are those of the text. It is

    - DFlash (arXiv:2602.06036): the cross-entropy with the text's token;
    - DSpark (arXiv:2607.05147): the weighted sum of this, of the L1 distance to the target's distribution, and of the
      confidence head's cross-entropy with 1 − ½ L1, the chance that the token is accepted;
    - Domino (arXiv:2605.29707): λ times the cross-entropy of the logits without correction, and 1 − λ times that of the
      corrected ones. λ falls linearly from 1 to 0 in the training, and is 0 in validations.

    The losses of a text are scaled so that their mean is the weighted mean over its draft tokens. Tokens outside a
    restricted vocabulary have no cross-entropy. All validations have the same anchors.

    `num_passes`: those of the whole training, for λ; set when the number of texts is known.
    """

    def __init__(self, spec: TrainSpec, target: CausalLM, head: BlockHead) -> None:
        assert spec.block is not None
        self.spec, self.block = spec, spec.block
        self.read = TargetPasses(target, head)
        self.num_passes = 1
        self._rows: Tensor | None = None  # the row of each token in a restricted vocabulary, −1 for the others
        if head.d2t is not None:
            drafted = torch.arange(len(head.d2t), device=head.device)
            self._rows = torch.full((target.vocab_size,), -1, device=head.device)
            self._rows[drafted + head.d2t] = drafted

    def __call__(self, batch: Batch, model: nn.Module, number: int | None = None) -> Tensor:
        """`number`: that of the pass, from 0; None in a validation."""
        head: BlockHead = unwrapped(model)
        output = self.read(batch)
        seed = stream_seed(self.spec.seed, "validation" if number is None else number, "anchors")
        generator = torch.Generator().manual_seed(seed)
        plain_weight = 0.0 if number is None else max(0.0, 1 - number / max(1, self.num_passes - 1))
        drawn = [draw_anchors(sample, self.block.num_anchors, generator) for sample in batch.samples]
        num_logits = sum(map(len, drawn)) * head.layout.num_drafts * head.layout.draft_vocab_size
        keeps_graph = not torch.is_grad_enabled() or num_logits <= MAX_GRAPH
        losses: list[Tensor] = []
        start = 0
        for row, (sample, anchors) in enumerate(zip(batch.samples, drawn, strict=True)):
            learnt = slice(start, start + sample.num_learnt)
            hidden = [states[row, : int(anchors.max())].float() for states in output.hidden]
            text = TextLoss(self, head, sample, output, learnt, plain_weight, keeps_graph)
            losses.append(text(head.project(hidden), anchors))
            start = learnt.stop
        return torch.cat(losses)


def draw_anchors(sample: Sample, number: int, generator: torch.Generator) -> Tensor:
    """Returns the positions of the anchors in a text: [num_anchors], ascending. A draft begins behind a token of the
    answer that the target has not read yet. The first of them is the answer's first token; before the last token of the
    text there is one even in an answer of one token."""
    first, end = min(sample.num_given, len(sample.ids) - 2), len(sample.ids) - 1
    chosen: Tensor = torch.randperm(end - first, generator=generator)[:number].sort().values
    return first + chosen


class TextLoss:
    """The losses of one text; see `BlockLosses`. `learnt`: its tokens among those of the batch. `keeps_graph`: its
    logits are kept for the gradients, or else computed a second time there, since those of a real vocabulary take more
    memory than everything else."""

    def __init__(
        self, losses: BlockLosses, head: BlockHead, sample: Sample, output: TargetOutput, learnt: slice,
        plain_weight: float, keeps_graph: bool,
    ) -> None:  # fmt: skip
        self.losses, self.head, self.sample = losses, head, sample
        self.plain_weight, self.keeps_graph = plain_weight, keeps_graph
        self.ids = torch.tensor(sample.ids, device=head.device)
        self.teacher: Tensor | None = None  # the target's logits, and the share of a restricted vocabulary
        self.share: Tensor | None = None
        if isinstance(head, DSparkHead):
            self.teacher = losses.read.teacher(output, learnt)
            self.share = None if output.share is None else output.share[learnt]

    def __call__(self, context: Tensor, anchors: Tensor) -> Tensor:
        """Returns the loss on every learnt token, [num_learnt], from the context states [num_tokens, width] of the text
        before the last anchor."""
        num_given, num_learnt = self.sample.num_given, self.sample.num_learnt
        total = torch.zeros(num_learnt, device=self.head.device)
        total_weight = 0.0
        layout = self.head.layout
        for part in anchors.split(max(1, MAX_ROWS // layout.block_size)):
            starts = part.to(self.head.device)
            states = read_blocks(self.head, self.ids, context, starts)
            memory: Tensor | None = None
            for place in range(layout.num_drafts):
                num_inside = int((part + 1 + place < len(self.ids)).sum())  # the others' token is behind the text
                if not num_inside:
                    break
                before = self.ids[(starts + place).clamp_max(len(self.ids) - 1)]
                learnt = (starts + 1 + place - num_given).clamp_max(num_learnt - 1)
                step: Callable[..., tuple[Tensor, Tensor | None]] = partial(self._of_place, place)
                if not self.keeps_graph:
                    step = partial(computed_again, step, use_reentrant=False, preserve_rng_state=False)
                loss, memory = step(states[:, place], before, learnt, memory)
                weight = self.losses.block.decay**place
                total = total.index_add(0, learnt[:num_inside], weight * loss[:num_inside])
                total_weight += weight * num_inside
        return total * (num_learnt / total_weight)

    def _of_place(
        self, place: int, states: Tensor, before: Tensor, learnt: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the losses of draft token `place`, from 0, of some blocks, [num_blocks], and what the corrections of
        the next one remember. `states` [num_blocks, width]: those that draft it. `before`: the tokens before it.
        `learnt`: its indices among the text's learnt tokens."""
        plain = self.head.base_logits(states)
        correction, memory = self.head.correction(place, states, before, memory)
        logits = in_float32(plain if correction is None else plain + correction)
        labels = self.ids[self.sample.num_given + learnt]
        dspark, head = self.losses.spec.dspark, self.head
        if dspark is not None and isinstance(head, DSparkHead):
            assert self.teacher is not None
            probs = torch.softmax(in_float32(self.teacher[learnt]), dim=-1)
            outside: Tensor | float = 0.0  # the target's probability of tokens that the head cannot draft
            if self.share is not None:
                probs, outside = probs * self.share[learnt, None], 1 - self.share[learnt]
            distance = (probs - torch.softmax(logits, dim=-1)).abs().sum(-1) + outside
            loss = dspark.entropy_weight * self._entropy(logits, labels) + dspark.distance_weight * distance
            if head.has_confidence:
                chance = 1 - distance.detach() / 2
                confidence = in_float32(head.confidence_logits(states, before))
                of_confidence = functional.binary_cross_entropy_with_logits(confidence, chance, reduction="none")
                loss = loss + dspark.confidence_weight * of_confidence
            return loss, memory
        if correction is None or not self.plain_weight:
            return self._entropy(logits, labels), memory
        of_plain = self._entropy(in_float32(plain), labels)
        return self.plain_weight * of_plain + (1 - self.plain_weight) * self._entropy(logits, labels), memory

    def _entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the cross-entropy with tokens of the target, 0 for those that are not in the draft vocabulary."""
        rows = self.losses._rows
        return functional.cross_entropy(
            logits, labels if rows is None else rows[labels], reduction="none", ignore_index=-1
        )


def read_blocks(head: BlockHead, ids: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
    """Returns the states that draft the tokens after each of the anchors, positions in the text `ids`:
    [num_anchors, num_drafts, width]. `context`: see `BlockHead.project`, for the tokens before the last anchor."""
    caches = [DynamicLayer() for _ in head.layers]
    head.read_context(context, 0, caches)
    made: Tensor = head(ids[anchors], len(context), caches, anchors)
    return made
