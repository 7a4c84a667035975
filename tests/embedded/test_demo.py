"""The embedded family: its files, its world, its tokenizers, growth, and the training code on a tiny budget."""

import json
import re
from dataclasses import asdict
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from specbench import embedded as family
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.models.corpus_models import Datastore, NgramModel, most_frequent_tree
from specbench.models.kv_cache import CACHE_NAMES
from specbench.models.mmap_store import vocabulary_digest
from specbench.specs.run import embedded_drafter
from tools.embedded import __main__ as command
from tools.embedded import build
from tools.embedded.evaluation import agreement
from tools.embedded.recipes import MEMBERS, TOKENIZERS, Member, TrainedMember
from tools.embedded.rows import (
    EVALUATION_SEED,
    NUM_EVALUATED,
    NUM_SAMPLES,
    SAMPLE_SEED,
    evaluation_rows,
    held_out_rows,
    shipped_rows,
    training_rows,
    write_samples,
)
from tools.embedded.training import encode_example, grow_model, new_model
from tools.world import WORLDS
from tools.world import math as world_math
from tools.world.rows import tables

NAMES = [*MEMBERS]
MODELS = [name for name, recipe in MEMBERS.items() if isinstance(recipe, Member)]
FROM_RECIPES = {name: recipe for name, recipe in MEMBERS.items() if isinstance(recipe, TrainedMember)}
TRAINED = [name for name, recipe in FROM_RECIPES.items() if recipe.start is not None]
HEADS = [name for name, recipe in FROM_RECIPES.items() if recipe.start is None]
SAMPLES = builtin_dir("tasks") / "samples" / "mgsm.jsonl"


def _samples() -> list[dict]:
    return [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]


def _example(row):
    """The texts of a sample row, which has no column `_completion`."""
    return WORLDS["mgsm"].example({**row, "_completion": row["answer"]})


def _sample_texts() -> list[str]:
    return ["".join(_example(row)) for row in _samples()]


@cache
def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(family.member_path(name))


def _build_log() -> dict:
    return json.loads((family.WEIGHTS / "build.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_are_those_of_the_manifest(name):
    folder = family.member_path(name)
    entry = family.read_manifest()[name]
    digest, files = family.digest_of(folder)
    assert (digest, files) == (entry["digest"], entry["files"])
    assert entry["version"] == MEMBERS[name].version


@pytest.mark.parametrize("name", MODELS)
def test_shipped_shape_is_the_declared_one(name):
    config, recipe = AutoConfig.from_pretrained(family.member_path(name)), MEMBERS[name]
    assert (config.num_hidden_layers, config.hidden_size) == (recipe.stages[-1].num_layers, recipe.width)
    assert config.max_position_embeddings == TOKENIZERS[recipe.tokenizer].max_length
    assert config.vocab_size == len(_tokenizer(name)) == TOKENIZERS[recipe.tokenizer].vocab_size
    assert config.bos_token_id == _tokenizer(name).bos_token_id


@pytest.mark.parametrize("name", TRAINED)
def test_trained_drafter_has_the_shape_of_the_one_it_started_from_and_other_weights(name):
    own, start = family.member_path(name), family.member_path(MEMBERS[name].start)
    for file in ("config.json", "tokenizer.json"):
        assert (own / file).read_bytes() == (start / file).read_bytes()
    assert (own / "model.safetensors").read_bytes() != (start / "model.safetensors").read_bytes()
    assert {path.name for path in own.iterdir()} == {path.name for path in start.iterdir()}


@pytest.mark.parametrize("name", [*TRAINED, *HEADS])
def test_trained_drafter_was_made_of_the_members_that_are_shipped(name):
    manifest = family.read_manifest()
    assert _build_log()["members"][name]["made_from"] == {
        used: manifest[used]["digest"] for used in ("target", MEMBERS[name].start) if used
    }


def test_the_figures_are_those_of_the_members_that_are_shipped():
    assert _build_log()["figures_of"] == {name: entry["digest"] for name, entry in family.read_manifest().items()}


def test_shipped_ngrams_are_over_the_tokens_of_the_target():
    recipe, ngrams = MEMBERS["ngram"], NgramModel.load(family.member_path("ngram"))
    vocabulary = _tokenizer("target").get_vocab()
    assert ngrams.tokenizer_digest == vocabulary_digest(vocabulary)
    assert (ngrams.order, ngrams.vocab_size) == (recipe.order, len(vocabulary))
    question = _tokenizer("target")("Question:").input_ids
    assert ngrams.best(question[:-1]) == question[-1]


def test_the_shipped_datastore_is_over_the_tokens_of_the_target():
    store, tokenizer = Datastore.load(family.member_path("retrieval")), _tokenizer("target")
    assert store.tokenizer_digest == vocabulary_digest(tokenizer.get_vocab())
    assert store.vocab_size == len(tokenizer) and store.num_tokens > 100_000
    question = tokenizer("Question:").input_ids
    rows = store.continuations(question[:-1], 16, 1, 1, 5000)
    assert most_frequent_tree(rows, store.vocab_size, (), 1)[0] == question[-1:]


def test_family_stays_small():
    sizes = {name: sum(path.stat().st_size for path in family.member_path(name).iterdir()) for name in NAMES}
    assert sizes["ngram"] <= 3_000_000 and sizes["retrieval"] <= 1_000_000
    assert sum(sizes[name] for name in HEADS) <= 4_000_000
    assert sum(path.stat().st_size for path in family.WEIGHTS.rglob("*") if path.is_file()) <= 32_000_000


def test_build_log_records_the_floors():
    figures = _build_log()["figures"]
    exact = figures["target"]["exact"]
    known = ("mgsm", "mcot", "msvamp", "gsm8k", "humaneval", "wmt", "iwslt14", "low_resource_mt", "story", "mt_bench")
    assert exact["all"] >= 0.6 and min(exact[task] for task in known) >= 0.5
    assert min(exact[f"mgsm/{language}"] for language in WORLDS["mgsm"].weights()) >= 0.7
    for name in ("drafter", "drafter-bpe", "drafter-bytes"):
        assert all(exact[task] - figures[name]["exact"][task] >= 0.3 for task in known), name
    floors = {"drafter": 0.65, "drafter-bpe": 0.7, "drafter-bytes": 0.6, "ngram": 0.6, "retrieval": 0.5}
    assert all(figures[name]["agreement"]["all"] >= floor for name, floor in floors.items())
    assert set(figures) == {"num_rows", *NAMES}
    by_depth = {name: figures[name]["agreement_by_depth"] for name in HEADS}
    assert all(max(shares) <= shares[0] + 0.01 for shares in by_depth.values())  # later tokens are not easier
    assert by_depth["eagle3"][0] > figures["drafter"]["agreement"]["all"]
    assert by_depth["medusa"][0] >= 0.5 and by_depth["eagle"][0] >= 0.5


def test_trained_drafters_agree_more_with_the_target_where_they_were_trained():
    """Each against the drafter that it started from, on held-out rows."""
    agreements = {name: _build_log()["figures"][name]["agreement"] for name in ("drafter", *TRAINED)}
    gains = {
        name: {task: share - agreements["drafter"][task] for task, share in agreements[name].items()}
        for name in TRAINED
    }
    assert min(gains["drafter-scdf"][f"mgsm/{language}"] for language in ("bn", "sw", "te", "th")) >= 0.05
    assert gains["drafter-distill-task"]["wmt"] >= 0.1
    assert gains["drafter-distill-general"]["webtext"] >= 0.1
    assert gains["drafter-pretrain-finetune"]["wmt/de-en"] >= 0.03
    assert all(min(of_tasks.values()) < 0 for of_tasks in gains.values())  # no drafter gains everywhere


@pytest.mark.parametrize("name", NAMES)
def test_build_log_has_the_declared_recipe(name):
    entry = _build_log()["members"][name]
    assert entry["recipe"] == json.loads(json.dumps(asdict(MEMBERS[name])))
    tokenizer_recipe = json.loads(json.dumps(asdict(TOKENIZERS[MEMBERS[name].tokenizer])))
    assert entry.get("tokenizer_recipe", tokenizer_recipe) == tokenizer_recipe


def test_processor_time_of_the_build():
    """Two hours, half an hour for the trained drafters, and an hour and a quarter for the heads."""
    seconds = {name: entry["seconds"] for name, entry in _build_log()["members"].items()}
    assert sum(taken for name, taken in seconds.items() if name not in FROM_RECIPES) <= 7200
    assert sum(seconds[name] for name in TRAINED) <= 1800
    assert sum(seconds[name] for name in HEADS) <= 4500
    assert sum(seconds.values()) == _build_log()["total_seconds"]


def test_a_changed_file_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    build.add_to_manifest(MEMBERS["drafter"], tmp_path)
    (folder / "config.json").write_text('{"changed": true}')
    monkeypatch.setattr(family, "WEIGHTS", tmp_path)
    family.member_path.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"config\.json"):
            family.member_path("drafter")
        with pytest.raises(ConfigError, match="missing"):
            family.member_path("target")
    finally:
        family.member_path.cache_clear()


def test_the_shipped_members_are_those_of_the_recipes():
    assert set(family.read_manifest()) == set(NAMES)


def test_unknown_member_names_the_nearest():
    with pytest.raises(ConfigError, match="'drafter'"):
        family.member_path("draftr")


def test_training_neither_asks_about_nor_shows_a_held_out_pair():
    training = training_rows(MEMBERS["target"].worlds, 1500, Random(123))
    used = {tuple(sorted(pair)) for row in training for pair in row.get("_asked", []) + row.get("_shown", [])}
    in_text = {
        tuple(sorted(map(int, pair)))
        for row in training
        for pair in re.findall(r"(?<!\d)(?=(\d+) [-+×÷] (\d+))", " ".join(WORLDS[row["task"]].example(row)))
    }
    held_out = held_out_rows("mgsm", NUM_SAMPLES["mgsm"], SAMPLE_SEED)
    held_out += held_out_rows("mgsm", NUM_EVALUATED["mgsm"], EVALUATION_SEED)
    asked = {tuple(sorted(pair)) for row in held_out for pair in row["_asked"]}
    assert asked and in_text
    assert not asked & used
    assert not asked & in_text


def test_samples_are_what_the_build_writes(tmp_path):
    write_samples(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    by_hand = {
        "agent_trace.jsonl", "livecodebench.jsonl", "math500.jsonl", "mbpp.jsonl", "mbpp-prompt.jsonl",
        "speed_bench.jsonl",
    }  # fmt: skip
    kept = {path.name: path.read_bytes() for path in SAMPLES.parent.glob("*.jsonl") if path.name not in by_hand}
    assert written == kept


@pytest.mark.parametrize("num_per_subset", [6, pytest.param(family.MAX_WORLD_ROWS, marks=pytest.mark.slow)])
def test_the_shipped_rows_of_the_world_are_what_the_build_writes(num_per_subset):
    assert set(family.world_names()) == set(WORLDS)
    assert {name for name, world in WORLDS.items() if not world.has_task} == {"drill"}
    for name, world in WORLDS.items():
        shipped = family.world_rows(name)
        assert list(shipped) == list(world.weights())  # also in this order, in which a training reads them
        drawn: dict[str, list[tuple[str, str]]] = {}
        for row in shipped_rows(name, num_per_subset):
            drawn.setdefault(row["subset"], []).append((row["prompt"], row["answer"]))
        assert drawn == {subset: rows[:num_per_subset] for subset, rows in shipped.items()}
        if num_per_subset == family.MAX_WORLD_ROWS:
            assert drawn == shipped


def test_the_shipped_rows_stay_small():
    assert sum(path.stat().st_size for path in family.WORLD_ROWS.iterdir()) <= 4_000_000


@pytest.mark.parametrize("task", [task for task, world in WORLDS.items() if world.has_task])
def test_no_sample_is_trained_on(task):
    samples = {WORLDS[task].example(row)[0] for row in held_out_rows(task, NUM_SAMPLES[task], SAMPLE_SEED)}
    trained = {WORLDS[task].example(row)[0] for row in training_rows({task: 1.0}, 300, Random(3))}
    assert samples and not samples & trained


def test_the_sample_of_mgsm():
    rows = _samples()
    task = yaml.safe_load((builtin_dir("tasks") / "mgsm.yaml").read_text(encoding="utf-8"))
    assert {row["subset"] for row in rows} == set(task["subsets"])
    assert all(sum(row["subset"] == subset for row in rows) >= 16 for subset in task["subsets"])
    assert len({(row["subset"], row["question"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("language", list(tables("math")["languages"]))
def test_every_template_renders_and_its_answer_ends_with_the_number(language):
    entry = tables("math")["languages"][language]
    random = Random(5)
    for kind, wording, name, objects in product(tables("math")["kinds"], range(2), entry["names"], entry["objects"]):
        numbers = world_math.numbers_of(tuple(tables("math")["kinds"][kind]["steps"]), random)
        row = world_math.render(language, kind, wording, name, objects, numbers)
        assert int(re.findall(r"\d+", row["answer"])[-1]) == row["answer_number"]
        assert "{" not in row["question"] + row["answer"]
        asked = {number for pair in row["_asked"][:1] for number in pair}
        assert asked <= {int(number) for number in re.findall(r"\d+", row["question"])}


def test_worked_equations_are_true():
    for row in training_rows({"mgsm": 1.0}, 1000, Random(9)):
        for equation in re.findall(r"[\d(][\d ()=+×÷-]* = \d+", row["answer"]):
            sides = [side.replace("×", "*").replace("÷", "//") for side in equation.split("=")]
            assert len({eval(side) for side in sides}) == 1, equation


def test_prompts_are_those_of_the_task_file():
    row = next(row for row in _samples() if row["subset"] == "de")
    prompt, completion = _example(row)
    assert prompt == f"Frage: {row['question']}\nSchritt-für-Schritt-Antwort:"
    assert completion == " " + row["answer"]


@pytest.mark.parametrize("name", MODELS)
def test_tokenizer_round_trips(name):
    tokenizer = _tokenizer(name)
    for text in [*_sample_texts(), "1,234  x\n\n\tÜß 🙂 ٣৩๓", "", " "]:
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer("12345", add_special_tokens=False).input_ids) == 5
    assert tokenizer.eos_token == "<|end|>" and tokenizer.chat_template is None


def test_a_tokenizer_of_few_texts_is_learnt_twice_to_the_byte(tmp_path):
    for name in ("one", "two"):
        build.make_tokenizer("shared", smoke=True).save_pretrained(tmp_path / name)
    assert (tmp_path / "one" / "tokenizer.json").read_bytes() == (tmp_path / "two" / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_tokenizer_of_the_shared_vocabulary_is_learnt_again_to_the_byte(tmp_path):
    build.make_tokenizer("shared", smoke=False).save_pretrained(tmp_path)
    shipped = family.member_path("target") / "tokenizer.json"
    assert (tmp_path / "tokenizer.json").read_bytes() == shipped.read_bytes()


def test_bpe_drafter_shares_most_of_the_vocabulary_and_only_most():
    target, drafter = (set(_tokenizer(name).get_vocab()) for name in ("target", "drafter-bpe"))
    assert 0.5 <= len(target & drafter) / len(target) <= 0.8
    assert len(drafter - target) >= 50


def test_bpe_drafter_cuts_texts_elsewhere():
    """Both ways: tokens of the drafter that end inside one of the target's, and the reverse."""
    inside = {"target": 0, "drafter-bpe": 0}
    for text in _sample_texts():
        ends = {}
        for name in inside:
            tokens = _tokenizer(name).tokenize(text, add_special_tokens=False)
            ends[name] = set(np.cumsum([len(token) for token in tokens]).tolist())
        inside["target"] += len(ends["target"] - ends["drafter-bpe"])
        inside["drafter-bpe"] += len(ends["drafter-bpe"] - ends["target"])
    assert min(inside.values()) >= 10


def test_bpe_drafter_has_its_start_token_in_front_and_nowhere_else():
    tokenizer = _tokenizer("drafter-bpe")
    ids, labels = encode_example(tokenizer, ("Question: 1", " Answer: 2"))
    assert tokenizer("x").input_ids[0] == tokenizer("").input_ids[0] == tokenizer.bos_token_id == ids[0]
    assert ids.count(tokenizer.bos_token_id) == 1 and labels[0] == -100
    assert all(_tokenizer(name).bos_token is None for name in ("target", "drafter", "drafter-bytes"))


def test_bytes_drafter_has_one_token_per_byte():
    tokenizer = _tokenizer("drafter-bytes")
    for text in _sample_texts():
        assert len(tokenizer(text).input_ids) == len(text.encode())
    assert len({token for token in tokenizer.get_vocab() if len(token) == 1}) == 256


@pytest.mark.parametrize(
    ("bridge", "name"),
    [("shared", "drafter"), ("intersection", "drafter-bpe"), ("union", "drafter-bpe"), ("retokenize", "drafter-bpe"),
     ("string", "drafter-bytes"), ("somebody's own", "drafter")],
)  # fmt: skip
def test_drafter_for_a_bridge(bridge, name):
    assert embedded_drafter(bridge) == f"embedded:{name}"
    assert MEMBERS[name].role == "drafter"


@pytest.mark.parametrize(
    ("lengths", "draft_lengths", "hits", "share"),
    [
        ([2, 3, 1], [2, 3, 1], [True, False, True], 2 / 3),  # one vocabulary: token by token
        ([2, 3], [1, 1, 1, 1, 1], [True, True, True, False, True], 1 / 2),  # bytes: all of a token's bytes
        ([1, 1, 2], [3, 1], [False, True], 0),  # a wrong draft token spoils every token that it reaches into
        ([1, 4], [1], [True], 1 / 2),  # a text that another vocabulary cannot write to its end
    ],
)
def test_agreement_counts_tokens_whose_bytes_are_all_predicted(lengths, draft_lengths, hits, share):
    assert agreement(lengths, draft_lengths, hits) == pytest.approx(share)


def test_growth_changes_nothing():
    torch.manual_seed(0)
    model = new_model(2, 64, 100, 0, 1, 128).eval()
    ids = torch.randint(0, 100, (2, 9))
    before = model(ids).logits
    grow_model(model, 5)
    assert len(model.model.layers) == model.config.num_hidden_layers == 5
    assert torch.equal(model(ids).logits, before)
    model.model.layers[1].mlp.down_proj.weight.data.normal_()
    assert not torch.equal(model(ids).logits, before)


def test_grown_model_caches_correctly():
    torch.manual_seed(0)
    model = new_model(2, 64, 100, 0, 1, 128).eval()
    grow_model(model, 5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.normal_(std=0.1)
    ids = torch.randint(2, 100, (1, 9))
    first = model(ids[:, :5], use_cache=True)
    second = model(ids[:, 5:], **{name: first[name] for name in CACHE_NAMES if name in first}).logits
    assert torch.allclose(second, model(ids).logits[:, 5:], atol=1e-5)


@pytest.mark.slow
def test_the_command_builds_every_member_on_a_tiny_budget(tmp_path, monkeypatch):
    """The recipes are the shipped ones, with a hundredth of the data and two steps of every stage."""
    assert {row["task"] for row in evaluation_rows(smoke=True)} == {
        name for name, world in WORLDS.items() if world.has_task
    }
    monkeypatch.setattr(build, "evaluation_rows", lambda _: held_out_rows("mgsm", 1, 1)[:3])
    monkeypatch.setattr("sys.argv", ["embedded", "--smoke", "--output", str(tmp_path)])
    command.main()
    log = json.loads((tmp_path / "build.json").read_text(encoding="utf-8"))
    assert set(log["members"]) == set(family.read_manifest(tmp_path)) == set(NAMES)
    for name in MODELS:
        assert log["members"][name]["stages"][-1]["num_layers"] == MEMBERS[name].stages[-1].num_layers
    shipped, written = (
        {path.name for path in folder.glob("*.jsonl")}
        for folder in (builtin_dir("tasks") / "samples", tmp_path / "samples")
    )
    assert written and written <= shipped
    drafters = [name for name in NAMES if name not in ("target", *HEADS)]
    assert all(0 <= log["figures"][name]["agreement"]["all"] <= 1 for name in drafters)
    assert all(0 <= share <= 1 for name in HEADS for share in log["figures"][name]["agreement_by_depth"])
    assert log["figures_of"] == {name: entry["digest"] for name, entry in family.read_manifest(tmp_path).items()}
    again = build.build_members(tmp_path, ["drafter", "ngram"], smoke=True)
    assert again["members"]["target"]["seconds"] == log["members"]["target"]["seconds"]
    digests = {name: entry["digest"] for name, entry in family.read_manifest(tmp_path).items()}
    once_more = build.build_members(tmp_path, ["ngram"], smoke=True)
    assert {name: entry["digest"] for name, entry in family.read_manifest(tmp_path).items()} == digests
    rows = [made["members"]["ngram"]["recipe"]["num_rows"] for made in (log, once_more)]
    assert rows[0] == rows[1] < MEMBERS["ngram"].num_rows
