"""HumanEval: its layouts, its prompts and programs, and answers right and wrong, which are run."""

import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from specbench.core.registry import SCORERS
from specbench.decoding.loop import text_before_stop
from specbench.running.plan import with_prompt_stops
from specbench.specs.catalogue import digest, load_task, with_overrides
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from specbench.tasks.sandbox import run as permission
from tools.world import code as world_code

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "humaneval"


def load(path, subset="default", limit=None):
    return load_examples(load_task("humaneval"), subset, data=str(path), use_sample=False, limit=limit).examples


def world_rows(number=4):
    generator = random.Random(1)
    drawn = [world_code.humaneval_draw("default", True, generator) for _ in range(number)]
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


def test_a_fenced_answer_in_chat_is_run_whole(tmp_path, allowed):
    """As models with a chat template answer: the stops of a continuation would leave nothing of it."""
    generation = load_task("humaneval").subset("default").generation
    (row,) = world_rows(1)
    (example,) = load(write(tmp_path, "jsonl.gz", [row]))
    whole = row["prompt"] + row["canonical_solution"]
    text = f"Here is the function:\n\n```python\n{whole}```\n\n# How it works\nIt does."
    assert passes(text_before_stop(text, generation.where(in_chat=True).stop), example.reference) == 1
    assert passes(text_before_stop(text, generation.where(in_chat=False).stop), example.reference) == 0
    continued = row["canonical_solution"] + "\ndef other():\n    return missing\n\nprint(other())\n"
    assert passes(text_before_stop(continued, generation.where(in_chat=False).stop), example.reference) == 1


@pytest.mark.parametrize(
    ("template", "chat", "in_chat"), [(None, "auto", False), ("x", "auto", True), ("x", "never", False)]
)
def test_a_run_takes_the_stops_of_its_prompts(template, chat, in_chat):
    task = load_task("humaneval").subset("default")
    model = SimpleNamespace(name="tiny", chat_template=SimpleNamespace(exists=template is not None))
    assert with_prompt_stops(task, model, chat).generation.stop == (() if in_chat else task.generation.stop)


@pytest.mark.parametrize(("name", "subset"), [("humaneval", "default"), ("scrolls", "quality")])
def test_stops_that_are_set_hold_in_chat_too(name, subset):
    pairs = ['generation.stop=["x"]', 'generation.chat_stop=["y"]']
    for given, expected in ((pairs[:1], "x"), (pairs, "y"), (pairs[::-1], "y")):
        (task,), _ = with_overrides([load_task(name)], [], given)
        assert task.subset(subset).generation.where(in_chat=True).stop == (expected,)
        assert task.subset(subset).generation.where(in_chat=False).stop == ("x",)


def test_no_stops_in_chat_are_not_the_same_as_the_usual_ones():
    task = load_task("humaneval")
    same = build(TaskSpec, task.model_dump() | {"generation": task.generation.model_dump() | {"chat_stop": None}})
    assert digest(task) != digest(same)


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
