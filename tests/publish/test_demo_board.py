"""The committed demo board: complete, of today's tasks, methods and weights, and what its records give."""

from functools import cache
from pathlib import Path

from specbench.models.checkpoints import checkpoint_identity
from specbench.models.loading import model_source
from specbench.publish.suite_runs import SuiteRun, load_suite, runs_of
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import compare_with_run, validate
from specbench.results.row import Row
from specbench.results.runs import RecordedRuns, run_folder_of
from specbench.specs.run_options import RunOptions

FILE = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"
AGAIN = "measure the board again: specbench board run demo --pair embedded --allow-code-execution"


@cache
def all_rows() -> list[Row]:
    return load(FILE)


def rows_of(run: SuiteRun) -> list[Row]:
    return [row for row in all_rows() if row.run == f"demo/{run.task.label}"]


@cache
def runs() -> list[SuiteRun]:
    return runs_of(load_suite("demo"), RunOptions(allow_code_execution=True))


def test_every_run_of_the_board_is_measured_as_it_is_today() -> None:
    targets = set()
    for run in runs():
        rows = rows_of(run)
        assert run.is_measured(rows), f"{run.task.label}: {AGAIN}"
        targets |= {(row.target, row.target_revision) for row in rows}
    for name, revision in targets:
        assert revision == checkpoint_identity(model_source(name), None), AGAIN


def test_the_file_is_whole() -> None:
    found = validate(FILE, with_records=False)
    assert not found.problems and found.num_rows == sum(len(rows_of(run)) for run in runs())


def test_its_rows_are_what_the_records_beside_it_give() -> None:
    rows, runs = all_rows(), RecordedRuns()
    chosen = [row for row in rows if row.task.startswith(("csqa@", "humaneval@"))]
    assert len(chosen) == 16
    for row in chosen:
        folder = run_folder_of(row, FILE)
        assert folder is not None and not compare_with_run(row, runs.at(folder), FILE)[0], row.place
    changed = chosen[1].model_copy(update={"accepted_tokens_per_step": (1,)})
    assert compare_with_run(changed, runs.at(run_folder_of(changed, FILE) or FILE), FILE)[0]
