"""Recorded runs → an acceptance profile.

The verdicts of a step are those of its first `verified` draft tokens: all of the first `accepted` ones, and one
rejection if `verified` is larger. A position behind a rejection, behind the end of a shorter draft or behind the end of
the text has no verdict, and counts nowhere. So the product of a = accepted ÷ verified over the positions is the
product-limit estimator (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958) of the chance that a draft is accepted so far,
with rejections as its events, and with the ends of drafts and texts as its censoring.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.built_in import __version__
from specbench.core.errors import ConfigError
from specbench.core.values import file_digest
from specbench.records.profile import (
    TOTAL,
    AcceptanceLength,
    Dimension,
    LeftOut,
    Position,
    Profile,
    ProfileCell,
    ProfileConditions,
    ProfileEntry,
    ProfileModel,
    ProfilePrompts,
    ProfileSource,
)
from specbench.records.records import RECORDS, Generation, Key, Record
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, RecordedRuns, read_input, run_folder_of, select_rows
from specbench.statistics.bootstrap import MIN_PROMPTS, SHARE, Array, Estimate, Resampler, equal_values_interval

SEED = 0  # as of rows
EQUAL = 1e-9  # width of an interval over prompts that are all equal
SHORTEST_CONTEXT = 8  # the first bucket has the contexts of fewer than 2^8 tokens
# Fields of a row that all rows of an entry share; what else identifies it, belongs to its prompts.
SHARED = (
    "method", "num_draft_tokens", "target", "target_revision", "drafter", "drafter_revision",
    "drafter_passes", "drafter_weights", "products", "memory", "sampling", "dtype", "device", "attention", "engine",
    "pass_width", "versions", "chat", "served",
)  # fmt: skip
# Columns of steps.
PROMPT, SUBSET, CONTEXT, REASONING, DRAFTED, VERIFIED, ACCEPTED, EMITTED = range(8)
Steps = NDArray[np.int32]  # [num_steps, 8]


def profile_of_runs(texts: Sequence[str], tasks: Sequence[str] = (), subsets: Sequence[str] = ()) -> Profile:
    """Returns the profile of rows with their records, each given as RUN, RUN:METHOD or FILE:NUMBER of a leaderboard; of
    these tasks and subsets, by default of all. Raises ConfigError for other paths, unknown names, rows without records,
    and if no method has recorded steps."""
    # 1. The rows in groups of equal methods, models and conditions.
    groups: dict[str, list[_RowOfRun]] = {}
    left_out: dict[LeftOut, None] = {}
    for each in _rows(texts, tasks, subsets):
        if (reason := each.why_left_out()) is not None:
            left_out[each.left_out(reason)] = None
        else:
            groups.setdefault(each.shared(), []).append(each)
    # 2. An entry for each group, with an id of its own.
    entries: list[ProfileEntry] = []
    for rows in groups.values():
        group = _Group(rows)
        if not group.steps[:, DRAFTED].any():
            left_out[rows[0].left_out("nothing was drafted")] = None
            continue
        entry = group.entry()
        number = sum(other.id.partition("#")[0] == entry.id for other in entries)
        entries.append(entry.model_copy(update={"id": f"{entry.id}#{number + 1}"}) if number else entry)
    if not entries:
        reasons = "; ".join(f"{each.method}: {each.reason}" for each in left_out) or "they have rows of AR only"
        raise ConfigError(f"profile {' '.join(texts)}: no method has verdicts on draft tokens ({reasons})")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Profile(specbench=__version__, created=now, entries=tuple(entries), left_out=tuple(left_out))


@dataclass(frozen=True)
class _RowOfRun:
    """A row of one method with its run."""

    run: RecordedRun
    row: Row

    def generations(self) -> Iterator[tuple[Record, Generation]]:
        """Yields the answers in which the target verified drafts."""
        name = self.row.method_name
        for record in self.run.records_of_row(self.row, (name,)):
            if not record.methods[name].is_drafted_alone:
                yield record, record.methods[name]

    def why_left_out(self) -> str | None:
        """Returns the reason why the row has no verdicts by position; None if it may have some."""
        if self.row.level:
            return f"measured under load ({self.row.level}), which records no single steps"
        if self.run.methods[self.row.method_name].decodes_with == "drafter":
            return "the drafter decodes alone"
        if any(generation.is_external and not generation.steps for _, generation in self.generations()):
            return "its server or external decoder reports no single steps"
        return None

    def left_out(self, reason: str) -> LeftOut:
        return LeftOut(run=self.run.path.name, method=self.row.method_name, reason=reason)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method that do not depend on the subset."""
        return {name: value for name, value in self.row.options.items() if name not in ("code", "taken")}

    def shared(self) -> str:
        """Returns what all rows of an entry have in common."""
        fields = self.row.model_dump(mode="json", include=set(SHARED))
        return json.dumps({**fields, "options": self.options}, sort_keys=True)

    def prompts(self) -> list[ProfilePrompts]:
        row, task = self.row, self.run.task_of(self.row)
        found = []
        for name, number in row.examples.items():
            subset = task.subset(name)
            generation = subset.generation.where(bool(row.chat))
            found.append(ProfilePrompts(
                task=row.task, subset=name, language=subset.language, examples=number, repeats=row.repeats,
                data_source=row.data_source, data_location=row.data_location, data_revision=row.data_revision,
                shots=row.shots.digest, system=row.system, template_date=row.template_date, seed=row.seed,
                max_new_tokens=generation.max_new_tokens, stop=generation.stop,
            ))  # fmt: skip
        return found

    def source(self) -> ProfileSource:
        row = self.row
        return ProfileSource(
            command=row.command, engine=row.engine, device=row.device, attention=row.attention,
            pass_width=row.pass_width, versions=row.versions, commit=row.commit, created=row.created,
            records=file_digest(self.run.path / RECORDS, 16),
        )  # fmt: skip


def _rows(texts: Sequence[str], tasks: Sequence[str], subsets: Sequence[str]) -> Iterator[_RowOfRun]:
    """Yields the rows of methods on single subsets; those over all subsets only where they stand alone."""
    runs = RecordedRuns()
    for text in dict.fromkeys(texts):
        given = select_rows(read_input(text), tasks, subsets)
        rows = [row for row in given.rows if not row.is_baseline]
        single = {(row.task, row.method_name, row.level) for row in rows if row.subset != ALL}
        for row in rows:
            if row.subset == ALL and (row.task, row.method_name, row.level) in single:
                continue
            place = run_folder_of(row, given.file)
            if place is None or not place.is_dir():
                raise ConfigError(f"'{text}': {row.place} has no records here: give the folder of its run")
            yield _RowOfRun(runs.at(place), row)


class _Group:
    """The rows of one entry, with their steps."""

    def __init__(self, rows: Sequence[_RowOfRun]) -> None:
        self.rows = rows
        self.prompts = list(dict.fromkeys(part for each in rows for part in each.prompts()))
        names = ((part.task.partition("@")[0], part.subset) for part in self.prompts)
        self.places = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.is_tree = self.has_reasoning = False
        self.steps = self._read()
        self._cells: dict[bytes, ProfileCell] = {}  # by the steps that they have

    def _read(self) -> Steps:
        """Reads the steps of all answers. A prompt is one unit in all runs and repeats."""
        units: dict[tuple[object, ...], int] = {}
        read: set[tuple[Path, Key]] = set()
        found: list[Steps] = [np.empty((0, 8), dtype=np.int32)]
        for each in self.rows:
            for record, generation in each.generations():
                if (each.run.path, record.key) in read:  # rows of several limits, or a run that was named twice
                    continue
                read.add((each.run.path, record.key))
                self.is_tree |= generation.is_tree
                self.has_reasoning |= generation.reasoning_tokens > 0
                unit = (each.row.task, record.subset, each.row.data_revision, record.example)
                own = steps_of_answer(units.setdefault(unit, len(units)), generation)
                own[:, SUBSET] = self.places[record.task, record.subset]
                before = 1 + np.cumsum(own[:, EMITTED]) - own[:, EMITTED]  # new tokens before each step
                own[:, CONTEXT] = -1 if record.prompt_tokens is None else record.prompt_tokens + before
                own[:, REASONING] = before < generation.reasoning_tokens
                found.append(own)
        return np.concatenate(found)

    def entry(self) -> ProfileEntry:
        run, row = self.rows[0].run, self.rows[0].row
        most = run.methods[row.method_name].most_draft_tokens
        has_model = any(each.needs_drafter for each in run.method_specs if each.name == row.method_name)
        drafter = None
        if row.drafter is not None:
            precision = row.drafter_passes or (row.dtype if has_model else None)
            drafter = ProfileModel(name=row.drafter, revision=row.drafter_revision, precision=precision)
        sources = {each.run.path: each.source() for each in self.rows}
        return ProfileEntry(
            id=f"{row.method_name}-k{most}", method=row.method, lossless=row.lossless,
            shape="tree" if self.is_tree else "chain", num_draft_tokens=most,
            rule=str(row.options.get("verification", {}).get("rule", "external")), options=self.rows[0].options,
            target=ProfileModel(name=row.target, revision=row.target_revision, precision=row.dtype), drafter=drafter,
            conditions=ProfileConditions(
                **row.sampling.model_dump(), chat=row.chat, thinking="on" if self.has_reasoning else "off",
                memory=row.memory, prompts=tuple(self.prompts),
            ),
            sources=tuple(sources.values()),
            cells=tuple(self._cell(by, value, mask, most) for by, value, mask in self._parts()),
        )  # fmt: skip

    def _parts(self) -> Iterator[tuple[Dimension, str, NDArray[np.bool_]]]:
        """Yields dimension, value and steps of each cell: the total, and the values of every dimension that has
        several."""
        yield TOTAL, "all", np.ones(len(self.steps), dtype=bool)
        languages = {(part.task.partition("@")[0], part.subset): part.language for part in self.prompts}
        of_place: dict[Dimension, list[str | None]] = {
            "task": [task for task, _ in self.places],
            "subset": [f"{task}/{subset}" for task, subset in self.places],
            "language": [languages[place] for place in self.places],
        }
        for by, values in of_place.items():
            known = [value for value in dict.fromkeys(values) if value is not None]
            for value in known if len(known) > 1 else ():
                numbers = [number for number, own in enumerate(values) if own == value]
                mask = np.isin(self.steps[:, SUBSET], numbers)
                if mask.any():
                    yield by, value, mask
        context = self.steps[:, CONTEXT]
        if context.min() >= 0:
            buckets = np.maximum(np.frexp(context)[1], SHORTEST_CONTEXT)  # the least power of two above it
            known_buckets = np.unique(buckets).tolist()
            for bucket in known_buckets if len(known_buckets) > 1 else ():
                least = 0 if bucket == SHORTEST_CONTEXT else 2 ** (bucket - 1)
                yield "context", f"{least}-{2**bucket - 1}", buckets == bucket
        is_reasoning = self.steps[:, REASONING] > 0
        if 0 < is_reasoning.sum() < len(is_reasoning):
            yield "part", "reasoning", is_reasoning
            yield "part", "answer", ~is_reasoning

    def _cell(self, by: Dimension, value: str, mask: NDArray[np.bool_], num_positions: int) -> ProfileCell:
        known = self._cells.get(mask.tobytes())  # subsets are often languages
        if known is None:
            known = self._cells[mask.tobytes()] = cell_of_steps(self.steps[mask], num_positions)
        return known.model_copy(update={"by": by, "value": value})


def steps_of_answer(prompt: int, generation: Generation) -> Steps:
    """Returns the steps of an answer to a prompt; their other columns are 0."""
    steps = np.zeros((len(generation.steps), 8), dtype=np.int32)
    steps[:, PROMPT], steps[:, DRAFTED:] = prompt, generation.steps.counts
    return steps


def cell_of_steps(steps: Steps, num_positions: int) -> ProfileCell:
    """Returns the total of some steps. `num_positions`: the most tokens that a step drafts."""
    _, prompt = np.unique(steps[:, PROMPT], return_inverse=True)
    num_prompts = int(prompt.max()) + 1
    drafted, verified, accepted, emitted = steps[:, DRAFTED:].T

    def per_prompt(values: NDArray[Any]) -> Array:
        return np.bincount(prompt, weights=values, minlength=num_prompts).astype(np.float64)

    # 1. Rates: [num_positions] columns of verified tokens, then as many of accepted ones.
    positions = range(1, num_positions + 1)
    columns = np.stack([per_prompt(counts >= each) for counts in (verified, accepted) for each in positions], axis=1)
    prompts = Resampler.of_units(num_prompts, SEED)
    # 2. Lengths.
    is_cut = emitted <= accepted  # the target's own token is missing
    emitted_by, steps_by = per_prompt(emitted), per_prompt(np.ones(len(steps)))
    lengths = AcceptanceLength(
        pooled=prompts.ratio(emitted_by, steps_by),
        of_prompts=prompts.mean((emitted_by / steps_by).tolist()),
        of_rates=prompts.of_sums([columns], lambda sums: 1 + survival(sums[0]).sum(axis=-1), 1.0, num_positions + 1.0),
    )

    def histogram(counts: NDArray[np.int32]) -> tuple[int, ...]:
        return tuple(np.bincount(counts, minlength=num_positions + 1).tolist())

    return ProfileCell(
        by=TOTAL, value="all", prompts=num_prompts, steps=len(steps), emitted=int(emitted.sum()),
        drafted=int(drafted.sum()), verified=int(verified.sum()), accepted=int(accepted.sum()),
        histogram=histogram(accepted[~is_cut]), histogram_cut=histogram(accepted[is_cut]),
        draft_lengths=histogram(drafted), mean_acceptance_length=lengths,
        positions=tuple(_position(prompts, columns, number) for number in range(num_positions)),
    )  # fmt: skip


def survival(sums: Array) -> Array:
    """Returns r of each position: [..., 2 · num_positions] → [..., num_positions]. NaN from the first position on that
    was never verified, unless r was 0 before."""
    verified, accepted = np.split(sums, 2, axis=-1)
    with np.errstate(all="ignore"):
        ratios = accepted / verified
    found = np.empty_like(ratios)
    product: Array = np.ones(ratios.shape[:-1])
    for number in range(ratios.shape[-1]):
        product = np.where(product == 0, 0.0, product * ratios[..., number])
        found[..., number] = product
    return found


def _position(prompts: Resampler, columns: Array, number: int) -> Position:
    """Returns the rates of a position. columns: [num_prompts, 2 · num_positions]; `number`: from 0 on."""
    verified, accepted = (half[:, number] for half in np.split(columns, 2, axis=1))
    conditional = prompts.ratio(accepted, verified, bounds=SHARE)
    return Position(
        position=number + 1, verified=int(verified.sum()), accepted=int(accepted.sum()), conditional=conditional,
        unconditional=_unconditional(prompts, columns, number) if number else conditional,
    )  # fmt: skip


def _unconditional(prompts: Resampler, columns: Array, number: int) -> Estimate:
    """Returns r of a position with its interval; without one if fewer than MIN_PROMPTS prompts reached it."""
    found = prompts.of_sums([columns], lambda sums: survival(sums[0])[..., number], *SHARE)
    num_reaching = int((columns[:, number] > 0).sum())
    if found.value is None or num_reaching < MIN_PROMPTS:
        return Estimate(value=found.value)
    if found.low is None or found.high is None or found.high - found.low > EQUAL:
        return found
    low, high = equal_values_interval(found.value, SHARE, num_reaching)
    return Estimate(value=found.value, low=low, high=high)
