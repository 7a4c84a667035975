"""Finding and loading specs, YAML mistakes, and --set."""

import shutil

import pytest

from specbench.built_in import FEATURES
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.specs import catalogue
from specbench.specs.catalogue import with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec

METHOD = """\
name: mine
version: 1
title: Mine
drafter: {type: model}
verification: {rule: fuzzy, divergence: js, threshold: 0.3}
num_draft_tokens: 5
"""
TASK = 'name: t\nversion: 1\ntitle: T\nprompt: "{{ row.q }}"\ngeneration: {max_new_tokens: 1}\n'


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def message(function, *arguments):
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_built_in_file_loads():
    assert {"mgsm"} <= set(catalogue.task_names())
    assert {"ar", "draft-only", "fsd", "sd"} <= set(catalogue.method_names())
    assert all(isinstance(catalogue.load_task(name), TaskSpec) for name in catalogue.task_names())
    assert all(isinstance(catalogue.load_method(name), MethodSpec) for name in catalogue.method_names())


def test_the_built_in_methods_are_what_they_say():
    ar, sd, fsd, floor = (catalogue.load_method(name) for name in ("ar", "sd", "fsd", "draft-only"))
    assert [spec.lossless for spec in (ar, sd, fsd, floor)] == [True, True, False, False]
    assert [spec.needs_drafter for spec in (ar, sd, fsd, floor)] == [False, True, True, True]
    assert fsd.verification.options["threshold"] == 0.3


def test_mgsm_has_its_languages():
    task = catalogue.load_task("mgsm")
    assert set(task.subset_names) == {"en", "es", "fr", "de", "ru", "zh", "ja", "th", "sw", "bn", "te"}
    assert all(task.subset(name).language == name for name in task.subset_names)
    assert len({task.subset(name).vars["question_word"] for name in task.subset_names}) == 11


def test_own_files_load_by_path(write):
    path = write(METHOD)
    assert catalogue.load_method(path).name == "mine"
    assert isinstance(catalogue.load_file(path), MethodSpec)
    assert isinstance(catalogue.load_file(builtin_dir("tasks") / "mgsm.yaml"), TaskSpec)


def test_the_sample_lies_beside_the_task_file(write, tmp_path):
    assert catalogue.load_task(write(TASK + "sample: samples/t.jsonl\n")).sample == str(
        tmp_path / "samples" / "t.jsonl"
    )


@pytest.mark.parametrize(
    ("load", "name", "expected"),
    [
        (catalogue.load_task, "mgms", "unknown task 'mgms': did you mean 'mgsm'? (choices: "),
        (catalogue.load_method, "fds", "unknown method 'fds': did you mean 'fsd'? (choices: "),
        (catalogue.load_task, "no/such.yaml", "no/such.yaml: cannot be read: No such file or directory"),
    ],
)
def test_unknown_names(load, name, expected):
    assert message(load, name).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (METHOD + "bridge: [shared\n", "mine.yaml, line 8: not valid YAML: "),
        (METHOD + "  x: 1\n", "mine.yaml, line 7: not valid YAML: "),
        (METHOD + "version: 2\n", "mine.yaml, line 7: not valid YAML: the key 'version' occurs twice"),
        ("drafter: {type: model, type: none}\n", "mine.yaml, line 1: not valid YAML: the key 'type' occurs twice"),
        (METHOD + "bridge: \0\n", "mine.yaml: not valid YAML: "),
        (METHOD.encode("utf-16"), "mine.yaml: cannot be read: it is not UTF-8 text"),
        (
            METHOD + "paper: {{ row.x }}\n",
            "mine.yaml, line 7: not valid YAML: a key must be a word, and a template must be",
        ),
        (METHOD + "? [a, b]\n: c\n", "mine.yaml, line 7: not valid YAML: a key must be a word"),
        (
            METHOD + "paper: 2024-13-45\n",
            "line 7: not valid YAML: '2024-13-45' is not a valid timestamp: write a text in",
        ),
        (METHOD + "paper: !!int abc\n", "line 7: not valid YAML: 'abc' is not a valid int: write a text in quotes"),
        (METHOD + "paper: !!int ''\n", "line 7: not valid YAML: '' is not a valid int"),
        (METHOD + "paper: !!bool abc\n", "line 7: not valid YAML: 'abc' is not a valid bool"),
        (METHOD + "paper: !!timestamp abc\n", "line 7: not valid YAML: 'abc' is not a valid timestamp"),
        (METHOD + "paper: 0b_\n", "mine.yaml, line 7: not valid YAML: '0b_' is not a valid int"),
        pytest.param(
            METHOD + "paper: " + "9" * 5000 + "\n",
            "line 7: not valid YAML: '" + "9" * 40 + "' is not a valid int",
            id="long number",
        ),
        pytest.param(
            METHOD + "paper: 0x" + "f" * 5000 + "\n",
            "line 7: not valid YAML: '0x" + "f" * 38 + "' is not a valid int",
            id="long hexadecimal",
        ),
        pytest.param(
            METHOD + "paper: " + "[" * 3000 + "]" * 3000 + "\n",
            "mine.yaml, line 7: not valid YAML: exceeds 64 levels of depth",
            id="deep",
        ),
        (METHOD + 'paper: "\\ud800"\n', "line 7: not valid YAML: '\\ud800' is not a valid str"),
        (
            METHOD + "sweep: &s {num_draft_tokens: [*s]}\n",
            "line 7: not valid YAML: found unconstructable recursive node",
        ),
        ("", "mine.yaml: is not a mapping"),
        ("- a\n- b\n", "mine.yaml: is not a mapping"),
        ("name: x\nversion: 1\n", "mine.yaml: neither a task (key `prompt`) nor a method (key `verification`)"),
        (METHOD.replace(", threshold: 0.3", ""), "mine.yaml: verification.threshold: the key 'threshold' is missing"),
        (
            METHOD.replace("threshold", "treshold"),
            "mine.yaml: verification.treshold: unknown key 'treshold': did you mean",
        ),
        (
            METHOD.replace("0.3", "-1"),
            "mine.yaml: verification.threshold = -1: input should be greater than or equal to 0",
        ),
        (
            METHOD.replace("0.3}", "0.3, treshold: 1}"),
            "verification.treshold: unknown key 'treshold': did you mean 'thr",
        ),
    ],
)
def test_bad_files(write, text, expected):
    assert expected in message(catalogue.load_method, write(text))


def test_an_anchor_may_be_used_twice(write):
    task = catalogue.load_task(write(TASK + "vars: {a: &a {x: 1}, b: *a, c: {<<: *a, y: 2}}\n"))
    assert task.vars == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_task_and_method_are_told_apart(write):
    assert "holds a method, not a task: give it with --method" in message(catalogue.load_task, write(METHOD))
    mgsm = str(builtin_dir("tasks") / "mgsm.yaml")
    assert "holds a task, not a method: give it with --task" in message(catalogue.load_method, mgsm)


def test_no_and_on_are_words(write):
    task = catalogue.load_task(write(TASK + "subsets: {no: {language: no}}\n"))
    assert task.subset("no").language == "no"


def test_a_built_in_is_called_as_its_file(tmp_path, monkeypatch):
    for kind in ("tasks", "methods"):
        shutil.copytree(builtin_dir(kind), tmp_path / kind)
    shutil.copy(tmp_path / "methods" / "sd.yaml", tmp_path / "methods" / "dsd.yaml")
    monkeypatch.setattr(catalogue, "builtin_dir", lambda kind: tmp_path / kind)
    assert "dsd.yaml: name = 'sd': must be the name of the file, 'dsd'" in message(catalogue.load_method, "dsd")
    assert catalogue.load_method("sd").name == "sd"
    (tmp_path / "methods" / "sd.yml").write_text(METHOD)
    catalogue._yaml_files.cache_clear()
    assert "'sd' is both " in message(catalogue.load_method, "sd")


# --set

AR, SD, FSD, MGSM = "ar", "sd", "fsd", "mgsm"


def override(*pairs, methods=("ar", "sd", "fsd"), tasks=("mgsm",)):
    return with_overrides([*map(catalogue.load_task, tasks)], [*map(catalogue.load_method, methods)], pairs)


def test_set_reaches_the_methods_that_have_the_key():
    _, (ar, sd, fsd) = override("num_draft_tokens=8", "verification.threshold=0.5", "drafter.temperature=1")
    assert [spec.num_draft_tokens for spec in (ar, sd, fsd)] == [0, 8, 8]
    assert fsd.verification.options["threshold"] == 0.5
    assert sd.verification == catalogue.load_method("sd").verification
    assert [spec.drafter.options.get("temperature") for spec in (ar, sd, fsd)] == [None, 1.0, 1.0]


def test_default_then_yaml_then_command_line(write):
    default = catalogue.load_method(write(METHOD))
    assert default.verification.options["divergence_on"] == "raw"
    mine = catalogue.load_method(write(METHOD.replace("threshold: 0.3", "threshold: 0.3, divergence_on: processed")))
    assert mine.verification.options["divergence_on"] == "processed"
    _, (last,) = with_overrides([], [mine], ["verification.divergence_on=raw"])
    assert last.verification.options["divergence_on"] == "raw"


def test_set_wins_over_a_subset(write):
    task = build(
        TaskSpec,
        {
            "name": "t",
            "version": 1,
            "title": "T",
            "prompt": "{{ vars.word }}{{ row.q }}",
            "generation": {"max_new_tokens": 8},
            "subsets": {"a": {"vars": {"word": "A"}, "generation": {"temperature": 0.5}}, "b": {"vars": {"word": "B"}}},
        },
    )
    (task,), _ = with_overrides([task], [], ["generation.temperature=1", "vars.word=2"])
    assert [task.subset(name).generation.temperature for name in "ab"] == [1.0, 1.0]
    assert [task.subset(name).vars["word"] for name in "ab"] == ["2", "2"]


def test_set_of_one_subset():
    data = {
        "name": "t", "version": 1, "title": "T", "prompt": "{{ vars.word }}{{ row.q }}", "vars": {"word": "Q", "n": 1},
        "generation": {"max_new_tokens": 8, "stop": ["x"], "chat_stop": ["y"]},
        "subsets": {"a": {"vars": {"word": "A"}}, "a.b": {}, "c": {"dataset": {"path": "p", "split": "test"}}},
    }  # fmt: skip
    pairs = ["subsets.a.vars.word=2", "subsets.a.vars.n=2", "vars.n=3", "subsets.a.b.generation.stop=[z]"]
    pairs += ["subsets.c.dataset.revision=r", "subsets.c.language=de", "subsets.c.generation.temperature=1"]
    (task,), (sd,) = with_overrides([build(TaskSpec, data)], [catalogue.load_method("sd")], pairs)
    a, b, c = map(task.subset, task.subset_names)
    assert [each.vars for each in (a, b, c)] == [{"word": "2", "n": 2}, {"word": "Q", "n": 3}, {"word": "Q", "n": 3}]
    assert [each.generation.where(in_chat=True).stop for each in (a, b, c)] == [("y",), ("z",), ("y",)]
    assert [each.generation.where(in_chat=False).stop for each in (a, b, c)] == [("x",), ("z",), ("x",)]
    assert (c.dataset.revision, c.language, c.generation.temperature, a.language) == ("r", "de", 1.0, None)
    assert sd == catalogue.load_method("sd")


def test_set_values_are_yaml_except_for_texts():
    (task,), _ = override("generation.stop=[]", "generation.top_k=null", "prompt=Q: {{ row.question }}")
    assert task.generation.stop == ()
    assert task.prompt == "Q: {{ row.question }}"
    _, (fsd,) = override("verification.threshold=inf", methods=["fsd"])
    assert fsd.verification.options["threshold"] == float("inf")
    _, (fsd,) = override("verification.threshold=1e-3", methods=["fsd"])
    assert fsd.verification.options["threshold"] == 0.001


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (
            "verification.treshold=1",
            "--set verification.treshold=1: no selected task or method has the key 'verification.treshold': "
            "did you mean 'verification.threshold'?",
        ),
        ("verification.threshold=-1", "--set verification.threshold=-1: verification.threshold = -1: input should be "),
        (
            "num_draft_tokens=99",
            "--set num_draft_tokens=99: num_draft_tokens = 99: input should be less than or equal to 64",
        ),
        ("num_draft_tokens", "--set 'num_draft_tokens': write it as key=value"),
        ("=3", "--set '=3': write it as key=value"),
        (
            "generation.temperature=warm",
            "--set generation.temperature=warm: generation.temperature = 'warm': input should",
        ),
        ("generation.stop=[", "not valid YAML"),
        ("num_draft_tokens={{a}}", "--set num_draft_tokens={{a}}, line 1: not valid YAML: a key must be a word"),
        ("num_draft_tokens=2024-13-45", "line 1: not valid YAML: '2024-13-45' is not a valid timestamp"),
        (
            "generation.temperature=1e-38",
            "generation.temperature = 1e-38: input should be 0 (greedy) or at least 0.01",
        ),
        ("prompt=null", "--set prompt=null: prompt = None: input should be a valid string"),
        (
            "reference=null",
            "--set reference=null: subsets.en.reference: the key 'reference' is missing, which the scorer",
        ),
        ("verification.rule=rejection", "'verification.rule' cannot be changed with --set: "),
        (
            "subsets.de.vars.qestion_word=F",
            "the key 'subsets.de.vars.qestion_word': did you mean 'subsets.de.vars.question_word'?",
        ),
        ("subsets.dee.language=de", "did you mean 'subsets.de.language'?"),
        ("subsets.de.name=x", "'subsets.de.name' cannot be changed with --set"),
        ("subsets.de=x", "no selected task or method has the key 'subsets.de'"),
        (
            "subsets.de.generation.temperature=-1",
            "--set subsets.de.generation.temperature=-1: subsets.de.generation.temperature = -1: input should be ",
        ),
        ("version=2", "'version' cannot be changed with --set"),
        ("name=x", "'name' cannot be changed with --set"),
    ],
)
def test_bad_pairs(pair, expected):
    assert expected in message(override, pair)


def test_null_takes_a_text_away():
    mgsm = catalogue.load_task("mgsm")
    unscored = {name: {**over, "scorer": None} for name, over in mgsm.subsets.items()}
    plain = mgsm.model_copy(update={"scorer": None, "subsets": unscored})
    (task,), _ = with_overrides([plain], [], ["reference=null", "vars.question_word=null ref"])
    assert task.subset("en").reference is None
    assert task.subset("en").vars["question_word"] == "null ref"


def test_set_names_the_sweep_of_rules_and_leaves_ar_alone():
    ar, sd, tli = (catalogue.load_method(name) for name in ("ar", "sd", "tli"))
    text = message(with_overrides, [], [ar, sd], ["verification.rule=fuzzy"])
    assert "'verification.rule' cannot be changed with --set" in text
    assert "specbench sweep --path verification.rule" in text
    _, (first, second) = with_overrides([], [ar, tli], ["bridge=union"])
    assert first == ar and second.bridge.name == "union"


def test_set_without_a_method_that_has_the_key():
    with pytest.raises(ConfigError, match="no selected task or method has the key 'num_draft_tokens'"):
        override("num_draft_tokens=8", methods=["ar"])


def test_all_is_every_built_in_task_and_stands_alone() -> None:
    from specbench.running.request import requested_tasks

    assert requested_tasks(["all"]) == catalogue.builtin_task_names()
    assert {"mgsm", "wmt", "humaneval"} <= set(catalogue.builtin_task_names())
    assert requested_tasks(["wmt", "mgsm", "wmt"]) == ["wmt", "mgsm"]
    with pytest.raises(ConfigError, match="--task all,mgsm: 'all' is every task: name no other task"):
        requested_tasks(["all", "mgsm"])


def test_every_method_has_the_family_of_its_drafter_and_rule(write):
    families = catalogue.method_families()
    assert sorted(name for names in families.values() for name in names) == catalogue.method_names()
    assert "sd" in families["a draft model"] and "fsd" in families["a draft model, lossy rule"]
    assert "tli" in families["a draft model of another vocabulary"] and "ar" in families["nothing drafts"]
    drafters = {family.partition(" of another")[0].partition(",")[0] for family in families}
    declared = {DRAFTERS.features(name).family for name in FEATURES["specbench.drafters"]}
    assert None not in declared and declared <= drafters, "each built-in drafter has a family that the list shows"
    assert catalogue.family({"drafter": {"type": "of-no-plug-in"}}) == "of-no-plug-in"
