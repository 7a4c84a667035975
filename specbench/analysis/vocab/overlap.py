"""How many tokens two vocabularies share: all of them (arXiv:2502.05202, tables 8 and 9), and in texts (table 10)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from specbench.models.vocabulary import Vocabulary


class Overlap(BaseModel):
    """|T|, |D| and |T ∩ D|. Sizes count every token; the plain ones are told apart by the bytes that they write."""

    target_size: int
    drafter_size: int
    target_plain: int
    drafter_plain: int
    intersection: int
    ratio: float  # |T ∩ D| / |T|


class TextOverlap(BaseModel):
    """The same of the tokens T′ and D′ that appear in texts, and by how often they appear.

    ratio: |T′ ∩ D′| / |T′|, the formula of table 10. share_of_target: how many of the target's tokens in the texts the
    drafter has too; share_of_drafter: how many of the drafter's tokens there the target has too, which is what the
    authors' published code prints as table 10.
    """

    num_texts: int
    target_tokens: int
    drafter_tokens: int
    intersection: int
    ratio: float
    share_of_target: float
    share_of_drafter: float


def overlap(target: Vocabulary, drafter: Vocabulary) -> Overlap:
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
        share_of_target=share(ours, drafter),
        share_of_drafter=share(theirs, target),
    )


def token_counts(vocabulary: Vocabulary, texts: Sequence[str]) -> Counter[bytes]:
    """How often each plain token, by its bytes, appears in the texts."""
    counts = Counter(index for text in texts for index in vocabulary.encode(text))
    found: Counter[bytes] = Counter()
    for index, count in counts.items():
        written = vocabulary.token_bytes[index]
        if written is not None and vocabulary.plain[index]:
            found[written] += count
    return found


def share(counts: Counter[bytes], other: Vocabulary) -> float:
    """The share of the counted tokens that another vocabulary has."""
    return sum(count for written, count in counts.items() if written in other.id_of) / max(1, counts.total())


NUM_SHOWN = 24  # characters of a text around the first difference


class Change(BaseModel):
    """The first difference between a text and what comes back, with what is around it."""

    text: str
    comes_back: str


class Injectivity(BaseModel):
    """decode(encode(s)) == s over texts, by the tokenizer's own decoding and by that of the bridges (which drop one
    dummy space exactly, where some decoders drop all that stand first)."""

    num_texts: int
    num_changed: int
    num_changed_by_bridges: int
    first: Change | None

    @property
    def injective(self) -> bool:
        return self.num_changed == 0


def injectivity(tokenizer: Any, vocabulary: Vocabulary, texts: Sequence[str]) -> Injectivity:
    """Test a tokenizer on texts; no special token is put in or read."""
    num_changed = num_changed_by_bridges = 0
    first = None
    for text in texts:
        ids = vocabulary.encode(text)
        comes_back = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if comes_back != text:
            num_changed += 1
            first = first or around_difference(text, comes_back)
        num_changed_by_bridges += vocabulary.text(ids) != (text, 0)
    return Injectivity(
        num_texts=len(texts), num_changed=num_changed, num_changed_by_bridges=num_changed_by_bridges, first=first
    )


def around_difference(text: str, comes_back: str) -> Change:
    """Excerpts that begin a little before the first difference."""
    pairs = zip(text, comes_back, strict=False)
    place = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(text), len(comes_back)))
    start = max(0, place - NUM_SHOWN // 3)
    return Change(text=text[start : start + NUM_SHOWN], comes_back=comes_back[start : start + NUM_SHOWN])
