"""The quick estimates that s-CDF logs beside its loss (P0 App. D.1): for trends, not for certification (App. D.5)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.training.passes import Batch, Sample, bare, batches_of, learnt_logits
from specbench.training.teacher import Generator, Job

Logits = Callable[[Batch], Tensor]  # the logits before every learnt token, [num_learnt, vocab]


class Proxies:
    """Estimates on the prompts of a pass. `num_draft_tokens`: of a greedy draft; `batch_size`: of a scoring pass."""

    def __init__(self, target: CausalLM, num_draft_tokens: int, batch_size: int, generation_batch: int) -> None:
        self._target, self._num_draft_tokens = target, num_draft_tokens
        self._batch_size, self._generation_batch = batch_size, generation_batch

    @torch.no_grad()
    def of(self, drafter: nn.Module, prompts: Sequence[Sequence[int]], seed: int) -> dict[str, float | None]:
        """Proxy acceptance, and the prompt misfit of drafter (q) and target (p)."""
        vocab_size, size = self._target.vocab_size, self._batch_size

        def target(batch: Batch) -> Tensor:
            return learnt_logits(self._target.model, batch, vocab_size)

        def draft(batch: Batch) -> Tensor:
            return learnt_logits(drafter, batch, vocab_size)

        given = [Sample("", tuple(ids), 1) for ids in prompts]
        return {
            "acceptance": proxy_acceptance(self._drafts(drafter, prompts), target, draft, size, seed),
            "prompt_tv_q": prompt_misfit(given, draft, size),
            "prompt_tv_p": prompt_misfit(given, target, size),
        }

    def _drafts(self, drafter: nn.Module, prompts: Sequence[Sequence[int]]) -> list[Sample]:
        eos = self._target.eos_token_ids
        greedy = Generator(bare(drafter), self._target.vocab_size, eos, Sampling(), self._num_draft_tokens)
        ends = greedy.continue_all([Job(tuple(ids)) for ids in prompts], self._generation_batch)
        return [Sample("", (*ids, *end), len(ids)) for ids, end in zip(prompts, ends, strict=True)]


def token_probs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """The raw probability of one token per position, float64 on the CPU: [num_positions]."""
    log_probs = torch.log_softmax(logits.float(), dim=-1).gather(-1, token_ids.to(logits.device)[:, None])[:, 0]
    return log_probs.cpu().double().exp()


def num_accepted(target_probs: Tensor, draft_probs: Tensor, uniforms: Tensor) -> int:
    """The contiguous accepted prefix of a draft: tokens are accepted while u < min(1, p/q). All are [num_drafted]:
    what target and drafter give the drafted tokens, and uniform numbers in [0, 1)."""
    accepted = uniforms < (target_probs / draft_probs).clamp_max(1.0)
    return int(accepted.int().cumprod(-1).sum())


def proxy_acceptance(drafts: Sequence[Sample], target: Logits, drafter: Logits, batch_size: int, seed: int) -> float:
    """Accepted prefixes of greedy drafts / drafted tokens. `drafts`: prompts, with the drafts as what is learnt."""
    generator = torch.Generator().manual_seed(seed)
    accepted = 0
    for batch in batches_of(drafts, batch_size):
        target_probs, draft_probs = (token_probs(of(batch), batch.learnt_ids) for of in (target, drafter))
        uniforms = torch.rand(batch.num_learnt, generator=generator, dtype=torch.float64)
        lengths = [sample.num_learnt for sample in batch.samples]
        for parts in zip(*(values.split(lengths) for values in (target_probs, draft_probs, uniforms)), strict=True):
            accepted += num_accepted(*parts)
    return accepted / sum(sample.num_learnt for sample in drafts)


def prompt_misfit(prompts: Sequence[Sample], model: Logits, batch_size: int) -> float | None:
    """1 − the mean raw probability of the prompts' tokens: the total variation to the data as a point mass (P0 eq. 7).
    None where no prompt has a token behind another."""
    longer = [prompt for prompt in prompts if prompt.num_learnt]
    found = [token_probs(model(batch), batch.learnt_ids) for batch in batches_of(longer, batch_size)]
    return float(1 - torch.cat(found).mean()) if found else None
