"""The help of a model: what a run takes from its configuration, tokenizer and chat template. No weights are loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError


class EndToken(BaseModel):
    """A token that ends an answer. `sources`: the files that name it."""

    id: int
    token: str
    sources: list[str]


class ModelHelp(BaseModel):
    """The help of a model.

    `context`: in tokens; None without a limit. `vocab_size`: the ids that can be drawn; `num_logits`: rows of the
    output layer. `stop_strings`: those of the generation config, which specbench does not use: a task's own ones count.
    `content`: whether the chat template reads the text of a message or a list of parts; None if it drops or cuts the
    user's text. `refusal`: the error of a template that refuses a single message; "" if it does not. `system`: where a
    system prompt goes. `own_text`: what the chat template writes before the user's text. `date`: the date that it
    prints by default. `sampling`: what --sampling model takes; `other_sampling`: what it leaves out.
    """

    kind: Literal["model"] = "model"
    name: str
    revision: str | None
    architecture: str
    context: int | None
    vocab_size: int
    num_logits: int
    end_tokens: list[EndToken]
    stop_strings: list[str]
    bos: str | None
    has_chat_template: bool
    variables: list[str]
    content: Literal["text", "parts"] | None
    refusal: str
    system: Literal["a role of its own", "before the user's text"]
    own_text: str
    date: str | None
    sampling: dict[str, Any] | None
    other_sampling: dict[str, Any]


def is_model(name: str) -> bool:
    """Returns whether a name is that of an embedded model, of a checkpoint's folder, or may be a hub id."""
    if name.startswith(EMBEDDED) or (Path(name) / "config.json").is_file():
        return True
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).suffix


def model_help(name: str) -> ModelHelp:
    """Returns the help of a model. Raises ConfigError if its configuration or tokenizer cannot be read."""
    from specbench.models.causal_lm import end_token_sources
    from specbench.models.chat_template import GIVEN_TO_TEMPLATES
    from specbench.models.checkpoints import checkpoint_sampling
    from specbench.models.loading import load_generation_config, load_model

    model = load_model(name, device="cpu", weights=False)
    tokenizer, template = model.tokenizer, model.chat_template
    generation = load_generation_config(name, None)
    ends: dict[int, list[str]] = {}
    for source, ids in end_token_sources(generation, model.model.config, tokenizer).items():
        for index in ids:
            ends.setdefault(index, []).append(source)
    sampling = None if generation is None else checkpoint_sampling(generation)
    behaviour = template.behaviour if template.exists else None
    refusal = ""
    if behaviour:
        try:
            template.render(["Hi"])
        except ConfigError as error:
            refusal = str(error)
    special = set(tokenizer.special_tokens_map)
    return ModelHelp(
        name=name, revision=model.revision, architecture=type(model.model).__name__, context=model.context_limit,
        vocab_size=model.vocab_size, num_logits=model.model.config.get_text_config().vocab_size,
        end_tokens=[
            EndToken(id=index, token=str(tokenizer.convert_ids_to_tokens(index)), sources=sources)
            for index, sources in sorted(ends.items())
        ],
        stop_strings=stop_strings(generation), bos=tokenizer.bos_token, has_chat_template=template.exists,
        variables=sorted(template.variables - GIVEN_TO_TEMPLATES - special),
        content=(behaviour.content if behaviour.keeps_text else None) if behaviour else "text", refusal=refusal,
        system="a role of its own" if behaviour and behaviour.has_system_role else "before the user's text",
        own_text=behaviour.own_text[0] if behaviour else "",
        date=template.printed_date.isoformat() if template.printed_date else None,
        sampling=None if sampling is None else sampling.values,
        other_sampling=dict(sampling.others) if sampling else {},
    )  # fmt: skip


def stop_strings(generation: Any) -> list[str]:
    found = getattr(generation, "stop_strings", None) or []
    return [found] if isinstance(found, str) else list(found)


def model_lines(help_: ModelHelp) -> dict[str, list[str]]:
    """Returns the help of a model as lines by heading."""
    ends = [f"{end.id} {end.token} ({', '.join(end.sources)})" for end in help_.end_tokens]
    unused = f"stop strings of generation_config.json, which runs do not use: {', '.join(help_.stop_strings)}"
    return {
        "tokens": [
            f"context: {help_.context or 'no limit'}",
            f"vocabulary: {help_.vocab_size} tokens, {help_.num_logits} rows in the output layer",
            f"begin: {help_.bos or 'none'}",
            *(
                [f"end: {', '.join(ends)}"]
                if ends
                else ["end: none, so that only stop strings and lengths end answers"]
            ),
            *([unused] if help_.stop_strings else []),
        ],
        "chat template": _template_lines(help_),
        "sampling of generation_config.json (--sampling model)": [
            _listed(help_.sampling) if help_.sampling else "none",
            *([f"not supported, and left out: {_listed(help_.other_sampling)}"] if help_.other_sampling else []),
        ],
    }


def _template_lines(help_: ModelHelp) -> list[str]:
    if not help_.has_chat_template:
        return ["none: prompts are sent as they are, and a system prompt stands directly before them"]
    if help_.refusal:
        return [help_.refusal]
    if help_.content is None:
        return ["it drops or cuts the user's text"]
    return [
        f"content of messages: {help_.content}",
        f"system prompt: {help_.system}",
        f"text of its own before the user's: {help_.own_text or 'none'}",
        f"date: {f'{help_.date} (--template-date)' if help_.date else 'none'}",
        f"variables (--chat-template-args): {', '.join(help_.variables) or 'none'}",
    ]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
