"""The key of a server with OpenAI's interface, and how it is kept out of all that is printed or written."""

import base64
import html
import os
import re
from collections.abc import Iterator

from specbench.errors import ConfigError

KEY_VARIABLE = "OPENAI_API_KEY"
LEAST_SECRET = 8  # characters
HIDDEN = "(key)"
GAP = r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]{0,8}"  # between two characters of a key


class ApiKey:
    """A key from the environment.

    A key with fewer than 8 characters is not hidden: it is the filler of a server without keys ("EMPTY", "1"), and a
    reply without it could lose its rating. A longer one is found in any case, split by white space, in escapes of JSON,
    URLs and HTML, and in base64. A server that wants to tell the key has other ways; it knows the key anyway.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._pattern = re.compile("|".join(_forms(text)), re.IGNORECASE) if len(text) >= LEAST_SECRET else None

    @classmethod
    def from_environment(cls, setting: str) -> "ApiKey":
        """The key in OPENAI_API_KEY. Raises ConfigError, which begins with `setting`, where none can be sent."""
        text = os.environ.get(KEY_VARIABLE, "").strip()
        if not text:
            raise ConfigError(f"{setting}: {KEY_VARIABLE} is not set: export the key (any text for a server without)")
        if not (text.isascii() and text.isprintable()):
            raise ConfigError(
                f"{setting}: {KEY_VARIABLE} holds a character that no key has (not ASCII, or a control character): "
                "copy it again"
            )
        return cls(text)

    @property
    def value(self) -> str:
        """The key itself, for the client that sends it."""
        return self._text

    def hide(self, text: str) -> str:
        """A text without the key, and without halves of surrogate pairs, which no file can hold."""
        text = text.encode("utf-8", "replace").decode()
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def _forms(key: str) -> Iterator[str]:
    """Regular expressions for the forms of a key that programs write."""
    yield GAP.join(map(_character, key))
    for num_before in range(3):  # bytes in front of the key, modulo 3, decide what its base64 is
        text = base64.b64encode(bytes(num_before) + key.encode()).decode().rstrip("=")
        end = None if (num_before + len(key)) % 3 == 0 else -1  # the last character depends on what follows
        own = text[(0, 2, 3)[num_before] : end]
        yield GAP.join({"+": "[+-]", "/": "[/_]"}.get(character, character) for character in own)


def _character(character: str) -> str:
    code, digits = ord(character), f"{ord(character):02x}"
    plain = f"{re.escape(html.escape(character))}|{re.escape(character)}"
    return rf"(?:\\{{0,4}}(?:{plain}|u00{digits}|x{digits})|%{digits}|&#(?:0{{0,4}}{code}|x0{{0,4}}{code:x});)"
