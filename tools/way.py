"""Counts the way of a request to the first forward pass, and of a record to its row.

    python -m tools.way [--source FOLDER]

A trace notes the files of the package of which a function is called (not those that are only imported), and the calls
of a function into a package of a higher layer, by the layers of docs/contributing.md. `--source`: the checkout to
trace, by default this one; that of another commit is traced with its own layers.

The request is `run --task mgsm --method sd --subset en --limit 1` on the embedded pair, up to the first pass of a
network from transformers. The way of a record is what `leaderboard validate --records` enters besides what it enters
without `--records`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from specbench.core.table import Table, number_columns, text_columns

ROOT = Path(__file__).resolve().parents[1]
RUN = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1",
       "--set", "generation.max_new_tokens=4", "--output", "run"]  # fmt: skip
VALIDATE = ["leaderboard", "validate", "run/leaderboard.json"]
TRACE = """
import json, os, sys
import specbench
root, levels = os.path.dirname(specbench.__file__) + os.sep, {}
files, frames, upwards = set(), [], {}

def module(frame):
    name = frame.f_code.co_filename
    return name[len(root):] if name.startswith(root) else None

def level(name):
    return levels.get(name.split(os.sep)[0].removesuffix(".py"))

def is_imported(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and module(frame) is not None:
            return True
        frame = frame.f_back
    return False

def caller(frame):
    frame = frame.f_back
    while frame is not None and module(frame) is None:
        frame = frame.f_back
    return frame and module(frame)

def note(frame, event, argument):
    name = module(frame)
    if event != "call" or name is None or is_imported(frame):
        return
    files.add(name)
    before = caller(frame)
    if before and level(name) is not None and level(before) is not None and level(name) > level(before):
        upwards[f"{before} -> {name}: {frame.f_code.co_name}"] = True

def trace(all_levels):
    levels.update(all_levels)
    sys.settrace(note)

def tell():
    sys.settrace(None)
    print("WAY", json.dumps({"files": sorted(files), "upwards": list(upwards), "frames": frames}), file=sys.stderr)

def tell_at_first_pass(then):
    import torch
    from transformers import PreTrainedModel
    call = torch.nn.Module.__call__
    def first_pass(given, *arguments, **named):
        if isinstance(given, PreTrainedModel):
            frame = sys._getframe(1)
            while frame is not None:
                if module(frame) is not None:
                    frames.insert(0, frame.f_code.co_name)
                frame = frame.f_back
            tell()
            torch.nn.Module.__call__ = call
            then()
        return call(given, *arguments, **named)
    torch.nn.Module.__call__ = first_pass
"""
PROGRAM = f"""{TRACE}
of_source, up_to_pass, sys.argv = json.loads(sys.argv[1]), sys.argv[2] == "pass", ["specbench", *sys.argv[3:]]
if up_to_pass:
    tell_at_first_pass(lambda: os._exit(0))
from specbench.cli import main
trace(of_source)
try:
    main()
except SystemExit:
    pass
tell()
"""


def layers(source: Path) -> dict[str, int]:
    """Returns the level of each package of a checkout, 0 for the lowest."""
    page = (source / "docs/contributing.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^cli.* > core$", page, re.M)
    return {name: number for number, layer in enumerate(reversed(line.split(" > "))) for name in layer.split(", ")}


def way(source: Path, folder: Path, words: list[str], *, up_to_pass: bool) -> dict[str, list[str]]:
    """Returns what a command enters: its files, the calls into a higher layer, and the frames above the first pass."""
    program = [sys.executable, "-c", PROGRAM, json.dumps(layers(source)), "pass" if up_to_pass else "all", *words]
    variables = {**os.environ, "PYTHONPATH": str(source)}
    return told(subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True).stderr)


def told(output: str) -> dict[str, list[str]]:
    """Returns what TRACE wrote among the lines of a process."""
    lines = [line for line in output.splitlines() if line.startswith("WAY ")]
    assert lines, output
    return dict(json.loads(lines[-1].removeprefix("WAY ")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT)
    parser.add_argument("--verbose", action="store_true", help="list files and calls")
    given = parser.parse_args()
    source = given.source.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        request = way(source, folder, RUN, up_to_pass=True)
        variables = {**os.environ, "PYTHONPATH": str(source)}
        program = [sys.executable, "-c", "from specbench.cli import main; main()", *RUN]
        subprocess.run(program, cwd=folder, env=variables, check=True, capture_output=True)
        without = way(source, folder, VALIDATE, up_to_pass=False)
        whole = way(source, folder, [*VALIDATE, "--records"], up_to_pass=False)
    record = {key: [each for each in whole[key] if each not in without[key]] for key in ("files", "upwards")}
    columns = (*text_columns("way"), *number_columns("files entered", "calls into a higher layer", "frames"))
    rows = [
        ["request → first forward pass", len(request["files"]), len(request["upwards"]), len(request["frames"])],
        ["record → row", len(record["files"]), len(record["upwards"]), "–"],
    ]
    print(Table("", columns, [[str(cell) for cell in row] for row in rows]).markdown())
    if given.verbose:
        print(yaml.safe_dump({"request": request, "record": record}, sort_keys=False))


if __name__ == "__main__":
    main()
