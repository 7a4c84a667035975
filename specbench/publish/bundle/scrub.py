"""Takes secrets and home folders out of what enters a bundle.

Secrets are the values of this user's environment variables, .netrc, token files and git remotes that look like them,
and texts in the known forms of keys. The exact values are removed everywhere, also from what models wrote. Home folders
of any user are removed from settings, and from answers that of this user alone: a model may write /home/user itself.
"""

import getpass
import json
import netrc
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

REMOVED, HOME = "[removed]", "~"
SHORTEST = 8  # characters of a secret; a shorter value would occur by chance
NAMES = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH|_KEY$|_PAT$", re.I)
PLACES = re.compile(r"[~/.]")  # a value that begins like a path is a place, such as SSH_AUTH_SOCK
FORMS = (
    r"\bhf_[A-Za-z0-9]{20,}", r"\bsk-[A-Za-z0-9_-]{20,}", r"\bgh[pousr]_[A-Za-z0-9]{30,}", r"\bgithub_pat_\w{30,}",
    r"\bglpat-[\w-]{20,}", r"\bxox[abprs]-[\w-]{10,}", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", r"\bAIza[\w-]{35}",
    r"\bBearer [A-Za-z0-9._~+/=-]{16,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
)  # fmt: skip
# What a text has that has one of these forms; to look for them is fast.
HINTS = ("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza",
         "Bearer ", "PRIVATE KEY-----", "://")  # fmt: skip
USER_IN_URL = r"(?<=://)[^\s/@:\"']*:[^\s/@\"']*@"  # of https://user:password@host
# In settings, whatever is given as a token: HF_TOKEN=…, ?api_key=…, --token …
KIND = r"(?:(?:hf|hub|auth|access|api|bearer|github|gitlab|wandb)[_-])?"  # not eos_token, mask_token and the like
SECRET_NAME = rf"(?:{KIND}token|\w*api[_-]?key|\w*secret|\w*password)"
NAMED = re.compile(rf"((?<![\w-]){SECRET_NAME}=|--{SECRET_NAME}[ =])[^\s&\"'\\]+", re.I)
HOMES = r"(?:/home/[^/\s\"'\\:,;=]+|/Users/[^/\s\"'\\:,;=]+|/root(?![\w.-])|[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s\"':,;=]+)"


@dataclass(frozen=True)
class Scrubber:
    """Removes `secrets` and `homes`, which are exact texts, and what has the form of a key."""

    secrets: Sequence[str] = ()
    homes: Sequence[str] = ()

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Scrubber":
        """Returns a scrubber of the secrets and the home folder of this user."""
        home = Path(environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~"))
        found = {value for name, value in environment.items() if NAMES.search(name) and not PLACES.match(value)}
        found |= {value for text in environment.values() for value in re.findall(r"://[^\s/@:]*:([^\s/@]+)@", text)}
        found |= {*_in_files(home, environment)}
        places = {str(home), os.path.realpath(home)} - {"/", "."}
        with suppress(OSError, KeyError, ImportError):
            places |= {f"/home/{getpass.getuser()}", f"/Users/{getpass.getuser()}"}
        secrets = {each.strip() for each in found if len(each.strip()) >= SHORTEST}
        known, homes = (sorted(texts, key=lambda text: (-len(text), text)) for texts in (secrets, places))
        return cls(known, homes)

    @cached_property
    def _hints(self) -> Sequence[str]:
        return [*HINTS, *self._forms(self.secrets), *self._forms(self.homes)]

    @cached_property
    def _exact(self) -> re.Pattern[str]:
        return re.compile("|".join([*self._alternatives(self.secrets), *FORMS, USER_IN_URL]), re.DOTALL)

    @cached_property
    def _own_home(self) -> re.Pattern[str] | None:
        parts = self._alternatives(self.homes)
        return re.compile(rf"(?:{'|'.join(parts)})(?![\w.-])") if parts else None

    @cached_property
    def _any_home(self) -> re.Pattern[str]:
        return re.compile("|".join([*(rf"{each}(?![\w.-])" for each in self._alternatives(self.homes)), HOMES]))

    @staticmethod
    def _forms(texts: Sequence[str]) -> Sequence[str]:
        """Returns texts as they stand, and as JSON writes them."""
        as_json = [json.dumps(text, ensure_ascii=each)[1:-1] for text in texts for each in (False, True)]
        return list(dict.fromkeys([*texts, *as_json]))

    def _alternatives(self, texts: Sequence[str]) -> list[str]:
        return list(map(re.escape, self._forms(texts)))

    def text(self, text: str, is_written_by_model: bool = False) -> str:
        """Returns a text without secrets and homes."""
        text = self._exact.sub(REMOVED, text)
        if not is_written_by_model:
            text = NAMED.sub(rf"\1{REMOVED}", text)
        pattern = self._own_home if is_written_by_model else self._any_home
        return pattern.sub(HOME, text) if pattern is not None else text

    def value(self, value: Any, is_written_by_model: bool = False) -> Any:
        """Returns a value of JSON with all its texts and keys scrubbed."""
        if isinstance(value, str):
            return self.text(value, is_written_by_model)
        if isinstance(value, list):
            return [self.value(each, is_written_by_model) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(each, is_written_by_model) for key, each in value.items()}
        return value

    def is_clean_line(self, line: str) -> bool:
        """Returns whether a line of records can stay as it is, without being parsed."""
        if not any(hint in line for hint in self._hints):
            return True
        return not (self._exact.search(line) or (self._own_home is not None and self._own_home.search(line)))


def _in_files(home: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the secrets in files of the user: .netrc, the token of the hub, and git's stored credentials."""
    with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
        for _, _, password in netrc.netrc(environment.get("NETRC") or str(home / ".netrc")).hosts.values():
            yield password or ""
    hub = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    for file in (Path(environment.get("HF_TOKEN_PATH") or hub / "token"), home / ".git-credentials"):
        with suppress(OSError, UnicodeDecodeError):
            content = file.read_text(encoding="utf-8")
            yield from re.findall(r"://[^\s/@:]*:([^\s/@]+)@", content) if "://" in content else [content]
