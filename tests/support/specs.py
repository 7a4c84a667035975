"""A small task, and the message of a mistake in it."""

import pytest

from specbench.core.errors import ConfigError

TASK = {
    "name": "sums",
    "version": 1,
    "title": "Sums",
    "prompt": "{{ vars.word }} {{ row.question }}",
    "reference": "{{ row.answer }}",
    "vars": {"word": "Q:"},
    "scorer": {"type": "number"},
    "generation": {"max_new_tokens": 16, "stop": ["\n\n"]},
}
LANGUAGES = TASK | {"subsets": {"en": {"language": "en"}, "de": {"language": "de", "vars": {"word": "F:"}}}}


def message(make, **changes):
    with pytest.raises(ConfigError) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)
