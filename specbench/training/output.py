"""The output folder of a training and its record training.json. Unfinished work is in `.training`."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypedDict

from rich.console import Console
from rich.filesize import decimal
from safetensors import SafetensorError

from specbench.core.console import say
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.core.files import TRAINING_RECORD, ResumableFolder, write_atomically, writing
from specbench.core.values import text_digest
from specbench.models.devices import is_out_of_memory
from specbench.models.meters import Cost
from specbench.training.data import TrainingData
from specbench.training.spec import TrainSpec

WORK = ".training"
CHECKPOINT = "state.pt"  # in the folder of each learning rate
WITHOUT_EFFECT = ("output", "checkpoint_every", "device", "trust_remote_code")  # a resumed training may change these


class OutputFolder(ResumableFolder):
    """The folder of one training. The same command resumes it. Finished trainings and other files are never
    overwritten."""

    LOCK = "lock"

    def __init__(self, path: Path) -> None:
        super().__init__(path, work=path / WORK)

    def check(self) -> None:
        """Raises ConfigError for a folder that no training can use: one that holds something else, or that cannot be
        made or written. Leaves nothing behind. It needs no models, so it is called early."""
        absent: list[Path] = []
        try:
            with writing(f"--output {self.path}", "choose another --output, or fix the permissions"):
                if (self.path / TRAINING_RECORD).exists():
                    raise ConfigError(
                        f"--output {self.path}: has a finished training, which is not overwritten: choose another "
                        "--output, or delete it"
                    )
                if self.path.is_dir():
                    others = sorted(path.name for path in self.path.iterdir() if path.name != WORK)
                    if others and not self.work.is_dir():
                        raise ConfigError(
                            f"--output {self.path}: is not an unfinished training (it has {others[0]}): choose another "
                            "--output"
                        )
                absent += [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=self.path).close()
        finally:
            for folder in absent:
                with suppress(OSError):  # another process has written into it
                    folder.rmdir()

    def holds(self) -> str:
        return "holds an unfinished training"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises ConfigError that says what was saved if the disk is full or not writable."""
        with super().writing():
            try:
                yield
            except SafetensorError as error:
                raise OSError(str(error)) from error
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):  # torch.save hides what its file raised
                    raise error.__context__ from error
                raise

    def kept(self) -> str:
        return f"; {self.what_is_saved()}"

    def what_is_saved(self) -> str:
        """Returns what the same command can resume from if the training ends now."""
        if any(self.work.glob(f"*/{CHECKPOINT}")):
            return f"the last checkpoint is in {self.path}, and the same command resumes it"
        return "nothing is saved yet"

    @contextmanager
    def reporting_what_is_saved(self, console: Console) -> Iterator[None]:
        """If the training is interrupted or out of memory, ends it with a line that says what was saved."""
        try:
            yield
        except KeyboardInterrupt:
            say(console, f"interrupted: {self.what_is_saved()}")
            sys.exit(INTERRUPTED)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"out of memory; {self.what_is_saved()}: free memory and repeat the command, or train into "
                "another --output with smaller batches, --set gradient_checkpointing=true or --set lora.rank=16"
            ) from error

    def publish(self, finished: Path) -> None:
        """Moves a finished checkpoint into place, the record last, and removes the unfinished work."""
        for path in sorted(finished.iterdir(), key=lambda path: path.name == TRAINING_RECORD):
            os.replace(path, self.path / path.name)
        shutil.rmtree(self.work, ignore_errors=True)


FORMAT = 1
MOST_LISTED = 100_000  # prompt digests in the record, 1.6 MB


class StepCurve(TypedDict):
    """One step, counted from 1: the learning rate of its update, and each language's mean loss over its tokens."""

    step: int
    learning_rate: float
    loss: dict[str, float]
    num_tokens: int


class RateCurve(TypedDict):
    """One learning rate. `validation`: losses by number of finished steps. `lost`: the step and the value that was not
    finite, if the training diverged."""

    learning_rate: float
    validation_loss: float | None
    lost: str | None
    validation: dict[str, float]
    steps: list[StepCurve]


class DataRecord(TypedDict):
    """The identity of the data, and which parts `specbench run` measures. `prompts`: digests, by which a run finds
    prompts that were trained on; None for more than MOST_LISTED."""

    digest: str
    languages: dict[str, int]
    sources: list[str]
    overlap: list[str]
    prompts: list[str] | None


def data_record(data: TrainingData) -> DataRecord:
    texts = dict.fromkeys(prompt.text for prompts in data.prompts.values() for prompt in prompts)
    return {
        "digest": data.digest,
        "languages": {language: len(prompts) for language, prompts in data.prompts.items()},
        "sources": list(data.sources),
        "overlap": list(data.overlap),
        "prompts": [text_digest(text) for text in texts] if data.num_prompts <= MOST_LISTED else None,
    }


@dataclass(frozen=True)
class Provenance:
    """What the record of a training says besides its result."""

    data: DataRecord = field(default_factory=lambda: data_record(TrainingData({})))
    models: dict[str, object] = field(default_factory=dict)
    preparation: Cost = field(default_factory=dict)
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterRecord:
    """The content of training.json. `cost`: see `meters.CostMeter`; with several processes, some values are only
    the main process's. `finished`: UTC."""

    settings: dict[str, object]
    data: DataRecord
    models: dict[str, object]
    cost: Cost
    environment: dict[str, object]
    command: str | None = None
    finished: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        write_atomically(folder / TRAINING_RECORD, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(DrafterRecord):
    """The record of a training. A step is one update of the weights, from `gradient_accumulation` (in `settings`)
    passes.

    curves: one for each learning rate, in order. chosen: the index of the rate whose weights were saved. cost: of the
    steps of all rates. preparation: the cost of everything before the first step, which is small if the target's
    continuations were cached. All losses, including validation losses, are those of the float32 weights. The checkpoint
    has the weights in `stored_dtype` (in `models`), the original drafter's dtype.
    """

    chosen: int
    curves: list[RateCurve]
    preparation: Cost

    def summary(self) -> str:
        curve = self.curves[self.chosen]
        last = curve["steps"][-1]
        losses = " ".join(f"{name} {loss:.3f}" for name, loss in last["loss"].items())
        held_out = f" · validation loss {curve['validation_loss']:.4f}" if curve["validation_loss"] is not None else ""
        rates = f" · learning rate {curve['learning_rate']:g}" if len(self.curves) > 1 else ""
        return f"{last['step']} steps · loss {losses}{held_out}{rates} · {self.cost['wall_seconds']:.0f} s"


class CorpusCounts(TypedDict, total=False):
    """The size of a model that is built from a corpus. n-gram models have `num_ngrams` by order from 1 and
    `counting_seconds`, datastores have `sorting_seconds`."""

    num_documents: int
    num_tokens: int
    num_ngrams: Sequence[int]
    num_bytes: int
    digest: str
    tokenizing_seconds: float
    counting_seconds: float
    sorting_seconds: float


@dataclass(frozen=True, kw_only=True)
class CorpusRecord(DrafterRecord):
    """The record of a model that is built from a corpus."""

    counts: CorpusCounts

    def summary(self) -> str:
        """Returns one line: tokens, n-grams per order, size and speeds."""
        counts = self.counts
        num_tokens = self.counts["num_tokens"]
        speeds = {
            "tokenizing": counts["tokenizing_seconds"],
            "counting": counts.get("counting_seconds"),
            "sorting": counts.get("sorting_seconds"),
        }
        return " · ".join([
            f"{num_tokens:,} tokens in {counts['num_documents']:,} documents",
            *(f"{count:,} {order}-grams" for order, count in enumerate(counts.get("num_ngrams", ()), start=1)),
            decimal(counts["num_bytes"]),
            *(f"{work} {num_tokens / seconds:,.0f} tokens/s" for work, seconds in speeds.items() if seconds),
        ])  # fmt: skip


def all_settings(spec: TrainSpec, num_steps: int) -> dict[str, object]:
    return {**spec.model_dump(mode="json"), "num_steps": num_steps}


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the sums over the learning rates. A value that one of them lacks is None."""
    return {
        name: None if any(cost.get(name) is None for cost in costs) else sum(cost[name] or 0.0 for cost in costs)
        for name in costs[0]
    }
