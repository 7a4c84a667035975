"""Whether texts come back from their tokens (arXiv:2502.05202, §3.2 and table 11)."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from specbench.models.vocabulary import Vocabulary

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
