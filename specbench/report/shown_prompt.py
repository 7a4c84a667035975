"""A prompt, as terminals and pages show it. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specbench.core.console import counted


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as a model reads it. `text`: all tokens as text, special ones too; some tokenizers change case or
    blanks, so it may differ from the text that was given to them."""

    text: str
    ids: list[int]

    @classmethod
    def of(cls, tokenizer: Any, ids: list[int]) -> "ShownPrompt":
        return cls(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False), ids)

    def lines(self, with_ids: bool = True) -> Iterator[str]:
        yield f"prompt, {counted(len(self.ids), 'token')}:"
        yield self.text
        yield ""  # without a chat template, nothing else marks the end of the prompt
        if with_ids:
            yield f"ids: {' '.join(map(str, self.ids))}"
