"""Measure: trials → records. A scheduler decides in which order the trials of a plan are decoded, and by which process.

The scheduler here decodes in this process, trial by trial, AR and every method of a trial in turn; those of servers are
in `specbench.integrations.served`.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, singledispatch
from itertools import zip_longest
from types import MappingProxyType
from typing import Protocol

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.progress import doing
from specbench.decoding.decoder import Decoder, DraftingDecoder, QueryInfo, stream_seed
from specbench.decoding.loop import GenerationOutput, StopRules, WrittenText
from specbench.models.meters import Consumption
from specbench.records.folder import RunFolder
from specbench.records.generation import Generation, Key, Record, convert
from specbench.records.store import RecordStore
from specbench.running.capture_plan import (
    allocate_and_capture,
    allocate_and_capture_for_trial,
    check_nothing_compiled,
    log_compilation,
    num_compilations,
)
from specbench.running.events import Events
from specbench.running.models import LoadedModels
from specbench.running.plan import Plan, SubsetRun, Trial
from specbench.running.progress import announce
from specbench.running.warm_up import Budget, WarmUp, doing_warm_up, reset_drafters, warm_up_subset
from specbench.specs.run import RunSpec
from specbench.tasks.scoring import Reference, Scorer, judged, unscored

PROCESS = uuid.uuid4().hex[:12]


class Scheduler(Protocol):
    """Decides in which order a plan is measured."""

    def measure(self, plan: Plan, recorded: RecordStore, events: Events) -> None:
        """Measures what the folder of the plan lacks. Everything is on disk before the next measurement begins.
        `recorded`: the folder's records, to which those of trials are added."""


class InProcess:
    """Decodes in this process, trial by trial: a subset is warmed up before its first trial that is measured."""

    def measure(self, plan: Plan, recorded: RecordStore, events: Events) -> None:
        check_recorded(plan.trials, recorded, plan.folder)
        before = frozenset(recorded)
        num_missing = sum(trial.key not in before for trial in plan.trials)
        budget = Budget(plan.spec.warm_up)
        num_measured = 0
        current: SubsetRun | None = None  # the subset whose passes are captured
        repeats: dict[int, int] = {}  # the repeat that is measured, by id of the subset
        warm_ups: dict[int, Mapping[str, WarmUp]] = {}  # by id of the subset
        baseline_lengths: dict[Key, int] = {}  # AR's new tokens in the trials so far
        with events.trials(plan.trials):
            for number, trial in enumerate(plan.trials):
                if (old := recorded.get(trial.key)) is not None:
                    baseline_lengths[trial.key] = old.methods["ar"].num_new_tokens
                    events.trial_recorded(trial, old, is_new=False)
                    continue
                run = trial.run
                is_first = id(trial.run) not in warm_ups
                if is_first:
                    events.wait(number)
                # 1. Buffers and compiled passes for the longest conversation, so that none is made while measuring.
                if run is not current:
                    current = run
                    with doing(f"{run.task.name}/{run.subset}: getting the models ready"):
                        for compilation in allocate_and_capture(run, events.say):
                            events.say(log_compilation(plan.folder.path, compilation))
                # 2. Warm-up. Its time is a share of what is left to measure, as long as earlier answers let expect.
                if is_first:
                    budget.num_planned = planned_tokens(plan.trials, before, baseline_lengths)
                    budget.num_left = budget.num_planned * (1 - num_measured / num_missing)
                    with doing_warm_up(run) as tell:
                        warm_ups[id(run)] = warm_up_subset(run, budget, tell)
                # 3. Every repeat is an order of the prompts, which begins with empty memories.
                if repeats.setdefault(id(run), trial.repeat) != trial.repeat:
                    repeats[id(run)] = trial.repeat
                    reset_drafters(run.decoders)
                # 4. An earlier answer may need a longer pass than was foreseen, when its text is encoded again.
                earlier = [recorded[key] for key in trial.earlier_keys]
                for compilation in allocate_and_capture_for_trial(trial, earlier, events.say):
                    events.say(log_compilation(plan.folder.path, compilation))
                # 5. The trial, whose record is kept only if its time is nothing but decoding.
                num_compiled = num_compilations()
                record = measure(trial, plan.spec, earlier, warm_ups[id(run)], partial(events.wait, number))
                if run.models.target.static is not None:
                    check_nothing_compiled(num_compiled, trial)
                recorded.add(record)
                baseline_lengths[trial.key] = record.methods["ar"].num_new_tokens
                num_measured += 1
                events.trial_recorded(trial, record, is_new=True)
            events.wait(len(plan.trials))


@singledispatch
def schedulers(models: LoadedModels, plan: Plan, events: Events) -> list[Scheduler]:
    """Returns what measures a plan with these models: the scheduler of its trials, then others, which say of what they
    cannot measure. Packages with another class of models register theirs."""
    return [InProcess()]


def announce_trials(plan: Plan, recorded: Mapping[Key, Record], events: Events) -> None:
    """Says how many trials are measured, and which part of the data and of the folder's records they are."""
    runs = [run for run in plan.subset_runs if run.data.source == "sample"]
    num_examples, num_rows = sum(len(run.data.examples) for run in runs), sum(run.data.num_rows or 0 for run in runs)
    if plan.spec.limit is not None and num_examples < num_rows:
        events.say(f"{num_examples} of {num_rows} examples of the sample; --limit all measures all")
    num_done = sum(trial.key in recorded for trial in plan.trials)
    for line in plan.busy if num_done < len(plan.trials) else ():
        events.say(line)
    noun = "turns" if any(trial.turn for trial in plan.trials) else "examples"
    announce(events.console, len(plan.trials), num_done, plan.folder.path, noun)
    if num_others := len(recorded) - num_done:
        events.say(f"kept in the folder, and left out of the rows by this command: {counted(num_others, 'record')}")


def planned_tokens(trials: Sequence[Trial], before: Collection[Key], known: Mapping[Key, int]) -> int:
    """Returns an estimate of AR's new tokens in the trials that were not recorded `before`: their max_new_tokens times
    the mean share of max_new_tokens that `known` answers have (1 if there are none). `known`: their new tokens."""
    most = {trial.key: trial.run.task.generation.max_new_tokens for trial in trials}
    share = sum(known.values()) / sum(most[key] for key in known) if known else 1.0
    return int(share * sum(number for key, number in most.items() if key not in before))


def check_recorded(trials: Sequence[Trial], recorded: Mapping[Key, Record], folder: RunFolder) -> None:
    """Raises ConfigError if a trial was recorded with another prompt, other tokens or another reference than now."""
    for trial in trials:
        if (old := recorded.get(trial.key)) is None:
            continue
        run = trial.run
        where = f"{folder.path}: {run.task.name}/{run.subset} example {trial.example.id}"
        remedy = "choose another --output"
        if (old.prompt, old.reference) != (trial.prompt_digest, trial.reference):
            raise ConfigError(
                f"{where} was measured with another prompt or answer than {run.data.location} holds now; {remedy}"
            )
        if old.prompt_tokens is None or not all(key in recorded for key in trial.earlier_keys):
            continue
        baseline = run.decoders[0]
        earlier = [recorded[key] for key in trial.earlier_keys]
        prompt = trial.prompt(baseline.model, earlier_answers(earlier, baseline.method.name))
        num_tokens = len(prompt.packed_ids)
        digest = prompt.digest
        old_digest = old.prompt_ids_digest or digest  # earlier versions recorded only the number
        if (old.prompt_tokens, old_digest) != (num_tokens, digest):
            raise ConfigError(
                f"{where}: its prompt of the same text had {old.prompt_tokens} tokens (digest "
                f"{old.prompt_ids_digest or 'not recorded'}), and has {num_tokens} ({digest}) now: "
                f"the tokenizer or chat template of '{baseline.model.name}', or how it is used, changed; {remedy}"
            )


def measure(
    trial: Trial, spec: RunSpec, earlier: Sequence[Record] = (), warm_ups: Mapping[str, WarmUp] = MappingProxyType({}),
    wait: Callable[[], None] = lambda: None,
) -> Record:  # fmt: skip
    """Measures one trial and returns its record. `earlier`: the records of the earlier turns. `warm_ups`: by method.
    `wait`: is called before each generation."""
    results: dict[str, Generation] = {}
    for decoder in trial.order:
        name = decoder.method.name
        results[name] = measure_method(trial, decoder, spec, earlier_answers(earlier, name), wait)
        if name in warm_ups:
            results[name].warm_up = warm_ups[name].as_record()
    return record_of(trial, results, earlier)


def earlier_answers(earlier: Sequence[Record], name: str) -> list[str]:
    """Returns a method's answers to the earlier turns of a conversation, without their reasoning, as chat templates
    show them to a model."""
    return [record.methods[name].answer for record in earlier]


def measure_method(
    trial: Trial, decoder: Decoder, spec: RunSpec, answers: Sequence[str], wait: Callable[[], None] = lambda: None
) -> Generation:
    """Measures one method on a trial and returns its part of the record. `answers`: its own answers to the earlier
    turns. `wait`: is called before the generation."""
    run = trial.run
    example = trial.example
    name = decoder.method.name
    seed = trial_seed(spec.seed, (run.task.name, run.subset, example.index, trial.repeat, trial.turn), name)
    selected = decoder.select_decoder(seed, QueryInfo(run.task.language, example.turns[trial.turn]))
    needs_none = run.task.scorer is not None and not run.task.scorer.features.needs_reference
    reference = "" if trial.reference is None and needs_none else trial.reference
    prompt = trial.prompt(selected.model, answers)
    stop = selected.stop_rules(run.task.generation, run.context_limit)
    wait()
    with doing(f"{run.task.name}/{run.subset}, example {example.id}: {name} is generating"):
        consumption = Consumption(run.models.placement)
        output = selected.generate(prompt.ids, stop, seed)
        consumed = consumption.fields()
    return method_record(
        output, stop, prompt.ids, run.scorer, reference,
        **selected.record_fields, **memory_fields(selected), **consumed,
        truncated_tokens=trial.num_cut(answers) if trial.turn else None,
    )  # fmt: skip


def memory_fields(decoder: Decoder) -> dict[str, bool]:
    """Returns the field of a record that says whether the drafter left out an earlier answer to the same prompt."""
    left_out = decoder.drafter.left_out_own if isinstance(decoder, DraftingDecoder) else None
    return {} if left_out is None else {"left_out_own": left_out}


def trial_seed(seed: int, key: Key, method: str) -> int:
    """Returns the seed of a method's random stream for a trial. `seed`: that of the run."""
    task, subset, example, repeat, turn = key
    return stream_seed(seed, task, subset, example, repeat, method, *([turn] if turn else []))


def record_of(
    trial: Trial, results: Mapping[str, Generation], earlier: Sequence[Record], part: int | None = None
) -> Record:
    """Returns the record of a trial. `results`: each method's part, in the order of measurement. `part`: of a run whose
    servers take turns."""
    run, example = trial.run, trial.example
    baseline = run.decoders[0]
    answers = earlier_answers(earlier, baseline.method.name)
    prompt = trial.prompt(baseline.model, answers)
    num_truncated = trial.num_cut(answers) if trial.turn else example.truncated_tokens
    lengths = sorted(((budget.num_tokens, budget.model.name) for budget in run.renderer.budgets), reverse=True)
    budgets = {name: num_tokens for num_tokens, name in lengths}  # maximum prompt length in tokens of each model
    return convert(
        {
            "task": run.task.name,
            "subset": run.subset,
            "example": example.index,
            "id": example.id,
            "repeat": trial.repeat,
            "turn": trial.turn,
            "process": PROCESS,
            "measured_at": round(time.time(), 3),
            "order": list(results),
            "prompt": trial.prompt_digest,
            "prompt_ids_digest": prompt.digest,
            "prompt_tokens": len(prompt.packed_ids),
            "truncated_tokens": num_truncated,
            "budgets": budgets if num_truncated or any(g.truncated_tokens for g in results.values()) else None,
            "reference": trial.reference,
            "methods": {decoder.method.name: results[decoder.method.name] for decoder in run.decoders},
            "part": part,
        },
        Record,
    )


def method_record(
    output: GenerationOutput, stop: StopRules, prompt_ids: Sequence[int], scorer: Scorer | None,
    reference: Reference | None, **others: object,
) -> Generation:  # fmt: skip
    """Returns one method's part of a record: the output of its decoder, its text, and the scores. `others`: further
    fields."""
    written = WrittenText.of(stop, prompt_ids, output.token_ids)
    scores = score_fields(scorer, written.answer, reference) if scorer is not None else {"score": None}
    done: dict[str, object] = {
        "token_ids": output.token_ids,
        "finish": output.finish,
        "steps": [[s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted] for s in output.steps],
        **tree_fields(output),
        "positions": output.positions,
        "draw_overlap": output.draw_overlap,
        "draft_confidence": output.draft_confidence,
        "draft_entropy": output.draft_entropy,
        "passes": {"target": output.target_passes, "draft": output.draft_passes},
        "ttft_seconds": output.ttft_seconds,
        "draft_prefill_seconds": output.draft_prefill_seconds,
        "decode_seconds": output.decode_seconds,
        "rule_seconds": output.rule_seconds,
        "tokenizer_seconds": output.tokenizer_seconds,
        "external": output.external,
    }
    return convert({**done, **written.record_fields(), **scores, **others}, Generation)


def tree_fields(output: GenerationOutput) -> dict[str, object]:
    """Returns the fields of a record that only draft trees have; empty if all steps had chains."""
    steps = output.steps
    if all(step.num_nodes is None for step in steps):
        return {}

    def by_rank(siblings: Sequence[tuple[int, int | None]]) -> list[list[int]]:  # [verified, accepted] of each rank
        num_verified, num_accepted = Counter(num for num, _ in siblings), Counter(rank for _, rank in siblings)
        return [
            [sum(num_verified[num] for num in num_verified if num > rank), num_accepted[rank]]
            for rank in range(max(num_verified, default=0))
        ]

    levels = [list(filter(None, level)) for level in zip_longest(*(step.siblings for step in steps))]
    return {
        "tree_nodes": [step.num_nodes or 0 for step in steps],
        "tree_ranks": by_rank([each for level in levels for each in level]),
        "tree_levels": [by_rank(level) for level in levels],
        **({"tree_samples": output.tree_samples} if output.tree_samples else {}),
    }  # fmt: skip


def score_fields(scorer: Scorer, text: str, reference: Reference | None) -> dict[str, object]:
    """Returns the fields of a record that score an answer. `score` is the value of the main metric."""
    score = unscored(scorer.names) if reference is None else judged(scorer, text, reference)
    return {
        "score": score.values[scorer.names[0]],
        "scores": dict(score.values),
        **({"statistics": dict(score.statistics)} if score.statistics else {}),
        **({"problem": score.problem} if score.problem else {}),
        **({"outcome": dict(score.outcome)} if score.outcome else {}),
    }
