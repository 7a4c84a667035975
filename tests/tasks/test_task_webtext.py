"""Continuation of web text: where each layout keeps its text, how much of it is the prompt; nothing is scored."""

import json
import random

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tools.world import WORLDS
from tools.world import sentences as world_sentences


def load(subset, tmp_path, rows, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = load_examples(load_task("webtext"), subset, data=str(path), use_sample=False, limit=None, **options)
    return data.examples


@pytest.mark.parametrize(
    ("subset", "row", "prompt"),
    [
        ("en", {"text": "One two."}, "One two."),
        ("en", {"human": "One\n two.", "bot": "Three."}, "One two. Three."),
        ("en", {"human": "", "bot": "Three."}, "Three."),
        ("en", {"text": " ".join(map(str, range(90)))}, " ".join(map(str, range(24)))),
        ("ja", {"instruction": "タイトル", "input": "本文。", "output": "題"}, "本文。"),
        ("ja", {"text": "\n" + "あいうえお" * 20}, "あいうえお" * 8),
    ],
)
def test_layouts_and_length_of_the_prompt(subset, row, prompt, tmp_path):
    (example,) = load(subset, tmp_path, [row])
    assert example.prompt == prompt and example.reference is None


def test_rows_without_text_are_left_out(tmp_path):
    rows = [{"human": None, "bot": " "}, {"text": ""}, {"text": None}, {"input": "Three."}]
    assert [example.prompt for example in load("en", tmp_path, rows)] == ["Three."]


def test_a_row_without_the_column_is_told_of(tmp_path):
    with pytest.raises(ConfigError, match=r"rows.jsonl, row 1: no column 'text'"):
        load("en", tmp_path, [{"content": "One."}])


def test_no_score_is_asked_for():
    task = load_task("webtext")
    assert task.scorer is None and task.reference is None
    assert [task.subset(name).language for name in task.subset_names] == list(WORLDS["webtext"].weights())


@pytest.mark.parametrize("subset", list(WORLDS["webtext"].weights()))
def test_the_world_s_texts_are_longer_than_their_prompts(subset, tmp_path):
    generator = random.Random(1)
    rows = [world_sentences.webtext_draw(subset, True, generator) for _ in range(50)]
    examples = load(subset, tmp_path, [{k: v for k, v in row.items() if k[0] != "_"} for row in rows])
    for row, example in zip(rows, examples, strict=True):
        prompt, completion = world_sentences.webtext_example(row)
        assert prompt == example.prompt and prompt + completion == row["text"]
        assert completion.strip() == row["_completion"] and len(row["_completion"]) > 10
