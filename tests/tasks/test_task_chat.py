"""Conversations: spec_bench, mt_bench and multilingual_spec_bench as published, and what an answer scores."""

import json
from pathlib import Path
from random import Random

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from specbench.tasks.readers import SPEED_CATEGORIES
from specbench.tasks.scoring import make_scorer
from tools.world import WORLDS, chat

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
GROUPS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
PAIRS = ("deen", "fren", "ruen", "jaen", "zhen")
SCORED = [group for group in GROUPS if group != "mt_bench"]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(task, subset, data, num_subsets=1):
    return load_examples(
        load_task(task), subset, data=str(data), use_sample=False, limit=None, num_subsets=num_subsets
    ).examples


def published(path):
    """A row of each group as question.jsonl has them, and a conversation without and one with half a reference."""
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
        {"question_id": 131, "category": "extraction", "turns": ["Rate.", "Again."], "reference": ["[5]", ""]},
        {"question_id": 161, "category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello there"]},
        {"question_id": 241, "category": "summarization", "turns": ["Summarize: x"], "reference": ["y"]},
        {"question_id": 321, "category": "qa", "turns": ["Who?"]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["How many?"],
         "reference": ["2*500=<<2*500=1000>>1000.\n#### 1,000"]},
        {"question_id": 481, "category": "rag", "turns": ["Text\nWhich?"], "reference": [["one", "two"]]},
    ]  # fmt: skip
    return write(path / "question.jsonl", rows)


def test_each_group_takes_its_rows_out_of_one_file(tmp_path):
    data = published(tmp_path)
    found = {group: load("spec_bench", group, data, num_subsets=6) for group in GROUPS}
    assert {group: [example.id for example in examples] for group, examples in found.items()} == {
        "mt_bench": ["81", "131"], "translation": ["161"], "summarization": ["241"], "qa": ["321"],
        "math_reasoning": ["401"], "rag": ["481"],
    }  # fmt: skip
    assert found["mt_bench"][0].turns == ("Write.", "Rewrite.")


def test_mixed_references(tmp_path):
    data = published(tmp_path)
    found = {group: load("spec_bench", group, data)[-1].references for group in GROUPS}
    assert found == {
        "mt_bench": (["[5]"], None), "translation": (["Hello there"],), "summarization": (["y"],), "qa": (None,),
        "math_reasoning": (["1,000"],), "rag": (["one", "two"],),
    }  # fmt: skip
    scorer = make_scorer(load_task("spec_bench").subset("math_reasoning"))
    assert scorer("So it is 1000.", found["math_reasoning"][0]).values["accuracy"] == 1
    assert scorer("So it is 500.", found["math_reasoning"][0]).values["accuracy"] == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"category": "qa", "turns": ["Who?"], "reference": "me"},
            "must list a reference for each turn, but is of type str",
        ),
        ({"category": "qa", "turns": []}, "list of texts"),
        ({"category": "qa"}, "turns"),
        ({"turns": ["Who?"]}, "no column 'category'"),
        ({"category": "qaa", "turns": ["Who?"]}, "column 'category' = 'qaa' is unknown: did you mean 'qa'"),
        ({"category": ["qa"], "turns": ["Who?"]}, "column 'category' = "),
        ({"category": None, "turns": ["Who?"], "references": ["me"]}, "no column 'category'"),
        ({"category": "qa", "turns": ["Who?", "And?"], "reference": ["a", "b", "c"]}, "3 references for 2 turns"),
        ({"category": "qa", "turns": ["Who?"], "reference": [{"a": 1}]}, "list of texts"),
    ],
)
def test_a_broken_row_is_named(row, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as error:
        load("spec_bench", "qa", write(tmp_path / "question.jsonl", [row]))
    assert "row 1" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("column", ["reference", "references"])
def test_several_texts_for_the_only_turn_are_alternatives(column, tmp_path):
    row = {"category": "qa", "turns": ["Who?"], column: ["Anna", "Anna Smith"]}
    (example,) = load("spec_bench", "qa", write(tmp_path / "question.jsonl", [row]))
    assert example.reference == ["Anna", "Anna Smith"]


def test_a_question_without_an_answer_is_not_scored(tmp_path):
    """As all 80 of the published file."""
    (example,) = load("spec_bench", "qa", published(tmp_path))
    score = make_scorer(load_task("spec_bench").subset("qa"))("Anna.", example.reference or "")
    assert score.values == {"contained": None, "share_contained": None} and score.problem == "the row has no reference"


@pytest.mark.parametrize("group", ["qa", "rag"])
def test_a_long_answer_is_right_when_it_holds_a_short_one(group, tmp_path):
    reference = load("spec_bench", "rag", published(tmp_path))[0].reference
    scorer = make_scorer(load_task("spec_bench").subset(group))
    answer = "There are several of them, as the text says at length: " + "it goes on. " * 50
    assert scorer.names == ("contained", "share_contained")
    assert scorer(answer + "It is One.", reference).values == {"contained": 1, "share_contained": 0.5}
    assert scorer(answer + "One and two!", reference).values == {"contained": 1, "share_contained": 1}
    assert scorer(answer + "Someone.", reference).values == {"contained": 0, "share_contained": 0}


def test_a_file_without_rows_of_a_category_says_so(tmp_path):
    with pytest.raises(ConfigError, match="no rows are left of subset 'coding'"):
        load("mt_bench", "coding", published(tmp_path))


@pytest.mark.parametrize("group", SCORED)
def test_an_oracle_scores_one_and_silence_zero(group, tmp_path):
    rows = [chat.spec_bench_draw(group, True, Random(seed)) for seed in range(12)]
    columns = [{key: value for key, value in row.items() if key[0] != "_"} for row in rows]
    scorer = make_scorer(load_task("spec_bench").subset(group))
    name = scorer.names[0]
    perfect = 100 if name == "bleu" else 1
    for row, example in zip(rows, load("spec_bench", group, write(tmp_path / "x.jsonl", columns)), strict=True):
        assert example.turns == tuple(text.removeprefix("\n\n") for text in WORLDS["spec_bench"].example(row)[::2])
        assert scorer(" " + row["_completion"][0], example.reference).values[name] == pytest.approx(perfect)
        assert scorer("", example.reference).values[name] == 0


def test_samples_have_the_layout_of_the_reader():
    for task, draw in (("spec_bench", chat.spec_bench_draw), ("mt_bench", chat.mt_bench_draw)):
        for subset in load_task(task).subset_names:
            row = draw(subset, True, Random(3))
            assert {key for key in row if key[0] != "_"} == {"subset", "category", "turns", "references"}
            assert len(row["turns"]) == len(row["_completion"])
            assert len(row["references"]) in (0, len(row["turns"]))


def test_settings_are_those_of_the_benchmarks():
    for task in ("spec_bench", "mt_bench", "multilingual_spec_bench"):
        generation = load_task(task).generation
        assert (generation.max_new_tokens, generation.temperature, generation.stop) == (1024, 0.0, ())
    assert load_task("spec_bench").subset_names == GROUPS
    assert all(load_task("multilingual_spec_bench").subset(name).scorer is None for name in PAIRS)


def test_each_language_pair_is_a_file_of_its_own_or_a_category_of_one(tmp_path):
    rows = [{"question_id": f"x_{pair}_1", "category": pair, "turns": [f"Translate:{pair}"]} for pair in PAIRS]
    for row in rows:
        folder = tmp_path / "clone" / "dataset" / "eval" / f"{row['category']}_bench"
        folder.mkdir(parents=True)
        write(folder / "question.jsonl", [row])
    together = write(tmp_path / "question.jsonl", rows)
    assert load_task("multilingual_spec_bench").subset_names == PAIRS
    for pair in PAIRS:
        for data in (tmp_path / "clone", tmp_path / "clone" / "dataset" / "eval", together):
            (example,) = load("multilingual_spec_bench", pair, data, num_subsets=5)
            assert (example.id, example.turns) == (f"x_{pair}_1", (f"Translate:{pair}",))


def test_a_category_that_is_no_language_pair_is_refused(tmp_path):
    path = write(tmp_path / "question.jsonl", [{"category": "fran", "turns": ["Translate: hello"]}])
    with pytest.raises(ConfigError, match="column 'category' = 'fran' is unknown: did you mean 'fren'"):
        load("multilingual_spec_bench", "fren", path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_real_files():
    found = {group: load("spec_bench", group, SHARED / "spec_bench", num_subsets=6) for group in GROUPS}
    assert [len(examples) for examples in found.values()] == [80] * 6
    assert {len(example.turns) for example in found["mt_bench"]} == {2}
    judged = {group: sum(example.reference is not None for example in examples) for group, examples in found.items()}
    assert judged == {"mt_bench": 38, "translation": 80, "summarization": 80, "qa": 0, "math_reasoning": 80, "rag": 80}
    scorer = make_scorer(load_task("spec_bench").subset("math_reasoning"))
    answers = [example.reference for example in found["math_reasoning"]]
    assert all(scorer(answer[0], answer).values["accuracy"] == 1 for answer in answers)
    for subset in ("deen", "zhen"):
        assert len(load("multilingual_spec_bench", subset, SHARED / "multilingual_specbench", num_subsets=5)) == 80
    for category in ("writing", "roleplay", "reasoning", "math"):
        assert len(load("mt_bench", category, SHARED / "mt_bench", num_subsets=8)) == 10


def speed_row(category: str, number: int, *turns: str) -> dict:
    return {"question_id": f"q{number}", "category": category, "sub_category": "x", "turns": list(turns), "source": "s",
            "src_id": "1", "difficulty": "easy", "multiturn": len(turns) > 1}  # fmt: skip


PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def test_the_layout_of_speed_bench(tmp_path):
    """As prepare_data.py writes it: a folder for each configuration, with test.parquet in it."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    rows = [speed_row(category, number, "One?", "Two?") for number, category in enumerate(SPEED_CATEGORIES)]
    for name, own in (("qualitative", rows), ("throughput_1k", [speed_row("low_entropy", 99, "Sort.")])):
        (tmp_path / name).mkdir()
        parquet.write_table(arrow.Table.from_pylist(own), tmp_path / name / "test.parquet")
    assert load_task("speed_bench").subset_names[:11] == SPEED_CATEGORIES
    for number, category in enumerate(SPEED_CATEGORIES):
        (example,) = load("speed_bench", category, tmp_path, num_subsets=16)
        assert (example.id, example.turns) == (f"q{number}", ("One?", "Two?"))
    (example,) = load("speed_bench", "throughput_1k", tmp_path, num_subsets=16)
    assert example.turns == ("Sort.",)


@pytest.mark.parametrize("turn", [PLACEHOLDER, f"{PLACEHOLDER}\n\nYou are {{role_name}}."])
def test_a_placeholder_of_speed_bench_is_refused_with_what_to_run(turn, tmp_path):
    path = write(tmp_path / "speed_bench.jsonl", [speed_row("roleplay", 1, turn), speed_row("coding", 2, "Write.")])
    with pytest.raises(
        ConfigError, match=r"placeholder.*prepare_data.py --dataset speed --config all.*--data data/speed"
    ):
        load("speed_bench", "roleplay", path, num_subsets=16)
    assert [example.id for example in load("speed_bench", "coding", path, num_subsets=16)] == ["q2"]


def test_a_category_that_speed_bench_lacks_is_refused(tmp_path):
    path = write(tmp_path / "speed_bench.jsonl", [speed_row("codin", 1, "Write.")])
    with pytest.raises(ConfigError, match="column 'category' = 'codin' is unknown: did you mean 'coding'"):
        load("speed_bench", "coding", path, num_subsets=16)


def test_the_sample_of_speed_bench_has_each_category():
    for category in SPEED_CATEGORIES:
        examples = load("speed_bench", category, "sample", num_subsets=11)
        assert len(examples) == 2 and all(example.turns for example in examples)
