"""A run's folder → leaderboard rows: one per subset and method, and one over all subsets of a task.

Rows depend on the folder alone, so that `specbench run` and `specbench leaderboard validate --records` compute the same
ones. run.json holds the conditions, specs.json the specs, records.jsonl the answers, and measurements.json what each
command measured.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from specbench.core import bounded
from specbench.core.environment import require
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import write_atomically, writing
from specbench.core.values import text_digest
from specbench.models.near_ties import Divergence
from specbench.records.records import RECORDS, Key, keys_of
from specbench.results.answers import BASELINE, Answer, RunAnswers, different_answers, with_same_history
from specbench.results.metrics import accepted_tokens_per_step, metrics_of, routes_taken
from specbench.results.row import (
    ALL,
    REPEAT,
    SHUFFLED,
    CommonIds,
    Coverage,
    Row,
    RowBatchWidth,
    RowContext,
    RowCoverage,
    RowDifferences,
    RowSampling,
    RowServing,
    RowShots,
    may_be,
    told_examples,
)
from specbench.results.scores import ScoringSpec, main_metric, signatures
from specbench.results.verdict import control_outcomes, declares_lossless, served_verdict, verdict_of_records
from specbench.results.warnings import warm_up_of, warnings_of
from specbench.specs.catalogue import versioned_name, without_folders
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import own_drafter
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import Estimate, FilePart
from specbench.tasks.examples import FewshotInfo
from specbench.tasks.judge import JUDGED

MEASUREMENTS_FILE = "measurements.json"
MEASUREMENTS_REMEDY = "repeat the command of the run: it writes the file again and keeps all measured answers"


class MeasuredSubset(FilePart):
    """The measured examples of a subset, and the sources of its data and few-shot examples. `coverage`: which part of
    the data they are; null in files of earlier versions."""

    task: str
    subset: str
    num_examples: NonNegativeInt
    coverage: Coverage | None = None
    source: Literal["hub", "local", "sample"]
    location: str
    revision: str | None
    worked: FewshotInfo

    @model_validator(mode="after")
    def _check_coverage(self) -> Self:
        if self.coverage is not None and not may_be(self.num_examples, self.coverage):
            raise ValueError(f"coverage: {self.coverage} does not go with num_examples = {self.num_examples}")
        return self

    @property
    def told_examples(self) -> str:
        """How many examples were measured and which, in words."""
        return told_examples(self.num_examples, self.coverage, self.source)


class Ties(FilePart):
    """The number of greedy answers of a method that differ from AR's, how many of these differences are near-ties, and
    the kinds of all others (`specbench.models.near_ties`). Where no answer differs there are none in short runs and in
    files of earlier versions. `tolerance`: the largest change of a gap between logits that the width of a pass
    explains. `share_equal`: the rows that do not depend on the width. `num_decoded_again`: the answers that were
    decoded again. In files of earlier versions these two and the kinds are null."""

    task: str
    subset: str
    method: str
    num_different: NonNegativeInt
    num_near_ties: NonNegativeInt
    tolerance: FiniteFloat
    share_equal: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    num_decoded_again: NonNegativeInt | None = None
    divergence: Divergence | None = None

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        num_others = self.num_different - self.num_near_ties
        if self.divergence is not None and self.divergence.total != num_others:
            raise ValueError(f"divergence: has the kinds of {self.divergence.total} differences, not of {num_others}")
        return self


class ModelContext(FilePart):
    """The context of a model in tokens."""

    model: str
    tokens: PositiveInt


class Measurement(FilePart):
    """The measurement of one command. `request`: its settings. `identifies_languages`: whether lingua was installed,
    which `language_share` needs. `chat`: whether prompts used the chat template.

    `other_vocabulary`: methods whose drafter decodes alone in tokens of another vocabulary. `trained_on`: for each
    method the digests of the measured prompts on which its drafter was trained.

    `memories`: for each method with a memory of other prompts, what it holds (`specbench.decoding.drafters.memory_of`).

    `context`: the shortest context of the models that limit all methods; null: none does. `pauses`, `trained_lengths`,
    `common_ids`: by method or METHOD/LANGUAGE, the context at which a drafter pauses, the longest one of a head by its
    config.json, and the ids that it shares with a target whose vocabulary differs in a few.
    """

    command: str
    request: dict[str, Any] = Field(default_factory=dict)
    identifies_languages: bool = True
    repeats: PositiveInt
    chat: bool
    subsets: tuple[MeasuredSubset, ...]
    other_vocabulary: tuple[str, ...] = ()
    trained_on: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    ties: tuple[Ties, ...] = ()
    memories: dict[str, str] = Field(default_factory=dict)
    context: ModelContext | None = None
    pauses: dict[str, PositiveInt] = Field(default_factory=dict)
    trained_lengths: dict[str, PositiveInt] = Field(default_factory=dict)
    common_ids: dict[str, CommonIds] = Field(default_factory=dict)

    def of_task(self, task: str) -> list[MeasuredSubset]:
        return [part for part in self.subsets if part.task == task]


class _File(FilePart):
    measurements: tuple[Measurement, ...]


def read_measurements(folder: Path) -> tuple[Measurement, ...]:
    """Returns the measurements of all commands, oldest first. Raises ConfigError for an absent or broken file."""
    path = folder / MEASUREMENTS_FILE
    content = bounded.read_json(path, MEASUREMENTS_REMEDY)
    return build(_File, content, f"{path}: ", remedy=MEASUREMENTS_REMEDY).measurements


def add_measurement(folder: Path, measurement: Measurement) -> None:
    """Appends a measurement to the file, unless the file has it. A broken file is replaced. Raises ConfigError if the
    file cannot be written."""
    path = folder / MEASUREMENTS_FILE
    try:
        known: Sequence[Measurement] = read_measurements(folder)
    except ConfigError:
        known = ()
    if measurement in known:
        return
    content = _File(measurements=(*known, measurement)).model_dump(mode="json")
    with writing(path, MEASUREMENTS_REMEDY):
        write_atomically(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


SPEEDUPS = ("speedup", "speedup_e2e", "speedup_expected")


@dataclass(frozen=True)
class MeasuredRun:
    """The data from which the rows of one command are computed, all from the run's folder. `identity`: the content of
    run.json. `judge`: the signature of the judge whose ratings the answers have."""

    identity: Mapping[str, Any]
    tasks: Sequence[TaskSpec]
    methods: Sequence[MethodSpec]
    measurement: Measurement
    answers: RunAnswers
    judge: str | None = None

    def rows(self) -> list[Row]:
        """Returns every row: methods in the given order, subsets in the task's order, and the row over all last."""
        return [
            self.row(task, subset, method)
            for task in self.tasks for method in self.methods for subset in self.subsets_of(task)
        ]  # fmt: skip

    def subsets_of(self, task: TaskSpec) -> list[str]:
        """Returns the subsets of a task that have rows. Subsets with different sampling have no row over all."""
        names = [part.subset for part in self.measurement.of_task(task.name)]
        is_whole = len(names) > 1 and len({sampling_of(task, name) for name in names}) == 1
        return [*names, *([ALL] if is_whole else [])]

    def row(self, task: TaskSpec, subset: str, method: MethodSpec) -> Row:
        """Returns the row of a method on a subset or on "all". Raises ConfigError if the folder has no such row, or its
        files contradict each other."""
        known = self.subsets_of(task)
        if subset not in known:
            raise ConfigError(f"the run has no row of {task.name} {subset}: {nearest(subset, known)}")
        try:
            return self._row(task, subset, method)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"run.json: is incomplete ({type(error).__name__}: {error}): restore it from a copy, or measure again"
            ) from error

    def _row(self, task: TaskSpec, subset: str, method: MethodSpec) -> Row:
        parts = [part for part in self.measurement.of_task(task.name) if subset in (ALL, part.subset)]
        keys = self._keys(parts)
        own, baseline = (self.answers.of(keys, name) for name in (method.name, BASELINE))
        sampling = sampling_of(task, parts[0].subset)
        scoring = {
            part.subset: ScoringSpec.of(task.subset(part.subset), self.measurement.identifies_languages)
            for part in parts
        }
        if any(each.code for each in scoring.values()):
            require("lingua", "the language of answers")
        memory = self.measurement.memories.get(method.name)
        if "servers" in self.identity and memory == SHUFFLED and repeated_prompts(own):
            memory = REPEAT  # a server leaves out nothing
        metrics = metrics_of(
            own, baseline, method, self.identity["seed"], scoring, self.answers.looping, in_orders=memory == SHUFFLED
        )
        if method.name in self.measurement.other_vocabulary:
            metrics |= dict.fromkeys(SPEEDUPS, Estimate())  # tokens of different vocabularies do not compare
        row = Row(
            **self._conditions(method), **_data(parts), **self._method(method, own, task, parts),
            task=versioned_name(task), subset=subset, language=None if subset == ALL else task.subset(subset).language,
            subsets={part.subset: part.num_examples for part in parts} if subset == ALL else {},
            coverage=coverage_of(parts, len(task.subset_names) if subset == ALL else None),
            system=self._system(task, parts), sampling=sampling, created=_measured_at(own),
            served=serving_of(own, baseline, method.name, self.identity),
            verdict=self._verdict(method, parts, own, baseline, greedy=sampling.temperature == 0),
            differences=self._differences(method, parts, own, baseline, greedy=sampling.temperature == 0),
            divergence=self._divergence(method, parts), batch_width=self._batch_width(method, parts),
            quality=main_metric(scoring, metrics),
            signatures=signatures(scoring, own)
            | ({JUDGED: self.judge} if self.judge and JUDGED in metrics else {}),
            accepted_tokens_per_step=accepted_tokens_per_step(own, method.most_draft_tokens),
            metrics=metrics, warm_up=warm_up_of(own),
            context=context_of(self.measurement, own, baseline, method), memory=memory,
            common_ids={name: found for name, found in self.measurement.common_ids.items() if name in names_of(method)},
        )  # fmt: skip
        trained = set(self.measurement.trained_on.get(method.name, ()))
        learned = {(a.subset, a.example) for a in own if not a.turn and a.prompt in trained}
        return row.model_copy(update={"warnings": warnings_of(row, own, baseline, len(learned), self.identity)})

    def _system(self, task: TaskSpec, parts: Sequence[MeasuredSubset]) -> str | None:
        """Returns the system prompt that all parts share; None if there is none, or if they have several."""
        if (given := self.identity.get("system_instruction")) is not None:
            return given or None
        found = {task.subset(part.subset).system_prompt for part in parts}
        return found.pop() if len(found) == 1 else None

    def _conditions(self, method: MethodSpec) -> dict[str, Any]:
        """Returns the fields of a row about models, machine and command."""
        conditions, target = self.identity["environment"], self.identity["target"]
        drafter = self.identity["drafters"].get(method.name, {"name": None, "revision": None})
        return {
            "target": target["name"], "target_revision": target["revision"],
            "drafter": drafter["name"], "drafter_revision": drafter["revision"],
            "drafter_passes": drafter.get("passes"), "drafter_weights": drafter.get("weights"),
            "products": products_of_row(self.identity.get("products", {}), target["name"], drafter["name"]),
            "engine": self.identity.get("engines", {}).get(method.name, conditions["engine"]),
            **{name: conditions[name] for name in ("dtype", "device", "attention", "versions", "commit")},
            **{name: getattr(self.measurement, name) for name in ("command", "request", "repeats")},
            "chat": self.measurement.chat and self.identity.get("chat_template_args", True),
            "template_date": self.identity.get("template_date"), "end_tokens": self.identity.get("end_tokens"),
            "seed": self.identity["seed"], "pass_width": self.identity.get("pass_width"),
        }  # fmt: skip

    def _method(
        self, method: MethodSpec, own: Sequence[Answer], task: TaskSpec, parts: Sequence[MeasuredSubset]
    ) -> dict[str, Any]:
        """Returns the fields of a row about the method: its parts, or its external code with the code's digest. The
        option `code` has the revisions of plug-ins, of the method and of the task."""
        taken = routes_taken(own, method)
        routes = [method.route(name) for name in taken] or [method]
        if method.decoder is not None:
            options = {"decoder": {**method.decoder.model_dump(), "revision": self.identity["code"][method.name]}}
        else:
            options = method_options(method, self.identity["target"]["name"])
        used = [*method.components, *(each for part in parts for each in task.subset(part.subset).components)]
        names = dict.fromkeys(f"{registry.kind} {name}" for registry, name in used)
        revisions = self.identity.get("components", {})
        code = {name: revisions[name] for name in names if name in revisions}
        return {
            "method": versioned_name(method), "lossless": method.lossless,
            "num_draft_tokens": max(route.num_draft_tokens for route in routes),
            "options": options | ({"taken": taken} if taken else {}) | ({"code": code} if code else {}),
        }  # fmt: skip

    def _keys(self, parts: Sequence[MeasuredSubset]) -> list[Key]:
        examples = {part.subset: part.num_examples for part in parts}
        repeats = self.measurement.repeats
        keys = keys_of(self.answers.keys(parts[0].task), parts[0].task, examples, repeats)
        num_found = len({(subset, example, repeat) for _, subset, example, repeat, _ in keys})
        if num_found != sum(examples.values()) * repeats:
            raise ConfigError(
                f"the folder has records of {num_found} answers to {parts[0].task}/{', '.join(examples)}, but its "
                f"command measured {sum(examples.values()) * repeats}: repeat the command: {self.measurement.command}"
            )
        return keys

    def _verdict(
        self, method: MethodSpec, parts: Sequence[MeasuredSubset], own: Sequence[Answer], baseline: Sequence[Answer],
        *, greedy: bool,
    ) -> str:  # fmt: skip
        task = parts[0].task
        ties = self._ties(method, parts)
        divergence = self._divergence(method, parts)
        num_noted = sum(each.num_different for each in ties)
        num_different = len(different_answers(own, baseline)) if greedy else 0
        num_near_ties = sum(each.num_near_ties for each in ties)
        is_explained = num_different == num_near_ties + (divergence.width if divergence is not None else 0)
        if "servers" in self.identity and not is_explained:
            knows_ties = num_noted == num_different
            return served_verdict(control_outcomes(baseline), len(own), num_different, knows_ties=knows_ties)
        if declares_lossless(method) is not False and num_noted != num_different:
            raise ConfigError(
                f"{MEASUREMENTS_FILE}: ties: {num_noted} answers of {method.name} in {task} differ from AR's, but in "
                f"the records {num_different} do: {MEASUREMENTS_REMEDY}"
            )
        return verdict_of_records(
            method, greedy=greedy, num_records=len(own), num_different=num_different,
            num_near_ties=num_near_ties, divergence=divergence,
        )  # fmt: skip

    def _ties(self, method: MethodSpec, parts: Sequence[MeasuredSubset]) -> list[Ties]:
        place = parts[0].task, method.name
        subsets = {part.subset for part in parts}
        return [each for each in self.measurement.ties if (each.task, each.method) == place and each.subset in subsets]

    def _divergence(self, method: MethodSpec, parts: Sequence[MeasuredSubset]) -> Divergence | None:
        """Returns the kinds of the differences that are not near-ties; None if there are none, or if they are
        unknown."""
        ties = [each for each in self._ties(method, parts) if each.num_different != each.num_near_ties]
        known = [each.divergence for each in ties if each.divergence is not None]
        return reduce(Divergence.__add__, known) if known and len(known) == len(ties) else None

    def _differences(
        self, method: MethodSpec, parts: Sequence[MeasuredSubset], own: Sequence[Answer], baseline: Sequence[Answer],
        *, greedy: bool,
    ) -> RowDifferences | None:  # fmt: skip
        """Returns how many greedy answers are not AR's; None for sampled ones, for AR, and for tokens of another
        vocabulary, which are never AR's."""
        if not greedy or method.name == BASELINE or method.name in self.measurement.other_vocabulary:
            return None
        num_compared = len(with_same_history(own, baseline))
        if not num_compared:
            return None
        num_different = len(different_answers(own, baseline))
        ties = self._ties(method, parts)
        if sum(each.num_different for each in ties) != num_different:  # nobody looked into them
            return RowDifferences(answers=num_different, compared=num_compared)
        again = [each.num_decoded_again for each in ties if each.num_decoded_again is not None]
        return RowDifferences(
            answers=num_different, compared=num_compared, near_ties=sum(each.num_near_ties for each in ties),
            decoded_again=sum(again) if len(again) == len(ties) else None,
        )  # fmt: skip

    def _batch_width(self, method: MethodSpec, parts: Sequence[MeasuredSubset]) -> RowBatchWidth | None:
        """Returns how the target depends on the width of a pass; None if it was not measured."""
        ties = self._ties(method, parts)
        if not ties:
            return None
        shares = [each.share_equal for each in ties if each.share_equal is not None]
        return RowBatchWidth(
            tolerance=max(each.tolerance for each in ties),
            share_equal=min(shares) if len(shares) == len(ties) else None,
        )


def sampling_of(task: TaskSpec, subset: str) -> RowSampling:
    generation = task.subset(subset).generation
    return RowSampling(temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p)


def _data(parts: Sequence[MeasuredSubset]) -> dict[str, Any]:
    return {
        "data_source": parts[0].source,
        "data_location": ", ".join(dict.fromkeys(part.location for part in parts)),
        "data_revision": revision_of({part.subset: part.revision for part in parts}),
        "n": sum(part.num_examples for part in parts),
        "shots": shots_of(parts),
    }


def coverage_of(parts: Sequence[MeasuredSubset], num_subsets: int | None) -> RowCoverage | None:
    """Returns which part of the data subsets are together; None if one of them does not tell it. `num_subsets`: those
    of the task, in a row over all."""
    known = [part.coverage for part in parts if part.coverage is not None]
    if not known or len(known) < len(parts):
        return None
    counts = [each.available for each in known if each.available is not None]
    chosen = {each.chosen for each in known}
    return RowCoverage(
        available=sum(counts) if len(counts) == len(known) else None,
        chosen="part" if "part" in chosen else "first" if "first" in chosen else "all", subsets=num_subsets,
    )  # fmt: skip


def method_options(method: MethodSpec, target: str) -> dict[str, Any]:
    """Returns the options of the parts of a method; not for external code."""
    if method.routes is not None:
        whole = method.model_dump()
        routes = {
            name: {"drafter": drafter_options(part, target), "num_draft_tokens": part.num_draft_tokens}
            for name, part in zip(method.routes, method.parts, strict=True)
        }
        common = {key: whole[key] for key in ("verification", "bridge", "draft_length") if key in whole}
        return {"language": method.language, "routes": routes} | common
    allocation = {"decodes_with": method.decodes_with, "drafter_share": method.drafter_share}
    return {
        **(allocation if method.decodes_with == "random" else {}),
        "drafter": drafter_options(method, target),
        "verification": method.verification.model_dump(),
        "bridge": method.bridge.model_dump(),
        **({"draft_length": method.draft_length.model_dump()} if method.draft_length is not None else {}),
    }


# Rows of earlier versions lack them, so that null is absent.
ADDED_OPTIONS = ("beyond_context", "cell", "corpus", "entry", "max_answers", "profile", "split", "tree")


def drafter_options(part: MethodSpec, target: str) -> dict[str, Any]:
    """Returns the drafter with its options. If --drafter replaces the checkpoint of the method, `checkpoint` is null
    and `replaces` names the replaced one."""
    found = {
        name: value for name, value in without_folders(part.drafter.model_dump()).items()
        if name not in ADDED_OPTIONS or value is not None
    }  # fmt: skip
    if part.checkpoint is None or own_drafter(part, target) is not None:
        return found
    return {**found, "checkpoint": None, "replaces": part.checkpoint}


def repeated_prompts(own: Sequence[Answer]) -> int:
    """Returns the number of answers to a prompt that an earlier one was an answer to."""
    return len(own) - len({answer.prompt_ids_digest for answer in own})


def products_of_row(products: Mapping[str, str], target: str, drafter: str | None) -> str | None:
    """Returns the kind of products that the models of a row have in common; both kinds if they differ; None if neither
    is known. `products`: by model."""
    kinds = {
        role: kind for role, name in (("target", target), ("drafter", drafter)) if (kind := products.get(name or ""))
    }
    if len(set(kinds.values())) <= 1:
        return next(iter(kinds.values()), None)
    return ", ".join(f"{kind} {role}" for role, kind in kinds.items())


def revision_of(revisions: Mapping[str, str | None]) -> str | None:
    """Returns the revision that all subsets share, otherwise a digest over all. `revisions`: by subset."""
    if len(set(revisions.values())) == 1:
        return next(iter(revisions.values()))
    text = "\n".join(f"{subset} {found}" for subset, found in revisions.items())
    return f"all-{text_digest(text)}"


def shots_of(parts: Sequence[MeasuredSubset]) -> RowShots:
    """Returns the few-shot examples of subsets together: the largest number before a prompt, and one digest."""
    used = [part.worked for part in parts if part.worked.num]
    if not used:
        return RowShots(num=0)
    return RowShots(
        num=max(worked.num for worked in used),
        source=used[0].source,
        location=", ".join(dict.fromkeys(f"{worked.location}" for worked in used)),
        digest=revision_of({part.subset: part.worked.digest for part in parts}),
        num_checked=sum(part.num_examples for part in parts) if all(worked.checked for worked in used) else None,
    )


def names_of(method: MethodSpec) -> set[str]:
    """Returns the names of a method's drafters: its own, or METHOD/LANGUAGE of each route."""
    return {part.name for part in method.parts}


def context_of(
    measurement: Measurement, own: Sequence[Answer], baseline: Sequence[Answer], method: MethodSpec
) -> RowContext | None:
    """Returns the context at which a row's answers end, the one at which the drafter pauses, and that of a head."""
    limit = measurement.context
    names = names_of(method)
    pauses = {name: length for name, length in measurement.pauses.items() if name in names}
    trained = min((length for name, length in measurement.trained_lengths.items() if name in names), default=None)
    if limit is None and not pauses and trained is None:
        return None
    num_new = sum(answer.num_new_tokens for answer in own)
    num_paused = sum(
        num_beyond(answer, pauses.get(method.name if answer.route is None else f"{method.name}/{answer.route}"))
        for answer in own
    )
    return RowContext(
        model=limit.model if limit else None, tokens=limit.tokens if limit else None,
        share_cut_ar=sum(answer.finish == "context" for answer in baseline) / max(1, len(baseline)),
        pauses_at=min(pauses.values(), default=None),
        share_paused=num_paused / max(1, num_new) if pauses else None,
        trained=trained,
        share_beyond=None if trained is None else sum(num_beyond(each, trained) for each in own) / max(1, num_new),
    )  # fmt: skip


def num_beyond(answer: Answer, length: int | None) -> int:
    """Returns how many tokens of an answer came after `length` tokens of prompt and answer; 0 without a length."""
    if length is None:
        return 0
    return min(answer.num_new_tokens, max(0, (answer.prompt_tokens or 0) + answer.num_new_tokens - length))


def _measured_at(own: Sequence[Answer]) -> str:
    """Returns the time at which the last of the answers was measured."""
    times = [answer.measured_at for answer in own]
    try:
        return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")  # type: ignore[type-var,arg-type]
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"{RECORDS}: every record must have its time in measured_at ({error})") from error


def serving_of(
    own: Sequence[Answer], baseline: Sequence[Answer], method: str, identity: Mapping[str, Any]
) -> RowServing | None:
    """Returns the serving conditions of a row; None for a method that ran in this process."""
    if "servers" not in identity:
        return None
    sources = dict.fromkeys(answer.reported.acceptance_source or "" for answer in own)
    is_empty = all(answer.reported.cached_tokens == 0 for answer in (*own, *baseline))
    return RowServing(
        acceptance_source=", ".join(sources), caches="verified empty" if is_empty else "not told",
        memory=identity["memory"], settings=identity["code"][method],
        turns=len({answer.part for answer in own}) if identity["by_turns"] else None,
    )  # fmt: skip
