"""The README of a static Space on the hub, whose front matter says how the hub shows the pages.

Source of the keys: https://huggingface.co/docs/hub/spaces-config-reference.
"""

import re
from dataclasses import dataclass

from specbench.core.errors import ConfigError
from specbench.core.table import escaped_markdown
from specbench.publish.hub.forms import dumped

README = "README.md"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class Space:
    """What only the owner of a Space knows. `licence`: as the hub names it, such as cc-by-4.0; None: not stated. Raises
    ConfigError for one of another form."""

    licence: str | None = None

    def __post_init__(self) -> None:
        if self.licence is not None and not LICENCE.fullmatch(self.licence):
            raise ConfigError(
                f"--license {self.licence}: the hub names licences in lower case, such as cc-by-4.0 or apache-2.0: "
                "https://huggingface.co/docs/hub/repositories-licenses lists them"
            )

    def readme(self, title: str, about: str) -> str:
        """Returns the file: front matter, title, and what the pages are."""
        front = {
            "title": title, "emoji": "📊", "colorFrom": "blue", "colorTo": "gray", "sdk": "static",
            "app_file": "index.html", "pinned": False, "tags": ["speculative-decoding", "leaderboard"],
        }  # fmt: skip
        licence = {} if self.licence is None else {"license": self.licence}
        return f"---\n{dumped(front | licence)}---\n\n# {escaped_markdown(title)}\n\n{escaped_markdown(about)}\n"
