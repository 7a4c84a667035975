"""Boards: what their files may say, how runs are run and resumed, and ours beside published figures."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.publish.measured import PairRows, as_records, measured_pairs, outdated_line
from specbench.publish.suite_runs import board_names, load_suite, runs_of
from specbench.publish.suite_spec import Figure, FigureReference, PairSpec, SuiteSpec
from specbench.publish.tables import boards_table, pair_table, published_tables, weights_and_fit
from specbench.results.fairness import Correlations, FairnessSummary
from specbench.results.leaderboard import load, write
from specbench.results.row import Row
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Estimate
from tests.support.processes import InProcess
from tests.support.rows import FIELDS

PUBLISHED = {
    "number": "1",
    "title": "Rates",
    "hardware": "1 * A100",
    "differs": ["everything"],
    "task": "good",
    "columns": [
        {"label": "α", "metric": "acceptance_rate", "scale": 100},
        {"label": "tok/s", "metric": "tokens_per_second"},
        {"label": "D", "metric": "fairness.forced.cross_entropy"},
    ],
    "groups": [
        {"heading": "A pair", "rows": [
            {"label": "AR", "method": "ar", "pair": "tiny", "figures": [None, 10, None]},
            {"label": "SD", "method": "sd", "pair": "tiny", "figures": ["50.5±1.0", 20.5, 0.47]},
            {"label": "Medusa", "figures": [60, 30, 0.5]},
            {"label": "of another pair", "method": "sd", "pair": "other", "figures": [40, 8.25, 0.6]},
        ]},
    ],
}  # fmt: skip
BOARD: dict[str, Any] = {
    "name": "mine",
    "version": 1,
    "title": "A board of a test",
    "pairs": {"tiny": {"target": "org/target", "drafter": "org/drafter"}, "other": {"target": "org/other"}},
    "limit": 1,
    "set": ["generation.max_new_tokens=6"],
    "tasks": [
        {"name": "good", "task": "mgsm", "methods": ["sd"], "subsets": ["en"], "fairness": True},
        {"name": "bad", "task": "mgsm", "methods": ["ngram"], "subsets": ["en"]},
    ],
    "columns": ["acceptance_rate", "speedup", "quality"],
    "published": [PUBLISHED],
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**BOARD, **changes}, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def test_the_built_in_boards_load_and_demo_measures_every_kind_of_method() -> None:
    names = ["deepspec", "demo", "eagle3", "eagle3-served", "p0", "p1", "p2", "p3", "p4", "spec-bench", "specbundle"]
    assert board_names() == names
    demo = load_suite("demo")
    assert {"mgsm", "wmt", "humaneval", "story"} <= {task.label for task in demo.tasks}
    assert all(
        set(demo.methods_of(task)) == {"sd", "fsd", "slem", "tli", "ngram", "pld", "scdf"} for task in demo.tasks
    )


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"colums": []}, ["unknown key 'colums'", "columns"]),
        ({"columns": ["speed"]}, ["columns", "'speed'", "specbench list metrics"]),
        ({"pairs": {"tiny": {"methods": {"sdd": "sd"}}}}, ["pairs.tiny.methods", "'sdd'", "did you mean 'sd'"]),
        ({"pairs": {"tiny": {"tasks": ["goood"]}}}, ["pairs.tiny.tasks", "did you mean 'good'"]),
        ({"tasks": [*BOARD["tasks"], {"task": "mgms", "methods": ["sd"]}]}, ["tasks.2", "mgms", "mgsm"]),
        ({"tasks": [*BOARD["tasks"], {"task": "mgsm", "methods": ["sd"], "subsets": ["xx"]}]}, ["tasks.2", "'xx'"]),
        ({"tasks": [*BOARD["tasks"], "mgsm"]}, ["tasks.2", "'mgsm' has no methods"]),
        ({"tasks": [*BOARD["tasks"], {"task": "mgsm", "methods": ["hydra"]}]}, ["tiny · mgsm", "hydra"]),
        ({"published": [PUBLISHED, PUBLISHED]}, ["table '1' is given twice"]),
        ({"seeds": [0, 1]}, ["published", "one temperature and one seed"]),
        ({"published": [{**PUBLISHED, "task": "goof"}]}, ["table 1", "'goof'", "did you mean 'good'"]),
        ({"published": [{**PUBLISHED, "columns": PUBLISHED["columns"][:2]}]}, ["row 'AR'", "3 entries", "2 columns"]),
        ({"name": "other"}, ["name = 'other'", "'mine'"]),
        ({"pairs": {**BOARD["pairs"], "x": {"methods": {"sd": None, "ngram": None}}}},
         ["pairs.x.methods", "no method is left"]),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ConfigError) as error:
        load_suite(str(path))
    assert "mine.yaml" in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_a_figure_keeps_what_is_printed_and_refuses_the_rest() -> None:
    assert Figure.model_validate("1.19±0.06") == Figure(value=1.19, spread=0.06)
    assert Figure.model_validate(7) == Figure(value=7)
    for wrong in ("about 2", "1.19±", True, [1]):
        with pytest.raises(ValueError):
            Figure.model_validate(wrong)


def test_the_innermost_place_counts() -> None:
    outer = FigureReference(pair="tiny", metric="speedup", subset="en")
    assert outer.within(FigureReference(subset="de", method="sd")) == FigureReference(
        pair="tiny", metric="speedup", subset="de", method="sd"
    )


def test_a_cell_asks_for_what_the_board_says_and_the_command_line_wins(tmp_path: Path) -> None:
    pairs = {"tiny": {"target": "org/t", "methods": {"sd": "fsd"}, "subsets": {"good": ["de"]}, "limit": 3}}
    board = load_suite(str(written(tmp_path, pairs=pairs, published=[])))
    good, bad = runs_of(board, runs=tmp_path)
    assert good.request.options.subsets == ("de",) and good.request.methods == ("fsd",) and good.limit == 3
    assert good.folder == tmp_path / "suites" / "mine" / "tiny" / "good" / "s0" and bad.task.label == "bad"
    assert good.request.command == (
        "specbench run --task mgsm --method fsd --subset de --target org/t --limit 3 "
        f"--set generation.max_new_tokens=6 --output {good.folder}"
    )
    assert runs_of(board, RunOptions(limit=2))[0].request.options.limit == 2
    embedded = load_suite(str(written(tmp_path, pairs={"tiny": {}}, published=[], limit=None)))
    whole, hub = (runs_of(embedded, RunOptions(data=data))[0].request for data in (None, "hub"))
    assert whole.options.limit is None and "--limit all" in whole.command and "--limit" not in hub.command
    assert runs_of(board, RunOptions(engine="compiled"))[0].request.options.engine == "compiled"
    assert runs_of(board, tasks=["bad"]) == runs_of(board)[1:]
    without = {"tiny": {"methods": {"ngram": None}}}
    runs = runs_of(load_suite(str(written(tmp_path, pairs=without, published=[]))))
    assert [run.task.label for run in runs] == ["good"]
    with pytest.raises(ConfigError, match="no such pair: did you mean 'tiny'"):
        runs_of(board, pair="tinny")


def pair_rows(board: SuiteSpec, pair: str, rows: list[Row]) -> PairRows:
    """The rows of the first task of a pair."""
    runs = runs_of(board, pair=pair)
    return PairRows(board, pair, [(run, rows if number == 0 else []) for number, run in enumerate(runs)])


def row(method: str, subset: str = "en", **metrics: float) -> Row:
    found = {name: Estimate(value=value) for name, value in metrics.items()}
    return Row(**{**FIELDS, "method": f"{method}@1:abc", "subset": subset, "quality": "accuracy", "metrics": found})


def test_ours_stands_beside_figures_of_its_own_pair_in_their_unit(tmp_path: Path) -> None:
    board = load_suite(str(written(tmp_path)))
    family = FairnessSummary(groups=("en",), unfairness=Estimate(value=0.3), spreads={}, correlations=Correlations())
    rows = [
        row("sd", "all", acceptance_rate=0.5, tokens_per_second=12, accuracy=0.75),
        row("sd", "en", acceptance_rate=0.7),
        row("ngram", tokens_per_second=9).model_copy(update={"fairness": family}),
        row("ar", tokens_per_second=8),
    ]
    found = pair_rows(board, "tiny", rows)
    sd = FigureReference(task="good", method="sd", pair="tiny", metric="acceptance_rate", scale=100)
    assert found.our_value(sd) == 50 and found.our_value(sd.within(FigureReference(subset="en"))) == pytest.approx(70)
    assert found.our_value(sd.within(FigureReference(metric="quality"))) == 75
    assert found.our_value(sd.within(FigureReference(subset="de"))) is None
    assert found.our_value(sd.within(FigureReference(pair="other"))) is None
    anyone = FigureReference(task="good", method="ar", metric="tokens_per_second")
    assert found.our_value(anyone.within(FigureReference(target="org/target"))) == 8
    assert found.our_value(anyone.within(FigureReference(target="org/other"))) is None
    rate = FigureReference(task="good", method="sd", metric="tokens_per_second")
    assert found.our_value(rate.within(FigureReference(minus="ar"))) == 4
    assert found.our_value(rate.within(FigureReference(change_from="ar"))) == pytest.approx(50)
    assert found.our_value(rate.within(FigureReference(method="ngram", metric="fairness.unfairness"))) == 0.3
    assert found.our_value(rate.within(FigureReference(metric="fairness.unfairness"))) is None


def test_the_embedded_family_stands_beside_every_pair(tmp_path: Path) -> None:
    pairs = {**BOARD["pairs"], "embedded": {"methods": {"sd": "fsd"}}}
    board = load_suite(str(written(tmp_path, pairs=pairs)))
    found = pair_rows(board, "embedded", [row("fsd", acceptance_rate=0.25)])
    assert found.our_value(FigureReference(task="good", method="sd", pair="other", metric="acceptance_rate")) == 0.25


def test_a_measured_vicuna_stands_beside_no_figure_of_gemma_or_llama() -> None:
    rows = [row("pretrain-finetune", subset, speedup_e2e=value) for subset, value in (("all", 1.4), ("zh-en", 1.5))]
    found = as_records(pair_rows(load_suite("p3"), "vicuna-7b", rows))
    assert {(each["table"], each["row"], each["column"]): each["ours"] for each in found if each["ours"]} == {
        ("1", "SpS, pretrain-and-finetune", "T = 0.0 Zh→En"): 1.5,
        ("1", "SpS, pretrain-and-finetune", "T = 0.0 Avg"): 1.4,
    }


def test_what_was_never_measured_is_said(tmp_path: Path) -> None:
    board = load_suite(str(written(tmp_path)))
    console = Console(width=100, file=StringIO())
    for part in published_tables(pair_rows(board, "tiny", [row("sd", tokens_per_second=41)])):
        console.print(part)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}
    assert lines["SD"] == ["50.5±1.0", "–", "20.50", "41.00", "2.00", "0.47", "–"]
    assert lines["Medusa"] == ["60.0", "–", "30.00", "–", "0.50", "–"] and "–: not measured" in printed
    assert "published on: 1 * A100" in printed and "- everything" in printed


def test_rows_beside_the_board_are_shown_where_no_folder_has_any(tmp_path: Path) -> None:
    path = written(tmp_path, tasks=[*BOARD["tasks"], {"name": "twin", "task": "mgsm", "methods": ["sd", "pld"]}])
    run = runs_of(load_suite(str(path)))[0]
    names = dict(sorted((method.partition("@")[0], (task, method)) for task, method in run.row_names()))
    request = {**run.request.settings(), "device": "cuda", "limit": 9}
    ar, sd = (
        row(name).model_copy(update={"task": names[name][0], "method": names[name][1], "request": request})
        for name in ("ar", "sd")
    )
    other = sd.model_copy(update={"drafter": "org/another", "request": {**request, "drafter": "org/another"}})
    old = sd.model_copy(update={"task": "mgsm@1:older"})
    write(path.with_suffix(".json"), [ar, sd, other, old])
    (found,) = measured_pairs(str(path), "tiny", None)
    rows = {run.task.label: rows for run, rows in found.runs}
    assert rows == {"good": [ar, sd], "bad": [ar], "twin": []}, "the twin has other subsets"
    assert not measured_pairs(str(path), "other", None)[0].measured


def test_a_board_of_few_prompts_and_of_older_methods_says_so(tmp_path: Path) -> None:
    run = runs_of(load_suite(str(written(tmp_path))), runs=tmp_path)[0]
    names = sorted(run.row_names())
    own = [row("sd").model_copy(update={"task": task, "method": method, "request": run.request.settings()})
           for task, method in names]  # fmt: skip
    assert outdated_line(run, own) is None and outdated_line(run, []) is None
    assert "other versions" in str(outdated_line(run, [own[0].model_copy(update={"method": "sd@0:old"})]))
    speed = Estimate(value=2, low=1, high=3)
    found = pair_rows(run.suite, "tiny", [own[1].model_copy(update={"metrics": {"speedup": speed}})])
    assert any("fewer than 30 prompts in good" in line for line in pair_table(found).caption)
    assert "not measured: bad" in pair_table(found).caption


def test_a_board_of_which_nothing_is_measured_says_how_to_measure_it(
    specbench: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = specbench("board", "show", "p0", "--pair", "embedded")
    first = out.lstrip().splitlines()[0]
    assert code == 0 and first.startswith("p0 · embedded: not measured yet")
    assert first.endswith("specbench board run p0 --pair embedded") and "ours\n" not in out


def test_the_list_says_what_needs_a_download_and_how_much_is_published() -> None:
    rows = {row[0]: row[1:] for row in boards_table().rows}
    assert rows["p4"][2:] == ["embedded", "33", "6", "9"]
    assert rows["demo"][2:] == ["embedded", "–", "7", "–"]


def test_a_board_without_a_pair_says_in_short_what_each_pair_needs(
    specbench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.publish.tables.gpu_gigabytes", lambda: 80.0)
    code, out, _ = specbench("board", "show", "eagle3")
    needed = " ".join(out.partition("llama3.1-8b")[2].partition("llama3.3-70b")[0].split())
    assert code == 0 and len(out.splitlines()) < 40 and "published, but not measured here: table 1; " in out
    assert "meta-llama/Llama-3.1-8B-Instruct * 16 yes 0 of 8" in needed and "EAGLE3-LLaMA3.1-Instruct-8B" in needed
    assert "this machine's GPU has 80 GB" in out and "gated" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if " of 8" in line}
    assert lines["embedded"][-4:] == ["yes", "0", "of", "8"] and "no" in lines["llama3.3-70b"]


def test_the_weights_of_a_pair_are_read_from_the_names_of_its_models() -> None:
    def of(*names: str) -> tuple[str, str]:
        return weights_and_fit(PairSpec(target=names[0], drafter=names[1] if len(names) > 1 else None), 24.0)

    assert of("lmsys/vicuna-7b-v1.3", "double7/vicuna-68m") == ("14", "yes")
    assert of("mistralai/Mixtral-8x22B-Instruct-v0.1") == ("352", "no")
    assert of("microsoft/phi-4", "Qwen/Qwen2.5-0.5B-Instruct") == ("≥ 1", "unknown")
    assert weights_and_fit(PairSpec(target="lmsys/vicuna-7b-v1.3"), None) == ("14", "–")
    assert weights_and_fit(PairSpec(), None) == ("–", "–")
    assert of("openai-community/gpt2-xl") == ("–", "unknown") and of("org/12b", "org/x") == ("≥ 24", "no")


def test_a_board_is_run_resumed_and_shown(
    specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("specbench.publish.suite.MeasuringProcess", InProcess)
    pairs = {"tiny": {"target": tiny_pair[0], "drafter": tiny_pair[1]}, "other": {"target": "org/other"}}
    board = str(written(tmp_path, pairs=pairs))
    asked = ("board", "run", board, "--pair", "tiny", "--data", "sample", "--limit", "2", "--leaderboard", "all.json")
    code, out, err = specbench(*asked)
    assert code == 1 and "FAILED: " in err and "drafter.path" in err
    assert "measuring one example of each task on each pair (2)" in err
    assert "1 of 2 runs FAILED" in out and "tiny · bad · s0: " in out and "specbench run --task mgsm" in out
    rows = load("all.json")
    assert {row.method.partition("@")[0] for row in rows} == {"ar", "sd"} and all(row.n == 2 for row in rows)
    assert {row.run for row in rows} == {"runs/suites/mine/tiny/good/s0"}
    records = tmp_path / "runs" / "suites" / "mine" / "tiny" / "good" / "s0" / "records.jsonl"
    before = records.read_bytes()

    code, out, err = specbench(*asked, "--task", "good")
    assert code == 0 and "1 run, 1 measured already" in err and records.read_bytes() == before

    code, out, _ = specbench("board", "show", board, "--json")
    found = {(each["row"], each["column"]): each for each in json.loads(out)}
    mine = next(row for row in rows if row.method.startswith("sd@"))
    rate = mine.metrics["tokens_per_second"].value
    assert rate and found["SD", "tok/s"]["ours"] == rate and found["SD", "tok/s"]["ratio"] == rate / 20.5
    assert found["SD", "D"]["ours"] > 0 and found["SD", "α"]["published_spread"] == 1.0
    assert found["of another pair", "α"]["ours"] is None and found["Medusa", "α"]["ours"] is None
    code, out, _ = specbench("board", "show", board)
    assert code == 0 and "not measured" in out and "A pair" in out and "requirements of its pairs" in out
    assert "measured with --data sample, --limit 2; the suite now asks for --data –, --limit 1" in " ".join(out.split())

    write("other.json", [each.model_copy(update={"device": "GPU"}) for each in rows])
    code, _, err = specbench(*asked[:-1], "other.json", "--limit", "3")
    assert code == 2 and "device = GPU" in err and "nothing was measured" in err
    assert len(records.read_bytes().splitlines()) == 2

    code, _, err = specbench("board", "run", board, "--pair", "tiny", "--task", "god")
    assert code == 2 and "did you mean 'good'" in err
    code, _, err = specbench("board", "show", "p5")
    assert code == 2 and "unknown board 'p5'" in err
    code, _, err = specbench("board", "show", board, "--runs", "elsewhere")
    assert code == 2 and "--runs elsewhere: no such folder" in err
