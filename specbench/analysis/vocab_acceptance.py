"""The expected acceptance of a method's next token on a pair (arXiv:2502.05202, table 3)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel

from specbench.analysis.vocab_overlap import Injectivity, TextOverlap
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.generation_state import StopRules
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.running.compose import compose
from specbench.running.prompts import uses_chat
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.method import MethodSpec

FitVerdict = Literal["fits", "costly", "weak", "no gain", "cannot run"]
LARGE_OVERLAP = 0.75  # of the target's tokens in texts; below it a method is held back by the vocabularies alone
MANY_PASSES = 16  # for ψ of one token: what the paper calls large (figure 1)


class MethodFit(BaseModel):
    """A method on a pair. runs: whether the method's bridge takes the pair at all."""

    method: str
    runs: bool
    verdict: FitVerdict
    reason: str


class PairFigures(BaseModel):
    """The figures behind the verdicts. passes_in_texts: the mean draft passes that ψ takes at least, over the target's
    tokens as often as they appear in the texts; writable_in_texts: the share of these that drafter tokens can be joined
    to."""

    same_vocabulary: bool
    text_overlap: TextOverlap
    passes_in_texts: float
    writable_in_texts: float
    target: Injectivity
    drafter: Injectivity


def fits(figures: PairFigures) -> list[MethodFit]:
    """Returns the verdicts on the paper's methods, in its order. They leave open whether the drafter is accurate, which
    takes the models (`expected_acceptance`)."""
    judged = {"sd": _sd, "union": _union, "slem": _slem, "slrs": _slrs, "tli": _tli}
    known = set(method_names())
    found = []
    for name in (name for name in judged if name in known):
        runs = figures.same_vocabulary or not load_method(name).same_vocabulary
        verdict, reason = judged[name](figures)
        found.append(MethodFit(method=name, runs=runs, verdict=verdict if runs else "cannot run", reason=reason))
    return found


def _sd(figures: PairFigures) -> tuple[FitVerdict, str]:
    if figures.same_vocabulary:
        return "fits", "both have the same vocabulary"
    return "cannot run", "it compares probabilities of the same token ids, and the vocabularies differ"


def _union(figures: PairFigures) -> tuple[FitVerdict, str]:
    return "no gain", "never accepts more than tli (Theorem 4.1)"


def _slem(figures: PairFigures) -> tuple[FitVerdict, str]:
    if figures.same_vocabulary:
        return "no gain", "sd runs this pair, and exact match accepts less (Theorem 3.1)"
    if changing := _changing(figures):
        return "weak", f"{changing}: the drafter reads and writes other texts"
    return "fits", "texts come back from the tokens of both; the vocabularies may differ in any way"


def _changing(figures: PairFigures) -> str:
    """Returns how many texts do not come back from each side's tokens; empty where all do."""
    return "; ".join(
        f"{found.num_changed_by_bridges} of {found.num_texts} texts do not come back from the {side}'s tokens"
        for side, found in (("target", figures.target), ("drafter", figures.drafter))
        if found.num_changed_by_bridges
    )


def _slrs(figures: PairFigures) -> tuple[FitVerdict, str]:
    if figures.same_vocabulary:
        return "no gain", "sd runs this pair, and takes no sum over texts"
    weak = [f"{changing}: the drafter reads and writes other texts"] if (changing := _changing(figures)) else []
    if figures.writable_in_texts < LARGE_OVERLAP:
        share = f"{figures.writable_in_texts:.1%} of the target's tokens in the texts"
        weak.insert(0, f"the drafter can write {share}: only those can be accepted")
    if weak:
        return "weak", "; ".join(weak)
    passes = f"ψ of a token takes {figures.passes_in_texts:.1f} draft passes or more, on average over the texts"
    if figures.passes_in_texts > MANY_PASSES:
        return "costly", f"{passes}: the drafter's tokens are too long"
    return "fits", f"{passes}: the drafter's tokens are short"


def _tli(figures: PairFigures) -> tuple[FitVerdict, str]:
    if figures.same_vocabulary:
        return "no gain", "the intersection is the vocabulary itself: it is sd"
    share = figures.text_overlap.share_of_target
    verdict: FitVerdict = "fits" if share >= LARGE_OVERLAP else "weak"
    return verdict, f"the drafter has {share:.1%} of the target's tokens in the texts: only those can be accepted"


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
            logits = target.score((ids + new_ids)[:-1], len(new_ids)).logits
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
            found.append(_of_method(load_method(fit.method), models, reference, seed))
        except ConfigError as error:
            found.append(MethodAcceptance(method=fit.method, value=Metric(), problem=str(error)))
    return found


@torch.inference_mode()
def _of_method(method: MethodSpec, models: ModelPair, reference: SampledPositions, seed: int) -> MethodAcceptance:
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
            values.append(_judged(proposal, target_probs))
            cluster.append(number)
    interval = Prompts(np.array(cluster, dtype=np.int64), seed).mean(values, SHARE)
    return MethodAcceptance(method=method.name, value=interval, num_positions=len(values), num_drafted=num_drafted)


def _judged(proposal: Proposal, target_probs: torch.Tensor) -> float:
    """Returns the probability that the first draft token is accepted, given p as [vocab]."""
    if proposal.probs is not None:
        draw_overlap = proposal.probs.draw_overlap(target_probs[:0], Distributions(target_probs.log()[None], SAMPLING))
        if draw_overlap is not None:
            return float(draw_overlap[0])
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
