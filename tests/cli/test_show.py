"""`specbench show`: all that it says of a method is so, for built-in methods, plug-ins and a user's own files."""

import json
import shlex
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from tokenizers import AddedToken, processors

from specbench.cli.help.method import commands, embedded, is_preset, needs, parameters, parts, presets, verdict
from specbench.cli.help.text import field_parameters, shown
from specbench.cli.show import component_lines, help_lines, show, users
from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, NoFeatures, Registry
from specbench.specs.catalogue import load_file, load_method, method_names, with_overrides
from tests.support import tiny
from tests.support.tokenizers_made_here import byte_bpe_with_bos

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


def parameter(name: str, key: str) -> Any:
    return next(each for each in parameters(load_method(name)) if each.key == key)


WITHOUT_LAYERS = {"mtp", "dflash", "dspark", "domino", "peagle"}  # the embedded target has no such layer or head


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(name: str) -> None:
    lines, spec = "\n".join(help_lines(name)).splitlines(), load_method(name)
    assert lines[0].startswith(f"{name} (version {spec.version}): ")
    assert all(len(line) <= 100 for line in lines if not line.startswith("  specbench "))
    for each in parameters(spec):
        assert f"  {each.key} = {shown(each.value)}" in lines
    for part in parts(spec):
        assert part.text and f"{part.role}: {part.name}" in lines
    assert spec.paper is None or f"paper: {spec.paper}" in lines
    assert (verdict(spec)[0] in ("yes", "claimed")) == spec.lossless
    assert needs(spec)[1].startswith("a draft model") == spec.needs_drafter
    assert len(embedded(spec)) == (0 if name in WITHOUT_LAYERS else 1 + spec.needs_drafter)
    drafts_here = spec.decoder is None and spec.routes is None and spec.drafter.type != "none"
    assert lines.count("a step:") == drafts_here


@pytest.mark.parametrize("name", METHODS)
def test_the_parameters_are_the_keys_that_may_be_set(name: str) -> None:
    spec = load_method(name)
    for each in parameters(spec):
        pair = f"{each.key}={shown(each.value)}"
        if each.settable:
            assert with_overrides([], [spec], [pair])[1] == [spec]
        else:
            with pytest.raises(ConfigError, match=r"has the key|cannot be changed with --set"):
                with_overrides([], [spec], [pair])


@pytest.mark.parametrize("name", METHODS)
def test_the_assignment_in_its_commands_changes_the_method(name: str) -> None:
    spec = load_method(name)
    lines = commands(spec, name, parameters(spec))
    models = " --target HUB_ID_OR_FOLDER" if name in WITHOUT_LAYERS else ""
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


def test_lossless_and_why(tmp_path: Path) -> None:
    expected = {"ar": "yes", "sd": "yes", "slem": "yes", "fsd": "no", "draft-only": "no", "hf-sd": "claimed"}
    verdicts = {name: verdict(load_method(name)) for name in expected}
    assert {name: lossless for name, (lossless, _) in verdicts.items()} == expected
    assert "'fuzzy'" in verdicts["fsd"][1] and "specbench audit" in verdicts["hf-sd"][1]


def test_external_code_is_read_for_its_options(tmp_path: Path) -> None:
    (tmp_path / "ahead.py").write_text(CODE)
    (tmp_path / "ahead.yaml").write_text(EXTERNAL)
    lines = help_lines(str(tmp_path / "ahead.yaml"))
    assert any(line.startswith("lossless: unknown ") for line in lines) and "  Looks ahead." in lines
    spec: Any = load_file(tmp_path / "ahead.yaml")
    assert [(each.key, each.type, each.value, each.settable) for each in parameters(spec)] == [
        ("num_draft_tokens", "an integer", 4, True),
        ("decoder.options.depth", "an integer", 3, True),
        ("decoder.options.style", "any value", "plain", False),
    ]
    assert any("write it in the method's file" in line for line in lines)
    (tmp_path / "ahead.py").write_text("import no_such_module")
    with pytest.raises(ConfigError, match="cannot be imported: No module named 'no_such_module'"):
        help_lines(str(tmp_path / "ahead.yaml"))


def test_needs() -> None:
    assert needs(load_method("ngram"))[-1].startswith("an n-gram model over the target's tokens")
    assert "with the target's vocabulary" in needs(load_method("sd"))[1]
    assert "vocabulary may differ from the target's" in needs(load_method("slem"))[1]
    assert embedded(load_method("slrs")) == ["embedded:target", "embedded:drafter-bytes"]


def test_presets_name_each_other() -> None:
    fsd, found = load_method("fsd"), presets(load_method("fsd"))
    assert {"fsd-low", "fsd-llama3.1"} <= {each.name for each in found}
    assert all(is_preset(each, fsd) for each in found) and not presets(load_method("sd"))
    assert "a preset of fsd: the same parts with other values" in help_lines("fsd-low")
    assert any(line.startswith("  fsd-low: ") for line in help_lines("fsd"))


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "my own.yaml"
    path.write_text(
        "name: fsd-mine\nversion: 2\ntitle: Mine\ndrafter: {type: model}\n"
        "verification: {rule: fuzzy, divergence: kl, threshold: .inf}\nnum_draft_tokens: 64\n"
    )
    lines = help_lines(str(path))
    assert lines[:2] == ["fsd-mine (version 2): Mine", "a preset of fsd: the same parts with other values"]
    runs = lines[lines.index("commands:") + 1 :]
    assert shlex.split(runs[0])[-1] == str(path) and "num_draft_tokens=1" in runs[2]
    assert "  verification.threshold = .inf" in lines


def test_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    show("mgsm")
    out = capsys.readouterr().out
    for part in ("mgsm (version 4): ", "Step-by-Step Answer:", "max_new_tokens 320", 'score: type "number"',
                 "juletxara/mgsm", "specbench run --task mgsm --method sd"):  # fmt: skip
        assert part in out


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
    title = {DRAFTERS: "Drafters", RULES: "Verification rules", BRIDGES: "Vocabulary bridges"}[registry]
    lines = [*component_lines(title, name)]
    assert f"{name}: a " in lines[0] and max(map(len, lines)) <= 100
    for option in registry.options_model(name).model_fields:
        assert f"  {option}" in lines
    for each in users(registry, title.lower().removesuffix("s"), name):
        assert name in [part.name for part in parts(load_method(each))]


def test_a_rule_and_a_scorer_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    show("exact_match")
    out = capsys.readouterr().out
    assert "exact_match: a verification rule, written as verification: {rule: exact_match, …} in a method" in out
    assert "exact_match: a scorer, written as scorer: {type: exact_match, …} in a task" in out
    assert (
        "lookahead, medusa, ngram-mod, pld, rest, sam, slem, suffix, token-recycling" in " ".join(out.split())
        and "  scrolls" in out.splitlines()
    )


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
        ("nothing", "component or model 'nothing': give one that `specbench list` shows"),
        ("quite different", "give one that `specbench list` shows, or the path of a .yaml file"),
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
    ],
)
def test_an_unknown_name_is_one_line(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        help_lines(name)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("adds", [True, False])
def test_a_model_begins_with_what_its_tokenizer_puts_before_a_text(
    adds: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some name a BOS token, and put none before texts."""
    folder = tiny.save(tmp_path / "m", num_hidden_layers=1, num_extra=260)
    made = byte_bpe_with_bos()
    if not adds:
        made.backend_tokenizer.post_processor = processors.ByteLevel()
    made.save_pretrained(folder)
    show(str(folder))
    assert f"begin: {'<|begin|>' if adds else 'none'}\n" in capsys.readouterr().out


def test_a_model_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a run takes from a checkpoint, without its weights."""
    folder = tiny.save(tmp_path / "m", num_hidden_layers=1, num_extra=2)
    made = tiny.tokenizer(2)
    made.add_tokens([AddedToken("</s>", special=True)], special_tokens=True)
    made.save_pretrained(folder)
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
        "context: 1024", "vocabulary: 259 tokens", "end: 3 ", " (generation_config.json), 4 ",
        "258 <|end|> (tokenizer)", "no end here, although named like one: 259 </s>",
        "which runs do not use: END", "content of messages: parts", "system prompt: before the user's text",
        "text of its own before the user's: You are a model of some kind.", "date: 2024-07-26 (--template-date)",
        "variables (--chat-template-args): today", "temperature 1.0, top_p 0.9", "left out: min_p 0.1",
    ):  # fmt: skip
        assert line in text, line
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no users') }}")
    show(str(folder))
    assert "refuses a single user turn (no users)" in " ".join(capsys.readouterr().out.split())
