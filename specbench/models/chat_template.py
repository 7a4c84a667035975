"""The chat template of a tokenizer: what it reads, what it does with messages, and the date that it prints."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Literal

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from specbench.core.errors import ConfigError, nearest

Message = Mapping[str, object]  # role and content

# The date that templates print unless --template-date gives another. Llama 3.x templates fall back to it themselves.
TEMPLATE_DATE = date(2024, 7, 26)
TRACKING = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # tags of transformers around answers
CLOCK, DATE_VARIABLE = "strftime_now", "date_string"  # a function; a variable of Llama 3.x templates
GIVEN_TO_TEMPLATES = {"messages", "add_generation_prompt", "raise_exception", CLOCK}
SYSTEM_MARK, USER_MARK, ANSWER_MARK, LAST_MARK = "Mark of rules.", "Mark one.", "Mark two.", "Mark three."
LONG_TEXT, END_MARK = " And so on." * 1000, " Mark of the end."  # behind USER_MARK, to find templates that cut texts
PRINTED_PARTS = re.compile(r"""(['"]|&#3[49];)type\1\s*:""")  # the list of parts itself, written as Python or JSON
OWN_WORDS = 4  # words before the user's text that are more than the names of roles
NUM_SHOWN = 80  # characters of a template's own text in a line


@dataclass(frozen=True)
class TemplateBehaviour:
    """What a template does with messages, found by rendering some with known texts.

    `content`: whether it reads the text of a message itself or a list of parts. `keeps_text`: whether the user's whole
    text is in what it writes; True if it refuses a single message, for a reason that `render` tells. `keeps_turns`:
    whether it keeps the user's texts of earlier turns; True if it refuses conversations. `has_system_role`: whether it
    writes a system message. `own_text`: what it writes before the user's text by itself, without a system message and
    with one; empty if that is no more than special tokens and the names of roles.
    """

    content: Literal["text", "parts"]
    keeps_text: bool
    keeps_turns: bool
    has_system_role: bool
    own_text: tuple[str, str]


class ChatTemplate:
    """The chat template of a model's tokenizer, which may be replaced while this object exists.

    `args`: values for variables of the template. `date`: the date that it prints; None: TEMPLATE_DATE.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.args: Message = {}
        self.date: date | None = None
        self._behaviour: dict[tuple[Any, ...], TemplateBehaviour] = {}

    @property
    def exists(self) -> bool:
        return getattr(self.tokenizer, "chat_template", None) is not None

    @property
    def source(self) -> str:
        """The Jinja source; "" for a tokenizer that renders in another way, or without a template."""
        template = getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, dict):  # by name
            template = template.get("default")
        return template if isinstance(template, str) else ""

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template may read, also those that it reads only under a condition."""
        return _parse(self.source)[0]

    @property
    def printed_date(self) -> date | None:
        """The date that the template may print; None if it reads none. It may be read only under a condition."""
        reads_given = self.date is not None and DATE_VARIABLE in self.variables and DATE_VARIABLE not in self.args
        return (self.date or TEMPLATE_DATE) if reads_given or CLOCK in self.variables else None

    def check_args(self) -> None:
        """Raises ConfigError for a given variable or date that the template does not read."""
        known = self.variables - GIVEN_TO_TEMPLATES - set(self.tokenizer.special_tokens_map)
        for name in self.args:
            if name not in known:
                reads = nearest(name, known) if known else "it reads none: leave the option out"
                raise ConfigError(
                    f"--chat-template-args {name}: the chat template of '{self.name}' reads no such variable: {reads}"
                )
        if self.date is not None and self.printed_date is None:
            raise ConfigError(
                f"--template-date {self.date}: the chat template of '{self.name}' prints no date: leave the option out"
            )

    def render(self, texts: Sequence[str], system: str | None = None) -> str:
        """Returns a conversation, whose texts are the user's and the model's in turn, up to the begin of an answer.
        Raises ConfigError if the template refuses it."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        try:
            return self.apply(messages)
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())[:200]
            refused = "a single user turn" if len(texts) == 1 else f"a conversation of {len(texts)} messages"
            raise ConfigError(
                f"model '{self.name}': its chat template refuses {refused} ({reason}); use --chat never"
            ) from error

    def apply(self, messages: Sequence[Message], **options: Any) -> str:
        """Returns messages as one text. A system prompt for which the template has no role is put before the user's
        text, with an empty line between them. Raises whatever the template raises.

        `options`: those of transformers, by default {add_generation_prompt: True}.
        """
        behaviour = self.behaviour
        if messages and messages[0]["role"] == "system" and not behaviour.has_system_role:
            system, *messages = messages
            if messages:
                joined = f"{system['content']}\n\n{messages[0]['content']}"
                messages = [{**messages[0], "content": joined}, *messages[1:]]
        return self._apply(messages, behaviour.content, options or {"add_generation_prompt": True})

    @property
    def behaviour(self) -> TemplateBehaviour:
        """What the template does with known texts; examined once for each template, date and arguments."""
        key = self.source, repr(self.args), self.date
        if key not in self._behaviour:
            self._behaviour[key] = self._examine()
        return self._behaviour[key]

    def _examine(self) -> TemplateBehaviour:
        def rendered(messages: Sequence[Message], content: str) -> str | None:
            try:
                return self._apply(messages, content, {"add_generation_prompt": True})
            except Exception:  # templates are programs: they may raise anything
                return None

        def has(text: str | None, *marks: str) -> bool:
            return text is not None and all(_find(mark, text) for mark in marks)

        # 1. A single message, given as text and as a list of parts: what keeps the whole text is the right form.
        user = {"role": "user", "content": USER_MARK + LONG_TEXT + END_MARK}
        system = {"role": "system", "content": SYSTEM_MARK}
        text, parts = rendered([user], "text"), rendered([user], "parts")
        content: Literal["text", "parts"]
        if has(text, USER_MARK, END_MARK):
            content, alone = "text", text or ""
        elif has(parts, USER_MARK, END_MARK) and not PRINTED_PARTS.search(parts or ""):
            content, alone = "parts", parts or ""
        else:
            content = "parts" if text is None and parts is not None else "text"
            return TemplateBehaviour(content, text is None and parts is None, True, True, ("", ""))
        # 2. A conversation, and a system prompt.
        answer, last = {"role": "assistant", "content": ANSWER_MARK}, {"role": "user", "content": LAST_MARK}
        turns = rendered([user, answer, last], content)
        told = rendered([system, user], content) or ""
        system_mark = _find(SYSTEM_MARK, told)
        untold = told.replace(system_mark[0], " ") if system_mark else told
        return TemplateBehaviour(
            content=content,
            keeps_text=True,
            keeps_turns=turns is None or has(turns, USER_MARK, LAST_MARK),
            has_system_role=bool(system_mark) and has(told, USER_MARK),
            own_text=(self._own_text(alone), self._own_text(untold)),
        )

    def problems(self, *, several_turns: bool) -> Iterator[str]:
        """Yields a line for each way in which the template loses the user's text."""
        if not self.behaviour.keeps_text:
            yield f"model '{self.name}': its chat template drops or cuts the user's text"
        elif several_turns and not self.behaviour.keeps_turns:
            yield f"model '{self.name}': its chat template drops the user's text of earlier turns"

    def notes(self, system: str | None) -> Iterator[str]:
        """Yields a line if the template writes a text of its own before the user's, and one if it has no role for the
        system prompt."""
        behaviour = self.behaviour
        if system is not None and not behaviour.has_system_role:
            yield f"{self.name}: its chat template has no system role: the system prompt is put before the user's text"
        own = behaviour.own_text[system is not None and behaviour.has_system_role]
        if own:
            shown = own if len(own) <= NUM_SHOWN else own[: NUM_SHOWN - 1] + "…"
            replaced = behaviour.has_system_role and system is None and own != behaviour.own_text[1]
            remedy = "; --system-instruction replaces it" if replaced else ""
            yield f'{self.name}: its chat template writes a text of its own before the user\'s: "{shown}"{remedy}'

    def _apply(self, messages: Sequence[Message], content: str, options: Message) -> str:
        if content == "parts":
            messages = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
        given = {**self.args}
        if CLOCK in self.variables:
            given["chat_template"] = with_date(self.source, self.date or TEMPLATE_DATE)
        if self.date is not None and DATE_VARIABLE in self.variables:
            given.setdefault(DATE_VARIABLE, self.date.strftime("%d %b %Y"))
        text: str = self.tokenizer.apply_chat_template([*messages], tokenize=False, **given, **options)
        return text

    def _own_text(self, rendered: str) -> str:
        """Returns what stands before the user's text without special tokens and the names of the two roles; "" if that
        is less than OWN_WORDS words."""
        mark = _find(USER_MARK, rendered)
        before = rendered[: mark.start()] if mark else ""
        special = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        tokens = sorted(special | set(self.tokenizer.all_special_tokens), key=len, reverse=True)
        marks = "|".join(["^", *map(re.escape, tokens)])  # a role is named at the start or after a special token
        before = re.sub(rf"(?:{marks})(?:\s*(?:system|user)\b)?|\buser\s*$", " ", before)
        return " ".join(before.split()) if len(re.findall(r"[^\W\d_]{2,}", before)) >= OWN_WORDS else ""


def _find(mark: str, rendered: str) -> re.Match[str] | None:
    """Finds a mark in a rendering, also if the template changed its case, its spaces or its punctuation."""
    return re.search(r"[\W_]*".join(re.findall(r"\w+", mark)), rendered, re.IGNORECASE)


@lru_cache(maxsize=64)
def _parse(source: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Returns the variables that a template may read, and its string constants with a %, such as formats of dates.
    Returns none of both for a template that Jinja cannot parse, which fails when it is rendered."""
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(TRACKING.sub("", source))
    except TemplateSyntaxError:
        return frozenset(), ()
    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str) and "%" in node.value}
    return frozenset(meta.find_undeclared_variables(tree)), tuple(sorted(texts))


@lru_cache(maxsize=64)
def with_date(source: str, printed: date) -> str:
    """Returns a template in which `strftime_now` gives a fixed date, at midnight. transformers defines it as a global
    of its own and lets no function through to templates, so a macro of that name stands before the template. It knows
    all formats that the template spells; any other one is refused."""
    known = {}
    for text in _parse(source)[1]:
        with suppress(ValueError):  # it is not a format, but some other text with a %
            known[text] = printed.strftime(text)
    lookup = ascii(known)  # Jinja reads Python's escapes
    return (
        f"{{%- macro {CLOCK}(format) -%}}{{%- set known = {lookup} -%}}"
        "{%- if format in known -%}{{ known[format] }}"
        "{%- else -%}{{ raise_exception('it computes the format of a date, which cannot be fixed') }}{%- endif -%}"
        f"{{%- endmacro %}}\n{source}"
    )
