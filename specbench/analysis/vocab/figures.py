"""The figures of a pair of vocabularies (arXiv:2502.05202, tables 3 to 11): their overlap, how the drafter's tokens
spell those of the target, and the expected acceptance of a method's next token."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from fractions import Fraction
from math import isqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.vocabulary import Vocabulary
from specbench.running.prompts import uses_chat
from specbench.specs.catalogue import load_method
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import SHARE, Estimate, Resampler


class Overlap(BaseModel):
    """|T|, |D| and |T ∩ D|. Sizes count all tokens; plain tokens are equal if they have the same bytes."""

    target_size: int
    drafter_size: int
    target_plain: int
    drafter_plain: int
    intersection: int
    ratio: float  # |T ∩ D| / |T|


class TextOverlap(BaseModel):
    """The overlap of the tokens T′ and D′ that appear in texts.

    ratio: |T′ ∩ D′| / |T′|, the formula of table 10. share_of_target: the share of occurrences of target tokens that
    the drafter has too; share_of_drafter: the share of occurrences of drafter tokens that the target has too, which the
    authors' published code prints as table 10.
    """

    num_texts: int
    target_tokens: int
    drafter_tokens: int
    intersection: int
    ratio: float
    share_of_target: float
    share_of_drafter: float


def vocabulary_overlap(target: Vocabulary, drafter: Vocabulary) -> Overlap:
    shared = len(target.id_of.keys() & drafter.id_of.keys())
    return Overlap(
        target_size=target.num_tokens,
        drafter_size=drafter.num_tokens,
        target_plain=len(target.id_of),
        drafter_plain=len(drafter.id_of),
        intersection=shared,
        ratio=shared / target.num_tokens,
    )


def text_overlap(target: Vocabulary, drafter: Vocabulary, texts: Sequence[str]) -> TextOverlap:
    ours, theirs = token_counts(target, texts), token_counts(drafter, texts)
    shared = len(ours.keys() & theirs.keys())
    return TextOverlap(
        num_texts=len(texts),
        target_tokens=len(ours),
        drafter_tokens=len(theirs),
        intersection=shared,
        ratio=shared / max(1, len(ours)),
        share_of_target=shared_fraction(ours, drafter),
        share_of_drafter=shared_fraction(theirs, target),
    )


def token_counts(vocabulary: Vocabulary, texts: Sequence[str]) -> Counter[bytes]:
    """Returns how often each plain token, by its bytes, appears in the texts."""
    counts = Counter(index for text in texts for index in vocabulary.encode(text))
    found: Counter[bytes] = Counter()
    for index, count in counts.items():
        written = vocabulary.token_bytes[index]
        if written is not None and vocabulary.plain[index]:
            found[written] += count
    return found


def shared_fraction(counts: Counter[bytes], other: Vocabulary) -> float:
    """Returns the share of the counted occurrences whose tokens another vocabulary has."""
    return sum(count for written, count in counts.items() if written in other.id_of) / max(1, counts.total())


NUM_SHOWN = 24  # characters of a text around the first difference


class TextChange(BaseModel):
    """Excerpts of a text and of its round trip, around their first difference."""

    text: str
    round_trip: str


class Injectivity(BaseModel):
    """Whether decode(encode(s)) == s for texts. `num_changed`: with the tokenizer's own decoding;
    `num_changed_by_bridges`: with the bridges' decoding, which drops exactly one dummy space, while some decoders drop
    all leading spaces."""

    num_texts: int
    num_changed: int
    num_changed_by_bridges: int
    first: TextChange | None

    @property
    def injective(self) -> bool:
        return self.num_changed == 0


def injectivity(tokenizer: Any, vocabulary: Vocabulary, texts: Sequence[str]) -> Injectivity:
    """Tests a tokenizer on texts, without special tokens."""
    encoded = [(text, vocabulary.encode(text)) for text in texts]
    trips = [
        (text, tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        for text, ids in encoded
    ]
    changed = [pair for pair in trips if pair[0] != pair[1]]
    first = None
    if changed:
        text, round_trip = changed[0]
        pairs = zip(text, round_trip, strict=False)
        place = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(text), len(round_trip)))
        shown = slice(max(0, place - NUM_SHOWN // 3), max(0, place - NUM_SHOWN // 3) + NUM_SHOWN)
        first = TextChange(text=text[shown], round_trip=round_trip[shown])
    return Injectivity(
        num_texts=len(texts), num_changed=len(changed), first=first,
        num_changed_by_bridges=sum(vocabulary.text(ids) != (text, 0) for text, ids in encoded),
    )  # fmt: skip


EXACT_FLOAT = 10**15  # a larger mean is rounded to an integer, which cannot overflow


class CountSummary(BaseModel):
    """A summary of integers, which may be huge. A quartile is a value that occurs, the lower one between two."""

    mean: float | int
    sd: float | int
    min: int
    quartile_1: int
    median: int
    quartile_3: int
    max: int


class LengthSummary(BaseModel):
    """The numbers of decompositions of the target tokens with one length in bytes."""

    length: int
    num_tokens: int
    median: int
    max: int


class Decompositions(BaseModel):
    """Decompositions of target tokens into drafter tokens. number: how many a token has. passes: how many draft passes
    the sum over them takes, the least cost of ψ: one for each beginning of a decomposition that ends inside the token,
    and for the empty one. num_impossible: target tokens without a decomposition, which count as 0."""

    num_tokens: int
    num_impossible: int
    length: CountSummary
    number: CountSummary
    passes: CountSummary
    by_length: list[LengthSummary]


def decompositions(target: Vocabulary, drafter: Vocabulary) -> Decompositions:
    pieces = drafter.id_of.keys()
    longest = max(map(len, pieces), default=0)
    counted = [(len(token), *count_decompositions(token, pieces, longest)) for token in target.id_of]
    lengths, numbers, passes = zip(*counted, strict=True)
    by_length: dict[int, list[int]] = defaultdict(list)
    for length, number, _ in counted:
        by_length[length].append(number)
    return Decompositions(
        num_tokens=len(counted),
        num_impossible=numbers.count(0),
        length=summary(lengths),
        number=summary(numbers),
        passes=summary(passes),
        by_length=[
            LengthSummary(length=length, num_tokens=len(of), median=quantile(sorted(of), 1, 2), max=max(of))
            for length, of in sorted(by_length.items())
        ],
    )


def count_decompositions(token: bytes, pieces: Collection[bytes], longest: int) -> tuple[int, int]:
    """Returns how many sequences of pieces join to `token`, and how many join to one of its proper prefixes.

    Both are exact: ways[end] is the sum of ways[start] over the pieces token[start:end]. `longest`: the length of the
    longest piece.
    """
    ways = [1] + [0] * len(token)
    for end in range(1, len(token) + 1):
        for start in range(max(0, end - longest), end):
            if ways[start] and token[start:end] in pieces:
                ways[end] += ways[start]
    return ways[-1], sum(ways[:-1])


def costs_in_texts(target: Vocabulary, drafter: Vocabulary, texts: Sequence[str]) -> tuple[float, float]:
    """Returns the least number of draft passes for ψ, and the share that drafter tokens can spell; both over all
    occurrences of target tokens in the texts."""
    pieces = drafter.id_of.keys()
    longest = max(map(len, pieces), default=0)
    counts = token_counts(target, texts)
    found = [(frequency, *count_decompositions(token, pieces, longest)) for token, frequency in counts.items()]
    total = max(1, counts.total())
    passes = sum(frequency * num_passes for frequency, _, num_passes in found)
    return passes / total, sum(frequency for frequency, ways, _ in found if ways) / total


def summary(values: Sequence[int]) -> CountSummary:
    """Returns statistics whose sums have no rounding error. Raises ValueError without values."""
    if not values:
        raise ValueError("a summary needs values")
    ordered = sorted(values)
    mean = Fraction(sum(ordered), len(ordered))
    variance = Fraction(sum(value * value for value in ordered), len(ordered)) - mean * mean
    return CountSummary(
        mean=float_or_int(mean),
        sd=float_or_int(Fraction(isqrt(int(variance * 10**12)), 10**6)),
        min=ordered[0],
        quartile_1=quantile(ordered, 1, 4),
        median=quantile(ordered, 1, 2),
        quartile_3=quantile(ordered, 3, 4),
        max=ordered[-1],
    )


def float_or_int(value: Fraction) -> float | int:
    return float(value) if value < EXACT_FLOAT else round(value)


def quantile(ordered: Sequence[int], part: int, of: int) -> int:
    """Returns the quantile part/of of sorted values, the lower value between two."""
    return ordered[(len(ordered) - 1) * part // of]


FitVerdict = Literal["fits", "costly", "weak", "no gain", "cannot run"]


class MethodFit(BaseModel):
    """A method on a pair. runs: whether the method's bridge accepts the pair."""

    method: str
    runs: bool
    verdict: FitVerdict
    reason: str


NUM_PROMPTS = 20
NUM_NEW_TOKENS = 32
SAMPLING = Sampling(temperature=1.0)  # the formulas are for the models' own distributions


class MethodAcceptance(BaseModel):
    """The expected acceptance of a method. value: the mean probability that the next token is an accepted draft token,
    with its 95 % interval over prompts; null for the reason in `problem`. A position without a draft counts as 0;
    num_drafted: the number of positions with a draft."""

    method: str
    value: Estimate
    num_positions: int = 0
    num_drafted: int = 0
    problem: str | None = None


class SampledText(NamedTuple):
    """The target's own sampled continuation of a prompt. `target_probs`: [num_new_tokens, vocab]."""

    prompt_ids: list[int]
    new_ids: list[int]
    target_probs: torch.Tensor


def sample_texts(target: CausalLM, prompts: Sequence[str], seed: int) -> list[SampledText]:
    """Returns texts whose positions are the same for every method."""
    decoder = build_decoder(load_method("ar"), ModelPair(target), SAMPLING)
    stop = StopRules(NUM_NEW_TOKENS, target.eos_token_ids, context_limit=target.context_limit)
    found: list[SampledText] = []
    for prompt in prompts[:NUM_PROMPTS]:
        ids = target.encode_prompt(prompt, uses_chat(target, "auto"))
        if not ids or len(ids) >= (target.context_limit or len(ids) + 1):
            continue  # a prompt that fills the context has no next token
        new_ids = decoder.generate(ids, stop, seed + len(found)).token_ids
        logits = target.score((ids + new_ids)[:-1], len(new_ids)).logits
        found.append(SampledText(ids, new_ids, process(logits, SAMPLING)))
    if not found:
        raise ConfigError(f"no prompt fits into the context of target '{target.name}' ({target.context_limit})")
    return found


def expected_acceptance(
    models: ModelPair, methods: Sequence[MethodFit], prompts: Sequence[str], seed: int = 0
) -> list[MethodAcceptance]:
    """Returns the acceptance of each method with its own drafter and bridge, on texts that the target wrote at
    temperature 1.

    For sd it is Σ min(p, q). For union and tli it is that times the probability that the drafter does not draw the end
    of a text, which they never propose. For other methods one draft per position is judged: by p(x) for an exact match
    (on average Σ p ψ), by min(1, p(x) / ψ(x)) for slrs (on average Σ min(p, ψ)).
    """
    texts, found = sample_texts(models.target, prompts, seed), []
    for fit in methods:
        try:
            if not fit.runs:
                raise ConfigError("undefined for different vocabularies")
            found.append(acceptance_of_method(load_method(fit.method), models, texts, seed))
        except ConfigError as error:
            found.append(MethodAcceptance(method=fit.method, value=Estimate(), problem=str(error)))
    return found


@torch.inference_mode()
def acceptance_of_method(
    method: MethodSpec, models: ModelPair, texts: Sequence[SampledText], seed: int
) -> MethodAcceptance:
    decoder = build_decoder(method, models, SAMPLING)
    assert isinstance(decoder, DraftingDecoder)
    generator = torch.Generator(device=models.target.device).manual_seed(seed)
    num_draft_tokens = 1 if method.verification.rule == "rejection" else method.num_draft_tokens  # text needs several
    values: list[float] = []
    num_drafted = 0
    for text in texts:
        decoder.drafter.prefill(text.prompt_ids)
        for place, target_probs in enumerate(text.target_probs):
            proposal = decoder.drafter.propose(text.prompt_ids + text.new_ids[:place], num_draft_tokens, generator)
            num_drafted += bool(proposal.token_ids)
            values.append(acceptance_probability(proposal, target_probs))
    cluster = np.repeat(np.arange(len(texts)), [len(text.target_probs) for text in texts])
    interval = Resampler(cluster, seed).mean(values, SHARE)
    return MethodAcceptance(method=method.name, value=interval, num_positions=len(values), num_drafted=num_drafted)


def acceptance_probability(proposal: Proposal, target_probs: torch.Tensor) -> float:
    """Returns the probability that the first draft token is accepted, given p as [vocab]."""
    if proposal.probs is None:
        return 0.0
    draw_overlap = proposal.probs.draw_overlap(target_probs[:0], Distributions(target_probs.log()[None], SAMPLING))
    if draw_overlap is not None:
        return float(draw_overlap[0])
    if not proposal.token_ids:
        return 0.0
    drafted = proposal.on(target_probs.device)
    overlap = proposal.probs.overlap(target_probs.expand(len(drafted), -1))
    if overlap is not None:
        return float(overlap[0])
    token = proposal.token_ids[0]
    if token == OUT_OF_VOCABULARY:
        return 0.0
    return min(1.0, float(target_probs[token] / proposal.probs.token_probs(drafted)[0]))
