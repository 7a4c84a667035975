"""Measures real model pairs cell by cell, and writes leaderboards/real.json, docs/measured/real.md and
docs/measured/drafting.md.

A cell is one run. The records of a finished cell are compressed into leaderboards/real, and the cell is not measured
again while its archive is there. An interrupted cell goes on from its folder in the work folder.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.core.files import write_atomically
from tools.commands import ROOT

from .archive import pack, unpack
from .board import Archives
from .cells import CELLS, Cell, chosen
from .drafting import PAGE as DRAFTING_PAGE
from .drafting import page as drafting_document
from .measured import Measured
from .page import page as document
from .reruns import FIGURES, bundle_of, known_reruns, moved, reruns_part, write_figures
from .workplace import TRAINED, Workplace


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.real", description=__doc__)
    parser.add_argument("models", type=Path, nargs="?", help="folder of the models", metavar="MODELS_DIR")
    parser.add_argument("--data", type=Path, help="folder of the tasks' rows; by default the bundled samples")
    parser.add_argument("--trained", type=Path, help="drafter of Qwen's vocabulary that s-CDF has trained")
    parser.add_argument("--train", action="store_true", help="train that drafter first, into the work folder")
    parser.add_argument("--only", nargs="+", default=[], metavar="CELL", help="measure only these cells")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--work", type=Path, default=Path("runs") / "real-work", help="work folder")
    parser.add_argument("--board", type=Path, default=ROOT / "leaderboards" / "real.json", help="leaderboard file")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "measured" / "real.md", help="the page")
    parser.add_argument("--trial", action="store_true", help="one prompt of 16 tokens in each subset, all below --work")
    parser.add_argument("--list", action="store_true", help="list the cells")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: board and page from the archives")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="measure nothing: one bundle of all archives")
    parser.add_argument("--reruns", action="store_true", help="measure nothing: compare cells with earlier editions")
    given = parser.parse_args()
    cells = chosen(given.only)
    if given.trial:
        cells = [replace(cell, data=replace(cell.data, limit=1, tokens=16)) for cell in cells]
        given.board, given.page = given.work / "trial" / "real.json", given.work / "trial" / "real.md"
        given.work = given.work / "trial"
    archives = Archives(given.board.resolve())
    if given.list:
        list_cells(cells, archives)
        return
    if given.bundle is not None or given.reruns:
        with TemporaryDirectory(prefix="specbench-real-") as scratch:
            if given.bundle is not None:
                print(bundle_of(archives, cells, given.bundle.resolve(), Path(scratch) / "bundle"))
            if given.reruns:
                print(f"{FIGURES}: {len(write_figures(archives, Path(scratch) / 'reruns').cells)} pairs of editions")
        return
    if given.page_only:
        write(archives, given.page)
        return
    if given.models is None:
        parser.error("MODELS_DIR is missing: the folder of the models")
    work = given.work.resolve()
    trained = work / TRAINED if given.train or (work / TRAINED / "training.json").is_file() else None
    place = Workplace(work, given.models.resolve(), given.data, given.trained or trained, given.threads)
    place.prepare()
    if given.train:
        place.train()
    write(archives, given.page)
    try:
        failed = [cell.name for cell in cells if not measure(cell, place, archives, given.page)]
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on") from None
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def list_cells(cells: list[Cell], archives: Archives) -> None:
    """Prints the cells with their estimates, and the sum of those that are not measured."""
    left = 0
    for cell in cells:
        is_measured = archives.archive(cell).is_file()
        left += 0 if is_measured else cell.minutes
        state = "measured" if is_measured else f"{cell.minutes} min ({left / 60:.1f} h)"
        print(f"{cell.name:<26} {state:>15}  {cell.data.num_prompts:>3} prompts  {', '.join(cell.methods)}")


def measure(cell: Cell, place: Workplace, archives: Archives, page: Path) -> bool:
    """Measures a cell unless its archive is there. Returns whether nothing went wrong."""
    if archives.archive(cell).is_file():
        print(f"{cell.name}: measured", flush=True)
        return True
    for name in cell.after:
        if archives.file(name).is_file() and not place.has_finished(name):
            unpack(archives.file(name), place.run_folder(name))
    if (missing := place.missing(cell)) is not None:
        print(f"{cell.name}: left out: {missing}", flush=True)
        return True
    print(f"{cell.name}: about {cell.minutes} minutes", flush=True)
    start = time.monotonic()
    if not place.measure(cell):
        return False
    pack(place.run_folder(cell.name), archives.archive(cell))
    print(f"{cell.name}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    write(archives, page)
    return True


def write(archives: Archives, page: Path) -> None:
    """Writes the board and the page from all archives."""
    measured = archives.measured(CELLS)
    for name, reason in archives.write_board(measured).items():
        print(f"{name}: not on the board: {reason}", flush=True)
    found, reruns = Measured({cell.name: archives.unpacked(cell) for cell in measured}), known_reruns(archives)
    write_atomically(page, document(found, reruns_part(reruns), moved(reruns)))
    write_atomically(page.with_name(DRAFTING_PAGE), drafting_document(found))


if __name__ == "__main__":
    main()
