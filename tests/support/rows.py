"""Rows of a leaderboard with made-up numbers."""

from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

FIELDS = {
    "task": "mgsm@1:0123456789ab",
    "subset": "ja",
    "language": "ja",
    "method": "fsd@1:ba9876543210",
    "num_draft_tokens": 5,
    "options": {"verification": {"threshold": 0.3}},
    "target": "org/target",
    "target_revision": "f" * 40,
    "drafter": "org/drafter",
    "drafter_revision": None,
    "sampling": {"temperature": 0.0, "top_k": None, "top_p": None},
    "dtype": "float32",
    "device": "Some CPU, 1 thread",
    "attention": "sdpa",
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
    "commit": "abc-dirty",
    "command": "specbench run --task mgsm --method fsd",
    "data_source": "sample",
    "data_location": "tasks/samples/mgsm.jsonl",
    "data_revision": None,
    "chat": False,
    "seed": 0,
    "n": 16,
    "repeats": 1,
    "created": "2026-01-01T00:00:00Z",
    "lossless": False,
    "metrics": {"speedup": Estimate(value=1.5, low=1.25, high=1.75)},
}


def row(**changes):
    return Row(**{**FIELDS, **changes})
