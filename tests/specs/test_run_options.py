"""Options of `specbench run` that only some tasks know: refused, or without effect, where no task does."""

import inspect
import json

import pytest
import typer
from typer.testing import CliRunner

from specbench import api
from specbench.cli import make_app
from specbench.cli.arguments import takes_run_options
from specbench.core.errors import ConfigError
from specbench.publish.suite_spec import PAIR_OPTIONS, PairSpec
from specbench.running.request import Request, resolve, run_spec
from specbench.specs.catalogue import method_names
from specbench.specs.run_options import MODEL_ARGS, OPTIONS, RunOptions


def test_an_include_folder_without_a_task_of_lm_eval_is_refused(specbench):
    code, _, err = specbench("run", "--task", "mgsm", "--method", "sd", "--lm-eval-include", ".")
    assert code == 2 and "--lm-eval-include: has no effect without --task lm_eval:NAME" in err


def test_allowing_code_is_part_of_a_run_that_has_some_alone(specbench, tiny_pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: "commit")
    (tmp_path / "mgsm_en.tsv").write_text("What is 1 + 1?\t2\n")
    row = {"task_id": "0", "prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1\n",
           "test": "def check(candidate):\n    assert candidate() == 1\n"}  # fmt: skip
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(row) + "\n")

    def run(task: str, *more: str) -> tuple[int, str, str]:
        return specbench(
            "run", "--task", task, "--method", "ar", "--data", str(tmp_path), "--target", tiny_pair[0], "--set",
            "generation.max_new_tokens=4", "--output", task, *more,
        )  # fmt: skip

    assert run("mgsm", "--subset", "en")[0] == 0
    code, _, err = run("mgsm", "--subset", "en", "--allow-code-execution")
    assert code == 0 and "measured already" in err and "--allow-code-execution: no effect" in err, err
    code, _, err = run("humaneval", "--subset", "default", "--allow-code-execution")
    assert code == 0 and "no effect" not in err, err
    assert json.loads((tmp_path / "humaneval" / "run.json").read_text())["code_execution"] is True
    code, _, err = run("humaneval", "--subset", "default")
    assert code == 2 and "--allow-code-execution" in err


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ((), True),
        (("--repeats", "10"), True),
        (("--set", "generation.temperature=0.8", "--repeats", "9"), True),
        (("--set", "generation.temperature=0.8", "--repeats", "10"), False),
    ],
)
def test_pass_at_k_needs_k_different_answers(specbench, more, refused):
    # The target is nowhere: with k as it must be, that is what is said.
    code, _, err = specbench(
        "run", "--task", "humaneval", "--subset", "default", "--method", "ar", "--target", "nobody/nothing", "--set",
        "scorer.k=[1, 10]", *more,
    )  # fmt: skip
    assert code == 2
    assert ("pass@10 of task humaneval needs --repeats 10 and a temperature" in err) == refused, err


@pytest.fixture
def run_mgsm(specbench, tiny_pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: "commit")
    for language in ("en", "de"):
        (tmp_path / f"mgsm_{language}.tsv").write_text("What is 1 + 1?\t2\n")

    def call(data: str, *more: str) -> tuple[int, str, str]:
        return specbench(
            "run", "--task", "mgsm", "--method", "ar", "--data", data, "--target", tiny_pair[0], "--set",
            "generation.max_new_tokens=4", "--output", "out", *more,
        )  # fmt: skip

    return call


def subsets(folder):
    return [json.loads(line)["subset"] for line in (folder / "out" / "records.jsonl").read_text().splitlines()]


def test_without_a_subset_those_with_files_are_measured_and_the_others_named(run_mgsm, tmp_path):
    code, _, err = run_mgsm(str(tmp_path))
    assert code == 0, err
    assert f"mgsm: 9 subsets have no file in {tmp_path} (es, fr, ru, zh, ja and 4 more): they are not measured" in err
    assert subsets(tmp_path) == ["en", "de"]


def test_a_file_is_measured_as_the_subset_of_its_name(run_mgsm, tmp_path):
    code, _, err = run_mgsm(str(tmp_path / "mgsm_de.tsv"))
    assert code == 0 and "10 subsets have no file in" in err, err
    assert subsets(tmp_path) == ["de"]


def test_a_folder_without_a_file_and_a_subset_without_one_are_refused(run_mgsm, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = run_mgsm("empty")
    assert code == 2 and "--data empty: no file for subset 'en' of task 'mgsm': tried mgsm_en" in err
    code, _, err = run_mgsm(str(tmp_path), "--subset", "de,fr")
    assert code == 2 and "no file for subset 'fr'" in err


def test_an_empty_subset_is_refused(run_mgsm, tmp_path):
    code, _, err = run_mgsm(str(tmp_path), "--subset", "")
    assert code == 2 and err.strip() == "error: --subset is empty: name at least one, or leave the option out"


def test_why_answers_have_no_score_is_said(specbench, tiny_pair, tmp_path):
    code, out, err = specbench(
        "run", "--task", "humaneval", "--subset", "default", "--method", "ar", "--data", "sample", "--target",
        tiny_pair[0], "--set", "generation.max_new_tokens=2", "--limit", "2", "--output", "out",
    )  # fmt: skip
    assert code == 0
    before, _, after = err.partition("humaneval: answers get no score, as programs are run only with")
    assert after and "humaneval" not in before, err  # it is said before anything is measured
    told = " ".join(out.split())
    counted = "not scored (excluded from means): 2 answers in default, because code execution is off: --allow-code-"
    assert counted in told and f"{told} {err}".count("not scored") == 1, out


@pytest.mark.parametrize(
    ("tasks", "options", "expected"),
    [
        ("mgsm", RunOptions(), 8),
        ("mgsm", RunOptions(subsets=("en", "de")), 48),
        ("gsm8k", RunOptions(), 96),
        ("gsm8k", RunOptions(limit=2), 2),
        ("mgsm", RunOptions(data="hub"), None),
        ("mgsm", RunOptions(target="someone/model", drafter="someone/drafter", data="sample"), None),
    ],
)
def test_the_embedded_models_measure_a_share_of_their_sample(tasks, options, expected):
    """96 prompts over all subsets, at least 8 of each; a row has the number as if it had been given."""
    request, spec, _ = resolve(Request(tasks.split(","), ["sd"], options, "specbench run", may_limit=True))
    assert request.options.limit == spec.limit == expected and request.settings().get("limit") == expected


def test_a_run_says_how_much_of_the_sample_it_measures(specbench, monkeypatch):
    monkeypatch.setattr("specbench.running.request.SHARE", 4)
    monkeypatch.setattr("specbench.running.request.LEAST", 1)
    started = []

    def stop(subset_run, *given):
        started.append(subset_run)
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.running.measure.warm_up_subset", stop)  # all before is as ever
    short = ("run", "--task", "mgsm", "--method", "ar", "--subset", "en,de", "--set", "generation.max_new_tokens=2")
    _, _, err = specbench(*short)
    assert "4 of 48 examples of the sample; --limit all measures all\n" in err, err
    _, _, err = specbench(*short, "--limit", "all")
    assert "measuring 48 examples into" in err and "of the sample" not in err and len(started) == 2, err


@pytest.fixture
def two_tasks(specbench, tiny_pair, tmp_path):
    """A run of two tasks: sums in de and en, greetings in en and sw; and of one without subsets."""
    for name, languages in (("sums", ("de", "en")), ("greetings", ("en", "sw")), ("whole", ())):
        subsets = [f"  {language}:\n    language: {language}" for language in languages]
        lines = [f"name: {name}", "version: 1", "title: Questions.", "paper: own", *(["subsets:", *subsets] if subsets
                 else ["language: en"]), "prompt: '{{ row.question }}'", "generation:",
                 "  max_new_tokens: 2"]  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    (tmp_path / "data").mkdir()
    for name in ("sums_de", "sums_en", "greetings_en", "greetings_sw", "whole_default"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(json.dumps({"question": f"A {name}?"}) + "\n")

    def call(subset: str, tasks: str = "sums.yaml,greetings.yaml") -> tuple[int, list[str], str]:
        code, out, err = specbench(
            "run", "--task", tasks, "--method", "ar", "--data", "data", "--target", tiny_pair[0], "--subset", subset,
            "--output", "out", "--json",
        )  # fmt: skip
        return code, [f"{row['task'].split('@')[0]}/{row['subset']}" for row in json.loads(out)] if out else [], err

    return call


def test_a_subset_applies_to_the_tasks_that_have_it(two_tasks):
    code, rows, err = two_tasks("de")
    assert code == 0 and rows == ["sums/de"], err
    assert "--subset: greetings has no de: it is not measured\n" in err


def test_every_task_measures_its_own_of_the_subsets(two_tasks):
    code, rows, err = two_tasks("sw,en")
    assert code == 0 and rows == ["sums/en", "greetings/sw", "greetings/en", "greetings/all"], err
    assert "--subset: sums has no sw: only en of it is measured\n" in err


def test_a_task_without_subsets_is_measured_as_a_whole(two_tasks):
    code, rows, err = two_tasks("de", "sums.yaml,whole.yaml")
    assert code == 0 and rows == ["sums/de", "whole/default"], err
    assert "--subset: whole has no subsets: it is measured as a whole\n" in err


def test_a_subset_of_no_task_is_refused(two_tasks):
    code, _, err = two_tasks("de,ensw")
    assert code == 2 and "subsets: task 'sums', 'greetings' has no subset 'ensw': did you mean" in err
    with pytest.raises(ConfigError, match="task 'mgsm' has no subset 'xx'"):
        run_spec(Request(["mgsm"], ["ar"], RunOptions(subsets=("xx",)), ""))


@pytest.mark.slow
def test_all_methods_are_those_that_fit_the_models(specbench, tiny_pair, tmp_path):
    out = tmp_path / "all"
    words = ["--target", tiny_pair[0], "--data", "sample", "--subset", "en", "--limit", "1"]
    words += ["--set", "generation.max_new_tokens=4", "--output", str(out)]
    code, _, err = specbench("run", "--task", "mgsm", "--method", "all", *words)
    assert code == 0, err
    measured = {row["method"].partition("@")[0] for row in json.loads((out / "leaderboard.json").read_text())["rows"]}
    assert {"ar", "pld", "token-recycling", "lookahead"} <= measured and not {"sd", "mtp", "eagle3"} & measured
    left_out = " ".join(err.split()).partition("--method all leaves out ")[2]
    assert all(f"{name}: " in left_out for name in set(method_names()) - measured)
    code, _, err = specbench("run", "--task", "mgsm", "--method", "all,sd", *words)
    assert code == 2 and "'all' is every method: give no other name with it" in err


def test_every_surface_has_the_declared_options():
    command = typer.main.get_command(make_app(["run"])).commands["run"]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    keywords = inspect.signature(api.run).parameters
    for name, option in OPTIONS.items():
        assert option.flag in flags and option.help and name in keywords
        assert keywords[name].default == option.default == getattr(RunOptions(), name)
    for name in PAIR_OPTIONS:
        field = PairSpec.model_fields[name]
        assert (field.default, field.description) == (OPTIONS[name].default, OPTIONS[name].help)
    assert set(MODEL_ARGS.values()) <= OPTIONS.keys()


def test_options_return_from_their_words():
    options = RunOptions(
        subsets=("en", "de"), limit=0.5, overrides=("a=1", "b=x y"), trust_remote_code=True, warm_up=0.5
    )
    found = []

    @takes_run_options()
    def command(*, options: RunOptions) -> None:
        found.append(options)

    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, options.words()).exit_code == 0 and found == [options]


@pytest.mark.parametrize("data", [{"subsets_per_task": 0}, {"repeats": 0}, {"seed": -1}, {"warm_up": -1.0}])
def test_each_surface_names_a_bound_as_it_is_spelled_there(specbench, data):
    ((name, value),) = data.items()
    flag = f"--{name.replace('_', '-')}"
    code, _, err = specbench("run", "--task", "mgsm", "--method", "sd", f"{flag}={value}")
    assert code == 2 and err.startswith(f"error: {flag} {value}: give ") and "or more" in err
    with pytest.raises(ConfigError, match=rf"^{name} = {value}: "):
        api.run("mgsm", "sd", **data)
