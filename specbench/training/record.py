"""training.json: everything that a finished drafter was made of, and what it cost."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from specbench.core.files import TRAINING_RECORD, write_atomically
from specbench.training.cost import Cost
from specbench.training.data import TrainingData
from specbench.training.spec import TrainSpec
from specbench.training.state import Progress

FORMAT = 2
MOST_LISTED = 100_000  # 1.6 MB


@dataclass(frozen=True, kw_only=True)
class Record:
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
class TrainingRecord(Record):
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
class CountingRecord(Record):
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


def data_of(data: TrainingData) -> dict[str, Any]:
    """What identifies the data, and which of it is measured too. `prompts`: by their digests, which `specbench run`
    looks for among those that it measures; null where they are more than MOST_LISTED."""
    return {
        "digest": data.digest,
        "languages": {language: len(prompts) for language, prompts in data.prompts.items()},
        "sources": list(data.sources),
        "overlap": list(data.overlap),
        "prompts": data.prompt_digests if data.num_prompts <= MOST_LISTED else None,
    }


def curve_of(rate: float, progress: Progress) -> dict[str, Any]:
    """One learning rate: `steps`, the held-back loss by the number of steps done, and why it was lost, if it was."""
    return {
        "learning_rate": rate,
        "held_back_loss": last_validation(progress),
        "lost": progress.lost,
        "validation": {str(num_done): loss for num_done, loss in progress.validation.items()},
        "steps": [asdict(point) for point in progress.curve],
    }


def last_validation(progress: Progress) -> float | None:
    """The held-back loss at the end, which a rate that is lost does not reach."""
    return None if progress.lost else progress.validation.get(progress.num_done)


def settings_of(spec: TrainSpec, num_steps: int) -> dict[str, Any]:
    """All settings, the number of steps filled in."""
    return {**spec.model_dump(mode="json"), "num_steps": num_steps}


def total(costs: Sequence[Cost]) -> Cost:
    """The sum over the learning rates; null where one of them is."""
    return {
        name: None if any(cost.get(name) is None for cost in costs) else sum(cost[name] or 0.0 for cost in costs)
        for name in costs[0]
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
