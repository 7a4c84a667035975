"""The tasks of long texts: cnn_dm, mlsum and scrolls on rows in their published layouts, and what an answer scores."""

import json
from pathlib import Path
from random import Random

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from specbench.tasks.scoring import make_scorer
from tools.world import WORLDS

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TASKS = ("cnn_dm", "mlsum", "scrolls")
CASES = [(task, subset) for task in TASKS for subset in WORLDS[task].weights()]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(task, subset, data, limit=None):
    return load_examples(load_task(task), subset, data=str(data), use_sample=False, limit=limit).examples


def scrolls_row(number, text, output, question=None):
    return {"id": f"q{number}", "pid": f"q{number}_0", "input": f"{question}\n\n{text}" if question else text,
            "output": output}  # fmt: skip


@pytest.mark.parametrize(("task", "subset"), CASES)
def test_an_oracle_scores_one_and_silence_zero(task, subset, tmp_path):
    rows = [WORLDS[task].draw(subset, True, Random(seed)) for seed in range(12)]
    columns = [{key: value for key, value in row.items() if key[0] != "_"} for row in rows]
    scorer = make_scorer(load_task(task).subset(subset))
    for row, example in zip(rows, load(task, subset, write(tmp_path / f"{subset}.jsonl", columns)), strict=True):
        reference = example.references[0]
        assert example.prompt == WORLDS[task].example(row)[0]
        assert scorer(" " + row["_completion"], reference).values[scorer.names[0]] == pytest.approx(1)
        assert scorer("", reference).values[scorer.names[0]] == 0
        assert scorer(" xyz", reference).values[scorer.names[0]] == 0


def test_the_prompts_of_summaries_are_those_of_the_paper(tmp_path):
    data = write(tmp_path / "cnn_dm.jsonl", [{"article": "A text.", "highlights": "Short.", "id": "x"}])
    (example,) = load("cnn_dm", "default", data)
    assert example.prompt == "Summarize the following article:\nA text.\nSummary:\n"
    assert (example.reference, example.id) == ("Short.", "x")
    data = write(tmp_path / "qasper_summary.jsonl", [scrolls_row(1, "The text.", None, "Why?")])
    (example,) = load("scrolls", "qasper_summary", data)
    assert example.prompt == "Summarize the following text:\nWhy?\n\nThe text.\nSummary:\n"
    assert example.reference is None


def test_a_question_is_asked_behind_its_text(tmp_path):
    rows = [scrolls_row(1, "One.\n\nTwo.", "yes", "Is it?"), scrolls_row(2, "Three.", None, "And?")]
    first, second = load("scrolls", "qasper", write(tmp_path / "qasper.jsonl", rows))
    assert first.prompt == "One.\n\nTwo.\n\nQuestion: Is it?\nAnswer:"
    assert (first.references, second.references) == ((["yes"],), (None,))
    assert first.id == "q1_0"


def test_all_answers_to_the_same_question_are_right(tmp_path):
    rows = [
        scrolls_row(0, "None.", "x", "Who?"), scrolls_row(1, "One.", "yes", "Is it?"),
        scrolls_row(1, "One.", "a red hat", "Is it?") | {"pid": "q1_1"}, scrolls_row(1, "One.", "yes", "Is it?"),
        scrolls_row(2, "Two.", "no", "Is it?"),
    ]  # fmt: skip
    data = write(tmp_path / "qasper.jsonl", rows)
    examples = load("scrolls", "qasper", data)
    assert [example.reference for example in examples] == [["x"], ["yes", "a red hat"], ["no"]]
    assert [example.id for example in examples] == ["q0_0", "q1_0", "q2_0"]
    assert load("scrolls", "qasper", data, limit=2) == examples[:2]
    scorer = make_scorer(load_task("scrolls").subset("qasper"))
    assert [scorer(text, examples[1].reference).values["f1"] for text in ("red hat", "Yes.", "no")] == [1, 1, 0]


def test_ids_that_do_not_fit_together(tmp_path):
    data = write(tmp_path / "qasper.jsonl", [scrolls_row(1, text, "x", "Why?") for text in ("One.", "Two.")])
    with pytest.raises(ConfigError, match="row 2: column 'id' = 'q1': the row before has the same id but another"):
        load("scrolls", "qasper", data)


def test_an_answer_ends_with_its_line_as_in_lm_eval():
    for subset in ("qasper", "narrative_qa", "quality", "contract_nli"):
        assert load_task("scrolls").subset(subset).generation.where(in_chat=False).stop == ("\n",)
        assert load_task("scrolls").subset(subset).generation.where(in_chat=True).stop == ()  # it may begin with one


def test_the_first_label_of_an_answer_counts():
    scorer = make_scorer(load_task("scrolls").subset("contract_nli"))
    said = {
        "The conclusion is Entailment.": 1, "entailment": 1, "Contradiction, not entailment": 0, "": 0,
        "**Entailment** (not: Contradiction)": 1, "Not mentioned": 0, "Entailments": 0,
    }  # fmt: skip
    assert {text: scorer(text, ["Entailment"]).values["exact_match"] for text in said} == said
    assert scorer("It is not mentioned in the text.", ["Not mentioned"]).values["exact_match"] == 1
    with pytest.raises(ConfigError, match="'Neutral' is none of the labels Entailment, Contradiction, Not mentioned"):
        scorer("", ["Neutral"])


def test_options_stand_behind_the_question(tmp_path):
    row = scrolls_row(1, " (A) red hat\n (B) blue\n (C) green\n (D) black\n\nThe story.\n\nIts end.", "blue", "Which?")
    (example,) = load("scrolls", "quality", write(tmp_path / "quality.jsonl", [row]))
    assert example.prompt.startswith("The story.\n\nIts end.\n\nQuestion: Which?\n(A) red hat\n(B) blue\n")
    assert example.prompt.endswith("(D) black\nAnswer:")
    assert example.reference == {"answer": "B", "A": "red hat", "B": "blue", "C": "green", "D": "black"}
    scorer = make_scorer(load_task("scrolls").subset("quality"))
    right = {answer: scorer(answer, example.reference).values["accuracy"] for answer in ("(B) blue", "Blue.", "(A)")}
    assert right == {"(B) blue": 1, "Blue.": 1, "(A)": 0}


@pytest.mark.parametrize("sign", [" (A) plan (D) or (A)\n (B) blue\n (C) c\n (D) d", " (A) a (B) blue (C) c (D) d"])
def test_options_that_name_others_and_options_in_a_line(sign, tmp_path):
    row = scrolls_row(1, f"{sign}\n\nThe story.", "blue", "Which?")
    (example,) = load("scrolls", "quality", write(tmp_path / "quality.jsonl", [row]))
    assert example.reference == {
        "answer": "B",
        "A": sign[5:].split("\n")[0].split(" (B)")[0],
        "B": "blue",
        "C": "c",
        "D": "d",
    }
    assert example.prompt.startswith("The story.\n\nQuestion: Which?\n(A) ")


@pytest.mark.parametrize(
    ("subset", "row", "message"),
    [
        ("qasper", scrolls_row(1, "No question.", "x"), "empty line"),
        ("qasper", {"question": "Why?", "answer": "x"}, "SCROLLS rows have id, pid, input and output"),
        ("quality", scrolls_row(1, "(A) a\n(B) b\n\nText.", "a", "Which?"), "2 answers"),
        ("quality", scrolls_row(1, "(A) a\n(B) b\n(C) c\n(D) d\n\nText.", "e", "Which?"), "'e' is none of the four"),
        ("quality", scrolls_row(1, "(A) a\n(B) a\n(C) c\n(D) d\n\nText.", "a", "Which?"), "'a' is 2 of the four"),
    ],
)
def test_a_row_of_another_layout_is_named(subset, row, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as error:
        load("scrolls", subset, write(tmp_path / f"{subset}.jsonl", [row]))
    assert "row 1" in str(error.value) and "\n" not in str(error.value)


def test_a_meeting_makes_a_row_of_each_query(tmp_path):
    meeting = {
        "meeting_transcripts": [{"speaker": "A", "content": "Hello ."}, {"speaker": "B", "content": "Yes ."}],
        "general_query_list": [{"query": "Summarize.", "answer": "They met."}],
        "specific_query_list": [{"query": "What did B say?", "answer": "Yes."}],
    }
    first, second = load("scrolls", "qmsum", write(tmp_path / "qmsum.jsonl", [meeting]))
    assert first.prompt == "A: Hello .\nB: Yes .\n\nQuestion: Summarize.\nAnswer:"
    assert (first.reference, second.reference) == (["They met."], ["Yes."])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_real_rows():
    assert len(load("cnn_dm", "default", SHARED / "cnn_dailymail")) == 60
    queries = load("scrolls", "qmsum", SHARED / "qmsum" / "val_head10.jsonl")
    assert len(queries) == 73 and all(example.reference for example in queries)
