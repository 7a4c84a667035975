"""Distillation on the target's most probable tokens (P1 §3.3, App. B)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.training.divergence import truncated_cross_entropy, truncated_probs
from specbench.training.draws import Prompts
from specbench.training.generations import Generations
from specbench.training.passes import KEPT_BYTES, Batch, Sample, batches_of, learnt_logits
from specbench.training.sample_objective import SampleObjective
from specbench.training.spec import TrainSpec
from specbench.training.teacher import Generator, Job

ENTRY_BYTES = 12  # of one kept probability with its token id


def distillation(spec: TrainSpec, target: CausalLM, samples: Sequence[Sample]) -> SampleObjective:
    """The cross-entropy of the drafter on the target's `top_k` most probable tokens, the tail dropped."""
    assert spec.distill is not None
    teacher = SoftTargets(target, samples, spec.distill.top_k, spec.generation_batch)

    def token_losses(batch: Batch, drafter: nn.Module) -> Tensor:
        logits = learnt_logits(drafter, batch, target.vocab_size)
        probs, token_ids = (values.to(logits.device) for values in teacher.of(batch))
        return truncated_cross_entropy(probs, token_ids, logits)

    settings = spec.distill
    return SampleObjective(samples, settings.batch_size, settings.validation_share, spec.seed, token_losses)


def greedy_answers(spec: TrainSpec, target: CausalLM, prompts: Prompts, store: Generations) -> list[Sample]:
    """The target's greedy continuations of all prompts: what distillation on a task learns."""
    generator = Generator.of(target, Sampling(), spec.max_new_tokens)
    ends = store.continued(target, generator, [Job(ids) for _, ids in prompts], spec.generation_batch)
    return [Sample(language, (*ids, *end), len(ids)) for (language, ids), end in zip(prompts, ends, strict=True)]


class SoftTargets:
    """The target's truncated probabilities for every learnt token of the samples.

    Samples of similar length are scored together once, and kept where there is room for all; else each batch is scored
    as it comes. Either way they are a function of sample and batch alone, and not of what was asked for before.
    """

    def __init__(
        self, target: CausalLM, samples: Sequence[Sample], top_k: int, batch_size: int, limit_bytes: int = KEPT_BYTES
    ) -> None:
        self._target, self._top_k = target, top_k
        num_bytes = sum(sample.num_learnt for sample in samples) * top_k * ENTRY_BYTES
        self._home: Mapping[Sample, Batch] = {}
        if num_bytes <= limit_bytes:
            unique = list(dict.fromkeys(samples))
            self._home = {sample: batch for batch in batches_of(unique, batch_size) for sample in batch.samples}
        self._kept: dict[Sample, tuple[Tensor, Tensor]] = {}

    def of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Probabilities and token ids, both [num_learnt, top_k]."""
        if not self._home:
            return self._scored(batch)
        for sample in batch.samples:
            if sample not in self._kept:
                self._keep(self._home[sample])
        probs, token_ids = zip(*(self._kept[sample] for sample in batch.samples), strict=True)
        return torch.cat(probs), torch.cat(token_ids)

    def _keep(self, batch: Batch) -> None:
        lengths = [sample.num_learnt for sample in batch.samples]
        probs, token_ids = (values.cpu().split(lengths) for values in self._scored(batch))
        self._kept.update(zip(batch.samples, zip(probs, token_ids, strict=True), strict=True))

    @torch.no_grad()
    def _scored(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return truncated_probs(learnt_logits(self._target.model, batch, self._target.vocab_size), self._top_k)
