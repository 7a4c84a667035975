"""The Python interface: what the commands do, with models, drafters and rules that may be Python objects."""

import gc
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import specbench
from specbench.api import _run_options as run_options
from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS, RULES
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal, TreeProposal
from specbench.decoding.verification import ExactMatch
from specbench.models.loading import load_model
from specbench.models.objects import object_digest
from specbench.report.captions import verdict_word
from specbench.report.display import Results
from specbench.results.leaderboard import load as load_rows
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from tests.support import tiny

CHECKOUT = str(Path(__file__).resolve().parents[1])
SHORT = {"generation.max_new_tokens": 6}
Measure = Callable[..., Results]


@pytest.fixture
def measure(tiny_pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures the tiny pair on a question, in an empty folder."""
    monkeypatch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 4)
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: "commit")
    monkeypatch.chdir(tmp_path)

    def call(method: Any = "sd", **options: Any) -> Results:
        given = {"target": tiny_pair[0], "drafter": tiny_pair[1], "data": "sample", "subsets": "en", "limit": 1}
        return specbench.run("mgsm", method, **{**given, "overrides": SHORT, "quiet": True, **options})

    return call


@pytest.fixture(scope="module")
def finished(tiny_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run over two subsets."""
    target, drafter = tiny_pair
    return specbench.run(
        "mgsm", "pld", target=target, drafter=drafter, data="sample", subsets=["en", "de"], limit=1, overrides=SHORT,
        quiet=True, output=tmp_path_factory.mktemp("finished") / "out",
    )  # fmt: skip


def loaded(folder: str) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def repeat(ids: list[int], num_draft_tokens: int) -> list[int]:
    return ids[-1:] * (num_draft_tokens + 3)  # too many are dropped


def trust(proposal: Any, target: Any, generator: Any) -> tuple[int, int]:
    return proposal.num_drafted, target.draw(proposal.num_drafted, generator)


class Copies(Drafter):
    """A drafter in a class, as a plug-in has it."""

    def __init__(self, models: Any = None, sampling: Any = None, *, times: int = 2) -> None:
        self.times = times

    def prefill(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Proposal:
        token_ids = ids[-1:] * min(self.times, num_draft_tokens)
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()


def test_the_package_is_light_until_something_is_measured() -> None:
    code = "import sys, specbench; specbench.ConfigError; print([m for m in ('torch', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(specbench.__all__) <= set(dir(specbench))
    assert all(getattr(specbench, name) is not None for name in specbench.__all__)


def test_a_run_is_that_of_the_command(
    measure: Measure, specbench: Any, tiny_pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = measure(["sd", "pld"])
    assert capsys.readouterr() == ("", "")
    assert [row.names for row in results.rows] == [("mgsm", "en", name) for name in ("ar", "sd", "pld")]
    assert [record.subset for record in results.records] == ["en"]
    words = ["run", "--task", "mgsm", "--method", "sd,pld", "--target", tiny_pair[0], "--drafter", tiny_pair[1],
             "--data", "sample", "--subset", "en", "--limit", "1", "--set", "generation.max_new_tokens=6"]  # fmt: skip
    code, out, err = specbench(*words)
    assert code == 0 and f"the example is measured already in {results.path}" in err
    assert str(results) in out
    assert str(results.rows[0].command).startswith("specbench.run(")  # no command line was typed


def test_progress_is_the_only_output(measure: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    measure(quiet=False)
    out, err = capsys.readouterr()
    assert out == "" and "\nmeasuring 1 example into runs/mgsm-sd-" in err


def test_the_forms_of_results(finished: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = finished
    html = results._repr_html_()
    assert html.count("<table>") == html.count("</table>") == len(list(results.tables())) == 2
    columns = results.columns()
    assert [(row["task"], row["subset"], row["method"]) for row in columns] == [row.names for row in results.rows]
    speedup = results.rows[-1].metric("speedup")
    assert [columns[-1][f"speedup{end}"] for end in ("", "_low", "_high")] == [speedup.value, speedup.low, speedup.high]
    assert json.loads(columns[-1]["subsets"]) == {"en": 1, "de": 1}
    from pyarrow import parquet

    assert parquet.read_table(results.to_parquet(tmp_path / "rows.parquet")).to_pylist() == columns
    with pytest.raises(ConfigError, match="cannot be written"):
        results.to_parquet(tmp_path / "rows.parquet" / "more.parquet")  # in a file
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_pandas needs pandas: pip install pandas"):
        results.to_pandas()


def test_pandas_gets_the_columns(finished: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import pandas
    except ImportError:
        pandas = type(sys)("pandas")
        pandas.DataFrame = lambda rows: rows  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pandas", pandas)
    frame = finished.to_pandas()
    names = list(frame["method"] if hasattr(frame, "columns") else [row["method"] for row in frame])
    assert names == [row.method_name for row in finished.rows] and {*names} == {"ar", "pld"}


def test_a_picture(finished: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert finished.plot(tmp_path / "speed.png")._repr_png_().startswith(b"\x89PNG")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="unknown picture format"):
        finished.plot("speed.doc")


def test_a_run_is_loaded_compared_and_checked(measure: Measure) -> None:
    first, second = measure(["sd", "pld"]), measure("sd", seed=1, output="other")
    again = specbench.load(first.path)
    assert list(again.rows) == list(first.rows) and again.records == first.records and str(again) == str(first)
    compared = specbench.compare(f"{first.path}:sd", f"{first.path}:pld")
    assert compared.compared[0].methods == "sd → pld" and "differences of the configurations" in str(compared)
    assert "<td" in specbench.compare(first, second, task="mgsm")._repr_html_()
    shorter = specbench.compare(first, measure("sd", overrides={"generation.max_new_tokens": 4}, output="shorter"))
    keys = {each.field: (each.first, each.second) for each in shorter.hindrances if each.field.startswith("mgsm: ")}
    assert keys == {"mgsm: generation.max_new_tokens": (6, 4)}
    assert specbench.check(first, again).result == "identical"
    checked = specbench.check(f"{first.path}:sd", second)
    assert checked.result == "cannot compare" and "cannot compare" in repr(checked)
    rows = specbench.load(first.path / "leaderboard.json")
    assert list(rows.rows) == list(first.rows)
    with pytest.raises(ConfigError, match="a leaderboard file has no records: load the folder of a run"):
        _ = rows.records
    with pytest.raises(ConfigError, match="max_regression = 3: give a share"):
        specbench.check(first, second, max_regression=3)


def test_bad_input_is_one_line(measure: Measure, tmp_path: Path) -> None:
    for options, message in (
        ({"limit": 1.5}, "limit = 1.5: give a number of examples from 1, a share between 0 and 1"),
        ({"limit": True}, "limit = True: give a number of examples from 1"),
        ({"limt": 3}, "limt: unknown key 'limt': did you mean 'limit'"),
        ({"limit": "8"}, "limit = '8': give a number of examples from 1, a share between 0 and 1"),
        ({"engine": "graph"}, "engine = 'graph': did you mean 'graphs'"),
        ({"method": "sdd"}, "unknown method 'sdd'"),
        ({"overrides": {"num_draft_token": 3}}, "--set num_draft_token=3"),
        ({"target": (1, 2)}, "model 'int' is of type int: give a transformers model and its tokenizer, or a name"),
        ({"target": (torch.nn.Linear(1, 1), 2)}, "model 'Linear' is of type Linear: give a transformers model"),
    ):
        with pytest.raises(ConfigError) as error:
            measure(**options)
        assert message in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_options_have_the_names_of_the_command_line_too() -> None:
    found = run_options({"subset": "en,de", "set": {"num_draft_tokens": 3}, "limit": "all"})
    assert found == run_options({"subsets": ["en", "de"], "overrides": ["num_draft_tokens=3"], "limit": None})
    assert found.subsets == ("en", "de") and found.overrides == ("num_draft_tokens=3",)


def test_the_options_are_in_the_signature() -> None:
    parameters = inspect.signature(specbench.run).parameters
    assert parameters["limit"].default is None and parameters["seed"].default == 0 and "options" not in parameters


def test_models_may_be_objects(measure: Measure, tiny_pair: tuple[str, str]) -> None:
    by_name = measure("sd")
    target, drafter = loaded(tiny_pair[0]), loaded(tiny_pair[1])
    target[0].train()
    threads = torch.get_num_threads()
    results = measure("sd", target=target, drafter=specbench.Model(*drafter), threads=1)
    assert target[0].training and torch.get_num_threads() == threads
    tokens = [[record.methods["sd"].token_ids for record in each.records] for each in (by_name, results)]
    assert tokens[0] == tokens[1]
    row = results.rows[-1]
    assert (row.target, row.drafter) == ("object:LlamaForCausalLM", "object:LlamaForCausalLM-drafter")
    assert row.target_revision != row.drafter_revision
    digests = [object_digest(model) for model in (target[0], loaded(tiny_pair[0])[0], drafter[0])]
    assert digests[0] == digests[1] != digests[2]
    assert [measure("sd", target=loaded(tiny_pair[0]), drafter=drafter).path] == [results.path]


def test_a_changed_model_is_another_one(measure: Measure, tiny_pair: tuple[str, str]) -> None:
    model, tokenizer = loaded(tiny_pair[0])
    mine = specbench.Model(model, tokenizer, "mine")
    before = measure("ar", target=mine, drafter=None, output="out")
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    with pytest.raises(ConfigError, match=r"--target revision"):
        measure("ar", target=mine, drafter=None, output="out")
    after = measure("ar", target=mine, drafter=None)
    assert before.rows[0].target == after.rows[0].target == "object:mine"
    fields = {each.field for each in specbench.compare(before, after).hindrances}
    assert fields == {"target_revision"}
    with pytest.raises(ConfigError, match="--dtype bfloat16: has no effect on 'object:mine', which is loaded already"):
        measure("ar", target=mine, drafter=None, dtype="bfloat16")
    with pytest.raises(ConfigError, match="--target-revision main: 'object:mine' is not on the hub"):
        measure("ar", target=mine, drafter=None, target_revision="main")
    del model, mine
    gc.collect()
    with pytest.raises(ConfigError, match="model 'object:mine': this is a Python object of another process"):
        load_model("object:mine")


def test_a_run_leaves_a_model_as_it_was(measure: Measure) -> None:
    """A recurrent layer, whose passes are made in pieces while it is measured, gets its own forward function back."""
    network, tokenizer = tiny.network("qwen3_5_text"), tiny.tokenizer()
    network.train()
    network.model.layers[0].eval()  # as a user freezes a part
    ids = torch.tensor([tokenizer("What is 1 + 1?")["input_ids"]])
    before = network(ids).logits
    for _ in range(2):
        results = measure("pld", target=(network, tokenizer), drafter=None, output="out")
    assert results.rows[-1].verdict == "greedy equal"
    assert network.training and not network.model.layers[0].training
    assert not [part for part in network.modules() if "forward" in vars(part)]
    assert torch.equal(network(ids).logits, before)
    network(ids).logits.sum().backward()


def test_drafters_and_rules_may_be_functions_objects_and_classes(measure: Measure) -> None:
    @DRAFTERS.declare(provides={"probs"})
    def declared(models: Any, sampling: Any, *, times: int = 3) -> Copies:
        """Copies the last token."""
        return Copies(times=times)

    methods = [
        specbench.Method(repeat, num_draft_tokens=3), specbench.Method(Copies(times=1)),
        specbench.Method(Copies, name="by-class", num_draft_tokens=4), specbench.Method(declared),
        specbench.Method("model", rule=trust), specbench.Method("prompt_lookup", rule=ExactMatch(), lossless=True),
    ]  # fmt: skip
    results = measure(methods)
    rows = {row.method_name: row for row in results.rows}
    assert list(rows) == ["ar", "repeat", "Copies", "by-class", "declared", "trust", "ExactMatch"]
    drafted = {name: max(step[0] for record in results.records for step in record.methods[name].steps)
               for name in ("repeat", "Copies", "by-class", "declared")}  # fmt: skip
    assert drafted == {"repeat": 3, "Copies": 1, "by-class": 2, "declared": 3}
    assert [rows[name].verdict for name in ("repeat", "Copies", "by-class", "ExactMatch")] == ["greedy equal"] * 4
    assert not rows["trust"].lossless and rows["trust"].value("acceptance_rate") == 1
    assert rows["repeat"].options["drafter"]["type"].startswith("object:repeat-")
    assert measure(methods).path == results.path
    slower = measure([methods[3]], overrides={**SHORT, "drafter.times": 1})
    assert max(step[0] for record in slower.records for step in record.methods["declared"].steps) == 1


def test_changed_code_is_another_method() -> None:
    def made(code: str) -> Any:
        names: dict[str, Any] = {"__name__": "notebook"}
        exec(code, names)
        return names["draft"]

    first = "def helper(ids): return ids[-1:]\ndef draft(ids, n): return helper(ids) * n\n"
    other = first.replace("[-1:]", "[-2:-1]")
    assert object_digest(made(first)) == object_digest(made(first)) != object_digest(made(other))
    assert object_digest(Copies(times=1)) == object_digest(Copies(times=1)) != object_digest(Copies(times=2))
    itself: list[Any] = []
    itself.append(itself)
    assert object_digest(itself) == object_digest(itself)


def test_methods_that_do_not_fit_are_refused(measure: Measure) -> None:
    class Trees(Copies):
        draws = "fixed"

        def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> TreeProposal:
            return TreeProposal([1], [-1])

    for method, message in (
        (specbench.Method(3), r"drafter = 3 \(int\): cannot draft: give a name, a function or a Drafter"),
        (specbench.Method("model", rule=3), r"rule = 3 \(int\): cannot verify"),
        (specbench.Method(Trees()), r"drafter Trees: proposes trees: give a factory with @DRAFTERS\.declare"),
        (specbench.Method(repeat, name="sd"), "method 'sd': a built-in method has this name"),
        (specbench.Method("model", num_draft_tokens=-1), "num_draft_tokens = -1"),
        (specbench.Method(repeat, rule={"rule": "fuzzy", "divergence": "js", "threshold": 0.1}), "needs raw_probs"),
        (
            specbench.Method(lambda ids, n: [10**6]),
            "drafter 'lambda' returned token 1000000: it must be from 0 to",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            measure(method)


def test_a_drafter_that_fails_is_named_with_its_own_exception(measure: Measure) -> None:
    def failing(ids: list[int], num_draft_tokens: int) -> list[int]:
        raise ValueError("no such luck")

    with pytest.raises(
        specbench.DrafterError, match="method 'failing': drafter 'failing' raised ValueError: no"
    ) as caught:
        measure(specbench.Method(failing))
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value.__cause__, ValueError)
    assert measure("ar").rows, "another run is possible"


def test_a_run_with_objects_is_read_without_them(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    results = measure(specbench.Method(repeat))
    monkeypatch.setattr(DRAFTERS, "_objects", {})
    again = specbench.load(results.path)
    assert [row.method_name for row in again.rows] == ["ar", "repeat"] and again.records == results.records
    assert specbench.check(str(results.path), str(results.path)).result == "identical"
    with pytest.raises(ConfigError, match=r"drafter 'object:repeat-.*': this is a Python object of another process"):
        DRAFTERS.get(results.rows[1].options["drafter"]["type"])
    assert load_rows(results.path / "leaderboard.json") == list(results.rows)


def test_the_digest_of_a_set_does_not_depend_on_its_order() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other) and object_digest(one) == object_digest(other) != object_digest({0, 9})


@pytest.mark.slow
def test_a_run_with_objects_is_read_by_other_processes(measure: Measure) -> None:
    results = measure(specbench.Method(repeat))
    code = "import sys, specbench, tests.test_api as t; r = specbench.load(sys.argv[1])\n" \
           "print(len(r.records), r.rows[1].method_name, specbench.check(sys.argv[1], sys.argv[1]).result)\n" \
           "print(t.object_digest([t.Copies(), t.repeat, {'b', 'a'}]))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, str(results.path)], env=os.environ | {"PYTHONPATH": CHECKOUT},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["1", "repeat", "identical", object_digest([Copies(), repeat, {"a", "b"}])]


def test_the_names_of_objects_are_no_choices(measure: Measure) -> None:
    measure(specbench.Method(repeat, rule=trust))
    assert not [name for registry in (DRAFTERS, RULES) for name in registry.names() if "object:" in name]


def test_an_interrupt_stays_one(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.running.measure.measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure("ar")


def test_a_difference_from_ar_says_its_kind(measure: Measure) -> None:
    results = measure(specbench.Method("model", rule=trust, lossless=True, name="trusting"), limit=2)
    row = results.rows[-1]
    assert row.verdict == "diverged" and row.divergence is not None and row.divergence.rule > 0
    assert row.divergence.total == row.divergence.rule and not row.divergence.not_repeated
    assert verdict_word(row) == "diverged (rule)"
    # What the folder holds gives the same row; files of earlier versions have no kinds.
    file = results.path / "measurements.json"
    content = json.loads(file.read_text())
    (ties,) = content["measurements"][-1]["ties"]

    def again(kinds: dict[str, int] | None) -> Row:
        ties["divergence"] = kinds
        file.write_text(json.dumps({"measurements": content["measurements"]}))
        return RecordedRun(results.path).recompute_row(row)

    kinds = ties["divergence"]
    assert again(kinds) == row.model_copy(update={"run": again(kinds).run})
    assert (again(None).divergence, again(None).verdict) == (None, "diverged")
    assert again(kinds | {"rule": 0, "width": kinds["rule"]}).verdict == "width only"
    with pytest.raises(ConfigError, match="divergence: has the kinds of 9 differences"):
        again(kinds | {"rule": 9})


def test_equal_answers_have_the_noise_of_the_target_unless_the_run_is_short(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure(output=tmp_path / "short").rows[-1].batch_width is None
    monkeypatch.setattr("specbench.running.execute.MIN_TOKENS_OF_RUN", 1)
    results = measure(output=tmp_path / "long")
    ar, row = results.rows
    assert row.verdict == "greedy equal" and row.differences is not None and row.differences.answers == 0
    assert row.batch_width is not None and 0 < row.batch_width.tolerance < 1e-2
    assert row.batch_width.share_equal is not None and ar.batch_width is None
    assert RecordedRun(results.path).recompute_row(row) == row
