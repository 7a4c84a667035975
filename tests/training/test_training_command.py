"""`specbench train …` from the command line: a drafter that a run can take, and every mistake in one line."""

import json
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.models.checkpoints import fingerprint
from specbench.models.loading import load_model, load_weights
from specbench.training.corrective import CorrectiveObjective
from specbench.training.loop import Optimizers, make_optimizers
from specbench.training.objectives import SampleObjective
from specbench.training.output import OutputFolder, Provenance
from specbench.training.spec import TrainSpec
from specbench.training.teacher import CompletionServer
from specbench.training.train import measurement_command, training_identity
from tests.support import tiny
from tests.support.training_toys import in_a_process, killed_at, same

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a drafter with one vocabulary, small and with short contexts."""
    folder = tmp_path_factory.mktemp("models")
    made = {name: tiny.save(folder / name, hidden_size=16, num_hidden_layers=1) for name in ("target", "drafter")}
    return str(made["target"]), str(made["drafter"])


def arguments(kind: str, models: tuple[str, str], folder: Path, *more: str) -> list[str]:
    return ["train", kind, "--target", models[0], "--drafter", models[1], "--output", str(folder / "out"),
            "--device", "cpu", "--threads", "1", *more]  # fmt: skip


def corpus(folder: Path) -> tuple[str, str]:
    """Two languages of a few short lines."""
    for name in ("en", "sw"):
        (folder / f"{name}.txt").write_text("".join(f"{name} line {number}\n" for number in range(6)))
    return f"--text=en={folder / 'en.txt'}", f"--text=sw={folder / 'sw.txt'}"


def test_scdf_trains_a_drafter_and_says_where(specbench: Run, models: tuple[str, str], tmp_path: Path) -> None:
    small = ("--set", "scdf.prompts_per_language=2", "--set", "max_new_tokens=4", "--num-steps", "2")
    code, out, err = specbench(*arguments("scdf", models, tmp_path, *corpus(tmp_path), *small))
    assert code == 0, err
    assert out.startswith(f"{tmp_path / 'out'}: 2 steps · loss ")
    run = f"measure it: specbench run --task TASK --method sd --drafter {tmp_path / 'out'} --target {models[0]}\n"
    assert err.endswith(run) and "warning" not in err
    log = (tmp_path / "out" / "log.csv").read_text().splitlines()
    assert log[0].startswith("timestamp,step,pass,star_lang,lang,r,") and len(log) == 1 + 2 * 4 * 2
    assert "2 steps of 4 passes into" in err
    load_model(str(tmp_path / "out"), device="cpu")
    written = json.loads((tmp_path / "out" / "training.json").read_text())
    assert written["data"]["languages"] == {"en": 6, "sw": 6}
    assert written["models"]["target"]["name"] == models[0] and written["models"]["drafter"]["revision"]
    assert "train scdf" in written["command"] and written["preparation"]["wall_seconds"] > 0
    assert written["models"]["stored_dtype"] == "float32"


def test_a_finished_training_is_not_repeated(specbench: Run, models: tuple[str, str], tmp_path: Path) -> None:
    """The same settings, data and models are said to be finished; others are a conflict that is named."""
    small = ("--set", "finetune.stage=pretrain", "--set", "finetune.epochs=1", "--set", "finetune.batch_size=6")
    given = arguments("finetune", models, tmp_path, *corpus(tmp_path), *small)
    assert specbench(*given)[0] == 0
    before = (tmp_path / "out" / "training.json").read_bytes()
    code, out, err = specbench(*given)
    assert (code, out, err.count("\n")) == (0, "", 1) and f"{tmp_path / 'out'}: is already finished" in err
    fails(specbench(*given, "--seed", "3"), "has a finished training with other settings (seed: 0 → 3): choose")
    (tmp_path / "sw.txt").write_text("other\n")
    fails(specbench(*given), "has a finished training with other settings (data_digest: ")
    corpus(tmp_path)
    fails(specbench(*given, "--drafter", models[0]), f'drafter: "{models[1]}" → "{models[0]}"')
    kind = arguments("scdf", models, tmp_path, *corpus(tmp_path))
    fails(specbench(*kind), "has a finished training, which is not overwritten")
    for damaged in ("[]", '{"settings": []}', "{"):
        (tmp_path / "out" / "training.json").write_text(damaged)
        fails(specbench(*given), "has a finished training, which is not overwritten")
    (tmp_path / "out" / "training.json").write_bytes(before)
    assert specbench(*given)[0] == 0


def test_a_trained_drafter_is_measured_on_the_tasks_of_its_data() -> None:
    def command(**given: Any) -> str:
        return measurement_command(TrainSpec.model_validate({"kind": "scdf", "output": "my drafter", **given}))

    tasks = ["world:mgsm", "world:drill", "wmt", "world:wmt"]
    assert command(data={"tasks": tasks, "subsets": ["en", "sw"]}) == (
        "specbench run --task mgsm,wmt --method sd --drafter 'my drafter' --subset en,sw"
    )
    assert command(data={"tasks": ["world:drill"]}) == ("specbench run --task TASK --method sd --drafter 'my drafter'")
    assert command(data={"tasks": ["wmt"]}, target="org/model", target_revision="main").endswith(
        " --drafter 'my drafter' --target org/model --target-revision main"
    )
    assert command(data={"tasks": ["wmt"]}, dtype="bfloat16").endswith(" --dtype bfloat16")


def test_pretraining_counts_its_epochs_and_warns_of_measured_rows(
    specbench: Run, models: tuple[str, str], tmp_path: Path
) -> None:
    given = ("--task", "wmt", "--subset", "de-en", "--data", "sample", "--limit", "5")
    small = ("--set", "finetune.stage=pretrain", "--set", "finetune.epochs=2", "--set", "finetune.batch_size=3")
    code, out, err = specbench(*arguments("finetune", models, tmp_path, *given, *small))
    assert code == 0, err
    assert "4 steps" in out  # two epochs of 3 + 2 texts
    assert "warning: `specbench run` measures the training rows (de-en: 5 rows of wmt" in err
    written = json.loads((tmp_path / "out" / "training.json").read_text())
    assert written["data"]["overlap"] == ["de-en: 5 rows of wmt (wmt.jsonl)"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of which weights are loaded."""
    found: list[str] = []

    def noted(source: str, *more: Any) -> Any:
        found.append(source)
        return load_weights(source, *more)

    monkeypatch.setattr("specbench.models.loading.load_weights", noted)
    return found


@pytest.mark.parametrize("stage", ["pretrain", "finetune", "with a server"])
def test_weights_of_the_target_are_loaded_only_where_it_computes(
    specbench: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str],
    stage: str,
) -> None:  # fmt: skip
    small = ["--num-steps", "1", "--set", "finetune.batch_size=3", "--set", "finetune.temperatures=[0.0]",
             "--set", "max_new_tokens=4"]  # fmt: skip
    if stage == "with a server":
        small += ["--set", "finetune.server.base_url=http://127.0.0.1:1/v1"]
        reply = {"text": " yes", "ended": True}
        monkeypatch.setattr(
            CompletionServer, "answers", lambda _, asked: [[(place, reply) for place in range(len(asked))]]
        )
    elif stage == "pretrain":
        small += ["--set", "finetune.stage=pretrain"]
    code, _, err = specbench(*arguments("finetune", models, tmp_path, *corpus(tmp_path), *small))
    assert code == 0, err
    assert set(loaded) == ({*models} if stage == "finetune" else {models[1]})
    written = json.loads((tmp_path / "out" / "training.json").read_text())
    assert written["models"]["target"] == {"name": models[0], "revision": fingerprint(models[0])}


def fails(outcome: tuple[int, str, str], *problems: str) -> None:
    """One line, exit code 2, no traceback."""
    code, out, err = outcome
    lines = err.strip().splitlines()
    assert code == 2 and out == "" and "Traceback" not in err
    assert lines[-1].startswith("error: ") and all(problem in lines[-1] for problem in problems), err


def test_a_target_and_a_drafter_that_do_not_fit(specbench: Run, models: tuple[str, str], tmp_path: Path) -> None:
    other = str(tiny.save(tmp_path / "other", num_extra=3, hidden_size=16, num_hidden_layers=1))
    outcome = specbench(*arguments("scdf", (models[0], other), tmp_path, *corpus(tmp_path)))
    fails(
        outcome, "--drafter: drafter", "has another vocabulary than target", "choose a drafter of the target's family"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--task", "world:mgsm", "--subset", "en,xx"], "data.subsets: world:mgsm has no language 'xx'"),
        (["--text", "en"], "--text 'en': write it as LANGUAGE=FILE"),
        (["--text", "en=a.txt", "--text", "en=b.txt"], "--text en=b.txt: 'en' already has the file a.txt"),
        (["--text", "en=nowhere.txt"], "data.text.en: nowhere.txt: no such file"),
        (["--task", "world:mgsm", "--device", "cuda"], "--device cuda: not available"),
        (["--task", "world:mgsm", "--num-steps", "0"], "num_steps = 0"),
        (["--task", "world:mgsm", "--set", "lora.rank=0"], "--set lora.rank=0: lora.rank = 0"),
        (["--task", "world:mgsm", "--config", "none.yaml"], "none.yaml: cannot be read"),
        (["--task", "world:mgsm", "--set", "scdf"], "such as --set scdf.estimator=sampled"),
        ([], "data: there is no training data"),
    ],
)
def test_a_mistake_is_one_line(
    specbench: Run, models: tuple[str, str], tmp_path: Path, more: list[str], problem: str
) -> None:
    fails(specbench(*arguments("scdf", models, tmp_path, *more)), problem)
    assert not (tmp_path / "out").exists()


def test_an_empty_corpus_is_one_line(specbench: Run, models: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    outcome = specbench(*arguments("distill", models, tmp_path, f"--text=en={tmp_path / 'empty.txt'}"))
    fails(outcome, "data.text.en", "the corpus is empty")


def test_a_column_that_is_missing_is_named_as_the_kind_of_training_takes_it(
    specbench: Run, models: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"txt": "one"}\n{"txt": "two"}\n')
    given = arguments("distill", models, tmp_path, f"--text=en={tmp_path / 'a.jsonl'}")
    fails(specbench(*given), "row 1: has no column 'text' (columns: txt): give --set data.column=txt")
    small = ("--num-steps", "1", "--learning-rate", "1e-4", "--set", "distill.corpus=general", "--set", "warmup=0")
    code, _, err = specbench(*given, "--set", "data.column=txt", *small)
    assert code == 0, err


@pytest.mark.parametrize(
    ("output", "reason"),
    [("file/out", "Not a directory"), ("/proc/x/y", "")],
)
def test_an_output_that_cannot_be_made_is_said_before_any_work(
    specbench: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("specbench.training.train.load_data", lambda spec: pytest.fail("data are loaded"))
    outcome = specbench(*arguments("scdf", models, tmp_path, *corpus(tmp_path), "--output", str(tmp_path / output)))
    fails(outcome, f"--output {tmp_path / output}: cannot be written ({reason}", "choose another --output")
    assert outcome[2].count("\n") == 1


def test_an_output_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    OutputFolder(tmp_path / "a" / "b").check()
    assert not list(tmp_path.iterdir())
    (tmp_path / "c").mkdir()
    OutputFolder(tmp_path / "c").check()
    assert [path.name for path in tmp_path.rglob("*")] == ["c"]


FOUR_BITS = ("--set", "quantize=nf4", "--set", "lora.rank=2")
HAS_FOUR_BITS = torch.cuda.is_available() and find_spec("bitsandbytes") is not None


def test_four_bits_on_a_cpu_are_one_line(specbench: Run, models: tuple[str, str], tmp_path: Path) -> None:
    outcome = specbench(*arguments("scdf", models, tmp_path, *corpus(tmp_path), *FOUR_BITS))
    fails(outcome, "quantize = 'nf4': needs a GPU with CUDA, and this training is on cpu: train with quantize=none")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not HAS_FOUR_BITS, reason="needs a GPU with CUDA, and bitsandbytes")
def test_four_bits_train_adapters_of_a_plain_checkpoint(
    specbench: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models are in 4 bits and AdamW in 8; what is written has the precision and the tensors of the drafter."""
    made: list[torch.optim.Optimizer] = []

    def noted(model: Any, spec: TrainSpec) -> Optimizers:
        optimizers = make_optimizers(model, spec)
        made.extend(optimizer for optimizer, _ in optimizers)
        return optimizers

    monkeypatch.setattr("specbench.training.loop.make_optimizers", noted)
    small = ("--set", "scdf.prompts_per_language=2", "--set", "max_new_tokens=4", "--num-steps", "3",
             "--learning-rate", "1e-2", "--device", "cuda")  # fmt: skip
    code, _, err = specbench(*arguments("scdf", models, tmp_path, *corpus(tmp_path), *small, *FOUR_BITS))
    assert code == 0, err
    assert [type(optimizer).__name__ for optimizer in made] == ["AdamW8bit"]
    before, after = load_file(Path(models[1]) / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert {name: (value.shape, value.dtype) for name, value in before.items()} == {
        name: (value.shape, value.dtype) for name, value in after.items()
    }
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("proj" in name for name in changed)


def test_an_interrupt_and_a_full_memory_say_what_is_kept(
    specbench: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments("scdf", models, tmp_path, *corpus(tmp_path))

    def failing(error: BaseException) -> Callable[..., None]:
        def instead(*_: object) -> None:
            raise error

        return instead

    monkeypatch.setattr("specbench.training.train.train_drafter", failing(KeyboardInterrupt()))
    code, _, err = specbench(*given)
    assert code == 130 and "interrupted: nothing is saved yet" in err
    checkpoint = tmp_path / "out" / ".training" / "rate-0" / "state.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"")
    code, _, err = specbench(*given)
    assert code == 130 and "interrupted: the last checkpoint is in" in err
    monkeypatch.setattr("specbench.training.train.train_drafter", failing(RuntimeError("CUDA out of memory")))
    fails(specbench(*given), "out of memory; the last checkpoint is in")
    checkpoint.unlink()
    fails(specbench(*given), "out of memory; nothing is saved yet: free memory and repeat the command, or train into")


def test_what_a_training_is_resumed_by_names_the_precision_that_was_computed_in() -> None:
    def of(dtype: str, num_processes: int = 1) -> dict[str, Any]:
        given = {"kind": "scdf", "data": {"tasks": ["mgsm"]}, "output": "x", "dtype": dtype, "device": "cpu"}
        return training_identity(TrainSpec.model_validate(given), 3, Provenance(), num_processes)

    assert of("auto") == of("float32") != of("bfloat16")
    assert of("auto") != of("auto", 2)


def test_a_learning_rate_that_is_lost_is_said_and_the_next_one_trains(
    specbench: Run, models: tuple[str, str], tmp_path: Path
) -> None:
    small = ("--num-steps", "2", "--set", "distill.batch_size=3", "--set", "warmup=0", "--set", "max_new_tokens=4")
    code, out, err = specbench(
        *arguments("distill", models, tmp_path, *corpus(tmp_path), *small, "--learning-rate", "1e30,1e-3")
    )
    assert code == 0, err
    assert "learning rate 0.001" in out and "learning rate 1e+30 diverged (step " in err
    said = [line for line in err.splitlines() if line.startswith("learning rate ")]
    assert said[0] == "learning rate 1e+30 (1 of 2)" and said[2] == "learning rate 0.001 (2 of 2)" and len(said) == 3


@pytest.mark.parametrize(
    ("kind", "objective", "small"),
    [
        ("scdf", CorrectiveObjective, ("--set", "scdf.prompts_per_language=2")),
        pytest.param(
            "distill", SampleObjective,
            ("--learning-rate", "1e-2", "--set", "distill.batch_size=3", "--set", "warmup=0"), marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_killed_training_of_a_paper_resumes_to_the_bit(
    specbench: Run, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, objective: type[CorrectiveObjective] | type[SampleObjective], small: tuple[str, ...],
) -> None:  # fmt: skip
    given = (*corpus(tmp_path), *small, "--num-steps", "4", "--set", "max_new_tokens=4", "--set",
             "gradient_accumulation=1", "--set", "checkpoint_every=2")  # fmt: skip

    def trained(folder: Path) -> str:
        code, _, err = specbench(*arguments(kind, models, folder, *given))
        assert code == 0, err
        return err

    assert "going on" not in trained(tmp_path / "whole")
    original = objective.rows
    with monkeypatch.context() as patch:
        patch.setattr(objective, "rows", lambda *of: killed_at(3)(of[2]) or original(*of))
        assert in_a_process(lambda: trained(tmp_path)) == -signal.SIGKILL
    assert (tmp_path / "out" / ".training").is_dir()
    conflict = specbench(*arguments(kind, models, tmp_path, *given, "--seed", "1"))
    fails(conflict, "holds an unfinished training of another configuration (settings.seed: 0 → 1)")
    assert " steps of " not in conflict[2]  # nothing is said to begin
    assert "resuming at step 3 of 4\n" in trained(tmp_path)
    assert same(tmp_path / "whole" / "out", tmp_path / "out")
