"""Which sub-layers a target may skip in its own drafts: a search by answers of the target, without decoding."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from specbench.decoding.drafters.self_drafting import chosen, neighbour
from specbench.models.causal_lm import CausalLM
from specbench.models.own_drafts import OwnDraftModel, SkippingSequence, SubLayers

SHARES = (0.15, 0.3, 0.45, 0.6)
ROUNDS, BREADTH = 4, 6  # rounds for each share, and sets tried in each
MOST_TEXTS, MOST_TOKENS = 8, 64  # answers, and tokens of each


class Text(NamedTuple):
    """A prompt with the target's answer, and the number of the answer's tokens."""

    ids: list[int]
    num_tokens: int


class Found(NamedTuple):
    """A set of sub-layers, and the share of the answers' tokens that draft passes without them find."""

    skipped: SubLayers
    agreement: float


def some_texts(texts: Iterable[Text]) -> list[Text]:
    """Returns the texts that are used: evenly spaced ones, cut after some tokens of the answer."""
    able = [text for text in texts if text.num_tokens > 1]
    places = sorted({place * len(able) // MOST_TEXTS for place in range(MOST_TEXTS)}) if able else []
    return [
        Text(text.ids[: len(text.ids) - max(0, text.num_tokens - MOST_TOKENS)], min(text.num_tokens, MOST_TOKENS))
        for text in (able[place] for place in places)
    ]


def agreements(
    target: CausalLM, sequence: SkippingSequence, texts: Sequence[Text], sets: Sequence[SubLayers]
) -> list[float]:
    """Returns for each set of sub-layers the share of the answers' tokens, without each answer's first, that a draft
    pass without them finds most probable: one pass of the target over each text, and one for each set."""
    model = OwnDraftModel(target, sequence)
    found = [0.0] * len(sets)
    for text in texts:
        num_tokens = text.num_tokens - 1
        target.reset()
        target.score(text.ids[:-1], 1)
        with model.drafting(text.ids):
            for place, skipped in enumerate(sets):
                sequence.skipped = skipped
                found[place] += num_tokens * sequence.agreement(text.ids, num_tokens)
    model.passes.clear()
    return [number / sum(text.num_tokens - 1 for text in texts) for number in found]


def search(target: CausalLM, texts: Sequence[Text], seed: int) -> Mapping[float, Found]:
    """Returns for each share of SHARES the best set that was found. It begins with evenly spaced layers; each round
    tries neighbours of the best set."""
    sequence = SkippingSequence(target, "drafter 'self_skip'")
    num_layers = len(sequence.layers)
    coins = torch.Generator().manual_seed(seed)
    starts = {share: chosen(num_layers, share, None, None) for share in SHARES}
    scores = agreements(target, sequence, texts, list(starts.values()))
    best = {share: Found(starts[share], score) for share, score in zip(SHARES, scores, strict=True)}
    for _ in range(ROUNDS):
        tried = [(share, neighbour(best[share].skipped, num_layers, coins)) for share in SHARES for _ in range(BREADTH)]
        scores = agreements(target, sequence, texts, [skipped for _, skipped in tried])
        for (share, skipped), score in zip(tried, scores, strict=True):
            if score > best[share].agreement:
                best[share] = Found(skipped, score)
    target.reset()
    return best
