"""What a model was asked and what it answered, as terminals and pages show it. Needs no torch."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from specbench.core.console import counted
from specbench.running.records import Generation, Record


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
        if with_ids:
            yield f"ids: {' '.join(map(str, self.ids))}"


NOT_TEXTS = ("finish", "problem", "decoded_by", "route")  # keys of a generation with a word instead of a text


@dataclass(frozen=True)
class ShownAnswer:
    """A method's answer. `texts`: the answer's texts by key (`text`, and others such as the reasoning before it).
    `reasons`: what its scorer says about it: `problem`, and the parts of `outcome`."""

    method: str
    score: float | None
    scores: dict[str, float | None]
    finish: str
    num_tokens: int
    texts: dict[str, str]
    reasons: dict[str, str]

    @classmethod
    def of(cls, method: str, generation: Generation) -> "ShownAnswer":
        texts = {key: value for key, value in generation.items() if isinstance(value, str) and key not in NOT_TEXTS}
        problem = {"problem": generation["problem"]} if generation.get("problem") else {}
        return cls(
            method, generation["score"], dict(generation.get("scores", {})), generation["finish"],
            len(generation["token_ids"]), texts, {**problem, **generation.get("outcome", {})},
        )  # fmt: skip

    @property
    def heading(self) -> str:
        scores = self.scores or {"score": self.score}
        shown = ", ".join(f"{name} {'–' if value is None else f'{value:g}'}" for name, value in scores.items())
        return f"{self.method}: {shown}; {counted(self.num_tokens, 'token')}, ended by {self.finish}"


@dataclass(frozen=True)
class ShownRecord:
    """A recorded prompt with the answers of AR and the methods. `prompt`: None if it could not be rendered again.
    `prompt_tokens`: the number of its tokens for AR; in later turns, methods have their own earlier answers in it."""

    task: str
    subset: str
    id: str
    repeat: int
    turn: int
    prompt_tokens: int
    prompt: ShownPrompt | None
    reference: Any
    answers: tuple[ShownAnswer, ...]

    @classmethod
    def of(cls, record: Record, methods: Collection[str], prompt: ShownPrompt | None = None) -> "ShownRecord":
        answers = tuple(ShownAnswer.of(name, own) for name, own in record["methods"].items() if name in methods)
        return cls(
            record["task"], record["subset"], str(record["id"]), record["repeat"], record.get("turn", 0),
            record.get("prompt_tokens", 0), prompt, record["reference"], answers,
        )  # fmt: skip

    @property
    def heading(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task}/{self.subset} example {self.id}{f', turn {self.turn + 1}' if self.turn else ''}{repeat}"

    def lines(self) -> Iterator[str]:
        """Yields the record as lines for a terminal."""
        yield self.heading
        if self.prompt is None:
            yield f"prompt, {counted(self.prompt_tokens, 'token')}: not shown"
        else:
            yield from self.prompt.lines(with_ids=False)
        yield f"reference: {self.reference}"
        for answer in self.answers:
            yield answer.heading
            for name, text in answer.texts.items():
                yield f"{name}:\n{text}" if len(answer.texts) > 1 else text
            yield from (f"{name}: {text}" for name, text in answer.reasons.items())
