"""lm-eval's generation tasks as tasks of specbench: prompts, scores, identity, a whole run, and what is refused."""

import csv
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from lm_eval.tasks._index import TaskIndex as Entries
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.integrations.lm_eval.evaluation import simple_evaluate
from specbench.integrations.lm_eval.model import SpecbenchLM
from specbench.integrations.lm_eval.scorer import LmEvalScorer
from specbench.integrations.lm_eval.tasks import LOADED_TASKS, TaskIndex, load_tasks, task_index
from specbench.models.machine import environment
from specbench.records.folder import RunFolder
from specbench.records.generation import Record
from specbench.results.row import Row
from specbench.running.events import Events
from specbench.running.execute import run_plan
from specbench.running.models import load_models
from specbench.running.plan import Plan, make_subset_runs, run_identity
from specbench.specs.catalogue import digest, load_method
from specbench.specs.components import build
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import TaskData
from tests.support.lm_eval_files import ROWS, build_index, use_cache, write_task, write_upstream

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
BLEU = [{"metric": name, "aggregation": name, "higher_is_better": name != "ter"} for name in ("bleu", "chrf", "ter")]
SENTENCES = [
    {"question": "one", "answer": "The cat sat on the mat near the door."},
    {"question": "two", "answer": "A dog ran through the garden this morning."},
    {"question": "three", "answer": "We went to the sea and swam all day."},
]
ANSWERS = ["The cat sat on a mat by the door.", "A dog ran in the garden.", "We went to the sea and swam all day."]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    use_cache(monkeypatch, tmp_path / "cache")
    yield


def only(name: str, folder: Path) -> TaskSpec:
    (task,) = load_tasks(f"lm_eval:{name}", folder)
    return task


def examples(task: TaskSpec, limit: int | None = None, data: str | None = None) -> TaskData:
    """As a run gets them: from the scorer that a task names."""
    assert task.scorer is not None
    made: TaskData = task.scorer.features.examples(data=data, limit=limit, **task.scorer.options)  # type: ignore
    return made


def scorer(task: TaskSpec) -> LmEvalScorer:
    assert task.scorer is not None
    made: LmEvalScorer = SCORERS.get(task.scorer.type)(**task.scorer.options)
    return made


def gsm8k(folder: Path, data: Path | None = None) -> TaskSpec:
    """lm-eval's gsm8k on local rows, with two few-shot examples from among them."""
    if data is None:
        data = folder / "rows.jsonl"
        folder.mkdir(exist_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    write_upstream(folder, "gsm8k_local", "gsm8k/gsm8k.yaml", data, fewshot_split="test", num_fewshot=2)
    return only("gsm8k_local", folder)


# ---- what a task becomes


def test_a_task_keeps_prompts_stops_and_filters(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    assert (task.name, task.version) == ("lm_eval.gsm8k_local", 3)
    assert task.generation.stop == ("Question:", "</s>", "<|im_end|>")
    assert (task.generation.max_new_tokens, task.generation.temperature) == (256, 0.0)
    data = examples(task, 2)
    assert [example.id for example in data.examples] == ["0", "1"]
    prompt = data.examples[0].prompt
    assert prompt.endswith(f"\n\nQuestion: {ROWS[0]['question']}\nAnswer:")
    assert prompt.count("#### ") == 2 and prompt.count(ROWS[0]["question"]) == 1
    assert data.source == "local" and data.location.endswith("rows.jsonl")
    assert scorer(task).names == ("exact_match,strict-match", "exact_match,flexible-extract")


@pytest.mark.parametrize("description", ["", "Add."])
def test_a_question_among_its_own_worked_examples_is_an_error(tmp_path: Path, description: str) -> None:
    keys = {"fewshot_split": "train", "num_fewshot": 5, "description": description}
    files = {split: str(tmp_path / "own.jsonl") for split in ("train", "test")}
    write_task(tmp_path, "own", dataset_kwargs={"data_files": files}, **keys)
    with pytest.raises(
        ConfigError, match=r"lm_eval:own: document \d is one of the few-shot examples before its prompt"
    ):
        examples(only("own", tmp_path))
    apart = tmp_path / "apart.jsonl"
    apart.write_text("".join(json.dumps({**row, "question": f"{row['question']}?"}) + "\n" for row in ROWS), "utf-8")
    write_task(tmp_path, "other", dataset_kwargs={"data_files": {**files, "train": str(apart)}}, **keys)
    data = examples(only("other", tmp_path))
    assert len(data.examples) == len(ROWS)
    assert (data.fewshot.num, data.fewshot.source, data.fewshot.checked) == (5, "local", True)
    assert str(data.fewshot.location).endswith("own.jsonl train") and len(str(data.fewshot.digest)) == 12


def test_prompts_and_scores_are_those_of_lm_eval(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    results = simple_evaluate(
        SpecbenchLM(tiny_pair[0], method="ar", max_gen_toks=8), tasks=["gsm8k_local"], limit=4, bootstrap_iters=0,
        task_manager=task_index(["gsm8k_local"], tmp_path), gen_kwargs={"max_gen_toks": 8},
    )  # fmt: skip
    assert results is not None
    samples = [s for s in results["samples"]["gsm8k_local"] if s["filter"] == "strict-match"]
    made = examples(task, 4).examples
    assert [example.prompt for example in made] == [s["arguments"][0][0] for s in samples]
    judge, theirs = scorer(task), results["results"]["gsm8k_local"]
    scores = [judge(s["resps"][0][0], e.references[0]).values for s, e in zip(samples, made, strict=True)]  # type: ignore
    own = {name: sum(score[name] or 0 for score in scores) / len(scores) for name in judge.names}
    assert own == {name: theirs[name] for name in own} and len(own) == 2


@pytest.mark.parametrize(
    ("answer", "strict", "flexible"),
    [("2 + 3 = 5\n#### 5", 1, 1), ("It is $5.", 0, 1), ("#### 6", 0, 0), ("", 0, 0), ("#### 5\n#### 7", 1, 0)],
)
def test_answers_are_judged_behind_each_filter(tmp_path: Path, answer: str, strict: int, flexible: int) -> None:
    task = gsm8k(tmp_path)
    reference = examples(task, 1).examples[0].references[0]
    assert reference == {"doc": "0", "target": ROWS[0]["answer"]}
    score = scorer(task)(answer, reference)
    assert score.values == {"exact_match,strict-match": strict, "exact_match,flexible-extract": flexible}
    assert not score.statistics and score.problem is None


def corpus_scores(answers: Sequence[str]) -> dict[str, float]:
    """The scores of sacrebleu, which lm-eval calls."""
    metrics = {"bleu,none": sacrebleu.corpus_bleu, "chrf,none": sacrebleu.corpus_chrf, "ter,none": sacrebleu.corpus_ter}
    targets = [[row["answer"] for row in SENTENCES]]
    return {name: metric(answers, targets).score for name, metric in metrics.items()}


def test_corpus_metrics_are_those_of_lm_eval(tmp_path: Path) -> None:
    write_task(tmp_path, "translation", SENTENCES, metric_list=BLEU)
    task = only("translation", tmp_path)
    judge, references = scorer(task), [example.references[0] for example in examples(task).examples]
    scores = [judge(text, ref) for text, ref in zip(ANSWERS, references, strict=True)]  # type: ignore[arg-type]
    for name, expected in corpus_scores(ANSWERS).items():
        sums = [sum(column) for column in zip(*(score.statistics[name] for score in scores), strict=True)]
        assert judge.corpus(name, sums) == pytest.approx(expected)
    assert scores[2].values["bleu,none"] == pytest.approx(100.0)
    assert judge.names[0] == "bleu,none"


def test_a_metric_that_is_better_when_lower_does_not_stand_for_quality(tmp_path: Path) -> None:
    write_task(tmp_path, "translation", SENTENCES, metric_list=[BLEU[2], BLEU[0]])
    assert scorer(only("translation", tmp_path)).names == ("bleu,none", "ter,none")


CODE = """
def process_results(doc, results):
    answer = results[0]
    if answer == "break":
        raise KeyError("no such answer")
    return {"longest": (len(answer), len(doc["answer"])), "odd": float("nan") if not answer else 1.0, "extra": 2}

def longest(items):
    return max(length / limit for length, limit in items)
"""


def custom(folder: Path, code: str = CODE) -> TaskSpec:
    """A task whose metrics are Python: one of all answers together, one that may be NaN, one not announced."""
    path = write_task(folder, "custom", metric_list=...)
    (folder / "of_custom.py").write_text(code)
    path.write_text(
        path.read_text("utf-8")
        + "process_results: !function of_custom.process_results\nmetric_list:\n"
        + "  - {metric: longest, aggregation: !function of_custom.longest, higher_is_better: true}\n"
        + "  - {metric: odd, aggregation: nanmean, higher_is_better: true}\n"
    )
    return only("custom", folder)


def test_metrics_in_python(tmp_path: Path) -> None:
    task = custom(tmp_path)
    judge, references = scorer(task), [example.references[0] for example in examples(task, 2).examples]
    assert judge.names == ("longest,none", "odd,none", "extra,none")
    limits = [len(row["answer"]) for row in ROWS]
    score = judge("xxx", references[0])  # type: ignore[arg-type]
    assert score.values == {"longest,none": pytest.approx(3 / limits[0]), "odd,none": 1.0, "extra,none": 2.0}
    assert judge("", references[0]).values["odd,none"] is None  # type: ignore[arg-type]
    assert judge.signature["longest,none"].endswith(
        "filter none, mean over documents of longest, which lm-eval takes once"
    )
    assert judge.signature["odd,none"].endswith("filter none")


def test_an_answer_that_the_code_cannot_judge_is_a_problem(tmp_path: Path) -> None:
    task = custom(tmp_path)
    score = scorer(task)("break", {"doc": "0", "target": ""})
    assert score.problem == "lm-eval's judgement fails: KeyError: 'no such answer'"
    assert set(score.values.values()) == {None}


@pytest.mark.parametrize("reference", ["5", {"doc": "99"}, {"doc": "x"}, {}])
def test_a_reference_that_is_no_document(tmp_path: Path, reference: Any) -> None:
    write_task(tmp_path, "sums")
    judge = scorer(only("sums", tmp_path))
    for check in (lambda: judge("x", reference), lambda: judge.check_reference(reference)):
        with pytest.raises(ConfigError, match="no document of lm-eval's task 'sums'"):
            check()


def test_a_group_a_tag_and_a_path(tmp_path: Path) -> None:
    first = write_task(tmp_path, "first", tag="some")
    write_task(tmp_path, "second", tag="some")
    (tmp_path / "both.yaml").write_text("group: both\ntask: [first, {group: inner, task: [second]}]\n")
    for name in ("both", "some", "[fs]*[td]"):
        assert [task.name for task in load_tasks(f"lm_eval:{name}", tmp_path)] == ["lm_eval.first", "lm_eval.second"]
    assert [task.name for task in load_tasks(f"lm_eval:{first}")] == ["lm_eval.first"]
    assert only("first", tmp_path).scorer == load_tasks(str(first))[0].scorer


# ---- identity


def test_identity_is_the_same_in_another_folder(tmp_path: Path) -> None:
    here, there = custom(tmp_path / "here"), custom(tmp_path / "there")
    assert digest(here) == digest(there)
    assert " at 0x" not in here.model_dump_json(), "an address of this process"
    helped = custom(tmp_path / "helped", CODE + "\nLIMIT = 2  # for a function that the others call\n")
    assert digest(helped) != digest(here)


@pytest.mark.slow
def test_identity_is_the_same_in_another_process_and_folder(tmp_path: Path) -> None:
    there = tmp_path / "there"
    custom(there)
    here = custom(tmp_path / "here")
    code = (
        "import sys; from specbench.integrations.lm_eval.tasks import load_tasks\n"
        "from specbench.specs.catalogue import digest\n"
        "print(digest(load_tasks('custom', sys.argv[1])[0]))"
    )
    command = [sys.executable, "-c", code, str(there)]
    env = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=Path(__file__).parents[2])
    assert told.stdout.split() == [digest(here)]


def test_another_prompt_is_another_task(tmp_path: Path) -> None:
    write_task(tmp_path / "one", "sums")
    write_task(tmp_path / "two", "sums", doc_to_text="Q: {{question}}\nA:")
    assert digest(only("sums", tmp_path / "one")) != digest(only("sums", tmp_path / "two"))


def test_examples_are_the_same_each_time_and_leave_the_generators_alone(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    state = random.getstate()
    first, again = examples(task, 5), examples(task, 5)
    assert first == again and first.revision == again.revision
    assert examples(task, 3).examples == first.examples[:3]
    assert random.getstate() == state


def test_a_task_survives_being_built_again(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    again = build(TaskSpec, task.model_dump())
    assert again == task and scorer(again).names == scorer(task).names


def test_the_users_folder_alone_is_read(tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    assert task_index(["sums"], tmp_path).all_tasks == ["sums"]


# ---- a run


def test_a_run_scores_what_was_generated(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    task = only("sums", tmp_path)
    rows, records = measured(task, tiny_pair, tmp_path / "run")
    row = rows[-1]
    assert row.task.startswith("lm_eval.sums@2:") and row.n == len(ROWS)
    assert row.data_source == "local" and row.metrics["exact_match,none"].value == 0.0
    assert row.metrics["acceptance_rate"].value is not None
    assert [record.reference["doc"] for record in records] == [str(n) for n in range(len(ROWS))]
    texts = [record.methods["ar"].text for record in records]
    known = [{**row, "answer": text} for row, text in zip(ROWS, texts, strict=True)]
    known[0]["answer"] = "another"
    write_task(tmp_path / "known", "known", known)
    rows, _ = measured(only("known", tmp_path / "known"), tiny_pair, tmp_path / "second")
    assert rows[-1].metrics["exact_match,none"].value == pytest.approx(5 / 6)
    assert rows[-1].metrics["exact_match,none_difference"].value == 0.0


def test_a_run_is_resumed(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    first = measured(only("sums", tmp_path), tiny_pair, tmp_path / "run", limit=2)[1]
    LOADED_TASKS.clear()
    again = measured(only("sums", tmp_path), tiny_pair, tmp_path / "run", limit=3)[1]
    assert again[:2] == first and len(again) == 3


def test_bleu_of_a_run_is_of_all_answers(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    write_task(tmp_path, "translation", SENTENCES, metric_list=BLEU)
    task = only("translation", tmp_path)
    rows, records = measured(task, tiny_pair, tmp_path / "run")
    for name, expected in corpus_scores([record.methods["sd"].text for record in records]).items():
        assert rows[-1].metrics[name].value == pytest.approx(expected)


def measured(
    task: TaskSpec, pair: tuple[str, str], folder: Path, limit: int | None = None
) -> tuple[Sequence[Row], list[Record]]:
    """The rows and records of ar and sd on the task."""
    task = task.model_copy(update={"generation": task.generation.model_copy(update={"max_new_tokens": 12})})
    data = {
        "tasks": [task], "methods": [load_method(name) for name in ("ar", "sd")], "target": pair[0],
        "drafter": pair[1], "limit": limit,
    }  # fmt: skip
    spec = build(RunSpec, data)
    models = load_models(spec)
    cells = make_subset_runs(spec, models, [(task, "default", examples(task, limit))])
    conditions = environment(str(models.target.device), models.target.dtype, models.target.attention)
    run = RunFolder(folder, run_identity(spec, cells, models, conditions))
    found, rows = run_plan(Plan(spec, models, cells, run), Events(Console(quiet=True)))
    return rows, list(found.records.values())


# ---- mistakes


CHOICES = {"output_type": "multiple_choice", "doc_to_choice": ["yes", "no"], "doc_to_target": 0, "metric_list": ...,
           "generation_kwargs": ...}  # fmt: skip


def test_of_many_tasks_that_do_not_load_together_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, task_list: object) -> None:
        raise ValueError("'sum_12' has no doc")

    monkeypatch.setattr("lm_eval.tasks.TaskManager.load", fail)
    index, names = TaskIndex(include_defaults=False), [f"sum_{number}" for number in range(40)]
    told = "lm-eval cannot load task sum_0, sum_1, sum_2 or 37 more: ValueError: 'sum_12' has no doc"
    with pytest.raises(ConfigError, match=told):
        index.load(names)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "choices",
            "task choices: output_type multiple_choice needs log-likelihoods .*output_type generate_until",
        ),
        ("voted", "task lm_eval:voted: scores 4 answers of each document together"),
        ("unsafe", "task lm_eval:unsafe: runs the code of answers without a sandbox"),
        ("beams", "lm_eval:beams: generation_kwargs.num_beams = 4: specbench knows"),
        ("no_data", "lm-eval cannot load task no_data: FileNotFoundError: .*nowhere.jsonl"),
        ("no_column", "lm-eval cannot load task no_column: UndefinedError: 'missing' is undefined"),
        ("broken", r"broken\.yaml: lm-eval cannot read this task: .*line 2"),
        ("lost", r"lost\.yaml: lm-eval cannot read this task: .*nowhere\.yaml"),
        ("gone.yaml", "lm-eval task gone.yaml: no such file"),
        ("", "--task lm_eval:: name a task of lm-eval"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, name: str, problem: str) -> None:
    write_task(tmp_path, "choices", **CHOICES)
    write_task(tmp_path, "voted", repeats=4)
    write_task(tmp_path, "unsafe", unsafe_code=True)
    write_task(tmp_path, "beams", generation_kwargs={"num_beams": 4, "until": ["x"]})
    write_task(tmp_path, "no_data", dataset_kwargs={"data_files": {"test": "nowhere.jsonl"}})
    write_task(tmp_path, "no_column", doc_to_text="{{missing.text}}")
    (tmp_path / "broken.yaml").write_text("task: broken\n  dataset_path: json\n")
    (tmp_path / "lost.yaml").write_text("task: lost\ninclude: nowhere.yaml\n")
    with pytest.raises(ConfigError, match=problem) as caught:
        load_tasks(f"lm_eval:{name}", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_log_likelihoods_are_refused_before_data_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole of lm-eval's index."""
    monkeypatch.setattr(Entries, "build", staticmethod(build_index))
    with pytest.raises(ConfigError, match="task arc_easy: output_type multiple_choice needs log-likelihoods"):
        load_tasks("lm_eval:arc_easy")


def test_the_include_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"include path .*nowhere: no such folder"):
        load_tasks("lm_eval:sums", tmp_path / "nowhere")


def test_data_is_the_tasks_own(tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    with pytest.raises(ConfigError, match="--data rows: task lm_eval:sums has its own rows"):
        examples(only("sums", tmp_path), data="rows")


def test_a_scorer_needs_its_task() -> None:
    with pytest.raises(ConfigError, match=r"scorer.task = 'other': not loaded: give the task as --task lm_eval:other"):
        SCORERS.get("lm_eval")(task="other", config="0")


def test_an_unknown_task_names_the_nearest(tmp_path: Path) -> None:
    write_task(tmp_path, "sums")
    with pytest.raises(ConfigError, match=r"unknown lm-eval task 'sumss': did you mean .*'sums'"):
        load_tasks("lm_eval:sumss", tmp_path)


# ---- original rows


@pytest.mark.skipif(not (SHARED / "gsm8k").exists(), reason="needs the original rows")
@pytest.mark.parametrize("number", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_gsm8k_on_its_rows(tmp_path: Path, number: int) -> None:
    lines = (SHARED / "gsm8k" / "test_head300.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "gsm8k.jsonl").write_text("".join(lines[:number]), "utf-8")
    task = gsm8k(tmp_path, tmp_path / "gsm8k.jsonl")
    data, judge = examples(task), scorer(task)
    assert len(data.examples) == number
    perfect = [judge(example.references[0]["target"], example.references[0]) for example in data.examples]  # type: ignore
    assert math.fsum(score.values["exact_match,strict-match"] or 0 for score in perfect) == number
    empty = [judge("", example.references[0]) for example in data.examples]  # type: ignore[arg-type]
    assert {value for score in empty for value in score.values.values()} == {0.0}


@pytest.mark.skipif(not (SHARED / "mgsm").exists(), reason="needs the original rows")
@pytest.mark.parametrize("number", [40, pytest.param(250, marks=pytest.mark.slow)])
def test_mgsm_on_its_rows(tmp_path: Path, number: int) -> None:
    data = tmp_path / "mgsm.jsonl"
    with (SHARED / "mgsm" / "mgsm_en.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:number]
    names = ("question", "answer_number")
    filled = [{**dict(zip(names, row, strict=True)), "answer": None, "equation_solution": None} for row in rows]
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in filled), "utf-8")
    write_upstream(tmp_path, "mgsm_local", "mgsm/native_cot/mgsm_native_cot_en.yaml", data, num_fewshot=0)
    task = only("mgsm_local", tmp_path)
    made, judge = examples(task).examples, scorer(task)
    assert len(made) == number
    assert made[0].prompt == f"Question: {rows[0][0]}\nStep-by-Step Answer:"
    right = [judge(f"So it is. The answer is {row[1]}.", e.references[0]) for row, e in zip(rows, made, strict=True)]  # type: ignore
    assert judge.names == ("exact_match,strict-match", "exact_match,flexible-extract")
    assert sum(score.values["exact_match,strict-match"] or 0 for score in right) == number
