"""What a drafter was trained on, by the record in its folder, and whether it is measured now."""

from pathlib import Path

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import TRAINING_RECORD
from specbench.specs import MethodSpec, RunSpec


def training_prompts(spec: RunSpec, method: MethodSpec) -> set[str]:
    """Returns the digests of the prompts that the drafters of a method were trained on; none where their folders have
    no record that lists prompts. Another layout of the same question has another digest, so it is not seen."""
    folders = {
        part.drafter.options.get("path") or (spec.drafter_of(part) if part.needs_drafter else None)
        for part in method.parts
    }
    return set().union(*(prompts_of(Path(folder)) for folder in folders if folder))


def prompts_of(folder: Path) -> set[str]:
    """The digests of the prompts that a training lists."""
    try:
        data = bounded.read_json(folder / TRAINING_RECORD, "train it again", strict=False)["data"]
        return set(data.get("prompts") or ())
    except (ConfigError, KeyError, TypeError, AttributeError):
        return set()
