"""The expected acceptance of a method's next token on a pair (arXiv:2502.05202, table 3)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel

from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.generation_state import StopRules
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.running.compose import compose
from specbench.running.prompts import uses_chat
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec

FitVerdict = Literal["fits", "costly", "weak", "no gain", "cannot run"]


class MethodFit(BaseModel):
    """A method on a pair. runs: whether the method's bridge takes the pair at all."""

    method: str
    runs: bool
    verdict: FitVerdict
    reason: str


NUM_PROMPTS = 20
NUM_NEW_TOKENS = 32
SAMPLING = Sampling(temperature=1.0)  # the formulas are about the models' own distributions


class MethodAcceptance(BaseModel):
    """value: the mean probability that the next token is an accepted draft token, with its 95 % interval over prompts;
    null with the reason in `problem`. A position without a draft counts as 0; num_drafted had one."""

    method: str
    value: Metric
    num_positions: int = 0
    num_drafted: int = 0
    problem: str | None = None


class SampledPositions:
    """Positions of the target's own sampled continuations: the same ones for every method."""

    def __init__(self, target: CausalLM, prompts: Sequence[str], seed: int) -> None:
        decoder = compose(load_method("ar"), ModelPair(target), SAMPLING)
        stop = StopRules(NUM_NEW_TOKENS, target.eos_token_ids, context_limit=target.context_limit)
        self.prompts: list[list[int]] = []
        self.continued: list[list[int]] = []
        self.target_probs: list[torch.Tensor] = []  # [num_new_tokens, vocab] per prompt
        for prompt in prompts[:NUM_PROMPTS]:
            ids = target.encode_prompt(prompt, uses_chat(target, "auto"))
            if not ids or len(ids) >= (target.context_limit or len(ids) + 1):
                continue  # a prompt that fills the context has no next token
            new_ids = decoder.generate(ids, stop, seed + len(self.prompts)).token_ids
            logits = target.score((ids + new_ids)[:-1], len(new_ids))
            self.prompts.append(ids)
            self.continued.append(new_ids)
            self.target_probs.append(process(logits, SAMPLING))
        if not self.prompts:
            raise ConfigError(f"no prompt fits into the context of target '{target.name}' ({target.context_limit})")


def expected_acceptance(
    models: ModelPair, methods: Sequence[MethodFit], prompts: Sequence[str], seed: int = 0
) -> list[MethodAcceptance]:
    """Returns the acceptance of each method with its own drafter and bridge, on texts that the target wrote at
    temperature 1.

    Methods that know Σ min(p, q) give it (sd), union and tli times the probability that the drafter does not draw the
    end of a text, which they do not propose; of the others one draft per position is judged: p(x) for an exact match,
    which is Σ p ψ on average, and min(1, p(x) / ψ(x)) for slrs, which is Σ min(p, ψ) on average.
    """
    reference = SampledPositions(models.target, prompts, seed)
    found = []
    for fit in methods:
        try:
            if not fit.runs:
                raise ConfigError("undefined for different vocabularies")
            found.append(acceptance_of_method(load_method(fit.method), models, reference, seed))
        except ConfigError as error:
            found.append(MethodAcceptance(method=fit.method, value=Metric(), problem=str(error)))
    return found


@torch.inference_mode()
def acceptance_of_method(
    method: MethodSpec, models: ModelPair, reference: SampledPositions, seed: int
) -> MethodAcceptance:
    decoder = compose(method, models, SAMPLING)
    assert isinstance(decoder, DraftingDecoder)
    drafter = decoder.drafter
    generator = torch.Generator(device=models.target.device).manual_seed(seed)
    num_draft_tokens = 1 if method.verification.rule == "rejection" else method.num_draft_tokens  # text needs several
    values: list[float] = []
    num_drafted = 0
    cluster: list[int] = []
    for number, prompt_ids in enumerate(reference.prompts):
        drafter.prefill(prompt_ids)
        for place, target_probs in enumerate(reference.target_probs[number]):
            ids = prompt_ids + reference.continued[number][:place]
            proposal = drafter.propose(ids, num_draft_tokens, generator)
            num_drafted += bool(proposal.token_ids)
            values.append(acceptance_probability(proposal, target_probs))
            cluster.append(number)
    interval = Prompts(np.array(cluster, dtype=np.int64), seed).mean(values, SHARE)
    return MethodAcceptance(method=method.name, value=interval, num_positions=len(values), num_drafted=num_drafted)


def acceptance_probability(proposal: Proposal, target_probs: torch.Tensor) -> float:
    """Returns the probability that the first draft token is accepted, given p as [vocab]."""
    if proposal.probs is not None:
        attempted = proposal.probs.attempted(target_probs[:0], Distributions(target_probs.log()[None], SAMPLING))
        if attempted is not None:
            return float(attempted[0])
    if proposal.probs is None or not proposal.token_ids:
        return 0.0
    drafted = proposal.on(target_probs.device)
    rows = target_probs.expand(len(drafted), -1)
    overlap = proposal.probs.overlap(rows)
    if overlap is not None:
        return float(overlap[0])
    token = proposal.token_ids[0]
    if token == OUT_OF_VOCABULARY:
        return 0.0
    return min(1.0, float(target_probs[token] / proposal.probs.token_probs(drafted)[0]))
