"""The codes of languages that can be identified from a text."""

import re
from functools import cache

# Languages that lingua does not know, in scripts that none of those has: Amharic, Cherokee, Tamazight (Tifinagh).
SCRIPTS = {
    "am": re.compile(r"[\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f]"),
    "chr": re.compile(r"[\u13a0-\u13ff\uab70-\uabbf]"),
    "zgh": re.compile(r"[\u2d30-\u2d7f]"),
}


def known(code: str) -> str | None:
    """The code of a language that can be told from others, ISO 639-1 if there is one: of "pt-BR" pt, of "yor" yo; else
    None."""
    return _codes().get(code.lower().partition("-")[0])


@cache
def _codes() -> dict[str, str]:
    from lingua import Language

    codes = {language: language.iso_code_639_1.name.lower() for language in Language.all()}
    return {
        **{code: code for code in codes.values()},
        **{language.iso_code_639_3.name.lower(): code for language, code in codes.items()},
        **{code: code for code in SCRIPTS},
        "amh": "am",
    }
