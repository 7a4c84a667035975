"""What a drafter was trained on, by the record in its folder, and whether it is measured now."""

from collections.abc import Sequence
from pathlib import Path

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import TRAINING_RECORD
from specbench.running.records import Record
from specbench.specs import MethodSpec, RunSpec


def num_trained_on(spec: RunSpec, method: MethodSpec, records: Sequence[Record]) -> int:
    """Of how many measured examples a drafter of the method saw the prompt in its training; 0 where its folder has no
    record that lists prompts. Prompts are known by their digest: another layout of the same question is not seen."""
    folders = {
        part.drafter.options.get("path") or (spec.drafter_of(part) if part.needs_drafter else None)
        for part in method.parts
    }
    trained = set().union(*(prompts_of(Path(folder)) for folder in folders if folder))
    first = [record for record in records if not record.get("turn")]
    return len({(record["subset"], record["example"]) for record in first if record["prompt"] in trained})


def prompts_of(folder: Path) -> set[str]:
    """The digests of the prompts that a training lists."""
    try:
        data = bounded.read_json(folder / TRAINING_RECORD, "train it again", strict=False)["data"]
        return set(data.get("prompts") or ())
    except (ConfigError, KeyError, TypeError, AttributeError):
        return set()
