"""The training loop: a killed training gives the same bits as an uninterrupted one, and every failure is one line."""

import errno
import io
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.core.files import replacing_file
from specbench.models.loading import load_model
from specbench.specs.components import build
from specbench.training import output as files
from specbench.training import train
from specbench.training.loop import LossPart, RateProgress, load_checkpoint, make_optimizers, rate_at
from specbench.training.spec import TrainSpec
from tests.support.training_toys import (
    NUM_PASSES,
    NUM_STEPS,
    ToyObjective,
    drafter,
    in_a_process,
    killed_at,
    same,
    spec_of,
    train_toy,
    untrained,
    weights,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("toy")
    train_toy(folder, "whole")
    return folder / "whole"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training into `out` that was killed behind its first checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    assert in_a_process(lambda: train_toy(folder, objective=ToyObjective(killed_at(6)))) == -signal.SIGKILL
    return folder


def curves(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "training.json").read_text())["curves"]


def kill_when_replacing(name: str) -> None:
    """From now on this process is gone at the moment before a file of that name takes its place."""
    replace = os.replace

    def instead(source: Any, target: Any) -> None:
        if Path(target).name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = instead


def killed_in(tmp_path: Path, name: str) -> None:
    kill_when_replacing(name)
    train_toy(tmp_path)


def test_killed_training_resumes_to_the_bit(whole: Path, tmp_path: Path) -> None:
    kills = [
        lambda: train_toy(
            tmp_path, objective=ToyObjective(killed_at(3))
        ),  # before the first checkpoint, between two passes
        lambda: killed_in(tmp_path, "state.pt"),  # while it is moved into place
        lambda: train_toy(tmp_path, objective=ToyObjective(killed_at(7))),  # after it, with three more logged passes
        lambda: killed_in(tmp_path, "model.safetensors"),  # while the finished drafter is
        lambda: killed_in(tmp_path, "training.json"),
    ]
    for kill in kills:
        assert in_a_process(kill) == -signal.SIGKILL
        assert not (tmp_path / "out" / "training.json").exists()
    train_toy(tmp_path)
    assert same(whole, tmp_path / "out")
    assert not (tmp_path / "out" / ".training").exists()


def test_another_objective_gives_other_bits_in_as_many_passes(whole: Path, tmp_path: Path) -> None:
    passes: list[int] = []
    train_toy(tmp_path, "other", ToyObjective(passes.append, weights=(0.5, 0.5)))
    assert not same(whole, tmp_path / "other")
    assert passes == list(range(NUM_PASSES))


def test_a_step_is_an_update_whatever_is_accumulated(tmp_path: Path) -> None:
    """Steps, checkpoints, the learning rate and the log count updates: more passes for each change none of them."""
    found = {}
    for num_passes in (1, 2):
        name = f"passes-{num_passes}"
        record = train_toy(tmp_path, name, gradient_accumulation=num_passes, warmup=3, checkpoint_every=3, log_every=2)
        curve = record.curves[0]
        log = [tuple(line.split(",")[1:3]) for line in (tmp_path / name / "log.csv").read_text().splitlines()[1:]]
        assert log == [(str(step), str(place + 1)) for step in (2, 4, 5) for place in range(num_passes)]
        assert {point["num_tokens"] for point in curve["steps"]} == {32 * num_passes}
        found[num_passes] = ([(point["step"], point["learning_rate"]) for point in curve["steps"]],
                             list(curve["validation"]))  # fmt: skip
    assert found[1] == found[2]
    assert found[1][1] == ["3", "5"] and [step for step, _ in found[1][0]] == [1, 2, 3, 4, 5]
    assert [rate for _, rate in found[1][0]][:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])


def test_passes_are_accumulated_with_their_weights(tmp_path: Path) -> None:
    """Two passes are one AdamW update with half the sum of the weighted gradients."""
    settings = {"num_steps": 1, "warmup": 0, "schedule": "constant", "clip": 0, "weight_decay": 0.1}
    model = drafter().model
    toy = ToyObjective()
    losses = [toy.losses(seed)(model).mean() * weight / 2 for seed, weight in enumerate((0.75, 0.25, 0.75, 0.25))]
    torch.stack(losses).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    optimizer.step()
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    spec = spec_of(**settings)
    output = files.OutputFolder(tmp_path / "out")
    with output.held({}):
        train.train_drafter(drafter(), ToyObjective(), spec, output, train.Console(quiet=True), 1)
    made = weights(tmp_path / "out")
    for name, value in expected.items():
        if name in made:
            torch.testing.assert_close(made[name], value, atol=2e-5, rtol=0)


def test_a_part_without_weight_changes_nothing(tmp_path: Path) -> None:
    train_toy(tmp_path, "still", ToyObjective(weights=(0.0, 0.0)), weight_decay=0, num_steps=2)
    before = untrained()
    assert all(torch.equal(before[name], value) for name, value in weights(tmp_path / "still").items())


def test_gradient_checkpointing_changes_no_loss(tmp_path: Path) -> None:
    saw: list[bool] = []

    class Looking(ToyObjective):
        def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
            saw.append(drafter.is_gradient_checkpointing)  # type: ignore[arg-type]
            return super().parts(drafter, number)

    plain = train_toy(tmp_path, "plain", Looking(), num_steps=2)
    assert saw and not any(saw)
    saw.clear()
    saving = train_toy(tmp_path, "saving", Looking(), num_steps=2, gradient_checkpointing=True)
    assert saw and all(saw)
    for one, other in zip(plain.curves[0]["steps"], saving.curves[0]["steps"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


def test_bfloat16_computes_in_it_and_stores_the_checkpoints_own_precision(whole: Path, tmp_path: Path) -> None:
    rounded = train_toy(tmp_path, "rounded", dtype="bfloat16", num_steps=1)  # in a process that trained in float32
    first, exact = (found[0]["steps"][0]["loss"] for found in (rounded.curves, curves(whole)))
    assert first == pytest.approx(exact, rel=0.05) and first != exact
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "rounded").values())


def test_adapters_are_merged_into_a_plain_checkpoint(tmp_path: Path) -> None:
    train_toy(tmp_path, lora={"rank": 2}, learning_rate=0.1, num_steps=2)
    assert not list((tmp_path / "out").glob("adapter*"))
    before, after = untrained(), weights(tmp_path / "out")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("proj" in name for name in changed)
    load_model(str(tmp_path / "out"), device="cpu")


@pytest.mark.slow
def test_killed_training_of_adapters_resumes_to_the_bit(tmp_path: Path) -> None:
    lora = {"lora": {"rank": 2, "dropout": 0.5}}
    train_toy(tmp_path, "whole", **lora)
    assert in_a_process(lambda: train_toy(tmp_path, objective=ToyObjective(killed_at(6)), **lora)) == -signal.SIGKILL
    train_toy(tmp_path, **lora)
    assert same(tmp_path / "whole", tmp_path / "out")


def test_the_validation_loss_chooses_the_learning_rate(whole: Path, tmp_path: Path) -> None:
    record = train_toy(tmp_path, learning_rate=(1e-9, 0.01))
    losses = [curve["validation_loss"] for curve in record.curves]
    assert record.chosen == losses.index(min(losses)) == 1
    alone = weights(whole)  # of the second learning rate
    assert all(torch.equal(value, alone[name]) for name, value in weights(tmp_path / "out").items())


def test_a_rate_that_diverged_has_no_validation_loss() -> None:
    assert RateProgress(2, validation={2: 1.0}).last_validation == 1.0
    assert RateProgress(2, validation={2: 1.0}, lost="step 3").last_validation is None


def test_a_loss_that_is_not_finite_ends_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step 1: the .*: lower --learning-rate.*; nothing is saved yet$"):
        train_toy(tmp_path, objective=ToyObjective(weights=(float("inf"), 1.0)))
    with pytest.raises(ConfigError, match=r"step \d+: the .* is nan; step \d+: the .*: lower"):
        train_toy(tmp_path, "all", learning_rate=(1e30, 1e29))


@pytest.mark.parametrize("only_at_the_end", [False, True])
def test_a_learning_rate_that_is_lost_leaves_the_others_as_they_are(
    only_at_the_end: bool, whole: Path, tmp_path: Path
) -> None:
    """The first one is lost at different places: in a step, and behind the last one on the validation data."""
    objective = LosingObjective() if only_at_the_end else ToyObjective()
    record = train_toy(tmp_path, objective=objective, learning_rate=(1e30, 0.01))
    written = curves(tmp_path / "out")
    assert record.chosen == 1 and [curve["validation_loss"] is None for curve in written] == [True, False]
    assert len(written[0]["steps"]) == (NUM_STEPS if only_at_the_end else 1)
    assert written[0]["lost"].endswith(" is nan") and written[1]["lost"] is None
    assert (record.cost["wall_seconds"] or 0) > 0 and record.summary().startswith(f"{NUM_STEPS} steps")
    one, other = weights(whole), weights(tmp_path / "out")
    assert all(torch.equal(value, other[key]) for key, value in one.items())


class LosingObjective(ToyObjective):
    """The last validation loss of the first learning rate is not a number; its steps teach nothing."""

    num_validations = 0

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        self.weights = (0.0, 0.0) if self.num_validations < 3 else (0.75, 0.25)
        return super().parts(drafter, number)

    def validation(self, drafter: nn.Module) -> float | None:
        self.num_validations += 1
        return math.nan if self.num_validations == 3 else super().validation(drafter)


def test_schedules() -> None:
    spec = spec_of(warmup=4, schedule="cosine")
    rates = [rate_at(spec, 1.0, step, 12) for step in range(1, 13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True) and 0 < rates[-1] < 0.1
    assert rate_at(spec_of(warmup=0.5, schedule="constant"), 2.0, 5, 10) == 2.0
    assert rate_at(spec_of(warmup=0.5, schedule="constant"), 2.0, 1, 10) == 0.4
    assert rate_at(spec_of(warmup=0, schedule="cosine"), 1.0, 1, 1) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", ["scdf", "distill", "finetune"])
@pytest.mark.parametrize("num_steps", [10, 59, 60, 800])
def test_a_short_training_reaches_its_learning_rate_too(kind: str, num_steps: int) -> None:
    given = {"kind": kind, "data": {"text": {"en": "x.txt"}}, "output": "x", "num_steps": num_steps}
    spec = build(TrainSpec, given)
    rates = [rate_at(spec, 1.0, step, num_steps) for step in range(1, num_steps + 1)]
    assert max(rates) > 0.98 and rates.index(max(rates)) <= 0.1 * num_steps


class FullDisk(io.BytesIO):
    def write(self, content: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    @contextmanager
    def filling_up(path: Path) -> Iterator[IO[bytes]]:
        opened.append(path)
        with replacing_file(path) as file:
            yield file if len(opened) == 1 else FullDisk()

    with monkeypatch.context() as patch:
        patch.setattr("specbench.training.loop.replacing_file", filling_up)
        with pytest.raises(ConfigError, match=r"cannot be written .No space left.*the last checkpoint is in"):
            train_toy(tmp_path)
    begun: list[int] = []
    train_toy(tmp_path, objective=ToyObjective(begun.append))
    assert begun[0] == 4  # the first pass behind the first checkpoint
    assert same(whole, tmp_path / "out")


def test_a_finished_output_is_never_overwritten(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    before = (tmp_path / "out" / "training.json").read_bytes()
    with pytest.raises(ConfigError, match=r"--output .*out: has a finished training.*choose another"):
        train_toy(tmp_path)
    assert (tmp_path / "out" / "training.json").read_bytes() == before


def test_a_folder_of_something_else_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"it has thesis\.txt"):
        train_toy(tmp_path)
    with pytest.raises(ConfigError, match="it is a file, not a folder"):
        files.OutputFolder(tmp_path / "out" / "thesis.txt").check()


def test_changed_settings_are_named(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"another configuration \(settings.learning_rate.0: 0.01 → 0.02\)"):
        train_toy(tmp_path, learning_rate=0.02)
    train_toy(tmp_path, checkpoint_every=2)  # how often it is written is not a setting of the result


def test_two_trainings_into_one_folder_are_refused(tmp_path: Path) -> None:
    output = files.OutputFolder(tmp_path / "out")
    with output.held({}), pytest.raises(ConfigError, match="another process is using it"), output.held({}):
        pass


def test_a_broken_checkpoint_is_said(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    (tmp_path / "out" / ".training" / "rate-0" / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ConfigError, match=r"state.pt: is not a checkpoint of this training .*: delete .*rate-0"):
        train_toy(tmp_path)


def test_weights_of_a_checkpoint_that_is_gone_are_not_taken_from_the_model(tmp_path: Path) -> None:
    """A training starts without a checkpoint. What it saves at its end must be the chosen checkpoint."""
    model = nn.Linear(1, 1)
    assert load_checkpoint(tmp_path, model, [(torch.optim.AdamW(model.parameters()), 1.0)]) == RateProgress()
    with pytest.raises(ConfigError, match=r"state.pt: is not a checkpoint of this training \(FileNotFoundError\)"):
        load_checkpoint(tmp_path, model)


def test_quantised_without_its_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"needs bitsandbytes: pip install 'specbench-lm\[quant\]'"):
        make_optimizers(torch.nn.Linear(1, 1), spec_of(quantize="nf4", lora={"rank": 2}))
