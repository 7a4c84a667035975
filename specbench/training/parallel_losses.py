"""The losses of P-EAGLE heads, which draft all tokens in one pass."""

import math

import torch
from torch import Tensor, nn

from specbench.decoding.decoder import stream_seed
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.parallel import ParallelEagleHead
from specbench.training.heads import MAX_GRAPH, DraftStep, TargetPasses, step_entropy
from specbench.training.passes import Batch, Sample, unwrapped
from specbench.training.spec import PEagleSpec, TrainSpec


class ParallelLosses:
    """The loss of a head on every learnt token of a batch: [num_learnt].

    It is the cross-entropy with the target's distribution, as for EAGLE-3. Of each text one pass reads all rows that
    draft first tokens, and chains of mask tokens behind part of them, which are drawn for each pass (COD sampling,
    arXiv:2602.01469). The loss of a text is the mean over draft tokens k = 1, 2, … with weights decay^(k − 1), each
    token's loss being the mean over the places that learn it. So the share of the places changes its noise, not its
    weight. All validations have the same places.
    """

    def __init__(self, spec: TrainSpec, target: CausalLM, head: ParallelEagleHead) -> None:
        assert spec.peagle is not None
        self.settings, self.seed = spec.peagle, spec.seed
        self.read = TargetPasses(target, head)

    def __call__(self, batch: Batch, model: nn.Module, number: int | None = None) -> Tensor:
        """`number`: that of the pass, from 0; None in a validation."""
        head: ParallelEagleHead = unwrapped(model)
        output = self.read(batch)
        teacher = self.read.teacher(output)
        seed = stream_seed(self.seed, "validation" if number is None else number, "chains")
        generator = torch.Generator().manual_seed(seed)
        decay, device = self.settings.decay, head.device
        keeps_graph = teacher.numel() * sum(kept_shares(self.settings)) <= MAX_GRAPH
        losses: list[Tensor] = []
        start = 0
        for row, sample in enumerate(batch.samples):
            total = torch.zeros(sample.num_learnt, device=device)
            chains = draw_chains(sample, self.settings, generator)
            weights = sum(decay**depth for depth in range(len(chains)))
            hidden = [states[row, : len(sample.ids) - 2].float() for states in output.hidden]
            found = read_chains(head, torch.tensor(sample.ids, device=device), head.project(hidden), chains)
            for depth, (anchors, states) in enumerate(zip(chains, found, strict=True)):
                learnt = (anchors + 2 + depth - sample.num_given).to(device)
                loss = step_entropy(head, depth, DraftStep(start + learnt, states), teacher, keeps_graph)
                if output.is_covered is not None:
                    loss = loss * output.is_covered[start + learnt]
                weight = decay**depth / weights * sample.num_learnt / len(anchors)
                total = total.index_add(0, learnt, weight * loss)
            losses.append(total)
            start += sample.num_learnt
        return torch.cat(losses)


def kept_shares(settings: PEagleSpec) -> list[float]:
    """Returns the share of the places that learn each draft token."""
    return [max(settings.kept_share**depth, settings.min_kept_share) for depth in range(settings.num_draft_tokens)]


def draw_chains(sample: Sample, settings: PEagleSpec, generator: torch.Generator) -> list[Tensor]:
    """Returns for each draft token the rows whose drafts learn it, positions in the text, ascending; those of a token
    are among those of the one before.

    Row i has the target's state of token i and reads token i + 1, so that it drafts token i + 2. The first row is the
    last of the prompt's: a draft begins behind the answer's first token, which the target has not read. A row before
    the last token of the text is there even in an answer of one token. A text of two tokens has none.
    """
    first, end = max(0, min(sample.num_given - 1, len(sample.ids) - 3)), len(sample.ids) - 2
    order = first + torch.randperm(max(0, end - first), generator=generator)
    chains = []
    for depth, share in enumerate(kept_shares(settings)):
        kept = order[: math.ceil(share * len(order))]
        kept = kept[kept + 2 + depth < len(sample.ids)].sort().values
        if not len(kept):
            break
        chains.append(kept)
    return chains


def read_chains(head: ParallelEagleHead, ids: Tensor, states: Tensor, chains: list[Tensor]) -> list[Tensor]:
    """Returns the states that draft each token behind the rows in `chains`, [num_rows, width]. `states`
    [num_tokens, width]: the projected states of the text `ids`, without its last two tokens."""
    if not chains:
        return []
    masks = [anchors.to(ids.device) for anchors in chains[1:]]
    anchors = torch.cat([*masks, ids[:0]])
    depths = torch.cat([torch.full_like(each, depth) for depth, each in enumerate(masks, start=1)] or [ids[:0]])
    made = head.read(ids[1 : len(states) + 1], states, anchors, depths)
    text, *rest = made.split([len(states), *map(len, masks)])
    return [text[chains[0].to(ids.device)], *rest]
