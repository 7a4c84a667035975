"""Shared by all tests: no network, one thread, and a tiny pair saved once. Fixtures import what they need, since the
process that only hands the tests to its workers reads this file too, and would import torch before they start."""

import contextlib
import copy
import gc
import importlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes that tests start

import pytest

if TYPE_CHECKING:
    import torch

    from specbench.models.causal_lm import ModelPair

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers and processes would compile the same modules again and again
sys.dont_write_bytecode = False
gc.disable()  # until all tests are collected, which takes a fifth longer with it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns two workers more than CPU cores, since some tests wait for servers and processes."""
    return (os.cpu_count() or 1) + 2


SINGLE = (  # tests that share nothing with those of their file, and together take minutes
    "test_all_other_commands_run", "test_a_wrong_verifier_is_caught_and_named_in_20_of_20_seeds",
    "test_an_exact_verifier_passes_with_every_seed",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns what hands whole files to the workers, but tests of SINGLE one by one, so that no worker has a file of
    many minutes when the others are done; None if the command line wants another distribution."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            return nodeid if test.partition("[")[0] in SINGLE else file

    return ByFile(config, log)


@pytest.hookimpl(trylast=True)  # markers are known by then
def pytest_configure(config: pytest.Config) -> None:
    """Each worker first imports its own share of all tests: in a fresh clone one compiles what the others then load."""
    worker, folder = getattr(config, "workerinput", None), Path(__file__).parent
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    for file in sorted(folder.rglob("test_*.py"))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it tells
            importlib.import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


LONG = (  # files that take long, also with their slow tests: one that began late would keep one worker alone at the end
    "test_trees_page.py", "test_audit.py", "test_llama_cpp_page.py", "test_mtp.py", "test_new.py", "test_aliases.py",
    "test_suite_ray.py", "test_install.py", "test_embedded_family.py", "test_audit_served.py", "test_fairness.py",
    "test_tree_drafters.py", "test_suite.py", "test_extras.py", "test_demo.py", "test_site_browser.py",
    "test_plugins.py", "test_started_servers.py", "test_rotation.py", "test_lm_eval_tasks.py",
    "test_bench_transformers.py", "test_imports.py", "test_kills.py", "test_programs.py", "test_fetch.py",
    "test_latex.py", "test_readme.py", "test_served.py", "test_llama_cpp.py", "test_compiled.py", "test_cli.py",
    "test_predict.py", "test_judge.py", "test_reports.py", "test_concurrency.py", "test_lm_eval_model.py",
    "test_warnings.py", "test_conformance.py", "test_block_training.py", "test_static_trees.py", "test_packed.py",
    "test_trees.py", "test_profile.py", "test_real.py", "test_real_reruns.py", "test_bundle.py", "test_heads.py",
    "test_tree_rules.py", "test_board_session.py", "test_decisions.py", "test_mtp_layers.py", "test_cascade.py",
    "test_gate_repositories.py", "test_self_drafting.py", "test_memory_drafters.py",
    "test_engines_cpu.py", "test_drift.py", "test_acceptance_drift.py", "test_claims_page.py", "test_context.py",
    "test_coverage.py", "test_show_engines.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then those with the most tests, so that no worker has much left when the others are done."""
    numbers = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONG, -numbers[item.path], item.path))


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again. Loggers of torch pass on
    what they are told, as pytest otherwise adds its own handlers to each of them, six times a test."""
    import torch

    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # models are made and thrown away all the time
    gc.enable()


@pytest.fixture(scope="session")
def real_models() -> Path:
    """Folder of public models, one folder and one GGUF file each, for the tests marked `real`."""
    folder = os.environ.get("SPECBENCH_REAL_MODELS")
    if not folder:
        pytest.skip("SPECBENCH_REAL_MODELS names no folder of public models")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a random target and a random drafter with the same tokenizer, context 1,024."""
    from tests.support import tiny

    folder = tmp_path_factory.mktemp("pair")
    target = tiny.save(folder / "target", num_hidden_layers=2)
    return str(target), str(tiny.save(folder / "drafter", num_hidden_layers=1))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Passes are left as they are, and not even traced: the names of those that would be compiled."""
    names: list[str] = []

    def left(forward: "Callable[[], torch.Tensor]", name: str) -> "Callable[[], torch.Tensor]":
        names.append(name)
        return forward

    monkeypatch.setattr("specbench.models.static_passes.compile_pass", left)
    monkeypatch.setattr("specbench.models.static_passes.StaticPasses.check", lambda self: None)
    return names


Outcome = tuple[int, str, str]


@pytest.fixture(scope="session", autouse=True)
def _short_warm_ups() -> Iterator[None]:
    from tests.support.processes import shorten_warm_ups

    with pytest.MonkeyPatch.context() as patch:
        shorten_warm_ups(patch)
        yield


@pytest.fixture
def specbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Runs the console script in this process, in an empty folder: (exit code, stdout, stderr)."""
    from specbench.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["specbench", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session", autouse=True)
def _weights_are_read_once() -> Iterator[None]:
    """A network that was loaded twice from the same files is copied from then on."""
    from specbench.models import loading

    seen: set[Any] = set()
    read: dict[Any, Any] = {}
    load, from_pretrained = loading.load_weights, loading.AutoModelForCausalLM.from_pretrained

    def load_weights(source: str, dtype: Any, hub: Mapping[str, Any], **options: Any) -> Any:
        is_watched = loading.AutoModelForCausalLM.from_pretrained != from_pretrained
        if options or hub.get("trust_remote_code") or is_watched or not Path(source).is_dir():
            return load(source, dtype, hub, **options)
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(source).iterdir())]
        key = (source, dtype, *files)
        if key not in read:
            found = load(source, dtype, hub)
            if key in seen:
                read[key] = copy.deepcopy(found)
            seen.add(key)
            return found
        return copy.deepcopy(read[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_weights", load_weights)
        yield


@pytest.fixture(scope="session")
def embedded_pair() -> "ModelPair":
    """The models that come with specbench, in float32 on the CPU."""
    from specbench.models.causal_lm import ModelPair
    from specbench.models.loading import load_model

    return ModelPair(load_model("embedded:target", device="cpu"), load_model("embedded:drafter", device="cpu"))


@pytest.fixture(scope="session")
def embedded_prompts(embedded_pair: "ModelPair") -> dict[str, list[list[int]]]:
    """Six bundled prompts of every language of mgsm."""
    from specbench.specs.catalogue import load_task
    from specbench.tasks.examples import load_examples

    task = load_task("mgsm")
    return {
        subset: [
            embedded_pair.target.encode_prompt(example.prompt, chat=False)
            for example in load_examples(task, subset, data="sample", use_sample=True, limit=6).examples
        ]
        for subset in task.subset_names
    }


@pytest.fixture(scope="session", autouse=True)
def _idle_machine() -> Iterator[None]:
    """The load of the machine that tests run on is not reported, and its slowness gives no further lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.core.progress.Heartbeat._run", lambda self: None)
        patch.setattr("specbench.running.plan.others_load", lambda: 0.0)
        patch.setattr("specbench.models.meters.cpu_waits", lambda: None)
        yield
