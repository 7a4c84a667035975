"""Records and generations for tests, with defaults for all that a test does not name."""

from collections.abc import Sequence
from typing import Any, TypeVar

from specbench.records.generation import Generation, Record, Stored, convert

Part = TypeVar("Part", bound=Stored)


def generation(
    steps: Sequence[Sequence[int]] | None = None, *, target: Sequence[tuple[int, float]] = (),
    draft: Sequence[tuple[int, float]] = (), overlap: Sequence[float] | None = None,
    divergence: Sequence[float] | None = None, **fields: Any,
) -> Generation:  # fmt: skip
    """A generation. Its counts are those of the given `steps`, or of an answer of AR with the given `token_ids`.
    `target`, `draft`: the passes. `overlap`, `divergence`: of its positions. `fields`: any others."""
    if steps is None:
        steps = [[0, 0, 0, 1]] * (len(fields.get("token_ids", "ab")) - 1)
    made: dict[str, Any] = {
        "token_ids": list(range(1 + sum(step[3] for step in steps))), "finish": "eos", "steps": steps, "text": "",
        "positions": {"target_prob": None, "draft_prob": None, "overlap": overlap, "divergence": divergence},
        "passes": {"target": target, "draft": draft}, "ttft_seconds": 0.5, "draft_prefill_seconds": 0.0,
        "decode_seconds": 1.0, "score": None,
    }  # fmt: skip
    return convert(made | fields, Generation)


def autoregressive(num_new_tokens: int, **fields: Any) -> Generation:
    """A generation of AR."""
    return generation([[0, 0, 0, 1]] * (num_new_tokens - 1), **fields)


def record(methods: dict[str, Generation], **fields: Any) -> Record:
    """A record of example 0 of task t, subset en."""
    made: dict[str, Any] = {
        "task": "t", "subset": "en", "example": 0, "id": "0", "repeat": 0, "order": list(methods), "prompt": "d",
        "prompt_tokens": 3, "reference": None,
    }  # fmt: skip
    return convert(made | fields | {"methods": methods}, Record)


def compared(example: int, ar: Generation, own: Generation | None = None, **fields: Any) -> Record:
    """A record of AR, and of the method m if it is given."""
    methods = {"ar": ar} if own is None else {"ar": ar, "m": own}
    return record(methods, example=example, id=str(example), **fields)


def changed(part: Part, /, **fields: Any) -> Part:
    """The same with other fields; None removes a field."""
    return convert(part.as_json() | fields, type(part))


def whole(**changes: Any) -> dict[str, Any]:
    """A whole record as it stands in a file, as plain values. `changes`: fields of its method sd."""
    part = {
        "token_ids": [1, 2, 3], "text": "x", "finish": "eos", "steps": [[3, 2, 1, 2]],
        "positions": {"overlap": [0.5, 1], "divergence": [0.5, 1.5], "target_prob": None},
        "passes": {"target": [[4, 0.5]], "draft": [[1, 0.1]]},
        "ttft_seconds": 1, "draft_prefill_seconds": 0.0, "decode_seconds": 0.6, "score": None, **changes,
    }  # fmt: skip
    return {
        "task": "t", "subset": "en", "example": 0, "id": "0", "repeat": 0, "process": "p", "order": ["sd"],
        "prompt": "d", "prompt_tokens": 3, "reference": None, "methods": {"sd": part},
    }  # fmt: skip
