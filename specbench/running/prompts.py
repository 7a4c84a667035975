"""The prompts of examples: the user's turns with a method's own answers between them, shortened to fit the models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from specbench.core.errors import ConfigError
from specbench.core.values import text_digest
from specbench.models.causal_lm import Prompt, TextModel
from specbench.records.records import Key, Record
from specbench.specs.components import PromptChecks
from specbench.tasks.examples import Example, TaskData

Texts = tuple[str, ...]  # texts of user and model in turn; the last one is the user's


def prompt_digest(example: Example, turn: int) -> str:
    """Returns 12 hex digits of SHA-256 over the user's texts up to a turn."""
    return text_digest("\0".join(example.turns[: turn + 1]))


def uses_chat(model: TextModel, chat: str) -> bool:
    """Returns whether prompts use the chat template. Raises ConfigError for `chat` "always" without a template."""
    if chat == "always" and not model.chat_template.exists:
        raise ConfigError(f"--chat always: model '{model.name}' has no chat template; use --chat auto or never")
    return model.chat_template.exists and chat != "never"


@dataclass(frozen=True)
class PromptBudget:
    """The maximum number of tokens of a prompt for one model.

    `translated`: the target, if the model is a drafter with another vocabulary: it reads the target's prompt in its own
    tokens, and its chat template is not used.
    """

    model: TextModel
    num_tokens: int
    translated: TextModel | None = None

    def holds(self, prompt: Prompt) -> bool:
        """Returns whether a prompt, as `translated` or else `model` reads it, is within the budget."""
        if self.translated is None:
            return len(prompt.packed_ids) <= self.num_tokens
        return len(translated_ids(prompt.ids, self.translated, self.model)) <= self.num_tokens


def translated_ids(ids: list[int], target: TextModel, drafter: TextModel) -> list[int]:
    """Returns the target's token ids in the tokens of a drafter with another vocabulary."""
    from specbench.decoding.bridges import Translation

    return Translation(target.text_vocabulary, drafter.text_vocabulary).start(ids)


def end_problem(model: TextModel, text: str, ids: Sequence[int]) -> str | None:
    """Returns a line if the tokenizer put an end token behind the text of a prompt. One that the text has is meant."""
    if len(ids) < 2 or ids[-1] not in model.eos_token_ids:
        return None
    token = str(model.tokenizer.convert_ids_to_tokens(ids[-1]))
    return None if text.rstrip().endswith(token) else f"model '{model.name}': its tokenizer ends prompts with {token}"


def refuse_or_warn(problem: str, checks: PromptChecks, remedy: str, warn: Callable[[str], None]) -> None:
    """Raises ConfigError for a problem of prompts, with a remedy such as "--prompt-checks warn"; or warns of it."""
    if checks == "refuse":
        raise ConfigError(f"{problem}: {remedy} measures it all the same")
    warn(problem)


class PromptRenderer:
    """Renders the conversations of a subset, each once for each model. All methods, the records' digests and the
    scoring of answers read what it keeps, so they cannot differ.

    `chat`: whether the chat template is used: auto, always or never. `budgets`: the lengths to which conversations are
    shortened. `system`: the system prompt.
    """

    def __init__(
        self, chat: str = "auto", budgets: Sequence[PromptBudget] = (), system: str | None = None
    ) -> None:  # fmt: skip
        self.chat = chat
        self.budgets = tuple(budgets)
        self.system = system
        self._rendered: dict[tuple[int, Texts], Prompt] = {}
        self._fitting: dict[Texts, Texts] = {}

    def render(self, model: TextModel, texts: Texts) -> Prompt:
        """Returns the prompt of a conversation that ends with the user's text, as a model reads it."""
        key = id(model), texts
        if key not in self._rendered:
            self._rendered[key] = self._render_once(model, texts)
        return self._rendered[key]

    def _render_once(self, model: TextModel, texts: Texts) -> Prompt:
        return model.render_prompt(texts, uses_chat(model, self.chat), self.system)

    def within(self, budget: PromptBudget) -> "PromptRenderer":
        """Returns a renderer with a further budget, which shares what this one keeps of rendered texts."""
        renderer = PromptRenderer(self.chat, (*self.budgets, budget), self.system)
        renderer._rendered = self._rendered
        return renderer

    def shorten(self, texts: Texts) -> Texts:
        """Returns texts that are within all budgets. Removes as few characters as possible from the middle of the
        concatenated texts, so that the beginning and the end remain.

        Raises ConfigError if even empty texts exceed the budget of a model.
        """

        def fits(shorter: Texts) -> bool:  # what was shortened in vain is not kept
            render = self.render if shorter is texts else self._render_once
            return all(budget.holds(render(budget.translated or budget.model, shorter)) for budget in self.budgets)

        if texts not in self._fitting:
            num_kept = 0
            too_many = sum(map(len, texts))
            if fits(texts):
                num_kept = too_many
            elif not fits(_without_middle(texts, 0)):
                raise ConfigError("the chat template alone is longer than a prompt may be: use --chat never")
            while too_many - num_kept > 1:
                middle = (num_kept + too_many) // 2
                if fits(_without_middle(texts, middle)):
                    num_kept = middle
                else:
                    too_many = middle
            self._fitting[texts] = texts if num_kept == too_many else _without_middle(texts, num_kept)
        return self._fitting[texts]


def conversation(example: Example, turn: int, answers: Sequence[str]) -> Texts:
    """Returns the user's texts up to a turn, each earlier one followed by its answer."""
    earlier = (text for pair in zip(example.turns[:turn], answers, strict=True) for text in pair)
    return (*earlier, example.turns[turn])


def _without_middle(texts: Texts, num_kept: int) -> Texts:
    """Returns the texts without the middle of their concatenated characters: `num_kept` remain, half at each end."""
    end = (num_kept + 1) // 2  # end of the kept beginning
    resume = sum(map(len, texts)) - num_kept // 2
    starts = accumulate(map(len, texts), initial=0)
    return tuple(
        text[: max(0, end - start)] + text[max(0, resume - start) :] if resume - start > 0 else text
        for text, start in zip(texts, starts, strict=False)
    )


def truncate_examples(data: TaskData, target: TextModel, renderer: PromptRenderer) -> TaskData:
    """Returns the data with every first turn that exceeds a budget shortened. Each example holds the number of the
    target's tokens that were removed from it."""
    examples = []
    for example in data.examples:
        (prompt,) = renderer.shorten((example.prompt,))
        if prompt != example.prompt:
            whole, shortened = (renderer.render(target, (text,)).packed_ids for text in (example.prompt, prompt))
            num_cut = len(whole) - len(shortened)
            example = replace(example, turns=(prompt, *example.turns[1:]), truncated_tokens=num_cut)
        examples.append(example)
    return replace(data, examples=tuple(examples))


def fitting_turn(renderer: PromptRenderer, example: Example, turn: int, answers: Sequence[str]) -> Texts:
    """Returns the texts of a conversation. Earlier answers may make it too long; then it is shortened."""
    whole = conversation(example, turn, answers)
    return renderer.shorten(whole) if turn else whole


def baseline_prompts(
    examples: Mapping[tuple[str, int], Example], renderers: Mapping[str, PromptRenderer], records: Mapping[Key, Record],
    target: TextModel,
) -> Callable[[Record], list[int]]:  # fmt: skip
    """Returns a function that maps a record to AR's prompt ids, which include AR's answers in earlier turns.

    `examples`: by subset and index; `renderers`: by subset.
    """

    def ids(record: Record) -> list[int]:
        *place, turn = record.key
        answers = [records[(*place, earlier)].methods["ar"].answer for earlier in range(turn)]  # type: ignore[index]
        example = examples[record.subset, record.example]
        renderer = renderers[record.subset]
        return renderer.render(target, fitting_turn(renderer, example, turn, answers)).ids

    return ids
