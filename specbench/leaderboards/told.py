"""The fields of a row that its run tells, beside the metrics: by its records, its specs and its run.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.errors import ConfigError
from specbench.fairness.runs import task_name
from specbench.leaderboards.runs import RecordedRun
from specbench.results.bootstrap import INTERVALS, Metric
from specbench.results.metrics import routes_taken
from specbench.results.quality import JUDGED, Asked, main_metric, signatures
from specbench.results.row import ALL, Row, Sampling, writable
from specbench.results.rows import method_options, revision_of
from specbench.running.records import Record
from specbench.running.run_folder import REVISIONS
from specbench.specs import MethodSpec, TaskSpec

CHAT = {"always": True, "never": False}  # what run.json says → what rows say


def from_records(
    row: Row, records: Sequence[Record], method: MethodSpec, asked: Mapping[str, Asked], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """The fields that records and specs give."""
    taken = routes_taken(records, method)
    parts = [method.route(name) for name in taken] or [method]
    options: dict[str, Any] = {"taken": taken} if taken else {}
    if method.decoder is None:  # external code is known by a digest of its files
        options = method_options(method, row.target) | options
    judge = {JUDGED: row.signatures[JUDGED]} if JUDGED in row.signatures else {}
    return {
        "repeats": max(record["repeat"] for record in records) + 1,
        "num_draft_tokens": max(part.num_draft_tokens for part in parts),
        "lossless": method.lossless,
        "quality": main_metric(asked, metrics),
        "signatures": signatures(asked, records) | judge,
        "intervals": INTERVALS,
        **({"options": writable(options)} if options else {}),
    }


def from_run(row: Row, run: RecordedRun) -> dict[str, Any]:
    """The fields that run.json gives. Raises ConfigError where it lacks them."""
    try:
        return _of_identity(row, run.identity)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{run.path / 'run.json'}: is not whole ({type(error).__name__}: {error})"
        raise ConfigError(f"{problem}: restore it from a copy, or measure again") from error


def _of_identity(row: Row, identity: Mapping[str, Any]) -> dict[str, Any]:
    name, task = (text.partition("@")[0] for text in (row.method, row.task))
    target, drafter = identity["target"], identity["drafters"].get(name, {"name": None, "revision": None})
    conditions = identity["environment"]
    return {
        "seed": identity["seed"],
        "target": target["name"],
        "target_revision": target["revision"],
        "drafter": drafter["name"],
        "drafter_revision": drafter["revision"],
        "data_source": identity["data"][task],
        **({"chat": CHAT[identity["chat"]]} if identity["chat"] in CHAT and isinstance(row.chat, bool) else {}),
        **{field: conditions[field] for field in ("device", "dtype", "attention", "versions", "commit")},
        # of each method where it is another than the target's; earlier runs had no other than eager
        "engine": identity.get("engines", {}).get(name, conditions.get("engine", "eager")),
    }


def from_task(row: Row, task: TaskSpec, subsets: Sequence[str]) -> dict[str, Any]:
    """The fields that the task's own spec gives."""
    spec = task.subset(subsets[0])
    generation = spec.generation
    return {
        "sampling": Sampling(temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p),
        "language": None if row.subset == ALL else spec.language,
    }


def data_revision(row: Row, run: RecordedRun, subsets: Sequence[str]) -> dict[str, Any]:
    """The commit of data of the hub, where run.json tells it of every subset."""
    known, task = run.identity.get(REVISIONS), task_name(row)
    names = list(dict.fromkeys(subsets))
    if not isinstance(known, dict) or not all(f"{task}/{name}" in known for name in names):
        return {}
    return {"data_revision": revision_of({name: known[f"{task}/{name}"] for name in names})}
