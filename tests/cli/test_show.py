"""`specbench show`: all that it says of a method is so, for built-in methods, plug-ins and a user's own files."""

import json
import shlex
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from specbench.cli.help import field_parameters
from specbench.cli.help.method import MethodHelp
from specbench.cli.help.text import component_help, component_text, find_help, method_text, shown
from specbench.cli.info import show
from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, NoFeatures, Registry
from specbench.specs.catalogue import load_method, method_names, with_overrides
from tests.support import tiny

METHODS = method_names()
COMPONENTS = [
    (registry, name)
    for registry in (DRAFTERS, RULES, BRIDGES)
    for name in registry.names()
    if registry.get(name).__module__.startswith("specbench.")
]
CODE = '''
def decode(prompt_ids, target, max_new_tokens, depth: int, style="plain"):
    """Looks ahead."""
    return prompt_ids[:1]
'''
EXTERNAL = """\
name: ahead
version: 1
title: Looks ahead
decoder: {type: external, entry: "ahead.py:decode", options: {depth: 3}}
num_draft_tokens: 4
"""


def method(name: str) -> MethodHelp:
    [found] = find_help(name)
    assert isinstance(found, MethodHelp)
    return found


def parameter(name: str, key: str) -> Any:
    return next(each for each in method(name).parameters if each.key == key)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(name)
    lines = capsys.readouterr().out.splitlines()
    spec = load_method(name)
    assert lines[0].startswith(f"{name} (version {spec.version}): ")
    assert all(len(line) <= 100 for line in lines if not line.startswith("  specbench "))
    told = method(name)
    for each in told.parameters:
        assert f"  {each.key} = {shown(each.value)}" in lines
    for part in told.parts:
        assert part.text and f"{part.role}: {part.name}" in lines
    assert spec.paper is None or f"paper: {spec.paper}" in lines
    assert (told.lossless in ("yes", "claimed")) == spec.lossless
    assert told.needs[1].startswith("a draft model") == spec.needs_drafter
    assert len(told.embedded) == (0 if name == "mtp" else 1 + spec.needs_drafter)


@pytest.mark.parametrize("name", METHODS)
def test_the_json_says_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(name, as_json=True)
    assert MethodHelp.model_validate_json(capsys.readouterr().out) == method(name)


@pytest.mark.parametrize("name", METHODS)
def test_the_parameters_are_the_keys_that_may_be_set(name: str) -> None:
    spec = load_method(name)
    for each in method(name).parameters:
        pair = f"{each.key}={shown(each.value)}"
        if each.settable:
            assert with_overrides([], [spec], [pair])[1] == [spec]
        else:
            with pytest.raises(ConfigError, match=r"has the key|cannot be changed with --set"):
                with_overrides([], [spec], [pair])


@pytest.mark.parametrize("name", METHODS)
def test_the_assignment_in_its_commands_changes_the_method(name: str) -> None:
    spec, lines = load_method(name), method(name).commands
    models = " --target HUB_ID_OR_FOLDER" if name == "mtp" else ""  # the embedded target has no such layer
    assert lines[0] == f"specbench run --task mgsm --method {name}{models}"
    assert all(line.endswith(models) or " --set " in line for line in lines)
    pairs = [words[words.index("--set") + 1] for words in map(shlex.split, lines) if "--set" in words]
    settable = spec.decoder is not None or spec.drafter.type != "none" or spec.decodes_with == "random"
    assert len(pairs) == settable
    for pair in pairs:
        assert with_overrides([], [spec], [pair])[1] != [spec]


@pytest.mark.parametrize(("registry", "name"), COMPONENTS)
def test_every_option_of_every_component_has_a_meaning_and_a_range(registry: Registry, name: str) -> None:
    assert registry.get(name).__doc__
    for each in field_parameters(registry.options_model(name), registry.kind, {}, set()):
        assert each.meaning and each.meaning.endswith((".", ")")), each
        assert each.range or not {"a number", "an integer"} & {each.type.partition(" or ")[0]}, each


@pytest.mark.parametrize(
    ("name", "key", "kind", "bounds", "default"),
    [
        ("fsd", "num_draft_tokens", "an integer", "1 to 64", None),
        ("fsd", "verification.threshold", "a number", "at least 0", None),
        ("fsd", "verification.divergence_on", "one of", "raw, processed", "raw"),
        ("fsd", "drafter.temperature", "a number or null", "0 (greedy), or 0.01 to 100", None),
        ("random-accept", "verification.probability", "a number", "0 to 1", None),
        ("pld", "drafter.max_match", "an integer", "1 to 16", 3),
        ("slrs", "bridge.max_draft_passes", "an integer", "1 to 1000000", 4096),
        ("hf-pld", "decoder.options.max_matching_ngram_size", "an integer", "at least 1", 2),
        ("hf-tli", "decoder.options.prune_lm_head", "true or false", "", True),
    ],
)
def test_types_ranges_and_defaults(name: str, key: str, kind: str, bounds: str, default: object) -> None:
    found = parameter(name, key)
    assert (found.type, found.range, found.default) == (kind, bounds, default)
    assert found.required == (key in ("num_draft_tokens", "verification.threshold", "verification.probability"))


class Mode(Enum):
    SLOW = "slow"
    FAST = "fast"


def gadget(
    *,
    share: Annotated[float, Field(gt=0, lt=1)],
    size: Annotated[int, Field(ge=2, description="How big.")] | None = None,
    mode: Mode = Mode.SLOW,
    only: Literal["this"] = "this",
    steps: list[int] = [1, 2],  # noqa: B006
    call: Callable[[int], int] | None = None,
    limit: float = float("inf"),
) -> None: ...


def test_other_annotations() -> None:
    registry = Registry("gadget", "specbench.no-such-group", NoFeatures)
    registry.register("gadget")(gadget)
    found = {
        each.key: each for each in field_parameters(registry.options_model("gadget"), "gadget", {}, {"gadget.size"})
    }
    assert {key.removeprefix("gadget."): (each.type, each.range) for key, each in found.items()} == {
        "share": ("a number", "above 0 and below 1"),
        "size": ("an integer or null", "at least 2"),
        "mode": ("one of", "slow, fast"),
        "only": ("only", "this"),
        "steps": ("a list", ""),
        "call": ("any value or null", ""),
        "limit": ("a number", ""),
    }
    assert found["gadget.size"].meaning == "How big." and found["gadget.size"].settable
    assert found["gadget.share"].meaning is None and not found["gadget.share"].settable
    assert shown(found["gadget.limit"].default) == ".inf"
    assert json.loads(found["gadget.limit"].model_dump_json())["default"] == "Infinity"


def test_lossless_and_why(tmp_path: Path) -> None:
    expected = {"ar": "yes", "sd": "yes", "slem": "yes", "fsd": "no", "draft-only": "no", "hf-sd": "claimed"}
    assert {name: method(name).lossless for name in expected} == expected
    assert "'fuzzy'" in method("fsd").lossless_reason and "specbench audit" in method("hf-sd").lossless_reason


def test_external_code_is_read_for_its_options(tmp_path: Path) -> None:
    (tmp_path / "ahead.py").write_text(CODE)
    (tmp_path / "ahead.yaml").write_text(EXTERNAL)
    told = method(str(tmp_path / "ahead.yaml"))
    assert told.lossless == "unknown" and told.parts[0].text == "Looks ahead."
    options = [(each.key, each.type, each.value, each.settable) for each in told.parameters]
    assert options == [
        ("num_draft_tokens", "an integer", 4, True),
        ("decoder.options.depth", "an integer", 3, True),
        ("decoder.options.style", "any value", "plain", False),
    ]
    assert "write it in the method's file" in method_text(told)
    (tmp_path / "ahead.py").write_text("import no_such_module")
    with pytest.raises(ConfigError, match="cannot be imported: No module named 'no_such_module'"):
        find_help(str(tmp_path / "ahead.yaml"))


def test_needs() -> None:
    assert method("ngram").needs[-1].startswith("an n-gram model over the target's tokens")
    assert "with the target's vocabulary" in method("sd").needs[1]
    assert "vocabulary may differ from the target's" in method("slem").needs[1]
    assert method("slrs").embedded == ["embedded:target", "embedded:drafter-bytes"]


def test_presets_name_each_other() -> None:
    names = [preset.name for preset in method("fsd").presets]
    assert {"fsd-low", "fsd-llama3.1"} <= set(names) and all(method(name).preset_of == "fsd" for name in names)
    assert method("sd").presets == [] and method("hf-sd").preset_of is None
    assert "a preset of fsd" in method_text(method("fsd-low"))


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "my own.yaml"
    path.write_text(
        "name: fsd-mine\nversion: 2\ntitle: Mine\ndrafter: {type: model}\n"
        "verification: {rule: fuzzy, divergence: kl, threshold: .inf}\nnum_draft_tokens: 64\n"
    )
    told = method(str(path))
    assert told.preset_of == "fsd" and told.version == 2
    assert shlex.split(told.commands[0])[-1] == str(path)
    assert "num_draft_tokens=1" in told.commands[2]
    assert "  verification.threshold = .inf" in method_text(told).splitlines()
    assert json.loads(told.model_dump_json())["parameters"][-2]["value"] == "Infinity"


def test_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    show("mgsm")
    out = capsys.readouterr().out
    for part in ("mgsm (version 4): ", "Step-by-Step Answer:", "max_new_tokens 320", 'score: type "number"',
                 "juletxara/mgsm", "specbench run --task mgsm --method sd"):  # fmt: skip
        assert part in out
    show("mgsm", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "task" and len(told["subsets"]) == 11 and told["generation"]["temperature"] == 0


def test_a_task_that_runs_programs_names_the_option_that_lets_it(capsys: pytest.CaptureFixture[str]) -> None:
    show("humaneval")
    out = capsys.readouterr().out
    assert "Without `--allow-code-execution` nothing is executed" in " ".join(out.split()) and "permission" not in out


def test_a_task_without_a_sample_shows_its_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "echo.yaml"
    path.write_text('name: echo\nversion: 1\ntitle: Echo\nprompt: "{{ row.text }}"\ngeneration: {max_new_tokens: 4}\n')
    show(str(path))
    out = capsys.readouterr().out
    assert "{{ row.text }}" in out and "--data FOLDER_OR_FILE" in out and "score" not in out


@pytest.mark.parametrize(("registry", "name"), COMPONENTS)
def test_every_component_is_explained(registry: Registry, name: str) -> None:
    found = [each for each in component_help(name) if each.role.endswith(registry.kind)]
    lines = component_text(found[0]).splitlines()
    assert len(found) == 1 and name in found[0].written and max(map(len, lines)) <= 100
    for option in registry.options_model(name).model_fields:
        assert f"  {option}" in lines
    for each in found[0].used_by:
        assert name in [part.name for part in method(each).parts]


def test_a_rule_and_a_scorer_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    show("exact_match")
    out = capsys.readouterr().out
    assert "exact_match: a verification rule, written as verification: {rule: exact_match, …} in a method" in out
    assert "exact_match: a scorer, written as scorer: {type: exact_match, …} in a task" in out
    assert " lookahead, medusa, pld, rest, slem, token-recycling" in out and "  scrolls" in out.splitlines()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fds", "unknown method, task, component or model 'fds': did you mean 'fsd'?"),
        ("rest_drafter", "did you mean 'rest'?"),
        ("model_trees", "did you mean 'model_tree'?"),
        ("tests", "'tests': this is a folder: give the name of a method, task, component or model, or the path of its"),
        ("mgms", "did you mean 'mgsm'?"),
        ("./tests", "./tests: no config.json in it: give a model's folder, or the path of"),
        ("speedup", "'speedup' is a metric: `specbench list metrics` explains it"),
        ("quite different", "give one that `specbench list` shows, or the path of a .yaml file"),
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
    ],
)
def test_an_unknown_name_is_one_line(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_help(name)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a run takes from a checkpoint, without its weights."""
    folder = tiny.save(tmp_path / "m", num_hidden_layers=1, num_extra=2)
    (folder / "chat_template.jinja").write_text(
        "{% if today %}{{ strftime_now('%Y') }}{% endif %}You are a model of some kind. "
        "{% for m in messages if m.role != 'system' %}{{ m.content[0].text }}{% endfor %}"
    )
    config = {"eos_token_id": [3, 4], "do_sample": True, "top_p": 0.9, "min_p": 0.1, "stop_strings": ["END"]}
    (folder / "generation_config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    show(str(folder))
    text = capsys.readouterr().out
    for line in (
        "context: 1024", "vocabulary: 259 tokens", "3 ", "(generation_config.json)", "<|end|> (tokenizer)",
        "which runs do not use: END", "content of messages: parts", "system prompt: before the user's text",
        "text of its own before the user's: You are a model of some kind.", "date: 2024-07-26 (--template-date)",
        "variables (--chat-template-args): today", "temperature 1.0, top_p 0.9", "left out: min_p 0.1",
    ):  # fmt: skip
        assert line in text, line
    show(str(folder), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(end["id"], end["sources"]) for end in found["end_tokens"]] == [
        (3, ["generation_config.json"]), (4, ["generation_config.json"]), (258, ["tokenizer"]),
    ]  # fmt: skip
    assert found["kind"] == "model" and found["content"] == "parts" and found["date"] == "2024-07-26"
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no users') }}")
    show(str(folder))
    assert "refuses a single user turn (no users)" in " ".join(capsys.readouterr().out.split())
