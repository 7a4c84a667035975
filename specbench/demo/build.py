"""Make the members of the embedded family: `python -m specbench.demo.build [--smoke] [--output DIR] [--only MEMBER]`.

Without --output the weights go beside this file: members whose version is already there are kept, the others are
trained. With --output DIR everything is made anew in DIR. Seeded, one thread, CPU, well under an hour.
"""

import argparse
import json
import platform
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from specbench.demo.evaluation import evaluate
from specbench.demo.family import MEMBERS, TOKENIZERS, WEIGHTS, Member, member, read_manifest
from specbench.demo.growth import grow, new_model
from specbench.demo.storage import kept_tokenizers, publish, save, write_json
from specbench.demo.tokenizer import END, PAD, train_tokenizer
from specbench.demo.training import batches, train, world_examples
from specbench.demo.world import WORLDS, held_out_rows, training_rows
from specbench.resources import builtin_dir

SAMPLE_SEED, NUM_SAMPLES = 11, 24
EVALUATION_SEED, NUM_EVALUATION = 12, 64
MAX_LENGTH, MAX_NEW = 2048, 160


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def write_samples(folder: Path) -> None:
    """The bundled held-out rows of every task of the world; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in (name for name, world in WORLDS.items() if world.is_task):
        rows = held_out_rows(task, NUM_SAMPLES, Random(SAMPLE_SEED))
        fields = ("subset", "id", "question", "answer_number", "answer")
        lines = [json.dumps({key: row[key] for key in fields}, ensure_ascii=False) for row in rows]
        (folder / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_tokenizer(name: str, smoke: bool) -> PreTrainedTokenizerBase:
    """A tokenizer by its recipe."""
    recipe = TOKENIZERS[name]
    rows = training_rows(recipe.worlds, recipe.num_rows // (100 if smoke else 1), Random(recipe.seed))
    texts = ("".join(WORLDS[row["task"]].example(row)) for row in rows)
    return train_tokenizer(texts, recipe.vocab_size, MAX_LENGTH)


def make_member(recipe: Member, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Train a member through its stages, saving it after each; returns its log."""
    started, random = time.perf_counter(), Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    data = batches(world_examples(tokenizer, recipe.worlds, recipe.mix_power, random), recipe.batch_size, random)
    end_id, pad_id = (int(tokenizer.convert_tokens_to_ids(token)) for token in (END, PAD))  # type: ignore[arg-type]
    model = new_model(recipe.stages[0].num_layers, recipe.width, len(tokenizer), end_id, pad_id, MAX_LENGTH)
    stages = []
    for stage in recipe.stages:
        if stage.num_layers > model.config.num_hidden_layers:
            grow(model, stage.num_layers)
        loss = train(model, stage, data, lambda line: say(f"{recipe.name}: {line}"))
        stages.append({**asdict(stage), "loss": round(loss, 5), "seconds_so_far": round(time.perf_counter() - started)})
        save(model, tokenizer, output / recipe.name)
    return {"recipe": asdict(recipe), "num_params": model.num_parameters(), "stages": stages}


def figures(output: Path, num_rows: int) -> dict[str, Any]:
    """Held-out exact match and agreement of every drafter with the target, from the stored weights in float32."""
    found: dict[str, Any] = {}
    target = AutoModelForCausalLM.from_pretrained(output / "target", dtype=torch.float32)
    for recipe in MEMBERS:
        if recipe.role == "drafter" and (output / recipe.name).is_dir():
            drafter = AutoModelForCausalLM.from_pretrained(output / recipe.name, dtype=torch.float32)
            rows = [
                row
                for task in recipe.worlds
                if WORLDS[task].is_task
                for row in held_out_rows(task, num_rows, Random(EVALUATION_SEED))
            ]
            tokenizer = AutoTokenizer.from_pretrained(output / recipe.name)
            found[recipe.name] = evaluate(tokenizer, rows, target, drafter, MAX_NEW)
    return found


def build(output: Path, names: list[str], smoke: bool) -> dict[str, Any]:
    """Make the named members in a folder, with the manifest and the log beside them."""
    output.mkdir(parents=True, exist_ok=True)
    log_path = output / "build.json"
    log: dict[str, Any] = json.loads(log_path.read_text(encoding="utf-8")) if log_path.is_file() else {"members": {}}
    command = "python -m specbench.demo.build" + " --smoke" * smoke + f" --only {names[0]}" * (len(names) == 1)
    made = kept_tokenizers(output, MEMBERS, names)
    for name in names:
        recipe, started = member(name), time.perf_counter()
        if smoke:
            recipe = replace(
                recipe, stages=tuple(replace(s, num_steps=max(2, s.num_steps // 100)) for s in recipe.stages)
            )
        if recipe.tokenizer not in made:
            made[recipe.tokenizer] = make_tokenizer(recipe.tokenizer, smoke)
        entry = make_member(recipe, made[recipe.tokenizer], output)
        publish(recipe, output)
        entry |= {"command": command, "num_threads": 1,
                  "seconds": round(time.perf_counter() - started), "versions": versions()}  # fmt: skip
        log["members"][name] = entry
        write_json(log_path, log)
    if (output / "target").is_dir():
        log["figures"] = figures(output, 2 if smoke else NUM_EVALUATION)
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
    parser = argparse.ArgumentParser(prog="python -m specbench.demo.build", description=__doc__)
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
