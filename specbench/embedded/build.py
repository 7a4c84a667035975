"""Makes the members of the embedded family.

`python -m specbench.embedded.build [--smoke] [--output DIR] [--only MEMBER]`.

Without --output the weights go beside this file: members whose version is already there are kept, the others are
trained. With --output DIR everything is made anew in DIR. Seeded, one thread, CPU: two hours, and a quarter of one for
the drafters that are trained from others. The log counts processor seconds.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from specbench.core.resources import builtin_dir
from specbench.embedded.evaluation import figures
from specbench.embedded.family import WEIGHTS, member, read_manifest
from specbench.embedded.making import (
    kept_tokenizers,
    make_member,
    make_tokenizer,
    publish,
    say,
    smoke_version,
    write_json,
)
from specbench.embedded.recipe import MEMBERS
from specbench.embedded.world import WORLDS, held_out_rows
from specbench.embedded.world.choices import mmlu

SAMPLE_SEED, EVALUATION_SEED = 11, 12
MAX_NEW, SMOKE_MAX_NEW = 160, 8


def write_samples(folder: Path) -> None:
    """The bundled held-out rows of every task of the world; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "mmlu-dev.jsonl", mmlu.exemplars())
    for task, world in WORLDS.items():
        if world.num_samples:
            rows = held_out_rows(task, world.num_samples, SAMPLE_SEED)
            write_rows(folder / f"{task}.jsonl", [sample_of(row) for row in rows])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def sample_of(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that a sample has: its subset and id first, nothing of what the world knows besides."""
    public = {key: value for key, value in row.items() if key != "task" and not key.startswith("_")}
    return {"subset": row["subset"], "id": row["id"], **public}


def evaluation_rows(smoke: bool) -> list[dict[str, Any]]:
    """Held-out rows of every task of the world, other draws than the samples."""
    tasks = {task: 1 if smoke else world.num_evaluated for task, world in WORLDS.items() if world.num_evaluated}
    return [row for task, count in tasks.items() for row in held_out_rows(task, count, EVALUATION_SEED)]


def build(output: Path, names: list[str], smoke: bool) -> dict[str, Any]:
    """Make the named members in a folder, with the manifest and the log beside them."""
    output.mkdir(parents=True, exist_ok=True)
    log_path = output / "build.json"
    log: dict[str, Any] = json.loads(log_path.read_text(encoding="utf-8")) if log_path.is_file() else {"members": {}}
    command = "python -m specbench.embedded.build" + " --smoke" * smoke + f" --only {names[0]}" * (len(names) == 1)
    made = kept_tokenizers(output, MEMBERS, names)
    for name in names:
        started = time.process_time()
        recipe = smoke_version(member(name)) if smoke else member(name)
        if recipe.tokenizer not in made:
            made[recipe.tokenizer] = make_tokenizer(recipe.tokenizer, smoke)
        entry = make_member(recipe, made[recipe.tokenizer], output)
        publish(recipe, output)
        entry |= {"command": command, "num_threads": 1,
                  "seconds": round(time.process_time() - started), "versions": versions()}  # fmt: skip
        log["members"][name] = entry
        write_json(log_path, log)
    if (output / "target").is_dir():
        present = [recipe for recipe in MEMBERS if (output / recipe.name).is_dir()]
        log["figures"] = figures(output, present, evaluation_rows(smoke), SMOKE_MAX_NEW if smoke else MAX_NEW)
        log["figures_of"] = {name: entry["digest"] for name, entry in read_manifest(output).items()}
    log["total_seconds"] = sum(entry["seconds"] for entry in log["members"].values())
    write_json(log_path, log)
    return log


def versions() -> dict[str, str]:
    """What a rebuild would need to be the same."""
    return {"python": platform.python_version(), "torch": str(torch.__version__),
            "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
            "machine": platform.machine()}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m specbench.embedded.build", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the data, into a temporary folder")
    parser.add_argument("--output", type=Path, help="make everything anew in this folder")
    parser.add_argument("--only", choices=[recipe.name for recipe in MEMBERS], help="make one member")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    output = arguments.output or (Path(tempfile.mkdtemp(prefix="specbench-demo-")) if arguments.smoke else WEIGHTS)
    names = [arguments.only] if arguments.only else [recipe.name for recipe in MEMBERS]
    if output == WEIGHTS:
        shipped = read_manifest()
        names = [name for name in names if shipped.get(name, {}).get("version") != member(name).version]
    write_samples(builtin_dir("tasks") / "samples" if output == WEIGHTS else output / "samples")
    say(f"building {', '.join(names) or 'nothing: every member is there at its version'} in {output}")
    log = build(output, names, arguments.smoke)
    say(json.dumps(log.get("figures", {}), indent=2))


if __name__ == "__main__":
    main()
