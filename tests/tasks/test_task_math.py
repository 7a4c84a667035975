"""Word problems under the prompts of GSM8K, mCoT and MSVAMP: layouts, references, and answers right and wrong."""

import json
import random
from functools import cache
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.decoding.loop import text_before_stop
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tools.world import WORLDS
from tools.world import math as world_math

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TASKS = ("gsm8k", "mcot", "msvamp")
SUBSETS = [(task, subset) for task in TASKS for subset in load_task(task).subset_names]
GSM8K = [
    {"question": "How much is a house?", "answer": "2*35,000=<<2*35000=70000>>70,000\n#### 70,000"},
    {"question": "How cold is it?", "answer": "3-8=-5\n#### -5"},
    {"question": "And with no work shown?", "answer": "12"},
]


def load(task, subset, path, limit=None, **options):
    return load_examples(load_task(task), subset, data=str(path), use_sample=False, limit=limit, **options).examples


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def accuracy(task, text, reference):
    return scorer_of(task)(text, reference).values["accuracy"]


@cache
def scorer_of(task):
    scorer = load_task(task).scorer
    return SCORERS.get(scorer.type)(**scorer.options)


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_the_world_s_answers_are_right_and_others_are_not(task, subset, tmp_path):
    generator = random.Random(1)
    rows = [world_math.sums_draw(task, subset, True, generator) for _ in range(12)]
    path = write(tmp_path / "rows.jsonl", [{k: v for k, v in row.items() if k[0] != "_"} for row in rows])
    for row, example in zip(rows, load(task, subset, path), strict=True):
        prompt, completion = WORLDS[task].example(row)
        assert prompt == example.prompt
        assert accuracy(task, completion, example.reference) == 1
        assert accuracy(task, "", example.reference) == 0
        assert accuracy(task, completion, "987654") == 0


def test_the_languages_of_the_tasks():
    assert set(load_task("mcot").subset_names) == set(world_math.sums_weights("mcot"))
    assert set(load_task("msvamp").subset_names) == set(world_math.sums_weights("msvamp"))
    assert set(load_task("mcot").subset_names) - set(load_task("msvamp").subset_names) == {"te"}
    assert all(load_task(task).subset(subset).language for task, subset in SUBSETS)


@pytest.mark.parametrize("task", TASKS)
def test_no_question_is_both_trained_on_and_held_out(task):
    subset = next(iter(world_math.sums_weights(task)))
    generator = random.Random(2)
    keys = [{world_math.sums_draw(task, subset, held, generator)["_key"] for _ in range(300)} for held in (True, False)]
    assert not keys[0] & keys[1]
    assert len(keys[0]) > 100


@pytest.mark.parametrize("layout", ["jsonl", "parquet"])
def test_gsm8k_asks_for_what_follows_the_marks(tmp_path, layout):
    path = tmp_path / "main" / f"test-00000-of-00001.{layout}"
    write(path, GSM8K)
    if layout == "parquet":
        import datasets

        datasets.Dataset.from_list(GSM8K).to_parquet(path)
    examples = load("gsm8k", "default", tmp_path)
    assert [example.reference for example in examples] == ["70,000", "-5", "12"]
    assert examples[0].prompt == "Q: How much is a house?\nA: Let's think step by step."
    assert accuracy("gsm8k", "It costs $70000.", examples[0].reference) == 1
    assert accuracy("gsm8k", "It costs $35,000.", examples[0].reference) == 0


def test_gsm8k_without_an_answer_has_no_reference(tmp_path):
    write(tmp_path / "gsm8k.jsonl", [{"question": "How much?", "answer": None}, GSM8K[0]])
    assert [example.reference for example in load("gsm8k", "default", tmp_path)] == [None, "70,000"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_real_gsm8k():
    examples = load("gsm8k", "default", SHARED / "gsm8k")
    assert len(examples) == 300
    assert [example.reference for example in examples[:4]] == ["18", "3", "70000", "540"]
    assert sum("," in example.reference for example in examples) == 4
    assert all(accuracy("gsm8k", "#### " + example.reference, example.reference) == 1 for example in examples)


def test_mcot_takes_its_language_out_of_one_stream(tmp_path):
    names = ["en", "German", "en", "de", "sw"]
    rows = [{"question": f"{n}?", "answer": f"It is {n}.", "lang-id": name} for n, name in enumerate(names)]
    path = write(tmp_path / "lang-id" / "mcot-math.jsonl", rows)
    for data in (tmp_path, path):
        assert [example.reference for example in load("mcot", "en", data)] == ["It is 0.", "It is 2."]
        assert [example.reference for example in load("mcot", "de", data)] == ["It is 1.", "It is 3."]
    with pytest.raises(ConfigError, match="no rows are left of subset 'ja'"):
        load("mcot", "ja", tmp_path)


def test_mcot_takes_the_question_out_of_its_prompt(tmp_path):
    bare = {"question": "Answer:\nwhat?", "answer": 18.0}
    asked = {"question": "Question:\nAnswer:\nwhat?\nAnswer:\nDenken wir Schritt für Schritt.\n", "answer": 18.0}
    write(tmp_path / "mcot_outputs_de.jsonl", [bare, asked])
    first, second = load("mcot", "de", tmp_path)
    assert first.prompt == second.prompt == asked["question"]
    assert accuracy("mcot", "Die Antwort ist 18.", first.reference) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize("language", ["de", "en", "ja", "sw"])
def test_the_real_answers_of_mcot(language):
    """Prompts as mCoT's own, and its judgement of its answers."""
    examples = load("mcot", language, SHARED / "mcot")
    with (SHARED / "mcot" / f"mcot_outputs_{language}.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 120
    assert [example.prompt for example in examples] == [row["question"] for row in rows]
    scores = [accuracy("mcot", row["response"], e.reference) for row, e in zip(rows, examples, strict=True)]
    differing = [row for row, score in zip(rows, scores, strict=True) if bool(score) != row["result"]]
    assert len(differing) <= 2, [row["response"][-80:] for row in differing]


def test_the_layouts_of_msvamp(tmp_path):
    write(tmp_path / "hub" / "de" / "test" / "0.jsonl", [{"m_query": "Wie viele?", "response": "8"}])
    (tmp_path / "hub" / "de" / "test" / "0.jsonl").rename(tmp_path / "hub" / "de" / "test.jsonl")
    write(tmp_path / "mcot" / "test_de.jsonl", [{"question": "Wie viele?", "equation": "- a b", "answer": "8.0"}])
    hub, other = (load("msvamp", "de", tmp_path / folder)[0] for folder in ("hub", "mcot"))
    assert hub.prompt == other.prompt
    assert "Please answer in German.\n\n### Instruction:\nWie viele?\n\n### Response:" in hub.prompt
    assert accuracy("msvamp", "Es sind 8.", hub.reference) == accuracy("msvamp", "Es sind 8.", other.reference) == 1


@pytest.mark.parametrize("language", load_task("mgsm").subset_names)
def test_only_the_next_question_ends_an_answer_of_mgsm(language):
    task = load_task("mgsm").subset(language)
    assert task.generation.stop == (task.vars["question_word"],)
    worked = " 2 + 3 = 5.\n\n5 + 1 = 6."
    assert text_before_stop(f"{worked}\n\n{task.vars['question_word']} 7?", task.generation.stop) == worked + "\n\n"


def test_a_header_under_other_names_is_no_row_of_mgsm(tmp_path):
    rows = "How many?\t1,080\nAnd?\t \n"
    for header in ("", "question\tanswer_number\n"):
        (tmp_path / "mgsm_en.tsv").write_text(header + rows, encoding="utf-8")
        assert [example.reference for example in load("mgsm", "en", tmp_path)] == ["1,080", None]
    (tmp_path / "mgsm_en.tsv").write_text("text\tanswer\n" + rows, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"row 1: column 'answer_number' = 'answer' holds no number: .*header"):
        load("mgsm", "en", tmp_path)
