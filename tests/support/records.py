"""Records and generations for tests, with defaults for all that a test does not name."""

from typing import Any

from specbench.records.generation import Generation, Record, convert


def generation(**fields: Any) -> Generation:
    """A generation. Its counts are those of an answer of AR with the given `token_ids`, or of the given `steps`."""
    if "steps" not in fields:
        fields["steps"] = [[0, 0, 0, 1]] * (len(fields.get("token_ids", "ab")) - 1)
    made: dict[str, Any] = {
        "token_ids": [0] * (1 + sum(step[3] for step in fields["steps"])), "finish": "eos", "text": "",
        "positions": {}, "passes": {"target": [], "draft": []}, "ttft_seconds": 0.0, "draft_prefill_seconds": 0.0,
        "decode_seconds": 0.0, "score": None,
    }  # fmt: skip
    return convert(made | fields, Generation)


def record(methods: dict[str, Generation], **fields: Any) -> Record:
    """A record of example 0 of task t, subset en."""
    made: dict[str, Any] = {
        "task": "t", "subset": "en", "example": 0, "id": "0", "repeat": 0, "order": list(methods), "prompt": "d",
        "prompt_tokens": 3, "reference": None,
    }  # fmt: skip
    return convert(made | fields | {"methods": methods}, Record)
