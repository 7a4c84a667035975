"""The prompts of examples: the user's turns with a method's own answers between them, shortened to fit the models."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from jinja2 import Environment, meta

from specbench.core.errors import ConfigError, nearest
from specbench.core.reasoning import answer_of
from specbench.core.values import text_digest
from specbench.models.causal_lm import TextModel
from specbench.running.records import Record, record_key
from specbench.tasks.examples import Example, TaskData

Texts = tuple[str, ...]  # texts of user and model in turn; the last one is the user's


def prompt_digest(example: Example, turn: int) -> str:
    """Returns 12 hex digits of SHA-256 over the user's texts up to a turn."""
    return text_digest("\0".join(example.turns[: turn + 1]))


@dataclass(frozen=True)
class PromptBudget:
    """The maximum number of tokens of a prompt for one model.

    `translated`: the target, if the model is a drafter with another vocabulary: it reads the target's prompt in its own
    tokens, and its chat template is not used.
    """

    model: TextModel
    num_tokens: int
    translated: TextModel | None = None

    def fits(self, texts: Texts, chat: str) -> bool:
        """Returns whether a conversation is within the budget."""
        ids = encode(self.translated or self.model, texts, chat)
        if self.translated is not None:
            ids = translated_ids(ids, self.translated, self.model)
        return len(ids) <= self.num_tokens


def translated_ids(ids: list[int], target: TextModel, drafter: TextModel) -> list[int]:
    """Returns the target's token ids in the tokens of a drafter with another vocabulary."""
    from specbench.decoding.bridges import Translation

    return Translation(target.text_vocabulary, drafter.text_vocabulary).start(ids)


def uses_chat(model: TextModel, chat: str) -> bool:
    """Returns whether prompts use the chat template. Raises ConfigError for `chat` "always" without a template."""
    has_template = getattr(model.tokenizer, "chat_template", None) is not None
    if chat == "always" and not has_template:
        raise ConfigError(f"--chat always: model '{model.name}' has no chat template; use --chat auto or never")
    return has_template and chat != "never"


TRACKING = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # tags of transformers around answers
GIVEN_TO_TEMPLATES = {"messages", "add_generation_prompt", "raise_exception", "strftime_now"}


def check_template_args(model: TextModel, chat: str) -> None:
    """Raises ConfigError for given variables if the chat template is not used or does not read them."""
    given = model.chat_template_args
    if not given:
        return
    option = f"--chat-template-args {next(iter(given))}"
    if not uses_chat(model, chat):
        raise ConfigError(f"{option}: model '{model.name}' has no chat template: leave the option out")
    template = TRACKING.sub("", model.tokenizer.get_chat_template())
    read = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    known = read - GIVEN_TO_TEMPLATES - set(model.tokenizer.special_tokens_map)
    for name in given:
        if name not in known:
            reads = nearest(name, known) if known else "it reads none: leave the option out"
            raise ConfigError(
                f"--chat-template-args {name}: the chat template of '{model.name}' reads no such variable: {reads}"
            )


def encode(model: TextModel, texts: Sequence[str], chat: str) -> list[int]:
    """Returns the token ids of a conversation that ends with the user's text."""
    return model.encode_prompt(texts[-1], uses_chat(model, chat), texts[:-1])


def prompt_ids(model: TextModel, example: Example, chat: str) -> list[int]:
    """Returns the token ids of an example's first turn."""
    return encode(model, (example.prompt,), chat)


def conversation(example: Example, turn: int, answers: Sequence[str]) -> Texts:
    """Returns the user's texts up to a turn, each earlier one followed by its answer."""
    earlier = (text for pair in zip(example.turns[:turn], answers, strict=True) for text in pair)
    return (*earlier, example.turns[turn])


def shorten(texts: Texts, budgets: Sequence[PromptBudget], chat: str) -> Texts:
    """Returns texts that are within all budgets. Removes as few characters as possible from the middle of the
    concatenated texts, so that the beginning and the end remain.

    Raises ConfigError if even empty texts exceed the budget of a model.
    """
    total = sum(map(len, texts))
    if _fits(texts, budgets, chat):
        return texts
    kept, too_many = 0, total
    if not _fits(_without_middle(texts, kept), budgets, chat):
        raise ConfigError("the chat template alone is longer than the context of the models; use --chat never")
    while too_many - kept > 1:
        middle = (kept + too_many) // 2
        if _fits(_without_middle(texts, middle), budgets, chat):
            kept = middle
        else:
            too_many = middle
    return _without_middle(texts, kept)


def _fits(texts: Texts, budgets: Sequence[PromptBudget], chat: str) -> bool:
    return all(budget.fits(texts, chat) for budget in budgets)


def _without_middle(texts: Texts, num_kept: int) -> Texts:
    """Returns the texts without the middle of their concatenated characters: `num_kept` remain, half at each end."""
    end = (num_kept + 1) // 2  # end of the kept beginning
    resume = sum(map(len, texts)) - num_kept // 2
    starts = accumulate(map(len, texts), initial=0)
    return tuple(
        text[: max(0, end - start)] + text[max(0, resume - start) :] if resume - start > 0 else text
        for text, start in zip(texts, starts, strict=False)
    )


def truncate_examples(data: TaskData, target: TextModel, budgets: Sequence[PromptBudget], chat: str) -> TaskData:
    """Returns the data with every first turn that exceeds a budget shortened. Each example holds the number of the
    target's tokens that were removed from it."""
    examples = []
    for example in data.examples:
        (prompt,) = shorten((example.prompt,), budgets, chat)
        if prompt != example.prompt:
            cut = replace(example, turns=(prompt, *example.turns[1:]))
            num_cut = len(prompt_ids(target, example, chat)) - len(prompt_ids(target, cut, chat))
            example = replace(cut, truncated_tokens=num_cut)
        examples.append(example)
    return replace(data, examples=tuple(examples))


def record_prompts(
    examples: Mapping[tuple[str, int], Example], budgets: Mapping[str, Sequence[PromptBudget]],
    records: Sequence[Record], target: TextModel, chat: str,
) -> Callable[[Record], list[int]]:  # fmt: skip
    """Returns a function that maps a record to the target's prompt ids, which include AR's answers in earlier turns.

    `examples`: by subset and index; `budgets`: by subset.
    """
    texts = {record_key(record): answer_of(record["methods"]["ar"]) for record in records}

    def ids(record: Record) -> list[int]:
        *place, turn = record_key(record)
        answers = [texts[(*place, earlier)] for earlier in range(turn)]  # type: ignore[index]
        whole = conversation(examples[record["subset"], record["example"]], turn, answers)
        return encode(target, shorten(whole, budgets.get(record["subset"], ()), chat) if turn else whole, chat)

    return ids
