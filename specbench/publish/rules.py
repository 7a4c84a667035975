"""Rules against results that their records confirm and that still mislead.

Each rule is a function that looks for one way to seem faster than one is, in a run's records alone: no model, no data
and no network is used. `RULES` is the only list of them. A finding is *refused* where an honest run cannot have it or
no board could rank it, and *marked* where a reader must know it; *unknown* says what the archive does not show.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from specbench.analysis.claims.claim import highest_speedup
from specbench.analysis.claims.explain import Measured, measured_problem
from specbench.core.console import counted
from specbench.core.environment import builtin_dir
from specbench.report.captions import MANY_CUT, OFTEN, runs_on, runs_on_lines, why_unranked
from specbench.results.answers import BASELINE, Answer, joined
from specbench.results.conditions import differences
from specbench.results.metric_format import metric_of, with_interval
from specbench.results.paired import RowWithRecords
from specbench.results.row import ALL, REPEAT, Row
from specbench.results.rows import MeasuredSubset
from specbench.results.runs import RecordedRun
from specbench.results.warnings import LEARNS
from specbench.specs import templates
from specbench.specs.catalogue import builtin_task_names, load_file
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import Estimate, Resampler
from specbench.tasks.sources import open_source, read_task_rows

Weight = Literal["refused", "marked", "unknown"]


class Finding(NamedTuple):
    """What a rule found. `place`: the row, or the run with its task and subset."""

    weight: Weight
    place: str
    text: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.weight} by the rule '{self.rule}': {self.text}"


@dataclass(frozen=True)
class RuledRow:
    """A method's row with its answers and AR's to the same prompts. `ar`: AR's row; None if the file has none.
    `limits`: the most new tokens of an answer, by subset. `is_whole`: whether it is the row over all
    that the run measured of the task. `has_texts`: as in `RuledRun`."""

    row: Row
    own: Sequence[Answer]
    baseline: Sequence[Answer]
    ar: Row | None
    limits: Mapping[str, int]
    identity: Mapping[str, Any]
    is_whole: bool
    has_texts: bool

    def found(self, weight: Weight, text: str) -> Finding:
        return Finding(weight, self.row.place, text)

    def warning(self, code: str) -> str | None:
        """Returns the text of a warning of the row; None if it has none of this code."""
        return next((each.text for each in self.row.warnings if each.code == code), None)


Place = tuple[str, str]  # task and subset


@dataclass(frozen=True)
class Examples:
    """By task and subset: the ids of the examples, the digests of their prompts, and how many have a reference within
    what all prompts share."""

    ids: dict[Place, list[str]] = field(default_factory=dict)
    prompts: dict[Place, list[str]] = field(default_factory=dict)
    hits: Counter[Place] = field(default_factory=Counter)


@dataclass(frozen=True)
class RuledRun:
    """A run and those of its rows that its records confirm. `has_texts`: otherwise digests stand for what models wrote.
    `targets`: the revisions by which a board knows targets, by name. `sizes`: by task, subset and revision of the data,
    how many examples they had by the runs before, by name."""

    name: str
    run: RecordedRun
    rows: Sequence[Row]
    has_texts: bool
    targets: Mapping[str, str | None]
    sizes: Mapping[tuple[str, str, str | None], Mapping[str, int]] = field(default_factory=dict)

    @cached_property
    def parts(self) -> dict[Place, TaskSpec]:
        """The tasks that were measured, merged with their subsets, by name and subset."""
        tasks = {task.name: task for task in self.run.tasks}
        return {
            (each.task, each.subset): tasks[each.task].subset(each.subset)
            for measurement in self.run.measurements for each in measurement.subsets if each.task in tasks
        }  # fmt: skip

    @cached_property
    def examples(self) -> "Examples":
        """What the records say of the examples, read in one pass."""
        found = Examples()
        shared = {place: _plain(_shared_text(task)) for place, task in self.parts.items()}
        for record in self.run.records.only(methods=(BASELINE,)).values():
            place = record.task, record.subset
            references = [_plain(text) for text in _texts_in(record.reference)]
            found.hits[place] += any(len(text) >= LEAST_TEXT and text in shared.get(place, "") for text in references)
            if not record.repeat and not record.turn:
                found.ids.setdefault(place, []).append(str(record.id))
                found.prompts.setdefault(place, []).append(record.prompt)
        return found

    def place(self, task: str, subset: str = "") -> str:
        return f"{self.name}: {task} {subset}".rstrip()

    def with_answers(self, row: Row) -> RuledRow:
        keys = self.run.keys_of_row(row)
        own, baseline = (self.run.answers.of(keys, name) for name in (row.method_name, BASELINE))
        here = (row.task, row.subset, row.level)
        ar = next(
            (each for each in self.rows if each.is_baseline and (each.task, each.subset, each.level) == here), None
        )
        limits = {
            subset: self.parts[row.task_name, subset].generation.max_new_tokens
            for subset in row.examples if (row.task_name, subset) in self.parts
        }  # fmt: skip
        is_whole = row.subset == ALL or not any(each.subset == ALL and each.task == row.task for each in self.run.rows)
        return RuledRow(row, own, baseline, ar, limits, self.run.identity, is_whole, self.has_texts)


@dataclass(frozen=True)
class Rule:
    """A rule with one detector for rows of methods, one for whole runs, or both."""

    name: str
    words: str
    of_row: Callable[[RuledRow], Iterator[Finding]] | None = None
    of_run: Callable[[RuledRun], Iterator[Finding]] | None = None


def check_rules(
    runs: Sequence[tuple[str, RecordedRun, Sequence[Row], bool]], targets: Mapping[str, str | None] | None = None
) -> list[Finding]:
    """Returns what the rules find in runs, in the order of `RULES`. `runs`: name, run, its confirmed rows, and whether
    it has texts. `targets`: as in `RuledRun`; a run's own target is known to the runs behind it."""
    known: MutableMapping[str, str | None] = dict(targets or {})
    sizes: dict[tuple[str, str, str | None], dict[str, int]] = {}
    found: list[Finding] = []
    for name, run, rows, has_texts in runs:
        ruled = RuledRun(name, run, rows, has_texts, dict(known), sizes)
        if not rows:  # what the records contradict is refused already
            continue
        for rule in RULES:
            found += [each._replace(rule=rule.name) for each in (rule.of_run(ruled) if rule.of_run else ())]
        for row in rows:
            if row.is_baseline:
                continue
            with_answers = ruled.with_answers(row)
            for rule in RULES:
                found += [each._replace(rule=rule.name) for each in (rule.of_row(with_answers) if rule.of_row else ())]
        target = run.identity["target"]
        known.setdefault(target["name"], target["revision"])
        for part in run.last_measured.values():
            if part.revision is not None and part.coverage is not None and part.coverage.available is not None:
                of_data = sizes.setdefault((part.task, part.subset, part.revision), {})
                of_data[name] = part.coverage.available
    order = [rule.name for rule in RULES]
    return sorted(found, key=lambda each: order.index(each.rule))


# 1. Memorised prompts


def memorised(each: RuledRow) -> Iterator[Finding]:
    """Finds drafters that know the measured prompts: from training, from a memory of their own answers to them, or from
    a memory that the row does not tell."""
    row = each.row
    if text := each.warning("trained_on_test"):
        yield each.found("refused", text)
    is_declared = row.memory == REPEAT and _declares_memory(each)
    if is_declared:
        yield each.found("marked", f"is not ranked: {why_unranked(row)}, as its memory is declared to do")
    elif row.memory == REPEAT:
        told = "and nothing declares such a memory: give the prompts once, or set drafter.memory"
        yield each.found("refused", f"{why_unranked(row)}, {told}")
    if row.memory in (None, "cold"):
        named = row.options.get("drafter", {}).get("memory")
        num_used = sum(answer.left_out_own is not None for answer in each.own)
        if num_used or named not in (None, "none", "prompt"):
            told = f"its drafter has the memory {named!r}" if num_used == 0 else f"{num_used} answers used a memory"
            yield each.found("refused", f"{told} of other prompts, but the row says {row.memory or 'none'}")
    elif row.memory != REPEAT:
        yield each.found("marked", f"its drafter remembers other prompts ({row.memory}): compare it with its like")
    if not is_declared and (num_copied := _copied(each.own)):
        yield each.found("refused", f"{counted(num_copied, 'answer')} to a prompt that the memory had answered before")
    for code in ("learns", "few_orders"):
        if text := each.warning(code):
            yield each.found("marked", text)


def _declares_memory(each: RuledRow) -> bool:
    """Returns whether a method says that its drafter remembers other prompts: by its options, or as a server that says
    so."""
    parts = each.row.options.get("drafter", {}), each.row.options.get("decoder", {}).get("options", {})
    server = each.identity.get("servers", {}).get(each.row.method_name, {})
    return any(part.get("memory") not in (None, "none", "prompt") for part in parts) or bool(server.get(LEARNS))


def _copied(own: Sequence[Answer]) -> int:
    """Returns the number of answers whose memory had an earlier answer to the same prompt and did not leave it out."""
    seen: set[tuple[object, ...]] = set()
    num_copied = 0
    for answer in sorted(own, key=lambda each: each.measured_at or 0.0):
        place = (answer.task, answer.subset, answer.repeat, answer.process, answer.prompt_ids_digest)
        num_copied += place in seen and answer.left_out_own is False
        seen.add(place)
    return num_copied


# 2. Loops


def loops(each: RuledRow) -> Iterator[Finding]:
    """Finds rows whose answers mostly repeat themselves, and those whose speed-up or τ loops change."""
    share = each.row.metrics.get("share_in_loops")
    if not each.has_texts:
        yield each.found("unknown", "token ids are left out, so nobody can see how many are in loops")
    elif share is None or share.value is None:
        yield each.found("unknown", "the row does not say how many tokens are in loops")
    elif share.value > OFTEN:
        weight: Weight = "refused" if each.is_whole else "marked"  # a model may not know one language of several
        yield each.found(weight, f"{share.value:.0%} of its tokens are in loops, which any drafter predicts")
    elif text := each.warning("loops"):
        yield each.found("marked", text)


# 3. Prompts with answers

LEAST_TEXT = 20  # letters and digits of a reference that no prompt has by chance
NUM_WORDS = 9  # of the text that stands for a column


def answers_in_prompts(run: RuledRun) -> Iterator[Finding]:
    """Finds tasks whose prompt has the reference. Records hold digests of prompts, so the templates are rendered with
    made-up rows; and the references are searched in what all prompts share."""
    for (name, subset), task in run.parts.items():
        known = _built_in(name, subset)
        if known is None or _templates(known) != _templates(task):
            for weight, text in _told_by_templates(task):
                yield Finding(weight, run.place(name, subset), text)
    if not run.has_texts:
        names = {name for (name, _), task in run.parts.items() if task.reference_templates() or task.references}
        for name in sorted(names):
            told = "references are left out, so whether the prompts' shared text has them cannot be seen"
            yield Finding("unknown", run.place(name), told)
        return
    for (name, subset), number in run.examples.hits.items():
        if number:
            told = f"{counted(number, 'reference')} in its few-shot examples or another text that all prompts share"
            yield Finding("refused", run.place(name, subset), told)
    for measurement in run.run.measurements:
        for part in measurement.subsets:
            if part.worked.num and not part.worked.checked:
                told = "its few-shot examples were not compared with the measured prompts"
                yield Finding("marked", run.place(part.task, part.subset), told)


def _templates(task: TaskSpec) -> tuple[object, ...]:
    return task.prompt, task.reference, task.references


def _told_by_templates(task: TaskSpec) -> Iterator[tuple[Weight, str]]:
    """Yields what the prompt's template tells of the reference."""
    in_prompt = templates.used(task.prompt, "row")
    if task.references in in_prompt:
        yield "refused", f"its prompt has row.{task.references}, which are the references"
    parts = task.reference_templates()
    known = [key for key, template in parts.items() if _is_in_prompt(task, template, in_prompt)]
    if known and len(known) == len(parts):
        yield "refused", f"its prompt has the whole {' and '.join(known)}"
        return
    for key, template in parts.items():  # such as the beginning of a program, which prompt and tests share
        if shared := sorted(templates.used(template, "row") & in_prompt):
            columns = ", ".join(f"row.{name}" for name in shared)
            yield "marked", f"its prompt and its {key} both read {columns}: see whether the prompt has the answer"


def _is_in_prompt(task: TaskSpec, template: str, in_prompt: frozenset[str]) -> bool:
    """Returns whether a made-up row's reference is in its prompt; False where its columns are not texts."""
    columns = templates.used(template, "row")
    if not columns & in_prompt:
        return False
    row = {name: " ".join(f"{name}{place}" for place in range(NUM_WORDS)) for name in columns | in_prompt}
    try:
        reference, prompt = (_plain(templates.render(text, row, task.vars)) for text in (template, task.prompt))
    except Exception:  # any, of an expression that asks for another type; the sandbox bounds it
        return False
    return bool(reference) and reference in prompt


def _shared_text(task: TaskSpec) -> str:
    """Returns the texts that are in every prompt: templates, few-shot rows and values of the task."""
    rows = task.fewshot.rows if task.fewshot else ()
    return "\n".join(_texts_in([task.prompt, task.system, list(rows), task.vars]))


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return _texts_in(list(value.values()))
    if isinstance(value, list | tuple):
        return [text for each in value for text in _texts_in(each)]
    return [value] if isinstance(value, str) else []


def _plain(text: str) -> str:
    """Returns the letters and digits alone, so that spaces, breaks and capitals hide nothing."""
    return re.sub(r"[\W_]+", "", text).casefold()


@cache
def _built_in(name: str, subset: str) -> TaskSpec | None:
    """Returns the package's own task of this name, merged with the subset; None if there is none."""
    task = _own_task(name)
    return task.subset(subset) if task is not None and subset in task.subset_names else None


@cache
def _own_task(name: str) -> TaskSpec | None:
    """Returns the package's own task of this name; None if there is none."""
    if name not in builtin_task_names():
        return None
    task = load_file(builtin_dir("tasks") / f"{name}.yaml")
    assert isinstance(task, TaskSpec)
    return task


# 4. Another target


def another_target(run: RuledRun) -> Iterator[Finding]:
    """Finds a target that is known under this name with other weights, and servers of AR and a method that differ in
    their model."""
    target = run.run.identity["target"]
    name, revision = target["name"], target["revision"]
    names = dict.fromkeys(text for row in run.rows for text in (row.target, row.drafter, *row.names[::2]) if text)
    for text in names:
        if problem := look_alike(text):
            yield Finding("refused", run.name, f"the name {ascii(text)[:100]} {problem}, so that it looks like another")
    if name in run.targets and run.targets[name] != revision:
        told = f"the target {name} has the revision {revision}, but is known with {run.targets[name]}: give it a name"
        yield Finding("refused", run.name, told)


SCRIPTS_ALIKE = {"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}  # which have letters that look like Latin ones


def look_alike(name: str) -> str | None:
    """Returns what makes a name look like another one; None if nothing does."""
    if name != name.strip() or any(unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") for sign in name):
        return "has signs that nobody sees"
    if unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFC", name):
        return "has signs that stand for others"
    for word in re.findall(r"[^\W\d_]+", name):
        scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
        if "LATIN" in scripts and scripts & SCRIPTS_ALIKE:
            return "mixes letters of several scripts in a word"
    return None


def own_target(each: RuledRow) -> Iterator[Finding]:
    """Finds methods whose answers are not those of AR's target although they should be, and methods that load a target
    themselves. Whatever a checkpoint brings, the answers show it."""
    row = each.row
    if row.lossless and row.verdict == "diverged":
        number = "answers" if row.differences is None else counted(row.differences.answers, "answer")
        told = f"it claims to be lossless, but {number} differ from AR's by more than near-ties and widths of passes"
        yield each.found("refused", f"{told}, as those of another target do")
    servers = each.identity.get("servers", {})
    if row.method_name in servers and BASELINE in servers:
        changed = differences(servers[BASELINE], servers[row.method_name], absent=None)
        if models := [found for found in changed if found.field in ("model", "model_path")]:
            told = "; ".join(f"{found.field} {found.first} ≠ {found.second}" for found in models)
            yield each.found("refused", f"its server has another model than AR's: {told}")
    elif "decoder" in row.options:
        yield each.found("marked", "its own code loads the target: only its answers tell whether that is AR's")


# 5. Chosen prompts


def chosen_prompts(run: RuledRun) -> Iterator[Finding]:
    """Tells how much of each task was measured, and finds rows, subsets and examples that are left out."""
    yield from _rows_left_out(run)
    for task in run.run.tasks:
        subsets = [subset for name, subset in run.parts if name == task.name]
        if absent := [name for name in task.subset_names if name not in subsets]:
            more = f" and {len(absent) - MOST_LISTED} more" * (len(absent) > MOST_LISTED)
            listed = ", ".join(absent[:MOST_LISTED]) + more
            told = f"{len(subsets)} of its {counted(len(task.subset_names), 'subset')}, without {listed}"
            yield Finding("marked", run.place(task.name), told)
    limits = {row.names[:2]: row.request.get("limit") for row in run.rows}
    for place, part in run.run.last_measured.items():
        for weight, text in _told_of_examples(run, part, limits.get(place)):
            yield Finding(weight, run.place(*place), text)


def _rows_left_out(run: RuledRun) -> Iterator[Finding]:
    have = {row.names for row in run.run.rows}
    lacking: dict[str, list[str]] = {}
    for (name, subset), part in run.run.last_measured.items():
        for method in run.run.methods:
            if part.num_examples and (name, subset, method) not in have:
                lacking.setdefault(f"{method} of {name}", []).append(subset)
    for which, subsets in lacking.items():
        told = f"the records have {which} in {', '.join(subsets)}, but the board of the run has no such row"
        yield Finding("refused", run.name, told)


def _told_of_examples(run: RuledRun, part: MeasuredSubset, limit: object) -> Iterator[tuple[Weight, str]]:
    """Yields what was measured of a subset's examples. `limit`: the most that the command asked for; None: all."""
    place, is_sample, coverage = (part.task, part.subset), part.source == "sample", part.coverage
    asked = "" if limit is None else f" (--limit {limit})"
    if coverage is None and limit is not None:  # of an earlier version
        of = " of the bundled sample" * is_sample
        told = f"the first {counted(part.num_examples, 'example')}{of}{asked}, total unknown"
    else:
        told = part.told_examples + asked * (coverage is not None and coverage.chosen != "all")
    if is_sample:
        told += f", which is not {part.task} itself"
    if is_sample or limit is not None or (coverage is not None and coverage.chosen != "all"):
        yield "marked", told
    available = None if coverage is None else coverage.available
    for whose, number in _known_sizes(run, part):
        if available not in (None, number):
            yield "refused", f"its data had {counted(available or 0, 'example')} as it says, but {whose} {number:,}"
    if part.source != "sample" and (gaps := _gaps(run.examples.ids.get(place, []))):
        yield "marked", f"ids have gaps: {', '.join(map(str, gaps[:MOST_LISTED]))} of the data were not measured"
    prompts = run.examples.prompts.get(place, [])
    if (num_other := len(set(prompts))) < len(prompts):
        told = f"{counted(len(prompts), 'example')} have {counted(num_other, 'different prompt')}"
        yield "refused" if num_other < OFTEN * len(prompts) else "marked", told


def _known_sizes(run: RuledRun, part: MeasuredSubset) -> Iterator[tuple[str, int]]:
    """Yields how many examples the same data have by other sources: the package's own sample, and runs before."""
    if part.source == "sample" and (known := _own_sample(part.task, part.subset)) and known[0] == part.revision:
        yield "this sample has", known[1]
    for name, number in run.sizes.get((part.task, part.subset, part.revision), {}).items():
        yield f"by {name} the same data have", number


@cache
def _own_sample(name: str, subset: str) -> tuple[str | None, int] | None:
    """Returns the digest of the package's own sample of a subset, and the number of its examples; None without one."""
    task = _own_task(name)
    if task is None or subset not in task.subset_names or task.sample_of(subset) is None:
        return None
    source = open_source(task, subset, "sample", len(task.subset_names))
    return source.revision, sum(1 for _ in read_task_rows(task.subset(subset), source))


MOST_LISTED = 6


def _gaps(ids: Sequence[str]) -> list[int]:
    """Returns the numbers that ids skip; none if they do not count, as digests and dates do not."""
    found = [re.search(r"(\d{1,15})$", each) for each in ids]
    numbers = sorted({int(each[1]) for each in found if each})
    steps = [after - before for before, after in pairwise(numbers)]
    if len(numbers) < len(ids) or steps.count(1) < OFTEN * len(steps) or max(steps, default=1) > len(ids):
        return []
    present = set(numbers)
    return [each for each in range(numbers[0], numbers[-1]) if each not in present]


# 6. Limits of length


def other_limits(run: RuledRun) -> Iterator[Finding]:
    """Finds tasks with fewer new tokens than the task of this name has."""
    for (name, subset), task in run.parts.items():
        known = _built_in(name, subset)
        most = None if known is None else known.generation.max_new_tokens
        if most is not None and task.generation.max_new_tokens < most:
            told = f"answers have up to {task.generation.max_new_tokens} new tokens, those of the task {most}"
            yield Finding("marked", run.place(name, subset), told)


def cut_answers(each: RuledRow) -> Iterator[Finding]:
    """Finds answers that end at another limit than the task's, on either side, and tells how many the limit cuts."""
    for name, side in ((each.row.method_name, each.own), (BASELINE, each.baseline)):
        other = [
            answer for answer in side
            if not answer.is_external and (limit := each.limits.get(answer.subset)) is not None
            and (answer.num_new_tokens > limit or (answer.finish == "length" and answer.num_new_tokens != limit))
        ]  # fmt: skip
        if other:
            first = other[0]
            told = f"{counted(len(other), 'answer')} of {name} end at another limit than the task's"
            text = f"{told}: {first.num_new_tokens} tokens instead of {each.limits[first.subset]}"
            yield each.found("refused", text)
    shares = [sum(a.finish == "length" for a in side) / max(1, len(side)) for side in (each.own, each.baseline)]
    if each.is_whole and max(shares) >= MANY_CUT:
        yield each.found("marked", f"the limit cuts {shares[0]:.0%} of its answers and {shares[1]:.0%} of AR's")


# 7. Lengths of answers

SHORTER = 0.9  # tokens of a method ÷ AR's: below it, answers end early


def lengths(each: RuledRow) -> Iterator[Finding]:
    """Finds answers that end where AR's go on, unless a score shows that nothing is lost, answers that run on or go on
    behind an end, and rows most of whose answers end with their first token."""
    row = each.row
    tokens = [[float(a.num_new_tokens) for a in side] for side in (each.own, each.baseline)]
    ratio = Resampler.of(each.own, row.seed).ratio(*tokens)
    highest = ratio.value if ratio.high is None else ratio.high
    if highest is not None and highest < SHORTER:
        lost = _lost(row)
        weight: Weight = "refused" if lost and highest < OFTEN else "marked"
        told = f"its answers have {with_interval(ratio)} times the tokens of AR's"
        yield each.found(weight, f"{told}, and {lost or 'their score is no lower'}")
    if each.ar is not None and runs_on(row, each.ar):
        (line,) = runs_on_lines([row], [row.method_name], each.ar)
        yield each.found("marked", line.removeprefix("‡ "))
    for code in ("ends_at_once", "past_end"):
        if text := each.warning(code):
            yield each.found("marked", text)


def _lost(row: Row) -> str | None:
    """Returns what speaks against a method's shorter answers; None if their score is no lower than AR's."""
    change = Estimate() if row.quality is None else row.metrics.get(f"{row.quality}_difference", Estimate())
    if change.value is None:
        return "nobody scored them"
    sign = -1 if metric_of(row.quality).lower_is_better else 1
    return f"their {row.quality} is lower ({with_interval(change)})" if sign * change.value < 0 else None


# 8. Impossible speed


def implausible(each: RuledRow) -> Iterator[Finding]:
    """Finds speed-ups above what τ and the measured v allow, and baselines that are slower than they can be. Where AR's
    own passes show a disturbance that explains the excess, a reader must know it, but nobody forged it."""
    problem = each.warning("implausible")
    if problem is None and {"decoder", "decodes_with"}.isdisjoint(each.row.options):
        problem = measured_problem(Measured.of(RowWithRecords(each.row, each.own, each.baseline), whole_call=False))
    if problem is not None:
        reason = _disturbed(each)
        yield each.found("marked" if reason else "refused", f"{problem}{reason}")
    if text := each.warning("cheap_passes"):
        yield each.found("marked", text)


LEAST_COST = 0.8  # v that kernels alone may give: those of one token may be slower than those of several
QUIET = 25  # the percentile of AR's passes that stands for those that nothing disturbed


def _disturbed(each: RuledRow) -> str:
    """Returns why AR's passes explain a speed-up above its bound; empty if they do not. Load comes and goes, so that
    some of AR's passes are as fast as ever: a baseline all of whose passes are slow was not disturbed."""
    speedup, length = each.row.metric("speedup"), each.row.value("mean_acceptance_length")
    lowest = speedup.value if speedup.low is None else speedup.low
    passes = joined(each.baseline, "token_passes")
    verifying, plain = (
        sum(answer.target_seconds for answer in side) / max(1, sum(answer.num_steps for answer in side))
        for side in (each.own, each.baseline)
    )
    if lowest is None or length is None or not len(passes) or not verifying or not plain:
        return ""
    quiet = float(np.percentile(passes, QUIET))
    disturbed = float(passes.mean()) / quiet if quiet else 1.0
    cost = max(verifying / plain, min(LEAST_COST, 1 / disturbed))
    if lowest > highest_speedup(length, cost):
        return ""
    warned = [name for code, name in SIGNS_OF_LOAD.items() if each.warning(code)]
    return (
        f"; the run's own passes explain it: v = {verifying / plain:.2f}, and AR's passes took {disturbed:.2f} times "
        f"those of its quiet quarter ({1000 * quiet:.3g} ms)" + "".join(f"; {name}" for name in warned)
    )


# By the code of the warning: what it says of load, which the passes above show.
SIGNS_OF_LOAD = {
    "ar_drift": "AR's speed drifted", "wide_interval": "its interval is wide", "not_steady": "its start was not steady",
    "uneven_sessions": "AR's speed differs between its processes", "busy": "its threads waited for a CPU",
}  # fmt: skip


# 9. No drafter


def no_drafter(each: RuledRow) -> Iterator[Finding]:
    """Finds rows that no board ranks: a prescribed acceptance rate, and a drafter with the target's own weights."""
    if each.row.memory != REPEAT and (reason := why_unranked(each.row)):
        yield each.found("marked", f"is not ranked: {reason}")


RULES = (
    Rule("memorised prompts", "the drafter knows the measured prompts or its own answers to them", memorised),
    Rule("loops", "answers repeat themselves, which any drafter predicts", loops),
    Rule("prompts with answers", "the prompt has the reference", of_run=answers_in_prompts),
    Rule("another target", "the method's target is not AR's, or not the one of its name", own_target, another_target),
    Rule("chosen prompts", "which subsets and examples were measured, and what is left out", of_run=chosen_prompts),
    Rule(
        "limits of length", "answers are cut, by another limit than the task's or than AR's", cut_answers, other_limits
    ),
    Rule("lengths of answers", "the method's answers end before AR's, or run on behind them", lengths),
    Rule("impossible speed", "the speed-up is above what τ and v allow", implausible),
    Rule("no drafter", "the acceptance rate is prescribed, or the drafter is the target", no_drafter),
)
