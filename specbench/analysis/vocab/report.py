"""Everything that `specbench vocab` says about two vocabularies."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from specbench.analysis.vocab.acceptance import Acceptance, Figures, Fit, expected_acceptance, fits
from specbench.analysis.vocab.decompositions import Decompositions, count, decompositions
from specbench.analysis.vocab.overlap import (
    Injectivity,
    Overlap,
    TextOverlap,
    injectivity,
    overlap,
    text_overlap,
    token_counts,
)
from specbench.models.causal_lm import ModelPair
from specbench.models.vocabulary import Vocabulary


class VocabReport(BaseModel):
    """Tables 3, 4, 5, 8, 9, 10 and 11 of arXiv:2502.05202 for one pair; acceptance only where it was asked for."""

    target: str
    drafter: str
    texts: str
    same_vocabulary: bool
    overlap: Overlap
    text_overlap: TextOverlap
    target_injectivity: Injectivity
    drafter_injectivity: Injectivity
    decompositions: Decompositions
    passes_in_texts: float
    writable_in_texts: float
    acceptance: list[Acceptance] | None
    methods: list[Fit]


class Side(BaseModel, arbitrary_types_allowed=True):
    """A model's name, tokenizer and vocabulary."""

    name: str
    tokenizer: Any
    vocabulary: Vocabulary


def make_report(
    target: Side, drafter: Side, texts: Sequence[str], texts_from: str, models: ModelPair | None = None, seed: int = 0
) -> VocabReport:
    """Compare two vocabularies, in general and on texts; with both models loaded also what methods accept."""
    passes, writable = costs_in_texts(target.vocabulary, drafter.vocabulary, texts)
    figures = Figures(
        same_vocabulary=target.tokenizer.get_vocab() == drafter.tokenizer.get_vocab(),
        text_overlap=text_overlap(target.vocabulary, drafter.vocabulary, texts),
        passes_in_texts=passes,
        writable_in_texts=writable,
        target=injectivity(target.tokenizer, target.vocabulary, texts),
        drafter=injectivity(drafter.tokenizer, drafter.vocabulary, texts),
    )
    methods = fits(figures)
    return VocabReport(
        target=target.name,
        drafter=drafter.name,
        texts=texts_from,
        same_vocabulary=figures.same_vocabulary,
        overlap=overlap(target.vocabulary, drafter.vocabulary),
        text_overlap=figures.text_overlap,
        target_injectivity=figures.target,
        drafter_injectivity=figures.drafter,
        decompositions=decompositions(target.vocabulary, drafter.vocabulary),
        passes_in_texts=figures.passes_in_texts,
        writable_in_texts=figures.writable_in_texts,
        acceptance=None if models is None else expected_acceptance(models, methods, texts, seed),
        methods=methods,
    )


def costs_in_texts(target: Vocabulary, drafter: Vocabulary, texts: Sequence[str]) -> tuple[float, float]:
    """Over the target's tokens as often as they appear in the texts: the mean draft passes that ψ takes at least, and
    the share of tokens that drafter tokens can be joined to."""
    pieces = drafter.id_of.keys()
    longest = max(map(len, pieces), default=0)
    counts = token_counts(target, texts)
    found = [(number, *count(token, pieces, longest)) for token, number in counts.items()]
    total = max(1, counts.total())
    passes = sum(number * of_token for number, _, of_token in found)
    return passes / total, sum(number for number, ways, _ in found if ways) / total
