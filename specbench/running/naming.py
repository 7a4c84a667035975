"""The default names of folders of runs."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.specs import RunSpec

MAX_NAMED = 4  # tasks in the name of a folder


def default_folder(spec: RunSpec, identity: Mapping[str, Any]) -> Path:
    """runs/<tasks>-<methods>-<digest of all that was asked for>: the same command finds its records again, another
    one (other data, fewer subsets, a smaller limit) leaves them alone."""
    tasks = [task.name for task in spec.tasks] if len(spec.tasks) <= MAX_NAMED else [f"{len(spec.tasks)}-tasks"]
    methods = [method.name for method in spec.methods[1:] or spec.methods]
    return folder_of("-".join([*tasks, *methods]), {**identity, **asked_of(spec)})


def folder_of(names: str, asked: Mapping[str, Any]) -> Path:
    """runs/<names>-<digest of what was asked for>."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{names}-{digest}"


def asked_of(spec: RunSpec) -> dict[str, Any]:
    """What is asked for and is no part of the identity: which examples, how often, and the place of local data."""
    found: dict[str, Any] = {"subsets": spec.subsets, "limit": spec.limit, "repeats": spec.repeats}
    if spec.subsets_per_task is not None:
        found["subsets_per_task"] = spec.subsets_per_task
    if spec.data is not None and spec.data not in ("hub", "sample"):
        found["data"] = str(Path(spec.data).resolve())
    return found
