"""The output folder of a training: unfinished work is in `.training`, and a finished folder is a checkpoint."""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.filesize import decimal
from safetensors import SafetensorError

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, locked, write_atomically
from specbench.running.run_folder import flatten
from specbench.training.checkpoint import CHECKPOINT, RateProgress
from specbench.training.cost import Cost
from specbench.training.data import TrainingData
from specbench.training.spec import TrainSpec

WORK = ".training"
LOCK = "lock"
WITHOUT_EFFECT = ("output", "checkpoint_every", "device")  # a resumed training may have others


class OutputFolder:
    """Takes one training, which the same command resumes. A finished one, and anything else, is never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK

    def check(self) -> None:
        """Raise ConfigError for a folder that no training can go on in. Needs no model: it is said at once."""
        with self._reached():
            if (self.path / TRAINING_RECORD).exists():
                raise ConfigError(
                    f"--output {self.path}: a finished training is there, and it is not overwritten: choose another "
                    "--output, or delete it"
                )
            if self.path.is_dir():
                others = sorted(path.name for path in self.path.iterdir() if path.name != WORK)
                if others and not self.work.is_dir():
                    raise ConfigError(
                        f"--output {self.path}: is no unfinished training (it holds {others[0]}): choose another "
                        "--output"
                    )
            elif self.path.exists() or self.path.is_symlink():
                raise ConfigError(f"--output {self.path}: is a file: give a folder")

    def check_writable(self) -> None:
        """Raise ConfigError for a folder that cannot be made or takes no file. Leaves nothing behind."""
        with self._reached(), ExitStack() as made:
            for folder in reversed((self.path, *self.path.parents)):  # the deepest is removed first
                if not folder.exists():
                    made.callback(remove_empty, folder)
            self.path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.path):
                pass

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"--output {self.path}: cannot be written ({error.strerror or error}): choose another --output, or fix "
                "the permissions"
            ) from error

    def check_room(self, num_bytes: int) -> None:
        """Raise ConfigError where the disk has less room than the training will take, beyond what it has written."""
        num_bytes -= sum(path.stat().st_size for path in self.work.rglob("*") if path.is_file())
        there = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < num_bytes:
            raise ConfigError(
                f"--output {self.path}: the training takes {decimal(num_bytes)} more there and {decimal(free)} are "
                "free: make room, or choose another --output"
            )

    @contextmanager
    def open(self, identity: Mapping[str, Any], is_main: bool = True) -> Iterator[None]:
        """Hold the folder for as long as the block runs; of several processes of one training the main one does.

        Raises ConfigError when another training has it, or when the unfinished one in it is another, with what differs.
        """
        if not is_main:
            yield
            return
        with ExitStack() as held:
            try:
                with self.writing():
                    held.enter_context(locked(self.work / LOCK, wait=False))
                    self._claim(json.loads(json.dumps(identity)))
            except BlockingIOError as error:
                raise ConfigError(
                    f"--output {self.path}: another process trains into it: wait for it, or choose another --output"
                ) from error
            yield

    def _claim(self, identity: dict[str, Any]) -> None:
        path = self.work / "identity.json"
        if not path.exists():
            write_atomically(path, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
            return
        changed = settings_differences(
            bounded.read_mapping(path, f"delete {self.work} to begin anew", strict=False), identity
        )
        if changed:
            raise ConfigError(
                f"--output {self.path}: an unfinished training with other settings is there ({changed}): repeat its "
                "command, choose another --output, or delete it"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A disk that is full, or takes nothing, ends in one line that says what is kept."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"--output {self.path}: cannot write there ({getattr(error, 'strerror', None) or error}); "
                f"{self.kept()}: make room and repeat the command, or choose another --output"
            ) from error

    def kept(self) -> str:
        """What a training that ends now leaves for the same command to go on with."""
        if any(self.work.glob(f"*/{CHECKPOINT}")):
            return f"the last checkpoint is kept in {self.path}, and the same command resumes it"
        return "nothing is kept yet"

    def publish(self, finished: Path) -> None:
        """Move a finished checkpoint into place, its record last, and drop the work."""
        names = sorted((path.name for path in finished.iterdir()), key=lambda name: name == TRAINING_RECORD)
        for name in names:
            os.replace(finished / name, self.path / name)
        shutil.rmtree(self.work, ignore_errors=True)


def remove_empty(folder: Path) -> None:
    """Remove a folder that may be there; one with something in it stays."""
    with suppress(OSError):
        folder.rmdir()


def settings_differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The keys that two nested mappings differ in, with both values; empty where they are the same."""
    before, after = flatten(old), flatten(now)
    return "; ".join(
        f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


FORMAT = 2
MOST_LISTED = 100_000  # 1.6 MB


@dataclass(frozen=True, kw_only=True)
class DrafterRecord:
    """What training.json says of every drafter that is made. `cost`: see `cost.Meter`, of several processes in
    part the main one's alone; `finished`: UTC."""

    settings: dict[str, Any]
    data: dict[str, Any]
    models: dict[str, Any]
    cost: Cost
    environment: dict[str, Any]
    command: str | None = None
    finished: str = ""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        write_atomically(folder / TRAINING_RECORD, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(DrafterRecord):
    """Of a training in steps: updates of the weights, each of `gradient_accumulation` (in `settings`) passes of the
    objective, counted from 1. `curves`: one for each learning rate, in order; `chosen`: the index of the one whose
    weights were kept; `cost`: of the steps of all of them; `preparation`: of what came before the first step when it
    was finished, which is little where the target's continuations were kept from an earlier time. All losses, those on
    the held-back data too, are of the weights as they are trained, in float32; the checkpoint holds them in
    `stored_dtype` (in `models`), that of the drafter's own."""

    chosen: int
    curves: list[dict[str, Any]]
    preparation: Cost

    def summary(self) -> str:
        """One line: steps, losses of the last step, held-back loss and cost."""
        curve = self.curves[self.chosen]
        last = curve["steps"][-1]
        losses = " ".join(f"{name} {loss:.3f}" for name, loss in last["loss"].items())
        held_back = f" · held-back loss {curve['held_back_loss']:.4f}" if curve["held_back_loss"] is not None else ""
        rates = f" · learning rate {curve['learning_rate']:g}" if len(self.curves) > 1 else ""
        return f"{last['step']} steps · loss {losses}{held_back}{rates} · {self.cost['wall_seconds']:.0f} s"


@dataclass(frozen=True, kw_only=True)
class CountingRecord(DrafterRecord):
    """Of the counting of n-grams. `counts`: num_documents, num_tokens, num_ngrams of each order from 1, num_bytes and
    digest of the model, tokenizing_seconds and counting_seconds."""

    counts: dict[str, Any]

    def summary(self) -> str:
        """One line: tokens, n-grams per order, size and speeds."""
        counts, num_tokens = self.counts, self.counts["num_tokens"]
        sizes = " · ".join(f"{count:,} {order}-grams" for order, count in enumerate(counts["num_ngrams"], start=1))
        return (
            f"{num_tokens:,} tokens in {counts['num_documents']:,} documents · {sizes} · "
            f"{decimal(counts['num_bytes'])} · tokenizing {num_tokens / counts['tokenizing_seconds']:,.0f} tokens/s · "
            f"counting {num_tokens / counts['counting_seconds']:,.0f} tokens/s"
        )


def data_record(data: TrainingData) -> dict[str, Any]:
    """What identifies the data, and which of it is measured too. `prompts`: by their digests, which `specbench run`
    looks for among those that it measures; null where they are more than MOST_LISTED."""
    return {
        "digest": data.digest,
        "languages": {language: len(prompts) for language, prompts in data.prompts.items()},
        "sources": list(data.sources),
        "overlap": list(data.overlap),
        "prompts": data.prompt_digests if data.num_prompts <= MOST_LISTED else None,
    }


def curve_record(rate: float, progress: RateProgress) -> dict[str, Any]:
    """One learning rate: `steps`, the held-back loss by the number of steps done, and why it was lost, if it was."""
    return {
        "learning_rate": rate,
        "held_back_loss": last_validation(progress),
        "lost": progress.lost,
        "validation": {str(num_done): loss for num_done, loss in progress.validation.items()},
        "steps": [asdict(point) for point in progress.curve],
    }


def last_validation(progress: RateProgress) -> float | None:
    """The held-back loss at the end, which a rate that is lost does not reach."""
    return None if progress.lost else progress.validation.get(progress.num_done)


def all_settings(spec: TrainSpec, num_steps: int) -> dict[str, Any]:
    """All settings, the number of steps filled in."""
    return {**spec.model_dump(mode="json"), "num_steps": num_steps}


def total_cost(costs: Sequence[Cost]) -> Cost:
    """The sum over the learning rates; null where one of them is."""
    return {
        name: None if any(cost.get(name) is None for cost in costs) else sum(cost[name] or 0.0 for cost in costs)
        for name in costs[0]
    }


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def draw_curves(record: TrainingRecord, path: Path) -> bool:
    """Loss per language and learning rate of the chosen curve, and the held-back loss; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    curve = record.curves[record.chosen]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel: Any = figure.subplots()
    lines: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for point in curve["steps"]:
        for language, loss in point["loss"].items():
            lines[language][0].append(point["step"])
            lines[language][1].append(loss)
    for language, (steps, losses) in lines.items():
        panel.plot(steps, losses, label=language, linewidth=1, marker="." if len(steps) < 30 else "")
    if curve["validation"]:
        held_back = {int(num_done): loss for num_done, loss in curve["validation"].items()}
        panel.plot(*zip(*held_back.items(), strict=True), "ko--", label="held back")
    panel.set_xlabel("step (update)")
    panel.set_ylabel("loss (nats per token)")
    panel.set_title(f"{record.settings['kind']} · learning rate {curve['learning_rate']:g}", loc="left")
    panel.legend(ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    return True
