"""A record: one line of a run's records.jsonl as plain values. `running.records` checks and stores them."""

from typing import Any

Record = dict[str, Any]
Generation = dict[str, Any]
Key = tuple[str, str, int, int, int]  # task, subset, example, repeat, turn


def record_key(record: Record) -> Key:
    """Returns the key of a record: (task, subset, example, repeat, turn)."""
    return record["task"], record["subset"], record["example"], record["repeat"], record.get("turn", 0)
