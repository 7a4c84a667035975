"""What a model was asked and what it answered, as terminals and pages show it. Needs no torch."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from specbench.core.console import counted
from specbench.core.reasoning import answer_of
from specbench.records.records import Generation, Record
from specbench.report.shown_prompt import ShownPrompt
from specbench.results.metric_format import score_of_answer
from specbench.tasks.scoring import Scorer, explained

NOT_TEXTS = ("finish", "problem", "decoded_by", "route")  # keys of a generation with a word instead of a text


@dataclass(frozen=True)
class ShownAnswer:
    """A method's answer. `texts`: the answer's texts by key (`text`, and others such as the reasoning before it).
    `reasons`: why it got its scores: `problem`, the parts of `outcome`, or as `reason` what its scorer read in it."""

    method: str
    score: float | None
    scores: dict[str, float | None]
    finish: str
    num_tokens: int
    texts: dict[str, str]
    reasons: dict[str, str]

    @classmethod
    def of(cls, method: str, generation: Generation, reference: Any, scorer: Scorer | None) -> "ShownAnswer":
        texts = {
            key: value for key, value in generation.as_json().items() if isinstance(value, str) and key not in NOT_TEXTS
        }
        reasons = {"problem": generation.get("problem"), **generation.get("outcome", {})}
        if generation.get("reasoning_closed") is False:
            reasons["reason"] = "cut inside its reasoning, so the answer is empty"
        elif scorer is not None and reference is not None and "reason" not in reasons:
            reasons["reason"] = explained(scorer, answer_of(generation), reference)
        return cls(
            method, generation["score"], dict(generation.get("scores", {})), generation["finish"],
            len(generation["token_ids"]), texts, {name: text for name, text in reasons.items() if text},
        )  # fmt: skip

    @property
    def heading(self) -> str:
        scores = self.scores or {"score": self.score}
        shown = ", ".join(f"{name} {score_of_answer(value, name)}" for name, value in scores.items())
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
    def of(
        cls, record: Record, methods: Collection[str], prompt: ShownPrompt | None = None, scorer: Scorer | None = None
    ) -> "ShownRecord":
        """Returns a record. `scorer`: that of its task, which says what it read in the answers."""
        answers = tuple(
            ShownAnswer.of(name, own, record["reference"], scorer)
            for name, own in record["methods"].items() if name in methods
        )  # fmt: skip
        return cls(
            record["task"], record["subset"], str(record["id"]), record["repeat"], record.get("turn", 0),
            record.get("prompt_tokens", 0), prompt, record["reference"], answers,
        )  # fmt: skip

    @property
    def heading(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task}/{self.subset} example {self.id}{f', turn {self.turn + 1}' if self.turn else ''}{repeat}"

    @property
    def references(self) -> dict[str, str]:
        """The texts of the reference by their names: its parts if it is a mapping, and all texts of a list."""
        if isinstance(self.reference, dict):
            return {f"reference, {name}": str(text).strip("\n") for name, text in self.reference.items()}
        if isinstance(self.reference, list) and len(self.reference) > 1:
            return {f"reference {number}": str(text) for number, text in enumerate(self.reference, 1)}
        only = self.reference[0] if isinstance(self.reference, list) and self.reference else self.reference
        return {"reference": str(only)}

    def lines(self) -> Iterator[str]:
        """Yields the record as lines for a terminal."""
        yield self.heading
        if self.prompt is None:
            yield f"prompt, {counted(self.prompt_tokens, 'token')}: not shown"
        else:
            yield from self.prompt.lines(with_ids=False)
        for name, text in self.references.items():
            yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
        for answer in self.answers:
            yield answer.heading
            for name, text in answer.texts.items():
                yield f"{name}:\n{text}" if len(answer.texts) > 1 else text
            yield from (f"{name}: {text}" for name, text in answer.reasons.items())
