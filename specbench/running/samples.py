"""The prompts of a request before it is run: as the target reads them, with the settings of their answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from specbench.core.console import counted, say
from specbench.core.environment import EMBEDDED
from specbench.models.causal_lm import Prompt
from specbench.models.loading import load_model
from specbench.report.shown import ShownPrompt
from specbench.running.models import load_models
from specbench.running.plan import SubsetRun, load_requested, make_subset_runs
from specbench.running.prompts import uses_chat
from specbench.running.request import Request, request_notes, run_spec
from specbench.tasks.examples import Example


@dataclass(frozen=True)
class PromptSample:
    """The prompt of an example's first turn, what follows, and how the answer ends and is scored.

    `given`: the text that the tokenizer read: the rendered chat template, or the task's prompt. `later_turns`: the
    user's later texts. `truncated_tokens`: the number of tokens that were removed to fit the target's context.
    """

    task: str
    subset: str
    id: str
    prompt: ShownPrompt
    given: str
    chat: bool
    later_turns: tuple[str, ...]
    truncated_tokens: int
    num_shots: int
    generation: dict[str, Any]
    end_tokens: dict[str, int]
    reference: Any
    scorer: dict[str, Any] | None

    def lines(self) -> Iterator[str]:
        """Yields the sample as lines for a terminal."""
        yield f"{self.task}/{self.subset} example {self.id}"
        yield from self.prompt.lines()
        how = "rendered by the chat template" if self.chat else "the task's prompt, without a chat template"
        yield f"how: {how}; few-shot examples: {self.num_shots or 'none'}"
        if self.truncated_tokens:
            yield f"shortened in the middle: {counted(self.truncated_tokens, 'token')} removed"
        yield from (f"turn {number}, after the model's own answers:\n{text}"
                    for number, text in enumerate(self.later_turns, start=2))  # fmt: skip
        ends = ", ".join(f"{token!r} ({index})" for token, index in self.end_tokens.items()) or "none"
        stops = ", ".join(map(repr, self.generation["stop"])) or "none"
        yield f"ends at: {self.generation['max_new_tokens']} new tokens; end tokens: {ends}; stop strings: {stops}"
        yield f"reference: {self.reference}"
        options = {} if self.scorer is None else {k: v for k, v in self.scorer.items() if k != "type" and v}
        settings = f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""
        yield f"scorer: {'none' if self.scorer is None else self.scorer['type']}{settings}"


def prompt_samples(request: Request, console: Console) -> list[PromptSample]:
    """Returns the prompts of the examples of a request, made by the code that makes those of a run. Reads the target's
    tokenizer and configuration, not its weights. A drafter with a shorter context could shorten prompts further."""
    spec = run_spec(request)
    for line in request_notes(request, spec):
        say(console, line)
    loaded = load_requested(spec, spec.target.startswith(EMBEDDED), console)
    models = load_models(spec, partial(load_model, weights=False))
    runs = make_subset_runs(spec, models, loaded)
    return [_sample(run, example, spec.chat) for run in runs for example in run.data.examples]


def _sample(run: SubsetRun, example: Example, chat: str) -> PromptSample:
    target, task = run.models.target, run.task
    prompt: Prompt = run.renderer.render(target, (example.prompt,))
    tokens = {index: token for token, index in target.vocabulary.items()}
    return PromptSample(
        task=task.name, subset=run.subset, id=str(example.id), prompt=ShownPrompt.of(target.tokenizer, prompt.ids),
        given=prompt.text, chat=uses_chat(target, chat), later_turns=tuple(example.turns[1:]),
        truncated_tokens=example.truncated_tokens, num_shots=run.data.fewshot.num,
        generation=task.generation.model_dump(mode="json"),
        end_tokens={tokens.get(index, ""): index for index in sorted(target.eos_token_ids)},
        reference=first_or_all(example.references),
        scorer=None if task.scorer is None else task.scorer.model_dump(mode="json"),
    )  # fmt: skip


def first_or_all(references: Sequence[Any]) -> Any:
    """Returns the reference of the only turn, or those of all turns."""
    return references[0] if len(references) == 1 else list(references)
