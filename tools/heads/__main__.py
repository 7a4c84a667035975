"""Trains draft heads and a drafter for a public target on its own answers, measures them, and writes
docs/measured/heads.md.

All parts take hours. docs/measured/heads.json keeps what is shown of every part that is measured, and the same command
goes on with the others, on any machine. Weights and records stay in the work folder.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import transformers

from specbench.core.files import write_atomically
from tools.commands import ROOT, link
from tools.drafters.workplace import Workplace

from .page import FILE, PICTURE, Measured, draw, page, point_of, read, write
from .parts import GUESSED, PARTS, measure, train
from .prompts import digest_of, split_rows

OUTPUT = ROOT / "docs" / "measured"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.heads", description=__doc__)
    parser.add_argument("model", nargs="?", help="target: a folder or a hub id")
    parser.add_argument("--data", type=Path, help="folder with gsm8k/*.jsonl and spec_bench/*.jsonl, else the samples")
    parser.add_argument("--work", type=Path, help="work folder; by default runs/heads")
    parser.add_argument("--only", help="comma-separated parts, such as eagle3-32-10")
    parser.add_argument("--list", action="store_true", help="list the parts, with estimates for one idle core")
    parser.add_argument("--page-only", action="store_true", help="train and measure nothing")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the page and its picture")
    given = parser.parse_args()
    names = [part.name for part in PARTS]
    chosen = given.only.split(",") if given.only else names
    if unknown := sorted({*chosen} - {*names}):
        raise SystemExit(f"--only {','.join(unknown)}: no such part: choose among {', '.join(names)}")
    file = given.output / "heads.json"
    if given.list:
        done = {point.part.name for point in FILE.validate_json(file.read_bytes()).points} if file.exists() else set()
        for part in PARTS:
            if part.name in chosen:
                estimate = f"about {part.minutes:.0f} min{', a guess' if part.kind in GUESSED else ''}"
                print(f"{part.name:<16} {'measured' if part.name in done else estimate}")
        return
    if given.model is None:
        parser.error("MODEL is missing")
    place = Workplace((given.work or Path("runs") / "heads").resolve())
    transformers.utils.logging.disable_progress_bar()
    num_prompts = split_rows(place, given.data)
    target = linked(place, given.model)
    measured = read(file, target, digest_of(place))
    for part in PARTS if not given.page_only else ():
        known = {point.part.name: point for point in measured.points}
        if part.name not in chosen or part.name in known or part.num_answers > num_prompts:
            continue
        train(place, part, target)
        measure(place, part, target)
        known[part.name] = point_of(place, part)
        measured = replace(measured, points=tuple(known[name] for name in names if name in known))
        given.output.mkdir(parents=True, exist_ok=True)
        write(file, measured)
        show(measured, given.output, num_prompts)
    show(measured, given.output, num_prompts)


def show(measured: Measured, output: Path, num_prompts: int) -> None:
    """Writes the page and its picture."""
    if measured.points:
        draw(measured.points, output / PICTURE)
        write_atomically(output / "heads.md", page(measured, num_prompts))


def linked(place: Workplace, model: str) -> str:
    """Returns the target's name in commands: a folder is linked below the work folder, so that rows do not name it."""
    if not Path(model).is_dir():
        return model
    name = f"models/{Path(model).resolve().name}"
    link(place.path(name), Path(model))
    return name


if __name__ == "__main__":
    main()
