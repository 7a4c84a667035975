"""HumanEval: its layouts, its prompts and programs, and answers right and wrong, which are run."""

import gzip
import json
import random
from pathlib import Path

import datasets
import pytest

from specbench.catalogue import load_task
from specbench.data.examples import load_examples
from specbench.demo.world import code
from specbench.registry import SCORERS
from specbench.sandbox import permission

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "humaneval"


def load(path, subset="default", limit=None):
    return load_examples(load_task("humaneval"), subset, data=str(path), use_sample=False, limit=limit).examples


def world_rows(number=4):
    generator = random.Random(1)
    drawn = [code.draw("default", True, generator) for _ in range(number)]
    return [{key: value for key, value in row.items() if key[0] != "_" and key != "subset"} for row in drawn]


def write(folder, layout, rows):
    path = folder / {"jsonl.gz": "HumanEval", "parquet": "openai_humaneval/test-00000-of-00001"}[layout]
    path = path.with_name(f"{path.name}.{layout}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if layout == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return folder


@pytest.fixture
def allowed():
    permission.allow()
    yield
    permission.allow(False)


def passes(text, reference):
    scorer = load_task("humaneval").subset("default").scorer
    return SCORERS.get(scorer.type)(**scorer.options)(text, reference).values["pass@1"]


@pytest.mark.parametrize("layout", ["jsonl.gz", "parquet"])
def test_the_layouts(tmp_path, layout):
    rows = world_rows()
    examples = load(write(tmp_path, layout, rows))
    assert [example.id for example in examples] == [row["task_id"] for row in rows]
    assert [example.prompt for example in examples] == [row["prompt"] for row in rows]
    for example, row in zip(examples, rows, strict=True):
        called = f"{row['test']}\ncheck({row['entry_point']})"
        assert example.reference == {"prefix": row["prompt"], "test": called, "entry_point": row["entry_point"]}


def test_answers_right_and_wrong(tmp_path, allowed):
    rows = world_rows()
    examples = load(write(tmp_path, "jsonl.gz", rows))
    for row, example in zip(rows, examples, strict=True):
        assert passes(row["canonical_solution"], example.reference) == 1
        assert passes("", example.reference) == 0
    assert passes(rows[1]["canonical_solution"], examples[0].reference) == 0


def test_the_stops_do_not_cut_a_body():
    stops = load_task("humaneval").generation.stop
    assert stops == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    for row in world_rows(60):
        assert not any(stop in row["canonical_solution"] for stop in stops)


def test_the_prompt_of_the_speed_test(tmp_path):
    row = world_rows(1)[0]
    (example,) = load(write(tmp_path, "parquet", [row]), subset="hf_bench")
    expected = f"Tests:\n{row['test']}\nFunction:\n{row['prompt']}\n\nYour code:\n"
    assert example.prompt == "Implement the function so that it passes the tests.\n" + expected
    chosen = load_task("humaneval").subset("hf_bench")
    assert (chosen.scorer, chosen.generation.stop, chosen.generation.max_new_tokens) == (None, (), 512)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_real_problems(allowed):
    examples = load(SHARED)
    with gzip.open(SHARED / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [example.id for example in examples] == [f"HumanEval/{number}" for number in range(164)]
    for index in (0, 32, 163):  # all of them are run where the scorer is tested
        assert passes(rows[index]["canonical_solution"], examples[index].reference) == 1
        assert passes("    return None\n", examples[index].reference) == 0
