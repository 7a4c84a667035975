"""Specs: unknown keys, ranges, illegal compositions, subsets, digests. Every mistake is one line."""

import math
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS, RULES, SCORERS
from specbench.specs import templates
from specbench.specs.catalogue import digest, load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec
from tests.support.specs import LANGUAGES, TASK, message

FSD = {
    "name": "fsd",
    "version": 1,
    "title": "Fuzzy",
    "drafter": {"type": "model"},
    "verification": {"rule": "fuzzy", "divergence": "js", "threshold": 0.3},
    "num_draft_tokens": 5,
}
AR = FSD | {
    "name": "ar",
    "drafter": {"type": "none"},
    "verification": {"rule": "rejection"},
    "num_draft_tokens": 0,
}
SHARED_OUT = AR | {"name": "shared-out", "decodes_with": "random", "drafter_share": 0.5}
RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


def method(**changes):
    return build(MethodSpec, FSD | changes, "methods/my.yaml: ")


def task(**changes):
    return build(TaskSpec, TASK | changes, "tasks/my.yaml: ")


def run(**changes):
    data = {"tasks": [build(TaskSpec, LANGUAGES)], "methods": [method()], "target": "t", "drafter": "d"}
    return build(RunSpec, data | changes)


def test_defaults_of_components_are_filled_in():
    spec = method(verification={"rule": "fuzzy", "divergence": "kl", "threshold": 0.2})
    assert spec.verification.options == {"divergence": "kl", "threshold": 0.2, "divergence_on": "raw"}
    assert spec.drafter.options == {"temperature": None, "checkpoint": None, "beyond_context": None}
    assert MethodSpec.model_validate(spec.model_dump()) == spec


def test_specs_are_frozen():
    with pytest.raises(ValidationError):
        method().num_draft_tokens = 3


def test_lossless_is_derived():
    assert build(MethodSpec, AR).lossless
    assert not method().lossless
    assert not build(MethodSpec, AR | {"decodes_with": "drafter"}).lossless
    assert "lossless: is derived from verification.rule" in message(method, lossless=True)


def test_which_methods_draft_token_by_token():
    one_pass_each = {"sd", "fsd", "random-accept", "tli", "union", "ngram"}
    others = {"ar", "draft-only", "random-allocation", "slem", "slrs", "pld", "hf-sd", "hf-pld"}
    found = {name for name in one_pass_each | others if load_method(name).drafts_token_by_token}
    assert found == one_pass_each


def test_queries_that_are_shared_out():
    spec = build(MethodSpec, SHARED_OUT)
    assert (spec.lossless, spec.needs_drafter, spec.same_vocabulary) == (False, True, True)
    assert MethodSpec.model_validate(spec.model_dump()) == spec
    assert digest(build(MethodSpec, SHARED_OUT | {"drafter_share": 0})) != digest(spec)
    assert "drafter_share" not in method().model_dump()  # so that no digest moves, and --set knows no such key


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"drafter_share": 1.01}, "drafter_share = 1.01: input should be less than or equal to 1"),
        ({"drafter_share": -0.5}, "drafter_share = -0.5: input should be greater than or equal to 0"),
        ({"drafter_share": None}, "drafter_share: the key 'drafter_share' is missing: add it, such as"),
        ({"decodes_with": "drafter"}, "drafter_share = 0.5: is only for 'decodes_with: random': delete the key"),
        ({"decodes_with": "target"}, "drafter_share = 0.5: is only for 'decodes_with: random': delete the key"),
        (
            {"drafter": {"type": "model"}, "num_draft_tokens": 3},
            "drafter.type = 'model': with 'decodes_with: random' it must be",
        ),
        ({"num_draft_tokens": 3}, "num_draft_tokens = 3: the drafter 'none' drafts nothing: write 0"),
        ({"bridge": "retokenize"}, "bridge = 'retokenize': each model decodes alone, so there is nothing to bridge"),
        ({"sweep": {"drafter_share": [0.1, 2]}}, "sweep.drafter_share: drafter_share = 2: input should be less than"),
    ],
)
def test_mistakes_in_sharing_out(changes, expected):
    assert expected in message(lambda: build(MethodSpec, SHARED_OUT | changes))


def test_external_code_has_no_share():
    external = {"type": "external", "entry": "package.module:name"}
    whole = {"name": "mine", "version": 1, "title": "Mine", "decoder": external, "num_draft_tokens": 1}
    assert "drafter_share = 0.5: is only for" in message(lambda: build(MethodSpec, whole | {"drafter_share": 0.5}))
    assert not build(MethodSpec, whole).drafts_token_by_token


def test_needs_drafter():
    assert method().needs_drafter
    assert not build(MethodSpec, AR).needs_drafter
    assert build(MethodSpec, AR | {"decodes_with": "drafter"}).needs_drafter


FUZZY = FSD["verification"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"verification": {"rule": "fuzzy", "divergence": "js", "treshold": 0.3}},
            "methods/my.yaml: verification.treshold: unknown key 'treshold': did you mean 'threshold'? (choices: ",
        ),
        (
            {"verification": {"rule": "fuzzy", "divergence": "js"}},
            "methods/my.yaml: verification.threshold: the key 'threshold' is missing",
        ),
        (
            {"verification": FUZZY | {"threshold": -0.1}},
            "verification.threshold = -0.1: input should be greater than or",
        ),
        ({"verification": FUZZY | {"threshold": "x"}}, "verification.threshold = 'x': input should be a valid number"),
        (
            {"verification": FUZZY | {"divergence": "jss"}},
            "verification.divergence = 'jss': did you mean 'js'? (choices",
        ),
        ({"verification": {"rule": "fuzy"}}, "verification.rule: unknown rule 'fuzy': did you mean 'fuzzy'?"),
        ({"verification": {}}, "verification.rule: the key 'rule' is missing: add it (choices: "),
        ({"verification": "fuzzy"}, "verification = 'fuzzy': write a mapping"),
        ({"drafter": {"type": "modle"}}, "drafter.type: unknown drafter 'modle': did you mean 'model'?"),
        ({"drafter": {"type": "model", "temprature": 1}}, "drafter.temprature: unknown key 'temprature': did you mean"),
        ({"bridge": "shred"}, "bridge.type: unknown bridge 'shred': did you mean 'shared'?"),
        ({"num_draft_token": 5}, "num_draft_token: unknown key 'num_draft_token': did you mean 'num_draft_tokens'?"),
        ({"num_draft_tokens": 65}, "num_draft_tokens = 65: input should be less than or equal to 64"),
        ({"num_draft_tokens": -1}, "num_draft_tokens = -1: input should be greater than or equal to 0"),
        ({"num_draft_tokens": 0}, "num_draft_tokens = 0: nothing is drafted"),
        ({"drafter": {"type": "none"}}, "num_draft_tokens = 5: the drafter 'none' drafts nothing"),
        ({"decodes_with": "drafter"}, "drafter.type = 'model': with 'decodes_with: drafter' it must be 'none'"),
        ({"decodes_with": "traget"}, "decodes_with = 'traget': did you mean 'target'?"),
        ({"version": 0}, "version = 0: input should be greater than or equal to 1"),
        ({"name": "my method"}, "name = 'my method': "),
        (
            {"sweep": {"threshold": [1]}},
            "sweep.threshold: unknown path 'threshold': did you mean 'verification.threshold'?",
        ),
        ({"sweep": {"verification.threshold": [0.1, -1]}}, "sweep.verification.threshold: verification.threshold = -1"),
        ({"sweep": {"num_draft_tokens": []}}, "sweep.num_draft_tokens = []: "),
    ],
)
def test_method_mistakes(changes, expected):
    assert expected in message(method, **changes)
    assert message(method, **changes).startswith("methods/my.yaml: ")


def test_infinite_threshold_is_allowed():
    assert method(verification=FUZZY | {"threshold": math.inf}).verification.options["threshold"] == math.inf


@pytest.fixture
def bare_components(monkeypatch):
    """A drafter that gives no probabilities, and a rule that needs a thing that only one drafter has."""

    monkeypatch.setattr(DRAFTERS, "_builtin", dict(DRAFTERS._builtin))
    monkeypatch.setattr(RULES, "_builtin", dict(RULES._builtin))

    @DRAFTERS.register("silent")
    def silent():
        return None

    @DRAFTERS.register("talkative", provides={"gossip"})
    def talkative():
        return None

    @RULES.register("picky", requires={"gossip"})
    def picky():
        return None


def test_illegal_composition_says_what_is_lacking(bare_components):
    text = message(method, drafter={"type": "silent"}, verification={"rule": "picky"})
    assert "verification.rule = 'picky': needs gossip, which drafter 'silent' lacks" in text
    assert "(talkative)" in text
    assert method(drafter={"type": "talkative"}, verification={"rule": "picky"}).lossless is False


@pytest.mark.parametrize("rule", ["rejection", "fuzzy"])
def test_real_rules_refuse_a_drafter_without_probabilities(bare_components, rule):
    options = {} if rule == "rejection" else {"divergence": "js", "threshold": 0.3}
    text = message(method, drafter={"type": "silent"}, verification={"rule": rule} | options)
    assert f"verification.rule = '{rule}': needs " in text
    assert "model" in text.partition("a drafter that has it")[2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"promt": "x"}, "promt: unknown key 'promt': did you mean 'prompt'?"),
        ({"prompt": "{{ row.question"}, "prompt: line 1 of the template: "),
        ({"prompt": "{% if row.x %}"}, "that needs to be closed is 'if': correct it"),
        ({"prompt": "{{ rows.question }}"}, "prompt: the template has no name 'rows': did you mean 'row'?"),
        ({"prompt": "{{ vars.wrd }}"}, "prompt: vars.wrd is not set: did you mean 'word'?"),
        ({"prompt": ""}, "prompt = '': "),
        ({"reference": None}, "reference: the key 'reference' is missing"),
        ({"scorer": {"type": "numbr"}}, "scorer.type: unknown scorer 'numbr': did you mean 'number'?"),
        ({"scorer": {"type": "number", "digits": 3}}, "scorer.digits: unknown key 'digits'"),
        ({"reader": "spec_bench_2"}, "reader: unknown reader 'spec_bench_2'"),
        (
            {"generation": {"max_new_tokens": 0}},
            "generation.max_new_tokens = 0: input should be greater than or equal to 1",
        ),
        ({"generation": {}}, "generation.max_new_tokens: the key 'max_new_tokens' is missing"),
        ({"generation": {"max_new_tokens": 1, "stop": "x"}}, "generation.stop = 'x': input should be a list"),
        ({"generation": {"max_new_tokens": 1, "stop": [""]}}, "generation.stop.0 = '': "),
        ({"generation": {"max_new_tokens": 1, "temperature": -1}}, "generation.temperature = -1: "),
        ({"generation": {"max_new_tokens": 1, "temperature": math.inf}}, "generation.temperature = inf: "),
        (
            {"generation": {"max_new_tokens": 1, "temperature": 1e-38}},
            "generation.temperature = 1e-38: input should be 0 (greedy) or at least 0.01",
        ),
        (
            {"generation": {"max_new_tokens": 1, "temperature": 1000}},
            "generation.temperature = 1000: input should be at most 100",
        ),
        ({"generation": {"max_new_tokens": 1, "top_k": 0}}, "generation.top_k = 0: "),
        ({"generation": {"max_new_tokens": 1, "top_p": 0}}, "generation.top_p = 0: "),
        ({"generation": {"max_new_tokens": 1, "top_p": 1.1}}, "generation.top_p = 1.1: "),
        (
            {"generation": {"max_new_tokens": 1, "topp": 1}},
            "generation.topp: unknown key 'topp': did you mean 'top_p'?",
        ),
        ({"dataset": {"path": "a/b", "splt": "test"}}, "dataset.splt: unknown key 'splt': did you mean 'split'?"),
        ({"dataset": {"path": "a/b", "split": "test", "rev": "x"}}, "dataset.rev: unknown key 'rev'"),
        ({"dataset": {"path": "a/{lang}", "split": "test"}}, "dataset.path = 'a/{lang}': the only fields are"),
        (
            {"local": {"files": ["{subset:>99999999999}"]}},
            "local.files = ['{subset:>99999999999}']: the only fields are",
        ),
        ({"local": {"files": ["{subset.x}"]}}, "local.files = ['{subset.x}']: the only fields are"),
        ({"local": {"files": ["{subset"]}}, "local.files = ['{subset']: the only fields are"),
        ({"local": {"files": ["../x"]}}, "local.files = ['../x']: names must be inside the data folder"),
        ({"local": {"files": []}}, "local.files = []: "),
        ({"subsets": {"de": {"langage": "de"}}}, "subsets.de.langage: unknown key 'langage': did you mean 'language'?"),
        ({"subsets": {"de": {"vars": {"word": "x"}, "version": 2}}}, "subsets.de.version: a subset cannot change"),
        ({"subsets": {"de": {"generation": {"top_p": 2}}}}, "subsets.de.generation.top_p = 2: "),
        ({"subsets": {"de": {"prompt": "{{ vars.no }}"}}}, "subsets.de.prompt: vars.no is not set"),
        ({"subsets": {"en": {}, "all": {}}}, "subsets.all: 'all' is the name of the row over all subsets"),
        ({"vars": {"word": date(2024, 1, 2)}}, "vars.word: a date that JSON cannot hold: write a text in quotes"),
        ({"vars": {"word": {"inner": {1, 2}}}}, "vars.word: a dict that JSON cannot hold"),
        ({"vars": {"word": b"hi"}}, "vars.word: a bytes that JSON cannot hold"),
        ({"vars": {"word": math.nan}}, "vars.word: a float that JSON cannot hold"),
        ({"vars": {"word": "\ud800"}}, "vars.word: a str that JSON cannot hold"),
        ({"vars": {"word": RECURSIVE}}, "vars.word: a list that JSON cannot hold"),
        ({"subsets": {"de": {"vars": {"word": b"hi"}}}}, "subsets.de.vars.word: a bytes that JSON cannot hold"),
        ({"prompt": "{{ " + 5000 * "(" + "row.q" + 5000 * ")" + " }}"}, "prompt: the template cannot be compiled: "),
        ({"prompt": "{{ row.q(a=1, a=2) }}"}, "prompt: the template cannot be compiled: keyword argument repeated"),
    ],
)
def test_task_mistakes(changes, expected):
    assert expected in message(task, **changes)
    assert message(task, **changes).startswith("tasks/my.yaml: ")


def test_subsets_are_merged_deeply():
    merged = build(TaskSpec, LANGUAGES | {"vars": {"word": "Q:", "kept": 1}}).subset("de")
    assert (merged.vars, merged.language, merged.subsets) == ({"word": "F:", "kept": 1}, "de", {})
    assert merged.generation.max_new_tokens == 16


def test_a_subset_may_have_another_scorer(monkeypatch):
    from specbench.core.registry import SCORERS

    def close(*, tolerance: float):
        return None

    SCORERS.names()
    monkeypatch.setitem(SCORERS._builtin, "close", close)
    spec = task(scorer={"type": "close", "tolerance": 0.1}, subsets={"a": {"scorer": {"type": "f1"}}, "b": {}})
    assert spec.subset("a").scorer.options == {}
    assert spec.subset("b").scorer.options == {"tolerance": 0.1}


def test_unknown_subset_and_the_default_one():
    assert task().subset("default") == task()
    assert task().subset_names == ("default",)
    with pytest.raises(ConfigError, match="task 'sums' has no subset 'dee': did you mean 'de'"):
        build(TaskSpec, LANGUAGES).subset("dee")


def test_optional_vars_and_columns_are_not_demanded():
    prompt = "{% if vars.hint is defined %}{{ vars.hint }}{% endif %}{{ row['q'] }}{{ row.x | default('') }}"
    assert templates.used(task(prompt=prompt).prompt, "row") == {"q"}


def test_low_temperatures_that_can_be_sampled_are_kept():
    warm = [task(generation={"max_new_tokens": 1, "temperature": value}).generation for value in (0, 0.01, 1)]
    assert [generation.temperature for generation in warm] == [0, 0.01, 1]


def test_vars_may_be_nested():
    variables = {"word": "Q:", "shots": [{"n": 1, "text": None}, 2.5, True]}
    assert digest(task(vars=variables)) != digest(task(vars=variables | {"shots": []}))


def test_conditional_columns_may_be_empty():
    template = "{{ row.a }}{% if row.b %}{{ row.b }}{% endif %}{{ row.c or 'none' }}{{ row.d if row.d }}{{ vars.word }}"
    assert templates.always_used(template, "row") == {"a"}
    assert templates.always_used(template, "vars") == {"word"}
    assert templates.used(template, "row") == {"a", "b", "c", "d"}


def test_the_subsets_of_a_run():
    spec = run(subsets=("de",))
    assert [(t.name, s) for t, s in spec.task_subsets()] == [("sums", "de")]
    assert [s for _, s in run().task_subsets()] == ["en", "de"]
    assert RunSpec.model_validate(spec.model_dump()) == spec


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"limit": 0}, "limit = 0: input should be greater than 0"),
        ({"repeats": 0}, "repeats = 0: input should be greater than or equal to 1"),
        ({"seed": -1}, "seed = -1: "),
        ({"dtype": "float23"}, "dtype = 'float23': did you mean 'float32'?"),
        ({"chat": "alway"}, "chat = 'alway': did you mean 'always'?"),
        ({"subsets": ("dee",)}, "subsets: task 'sums' has no subset 'dee': did you mean 'de'? (choices: de, en)"),
        ({"drafter": None}, "drafter: method 'fsd' needs a drafter model"),
        ({"methods": []}, "methods = []: "),
        ({"methods": [method(), method()]}, "methods: 'fsd' is given twice"),
        ({"data": ""}, "data = '': "),
    ],
)
def test_run_mistakes(changes, expected):
    assert expected in message(run, **changes)


def test_digest_does_not_depend_on_words_order_or_stated_defaults():
    base = digest(method())
    assert digest(method(title="Other", paper="arXiv:1", version=7, sweep={"num_draft_tokens": [2]})) == base
    assert digest(method(verification=dict(reversed([*FUZZY.items(), ("divergence_on", "raw")])))) == base
    assert digest(method(bridge="shared", drafter={"type": "model", "temperature": None})) == base
    assert digest(method(drafter={"type": "model", "temperature": 0})) != base
    assert len(base) == 12


@pytest.mark.parametrize(
    "changes",
    [{"num_draft_tokens": 6}, {"name": "other"}, {"verification": FUZZY | {"threshold": 0.31}}],
)
def test_digest_moves_with_the_meaning_of_a_method(changes):
    assert digest(method(**changes)) != digest(method())


def test_digest_of_a_task():
    base = digest(build(TaskSpec, LANGUAGES))
    same = LANGUAGES | {"subsets": {"de": LANGUAGES["subsets"]["de"], "en": {"language": "en", "vars": {"word": "Q:"}}}}
    assert digest(build(TaskSpec, same | {"sample": "/elsewhere/sums.jsonl", "title": "x"})) == base
    moved = LANGUAGES | {"subsets": LANGUAGES["subsets"] | {"de": {"language": "de", "vars": {"word": "G:"}}}}
    assert digest(build(TaskSpec, moved)) != base
    assert digest(build(TaskSpec, LANGUAGES | {"prompt": "{{ row.question }}"})) != base


def sampled(**samples):
    """A task whose subsets have these samples."""
    subsets = {name: {"sample": path} if path else {} for name, path in samples.items()}
    return build(TaskSpec, LANGUAGES | {"prompt": "{{ row.q }}", "vars": {}, "subsets": subsets})


def test_the_bundled_samples_are_of_some_subsets():
    spec = sampled(en="en.jsonl", de=None, fr="fr.jsonl")
    embedded = {"tasks": [spec], "target": "embedded:target"}
    for changes in (embedded, {"tasks": [spec], "data": "sample"}):
        made = run(**changes)
        assert made.uses_sample and made.left_out() == {"sums": ["de"]}
        assert [subset for _, subset in made.task_subsets()] == ["en", "fr"]
    for changes in ({"tasks": [spec]}, embedded | {"data": "hub"}, embedded | {"data": "folder"}):
        assert [subset for _, subset in run(**changes).task_subsets()] == ["en", "de", "fr"]
        assert run(**changes).left_out() == {}
    named = run(**embedded, subsets=("de", "en"))
    assert [subset for _, subset in named.task_subsets()] == ["de", "en"] and named.left_out() == {}
    assert run(tasks=[sampled(en=None, de=None)], data="sample").left_out() == {}


def test_the_first_subsets_of_each_task():
    spec = sampled(en="en.jsonl", de=None, fr="fr.jsonl")
    made = run(tasks=[spec], data="sample", subsets_per_task=1)
    assert [subset for _, subset in made.task_subsets()] == ["en"]
    assert [subset for _, subset in run(tasks=[spec], subsets_per_task=2).task_subsets()] == ["en", "de"]
    assert "subsets_per_task = 0: " in message(run, subsets_per_task=0)


def test_reference_and_references_are_one_or_the_other():
    spec = task(reference={"test": "{{ row.t }}"}, subsets={"a": {"references": "answers"}, "b": {}})
    assert (spec.subset("a").reference, spec.subset("a").references) == (None, "answers")
    both = message(task, references="answers")
    assert "references: the task also has a `reference`" in both


def test_a_new_version_of_a_scorer_gives_its_tasks_a_new_digest(monkeypatch):
    """Scores of changed code must not stand beside earlier ones. The first version keeps the digests of today."""
    base = digest(build(TaskSpec, LANGUAGES))
    factory = SCORERS.get(build(TaskSpec, LANGUAGES).scorer.type)
    monkeypatch.setitem(SCORERS._features, factory, replace(SCORERS._features[factory], version=2))
    assert digest(build(TaskSpec, LANGUAGES)) != base


def test_new_keys_leave_digests_alone():
    """The digest of mgsm's version 1 as it was before turns, few-shot examples, chat stops and so on, with the
    names of keys and options that it has now."""
    from specbench.specs.catalogue import load_task

    data = load_task("mgsm").model_dump()
    subsets = {name: {**over, "generation": {}, "scorer": {"type": "number"}} for name, over in data["subsets"].items()}
    generation = {"max_new_tokens": 320, "stop": ["\n\n"]}
    old = data | {"version": 1, "reader": None, "generation": generation, "subsets": subsets}
    assert digest(build(TaskSpec, old)) == "561b447114b3"
