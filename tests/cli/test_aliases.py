"""Other names of options: underscores, lm-eval's names, and options of lm-eval that are answered by a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.cli.arguments import translate_options
from specbench.core.errors import ConfigError
from specbench.tasks.examples import take_first
from tests.support import tiny

KNOWN = {
    "--task", "--method", "--target", "--target-revision", "--drafter", "--dtype", "--device", "--trust-remote-code",
    "--output", "--set", "--chat", "--chat-template-args", "--max-new-tokens", "--lm-eval-include",
}  # fmt: skip
Specbench = Callable[..., tuple[int, str, str]]
ONE_LAYER = "embedded:drafter"
SMALL = ("--method", "ar", "--subset", "en", "--set", "generation.max_new_tokens=2", "--data", "sample")


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (["--tasks", "mgsm"], ["--task", "mgsm"]),
        (["--tasks=mgsm"], ["--task=mgsm"]),
        (["--output_path", "runs/x_y"], ["--output", "runs/x_y"]),
        (["--max_new_tokens", "3"], ["--max-new-tokens", "3"]),
        (["--include_path", "own"], ["--lm-eval-include", "own"]),
        (["--num_fewshot", "5"], ["--set", "fewshot.num_shots=5"]),
        (["--batch_size", "1", "--batch-size=1", "--task", "x"], ["--task", "x"]),
        (["--apply_chat_template", "--task", "x"], ["--chat", "always", "--task", "x"]),
        (
            ["--model_args", "pretrained=a/b,dtype=bfloat16,revision=main,trust_remote_code=True"],
            ["--target", "a/b", "--dtype", "bfloat16", "--target-revision", "main", "--trust-remote-code"],
        ),
        (['--model_args={"pretrained": "a/b", "trust_remote_code": false}'], ["--target", "a/b"]),
        (["--unknown_option", "x_y"], ["--unknown_option", "x_y"]),
    ],
)
def test_other_names(given: list[str], own: list[str]) -> None:
    assert translate_options(given, KNOWN) == own


def test_a_command_without_models_has_no_model_options() -> None:
    assert translate_options(["--model_args", "pretrained=x", "--batch_size", "1"], {"--task"}) == [
        "--model_args", "pretrained=x", "--batch_size", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch_size", "8"], "--batch_size 8: sequences are decoded one at a time"),
        (["--batch_size", "auto"], "--batch_size auto: sequences are decoded one at a time"),
        (
            ["--gen_kwargs", "top_k=5"],
            "--gen_kwargs top_k=5: generation is set in the task's file: give --set gen",
        ),
        (
            ["--temperature", "1"],
            "--temperature 1: this is set in the task's file: give --set generation.temperature=VALUE",
        ),
        (["--model", "hf"], "--model hf: transformers loads models: give --target"),
        (["--model_args", "pretraned=x"], "--model_args pretraned=x: did you mean 'pretrained'?"),
        (["--model_args", "quantize=nf4"], "--model_args quantize=nf4: "),
        (["--model_args", "x"], "--model_args x: write it as KEY=VALUE"),
        (["--model_args", "{x"], "--model_args {x: is not valid JSON"),
        (["--apply_chat_template=chatml"], "only the tokenizer's template can be used"),
    ],
)
def test_what_cannot_be_followed_is_said(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        translate_options(words, KNOWN)
    assert message in str(raised.value)


def test_the_help_has_each_option_once(specbench: Specbench) -> None:
    _, out, _ = specbench("run", "--help")
    assert "--task" in out and "--chat-template-args" in out
    assert not [name for name in ("--tasks", "--model_args", "--num_fewshot", "--output_path") if name in out]


def test_both_spellings_have_one_meaning(specbench: Specbench) -> None:
    own = specbench("run", "--task", "mgsm", *SMALL, "--limit", "1", "--output", "run", "--json", "--target", ONE_LAYER,
                    "--dtype", "float32")  # fmt: skip
    other = specbench("run", "--tasks", "mgsm", *SMALL, "--limit", "1", "--output_path", "run", "--json",
                      "--model_args", f"pretrained={ONE_LAYER},dtype=float32")  # fmt: skip
    assert own[0] == other[0] == 0
    rows, again = (json.loads(each[1]) for each in (own, other))
    assert [row["metrics"] for row in rows] == [row["metrics"] for row in again]  # resumed: nothing is measured again
    assert rows[0]["request"] == again[0]["request"] and again[0]["request"]["target"] == ONE_LAYER


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "mgsm", "--tasks", "gsm8k"], "--task is given twice, once as --tasks: remove one"),
        (["--task=mgsm", "--output", "a", "--output_path=b"], "--output is given twice, once as --output_path"),
        (
            ["--task", "mgsm", "--dtype", "bfloat16", "--model_args", "dtype=float32"],
            "--dtype is given twice, once as --model_args",
        ),
        (["--task", "mgsm", "--chat", "never", "--apply_chat_template"], "--chat is given twice, once as --apply_chat"),
    ],
)
def test_an_option_under_two_names_is_refused(specbench: Specbench, words: list[str], message: str) -> None:
    code, _, err = specbench("run", "--method", "sd", *words)
    assert code == 2 and message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--task", "mgsm", "--num_fewshot", "2"],
            "--set fewshot.num_shots=2: mgsm has no few-shot examples; tasks with some: csqa, gsm8k, mbpp, mmlu",
        ),
        (["--task", "mgsm,wmt", "--num-fewshot=2"], "--set fewshot.num_shots=2: mgsm, wmt have no few-shot examples"),
        (["--task", "csqa", "--num_fewshot", "-1"], "--set fewshot.num_shots=-1: "),
    ],
)
def test_shots_of_tasks_without_any(specbench: Specbench, words: list[str], message: str) -> None:
    code, _, err = specbench("run", *words, "--method", "pld", "--limit", "1")
    assert code == 2 and err.startswith(f"error: {message}") and err.count("\n") == 1, err


def test_shots_are_given_to_the_tasks_that_have_some(specbench: Specbench) -> None:
    words = ["--method", "ar", "--limit", "1", "--set", "generation.max_new_tokens=2", "--json", "--target", ONE_LAYER,
             "--data", "sample"]  # fmt: skip
    code, _, err = specbench("run", "--task", "mgsm", "--subset", "en", "--num_fewshot", "0", *words)
    assert code == 0 and "few-shot" not in err, err
    code, out, err = specbench("run", "--task", "csqa,mgsm", "--subset", "en", "--num_fewshot", "2", *words)
    assert code == 0 and "few-shot examples: mgsm has none: it is measured without them" in err, err
    assert {row["task"].partition("@")[0] for row in json.loads(out)} == {"csqa", "mgsm"}


@pytest.mark.parametrize(("limit", "num"), [(None, 7), (2, 2), (9, 7), (0.1, 1), (0.5, 4), (0.99, 7)])
def test_limit(limit: int | float | None, num: int) -> None:
    assert len(take_first(range(7), limit)) == num


def test_a_share_of_the_examples(specbench: Specbench) -> None:
    code, out, _ = specbench("run", "--task", "mgsm", *SMALL, "--limit", "0.05", "--json", "--target", ONE_LAYER)
    rows = json.loads(out)
    assert code == 0 and {row["n"] for row in rows} == {2} and rows[0]["request"]["limit"] == 0.05  # of 24 examples


TEMPLATE = (
    "User: {{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %} /no{% endif %} A:"
)


@pytest.fixture
def chatting(tmp_path: Path) -> list[str]:
    folder = tiny.save(tmp_path / "chatting")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return ["run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--method", "pld",
            "--set", "generation.max_new_tokens=4", "--target", str(folder)]  # fmt: skip


def test_template_arguments_are_a_condition(specbench: Specbench, chatting: list[str]) -> None:
    for name, words in (("with", ()), ("without", ("--chat-template-args", "enable_thinking=false"))):
        code, out, err = specbench(*chatting, *words, "--output", name, "--json")
        assert code == 0, err
        assert json.loads(out)[0]["chat"] == ({"enable_thinking": False} if words else True)
    tokens = [json.loads((Path(name) / "records.jsonl").read_text().splitlines()[-1]) for name in ("with", "without")]
    assert tokens[0]["prompt_tokens"] < tokens[1]["prompt_tokens"]
    code, out, _ = specbench("leaderboard", "show", "with/leaderboard.json", "without/leaderboard.json")
    assert code == 0 and out.count("mgsm@4 · en") == 2  # a table for each
    code, out, _ = specbench("check", "--baseline", "with", "--candidate", "without")
    assert code == 2 and "chat: True in the baseline, {'enable_thinking': False} in the candidate" in " ".join(
        out.split()
    )
    code, _, err = specbench(*chatting, "--output", "without")
    assert code == 2 and "--chat-template-args" in err  # the folder's records are of other prompts
    assert specbench("leaderboard", "validate", "--records", "without/leaderboard.json")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chat-template-args", "enable_thinkin=false"], "reads no such variable: did you mean 'enable_thinking'?"),
        (["--chat-template-args", "enable_thinking"], "write it as KEY=VALUE"),
        (["--chat-template-args", "enable_thinking=false", "--chat", "never"], "has no effect with --chat never"),
    ],
)
def test_template_arguments_without_effect(
    specbench: Specbench, chatting: list[str], words: list[str], message: str
) -> None:
    code, _, err = specbench(*chatting, *words)
    assert code == 2 and message in err and err.count("\n") == 1


@pytest.fixture
def house(tmp_path: Path) -> str:
    """Returns a checkpoint whose architecture is Python code."""
    folder = tiny.save(tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "house_made", "auto_map": {
        "AutoConfig": "house.HouseConfig", "AutoModelForCausalLM": "house.HouseModel",
    }}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "house.py").write_text(HOUSE)
    return str(folder)


def test_remote_code_is_off_until_it_is_allowed(specbench: Specbench, house: str) -> None:
    words = ["run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--method", "pld",
             "--set", "generation.max_new_tokens=4", "--target", house]  # fmt: skip
    code, _, err = specbench(*words)
    assert code == 2 and "its architecture is Python code in the checkpoint" in err and "--trust-remote-code" in err
    code, out, err = specbench(*words, "--trust_remote_code", "--json")
    assert code == 0 and "Python code of the checkpoints may run" in err
    assert json.loads(out)[0]["request"]["trust_remote_code"] is True


def test_a_check_is_not_lost_where_the_targets_code_may_not_run(
    specbench: Specbench, house: str, tmp_path: Path
) -> None:
    """Outputs that differ then count as differences; with the code, the target tells near-ties apart."""
    code, _, err = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", "--method", "pld", "--target",
        house, "--set", "generation.max_new_tokens=6", "--trust-remote-code", "--output", "before",
    )  # fmt: skip
    assert code == 0, err
    file = Path(shutil.copytree("before", "now")) / "records.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[0]["methods"]["pld"]["token_ids"][3] += 1
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ["check", "--baseline", "before", "--candidate", "now", "--max-regression", "90%"]
    code, out, err = specbench(*words)
    shown = " ".join(out.split())
    assert code == 1 and "1 equal, 1 other" in shown and "unknown whether" not in shown, (out, err)
    assert "near-ties cannot be recognized, and count as differences: model" in shown and "--trust-remote-code" in shown
    code, out, err = specbench(*words, "--trust-remote-code")
    assert code == 1 and "token 3:" in " ".join(out.split()) and "told apart" not in out, (out, err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["languages", "--samples", "100", "--max-new-tokens", "1"],
        ["limit", "--repeats", "1", "--context", "32"],
        ["vocab", "--acceptance", "--limit", "1", "--subset", "en"],
        ["train", "finetune", "--task", "world:story", "--limit", "4", "--num-steps", "1", "--output", "trained"],
    ],
    ids=lambda words: words[0],
)
def test_all_commands_that_load_models_of_the_user_ask_for_it(
    specbench: Specbench, house: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = ["--drafter", house, *(["--target", house] if words[0] != "languages" else [])]
    code, _, err = specbench(*words, *models)
    assert code == 2 and "its architecture is Python code in the checkpoint" in err, err
    code, _, err = specbench(*words, *models, "--trust-remote-code")
    assert code == 0, err


@pytest.mark.slow
def test_fairness_trusts_the_code_of_every_model_only_where_allowed(
    specbench: Specbench, house: str, tmp_path: Path
) -> None:
    """The target and the drafter of a run, and a drafter that is only named, each with code of its own."""
    target, drafter, other = (str(shutil.copytree(house, tmp_path / name)) for name in ("target", "drafter", "other"))
    code, _, err = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--method", "sd",
        "--set", "generation.max_new_tokens=4", "--target", target, "--drafter", drafter, "--trust-remote-code",
        "--output", "run",
    )  # fmt: skip
    assert code == 0, err
    for words in ([], ["--drafter", other]):
        code, _, err = specbench("fairness", "run", *words)
        assert code == 2 and "its architecture is Python code in the checkpoint" in err, err
        code, _, err = specbench("fairness", "run", *words, "--trust-remote-code")
        assert code == 0, err


HOUSE = """
from transformers import LlamaConfig, LlamaForCausalLM


class HouseConfig(LlamaConfig):
    model_type = "house_made"


class HouseModel(LlamaForCausalLM):
    config_class = HouseConfig
"""
