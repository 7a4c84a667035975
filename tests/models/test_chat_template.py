"""Chat templates: the date that they print is fixed, and what they do to messages is found out before a run."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.models.chat_template import ChatTemplate, with_date
from tests.support import tiny

DAY = "{{ strftime_now('%d %b %Y') }}"
MESSAGES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LLAMA_32 = (
    """{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
Today Date: {{ date_string }}
"""
    + MESSAGES
)
LLAMA_31 = """{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
Today Date: {{ date_string }}
""" + MESSAGES  # fmt: skip


def template(source: Any, day: date | None = None, **args: Any) -> ChatTemplate:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = source
    made = ChatTemplate(tokenizer, "m")
    made.args, made.date = args, day
    return made


@pytest.mark.parametrize(
    ("source", "args", "by_default", "in_march"),
    [
        (DAY + MESSAGES, {}, "26 Jul 2024<user>Hi", "01 Mar 2025<user>Hi"),
        ("{% set form = '%B' %}{{ strftime_now(form) }}" + MESSAGES, {}, "July<user>Hi", "March<user>Hi"),
        ("{% macro day() %}" + DAY + "{% endmacro %}{{ day() }}" + MESSAGES, {}, "26 Jul 2024<user>Hi",
         "01 Mar 2025<user>Hi"),
        ("{{ strftime_now('%H:%M') }}" + MESSAGES, {}, "00:00<user>Hi", "00:00<user>Hi"),
        (LLAMA_32, {}, "Today Date: 26 Jul 2024\n<user>Hi", "Today Date: 01 Mar 2025\n<user>Hi"),
        (LLAMA_31, {}, "Today Date: 26 Jul 2024\n<user>Hi", "Today Date: 01 Mar 2025\n<user>Hi"),
        (LLAMA_32, {"date_string": "now"}, "Today Date: now\n<user>Hi", "Today Date: now\n<user>Hi"),
        ({"default": DAY + MESSAGES, "tool_use": "x"}, {}, "26 Jul 2024<user>Hi", "01 Mar 2025<user>Hi"),
    ],
)  # fmt: skip
def test_the_date_of_a_template_is_fixed(source: Any, args: Any, by_default: str, in_march: str) -> None:
    assert template(source, **args).render(["Hi"]) == by_default
    assert template(source, date(2025, 3, 1), **args).render(["Hi"]) == in_march


@pytest.mark.parametrize(
    ("source", "by_default", "if_given"),
    [
        (DAY + MESSAGES, "2024-07-26", "2025-03-01"),
        ("{% if tools %}" + DAY + "{% endif %}" + MESSAGES, "2024-07-26", "2025-03-01"),  # only under a condition
        (LLAMA_31, None, "2025-03-01"),
        (MESSAGES, None, None),
    ],
)
def test_a_date_is_known_to_be_printed(source: str, by_default: str | None, if_given: str | None) -> None:
    found = [template(source, day).printed_date for day in (None, date(2025, 3, 1))]
    assert [each and each.isoformat() for each in found] == [by_default, if_given]


def test_a_date_that_nothing_prints_is_refused() -> None:
    template(DAY, date(2025, 3, 1)).check_args()
    with pytest.raises(ConfigError, match="--template-date 2025-03-01: the chat template of 'm' prints no date"):
        template(MESSAGES, date(2025, 3, 1)).check_args()


def test_a_format_that_is_computed_is_refused() -> None:
    with pytest.raises(ConfigError, match="computes the format of a date"):
        template("{{ strftime_now('%' ~ 'd') }}" + MESSAGES).render(["Hi"])


def test_fixing_the_date_changes_nothing_else() -> None:
    """Blocks at the begin of a template, its whitespace and its quotes."""
    for begin in ("", "\n", "  ", "   {% if true %}\n  {% endif %}\n", "{%- if true %} x{% endif %}\n", "\n\n{{ '' }}"):
        source = begin + '{% set when = "%d\'é\\"" %}<' + "{{ strftime_now(when) }}>" + MESSAGES + "  "
        plain = source.replace("strftime_now(when)", "when.replace('%d', '26')")
        assert template(source).render(["Hi"]) == template(plain).render(["Hi"]), begin
        assert with_date(source, date(2024, 7, 26)).endswith(source)


PARTS = "{% for m in messages %}<{{ m.role }}>{{ m.content[0]['text'] }}{% endfor %}"
STRICT_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text ~ p['type'][:0] }}{% endfor %}{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + MESSAGES
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
OWN = "{% if messages[0].role != 'system' %}<system>You are a helpful assistant.{% endif %}" + MESSAGES
ALWAYS_OWN = "A chat between a user and a model. " + MESSAGES


@pytest.mark.parametrize(
    ("source", "expected", "lines"),
    [
        (MESSAGES, "<system>Be brief.<user>Hi", []),
        (PARTS, "<system>Be brief.<user>Hi", []),
        (STRICT_PARTS, "<system>Be brief.<user>Hi", []),
        (NO_SYSTEM, "<user>Be brief.\n\nHi", ["no system role"]),
        (DROPS_SYSTEM, "<user>Be brief.\n\nHi", ["no system role"]),
        (OWN, "<system>Be brief.<user>Hi", []),
        (ALWAYS_OWN, "A chat between a user and a model. <system>Be brief.<user>Hi", ["text of its own"]),
    ],
)
def test_a_system_prompt_reaches_every_template(source: str, expected: str, lines: list[str]) -> None:
    made = template(source)
    assert made.render(["Hi"], "Be brief.") == expected
    found = list(made.notes("Be brief."))
    assert len(found) == len(lines) and all(part in line for part, line in zip(lines, found, strict=True))


def test_a_text_that_a_template_adds_is_told() -> None:
    (line,) = template(OWN).notes(None)
    assert line == (
        "m: its chat template writes a text of its own before the user's: "
        '"<system>You are a helpful assistant.<user>"; --system-instruction replaces it'
    )
    assert not list(template(MESSAGES).notes(None))
    (line,) = template("Today is a cold day. <|end|>system\nYou are kind.<|end|>user\n" + MESSAGES).notes(None)
    assert line.endswith('"Today is a cold day. You are kind. <user>"; --system-instruction replaces it')


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for m in messages %}<{{ m.role }}>{% endfor %}", "drops or cuts the user's text"),
        ("<{{ messages[-1].content }}>", "drops the user's text of earlier turns"),
        (MESSAGES, None),
        (PARTS, None),
        ("{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}", None),
        (MESSAGES.replace("m.content", "m.content[:6]"), "drops or cuts the user's text"),
        ("{% for m in messages %}{{ m.content | list | tojson }}{% endfor %}", "drops or cuts the user's text"),
        (MESSAGES.replace("m.content", "m.content | truncate(500)"), "drops or cuts the user's text"),
        (PARTS.replace("['text']", "['text'][:500]"), "drops or cuts the user's text"),
        (MESSAGES.replace("m.content", "m.content | lower"), None),
        (MESSAGES.replace("m.content", "m.content | replace(' ', '_') | replace('.', '')"), None),
    ],
)
def test_a_template_that_drops_text_is_told(source: str, problem: str | None) -> None:
    found = list(template(source).problems(several_turns=True))
    assert found == ([] if problem is None else [f"model 'm': its chat template {problem}"])
    assert template(source).render(["Hi"]), "--prompt-checks warn measures all the same"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% set form = '%' ~ 'B' %}{{ strftime_now(form) }}" + MESSAGES, "computes the format of a date"),
        ("{% if x %}" + MESSAGES, "Unexpected end of template"),
        ("{{ raise_exception('no users') }}", "no users"),
    ],
)
def test_a_template_that_refuses_a_message_tells_its_own_reason(source: str, reason: str) -> None:
    made = template(source)
    assert not list(made.problems(several_turns=True)) and not list(made.notes(None))
    with pytest.raises(ConfigError, match=rf"refuses a single user turn \(.*{reason}.*\); use --chat never"):
        made.render(["Hi"])


def test_the_own_text_of_a_template_that_changes_case_is_told() -> None:
    source = "Answer in one short sentence. " + MESSAGES.replace("m.content", "m.content | lower")
    (line,) = template(source).notes(None)
    assert '"Answer in one short sentence. <user>"' in line


@pytest.mark.real
def test_public_templates_write_system_prompts_of_their_own(real_models: Path) -> None:
    from specbench.models.loading import load_model

    for name, begin in (("smollm2-135m", "You are a helpful AI"), ("qwen-coder-0.5b", "You are Qwen")):
        model = load_model(str(real_models / name), device="cpu", weights=False)
        (line,) = model.chat_template.notes(None)
        assert f'"{begin}' in line and line.endswith("--system-instruction replaces it")
        assert not list(model.chat_template.notes("Be brief."))
