"""The format of a leaderboard file: its number, what each number changed, and the digest by which a row is known."""

import hashlib
import json
from typing import Any, Final

FORMAT: Final = 4
HISTORY = {
    1: "rows with one score, accuracy",
    2: "several scores by their names; `quality` names the one that stands for the row, `signatures` how they are made",
    3: "every row has a `digest` of its content, and may say in `run` where its records are",
    4: "`engine`, `shots`, `warnings`, `accepted_lengths` and the metrics `ar_drift`, `rule_seconds`, "
    "`tokenizer_seconds`, `other_seconds`; of older rows only the engine is known, which was always eager",
}
DIGEST, FIRST_WITH_DIGESTS = "digest", 3


def upgraded(row: dict[str, Any], version: int) -> dict[str, Any]:
    """A row of a file of an older format as it would be written now. What is broken is left to the one who reads it."""
    if version == 1:
        row = _from_format_1(row)
    return {"engine": "eager", **row, "format": FORMAT} if row.get("format") in (2, 3) else row


def digest_of(row: dict[str, Any]) -> str:
    """16 hex digits of SHA-256 over all that a row says, whatever the order of its keys.

    It tells a row that was edited or half merged by mistake. It does not tell a forged one: who edits a row can compute
    it again. What only the records can tell, `specbench leaderboard validate --records` asks them.
    """
    content = {name: value for name, value in row.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sealed(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it is written: with its digest."""
    return {**row, DIGEST: digest_of(row)}


def _from_format_1(row: dict[str, Any]) -> dict[str, Any]:
    """Accuracy was the only score, and had no value where nothing was scored."""
    if row.get("format") != 1 or not isinstance(row.get("metrics"), dict):
        return row
    accuracy = row["metrics"].get("accuracy")
    if isinstance(accuracy, dict) and accuracy.get("value") is not None:
        return {**row, "format": 2, "quality": "accuracy"}
    names = {"accuracy", "accuracy_ar", "accuracy_difference"}
    metrics = {name: metric for name, metric in row["metrics"].items() if name not in names}
    return {**row, "format": 2, "metrics": metrics}
