"""What the hub shows: evaluation results and benchmarks in the documented form, model cards, and static Spaces."""

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from specbench.core.errors import ConfigError
from specbench.publish.bundle.scrub import REMOVED
from specbench.publish.hub.benchmark import benchmark_of
from specbench.publish.hub.card import card, front_matter
from specbench.publish.hub.forms import Benchmark, EvalResults, read_form
from specbench.publish.hub.models import rows_of_model, why_not_on_hub
from specbench.publish.hub.results import Destination, hub_results, notes_of
from specbench.publish.site.build import MARK
from specbench.results.leaderboard import load, write
from specbench.results.row import Row, RowWarning
from specbench.specs.catalogue import load_task
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row

TARGET, DRAFTER = "org/target", "org/drafter"
COMMIT = "d" * 40
HUB = ("--dataset", "me/tau", "--source", "https://example.org/bundle")


def measured(method: str = "sd", tau: float = 3.25, **changes: object) -> Row:
    fields = {
        "task": "gsm8k@5:0123456789ab", "subset": "default", "language": "en", "method": f"{method}@1:ba9876543210",
        "drafter": DRAFTER, "drafter_revision": COMMIT, "options": {}, "lossless": True, "verdict": "greedy equal",
        "quality": "accuracy", "n": 40, "command": f"specbench run --task gsm8k --method {method}",
        "metrics": {
            "mean_acceptance_length": Estimate(value=tau, low=tau - 0.5, high=tau + 0.25),
            "acceptance_rate": Estimate(value=0.75, low=0.7, high=0.8),
            "speedup": Estimate(value=1.5, low=1.25, high=1.75),
            "accuracy": Estimate(value=0.5), "accuracy_ar": Estimate(value=0.475),
            "accuracy_difference": Estimate(value=0.025, low=-0.05, high=0.1),
            "num_prompts_timed": Estimate(value=40.0), "new_tokens": Estimate(value=4000.0),
            "share_cut_by_length": Estimate(value=0.0),
        },
    }  # fmt: skip
    return row(**fields | changes)


def baseline(**changes: object) -> Row:
    return measured(
        "ar", 1.0, drafter=None, drafter_revision=None, num_draft_tokens=0, verdict="not audited", **changes
    )


def board(folder: Path, *rows: Row) -> Path:
    write(folder / "board.json", list(rows))
    return folder / "board.json"


def test_tau_is_written_as_the_hub_reads_it(specbench, tmp_path):
    other = measured(task="humaneval@3:0123456789ab", tau=4.0, created="2026-02-01T10:00:00+00:00")
    board(tmp_path, baseline(), measured(), other)
    code, out, err = specbench(
        "hub", "results", DRAFTER, "board.json", *HUB, "--source-name", "Bundle", "--output", ".eval_results/tau.yaml"
    )
    assert code == 0 and "2 results" in out, err
    text = (tmp_path / ".eval_results" / "tau.yaml").read_text(encoding="utf-8")
    entries = parse_eval_result_entries(yaml.safe_load(text))  # the hub's own client
    assert [(each.dataset_id, each.task_id, each.value) for each in entries] == [
        ("me/tau", "gsm8k", 3.25),
        ("me/tau", "humaneval", 4.0),
    ]
    first, second = entries
    assert first.source_url == "https://example.org/bundle" and first.source_name == "Bundle"
    assert second.date == "2026-02-01T10:00:00+00:00" and first.verify_token is None
    for word in ("3.25 [2.75, 3.50]", "n = 40", "org/target (ffffffffffff)", "org/drafter (dddddddddddd)", "sd@1",
                 "5 draft tokens", "greedy", "greedy equal", "row: stated"):  # fmt: skip
        assert word in str(first.notes), word
    assert "Some CPU" not in text  # τ does not depend on the machine
    assert isinstance(read_form(tmp_path / ".eval_results" / "tau.yaml"), EvalResults)
    assert specbench("hub", "validate", ".eval_results/tau.yaml")[0] == 0


def test_the_notes_have_warnings_that_concern_tau_and_not_those_of_times(tmp_path):
    warnings = (
        RowWarning(code="loops", text="a third of the tokens are in loops"),
        RowWarning(code="ar_drift", text="AR became slower"),
    )
    local = {"target": "models/t-dequantized", "target_revision": "local-0123456789ab"}
    own = measured(warnings=warnings, **local, lossless=False)
    notes = notes_of(own, rows_of_model(DRAFTER, [board(tmp_path, own)]))
    assert "a third of the tokens are in loops" in notes and "slower" not in notes
    assert "models/t-dequantized (0123456789ab) [a local folder, not a model of the hub" in notes
    assert "lossy: the output is not the target's own" in notes


@pytest.mark.parametrize(
    ("name", "revision", "word"),
    [
        (DRAFTER, COMMIT, None),
        ("gpt2", COMMIT, None),
        ("models/Qwen2.5-dequantized-from-Q4", "local-0123456789ab", "local folder"),
        ("org/repo:Q4_K_M", f"sha256-{'0' * 64}", "not by a commit"),
        ("stores/ngram", "0123456789ab", "not by a commit"),
        ("embedded:drafter", "local-0123456789ab", "demonstration"),
        (DRAFTER, None, "no revision"),
        ("a/b/c", COMMIT, "not by a commit"),
    ],
)
def test_only_a_name_with_a_commit_is_a_model_of_the_hub(name, revision, word):
    reason = why_not_on_hub(name, revision)
    assert (reason is None) if word is None else word in str(reason)


def refused(specbench, folder: Path, rows: list[Row], *words: str) -> str:
    board(folder, *rows)
    code, out, err = specbench("hub", "results", *words, "--output", "out.yaml")
    assert code == 2 and not out and not (folder / "out.yaml").exists()
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err
    return err


def test_results_that_would_mislead_are_refused(specbench, tmp_path):
    def told(rows: list[Row], *words: str) -> str:
        return refused(specbench, tmp_path, rows, *(words or (DRAFTER, "board.json", *HUB)))

    assert "a local folder" in told([measured(drafter_revision="local-0123456789ab")])
    twice = told([measured(), measured("fsd", lossless=False)])
    assert "'gsm8k': two rows" in twice and "sd@1" in twice and "fsd@1" in twice and "--filter" in twice
    prescribed = {"drafter": {"type": "synthetic", "acceptance": 0.8}}
    assert "prescribed" in told([measured(options=prescribed)])
    assert "hold scores" in told([measured()], DRAFTER, "board.json", "--dataset", "openai/gsm8k", *HUB[2:])
    data = {"data_source": "hub", "data_location": "me/own:default:test", "task": "mine@1:0123456789ab"}
    assert "hold scores" in told([measured(**data)], DRAFTER, "board.json", "--dataset", "me/own", *HUB[2:])
    assert "OWNER/NAME" in told([measured()], DRAFTER, "board.json", "--dataset", "a/b/c", *HUB[2:])
    assert "OWNER/NAME" in told([measured()], DRAFTER, "board.json", "--dataset", "tau", *HUB[2:])
    assert "hold scores" in told([measured()], DRAFTER, "board.json", "--dataset", "OpenAI/GSM8K", *HUB[2:])
    assert "https://" in told([measured()], DRAFTER, "board.json", *HUB[:2], "--source", "file.tar.gz")
    secret = ("--source", "https://me:secret-word@example.org/bundle")
    assert "has a user or a password" in told([measured()], DRAFTER, "board.json", *HUB[:2], *secret)
    assert "two rows" in told([measured(), measured(device="Another CPU")])
    assert "drafter" in told([measured()], TARGET, "board.json", *HUB)
    assert "did you mean 'org/drafter'" in told([measured()], "org/draftr", "board.json", *HUB)
    pair = [measured(), measured(task="humaneval@3:0123456789ab")]
    assert "--task-id x" in told(pair, DRAFTER, "board.json", *HUB, "--task-id", "x")


def test_a_method_without_a_drafter_is_a_result_of_its_target(specbench, tmp_path):
    board(tmp_path, measured("ngram", drafter=None, drafter_revision=None), measured())
    assert specbench("hub", "results", "target", "board.json", *HUB, "--output", "out.yaml")[0] == 0
    (entry,) = parse_eval_result_entries(yaml.safe_load((tmp_path / "out.yaml").read_text(encoding="utf-8")))
    assert "ngram@1" in str(entry.notes) and "drafter none" in str(entry.notes)


def test_a_task_becomes_a_benchmark_with_a_task_per_subset(specbench, tmp_path):
    code, out, err = specbench("hub", "benchmark", "gsm8k", "--output", "eval.yaml")
    assert code == 0 and "openai/gsm8k" in out and "'specbench' is not in the hub's list" in err
    content = yaml.safe_load((tmp_path / "eval.yaml").read_text(encoding="utf-8"))
    assert content["evaluation_framework"] == "specbench" and "τ" in content["description"]
    assert content["tasks"] == [{"id": "gsm8k", "split": "test"}]
    assert isinstance(read_form(tmp_path / "eval.yaml"), Benchmark)
    task = load_task("mgsm")
    _, made = benchmark_of(task, ["en", "ja"], "math-arena")
    assert [each.id for each in made.tasks] == ["mgsm_en", "mgsm_ja"] and made.unlisted is None
    with pytest.raises(ConfigError, match="field_spec, solvers, scorers"):
        benchmark_of(task, framework="inspect-ai")
    _, near = benchmark_of(load_task("gsm8k"), framework="math_arena")
    assert "did you mean 'math-arena'" in str(near.unlisted)


DOCUMENTED = """\
- dataset:
    id: cais/hle
    task_id: default
    revision: 5503434ddd753f426f4b38109466949a1217c2bb
  value: 20.90
  verifyToken: token
  date: 2025-01-15
  source:
    url: https://huggingface.co/spaces/SaylorTwift/smollm3-mmlu-pro
    name: Eval traces
    user: SaylorTwift
  notes: "no-tools"
- dataset: {id: Idavidrein/gpqa, task_id: gpqa_diamond}
  value: 0.412
"""
BENCHMARK = """\
name: HLE
description: An exam.
evaluation_framework: inspect-ai
tasks:
  - id: hle
    config: default
    split: test
    field_spec: {input: question, target: answer}
    solvers: [{name: generate}]
    scorers: [{name: model_graded_fact, args: {model: openai/o3-mini}}]
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (DOCUMENTED, "", "", ()),
        (BENCHMARK, "", "", ()),
        (DOCUMENTED, "task_id: default", "task: default", ("results.0.dataset.task", "task_id")),
        (DOCUMENTED, "value: 20.90", "value: high", ("results.0.value", "number")),
        (DOCUMENTED, "2025-01-15", "15.1.2025", ("date", "ISO 8601")),
        (DOCUMENTED, "    url: https://huggingface.co/spaces/SaylorTwift/smollm3-mmlu-pro\n", "", ("url", "missing")),
        (DOCUMENTED, "Idavidrein/gpqa, task_id: gpqa_diamond", "cais/hle, task_id: default", ("occurs 2 times",)),
        (BENCHMARK, "    scorers: [{name: model_graded_fact, args: {model: openai/o3-mini}}]\n", "", ("scorers",)),
        (BENCHMARK, "evaluation_framework", "framework", ("evaluation_framework",)),
        (BENCHMARK, "description: An exam.\n", "", ("description", "missing")),
        ("just text\n", "", "", ("neither",)),
    ],
)  # fmt: skip
def test_files_are_checked_against_the_documented_form(specbench, tmp_path, text, old, new, words):
    assert old in text
    (tmp_path / "x.yaml").write_text(text.replace(old, new) if old else text, encoding="utf-8")
    code, out, err = specbench("hub", "validate", "x.yaml")
    if not words and text != "just text\n":
        assert (code, err) == (0, "") and out.startswith("ok: x.yaml")
        return
    assert code == 2 and all(word in err for word in ("x.yaml", *words)), err


def test_a_card_has_a_table_for_each_target_and_every_warning_in_words(tmp_path):
    drift = (RowWarning(code="ar_drift", text="AR became slower"),)
    runs_on = measured("fsd", lossless=False, verdict="lossy by design", warnings=drift)
    cut = runs_on.model_copy(update={"metrics": runs_on.metrics | {"share_cut_by_length": Estimate(value=1.0)}})
    other = measured(target="org/large", target_revision="e" * 40)
    text = card(rows_of_model("drafter", [board(tmp_path, baseline(), measured(), cut, other)]))
    assert text.count("### drafter as drafter") == 2 and "org/large (eeeeeeeeeeee)" in text
    (line,) = [each for each in text.splitlines() if each.startswith("| gsm8k | fsd ")]
    assert line.count("|") == 10 and "0.750 \\[0.700, 0.800]" in line and "3.25 \\[2.75, 3.50]" in line
    assert "1.50 \\[1.25, 1.75] † ‡" in line and "+2.5 \\[-5.0, +10.0]" in line and "lossy by design" in line
    assert "† fsd on gsm8k: AR became slower" in text
    assert "‡ the answers of fsd on gsm8k run on: 100 %" in text and "the answers of sd" not in text
    assert "Some CPU, 1 thread" in text and "torch 2.13.0" in text and "level: stated" in text
    commands = text.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert commands == [f"specbench run --task gsm8k --method {name}" for name in ("sd", "fsd")]
    as_target = card(rows_of_model("org/large", [tmp_path / "board.json"]))
    assert "### large as target" in as_target and "drafter org/drafter (dddddddddddd)" in as_target


def test_a_card_does_not_run_what_names_hold(tmp_path):
    name = "models/<img src=x>|a*b"
    own = measured(drafter=name, drafter_revision="local-0123456789ab", command="specbench run\n```\n# x")
    text = card(rows_of_model(name, [board(tmp_path, own)]))
    assert "<img" not in re.sub(r"\\<", "", text) and "a local folder, not a model of the hub" in text
    assert text.count("```") == 2


def test_front_matter_holds_rows_with_data_of_the_hub(specbench, tmp_path):
    on_hub = {"data_source": "hub", "data_location": "openai/gsm8k:main:test", "data_revision": COMMIT}
    path = board(tmp_path, measured(**on_hub), measured(task="mine@1:0123456789ab"))
    front, notes = front_matter(rows_of_model(DRAFTER, [path]))
    data = ModelCard(front + "\ntext").data  # the hub's own client
    (result,) = data.eval_results
    assert (result.dataset_type, result.dataset_revision) == ("openai/gsm8k", COMMIT)
    assert (result.metric_type, result.metric_value) == ("mean_acceptance_length", 3.25)
    assert "[2.75, 3.50]" in result.metric_name and data.tags == ["speculative-decoding"]
    assert len(notes) == 1 and "sample (tasks/samples/mgsm.jsonl)" in notes[0]
    code, out, err = specbench("card", DRAFTER, "board.json", "--front-matter", "--output", "README.md")
    assert code == 0 and "2 rows" in out and "not in model-index" in err
    assert (tmp_path / "README.md").read_text(encoding="utf-8").startswith("---\ntags:")


def test_a_wrong_model_gets_the_nearest_name(specbench, tmp_path):
    board(tmp_path, baseline(), measured())
    code, _, err = specbench("card", "org/draftre", "board.json")
    assert code == 2 and "did you mean 'org/drafter'" in err
    code, _, err = specbench("card", "draft", "board.json")
    assert code == 2 and "give the whole name: org/drafter" in err
    code, _, err = specbench("card", DRAFTER)
    assert code == 2 and "no finished runs in runs" in err
    code, _, err = specbench("card", DRAFTER, "board.json", "--filter", "method=fsd")
    assert code == 2 and "no row has this value" in err


def test_a_site_becomes_a_static_space(specbench, tmp_path):
    board(tmp_path, baseline(), measured())
    title = 'My: "board" # <b>'
    words = ("site", "board.json", "--output", "site", "--title", title)
    code, _, err = specbench(*words, "--space", "--license", "cc-by-4.0")
    assert code == 0, err
    text = (tmp_path / "site" / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert (front["title"], front["sdk"], front["license"]) == (title, "static", "cc-by-4.0")
    assert (tmp_path / "site" / front["app_file"]).is_file() and "\\<b>" in text
    assert "README.md" in (tmp_path / "site" / MARK).read_text(encoding="utf-8")
    assert specbench(*words)[0] == 0 and not (tmp_path / "site" / "README.md").exists()  # the site is replaced
    for wrong, word in ((("--license", "mit"), "without --space"), (("--space", "--license", "CC BY"), "lower case")):
        code, _, err = specbench(*words, *wrong)
        assert code == 2 and word in err


def test_results_are_of_single_subsets_as_the_tasks_of_a_benchmark(specbench, tmp_path):
    mgsm = {"task": "mgsm@4:0123456789ab"}
    parts = [measured(**mgsm, subset=name, language=name, n=20) for name in ("en", "ja")]
    whole = measured(**mgsm, subset="all", language=None, subsets={"en": 20, "ja": 20})
    board(tmp_path, *parts, whole)
    words = ("hub", "results", DRAFTER, "board.json", *HUB, "--output", "out.yaml")
    assert specbench(*words)[0] == 0
    entries = parse_eval_result_entries(yaml.safe_load((tmp_path / "out.yaml").read_text(encoding="utf-8")))
    _, made = benchmark_of(load_task("mgsm"), ["en", "ja"])
    assert [each.task_id for each in entries] == [each.id for each in made.tasks]
    code, _, err = specbench(*words, "--subset", "all")
    assert code == 2 and "--task-id" in err
    assert specbench(*words, "--subset", "all", "--task-id", "mgsm")[0] == 0


def test_the_models_of_the_board_of_real_models_are_local_and_told_as_such():
    board_of_real = Path(__file__).parents[2] / "leaderboards" / "real.json"
    names = dict.fromkeys(each.drafter or each.target for each in load(board_of_real))
    for name in names:
        found = rows_of_model(name, [board_of_real])
        with pytest.raises(ConfigError, match=r"not a model of the hub|not by a commit"):
            hub_results(found, Destination("me/tau", "https://example.org/bundle"))
        text = card(found)
        assert "not a model of the hub" in text or "not by a commit" in text
        lines = text.splitlines()
        num_rows = sum(line.startswith("| ") for line in lines) - 2 * sum(line.startswith("| ---") for line in lines)
        assert num_rows == len(found.as_drafter) + len(found.as_target)
        assert REMOVED not in text


def test_neither_cards_nor_results_tell_homes_and_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_API_KEY", "a-secret-of-mine-1234")
    command = "specbench run --target /home/someone/models/t --method sd --set x=a-secret-of-mine-1234"
    own = measured(command=command, target="/home/someone/models/t", target_revision="local-0123456789ab")
    found = rows_of_model(DRAFTER, [board(tmp_path, own)])
    for text in (card(found), notes_of(own, found), front_matter(found)[0]):
        assert "someone" not in text and "a-secret" not in text
    assert "models/t" in card(found) and "--method sd" in card(found)
