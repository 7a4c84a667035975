"""Codes of the languages that can be identified from a text."""

import re
from functools import cache

# Languages that lingua does not support, whose scripts no supported language uses: Amharic, Cherokee, Tamazight
# (Tifinagh).
SCRIPTS = {
    "am": re.compile(r"[\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f]"),
    "chr": re.compile(r"[\u13a0-\u13ff\uab70-\uabbf]"),
    "zgh": re.compile(r"[\u2d30-\u2d7f]"),
}


def known(code: str) -> str | None:
    """Returns an identifiable language's code, ISO 639-1 if there is one ("pt-BR": pt, "yor": yo); None for others."""
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
