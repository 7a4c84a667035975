"""The runs that `specbench fairness` compares: their drafting methods, common records, and reference texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from specbench.core.errors import ConfigError, nearest
from specbench.models.causal_lm import CausalLM, split_precision
from specbench.results.leaderboard import ROWS
from specbench.results.recorded_prompts import RecordedPrompt
from specbench.results.row import Row
from specbench.results.runs import RUN_HINT, RecordedRun, split_detail
from specbench.running.records import Key, Record
from specbench.training.passes import Sample

WHOLE = ""  # the route of a method without routes
Group = tuple[str, str]  # task and subset
RunMethods = Sequence[tuple[RecordedRun, Sequence[str]]]  # runs, each once, with their methods


@dataclass(frozen=True)
class RecordedDrafter:
    """The drafter of a method, or of one of its routes. `kind`: its type; `name`, `revision`: of its model."""

    kind: str
    options: Mapping[str, Any]
    name: str | None
    revision: str | None


def drafters_of(run: RecordedRun, method: str) -> dict[str, RecordedDrafter]:
    """Returns the drafter of each route of a method."""
    row = run.rows_of(method)[0]
    if "routes" not in row.options:
        options = row.options["drafter"]
        return {WHOLE: RecordedDrafter(options["type"], options, row.drafter, row.drafter_revision)}
    found = {}
    for route, own in row.options["routes"].items():
        options = own.get("drafter") or row.options["routes"]["default"]["drafter"]
        known = run.identity["routes"][method][route]
        found[route] = RecordedDrafter(options["type"], options, known["name"], known["revision"])
    return found


def read_run(text: str) -> tuple[RecordedRun, list[str]]:
    """Returns the run and the drafting methods that RUN or RUN:METHOD names.

    Raises ConfigError for a path without a finished run, for a run that another process is measuring, for damaged
    records, and if no such method drafts.
    """
    path, method = split_detail(text)
    if not path.is_dir():
        raise ConfigError(f"run '{text}': {'is a file' if path.exists() else 'no such folder'}: {RUN_HINT}")
    for name in (ROWS, "records.jsonl"):
        if not (path / name).is_file():
            raise ConfigError(f"run '{path}': has no {name}: {RUN_HINT}")
    run = RecordedRun(path)
    if split_precision(run.rows[0].dtype)[1] != "none":
        raise ConfigError(
            f"run '{path}': its target was {run.rows[0].dtype}, and texts are scored without quantization: give a run "
            "without --quantize"
        )
    routes = run.identity.get("routes", {})
    if not isinstance(routes, dict):
        raise ConfigError(f"{run.path / 'run.json'}: routes = {routes!r:.60}: is not a mapping: {RUN_HINT}")
    assert run.records  # reads them now, so that damaged records are reported before any model is loaded
    # AR drafts nothing, and external code has no draft distribution.
    names = (row.method_name for row in run.rows if row.num_draft_tokens > 0 and "decoder" not in row.options)
    drafting = list(dict.fromkeys(names))
    if not drafting:
        raise ConfigError(f"run '{path}': none of its methods drafts: run one with a drafter, such as --method sd")
    if method is not None and method not in drafting:
        raise ConfigError(f"run '{text}': no method '{method}' that drafts: {nearest(method, drafting)}")
    return run, drafting if method is None else [method]


@dataclass(frozen=True)
class CommonRecords:
    """Runs of one target, with the groups and records that all of them have."""

    runs: tuple[RecordedRun, ...]
    groups: dict[Group, Row]  # AR's row in the first run
    keys: dict[Group, list[Key]]  # the records that have the same prompt in all runs
    num_left_out: int  # records of the first run that another run lacks

    @property
    def labels(self) -> dict[Group, str]:
        """Returns the label of each group: its subset; with its task if there are several tasks."""
        several = len({task for task, _ in self.groups}) > 1
        return {(task, subset): f"{task}/{subset}" if several else subset for task, subset in self.groups}


def common_records(runs: Sequence[RecordedRun], tasks: Sequence[str], subsets: Sequence[str]) -> CommonRecords:
    """Returns the records that runs have in common, of the named tasks and subsets (of all if none are named). Raises
    ConfigError if the runs have several targets, or no prompt in common."""
    targets: dict[tuple[str, str | None], Path] = {}
    for run in runs:
        targets.setdefault((run.rows[0].target, run.rows[0].target_revision), run.path)
    if len(targets) > 1:
        shown = "; ".join(f"{path} has {name} ({revision})" for (name, revision), path in targets.items())
        raise ConfigError(f"runs of several targets cannot be compared ({shown}): give runs of one target")
    shared = set.intersection(*({key[:2] for key in run.records} for run in runs))
    groups = {group: row for row in runs[0].rows_of("ar") if (group := (row.task_name, row.subset)) in shared}
    for option, place, names in (("--task", 0, tasks), ("--subset", 1, subsets)):
        known = {group[place] for group in groups}
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {name}: the runs have none: {nearest(name, known)}")
        groups = {group: row for group, row in groups.items() if not names or group[place] in names}
    keys: dict[Group, list[Key]] = {group: [] for group in groups}
    num_left_out = 0
    for key, record in runs[0].records.items():
        if key[:2] in groups:
            same = all(run.records.get(key, {}).get("prompt") == record["prompt"] for run in runs)
            num_left_out += not same
            keys[key[:2]] += [key] * same
    keys = {group: found for group, found in keys.items() if found}
    if not keys:
        paths = ", ".join(str(run.path) for run in runs)
        raise ConfigError(f"runs {paths}: have no prompt in common: give runs of the same task and subsets")
    return CommonRecords(tuple(runs), {group: groups[group] for group in keys}, keys, num_left_out)


Reference = Literal["continuation", "data"]
REFERENCES: tuple[str, ...] = get_args(Reference)


def texts_of(
    common: CommonRecords,
    prompts: Mapping[Key, RecordedPrompt],
    target: CausalLM,
    reference: Reference,
    context_limit: int | None,
) -> dict[Key, Sample]:
    """Returns the text to score for every common record: after its prompt, AR's tokens in the first run, or the row's
    reference. A text has at most `context_limit` tokens with its prompt; texts without a position are left out.

    Raises ConfigError if a group has no position, or no reference text.
    """
    texts: dict[Key, Sample] = {}
    for (task, subset), keys in common.keys.items():
        made = {}
        for key in keys:
            record = common.runs[0].records[key]
            new_ids = (
                tuple(record["methods"]["ar"]["token_ids"])
                if reference == "continuation" else reference_ids(record, prompts[key], target)
            )  # fmt: skip
            prompt_ids = prompts[key].prompt_ids
            made[key] = truncate(Sample(subset, (*prompt_ids, *new_ids), len(prompt_ids)), context_limit)
        found = {key: text for key, text in made.items() if text.num_learnt}
        if not found:
            raise ConfigError(
                f"{task}/{subset}: no text has a position within the shortest context ({context_limit} tokens): leave "
                "the subset out with --subset, or compare models with a longer context"
            )
        texts |= found
    return texts


def truncate(text: Sample, context_limit: int | None) -> Sample:
    """Returns the text without tokens beyond the context."""
    if context_limit is None:
        return text
    return replace(text, ids=text.ids[: max(text.num_given, context_limit + 1)])


def reference_ids(record: Record, prompt: RecordedPrompt, target: CausalLM) -> tuple[int, ...]:
    """Returns the target's tokens of the reference answer (the first of several), after a space if the prompt does not
    end in one. Raises ConfigError if there is no text."""
    turn = record.get("turn", 0)
    found = prompt.example.references[turn]
    answer = found[0] if isinstance(found, list | tuple) and found else found
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ConfigError(
            f"--reference data: {record['task']}/{record['subset']} example {record['id']} has no reference text: use "
            "--reference continuation"
        )
    before = prompt.example.turns[turn]
    space = "" if before[-1:].isspace() else " "
    ids: list[int] = target.tokenizer(f"{space}{answer}", add_special_tokens=False)["input_ids"]
    return tuple(ids)
