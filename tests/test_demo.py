"""The embedded family: its files, its world, its tokenizer, growth, and the training code on a tiny budget."""

import json
import re
from dataclasses import asdict
from itertools import product
from random import Random

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoTokenizer

from specbench.demo import build, family, storage
from specbench.demo.growth import grow, new_model
from specbench.demo.world import WORLDS, held_out_rows, math, training_rows
from specbench.errors import ConfigError
from specbench.resources import builtin_dir

NAMES = [member.name for member in family.members()]
SAMPLES = builtin_dir("tasks") / "samples" / "mgsm.jsonl"


def _samples() -> list[dict]:
    return [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_are_those_of_the_manifest(name):
    folder = family.member_path(name)
    entry = family.read_manifest()[name]
    digest, files = family.digest_of(folder)
    assert (digest, files) == (entry["digest"], entry["files"])
    assert entry["version"] == family.member(name).version


@pytest.mark.parametrize("name", NAMES)
def test_shipped_shape_is_the_declared_one(name):
    config, recipe = AutoConfig.from_pretrained(family.member_path(name)), family.member(name)
    assert (config.num_hidden_layers, config.hidden_size) == (recipe.stages[-1].num_layers, recipe.width)
    assert config.max_position_embeddings >= 1024


def test_pair_stays_under_sixteen_megabytes():
    assert sum(path.stat().st_size for path in family.WEIGHTS.rglob("*") if path.is_file()) <= 16_000_000


def test_build_log_records_the_floors():
    figures = json.loads((family.WEIGHTS / "build.json").read_text(encoding="utf-8"))["figures"]["drafter"]
    assert figures["target_exact"]["all"] >= 0.6
    assert min(figures["target_exact"].values()) >= 0.35
    assert figures["drafter_exact"]["all"] <= figures["target_exact"]["all"] / 2


@pytest.mark.parametrize("name", NAMES)
def test_build_log_has_the_declared_recipe(name):
    log = json.loads((family.WEIGHTS / "build.json").read_text(encoding="utf-8"))
    assert log["members"][name]["recipe"] == json.loads(json.dumps(asdict(family.member(name))))
    assert log["total_seconds"] <= 3600


def test_a_changed_file_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    storage.publish(family.member("drafter"), tmp_path)
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


def test_unknown_member_names_the_nearest():
    with pytest.raises(ConfigError, match="'drafter'"):
        family.member_path("draftr")


def test_training_neither_asks_about_nor_shows_a_held_out_pair():
    training = training_rows(family.member("target").worlds, 5000, Random(123))
    used = {tuple(sorted(pair)) for row in training for pair in row["asked"] + row["shown"]}
    in_text = {
        tuple(sorted(map(int, pair)))
        for row in training
        for pair in re.findall(r"(?<!\d)(?=(\d+) [-+×÷] (\d+))", " ".join(WORLDS[row["task"]].example(row)))
    }
    held_out = held_out_rows("mgsm", build.NUM_SAMPLES, Random(build.SAMPLE_SEED))
    held_out += held_out_rows("mgsm", build.NUM_EVALUATION, Random(build.EVALUATION_SEED))
    asked = {tuple(sorted(pair)) for row in held_out for pair in row["asked"]}
    assert asked and in_text
    assert not asked & used
    assert not asked & in_text


def test_sample_is_what_the_build_writes(tmp_path):
    build.write_samples(tmp_path)
    assert (tmp_path / "mgsm.jsonl").read_bytes() == SAMPLES.read_bytes()
    rows = _samples()
    task = yaml.safe_load((builtin_dir("tasks") / "mgsm.yaml").read_text(encoding="utf-8"))
    assert {row["subset"] for row in rows} == set(task["subsets"])
    assert all(sum(row["subset"] == subset for row in rows) >= 16 for subset in task["subsets"])
    assert len({(row["subset"], row["question"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("language", list(math.definition()["languages"]))
def test_every_template_renders_and_its_answer_ends_with_the_number(language):
    entry = math.definition()["languages"][language]
    random = Random(5)
    for kind, wording, name, objects in product(math.definition()["kinds"], range(2), entry["names"], entry["objects"]):
        numbers = math.numbers_of(tuple(math.definition()["kinds"][kind]["steps"]), random)
        row = math.render(language, kind, wording, name, objects, numbers)
        assert int(re.findall(r"\d+", row["answer"])[-1]) == row["answer_number"]
        assert "{" not in row["question"] + row["answer"]
        asked = {number for pair in row["asked"][:1] for number in pair}
        assert asked <= {int(number) for number in re.findall(r"\d+", row["question"])}


def test_worked_equations_are_true():
    for row in training_rows({"mgsm": 1.0}, 1000, Random(9)):
        for equation in re.findall(r"[\d(][\d ()=+×÷-]* = \d+", row["answer"]):
            sides = [side.replace("×", "*").replace("÷", "//") for side in equation.split("=")]
            assert len({eval(side) for side in sides}) == 1, equation


def test_prompts_are_those_of_the_task_file():
    row = next(row for row in _samples() if row["subset"] == "de")
    prompt, completion = WORLDS["mgsm"].example(row)
    assert prompt == f"Frage: {row['question']}\nSchritt-für-Schritt-Antwort:"
    assert completion == " " + row["answer"]


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_round_trips(name):
    tokenizer = AutoTokenizer.from_pretrained(family.member_path(name))
    texts = ["".join(WORLDS["mgsm"].example(row)) for row in _samples()]
    for text in [*texts, "1,234  x\n\n\tÜß 🙂 ٣৩๓", "", " "]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer("12345").input_ids) == 5
    assert tokenizer.eos_token == "<|end|>" and tokenizer.chat_template is None


def test_growth_changes_nothing():
    torch.manual_seed(0)
    model = new_model(2, 64, 100, 0, 1, 128).eval()
    ids = torch.randint(0, 100, (2, 9))
    before = model(ids).logits
    grow(model, 5)
    assert len(model.model.layers) == model.config.num_hidden_layers == 5
    assert torch.equal(model(ids).logits, before)
    model.model.layers[1].mlp.down_proj.weight.data.normal_()
    assert not torch.equal(model(ids).logits, before)


def test_grown_model_caches_correctly():
    torch.manual_seed(0)
    model = new_model(2, 64, 100, 0, 1, 128).eval()
    grow(model, 5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.normal_(std=0.1)
    ids = torch.randint(2, 100, (1, 9))
    first = model(ids[:, :5], use_cache=True)
    second = model(ids[:, 5:], past_key_values=first.past_key_values).logits
    assert torch.allclose(second, model(ids).logits[:, 5:], atol=1e-5)


def test_build_runs_end_to_end_on_a_tiny_budget(tmp_path, monkeypatch):
    tiny = tuple(
        build.replace(member, width=32, batch_size=4, stages=stages)
        for member, stages in zip(
            family.MEMBERS,
            [(family.Stage(1, 3, 1e-2, 1e-3), family.Stage(2, 3, 1e-2, 1e-3)), (family.Stage(1, 3, 1e-2, 1e-3),)],
            strict=True,
        )
    )
    monkeypatch.setattr(family, "MEMBERS", tiny)
    monkeypatch.setattr(build, "MEMBERS", tiny)
    monkeypatch.setattr(build, "NUM_EVALUATION", 1)
    monkeypatch.setattr(build, "MAX_NEW", 8)
    log = build.build(tmp_path, NAMES, smoke=True)
    assert set(log["members"]) == set(family.read_manifest(tmp_path)) == set(NAMES)
    assert 0 <= log["figures"]["drafter"]["agreement"]["all"] <= 1
    assert {entry["stages"][-1]["num_layers"] for entry in log["members"].values()} == {1, 2}
    again = build.build(tmp_path, ["drafter"], smoke=True)
    assert again["members"]["target"]["seconds"] == log["members"]["target"]["seconds"]
