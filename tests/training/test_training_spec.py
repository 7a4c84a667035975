"""What a training may be asked to do: the papers' defaults, and a line for every mistake."""

from pathlib import Path
from typing import Any

import pytest

from specbench.cli.train import NUM_STEPS
from specbench.core.errors import ConfigError
from specbench.specs.components import build
from specbench.training.spec import CORPUS_MODELS, EXAMPLES, TrainSpec, read_settings

BASE: dict[str, Any] = {"data": {"tasks": ["world:mgsm"]}, "output": "out"}


def spec(kind: str, **given: Any) -> TrainSpec:
    return build(TrainSpec, {**BASE, "kind": kind, **given})


def test_defaults_of_scdf_are_those_of_its_paper() -> None:
    made = spec("scdf")
    assert made.scdf is not None and made.distill is None and made.finetune is None
    assert made.checkpoint_every == 25  # a step takes long
    assert made.num_steps is not None and made.num_steps * made.gradient_accumulation == 1000  # its STEPS are draws
    assert (made.learning_rate, made.gradient_accumulation, made.clip) == ((1e-4,), 4, 1.0)
    assert (made.max_prompt_tokens, made.max_new_tokens) == (512, 64)
    block = made.scdf
    assert (block.languages_per_pass, block.prompts_per_language, block.mini_batch) == (5, 64, 8)
    assert (block.estimator, block.weighting, block.num_draft_tokens) == ("full", "corrective", 5)


def test_defaults_of_distillation_are_those_of_its_paper() -> None:
    made = spec("distill")
    assert made.distill is not None
    assert (made.num_steps, made.gradient_accumulation, made.weight_decay) == (800, 4, 0.01)
    assert made.warmup * made.num_steps == 60
    assert (made.schedule, made.learning_rate) == ("cosine", (1e-4, 5e-5, 2e-5))
    assert (made.max_new_tokens, made.max_text_tokens) == (128, 128)
    assert (made.distill.batch_size, made.distill.top_k, made.distill.validation_share) == (16, 20, 0.05)


def test_defaults_of_pretrain_finetune_are_those_of_its_paper() -> None:
    made = spec("finetune")
    assert made.finetune is not None
    assert (made.num_steps, made.learning_rate, made.warmup, made.schedule) == (None, (2e-5,), 0.03, "cosine")
    assert made.finetune.temperatures == (0.0, 0.3, 0.7, 1.0)
    assert (made.finetune.epochs, made.finetune.batch_size, made.max_text_tokens) == (3, 8, 2048)


@pytest.mark.parametrize("kind", ["scdf", "distill", "finetune", *CORPUS_MODELS])
def test_the_example_of_set_is_a_setting_of_its_kind(kind: str) -> None:
    given = {"output": "o", "data.tasks": ["mgsm"]}
    model: Any = CORPUS_MODELS.get(kind, TrainSpec)
    assert read_settings(model, kind, None, given, [EXAMPLES[kind]]) != read_settings(model, kind, None, given, [])


def test_the_help_says_the_number_of_steps() -> None:
    assert NUM_STEPS["scdf"].startswith(f"{spec('scdf').num_steps} with {spec('scdf').gradient_accumulation} passes")
    assert NUM_STEPS["distill"].startswith(f"{spec('distill').num_steps} ")
    assert spec("finetune").num_steps is None and "finetune.epochs" in NUM_STEPS["finetune"]


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        ("scdf", {"num_stepz": 3}, "num_stepz: unknown key 'num_stepz': did you mean 'num_steps'?"),
        ("scdf", {"scdf": {"estimater": "full"}}, "scdf.estimater: unknown key 'estimater': did you mean 'estimator'?"),
        ("scdf", {"scdf": {"estimator": "ful"}}, "scdf.estimator = 'ful': did you mean 'full'?"),
        ("scdf", {"distill": {"top_k": 3}}, "distill: has no effect in a training of kind 'scdf'"),
        ("scdf", {"learning_rate": [1e-4, 1e-5]}, "scdf has no validation data"),
        ("scdf", {"quantize": "nf4"}, "4-bit weights cannot be trained: also give lora.rank=16"),
        ("scdf", {"scdf": {"weighting": "balanced"}}, "scdf.proportions: weighting = 'balanced' needs them"),
        ("scdf", {"scdf": {"proportions": {"en": 1}}}, "scdf.proportions: have no effect"),
        ("scdf", {"scdf": {"languages_per_pass": 1}}, "scdf.languages_per_pass = 1: the best language of a pass has"),
        ("scdf", {"data": {}}, "data: there is no training data"),
        ("scdf", {"data": {"text": {"en": "a.txt"}, "source": "hub"}}, "data.source: has no effect without data.tasks"),
        ("distil", {}, "kind = 'distil': did you mean 'distill'?"),
        ("finetune", {"finetune": {"temperatures": []}}, "finetune.temperatures = []"),
        ("finetune", {"finetune": {"temperatures": [0, 0.001]}}, "finetune.temperatures.1 = 0.001"),
        ("finetune", {"finetune": {"temperatures": [101]}}, "finetune.temperatures.0 = 101"),
        ("scdf", {"scdf": {"temperature": 0}}, "scdf.temperature = 0: input should be greater than 0"),
        ("scdf", {"scdf": {"temperature": 0.001}}, "scdf.temperature = 0.001"),
        ("scdf", {"scdf": {"temperature": float("inf")}}, "scdf.temperature = inf"),
        ("distill", {"learning_rate": 0}, "learning_rate.0 = 0"),
        ("distill", {"num_steps": 40, "warmup": 60}, "warmup = 60: the learning rate reaches its peak at update 60"),
        ("distill", {"dtype": "fp16"}, "dtype = 'fp16'"),
    ],
)
def test_every_mistake_is_named(kind: str, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        spec(kind, **given)
    assert problem in str(error.value)


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("num_steps: 7\nseed: 3\nscdf: {mini_batch: 2, estimator: sampled}\ndata: {tasks: ['world:mgsm']}\n")
    overrides = ["scdf.mini_batch=4", "clip=0.5"]
    made = read_settings(TrainSpec, "scdf", file, {"seed": 4, "output": "o", "data.limit": None}, overrides)
    assert made.scdf is not None
    assert (made.num_steps, made.seed, made.clip, made.schedule) == (7, 4, 0.5, "constant")
    assert (made.scdf.mini_batch, made.scdf.estimator, made.scdf.prompts_per_language) == (4, "sampled", 64)


def test_numbers_written_as_powers_are_numbers() -> None:
    given = {"output": "o", "data.tasks": ["world:mgsm"]}
    assert read_settings(TrainSpec, "scdf", None, given, ["learning_rate=1e-5"]).learning_rate == (1e-5,)
    rates = read_settings(TrainSpec, "distill", None, given, ["learning_rate=[1e-5, 2e-5]"]).learning_rate
    assert rates == (1e-5, 2e-5)


@pytest.mark.parametrize(
    ("content", "overrides", "problem"),
    [
        ("num_steps: 0\n", [], "{file}: num_steps = 0: input should be greater than or equal to 1: correct it"),
        ("seed: 1\n", ["learning_rate=[1e-4, abc]"], "input should be a valid number: correct it"),
        ("seed: 1\n", ["num_steps=0"], "--set num_steps=0: num_steps = 0"),
        ("seed: 1\n", ["scdf.nothing=0"], "--set scdf.nothing=0: scdf.nothing: unknown key"),
        ("seed: 1\n", ["num_steps"], "--set 'num_steps': write it as key=value, such as --set scdf.estimator=sampled"),
        ("kind: distill\n", [], "kind = 'distill', but the command is `train scdf`"),
        ("- 1\n", [], "is not a mapping of keys"),
        ("seed: [\n", [], "not valid YAML"),
    ],
)
def test_where_a_mistake_was_made_is_said(tmp_path: Path, content: str, overrides: list[str], problem: str) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_settings(TrainSpec, "scdf", file, {"output": "o", "data.tasks": ["world:mgsm"]}, overrides)
    assert problem.format(file=file) in str(error.value)


def test_what_is_needed_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--output: is missing"):
        read_settings(TrainSpec, "scdf", None, {"data.tasks": ["world:mgsm"]}, [])
    with pytest.raises(ConfigError, match="data: there is no training data: give --task"):
        read_settings(TrainSpec, "scdf", None, {"output": "o"}, [])
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_settings(TrainSpec, "scdf", tmp_path / "none.yaml", {"output": "o"}, [])
