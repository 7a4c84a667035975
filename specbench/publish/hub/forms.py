"""The documented forms of what the hub reads, checked before a file is written: `.eval_results/*.yaml` of a model
repository, and `eval.yaml` of a data set that is a benchmark.

Sources, read in November 2026: https://huggingface.co/docs/hub/eval-results (which says that it is work in progress),
and for the frameworks packages/tasks/src/eval.ts of https://github.com/huggingface/huggingface.js.
"""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from specbench.core.errors import ConfigError, nearest
from specbench.specs import yaml_files
from specbench.specs.components import Spec, Text, build

FRAMEWORK_LIST = "https://github.com/huggingface/huggingface.js/blob/main/packages/tasks/src/eval.ts"
FRAMEWORKS = (
    "apex-evals", "archipelago", "claw-eval", "exgentic", "harbor", "inspect-ai", "math-arena", "mdpbench", "mteb",
    "nemo-evaluator", "olmocr-bench", "open-asr-leaderboard", "parsebench", "screenspot-pro", "swe-bench",
    "swe-bench-pro", "video-mme-v2", "wildclawbench", "yc-bench",
)  # fmt: skip
IS_SIMILAR = 0.8
NEEDS = {"inspect-ai": ("field_spec", "solvers", "scorers")}  # further keys of each task of a framework's benchmark


def is_repository(name: str) -> bool:
    """Returns whether a name has the form of a repository on the hub, which says nothing about whether it exists. The
    oldest models, such as gpt2, have a name without an owner, by which the hub still finds them."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _check_repository(name: str) -> str:
    if "/" not in name or not is_repository(name):  # a benchmark is newer than names without an owner
        raise ValueError("is not a name of a data set on the hub: write OWNER/NAME")
    return name


def _check_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+\.[^\s/]+\S*", text):
        raise ValueError("is not an address: write one that begins with https://")
    if "@" in text.split("/")[2]:
        raise ValueError("has a user or a password, which the hub would show to everybody: leave it out")
    return text


def _check_date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("is not a date of ISO 8601: write it such as 2026-01-31 or 2026-01-31T12:00:00Z") from error
    return text


def _as_text(value: object) -> object:
    """Returns a date that YAML has read as one, because it stands without quotes, as text."""
    return value.isoformat() if isinstance(value, date) else value


Repository = Annotated[str, AfterValidator(_check_repository)]
Address = Annotated[str, AfterValidator(_check_address)]
Date = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_date)]


class ResultDataset(Spec):
    """The leaderboard of a result: a task of a benchmark."""

    id: Repository
    task_id: Text
    revision: Text | None = None


class ResultSource(Spec):
    """What stands behind a result."""

    url: Address
    name: Text | None = None
    user: Text | None = None
    org: Text | None = None


class EvalResult(Spec):
    """One number of a model. `verifyToken` comes from the hub's own jobs, so that specbench writes none."""

    dataset: ResultDataset
    value: float
    verifyToken: Text | None = None
    date: Date | None = None
    source: ResultSource | None = None
    evaluation_framework: Text | None = None
    notes: Text | None = None


class EvalResults(Spec):
    """A file of `.eval_results/`, whose content is the list alone. The hub shows one number of a task."""

    results: Annotated[tuple[EvalResult, ...], Field(min_length=1)]

    def check(self) -> None:
        counts = Counter((each.dataset.id, each.dataset.task_id) for each in self.results)
        (name, task_id), number = counts.most_common(1)[0]
        if number > 1:
            raise ConfigError(
                f"results: task_id '{task_id}' of {name} occurs {number} times, but a model has one number of a task: "
                "keep one, or give them other task ids"
            )


class BenchmarkTask(Spec):
    """A leaderboard of a benchmark. The last three keys are those of the framework inspect-ai."""

    id: Text
    config: Text | None = None
    split: Text | None = None
    field_spec: dict[str, Any] | None = None
    solvers: list[Any] | None = None
    scorers: list[Any] | None = None


class Benchmark(Spec):
    """The file `eval.yaml`. The framework must be in the list of the hub, see `unlisted`."""

    name: Text
    description: Text
    evaluation_framework: Text
    tasks: Annotated[tuple[BenchmarkTask, ...], Field(min_length=1)]

    def check(self) -> None:
        name, number = Counter(task.id for task in self.tasks).most_common(1)[0]
        if number > 1:
            raise ConfigError(f"tasks: the id '{name}' occurs {number} times: give each task its own")
        for task in self.tasks:
            for key in NEEDS.get(self.evaluation_framework, ()):
                if getattr(task, key) is None:
                    raise ConfigError(
                        f"tasks: '{task.id}' lacks the key '{key}', which {self.evaluation_framework} needs: add it"
                    )

    @property
    def unlisted(self) -> str | None:
        """Returns why the hub refuses the file at push, as far as it is known here; None if the framework is listed."""
        if (name := self.evaluation_framework) in FRAMEWORKS:
            return None
        return (
            f"evaluation_framework '{name}' is not in the hub's list, as of November 2026, so that "
            f"the hub refuses the file until it is there: {nearest(name, FRAMEWORKS, FRAMEWORK_LIST, IS_SIMILAR)}"
        )


def results_text(results: Sequence[EvalResult]) -> str:
    """Returns the content of a file of `.eval_results/`. Raises ConfigError if two results are of one task."""
    checked = build(EvalResults, {"results": tuple(results)})
    return dumped([each.model_dump(exclude_none=True) for each in checked.results])


def benchmark_text(benchmark: Benchmark) -> str:
    """Returns the content of an `eval.yaml`."""
    return dumped(benchmark.model_dump(mode="json", exclude_none=True))


def dumped(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def read_form(path: Path) -> Benchmark | EvalResults:
    """Returns the content of an `eval.yaml` (a mapping) or of a file of `.eval_results/` (a list). Raises ConfigError
    for anything else, with all problems."""
    content = yaml_files.parse(yaml_files.read_text(path), str(path))
    if isinstance(content, list):
        return build(EvalResults, {"results": tuple(content)}, f"{path}: ")
    if isinstance(content, dict):
        return build(Benchmark, content, f"{path}: ")
    raise ConfigError(
        f"{path}: is neither a list of results (.eval_results/*.yaml) nor a mapping (eval.yaml): correct it"
    )
