"""Making one member in a folder: its tokenizer from rows, a model by training, an n-gram folder by counting."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specbench.demo.fine_tuning import make_trained
from specbench.demo.growth import grow, new_model
from specbench.demo.recipe import Member, NgramRecipe, Recipe, TrainedMember
from specbench.demo.recipes import TOKENIZERS
from specbench.demo.storage import save
from specbench.demo.tokenizer import END, PAD, train_tokenizer
from specbench.demo.training import batches, encode, train, world_examples
from specbench.demo.world import WORLDS, training_rows
from specbench.ngram.build import build as count_ngrams
from specbench.ngram.folder import vocabulary_digest

SMOKE_SHARE = 100


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def smoke_version(recipe: Recipe) -> Recipe:
    """The same member made of a hundredth of the data."""
    if isinstance(recipe, NgramRecipe):
        return replace(recipe, num_rows=recipe.num_rows // SMOKE_SHARE)
    if isinstance(recipe, TrainedMember):
        return replace(recipe, stages=tuple(smoke_training(stage) for stage in recipe.stages))
    stages = tuple(replace(stage, num_steps=max(2, stage.num_steps // SMOKE_SHARE)) for stage in recipe.stages)
    return replace(recipe, stages=stages)


def smoke_training(stage: Mapping[str, Any]) -> dict[str, Any]:
    """A training of two steps on a few rows."""
    return {**stage, "num_steps": 2, "max_new_tokens": 8, "data": {**stage["data"], "limit": 2}}


def make_tokenizer(name: str, smoke: bool) -> PreTrainedTokenizerBase:
    """A tokenizer by its recipe."""
    recipe = TOKENIZERS[name]
    num_rows = recipe.num_rows // (SMOKE_SHARE if smoke else 1)
    rows = training_rows(recipe.worlds, num_rows, Random(recipe.seed), recipe.mix_power)
    return train_tokenizer(("".join(WORLDS[row["task"]].example(row)) for row in rows), recipe)


def make_member(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Make a member in its folder; returns its log."""
    entry = {"recipe": asdict(recipe), "tokenizer_recipe": asdict(TOKENIZERS[recipe.tokenizer])}
    if isinstance(recipe, NgramRecipe):
        return entry | make_ngram(recipe, tokenizer, output)
    if isinstance(recipe, TrainedMember):
        return entry | make_trained(recipe, output)
    return entry | make_model(recipe, tokenizer, output)


def make_model(recipe: Member, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Train a model through its stages, saving it after each; returns its size and its losses."""
    started, random = time.process_time(), Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    data = batches(world_examples(tokenizer, recipe.worlds, recipe.mix_power, random), recipe.batch_tokens, random)
    end_id, pad_id = (int(tokenizer.convert_tokens_to_ids(token)) for token in (END, PAD))  # type: ignore[arg-type]
    model = new_model(recipe.stages[0].num_layers, recipe.width, len(tokenizer), end_id, pad_id,
                      tokenizer.model_max_length, tokenizer.bos_token_id)  # fmt: skip
    stages = []
    for stage in recipe.stages:
        if stage.num_layers > model.config.num_hidden_layers:
            grow(model, stage.num_layers)
        loss = train(model, stage, data, lambda line: say(f"{recipe.name}: {line}"))
        stages.append({**asdict(stage), "loss": round(loss, 5), "seconds_so_far": round(time.process_time() - started)})
        save(model, tokenizer, output / recipe.name)
    return {"num_params": model.num_parameters(), "stages": stages}


def make_ngram(recipe: NgramRecipe, tokenizer: PreTrainedTokenizerBase, output: Path) -> dict[str, Any]:
    """Count the n-grams of seeded rows as the target meets them; returns the numbers of tokens and of n-grams."""
    rows = training_rows(recipe.worlds, recipe.num_rows, Random(recipe.seed), recipe.mix_power)
    documents = (encode(tokenizer, WORLDS[row["task"]].example(row))[0] for row in rows)
    digest = vocabulary_digest(tokenizer.get_vocab())
    model = count_ngrams(documents, recipe.order, len(tokenizer), output / recipe.name, digest)
    return {"num_tokens": model.num_tokens, "num_ngrams": model.num_ngrams}
