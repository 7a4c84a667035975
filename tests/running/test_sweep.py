"""`specbench run --sweep`: a folder for each point, one table with paired changes, pooled seeds, and a figure."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from specbench.api import compare, load, run
from specbench.core.errors import ConfigError
from specbench.publish.paper.figures import read_drawing
from specbench.publish.paper.rows import Selection, read_rows
from specbench.publish.paper.table import sweep_tables
from specbench.records.records import RecordFile
from specbench.report.sweep import RowsOfSweep, sweep_table
from specbench.results.answers import answers_of
from specbench.results.leaderboard import write
from specbench.results.runs import finished_run, points_in
from specbench.results.sweeps import is_sweep, read_sweeps
from specbench.running.request import Request
from specbench.running.sweep import run_sweep, sweep_requests
from specbench.specs.run_options import RunOptions
from tests.support import tiny

SWEEPS = ("context=32,64", "seed=0,1")
NUM_NEW = 6


def requests_into(
    folder: Path, sweeps: tuple[str, ...] = SWEEPS, method: str = "pld", **options: object
) -> list[Request]:
    given = {
        "subsets": ("qmsum",), "target": "embedded:drafter", "data": "sample", "threads": 1, "limit": 2,
        "overrides": (f"generation.max_new_tokens={NUM_NEW}",), **options,
    }  # fmt: skip
    request = Request(["scrolls"], [method], RunOptions(**given), "specbench run", output=folder)
    return sweep_requests(request, sweeps)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    overrides = (f"generation.max_new_tokens={NUM_NEW}", "generation.temperature=1")
    assert run_sweep(requests_into(folder, overrides=overrides), Console(quiet=True)) == folder
    return folder


def test_each_point_has_a_folder_and_prompts_are_cut_from_the_middle(swept: Path) -> None:
    names = ["context=32,seed=0", "context=32,seed=1", "context=64,seed=0", "context=64,seed=1"]
    assert is_sweep(swept) and not is_sweep(swept / names[0])
    assert [path.name for path in points_in(swept)] == names
    for name in names:
        context = int(name[8:10])
        run = finished_run(swept / name)
        for record in RecordFile(swept / name / "records.jsonl").stream():
            assert record.prompt_tokens is not None and context - 4 <= record.prompt_tokens <= context
            assert record.truncated_tokens > 0 and record.budgets == {"embedded:drafter": context}
        for row in run.rows:
            assert row.request["sweep"] == {"context": context, "seed": int(name[-1])} and row.seed == int(name[-1])
    digests = {finished_run(swept / name).rows[0].task for name in names}
    assert len(digests) == 2  # rows of different contexts never share a table


def test_seeds_are_pooled_by_prompt_and_points_are_paired(swept: Path) -> None:
    (sweep,) = read_sweeps([swept])
    assert sweep.task == "scrolls" and sweep.conditions == ("context",)
    assert [(dict(each.values), each.seeds, each.row.repeats, each.row.n) for each in sweep.rows] == [
        ({"context": 32}, (0, 1), 2, 2), ({"context": 64}, (0, 1), 2, 2)
    ]  # fmt: skip
    # 1. The pooled numbers are the sums over the records of both seeds.
    totals = []
    for each, context in zip(sweep.rows, (32, 64), strict=True):
        records = [
            record for seed in (0, 1)
            for record in RecordFile(swept / f"context={context},seed={seed}" / "records.jsonl").stream()
        ]  # fmt: skip
        own = answers_of(records, "pld")
        emitted, passes = np.array([answer.emitted_by_passes for answer in own]).sum(axis=0).tolist()
        totals.append(emitted / passes)
        assert each.row.value("mean_acceptance_length") == pytest.approx(emitted / passes)
        speeds = []
        for answers in (own, answers_of(records, "ar")):
            timed = [answer for answer in answers if answer.num_timed_tokens > 0]
            speeds.append(sum(a.num_timed_tokens for a in timed) / sum(a.decode_seconds for a in timed))
        assert each.row.value("tokens_per_second_ar") == pytest.approx(speeds[1], rel=0.2)
        assert len({answer.key for answer in each.side.own}) == len(each.side.own) == 4
        assert each.prompt_tokens == pytest.approx(np.mean([record.prompt_tokens for record in records]))
    # 2. The change pairs the answers about the same documents, although their prompts were cut differently.
    first, second = sweep.rows
    change = sweep.change(second, "mean_acceptance_length")
    assert sweep.change(first, "mean_acceptance_length") is None and change is not None and change.paired
    assert change.change.value == pytest.approx(totals[1] / totals[0])


def test_the_table_says_how_contexts_were_cut_and_what_is_pooled(swept: Path) -> None:
    (sweep,) = read_sweeps([swept])
    table = sweep_table(sweep)
    assert [row[:2] for row in table.rows if row] == [["32", "pld"], ["64", "pld"]]
    assert table.rows[0][5] == table.rows[0][7] == "–" and "–" not in table.rows[-1][5]
    said = " ".join(table.caption)
    assert "2 prompts, 2 answers each, pooled over seeds 0, 1; intervals resample prompts" in said
    assert "a longer one loses its middle" in said and "answers about the same documents are paired" in said
    assert "were not cut" not in said
    selection = Selection.of([], ["pld"], [], [], [])
    (chosen,) = sweep_tables(read_rows([swept], selection), ["acceptance_rate"])
    assert chosen.columns[5].heading == "α −\nfirst point"
    with pytest.raises(ConfigError, match="--metric speedups: no row of the sweep has it: did you mean 'speedup'"):
        sweep_tables(read_rows([swept], selection), ["speedups"])


def test_a_figure_has_the_condition_as_its_axis(swept: Path, tmp_path: Path) -> None:
    made = read_drawing("sweep", [swept], Selection(), "mean_acceptance_length")
    (panel,) = made.panels
    assert [(mark.series, mark.x) for mark in panel.marks] == [("pld", 32.0), ("pld", 64.0)]
    assert panel.scale == "log2" and panel.reference is None and panel.x_label == "tokens of a prompt at most"
    assert {line["seeds"] for line in made.data()} == {"0 1"} and made.caption[0].startswith("Tokens per target pass")
    rows = finished_run(swept / "context=32,seed=0").rows
    write(tmp_path / "board.json", [row.model_copy(update={"request": {}, "run": None}) for row in rows])
    with pytest.raises(ConfigError, match="no row is of a sweep: give the folder of `specbench run --sweep`"):
        read_drawing("sweep", [tmp_path / "board.json"], Selection(), None)


def test_the_same_points_in_another_order_are_not_measured_again(swept: Path) -> None:
    before = {path.name: (path / "records.jsonl").read_bytes() for path in points_in(swept)}
    overrides = (f"generation.max_new_tokens={NUM_NEW}", "generation.temperature=1")
    run_sweep(requests_into(swept, ("context=64,32", "seed=1,0"), overrides=overrides), Console(quiet=True))
    assert {path.name: (path / "records.jsonl").read_bytes() for path in points_in(swept)} == before


def test_a_command_and_a_call_give_the_rows_of_all_points(
    swept: Path, specbench: Callable[..., tuple[int, str, str]]
) -> None:
    before = RowsOfSweep.read(swept).rows
    assert [row.request["sweep"] for row in before if row.method_name == "pld"] == [
        {"context": context, "seed": seed} for context in (32, 64) for seed in (0, 1)
    ]  # fmt: skip
    code, out, err = specbench(
        "run", "--task", "scrolls", "--subset", "qmsum", "--method", "pld", "--target", "embedded:drafter", "--data",
        "sample", "--threads", "1", "--limit", "2", "--set", f"generation.max_new_tokens={NUM_NEW}", "--set",
        "generation.temperature=1", "--sweep", SWEEPS[0], "--sweep", SWEEPS[1], "--output", str(swept), "--json",
    )  # fmt: skip
    assert code == 0, err
    printed = json.loads(out)
    assert printed == [row.model_dump(mode="json") for row in RowsOfSweep.read(swept).rows]
    assert [row["metrics"] for row in printed] == [row.model_dump(mode="json")["metrics"] for row in before]
    overrides = {"generation.max_new_tokens": NUM_NEW, "generation.temperature": 1}
    results = run(
        "scrolls", "pld", subset="qmsum", target="embedded:drafter", data="sample", threads=1, limit=2,
        overrides=overrides, sweep={"context": ["32", 64], "seed": [0, 1]}, output=swept, quiet=True,
    )  # fmt: skip
    assert [row.metrics for row in results.rows] == [row.metrics for row in before] and results.path == swept
    assert "sweep=['context=\"32\", 64', 'seed=0, 1']" in results.rows[0].command
    assert len(results.records) == 8 and "scrolls: sweep of context" in str(results)
    assert load(swept).rows == results.rows
    with pytest.raises(ConfigError, match="draw it with `specbench plot sweep"):
        results.plot()
    with pytest.raises(
        ConfigError, match=r"is a sweep: give the folder of one of its points, such as .*context=32,seed=0"
    ):
        compare(results, results)
    with pytest.raises(ConfigError, match="give each condition a list"):
        run("scrolls", "pld", sweep={"context": 32})


def test_what_is_wrong_with_a_point_is_said_before_the_first_is_measured(
    tmp_path: Path, tiny_pair: tuple[str, str]
) -> None:
    folder = tmp_path / "sweep"
    for sweeps, words in (
        (("context=32,100k",), r"context=102400: max_prompt_tokens = 102400: the context of the models is \d+ tokens"),
        (("temperature=0,1000",), "temperature=1000: .*at most 100"),
        (("chat=on,off",), "chat=on: .*has no chat template"),
        (("num_draft_token=1,2",), "num_draft_token=1: .*did you mean 'num_draft_tokens'"),
    ):
        with pytest.raises(ConfigError, match=words):
            run_sweep(requests_into(folder, sweeps), Console(quiet=True))
    # The context of a drafter counts as well as the target's.
    small = tiny.network("gpt2", vocab_size=257, max_position_embeddings=32, num_hidden_layers=1)
    small.save_pretrained(tmp_path / "small")
    tiny.tokenizer().save_pretrained(tmp_path / "small")
    models = {"target": tiny_pair[0], "drafter": str(tmp_path / "small")}
    with pytest.raises(ConfigError, match="context=64: max_prompt_tokens = 64: the context of the models is 32 tokens"):
        run_sweep(requests_into(folder, ("context=16,64",), "sd", **models), Console(quiet=True))
    assert not folder.exists()


def test_only_tasks_that_are_cut_have_contexts(specbench: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = specbench("run", "--task", "gsm8k", "--method", "pld", "--sweep", "context=32,64", "--output", "no")
    assert (
        code == 2 and "max_prompt_tokens = 32: prompts of this task are not cut" in err and len(err.splitlines()) == 1
    )
    code, _, err = specbench(
        "run", "--task", "scrolls", "--method", "pld", "--sweep", "context=32,64", "--plot", "speed.png"
    )
    assert code == 2 and "draw the sweep with `specbench plot sweep FOLDER`" in err
    assert not Path("no").exists()


@pytest.mark.slow
def test_a_command_prints_the_table_and_draws_it(specbench: Callable[..., tuple[int, str, str]]) -> None:
    words = (
        "--task", "scrolls", "--subset", "qmsum", "--method", "pld,sd", "--limit", "2", "--sweep", "context=32,64",
        "--sweep", "temperature=0,1", "--set", f"generation.max_new_tokens={NUM_NEW}",
    )  # fmt: skip
    code, out, err = specbench("run", *words, "--output", "sweep", "--dry-run")
    assert code == 0 and out.count("what would be measured") == 4 and not Path("sweep").exists(), err
    code, out, err = specbench("run", *words, "--output", "sweep")
    assert code == 0 and "scrolls: sweep of context, temperature" in out and "runs: sweep" in out, err
    code, out, err = specbench("run", *words, "--output", "sweep", "--json")
    assert code == 0 and len(json.loads(out)) == 4 * 3, err
    code, out, err = specbench("plot", "sweep", "sweep", "--output", "sweep.svg")
    assert code == 0 and "by context and temperature" in out, err
    lines = csv.DictReader(Path("sweep.csv").read_text().splitlines())
    assert {line["temperature"] for line in lines} == {"0", "1"}
    code, out, err = specbench("table", "sweep", "--format", "latex")
    assert code == 0 and r"\begin{table" in out, err
