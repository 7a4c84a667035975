"""The board of real models as a bundle, and cells that were measured twice."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.publish.bundle.signature import sign
from specbench.publish.bundle.verify import verified, verify
from specbench.results.leaderboard import load
from specbench.results.level import level_of
from specbench.results.row import Row
from tests.support.board_repositories import git
from tests.support.bundles import independent_runs
from tools.commands import ROOT
from tools.real.archive import pack
from tools.real.board import Archives
from tools.real.cells import CELLS, Cell, Data
from tools.real.reruns import (
    FIGURES,
    NO_ROW,
    ComparedRow,
    Figures,
    bundle_of,
    earlier_editions,
    figures,
    has_change,
    known_reruns,
    moved,
    reruns_part,
    write_figures,
)

COMMITTED = Archives(ROOT / "leaderboards" / "real.json")
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archives, Cell]:
    """A cell of the embedded pair in a checkout of its own, whose history has an earlier edition, and a commit that
    took it away."""
    folder = tmp_path_factory.mktemp("checkout")
    archives = Archives(folder / "real.json")
    cell = Cell("twice", "main", Data("mgsm", "mgsm", 6, 6, ("en",)), ("sd",), 1)
    git(folder, "init", "-q")
    first, second = independent_runs(tmp_path_factory.mktemp("runs"), 2)
    for run in (first, None, second):
        archives.archive(cell).unlink(missing_ok=True)
        if run is not None:
            pack(run, archives.archive(cell))
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "a measurement")
    return archives, cell


def test_editions_of_the_history_are_compared(
    twice: tuple[Archives, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, cell = twice
    assert len(earlier_editions(archives.archive(cell))) == 1
    (found,) = figures(archives, [cell], tmp_path / "scratch").cells
    assert found.later.digest != found.earlier.digest and found.later.commit != found.earlier.commit is not None
    by_method = {row.method: row for row in found.rows}
    assert set(by_method) == {"ar", "sd"} and all(row.problem is None for row in found.rows)
    assert all(row.answers is not None and row.answers.equal == row.answers.compared == 6 for row in found.rows)
    assert by_method["sd"].changes["mean_acceptance_length"].ratio.value == 1.0
    assert {"speedup", "tokens_per_second_ar"} <= set(by_method["sd"].changes)
    monkeypatch.setattr("tools.real.reruns.CELLS", (cell,))
    write_figures(archives, tmp_path / "again", tmp_path / "figures.json")
    known = known_reruns(archives, tmp_path / "figures.json")
    text = reruns_part(known)
    assert "## Measured again" in text and "| sd | " in text and "6 of 6" in text and "hours later" in text
    assert "AR ran at" in text and "GB/s" not in text
    ratio = by_method["sd"].changes["speedup"]
    assert ratio.ratio.value is not None and ratio.error is not None
    assert "1 rows that" in moved(known) and f"had {ratio.ratio.value:.2f} (sd of twice)" in moved(known)
    assert f"and {int(ratio.error > 1)} of them another one" in moved(known)


def test_an_edition_of_another_configuration_is_told_and_not_compared(
    twice: tuple[Archives, Cell], tmp_path: Path
) -> None:
    archives, cell = twice
    (found,) = figures(archives, [cell], tmp_path / "scratch").cells
    other = found.model_copy(
        update={"rows": tuple(ComparedRow(method=row.method, problem=NO_ROW) for row in found.rows)}
    )
    text = reruns_part([other])
    assert "of another configuration in all rows" in text and "measured twice" not in text and "| sd |" not in text
    assert moved([other]) == "" == reruns_part([])


def test_a_commit_has_a_change_if_it_follows_it(twice: tuple[Archives, Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = twice[0].board.parent
    monkeypatch.setattr("tools.real.reruns.ROOT", folder)
    words = ["git", "-C", str(folder), "log", "--format=%H"]
    last, *_, first = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert has_change(last, first) is True and has_change(f"{last}-dirty-01234567", first) is True
    assert has_change(first, last) is False
    assert has_change("0" * 40, first) is None and has_change(None, first) is None


def test_figures_of_other_archives_are_not_shown(
    twice: tuple[Archives, Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, cell = twice
    monkeypatch.setattr("tools.real.reruns.CELLS", (cell,))
    found = write_figures(archives, tmp_path / "scratch", tmp_path / "figures.json")
    stale = found.cells[0].model_copy(update={"later": found.cells[0].later.model_copy(update={"digest": "0" * 64})})
    (tmp_path / "stale.json").write_text(Figures(cells=(stale,)).model_dump_json())
    assert known_reruns(archives, tmp_path / "stale.json") == known_reruns(archives, tmp_path / "absent.json") == []


def test_cells_that_measured_the_same_method_are_compared(twice: tuple[Archives, Cell], tmp_path: Path) -> None:
    archives, cell = twice
    (earlier,) = earlier_editions(archives.archive(cell))
    both = Archives(tmp_path / "real.json")
    first, second = (replace(cell, name=name) for name in ("first", "second"))
    both.archive(first).parent.mkdir()
    both.archive(first).write_bytes(earlier.content)
    shutil.copy(archives.archive(cell), both.archive(second))
    (found,) = figures(both, [second, first], tmp_path / "scratch").cells
    assert {found.before, found.cell} == {"first", "second"} and found.earlier.measured <= found.later.measured
    assert {row.method: row.problem for row in found.rows} == {"ar": None, "sd": None}


def test_a_bundle_of_the_cells_has_the_earlier_editions(twice: tuple[Archives, Cell], tmp_path: Path) -> None:
    archives, cell = twice
    told = bundle_of(archives, [cell], tmp_path / "twice.tar.gz", tmp_path / "scratch")
    assert told.endswith("2 runs, 1 of them earlier editions")
    with verified([tmp_path / "twice.tar.gz"]) as [found]:
        verification = verify([found])
        marks = [verification.level_of(found, each).rerun for each in found.rows]
        assert not found.problems and all(mark is not None and mark.num_runs == 2 for mark in marks)


def test_the_page_has_the_committed_figures() -> None:
    page = (ROOT / "docs" / "measured" / "real.md").read_text(encoding="utf-8")
    known = known_reruns(COMMITTED)
    section = reruns_part(known).strip("\n")
    assert section and section in page and moved(known) in page
    found = Figures.model_validate_json(FIGURES.read_text(encoding="utf-8")).cells
    editions = {each.cell: each for each in found if each.before is None}
    cells = {cell.name: cell for cell in CELLS}
    assert {"gsm8k-chains", "humaneval-chains"} <= set(editions)
    assert all(len(each.rows) == 1 + len(cells[name].methods) for name, each in editions.items())
    assert ("spec-bench-chains", "spec-bench-levels") in {(each.before, each.cell) for each in found}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A throw-away key, and a file of allowed signers beside it."""
    path = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    public = path.with_suffix(".pub").read_text().strip()
    path.with_name("allowed").write_text(f'board@example.org namespaces="specbench-bundle" {public}\n')
    return path


@needs_ssh
def test_a_cell_of_the_board_is_signed_and_verified(
    specbench: Callable[..., tuple[int, str, str]], key: Path, tmp_path: Path
) -> None:
    """From its committed archive, away from the checkout."""
    cell = next(cell for cell in CELLS if cell.name == "wmt-chains")
    archives = Archives(tmp_path / "real.json")
    archives.archive(cell).parent.mkdir()
    shutil.copy(COMMITTED.archive(cell), archives.archive(cell))
    bundle_of(archives, [cell], tmp_path / "wmt.tar.gz", tmp_path / "scratch")
    sign(tmp_path / "wmt.tar.gz", key)
    code, out, err = specbench("bundle", "verify", "wmt.tar.gz", "--signers", "allowed")
    assert code == 0, err
    assert "signed by board@example.org" in out and "4 of 4 rows recomputed" in out and "Apache-2.0" in out


def measured_by(row: Row) -> tuple[object, ...]:
    """What cells share that have measured the same: task, subset and method, the models as they were, the dtype, the
    folder of the rows, which are others for what is chosen on them, the temperature and top-k."""
    folder = Path(row.data_location or "").parent.name
    models = row.target, row.target_revision, row.drafter_revision
    return row.names, *models, row.dtype, folder, row.sampling.temperature, row.sampling.top_k


@needs_ssh
@pytest.mark.slow
def test_the_board_of_real_models_is_a_bundle(key: Path, tmp_path: Path) -> None:
    """All rows are recomputed and signed; those that were measured again have the mark, and no others."""
    bundle = tmp_path / "real-models.tar.gz"
    archives = {cell: COMMITTED.archive(cell) for cell in CELLS}
    measured_again = [cell for cell, archive in archives.items() if archive.is_file() and earlier_editions(archive)]
    if not measured_again:
        pytest.skip("the history of Git is not here")
    bundle_of(COMMITTED, CELLS, bundle, tmp_path / "scratch")
    sign(bundle, key)
    with verified([bundle], key.with_name("allowed")) as [found]:
        assert found.all_problems() == [] and found.num_recomputed == len(found.rows) > 150
        runs = {run.name for run in found.runs}
        rows = load(COMMITTED.board)
        levels = verify([found]).levels_of(rows)
    assert {cell.name for cell, archive in archives.items() if archive.is_file()} < runs
    found_levels = [(row, level_of(row, levels)) for row in rows]
    assert all(each.name == "recomputed" and each.signed_by == ("board@example.org",) for _, each in found_levels)
    again = [(row, each.rerun) for row, each in found_levels if each.rerun is not None]
    # Some cells were measured twice, and several cells have measured the same AR or method. Of a sampled AR nothing is
    # compared.
    compared = [row for row in rows if not (row.is_baseline and row.sampling.temperature)]
    several = {key for key, num_cells in Counter(map(measured_by, compared)).items() if num_cells > 1}
    pairs = Figures.model_validate_json(FIGURES.read_text(encoding="utf-8")).cells
    assert {pair.cell for pair in pairs if pair.before is None} == {cell.name for cell in measured_again}
    same = {(f"real/{pair.cell}", row.method) for pair in pairs if pair.before is None for row in pair.rows
            if row.problem is None}  # fmt: skip
    twice = {measured_by(row) for row in compared if (row.run, row.method_name) in same}
    assert several | twice
    assert {measured_by(row) for row, _ in again} == several | twice
    # What does not agree is on the page, with its reason.
    tasks = {cell.name: cell.data.task for cell in CELLS}
    told = {(tasks[pair.cell], row.method) for pair in pairs for row in pair.rows if row.agrees is False}
    assert {(row.task_name, row.method_name) for row, rerun in again if not rerun.agrees} == told
