"""Builds members of the embedded family: their tokenizers, models and n-grams, the manifest and the build's log."""

import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
import torch
import transformers
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.core.files import TRAINING_RECORD, replacing, write_atomically
from specbench.embedded import MANIFEST, digest_of, read_manifest
from specbench.models.mmap_store import vocabulary_digest
from specbench.specs.components import build
from specbench.training.corpus_arrays import build_datastore
from specbench.training.corpus_arrays import build_ngrams as count_ngrams
from specbench.training.output import StepCurve, TrainingRecord
from specbench.training.spec import TrainSpec
from specbench.training.train import cache_folder, train_with_settings
from tools.embedded.evaluation import member_figures
from tools.embedded.recipes import MEMBERS, TOKENIZERS, CorpusRecipe, Member, Recipe, TokenizerRecipe, TrainedMember
from tools.embedded.rows import evaluation_rows, training_rows
from tools.embedded.training import batches, encode_example, grow_model, new_model, train_stage, world_examples
from tools.world import WORLDS


def kept_tokenizers(output: Path, members: Iterable[Recipe], names: list[str]) -> dict[str, PreTrainedTokenizerBase]:
    """Returns the tokenizers of the members that are kept: a new member that shares one uses it unchanged."""
    kept = [recipe for recipe in members if recipe.name not in names and (output / recipe.name).is_dir()]
    tokenizers: dict[str, PreTrainedTokenizerBase] = {
        recipe.tokenizer: AutoTokenizer.from_pretrained(output / recipe.name)
        for recipe in kept
        if isinstance(recipe, Member)
    }
    for tokenizer in tokenizers.values():
        for key in ("is_local", "local_files_only"):  # these keys describe how it was loaded
            tokenizer.init_kwargs.pop(key, None)
    return tokenizers


@contextmanager
def new_member(folder: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes the member's folder with files that everybody can read."""
    with replacing(folder) as building:
        yield building
        for path in building.iterdir():
            path.chmod(0o644)  # safetensors writes files that only the owner can read


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes a standard model folder with bf16 weights."""
    stored = LlamaForCausalLM(model.config)
    stored.load_state_dict(model.state_dict())
    with new_member(folder) as building:
        stored.bfloat16().save_pretrained(building)
        tokenizer.save_pretrained(building)


def add_to_manifest(recipe: Recipe, output: Path) -> None:
    """Adds a finished member to the manifest."""
    digest, files = digest_of(output / recipe.name)
    num_bytes = sum(path.stat().st_size for path in (output / recipe.name).iterdir())
    entries = read_manifest(output)
    entries[recipe.name] = {
        "role": recipe.role, "version": recipe.version, "digest": digest, "num_bytes": num_bytes, "files": files
    }  # fmt: skip
    write_json(output / MANIFEST, {"members": entries})


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


OF_THE_TRAINING = ("log.csv", TRAINING_RECORD)  # the build's log holds what is needed of them


def make_trained(recipe: TrainedMember, output: Path) -> dict[str, Any]:
    """Trains the member through its stages into its folder. Returns the digests of its sources, and the losses of each
    stage."""
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        drafter = recipe.start and output / recipe.start
        for number, stage in enumerate(recipe.stages):
            trained = Path(temporary) / f"stage-{number}"
            models = {"target": str(output / "target"), "drafter": drafter and str(drafter), "output": str(trained)}
            spec = build(TrainSpec, {**stage, **models})
            record = train_with_settings(spec, Console(quiet=True), cache_folder())
            assert record is not None
            made.append(training_log(record, stage))
            drafter = trained
        assert drafter is not None
        with new_member(output / recipe.name) as building:
            shutil.copytree(drafter, building, ignore=shutil.ignore_patterns(*OF_THE_TRAINING), dirs_exist_ok=True)
            config = building / "config.json"  # that of a head names its target
            config.write_text(config.read_text().replace(str(output / "target"), "embedded:target"))
    made_from = {name: digest_of(output / name)[0] for name in ("target", recipe.start) if name}
    return {"made_from": made_from, "trainings": made}


def training_log(record: TrainingRecord, stage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the build's log keeps of a training."""
    curve = record.curves[record.chosen]
    return {
        "kind": stage["kind"],
        "num_steps": record.settings["num_steps"],
        "learning_rate": curve["learning_rate"],
        "validation_loss": curve["validation_loss"],
        "first_loss": mean_loss(curve["steps"][:20]),
        "last_loss": mean_loss(curve["steps"][-20:]),
        "num_prompts": sum(record.data["languages"].values()),
    }


def mean_loss(steps: list[StepCurve]) -> dict[str, float]:
    """Returns the mean loss of each language over the steps in which it was drawn."""
    losses: dict[str, list[float]] = {}
    for step in steps:
        for language, loss in step["loss"].items():
            losses.setdefault(language, []).append(loss)
    return {language: round(sum(found) / len(found), 4) for language, found in sorted(losses.items())}


END, PAD, START = "<|end|>", "<|pad|>", "<|start|>"


def train_tokenizer(texts: Iterable[str], recipe: TokenizerRecipe) -> PreTrainedTokenizerFast:
    """Returns a tokenizer trained on `texts`; END ends a text, PAD is never produced, START may begin every text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(recipe.pieces), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=[END, PAD, START] if recipe.has_start else [END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if recipe.has_start:
        start_id = tokenizer.token_to_id(START)
        tokenizer.post_processor = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, start_id)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({"bos_token": START} if recipe.has_start else {}),
        eos_token=END,
        pad_token=PAD,
        model_max_length=recipe.max_length,
        clean_up_tokenization_spaces=False,
    )


SMOKE_SHARE, SMOKE_BATCH = 100, 8


def say(line: str) -> None:
    """Prints a line of progress immediately."""
    print(line, flush=True)


def smoke_version(recipe: Recipe) -> Recipe:
    """Returns the same member built from a hundredth of the data, or a few rows of three tasks, in two steps of every
    stage, whose batches are smaller."""
    if isinstance(recipe, CorpusRecipe):
        return replace(recipe, num_rows=recipe.num_rows // SMOKE_SHARE)
    if isinstance(recipe, TrainedMember):
        steps = {"num_steps": 2, "max_new_tokens": 8}
        return replace(recipe, stages=tuple(
            {**stage, **steps, "data": {**stage["data"], "tasks": stage["data"]["tasks"][:3], "limit": 2}}
            for stage in recipe.stages
        ))  # fmt: skip
    stages = tuple(replace(stage, num_steps=2) for stage in recipe.stages)
    return replace(recipe, stages=stages, batch_tokens=recipe.batch_tokens // SMOKE_BATCH)


def make_tokenizer(name: str, smoke: bool) -> PreTrainedTokenizerBase:
    """Returns a tokenizer by its recipe."""
    recipe = TOKENIZERS[name]
    num_rows = recipe.num_rows // (SMOKE_SHARE if smoke else 1)
    rows = training_rows(recipe.worlds, num_rows, Random(recipe.seed), recipe.mix_power)
    return train_tokenizer(("".join(WORLDS[row["task"]].example(row)) for row in rows), recipe)


def make_member(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Builds a member in its folder. Returns its log."""
    entry = {"recipe": asdict(recipe), "tokenizer_recipe": asdict(TOKENIZERS[recipe.tokenizer])}
    if isinstance(recipe, CorpusRecipe):
        return entry | make_from_corpus(recipe, tokenizer, output)
    if isinstance(recipe, TrainedMember):
        return entry | make_trained(recipe, output)
    return entry | make_model(recipe, tokenizer, output)


def make_model(recipe: Member, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Trains a model through its stages, saving it after each. Returns its size and its losses."""
    started, random = time.process_time(), Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    data = batches(world_examples(tokenizer, recipe.worlds, recipe.mix_power, random), recipe.batch_tokens, random)
    end_id, pad_id = (int(tokenizer.convert_tokens_to_ids(token)) for token in (END, PAD))  # type: ignore[arg-type]
    model = new_model(recipe.stages[0].num_layers, recipe.width, len(tokenizer), end_id, pad_id,
                      tokenizer.model_max_length, tokenizer.bos_token_id)  # fmt: skip
    stages = []
    for stage in recipe.stages:
        if stage.num_layers > model.config.num_hidden_layers:
            grow_model(model, stage.num_layers)
        loss = train_stage(model, stage, data, lambda line: say(f"{recipe.name}: {line}"))
        stages.append({**asdict(stage), "loss": round(loss, 5), "seconds_so_far": round(time.process_time() - started)})
        save_model(model, tokenizer, output / recipe.name)
    return {"num_params": model.num_parameters(), "stages": stages}


def make_from_corpus(recipe: CorpusRecipe, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Makes an n-gram model or a datastore of seeded rows as the target receives them. Returns numbers of tokens and
    of n-grams."""
    rows = training_rows(recipe.worlds, recipe.num_rows, Random(recipe.seed), recipe.mix_power)
    documents = (encode_example(tokenizer, WORLDS[row["task"]].example(row))[0] for row in rows)
    digest = vocabulary_digest(tokenizer.get_vocab())
    if recipe.order is None:
        store = build_datastore(documents, len(tokenizer), output / recipe.name, digest)
        return {"num_tokens": store.num_tokens}
    model = count_ngrams(documents, recipe.order, len(tokenizer), output / recipe.name, digest)
    return {"num_tokens": model.num_tokens, "num_ngrams": model.num_ngrams}


MAX_NEW, SMOKE_MAX_NEW = 160, 8


def build_members(output: Path, names: list[str], smoke: bool) -> dict[str, Any]:
    """Builds the named members in a folder, with the manifest and the log beside them. Returns the log."""
    output.mkdir(parents=True, exist_ok=True)
    log_path = output / "build.json"
    log: dict[str, Any] = json.loads(log_path.read_text(encoding="utf-8")) if log_path.is_file() else {"members": {}}
    only = f" --only {names[0]}" if len(names) == 1 else ""
    command = "python -m tools.embedded" + " --smoke" * smoke + only
    made = kept_tokenizers(output, MEMBERS.values(), names)
    for name in names:
        started = time.process_time()
        recipe = smoke_version(MEMBERS[name]) if smoke else MEMBERS[name]
        if recipe.tokenizer not in made:
            made[recipe.tokenizer] = make_tokenizer(recipe.tokenizer, smoke)
        entry = make_member(recipe, made[recipe.tokenizer], output)
        add_to_manifest(recipe, output)
        entry |= {"command": command, "num_threads": 1,
                  "seconds": round(time.process_time() - started), "versions": versions()}  # fmt: skip
        log["members"][name] = entry
        write_json(log_path, log)
    if (output / "target").is_dir():
        present = [recipe for recipe in MEMBERS.values() if (output / recipe.name).is_dir()]
        log["figures"] = member_figures(output, present, evaluation_rows(smoke), SMOKE_MAX_NEW if smoke else MAX_NEW)
        log["figures_of"] = {name: entry["digest"] for name, entry in read_manifest(output).items()}
    log["total_seconds"] = sum(entry["seconds"] for entry in log["members"].values())
    write_json(log_path, log)
    return log


def versions() -> dict[str, str]:
    """Returns the versions that a rebuild needs to be the same."""
    return {"python": platform.python_version(), "torch": str(torch.__version__),
            "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
            "machine": platform.machine()}  # fmt: skip
