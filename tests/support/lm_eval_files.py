"""Small tasks of lm-eval on rows of our own, as YAML and JSONL in a folder."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from lm_eval.tasks._index import Entry, TaskIndex

UPSTREAM = Path(lm_eval.tasks.__file__).parent
SUMS = [(2, 3), (4, 5), (6, 1), (7, 2), (3, 3), (8, 1)]
ROWS = [{"question": f"What is {a} plus {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"} for a, b in SUMS]


build_index = TaskIndex.build


@cache
def upstream_entries() -> dict[str, Entry]:
    """Two folders of lm-eval's own tasks: to read all 14,000 files takes half a minute."""
    return build_index([UPSTREAM / "arc", UPSTREAM / "gsm8k"])


def build_with_some_of_upstream(paths: Iterable[Path]) -> dict[str, Entry]:
    """lm-eval's `TaskIndex.build`."""
    index: dict[str, Entry] = {}
    for path in paths:
        index |= upstream_entries() if path == UPSTREAM else build_index([path])
    return index


def use_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Data sets are cached in a folder of the test, nothing is looked for on the hub, and of lm-eval's own
    tasks there are a few."""
    monkeypatch.setattr(TaskIndex, "build", staticmethod(build_with_some_of_upstream))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)  # asks pip, git and compilers
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("LMEVAL_LOG_LEVEL", "ERROR")


def write_task(folder: Path, name: str, rows: Sequence[dict[str, Any]] = ROWS, **keys: Any) -> Path:
    """A task on `rows`: "Question: …\nAnswer:", judged by exact match of the whole answer unless `keys` say else."""
    folder.mkdir(exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    config = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["Question:"], "do_sample": False, "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 2.0},
        **keys,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not ...}), "utf-8")
    return path


def write_upstream(folder: Path, name: str, upstream: str, data: Path, **keys: Any) -> Path:
    """A task of lm-eval's own, with its prompts and filters, on local rows."""
    folder.mkdir(exist_ok=True)
    config = {
        "include": str(UPSTREAM / upstream),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "training_split": None,
        **keys,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path
