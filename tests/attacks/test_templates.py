"""Templates that would take all time or memory, or reach what is behind the sandbox: each ends in an error."""

import pytest

from specbench.core.errors import ConfigError
from specbench.specs import templates
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tests.attacks.bounds import refused, within_bounds

MANY = "range(99999)"
ROW = {"text": "hello world", "list": ["a", "b", "c"], "long": "é" * 3_000_000}
BOUND = "exceeds"  # characters or seconds, whichever this machine comes to first
NUMBER = "a number above 100,000"
UNSAFE, UNKNOWN = "is unsafe", "has no name"

ATTACKS = {  # template → what the error tells
    # loops
    f"{{% for a in {MANY} %}}{{% for b in {MANY} %}}x{{% endfor %}}{{% endfor %}}": BOUND,
    f"{{% for a in {MANY} %}}{{% for b in {MANY} %}}{{% endfor %}}{{% endfor %}}": BOUND,
    "{% for a in row.long %}{% for b in row.long %}{% endfor %}{% endfor %}": BOUND,
    f"{{% for a in {MANY} if a < 0 %}}{{% endfor %}}" * 50: BOUND,
    f"{{% for a in {MANY} %}}{{{{ 'x' in row.long }}}}{{% endfor %}}": BOUND,
    "{% for a in range(9999) %}" + "x" * 9999 + "{% endfor %}": BOUND,
    "{% set a %}{% for a in range(9999) %}" + "x" * 9999 + "{% endfor %}{% endset %}": BOUND,
    "{% for a in range(9999) %}{% for b in range(9999) %}{{ loop.length }}{% endfor %}{% endfor %}": BOUND,
    "{% for a in row.list recursive %}{{ loop(row.list) }}{% endfor %}": "a recursive loop is not allowed",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}": "macro is not",
    "{% call row.text() %}{% endcall %}": "callblock is not allowed",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}": "block is not allowed",
    "{{ range(10 ** 9) | list }}": "Range too big",
    # operators
    "{{ 'a' * 1000000000 }}": BOUND,
    "{{ 10 ** 9 * 'a' }}": BOUND,
    "{{ [[1] * 100] * 1000 * 1000 }}": BOUND,
    "{{ 2 ** (9 ** 9) }}": "a number of more than 4096 bits",
    "{% set n = 9 %}" + "{% set n = n * n %}" * 40: "a number of more than 4096 bits",
    "{{ '%1000000000d' % 1 }}": "% is not allowed with a text",
    "{% set a = 'a' %}" + "{% set a = a + a %}" * 60: BOUND,
    "{% set a = 'a' %}" + "{% set a = a ~ a %}" * 60: BOUND,
    "{% set a = [1] %}" + "{% set a = a + a %}" * 60: BOUND,
    "{% set a %}a{% endset %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60: BOUND,
    "{% set a = [1] %}{% set b = [1] %}" + "{% set a = [a, a] %}{% set b = [b, b] %}" * 60 + "{{ a == b }}": BOUND,
    "{% set a = (1,) %}" + "{% set a = (a, a) %}" * 60 + "{{ [a] | unique | list }}": BOUND,
    "{% set a = {'x': 1} %}" + "{% set a = {'x': a, 'y': a} %}" * 60 + "{{ a | string }}": BOUND,
    "".join(f"{{% set a{i} = row.long[1:] %}}" for i in range(10)): BOUND,
    f"{{% set n = namespace(a=[]) %}}{{% for i in {MANY} %}}{{% set n.a = n.a + [row.long ~ i] %}}{{% endfor %}}":
        BOUND,
    # filters
    "{{ 'a' | center(1000000000) }}": NUMBER,
    "{{ 1.5 | round(1000000000, 'floor') }}": NUMBER,
    "{{ [1] | batch(10 ** 9, 1) | list }}": NUMBER,
    "{{ row.long | replace('é', 'x' * 1000) }}": BOUND,
    "{{ row.long | replace(old='', new='x' * 1000) }}": BOUND,
    "{{ [row.long] | map('replace', 'é', 'x' * 1000) | list }}": BOUND,
    f"{{{{ {MANY} | map('string') | map('center', 99999) | list }}}}": BOUND,
    f"{{{{ {MANY} | join('a' * 1000) }}}}": BOUND,
    "{{ ('a\n' * 10000) | indent(99999) }}": BOUND,
    "{{ row.long | list }}": BOUND,
    "{{ row.long | sort }}": BOUND,
    "{{ row.long | urlencode }}": BOUND,
    "{{ '%1000000000d' | format(1) }}": "No filter named 'format'",
    "{{ ('<>' * 1000000) | striptags }}": "No filter named 'striptags'",
    "{{ [[1]] | sum(start=[]) }}": "No filter named 'sum'",
    # methods and functions
    "{{ 'a'.center(10 ** 9) }}": NUMBER,
    "{{ 'a'.zfill(10 ** 12) }}": NUMBER,
    "{{ row.long.replace('', 'x' * 1000) }}": BOUND,
    f"{{{{ ('a' * 1000).join({MANY} | map('string')) }}}}": BOUND,
    "{{ row.long.split('é') }}": BOUND,
    "{{ '{:1000000000}'.format(1) }}": UNSAFE,
    "{{ 'a'['format'](1) }}": UNSAFE,
    "{{ 'a\t'.expandtabs(10 ** 9) }}": UNSAFE,
    "{{ 'ab'.translate({97: 'x' * 1000}) }}": UNSAFE,
    "{{ (1).to_bytes(1000000000) }}": UNSAFE,
    "{{ lipsum(10000) }}": UNKNOWN,
    "{{ cycler }}": UNKNOWN,
    # behind the sandbox
    "{{ row.__class__.__mro__ }}": UNSAFE,
    "{{ row.list | attr('__class__') }}": UNSAFE,
    "{{ ''.__class__.__base__.__subclasses__() }}": UNSAFE,
    "{{ range.__globals__ }}": "",
    "{{ row._data }}": UNSAFE,
    "{% set _ = row.list.append(1) %}": UNSAFE,
    "{% include '/etc/passwd' %}": "include is not allowed",
    "{% import '/etc/passwd' as a %}": "import is not allowed",
    "{% extends '/etc/passwd' %}": "extends is not allowed",
    # the compiler
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "recursion",
    "{{ " + "-" * 50000 + "1 }}": "recursion",
    "{% if 1 %}" * 2000 + "{% endif %}" * 2000: "recursion",
    "{{ " + "9" * 5000 + " }}": "4300 digits",
    "a" * 100_001: "more than 100,000 characters",
}  # fmt: skip


@pytest.mark.parametrize("source", ATTACKS, ids=lambda source: source[:60])
def test_a_template_is_stopped(monkeypatch, source):
    monkeypatch.setattr(templates, "MAX_SECONDS", 0.05)
    with within_bounds(), pytest.raises(Exception) as raised:
        templates.check(source, "x.yaml: prompt")
        templates.render(source, ROW, {})
    assert ATTACKS[source] in str(raised.value) and not isinstance(raised.value, MemoryError)


HARMLESS = {
    "{% for a in row.list %}{{ loop.index }}{{ a }}{{ ', ' if not loop.last }}{% endfor %}": "1a, 2b, 3c",
    "{% for a in row.list if a != 'b' %}{{ a }}{{ loop.length }}{% endfor %}": "a2c2",
    "{{ row.text ~ ' ' ~ 3 }}": "hello world 3",
    "{{ row.text | upper | replace('L', 'm') }}": "HEmmO WORmD",
    "{{ row.list | map('upper') | join('-') }} {{ ', '.join(row.list) }}": "A-B-C a, b, c",
    "{% set n = namespace(i=0) %}{% for a in row.list %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}": "3",
    "{% set a, b = 7, 2 %}{{ a % b + a ** b * 2 }} {{ row.text[:5] }} {{ row.list[1:] | join }}": "99 hello bc",
    "{% set z %}{{ row.text }}{% endset %}{{ z | indent(2) }}{{ (1.25 | round(1)) ~ '' }}": "hello world1.2",
    "{{ row.text.split() | length }}{{ 'ABC'[1] }}{{ {'a': 1}['a'] }}{{ dict(a=1).a }}": "2B11",
    "{{ 'a\nb' | indent(2) }}{{ 'x' | center(3) }}{{ row.list | sort(reverse=true) | first }}": "a\n  b x c",
    "{{ row.none | default('-') }}{{ row.text | truncate(5, leeway=0) }}": "-he...",
}


@pytest.mark.parametrize("source", HARMLESS)
def test_what_templates_are_for_is_left(source):
    templates.check(source, "x.yaml: prompt")
    assert templates.render(source, ROW, {}) == HARMLESS[source]


def test_a_long_document_is_left():
    assert templates.render("Read: {{ row.long }}", ROW, {}) == "Read: " + ROW["long"]


TASK = """
name: sums
version: 1
title: Sums
prompt: "{{% for a in {many} %}}{{% for b in {many} %}}{{% endfor %}}{{% endfor %}}{{{{ row.question }}}}"
reference: "{{{{ row.answer }}}}"
scorer: {{type: number}}
generation: {{max_new_tokens: 8}}
"""


def test_the_command_names_file_and_row(specbench, tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "MAX_SECONDS", 0.05)
    (tmp_path / "sums.yaml").write_text(TASK.format(many=MANY))
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    with within_bounds(), pytest.raises(ConfigError, match=r"rows\.jsonl, row 1: the prompt of task 'sums' fails"):
        load_examples(load_task("sums.yaml"), "default", data="rows.jsonl", use_sample=False, limit=1)
    refused(specbench("run", "--task", "sums.yaml", "--method", "ar", "--data", "rows.jsonl"), BOUND)
