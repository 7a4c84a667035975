"""Trains draft heads and a drafter for a public target on its own answers, measures them, and writes
docs/measured/heads.md.

All parts take hours. The work folder keeps every part that is done, the page is written after each, and the same
command goes on. Weights stay in the work folder.
"""

import argparse
from pathlib import Path

import transformers

from specbench.core.files import write_atomically
from tools.commands import ROOT, link
from tools.drafters.workplace import Workplace

from .page import PICTURE, draw, page, points
from .parts import PARTS, measure, train
from .prompts import digest_of, split_rows

OUTPUT = ROOT / "docs" / "measured"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.heads", description=__doc__)
    parser.add_argument("model", help="target: a folder or a hub id")
    parser.add_argument("--data", type=Path, help="folder with gsm8k/*.jsonl and spec_bench/*.jsonl, else the samples")
    parser.add_argument("--work", type=Path, help="work folder; by default one of the prompts' digest, under runs")
    parser.add_argument("--only", help="comma-separated parts, such as eagle3-32-10")
    parser.add_argument("--page-only", action="store_true", help="train and measure nothing")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the page and its picture")
    given = parser.parse_args()
    place = Workplace((given.work or Path("runs") / "heads").resolve())
    transformers.utils.logging.disable_progress_bar()
    names = [part.name for part in PARTS]
    chosen = given.only.split(",") if given.only else names
    if unknown := sorted({*chosen} - {*names}):
        raise SystemExit(f"--only {','.join(unknown)}: no such part: choose among {', '.join(names)}")
    num_prompts = split_rows(place, given.data)
    target = linked(place, given.model)
    for part in PARTS if not given.page_only else ():
        if part.name in chosen and part.num_answers <= num_prompts:
            train(place, part, target)
            measure(place, part, target)
            write(place, target, given.output, num_prompts)
    write(place, target, given.output, num_prompts)


def write(place: Workplace, target: str, output: Path, num_prompts: int) -> None:
    """Writes the page and its picture from what is measured."""
    found = points(place)
    output.mkdir(parents=True, exist_ok=True)
    if any(point.ar is not None for point in found):
        draw(found, output / PICTURE)
        write_atomically(output / "heads.md", page(place, found, target, num_prompts, digest_of(place)))


def linked(place: Workplace, model: str) -> str:
    """Returns the target's name in commands: a folder is linked below the work folder, so that rows do not name it."""
    if not Path(model).is_dir():
        return model
    name = f"models/{Path(model).resolve().name}"
    link(place.path(name), Path(model))
    return name


if __name__ == "__main__":
    main()
