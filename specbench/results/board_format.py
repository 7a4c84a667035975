"""The format of a leaderboard file: its number, and the digest by which a row is known."""

import hashlib
import json
from typing import Any, Final

FORMAT: Final = 1
DIGEST: Final = "digest"


def digest_of(row: dict[str, Any]) -> str:
    """Returns 16 hex digits of SHA-256 over all that a row says, whatever the order of its keys.

    The digest shows that a row was edited or half merged by mistake. It does not show a forged row: whoever edits a row
    can compute the digest again. `specbench leaderboard validate --records` compares a row with its run.
    """
    content = {name: value for name, value in row.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sealed(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row as it is written: with its digest."""
    return {**row, DIGEST: digest_of(row)}
