"""The prompts of the trainings and the rows that are measured: the halves of two public sets."""

import json
import random
from pathlib import Path
from typing import Any

from specbench.core.files import write_atomically
from specbench.core.values import json_digest
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tools.commands import ROOT
from tools.drafters.workplace import Workplace

# Prompts of Spec-Bench's summarization and rag have a thousand tokens, which a CPU reads too slowly to train on.
SUBSETS = {"gsm8k": (), "spec_bench": ("mt_bench", "translation", "qa", "math_reasoning")}
TEXTS = "data/train.jsonl"  # in the work folder
COLUMN = "prompt"


def split_rows(place: Workplace, data: Path | None) -> int:
    """Writes the prompts of the even rows to TEXTS in random order, and the odd rows to one file a task for the runs.
    Returns the number of prompts."""
    prompts: list[str] = []
    measured: list[str] = []
    for name, subsets in SUBSETS.items():
        rows = read_rows(name, data)
        for half, start in (("train", 0), ("measured", 1)):
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[start::2])
            (place.path("data") / half).mkdir(parents=True, exist_ok=True)
            write_atomically(place.path("data", half, f"{name}.jsonl"), lines)
        measured += [json.dumps(row) for row in rows[1::2]]
        task, file = load_task(name), str(place.path("data", "train", f"{name}.jsonl"))
        for subset in subsets or task.subset_names:
            found = load_examples(task, subset, data=file, use_sample=False, limit=None, num_subsets=len(subsets) or 1)
            prompts += [example.prompt for example in found.examples]
    prompts = [text for text in dict.fromkeys(prompts) if not is_measured(text, measured)]
    random.Random(0).shuffle(prompts)
    write_atomically(place.path(TEXTS), "".join(json.dumps({COLUMN: text}) + "\n" for text in prompts))
    return len(prompts)


def read_rows(task: str, data: Path | None) -> list[dict[str, Any]]:
    """Returns the rows of a folder of the data, or the bundled ones."""
    file = ROOT / "tasks" / "samples" / f"{task}.jsonl"
    if data is not None:
        files = sorted((data / task).glob("*.jsonl"))
        if not files:
            raise SystemExit(f"--data {data}: has no {task}/*.jsonl: give a folder that has it, or leave --data out")
        file = files[0]
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def is_measured(prompt: str, measured: list[str]) -> bool:
    """Returns whether a prompt, or its question, is in a measured row: Spec-Bench has questions of GSM8K."""
    questions = {prompt, prompt.removeprefix("Q: ").removesuffix("\nA: Let's think step by step.")}
    escaped = [json.dumps(question)[1:-1] for question in questions]
    return any(text in row for row in measured for text in escaped)


def digest_of(place: Workplace) -> str:
    """Returns a digest of the prompts and of the measured rows."""
    files = sorted(place.path("data").rglob("*.jsonl"))
    return json_digest([file.read_text(encoding="utf-8") for file in files])
