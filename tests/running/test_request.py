"""What a request lacks is reported at once, and without the imports that take seconds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS, LOGGERS
from specbench.running import request
from specbench.running.request import (
    LOGGER_PACKAGES,
    MODEL_DRAFTERS,
    PATH_DRAFTERS,
    TABLE_DRAFTERS,
    Request,
    check_request,
    requested_methods,
    resolve,
)
from specbench.specs import yaml_files
from specbench.specs.catalogue import method_names
from specbench.specs.run_options import RunOptions
from tests.support import tiny

PROGRAM = """
import json, sys
from specbench.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["specbench", *words]
    try:
        main()
    except SystemExit as end:
        heavy = {"torch", "transformers", "huggingface_hub", "datasets"} & set(sys.modules)
        print(f"{end.code} {sorted(heavy)}", file=sys.stderr)
"""
SD = ["run", "--task", "mgsm", "--method", "sd"]
PLAIN = ["run", "--task", "mgsm", "--method", "pld", "--target", "plain"]
NOWHERE = ["--target", "./a", "--drafter", "./b"]
CHEAP = {  # words of a command: a part of its line
    "an unknown method": ([*SD[:-1], "sdd"], "unknown method 'sdd': did you mean 'sd'"),
    "an unknown task": (["run", "--task", "mgms", "--method", "sd"], "unknown task 'mgms'"),
    "a method file": ([*SD[:-1], "mine.yaml"], "mine.yaml: "),
    "a target": ([*PLAIN[:-1], "./nowhere"], "model folder './nowhere' does not exist"),
    "an embedded target": ([*PLAIN[:-1], "embedded:nothing"], "embedded model 'nothing' does not exist"),
    "a drafter": ([*SD, "--drafter", "./nowhere"], "model folder './nowhere' does not exist"),
    "no drafter": ([*SD, "--target", "plain"], "method 'sd' needs a drafter model: give one with --drafter"),
    "a datastore": ([*PLAIN[:4], "rest", *PLAIN[5:]], "method 'rest': drafter.path is missing: target 'plain'"),
    "a head": (
        [*PLAIN[:4], "medusa", *PLAIN[5:], "--set", "drafter.path=./none"], "drafter.path = './none': no such folder",
    ),
    "data": ([*PLAIN, "--data", "rows"], "--data rows: no such folder or file"),
    "a servers file": (["run", "--task", "mgsm", "--servers", "servers.yaml"], "servers.yaml: "),
    "a chat template": ([*PLAIN, "--chat", "always"], "--chat always: model 'plain' has no chat template"),
    "quantized on a CPU": ([*PLAIN, "--device", "cpu", "--quantize", "nf4"], "--quantize nf4: needs a CUDA device"),
    "a folder of lm-eval": ([*PLAIN, "--lm-eval-include", "none"], "--lm-eval-include none: no such folder"),
    "a sweep": (["sweep", "--task", "mgsm", "--method", "sdd"], "unknown method 'sdd'"),
    "a tuning": (["tune", "--task", "mgsm", "--method", "sdd"], "unknown method 'sdd'"),
    "an audit": (["audit", "--task", "mgsm", "--method", "sdd"], "unknown method 'sdd'"),
    "a limit": (["roofline", "--drafter", "./nowhere"], "model folder './nowhere' does not exist"),
    "a check": (["check", "--against", sys.executable, *SD[1:-1], "sdd"], "unknown method 'sdd'"),
    "a head that is not published": ([*PLAIN[:4], "eagle3", *PLAIN[5:]], "'plain' has no published eagle3 head"),
    "a model in the place of a head": (
        [*PLAIN[:4], "eagle3", *PLAIN[5:], "--drafter", "plain"],
        "--target plain`; --drafter plain names a draft model, as for --method sd, and does not help",
    ),
    "a logger": ([*PLAIN, "--log", "wandbb,mlfow"], "--log wandbb: did you mean 'wandb'"),
    "a judge's prompt": (
        [*PLAIN, "--judge", "x", "--judge-template", "j.yaml", "--data", "rows"], "2 problems: (1) j.yaml: cannot be",
    ),
    "servers": (
        ["run", "--task", "mgms", "--servers", "s.yaml", "--data", "rows", "--log", "x"], "4 problems: (1) unknown ta",
    ),
    "vocabularies": (["vocab", *NOWHERE, "--data", "rows"], "3 problems: (1) model folder './a'"),
    "prompts": (["sample", "mgsm", "--target", "./a", "--data", "rows"], "2 problems: (1) model folder './a'"),
    "lm-eval": (
        ["lm-eval", "run", "--tasks", "x", "--model_args", "method=sd,pretrained=./a", "drafter=./b", "--limit", "1"],
        "2 problems: (1) model folder './a' does not exist; give a folder with config.json, or a hub id; (2) model",
    ),
    "a suite": (["suite", "s.yaml", "--data", "rows"], "2 problems: (1) s.yaml: cannot be read"),
    "a training": (["train", "distill", *NOWHERE], "3 problems: (1) --output: is missing"),
    "a training's file": (
        ["train", "distill", "--output", "out", "--task", "mgsm", "--config", "train.yaml"], "model folder './a'",
    ),
    "a count of n-grams": (
        ["train", "ngram", "--corpus", "a.txt", "--target", "./a", "--output", "out"], "give a folder with a tokenizer",
    ),
    "fairness": (
        ["fairness", "--before", "./a", "--after", "./b", "--drafter", "./c", "--data", "rows"],
        "4 problems: (1) run './a': no such folder",
    ),
    "answers": (["answers", "a", "--data", "rows"], "2 problems: (1) run 'a': no such folder"),
    "all at once": (
        ["run", "--task", "mgms", "--method", "sd,sdd,rest", "--target", "plain", "--data", "rows", "--chat", "always"],
        "error: 6 problems: (1) unknown task 'mgms'",
    ),
}  # fmt: skip


def test_a_cheap_refusal_imports_nothing_heavy(tmp_path: Path) -> None:
    """All commands in one process: none of them imports torch, which takes longer than all of them."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text("{}")
    (tmp_path / "train.yaml").write_text("target: ./a")
    words = json.dumps([words for words, _ in CHEAP.values()])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["2 []"] * len(CHEAP) and done.stdout == ""
    for name, line, (_, part) in zip(CHEAP, lines[::2], CHEAP.values(), strict=True):
        assert line.startswith("error: ") and part in line, (name, line)
    for part in ("needs a drafter model", "'sdd'", "drafter.path is missing", "--chat always", "--data rows"):
        assert part in lines[-2]


def problem(**options: object) -> str:
    given = {name: options.pop(name) for name in ("tasks", "methods", "loggers", "plot") if name in options}
    whole = {"tasks": ["mgsm"], "methods": ["sd"], "command": "", **given}
    try:
        check_request(Request(options=RunOptions(**options), **whole))  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error)
    return ""


def test_what_llama_cpp_cannot_run_is_told_before_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "is_installed", lambda name: True)
    heads = {"eagle", "eagle2", "eagle3", "eagle3-chain", "peagle", "dflash", "dspark", "domino", "medusa",
             "medusa-typical"}  # fmt: skip
    own = {"mtp", "self-skip", "self-skip-swift", "self-window", "self-quantized"}
    of_transformers = {"hf-sd", "hf-pld", "hf-slem", "hf-tli"}
    refused = {
        name: found for name in method_names()
        if "llama.cpp gives logits only" in (found := problem(target="m.gguf", methods=[name], engine="llama.cpp"))
    }  # fmt: skip
    assert set(refused) == heads | own | of_transformers
    assert all("drafter.path" not in said and "needs a drafter" not in said for said in refused.values())
    assert all("its head reads the target's hidden states: take --engine eager" in refused[name] for name in heads)
    assert "llama.cpp gives logits only" in problem(target="m.gguf", methods=["eagle3"])  # auto
    eager = problem(target="m.gguf", methods=["eagle3"], engine="eager")
    assert "no published eagle3 head" in eager and "llama.cpp" not in eager
    asked = Request(["mgsm"], ["all"], RunOptions(target="m.gguf", drafter="d.gguf"), "")
    names, left_out = requested_methods(asked)
    assert left_out is not None and left_out.keys() == refused.keys() and not left_out.keys() & set(names)
    assert left_out["eagle3"] in refused["eagle3"]
    overrides = ("drafter.quantize=null", "drafter.checkpoint=m.gguf")
    assert "logits only" not in problem(target="m.gguf", methods=["self-quantized"], overrides=overrides)


def test_missing_packages_and_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(request, "is_installed", lambda name: False)
    monkeypatch.setattr("specbench.core.environment.is_installed", lambda name: False)
    monkeypatch.setattr(request, "may_have_cuda", lambda: True)
    for name in ("wandb", "bitsandbytes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert problem(loggers=["wandb"]) == "--log wandb: needs wandb: pip install 'specbench-lm[wandb]'"
    assert problem(quantize="nf4") == "--quantize nf4: needs bitsandbytes: pip install 'specbench-lm[quant]'"
    assert problem(device_map="auto") == "--device-map auto: needs accelerate: pip install 'specbench-lm[train]'"
    assert problem(plot=tmp_path / "a.png") == "--plot: needs matplotlib: pip install 'specbench-lm[plots]'"
    assert problem(tasks=["lm_eval:x"]).startswith("--task lm_eval:x: needs lm_eval: pip install")
    monkeypatch.setattr(request, "may_have_cuda", lambda: False)
    assert problem(device="cuda") == "--device cuda: not available on this machine (no CUDA driver is installed)"


def test_what_is_there_passes(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    for options in (
        {}, {"target": tiny_pair[0], "drafter": tiny_pair[1]}, {"target": "org/large", "drafter": "org/small"},
        {"methods": ["all"]}, {"tasks": ["all"]}, {"methods": ["rest", "ngram", "medusa", "routed", "hf-sd", "mtp"]},
        {"methods": ["rest"], "target": "org/large", "overrides": (f"drafter.path={tmp_path}",)},
        {"methods": ["eagle3"], "target": "org/large", "overrides": ("drafter.path=org/head",)},
        {"methods": ["sd"], "target": "org/large", "overrides": ("drafter.checkpoint=org/small",)},
        {"methods": ["sd"], "target": "object:mine", "drafter": "object:other", "chat": "always"},
    ):  # fmt: skip
        assert problem(**options) == "", options  # type: ignore[arg-type]


@pytest.mark.parametrize("template", ["chat_template.jinja", "tokenizer_config.json", None])
def test_a_chat_template_may_be_in_several_files(tmp_path: Path, template: str | None) -> None:
    folder = tiny.save(tmp_path / "model")
    assert problem(methods=["pld"], target=str(folder), chat="always").startswith("--chat always: ")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if template == "tokenizer_config.json":
        (folder / template).write_text(json.dumps({**config, "chat_template": "{{ messages }}"}))
    elif template is not None:
        (folder / template).write_text("{{ messages }}")
    assert bool(problem(methods=["pld"], target=str(folder), chat="always")) == (template is None)


def test_the_built_in_loggers_are_those_of_the_registry() -> None:
    assert {*LOGGERS.names()} - {*LOGGERS.plugins} == {*LOGGER_PACKAGES}


def test_the_tables_of_drafters_are_those_of_the_registry() -> None:
    features = {name: DRAFTERS.features(name) for name in DRAFTERS.names()}
    assert {name for name, each in features.items() if each.needs_model} == MODEL_DRAFTERS
    assert {name for name in features if "path" in DRAFTERS.options_model(name).model_fields} == PATH_DRAFTERS
    assert set(TABLE_DRAFTERS) < PATH_DRAFTERS


def test_all_methods_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()
    original = yaml_files.read_text

    def counted(path: Any) -> str:
        read[Path(path).name] += 1
        return original(path)

    monkeypatch.setattr(yaml_files, "read_text", counted)
    request = Request(["mgsm"], ["all"], RunOptions(subsets=("en",), limit=1), "specbench run")
    names = resolve(request)[0].methods
    assert "sd" in names and {read[f"{name}.yaml"] for name in names} == {1}
