"""Which methods fit a pair, and why (arXiv:2502.05202, table 4), from the figures of its vocabularies."""

from typing import Literal

from pydantic import BaseModel

from specbench.catalogue import load_method, method_names
from specbench.vocab.injectivity import Injectivity
from specbench.vocab.overlap import TextOverlap

Verdict = Literal["fits", "costly", "weak", "no gain", "cannot run"]
LARGE_OVERLAP = 0.75  # of the target's tokens in texts; below it a method is held back by the vocabularies alone
MANY_PASSES = 16  # for ψ of one token: what the paper calls large (figure 1)


class Fit(BaseModel):
    """A method on a pair. runs: whether the method's bridge takes the pair at all."""

    method: str
    runs: bool
    verdict: Verdict
    reason: str


class Figures(BaseModel):
    """What the verdicts rest on. passes_in_texts: the mean draft passes that ψ takes at least, over the target's tokens
    as often as they appear in the texts; writable_in_texts: the share of these that drafter tokens can be joined to."""

    same_vocabulary: bool
    text_overlap: TextOverlap
    passes_in_texts: float
    writable_in_texts: float
    target: Injectivity
    drafter: Injectivity


def fits(figures: Figures) -> list[Fit]:
    """The methods of the paper that are known here, in its order. What is left open is whether the drafter is accurate:
    that takes the models (`expected_acceptance`)."""
    judged = {"sd": _sd, "union": _union, "slem": _slem, "slrs": _slrs, "tli": _tli}
    known = set(method_names())
    found = []
    for name in (name for name in judged if name in known):
        runs = figures.same_vocabulary or not load_method(name).same_vocabulary
        verdict, reason = judged[name](figures)
        found.append(Fit(method=name, runs=runs, verdict=verdict if runs else "cannot run", reason=reason))
    return found


def _sd(figures: Figures) -> tuple[Verdict, str]:
    if figures.same_vocabulary:
        return "fits", "both have the same vocabulary"
    return "cannot run", "it compares probabilities of the same token ids, and the vocabularies differ"


def _union(figures: Figures) -> tuple[Verdict, str]:
    return "no gain", "never accepts more than tli (Theorem 4.1)"


def _slem(figures: Figures) -> tuple[Verdict, str]:
    if figures.same_vocabulary:
        return "no gain", "sd runs this pair, and exact match accepts less (Theorem 3.1)"
    if changing := _changing(figures):
        return "weak", f"{changing}: the drafter reads and writes other texts"
    return "fits", "texts come back from the tokens of both; the vocabularies may differ in any way"


def _changing(figures: Figures) -> str:
    """How many texts do not survive either side's tokens; empty where all do."""
    return "; ".join(
        f"{found.num_changed_by_bridges} of {found.num_texts} texts do not come back from the {side}'s tokens"
        for side, found in (("target", figures.target), ("drafter", figures.drafter))
        if found.num_changed_by_bridges
    )


def _slrs(figures: Figures) -> tuple[Verdict, str]:
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


def _tli(figures: Figures) -> tuple[Verdict, str]:
    if figures.same_vocabulary:
        return "no gain", "the intersection is the vocabulary itself: it is sd"
    share = figures.text_overlap.share_of_target
    verdict: Verdict = "fits" if share >= LARGE_OVERLAP else "weak"
    return verdict, f"the drafter has {share:.1%} of the target's tokens in the texts: only those can be accepted"
