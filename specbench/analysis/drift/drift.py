"""`specbench drift`: what acceptance becomes when the target, the drafter or the way to sample changes.

Nothing is drafted. Each side is a target and a drafter of its vocabulary, and one pass of both over a text gives p and
q at all of its positions. Two sorts of numbers come from them:

- on given texts, the same for both sides: the mean of Σ min(p, q) over all positions (greedy: the share of positions
  at which both have the same argmax). It needs no answers of the models, but it is the acceptance rate of one draft
  token at a position chosen at random, on texts that the changed target would not write. A run tells by how much it
  differs from what decoding gives (`SideGroup.bias`).
- on each side's own answers, which its run has recorded: α and τ of the method's steps (`walk`).

Sums over the prompts' numbers are paired, and prompts are resampled.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from specbench.analysis.drift.walk import walk
from specbench.analysis.fairness.drafters import mismatch, reference_ids
from specbench.analysis.fairness.groups import estimate, ratios
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import Say, say_nothing
from specbench.decoding.sampling import Sampling, process
from specbench.models.causal_lm import CausalLM, split_precision
from specbench.models.gguf.files import is_gguf
from specbench.models.loading import load_model
from specbench.records.records import Key
from specbench.results.answers import BASELINE, Answer
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, run_path
from specbench.running.models import load_models
from specbench.running.plan import load_requested, make_subset_runs
from specbench.running.prompts import uses_chat
from specbench.running.recorded_prompts import Group, ModelLoader, asked_revisions, gguf_options_of, prompts_of
from specbench.running.request import Request, run_spec
from specbench.specs.components import Quantize
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Array, Bounds, Estimate, FilePart

WINDOW = 256  # positions whose logits are in memory at once: 150 MB at 151,936 tokens in float32
NUM_WORST = 5  # prompts that are listed


class DriftChange(FilePart):
    """A number before and after, and the difference after − before, paired by prompt."""

    before: Estimate
    after: Estimate
    difference: Estimate


class SideGroup(FilePart):
    """One side in one group, from a run. `estimated`, `decoded`: α and τ of the method's steps, computed along AR's
    answers and counted in the method's own. `bias`: Σ min(p, q) over all positions of these answers − the decoded α,
    the error of a one-position number. `share_cut_in_reasoning`: of AR's answers, those that ended inside their
    reasoning; None if neither run has an answer with reasoning."""

    estimated: dict[str, Estimate]
    decoded: dict[str, Estimate]
    agreement: dict[str, Estimate]  # estimated − decoded, paired by prompt
    bias: Estimate
    share_cut_in_reasoning: Estimate | None = None


class DriftGroup(FilePart):
    """A subset, which is a language or a category in most tasks; or all of them. `changes`: by the name of the number,
    see NUMBERS. `before`, `after`: None without runs."""

    label: str
    language: str | None
    num_prompts: int
    num_positions: tuple[int, int]  # of the given texts: before's answers or the data's, and after's answers
    changes: dict[str, DriftChange]
    before: SideGroup | None = None
    after: SideGroup | None = None


class DriftSide(FilePart):
    """What a side is: models, precision, sampling. `run`: RUN:METHOD; None if models were given."""

    label: str
    run: str | None
    target: str
    target_revision: str | None
    drafter: str
    drafter_revision: str | None
    precision: str
    temperature: float
    top_k: int | None
    top_p: float | None
    chat: bool | dict[str, Any]
    num_draft_tokens: int | None


class WorstPrompt(FilePart):
    """A prompt whose acceptance fell most. `number`: the one that is compared."""

    group: str
    example: str
    number: str
    before: float
    after: float


class DriftReport(FilePart):
    """The report of `specbench drift`. `num_left_out`: prompts that only one of the runs has."""

    before: DriftSide
    after: DriftSide
    texts: str
    changed: tuple[str, ...]
    seed: int
    num_left_out: int
    groups: tuple[DriftGroup, ...]
    worst: tuple[WorstPrompt, ...]


# Columns of a prompt's sums for one side: pairs of a numerator and a denominator.
GIVEN_BEFORE, GIVEN_AFTER, ALPHA, TAU, DECODED_ALPHA, DECODED_TAU, CUT_IN_REASONING = range(7)
WIDTH = 14


@dataclass(frozen=True)
class Number:
    """A number of the report: the pair of columns that it is the ratio of, and its bounds."""

    label: str
    pair: int
    bounds: Bounds


RATE: Bounds = (0.0, 1.0)
LENGTH: Bounds = (1.0, np.inf)
NUMBERS = {
    "given_before": Number("Σ min(p, q) on before's answers", GIVEN_BEFORE, RATE),
    "given_after": Number("Σ min(p, q) on after's answers", GIVEN_AFTER, RATE),
    "acceptance_rate": Number("α on each side's own answers", ALPHA, RATE),
    "mean_acceptance_length": Number("τ on each side's own answers", TAU, LENGTH),
}
DECODED = {"acceptance_rate": DECODED_ALPHA, "mean_acceptance_length": DECODED_TAU}


class TextNumbers(NamedTuple):
    """At every position of a text, [num_positions]: the probability that a draft of the text's own token is accepted,
    and Σ min(p, q)."""

    match: Array
    overlap: Array


@dataclass
class Side:
    """A target and a drafter, and by record the prompt that the target reads. `draft_sampling`: how drafts are drawn.
    `limits`: by record the most tokens that its answer may have, of runs."""

    shown: DriftSide
    target: CausalLM
    drafter: CausalLM
    sampling: Sampling
    draft_sampling: Sampling
    prompts: Mapping[Key, Sequence[int]]
    limits: Mapping[Key, int] = field(default_factory=dict)

    @torch.inference_mode()
    def score(self, prompt_ids: Sequence[int], new_ids: Sequence[int]) -> TextNumbers:
        """Reads prompt and text with both models, WINDOW positions at a time."""
        ids = [*prompt_ids, *new_ids]
        match, overlap = [], []
        for start in range(len(prompt_ids), len(ids), WINDOW):
            end = min(start + WINDOW, len(ids))
            read = ids[: end - 1]
            p = process(self.target.score(read, end - start).logits, self.sampling)
            q = process(self.drafter.score(read, end - start).logits, self.draft_sampling).to(p.device)
            tokens = torch.tensor(ids[start:end], device=p.device)[:, None]
            own_p, own_q = (each.gather(1, tokens)[:, 0].double() for each in (p, q))
            accepted = torch.where(own_q > 0, (own_q / own_p).clamp(max=1.0), 0.0)  # also where p is 0 by rounding
            match.append(accepted.cpu().numpy())
            overlap.append(torch.minimum(p, q).sum(-1).double().clamp(max=1.0).cpu().numpy())
        return TextNumbers(np.concatenate(match), np.concatenate(overlap))


def check_same_tokens(first: CausalLM, second: CausalLM) -> None:
    """Raises ConfigError for models of two vocabularies."""
    if problem := mismatch(first, second):
        raise ConfigError(f"'{second.name}': drift compares probabilities of the same tokens: {problem}")


@dataclass(frozen=True)
class RunSide:
    """A method of a run, before its models are loaded."""

    text: str
    run: RecordedRun
    row: Row  # of the method

    @classmethod
    def read(cls, option: str, text: str) -> "RunSide":
        """Returns the side that RUN or RUN:METHOD names. Raises ConfigError if no method, or several, draft chains of
        a fixed length with a draft model of the target's vocabulary and keep the target's distribution."""
        path, method = run_path(text)
        run = RecordedRun(path)
        reasons = {row.method_name: why_not(row) for row in run.rows if row.method_name != BASELINE}
        fitting = [name for name, reason in reasons.items() if reason is None]
        if method is not None and method not in reasons:
            raise ConfigError(f"{option} {text}: no method '{method}' that drafts: {nearest(method, reasons)}")
        if method is not None and reasons[method] is not None:
            raise ConfigError(f"{option} {text}: {method} {reasons[method]}")
        if method is None and len(fitting) != 1:
            problem = f"choose one of {', '.join(fitting)}, as {text}:{fitting[0]}" if fitting else "; ".join(
                f"{name} {reason}" for name, reason in reasons.items()) or "none of its methods drafts"  # fmt: skip
            raise ConfigError(f"{option} {text}: {problem}")
        return cls(text, run, run.rows_of(method or fitting[0])[0])

    @property
    def method(self) -> str:
        return self.row.method_name

    @property
    def rows(self) -> dict[Group, Row]:
        """AR's rows of single subsets."""
        return {(row.task_name, row.subset): row for row in self.run.rows_of(BASELINE) if not row.subsets}

    def loaders(self, options: RunOptions, weights: bool) -> tuple[ModelLoader, ModelLoader]:
        """Returns the loaders of the target and of the drafter, which is never quantized."""
        dtype, quantize = split_precision(self.row.dtype)

        def loader(quantize: Quantize, is_llama_cpp: bool) -> ModelLoader:
            return ModelLoader(
                options.device, dtype, quantize, options.trust_remote_code, weights,
                "llama.cpp" if is_llama_cpp else "eager", gguf_options_of(self.row), asked_revisions(self.row),
            )  # fmt: skip

        is_target_there = self.row.engine.startswith("llama.cpp")
        # A drafter of the other format says how its passes were computed.
        is_drafter_there = is_target_there if self.row.drafter_passes is None else is_gguf(self.row.drafter or "")
        return loader(quantize, is_target_there), loader("none", is_drafter_there)

    def models(self, options: RunOptions, *, weights: bool) -> tuple[CausalLM, CausalLM]:
        """Returns target and drafter. Raises ConfigError if their files have changed since the run."""
        row = self.row
        assert row.drafter is not None
        of_target, of_drafter = self.loaders(options, weights)
        return of_target.load(row.target, row.target_revision), of_drafter.load(row.drafter, row.drafter_revision)

    def load(
        self, keys: Mapping[Group, Sequence[Key]], prompts: Mapping[Key, Sequence[int]], options: RunOptions
    ) -> Side:
        row, records = self.row, self.run.records
        target, drafter = self.models(options, weights=True)
        sampling = Sampling(row.sampling.temperature, row.sampling.top_k, row.sampling.top_p)
        limits = {}
        for (task, subset), of_group in keys.items():
            most = self.run.task_of(self.rows[task, subset]).subset(subset).generation.max_new_tokens
            for key in of_group:
                answer = records[key].methods[BASELINE]
                limits[key] = answer.num_new_tokens if answer.finish == "context" else most
        return Side(
            DriftSide(
                label=self.text, run=f"{self.run.path}:{self.method}", target=row.target,
                target_revision=row.target_revision, drafter=str(row.drafter), drafter_revision=row.drafter_revision,
                precision=row.dtype, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
                chat=row.chat, num_draft_tokens=row.num_draft_tokens,
            ),
            target, drafter, sampling, sampling.at(row.options["drafter"].get("temperature")),
            prompts, limits,
        )  # fmt: skip

    def decoded(self, key: Key) -> tuple[int, int, int, int]:
        """Returns the method's accepted, judged and emitted tokens, and its steps."""
        answer = Answer.of(self.run.records[key].methods[self.method])
        return answer.num_accepted, answer.num_verified, answer.num_emitted, answer.num_steps


def why_not(row: Row) -> str | None:
    """Returns why the steps of a row's method cannot be computed along a known answer; None if they can."""
    drafter, rule = row.options.get("drafter") or {}, row.options.get("verification") or {}
    if drafter.get("type") != "model":
        return f"has the drafter '{drafter.get('type', 'of external code')}': give a method whose drafter is a model"
    if rule.get("rule") != "rejection":
        return f"has the rule '{rule.get('rule')}': the steps follow from p and q for 'rejection' only"
    if row.options.get("draft_length") or row.options.get("routes"):
        return "changes its draft length or its drafter from step to step: give a method that does not"
    return None


METHOD = "sd"  # whose pair is loaded if models are given


@dataclass(frozen=True)
class ModelSide:
    """A pair of models that the options of a run name, and the task whose references are the texts."""

    label: str
    request: Request

    def load(self, console: Console) -> tuple[Side, dict[Key, tuple[str, str | None, Sequence[int]]]]:
        """Returns the side, and by example its id, the language and the tokens of its reference."""
        spec = run_spec(self.request)
        loaded = load_requested(spec, spec.target.startswith(EMBEDDED), console)
        # Vocabularies, prompts and references need tokenizers only: what does not fit is told before weights are read.
        tokenizers = load_models(spec, partial(load_model, weights=False))
        reader = tokenizers.target
        check_same_tokens(reader, tokenizers.drafters[METHOD])
        runs = make_subset_runs(spec, tokenizers, loaded)
        prompts: dict[Key, Sequence[int]] = {}
        texts: dict[Key, tuple[str, str | None, Sequence[int]]] = {}
        for run in runs:
            for example in run.data.examples:
                new_ids = reference_ids(example, 0, reader)
                if not new_ids:
                    raise ConfigError(
                        f"--task {run.task.name}: {run.subset} example {example.id} has no reference text: give a task "
                        "with references, or two runs with --before and --after, whose answers are the texts"
                    )
                key = (run.task.name, run.subset, example.index, 0, 0)
                prompts[key] = run.renderer.render(reader, (example.prompt,)).ids
                texts[key] = str(example.id), run.task.language, new_ids
        models = load_models(spec)
        target, drafter = models.target, models.drafters[METHOD]
        generation = runs[0].task.generation
        sampling = Sampling(generation.temperature, generation.top_k, generation.top_p)
        chat: bool | dict[str, Any] = uses_chat(target, spec.chat) and (dict(spec.chat_template_args or {}) or True)
        shown = DriftSide(
            label=self.label, run=None, target=target.name, target_revision=target.revision, drafter=drafter.name,
            drafter_revision=drafter.revision, precision=target.precision, temperature=sampling.temperature,
            top_k=sampling.top_k, top_p=sampling.top_p, chat=chat, num_draft_tokens=None,
        )  # fmt: skip
        return Side(shown, target, drafter, sampling, sampling, prompts), texts


@dataclass
class Sums:
    """The sums of both sides over the prompts. `sums`: by prompt, [2, WIDTH]; `groups`, `ids`: of a prompt."""

    sums: dict[Key, Array] = field(default_factory=dict)
    groups: dict[Key, Group] = field(default_factory=dict)
    ids: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, example: str, side: int, pair: int, numerator: float, denominator: float) -> None:
        prompt = (*key[:3], 0, 0)
        self.groups[prompt], self.ids[prompt] = (key[0], key[1]), example
        self.sums.setdefault(prompt, np.zeros((2, WIDTH)))[side, 2 * pair : 2 * pair + 2] += numerator, denominator


def drift_of_runs(
    before: str, after: str, options: RunOptions, tasks: Sequence[str] = (), progress: Say = say_nothing
) -> DriftReport:
    """Returns the drift between two methods of runs. `before`, `after`: RUN or RUN:METHOD; `options.limit`: prompts of
    each subset. Raises ConfigError for runs without a method that fits, of two vocabularies, or without a prompt in
    common."""
    limit = options.limit
    if isinstance(limit, float):
        raise ConfigError(f"--limit {limit:g}: give a number of prompts with --before and --after")
    # 1. The records that both runs have, with the same example.
    sides = RunSide.read("--before", before), RunSide.read("--after", after)
    if (sides[0].run.path.resolve(), sides[0].method) == (sides[1].run.path.resolve(), sides[1].method):
        raise ConfigError(f"--before and --after are the same: {before}: name two runs, or two methods of one")
    one, other = sides
    records = one.run.records
    keys: dict[Group, list[Key]] = {}
    num_left_out = 0
    for key, record in records.items():
        if (
            key[:2] not in one.rows
            or (tasks and key[0] not in tasks)
            or (options.subsets and key[1] not in options.subsets)
        ):
            continue
        if key not in other.run.records or other.run.records[key].prompt != record.prompt:
            num_left_out += 1
        elif limit is None or len({each[2] for each in keys.get(key[:2], ())} | {key[2]}) <= limit:
            keys.setdefault(key[:2], []).append(key)
    if not keys:
        raise ConfigError(f"'{before}' and '{after}' have no prompt in common: give runs of the same task and subsets")
    row = one.row
    set_threads(options.threads, row.target.startswith(EMBEDDED))
    # 2. Vocabularies and prompts, by the tokenizers: what does not fit is told before weights are read.
    progress("reading the prompts of both runs")
    tokenizers = [side.models(options, weights=False) for side in sides]
    check_same_tokens(*(target for target, _ in tokenizers))
    prompts = []
    for side, (target, drafter) in zip(sides, tokenizers, strict=True):
        check_same_tokens(target, drafter)
        found = prompts_of(side.run, side.rows, keys, target, [drafter], options.data)
        prompts.append({key: prompt.prompt_ids for key, prompt in found.items()})
    plain = [
        {key: side.run.records[key].methods[BASELINE] for key in chain.from_iterable(keys.values())} for side in sides
    ]
    answers = [{key: answer.token_ids.tolist() for key, answer in own.items()} for own in plain]
    reasons = any(answer.reasoning_tokens for own in plain for answer in own.values())
    # 3. The numbers, one side after the other, so that two targets are never in memory together.
    sums, shown = Sums(), []
    for number, side in enumerate(sides):
        progress(f"loading the models of {side.text}")
        loaded = side.load(keys, prompts[number], options)
        for done, key in enumerate(answers[number], start=1):
            name = str(records[key].id)
            own = loaded.score(loaded.prompts[key], answers[number][key])
            is_same = answers[0][key] == answers[1][key]
            given = own if is_same else loaded.score(loaded.prompts[key], answers[1 - number][key])
            for pair, numbers in ((number, own), (1 - number, given)):
                sums.add(key, name, number, pair, numbers.overlap.sum(), len(numbers.overlap))
            steps = walk(own.match, own.overlap, side.row.num_draft_tokens, loaded.limits[key])
            accepted, judged, emitted, num_steps = side.decoded(key)
            sums.add(key, name, number, ALPHA, steps.accepted.sum(), steps.judged.sum())
            sums.add(key, name, number, TAU, len(own.match) - 1, steps.num_steps)
            sums.add(key, name, number, DECODED_ALPHA, accepted, judged)
            sums.add(key, name, number, DECODED_TAU, emitted, num_steps)
            if reasons:
                sums.add(key, name, number, CUT_IN_REASONING, not plain[number][key].reasoning_closed, 1)
            progress(f"{side.text}: {done} of {len(answers[number])} answers")
        shown.append(loaded.shown)
        del loaded
        gc.collect()
    languages = {group: each.language for group, each in one.rows.items()}
    return report_of(sums, shown, "the answers of both runs", languages, options.seed, num_left_out)


def drift_of_models(before: Request, after: Request, console: Console, progress: Say = say_nothing) -> DriftReport:
    """Returns the drift between the models and conditions of two requests for runs of one task, on the references of
    its rows. Nothing is decoded. Raises ConfigError for a task without references."""
    sums, shown, languages = Sums(), [], {}
    for number, (label, request) in enumerate((("before", before), ("after", after))):
        progress(f"loading the models {label}")
        loaded, texts = ModelSide(label, request).load(console)
        for done, (key, (name, language, new_ids)) in enumerate(texts.items(), start=1):
            numbers = loaded.score(loaded.prompts[key], new_ids)
            sums.add(key, name, number, GIVEN_BEFORE, numbers.overlap.sum(), len(numbers.overlap))
            languages[key[0], key[1]] = language
            progress(f"{label}: {done} of {len(texts)} texts")
        shown.append(loaded.shown)
        del loaded
        gc.collect()
    text = f"the references of {', '.join(before.tasks)}"
    return report_of(sums, shown, text, languages, before.options.seed, 0)


def report_of(
    sums: Sums,
    shown: Sequence[DriftSide],
    texts: str,
    languages: Mapping[Group, str | None],
    seed: int,
    num_left_out: int,
) -> DriftReport:
    """Returns the report on the sums of both sides over prompts."""
    before, after = shown
    told = {name: (getattr(before, name), getattr(after, name)) for name in DriftSide.model_fields}
    changed = tuple(name for name, (one, other) in told.items() if one != other and name not in ("label", "run"))
    by_group: dict[Group, list[Key]] = {}
    for key, group in sums.groups.items():
        by_group.setdefault(group, []).append(key)
    several = len({task for task, _ in by_group}) > 1
    named = {("/".join(group) if several else group[1]): (languages[group], keys) for group, keys in by_group.items()}
    if len(named) > 1:
        named = {ALL: (None, list(sums.groups)), **named}
    groups = [
        group_of(label, language, np.stack([sums.sums[key] for key in keys]), seed)
        for label, (language, keys) in named.items()
    ]  # fmt: skip
    number = "acceptance_rate" if "acceptance_rate" in groups[0].changes else "given_before"
    return DriftReport(
        before=before, after=after, texts=texts, changed=changed, seed=seed, num_left_out=num_left_out,
        groups=tuple(groups), worst=tuple(worst_prompts(sums, number, several)),
    )  # fmt: skip


def group_of(label: str, language: str | None, found: Array, seed: int) -> DriftGroup:
    """Returns the numbers of a group; found: [num_prompts, 2, WIDTH]."""
    both = found.reshape(len(found), 2 * WIDTH)

    def value(side: int, pair: int) -> Callable[[Sequence[Array]], Array]:
        column = side * WIDTH + 2 * pair
        return lambda groups: ratios(groups, column, column + 1)[..., 0]

    def one(side: int, pair: int, bounds: Bounds) -> Estimate:
        return estimate([both], value(side, pair), seed, *bounds)

    def difference(first: tuple[int, int], second: tuple[int, int], bounds: Bounds) -> Estimate:
        """second − first, each (side, pair)."""
        most = bounds[1] - bounds[0]
        return estimate([both], lambda groups: value(*second)(groups) - value(*first)(groups), seed, -most, most)

    def side_group(side: int) -> SideGroup:
        own = (side, GIVEN_BEFORE if side == 0 else GIVEN_AFTER)
        numbers = {name: NUMBERS[name] for name in DECODED}
        return SideGroup(
            estimated={name: one(side, number.pair, number.bounds) for name, number in numbers.items()},
            decoded={name: one(side, DECODED[name], number.bounds) for name, number in numbers.items()},
            agreement={
                name: difference((side, DECODED[name]), (side, number.pair), number.bounds)
                for name, number in numbers.items()
            },
            bias=difference((side, DECODED_ALPHA), own, RATE),
            share_cut_in_reasoning=one(side, CUT_IN_REASONING, RATE) if reasons else None,
        )  # fmt: skip

    totals = found.sum(axis=(0, 1))
    has_runs, reasons = (totals[2 * pair + 1] > 0 for pair in (DECODED_TAU, CUT_IN_REASONING))
    return DriftGroup(
        label=label, language=language, num_prompts=len(found),
        num_positions=(int(found[:, 0, 2 * GIVEN_BEFORE + 1].sum()), int(found[:, 0, 2 * GIVEN_AFTER + 1].sum())),
        changes={
            name: DriftChange(
                before=one(0, number.pair, number.bounds), after=one(1, number.pair, number.bounds),
                difference=difference((0, number.pair), (1, number.pair), number.bounds),
            )
            for name, number in NUMBERS.items() if totals[2 * number.pair + 1] > 0
        },
        before=side_group(0) if has_runs else None, after=side_group(1) if has_runs else None,
    )  # fmt: skip


def worst_prompts(sums: Sums, number: str, several: bool) -> Iterator[WorstPrompt]:
    """Yields the prompts whose number fell most, at most NUM_WORST."""
    first = 2 * NUMBERS[number].pair
    falls = []
    for key, found in sums.sums.items():
        (top, bottom), (top_after, bottom_after) = found[:, first : first + 2]
        if bottom > 0 and bottom_after > 0 and top_after / bottom_after < top / bottom:
            group = sums.groups[key]
            falls.append(WorstPrompt(
                group="/".join(group) if several else group[1], example=sums.ids[key], number=number,
                before=top / bottom, after=top_after / bottom_after,
            ))  # fmt: skip
    yield from sorted(falls, key=lambda prompt: prompt.after - prompt.before)[:NUM_WORST]
