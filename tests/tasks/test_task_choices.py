"""CommonsenseQA and MMLU: the layouts they come in, their few-shot examples, and answers right and wrong."""

import csv
import json
import random
from pathlib import Path

import datasets
import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.decoding.loop import text_before_stop
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tools.world import WORLDS
from tools.world import choices as world_choices

TASKS = {name: load_task(name) for name in ("csqa", "mmlu")}
CASES = [("csqa", "default"), *(("mmlu", subject) for subject in WORLDS["mmlu"].weights())]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
HEADING = "The following are multiple choice questions (with answers) about anatomy.\n\n"
QUESTIONS = [{"question": f' Which is "{n}", of these? ', "subject": "anatomy", "choices": [f"{n}, or", "b", "c", "d"],
              "answer": n % 4} for n in range(9)]  # fmt: skip


def load(task, subset, path, **options):
    return load_examples(TASKS[task], subset, data=str(path), use_sample=False, limit=None, **options).examples


def accuracy(task, text, reference):
    scorer = TASKS[task].scorer
    return SCORERS.get(scorer.type)(**scorer.options)(text, reference).values["accuracy"]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_mmlu(folder, layout):
    """Five questions as the dev split and four as the test split, in one of the published layouts."""
    for split, rows in (("dev", QUESTIONS[:5]), ("test", QUESTIONS[5:])):
        if layout == "hub":
            path = folder / "anatomy" / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows).to_parquet(path)
            continue
        path = folder / (split if layout == "original" else "") / f"anatomy_{split}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            if layout == "header":
                table.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            for row in rows:
                answer = "ABCD"[row["answer"]] if layout == "original" else row["answer"]
                table.writerow([row["question"], *row["choices"], answer])
    return folder


@pytest.mark.parametrize("layout", ["hub", "header", "original"])
def test_the_layouts_of_mmlu_ask_the_same(tmp_path, layout):
    examples = load("mmlu", "anatomy", write_mmlu(tmp_path, layout))
    assert [example.reference for example in examples] == ["B", "C", "D", "A"]
    prompt = examples[0].prompt
    assert prompt.startswith(HEADING + 'Which is "0", of these?\nA. 0, or\nB. b\nC. c\nD. d\nAnswer: A\n\nWhich is "1"')
    assert prompt.endswith('Answer: A\n\nWhich is "5", of these?\nA. 5, or\nB. b\nC. c\nD. d\nAnswer:')
    assert all(example.prompt.count(HEADING) == 1 for example in examples)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"answer": 4}, "column 'answer' = 4: must be a letter A to D or a number 0 to 3: correct the row"),
        ({"answer": "E"}, "column 'answer' = 'E': must be"),
        ({"choices": ["a", "b"]}, "column 'choices' holds 2 choices, not 4: correct the row"),
    ],
)
def test_rows_of_mmlu_that_do_not_fit(tmp_path, change, expected):
    folder = write_mmlu(tmp_path, "header")
    (folder / "anatomy_test.csv").unlink()
    write_rows(folder / "anatomy_test.jsonl", [QUESTIONS[5] | change])
    with pytest.raises(ConfigError) as caught:
        load("mmlu", "anatomy", folder)
    assert expected in str(caught.value)
    assert "anatomy_test.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mmlu_needs_its_dev_split(tmp_path):
    (write_mmlu(tmp_path, "header") / "anatomy_dev.csv").unlink()
    with pytest.raises(ConfigError, match="anatomy_dev"):
        load("mmlu", "anatomy", tmp_path)


def test_a_test_question_among_the_dev_questions_is_refused(tmp_path):
    folder = write_mmlu(tmp_path, "header")
    (folder / "anatomy_test.csv").write_bytes((folder / "anatomy_dev.csv").read_bytes())
    with pytest.raises(ConfigError, match="few-shot"):
        load("mmlu", "anatomy", folder)


def test_the_subjects_of_mmlu():
    task = TASKS["mmlu"]
    assert len(task.subset_names) == 57
    assert all(task.subset(name).vars["subject"] == name.replace("_", " ") for name in task.subset_names)
    assert {name for name in task.subset_names if task.subset(name).sample} == set(WORLDS["mmlu"].weights())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_real_mmlu():
    examples = load("mmlu", "anatomy", SHARED / "mmlu")
    assert len(examples) == 135
    assert examples[0].prompt.startswith(HEADING + "What is the embryological origin of the hyoid bone?\nA. The first")
    assert examples[0].prompt.count("\nAnswer:") == 6
    assert [example.reference for example in examples[:3]] == ["A", "B", "A"]


def nested(row):
    """The row in the layout of the first release."""
    options = [{"label": a, "text": b} for a, b in zip(row["choices"]["label"], row["choices"]["text"], strict=True)]
    question = {"stem": row["question"], "question_concept": row["question_concept"], "choices": options}
    return {"answerKey": row["answerKey"], "id": "x", "question": question}


def csqa_rows(number=6):
    generator = random.Random(1)
    drawn = [world_choices.csqa_draw("default", True, generator) for _ in range(number)]
    return [{key: value for key, value in row.items() if key[0] != "_"} for row in drawn]


def test_both_layouts_of_csqa_ask_the_same(tmp_path):
    rows = csqa_rows()
    write_rows(tmp_path / "flat" / "validation.jsonl", rows)
    write_rows(tmp_path / "nested" / "dev_rand_split.jsonl", map(nested, rows))
    (tmp_path / "hub" / "data").mkdir(parents=True)
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet")
    flat, other, hub = (load("csqa", "default", tmp_path / name) for name in ("flat", "nested", "hub"))
    assert [e.prompt for e in flat] == [e.prompt for e in other] == [e.prompt for e in hub]
    assert [e.reference for e in flat] == [e.reference for e in other] == [row["answerKey"] for row in rows]


def test_csqa_shows_five_reasoned_answers_of_our_own():
    fewshot = TASKS["csqa"].fewshot
    assert len(fewshot.rows) == fewshot.num_shots == 5
    assert sorted(row["answerKey"] for row in fewshot.rows) == list("ABCDE")
    for row in fewshot.rows:
        right = row["choices"]["text"]["ABCDE".index(row["answerKey"])]
        assert right in row["why"].lower()
        assert len(set(row["choices"]["text"])) == 5


def test_the_test_split_of_csqa_has_no_references(tmp_path):
    write_rows(tmp_path / "csqa.jsonl", [csqa_rows(1)[0] | {"answerKey": ""}])
    assert [example.reference for example in load("csqa", "default", tmp_path)] == [None]


def test_an_answer_that_is_no_option_is_refused(tmp_path):
    row = csqa_rows(1)[0] | {"choices": {"label": ["A", "B"], "text": ["sea", "sky"]}, "answerKey": "C"}
    for number, given in enumerate((row, nested(row))):
        write_rows(tmp_path / f"{number}.jsonl", [given])
        with pytest.raises(ConfigError, match=r"row 1: column 'answerKey' = 'C' is none of the labels A, B"):
            load("csqa", "default", tmp_path / f"{number}.jsonl")


def answered(task, subset, text, in_chat):
    """What is left of an answer at the stop strings, as a run cuts it."""
    return text_before_stop(text, TASKS[task].subset(subset).generation.where(in_chat).stop)


@pytest.mark.parametrize(("task", "subset"), [("csqa", "default"), ("mmlu", "anatomy")])
@pytest.mark.parametrize("text", ["\n\nB", "The correct answer is:\n\nB", "B"])
def test_an_answer_in_paragraphs_is_not_cut_in_chat(task, subset, text):
    assert answered(task, subset, text, in_chat=True) == text
    assert accuracy(task, answered(task, subset, text, in_chat=True), "B") == 1


def test_a_reason_and_an_answer_in_two_paragraphs():
    text = " You see it there.\n\nTherefore, the answer is A."
    assert answered("csqa", "default", text + "\n\nQuestion: And B?\nAnswer: B", in_chat=False) == text + "\n\n"
    assert answered("mmlu", "anatomy", " A\n\nWhich?\nAnswer: B", in_chat=False) == " A"


def test_a_shown_question_is_refused(tmp_path):
    shown = TASKS["csqa"].fewshot.rows[2]
    write_rows(tmp_path / "csqa.jsonl", [*csqa_rows(1), {"id": "x", **shown}])
    with pytest.raises(ConfigError, match=r"csqa\.jsonl, row 2: the row is one of the few-shot examples"):
        load("csqa", "default", tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_real_csqa():
    examples = load("csqa", "default", SHARED / "commonsense_qa")
    assert len(examples) == 200
    assert len({example.id for example in examples}) == 200
    assert [example.reference for example in examples[:3]] == ["A", "A", "B"]
    asked = "as a security measure at a what?\nChoices: A) bank, B) library, C) department store, D) mall, E) new york"
    assert examples[0].prompt.endswith(asked + "\nAnswer:")


@pytest.mark.parametrize(("task", "subset"), CASES)
def test_the_world_s_answers_are_right_and_others_are_not(task, subset):
    world, generator = WORLDS[task], random.Random(2)
    for _ in range(20):
        row = world.draw(subset, True, generator)
        right = row["answerKey"] if task == "csqa" else "ABCD"[row["answer"]]
        wrong = "B" if right == "A" else "A"
        _, completion = world.example(row)
        assert accuracy(task, completion, right) == 1
        assert accuracy(task, completion, wrong) == 0
        assert accuracy(task, "", right) == 0
