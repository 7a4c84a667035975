"""Tuned methods as YAML files, with comments that say how each was found."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from specbench import __version__
from specbench.analysis.trials import Trials
from specbench.analysis.tune import TunedPreset
from specbench.core.errors import ConfigError
from specbench.core.files import check_place, write_atomically
from specbench.results.units import score, unit_of, with_interval
from specbench.specs.catalogue import load_file
from specbench.specs.method import CalibrationSpec, MethodSpec

SEAL = "# As `specbench tune` wrote it, digest of the lines below: "
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DEFAULTS = {"decodes_with": "target", "bridge": "shared", "paper": None}  # left out: they say nothing


def file_of(output: Path, label: str) -> Path:
    """Returns my-low.yaml for my.yaml; the path itself where there is no label."""
    return output.with_name(f"{output.stem}-{label}{output.suffix}") if label else output


def check_output(output: Path) -> None:
    """Raises ConfigError where method files of this name cannot be written or read back; called before the runs."""
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output {output}: must end in .yaml: it names a method file")
    if not NAME.fullmatch(output.stem):
        raise ConfigError(f"--output {output}: '{output.stem}' is no method name: use letters, digits, _ . and -")
    if output.parent.exists() and not output.parent.is_dir():
        raise ConfigError(f"--output {output}: {output.parent} is no folder: choose another place")
    try:
        check_place(output)
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error}); nothing was measured"
        raise ConfigError(f"--output {output}: {problem}: choose another place") from error


def check_replaceable(output: Path, labels: Sequence[str]) -> None:
    """Raises ConfigError for a file that is there, unless tune wrote it and nobody has changed it."""
    for path in (file_of(output, label) for label in labels):
        if path.exists() and not is_own(path):
            raise ConfigError(
                f"--output {path}: is there, and not as tune wrote it: name another file, or move this one away"
            )


def is_own(path: Path) -> bool:
    """Returns whether a file begins with the digest of the rest."""
    first, _, rest = path.read_bytes().partition(b"\n")
    return first == sealed(rest).partition(b"\n")[0]


def sealed(text: bytes) -> bytes:
    """Returns the text after a comment with its digest."""
    return f"{SEAL}{hashlib.sha256(text).hexdigest()[:12]}\n".encode() + text


def write_presets(
    output: Path, trials: Trials, presets: Sequence[TunedPreset], calibration: CalibrationSpec, notes: Sequence[str]
) -> list[Path]:
    """Write one file per preset; each is read back as a check. Raises ConfigError when it cannot be written."""
    paths = []
    for preset in presets:
        path = file_of(output, preset.label)
        text = as_yaml(path.stem, trials, preset, calibration, notes)
        try:
            write_atomically(path, sealed(text.encode()).decode())
        except OSError as error:
            problem = f"cannot be written ({error.strerror or error}); the runs are kept"
            raise ConfigError(f"--output {path}: {problem}: choose another place and repeat the command") from error
        load_file(path)
        paths.append(path)
    return paths


def as_yaml(
    name: str, trials: Trials, preset: TunedPreset, calibration: CalibrationSpec, notes: Sequence[str]
) -> str:  # fmt: skip
    """Returns the text of a method file."""
    lines = comments(trials, preset, calibration, notes)
    comment = "\n".join(fill(line, 118, initial_indent="# ", subsequent_indent="#   ") for line in lines)
    method = preset.method
    label = f", {preset.label}" if preset.label else ""
    data: dict[str, Any] = {
        **method.model_dump(mode="json", exclude={"sweep"}), "name": name, "version": 1,
        "title": f"{trials.base.title}, tuned on {calibration.task}{label}",
    }  # fmt: skip
    data = {key: _given(value) for key, value in data.items() if key not in DEFAULTS or value != DEFAULTS[key]}
    data["calibration"] = calibration.model_dump(mode="json")
    return f"{comment}\n{_dumped(data)}"


def comments(
    trials: Trials, preset: TunedPreset, calibration: CalibrationSpec, notes: Sequence[str]
) -> list[str]:  # fmt: skip
    """Returns the comments: pair, task, slice, date, the preset's numbers and the decisions, a line each."""
    models, metrics, quality = trials.models, preset.metrics, trials.quality
    drafter = models.drafters.get(trials.base.name)
    sizes = ", ".join(f"{len(prompts)} of {subset}" for subset, prompts in calibration.prompts.items())
    scored = ""
    if quality:
        before, after = (score(metrics[name], quality) for name in (f"{quality}_ar", quality))
        scored = f", {unit_of(quality).label} {before} → {after}"
    numbers = (
        f"{with_interval(metrics['tokens_per_second'], 1)} tokens/s, speed-up {with_interval(metrics['speedup'], 2)}, "
        f"accepted share of draft tokens {with_interval(metrics['draft_efficiency'], 3)}{scored}"
    )
    return [
        f"Written by specbench {__version__} on {datetime.now(UTC).date().isoformat()}: {_one_line(trials.command)}",
        f"Pair: {_model(models.target)}, {_model(drafter) if drafter else trials.base.drafter.type}; "
        f"{models.target.dtype} on {trials.conditions['device']}, {models.engine(trials.base)}",
        f"Task: {calibration.task}; calibration slice: {sizes} ({calibration.data}), listed below: "
        + (
            "a run of this method leaves it out"
            if "calibration" in MethodSpec.model_fields
            else "do not evaluate on it"
        ),
        f"Measured on the slice, with 95 % intervals: {numbers}",
        *map(_one_line, notes),
    ]


def _model(model: Any) -> str:
    return f"{model.name} ({model.revision})" if model.revision else str(model.name)


def _given(value: Any) -> Any:
    """Returns a mapping without its null values; other values as they are."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def _dumped(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _one_line(text: str) -> str:
    return " ".join(text.split())
