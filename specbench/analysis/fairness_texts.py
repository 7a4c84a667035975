"""The texts whose positions all drafters are compared on: what the target wrote in a run, or the data's references."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from specbench.analysis.fairness_runs import Common
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.results.recorded_prompts import RecordedPrompt
from specbench.running.records import Key, Record
from specbench.training.passes import Sample

Reference = Literal["continuation", "data"]
REFERENCES: tuple[str, ...] = get_args(Reference)


def texts_of(
    common: Common,
    asked: Mapping[Key, RecordedPrompt],
    target: CausalLM,
    reference: Reference,
    context_limit: int | None,
) -> dict[Key, Sample]:
    """Returns the text of every common record, its prompt given: AR's own tokens in the first run, or the reference of
    the row, each up to `context_limit` tokens with its prompt. Texts without a position are left out.

    Raises ConfigError where a group has no position, or no reference text.
    """
    texts: dict[Key, Sample] = {}
    for (task, subset), keys in common.keys.items():
        made = {}
        for key in keys:
            record = common.runs[0].records[key]
            new_ids = (
                tuple(record["methods"]["ar"]["token_ids"])
                if reference == "continuation" else reference_ids(record, asked[key], target)
            )  # fmt: skip
            prompt_ids = asked[key].prompt_ids
            made[key] = within(Sample(subset, (*prompt_ids, *new_ids), len(prompt_ids)), context_limit)
        found = {key: text for key, text in made.items() if text.num_learnt}
        if not found:
            raise ConfigError(
                f"{task}/{subset}: no text has a position within the shortest context ({context_limit} tokens): leave "
                "the subset out with --subset, or compare models with a longer context"
            )
        texts |= found
    return texts


def within(text: Sample, context_limit: int | None) -> Sample:
    """Returns the text without the tokens whose positions lie beyond the context."""
    if context_limit is None:
        return text
    return replace(text, ids=text.ids[: max(text.num_given, context_limit + 1)])


def reference_ids(record: Record, asked: RecordedPrompt, target: CausalLM) -> tuple[int, ...]:
    """Returns the target's tokens of the reference answer (the first of several), with a space between a prompt that
    does not end in one and the answer. Raises ConfigError where there is no text."""
    turn = record.get("turn", 0)
    found = asked.example.references[turn]
    answer = found[0] if isinstance(found, list | tuple) and found else found
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ConfigError(
            f"--reference data: {record['task']}/{record['subset']} example {record['id']} has no reference text: use "
            "--reference continuation"
        )
    before = asked.example.turns[turn]
    space = "" if before[-1:].isspace() else " "
    ids: list[int] = target.tokenizer(f"{space}{answer}", add_special_tokens=False)["input_ids"]
    return tuple(ids)
