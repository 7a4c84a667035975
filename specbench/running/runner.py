"""The runner: measures AR and every method in one process, block by block, and records each block."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.progress import Say, doing
from specbench.core.reasoning import part_answer
from specbench.decoding.decoder import Decoder, QueryInfo, stream_seed
from specbench.decoding.loop import Output, StopRules, WrittenText
from specbench.models.meters import Consumption
from specbench.records.folder import RunFolder
from specbench.records.generation import Generation, Key, Record, convert
from specbench.running.capture_plan import (
    allocate_and_capture,
    allocate_and_capture_for_trial,
    check_nothing_compiled,
    log_compilation,
    num_compilations,
)
from specbench.running.plan import Trial
from specbench.running.warm_up import Budget, WarmUp, doing_warm_up, warm_up_cell
from specbench.specs.run import RunSpec
from specbench.tasks.scoring import Reference, Scorer, judged, unscored

PROCESS = uuid.uuid4().hex[:12]
Wait = Callable[[int], None]


def run(
    spec: RunSpec,
    plan: Sequence[Trial],
    folder: RunFolder,
    done: Mapping[Key, Record],
    report: Callable[[Trial, Record, bool], None],
    say: Say,
    wait: Wait,
) -> list[Record]:
    """Measures every block of the plan that is not recorded yet. Returns the records of all blocks, old and new.

    `report(block, record, measured)` is called after each block. A record is on disk before the next block begins. A
    cell is warmed up before its first measured block; `say` receives lines about its compiled or recorded passes.
    `wait` is called with the block's number before each warm-up and each generation, and after the last block; it
    returns when this process may continue.
    """
    check_same_examples(plan, done, folder)
    check_reasoning(plan, done, folder)
    records: dict[Key, Record] = {}
    cell = None  # the last one measured
    warm_ups: dict[int, Mapping[str, WarmUp]] = {}  # by id of the cell
    budget, num_measured, num_missing = Budget(spec.warm_up), 0, sum(block.key not in done for block in plan)
    for number, block in enumerate(plan):
        old = done.get(block.key)
        earlier = [records[key] for key in block.earlier_keys]
        if old is None:
            is_first = id(block.cell) not in warm_ups
            if is_first:
                wait(number)
            if block.cell is not cell:
                cell = block.cell
                with doing(f"{cell.task.name}/{cell.subset}: getting the models ready") as tell:
                    for compilation in allocate_and_capture(cell, both(tell, say)):
                        say(log_compilation(folder.path, compilation))
            if is_first:
                budget.num_planned = planned_tokens(plan, done, records)
                budget.num_left = budget.num_planned * (1 - num_measured / num_missing)
                with doing_warm_up(cell) as tell:
                    warm_ups[id(cell)] = warm_up_cell(cell, budget, tell)
            for compilation in allocate_and_capture_for_trial(block, earlier, say):
                say(log_compilation(folder.path, compilation))
        num_compiled = num_compilations()
        record = old or measure(block, spec, earlier, warm_ups[id(cell)], partial(wait, number))
        if old is None:
            if cell is not None and cell.models.target.static is not None:
                check_nothing_compiled(num_compiled, block)
            folder.records.append(record)
            num_measured += 1
        records[block.key] = record
        report(block, record, old is None)
    wait(len(plan))
    return list(records.values())


def both(first: Say, second: Say) -> Say:
    """Returns a function that gives a line to both."""

    def tell(line: str) -> None:
        first(line)
        second(line)

    return tell


def planned_tokens(plan: Sequence[Trial], done: Mapping[Key, Record], records: Mapping[Key, Record]) -> int:
    """Returns an estimate of AR's new tokens in the blocks that are not `done`: their max_new_tokens times the mean
    share of max_new_tokens that the answers in `records` have (1 if there are none)."""
    most = {block.key: block.cell.task.generation.max_new_tokens for block in plan}
    num_found = sum(len(record["methods"]["ar"]["token_ids"]) for record in records.values())
    share = num_found / sum(most[key] for key in records) if records else 1.0
    return int(share * sum(number for key, number in most.items() if key not in done))


def check_same_examples(plan: Sequence[Trial], done: Mapping[Key, Record], folder: RunFolder) -> None:
    """Raises ConfigError if a block was recorded with another prompt, other tokens or another reference than now.
    Of records of earlier versions, which have no digest of the tokens, their number is compared."""
    for block in plan:
        old = done.get(block.key)
        if old is None:
            continue
        cell = block.cell
        where = f"{folder.path}: {cell.task.name}/{cell.subset} example {block.example.id}"
        if (old["prompt"], old["reference"]) != (block.prompt_digest, block.reference):
            raise ConfigError(
                f"{where} was measured with another prompt or answer than {cell.data.location} holds now; choose "
                "another --output"
            )
        if "prompt_tokens" in old and all(key in done for key in block.earlier_keys):
            baseline = cell.decoders[0]
            earlier = [done[key] for key in block.earlier_keys]
            prompt = block.prompt(baseline.model, earlier_answers(earlier, baseline.method.name))
            num_tokens, digest = len(prompt.packed_ids), prompt.digest
            if (old["prompt_tokens"], old.get("prompt_ids_digest", digest)) != (num_tokens, digest):
                raise ConfigError(
                    f"{where}: its prompt of the same text had {old['prompt_tokens']} tokens (digest "
                    f"{old.get('prompt_ids_digest', 'not recorded')}), and has {num_tokens} ({digest}) now: "
                    f"the tokenizer or chat template of '{baseline.model.name}', or how it is used, changed; choose "
                    "another --output"
                )


def check_reasoning(plan: Sequence[Trial], done: Mapping[Key, Record], folder: RunFolder) -> None:
    """Raises ConfigError for a record of an earlier version that took reasoning for a part of the answer."""
    for block in plan:
        tags, old = block.cell.task.generation.reasoning, done.get(block.key)
        if tags is None or old is None:
            continue
        for decoder in block.cell.decoders:
            found = old["methods"][decoder.method.name]
            if "answer" in found or found.get("decoded_by") == "drafter":
                continue
            text = decoder.model.decode_text(found["token_ids"], tags)
            if tags.open not in text and tags.close not in text:
                continue
            answers = earlier_answers([done[key] for key in block.earlier_keys], decoder.method.name)
            rules = decoder.stop_rules(block.cell.task.generation, None)
            is_open = rules.opens_reasoning(block.prompt(decoder.model, answers).ids)
            if part_answer(text, tags, is_open).end:
                raise ConfigError(
                    f"{folder.path}: an earlier version scored the reasoning of {block.cell.task.name}/"
                    f"{block.cell.subset} example {block.example.id} ({decoder.method.name}) as a part of the answer; "
                    "choose another --output"
                )


def measure(
    block: Trial, spec: RunSpec, earlier: Sequence[Record] = (), warm_ups: Mapping[str, WarmUp] = MappingProxyType({}),
    wait: Callable[[], None] = lambda: None,
) -> Record:  # fmt: skip
    """Measures one block and returns its record. `earlier`: the records of the earlier turns. `warm_ups`: by method.
    `wait`: is called before each generation."""
    results: dict[str, Generation] = {}
    for decoder in block.order:
        name = decoder.method.name
        results[name] = measure_method(block, decoder, spec, earlier_answers(earlier, name), wait)
        if name in warm_ups:
            results[name].warm_up = warm_ups[name].as_record()
    return record_of(block, results, earlier)


def earlier_answers(earlier: Sequence[Record], name: str) -> list[str]:
    """Returns a method's answers to the earlier turns of a conversation, without their reasoning, as chat templates
    show them to a model."""
    return [record.methods[name].answer for record in earlier]


def measure_method(
    block: Trial, decoder: Decoder, spec: RunSpec, answers: Sequence[str], wait: Callable[[], None] = lambda: None
) -> Generation:
    """Measures one method on a block and returns its part of the record. `answers`: its own answers to the earlier
    turns. `wait`: is called before the generation."""
    cell, example, name = block.cell, block.example, decoder.method.name
    turn = [block.turn] if block.turn else []
    seed = stream_seed(spec.seed, cell.task.name, cell.subset, example.index, block.repeat, name, *turn)
    selected = decoder.select_decoder(seed, QueryInfo(cell.task.language, example.turns[block.turn]))
    needs_none = cell.task.scorer is not None and not cell.task.scorer.features.needs_reference
    reference = "" if block.reference is None and needs_none else block.reference
    prompt = block.prompt(selected.model, answers)
    stop = selected.stop_rules(cell.task.generation, cell.context_limit)
    wait()
    with doing(f"{cell.task.name}/{cell.subset}, example {example.id}: {name} is generating"):
        consumption = Consumption(cell.models.placement)
        output = selected.generate(prompt.ids, stop, seed)
        consumed = consumption.fields()
    return method_record(
        output, stop, prompt.ids, cell.scorer, reference,
        **decoder.record_fields(selected), **consumed,
        truncated_tokens=block.num_cut(answers) if block.turn else None,
    )  # fmt: skip


def record_of(
    block: Trial, results: Mapping[str, Generation], earlier: Sequence[Record], part: int | None = None
) -> Record:
    """Returns the record of a block. `results`: each method's part, in the order of measurement. `part`: of a run whose
    servers take turns."""
    cell, example = block.cell, block.example
    baseline = cell.decoders[0]
    answers = earlier_answers(earlier, baseline.method.name)
    prompt = block.prompt(baseline.model, answers)
    num_truncated = block.num_cut(answers) if block.turn else example.truncated_tokens
    lengths = sorted(((budget.num_tokens, budget.model.name) for budget in cell.budgets), reverse=True)
    budgets = {name: num_tokens for num_tokens, name in lengths}  # maximum prompt length in tokens of each model
    return convert(
        {
            "task": cell.task.name,
            "subset": cell.subset,
            "example": example.index,
            "id": example.id,
            "repeat": block.repeat,
            "turn": block.turn,
            "process": PROCESS,
            "measured_at": round(time.time(), 3),
            "order": list(results),
            "prompt": block.prompt_digest,
            "prompt_ids_digest": prompt.digest,
            "prompt_tokens": len(prompt.packed_ids),
            "truncated_tokens": num_truncated,
            "budgets": budgets if num_truncated or any(g.truncated_tokens for g in results.values()) else None,
            "reference": block.reference,
            "methods": {decoder.method.name: results[decoder.method.name] for decoder in cell.decoders},
            "part": part,
        },
        Record,
    )


def method_record(
    output: Output, stop: StopRules, prompt_ids: Sequence[int], scorer: Scorer | None, reference: Reference | None,
    **others: Any,
) -> Generation:  # fmt: skip
    """Returns one method's part of a record: the output of its decoder, its text, and the scores. `others`: further
    fields."""
    written = WrittenText.of(stop, prompt_ids, output.token_ids)
    scores = score_fields(scorer, written.answer, reference) if scorer is not None else {"score": None}
    return convert({**generation_fields(output), **written.record_fields(), **scores, **others}, Generation)


def generation_fields(output: Output) -> dict[str, Any]:
    """Returns the fields of a record that describe what a decoder did; the metrics read them."""
    return {
        "token_ids": output.token_ids,
        "finish": output.finish,
        "steps": [[s.num_drafted, s.num_judged, s.num_accepted, s.num_emitted] for s in output.steps],
        **tree_fields(output),
        "positions": output.positions,
        "draw_overlap": output.draw_overlap,
        "passes": {"target": output.target_passes, "draft": output.draft_passes},
        "ttft_seconds": output.ttft_seconds,
        "draft_prefill_seconds": output.draft_prefill_seconds,
        "decode_seconds": output.decode_seconds,
        "rule_seconds": output.rule_seconds,
        "tokenizer_seconds": output.tokenizer_seconds,
        "external": asdict(output.external) if output.external else None,
    }


def tree_fields(output: Output) -> dict[str, Any]:
    """Returns the fields of a record that only draft trees have; empty if all steps had chains."""
    steps = output.steps
    if all(step.num_nodes is None for step in steps):
        return {}
    levels = [list(filter(None, level)) for level in zip_longest(*(step.siblings for step in steps))]
    return {
        "tree_nodes": [step.num_nodes or 0 for step in steps],
        "tree_ranks": counts_by_rank([each for level in levels for each in level]),
        "tree_levels": [counts_by_rank(level) for level in levels],
        **({"tree_samples": output.tree_samples} if output.tree_samples else {}),
    }  # fmt: skip


def counts_by_rank(siblings: Sequence[tuple[int, int | None]]) -> list[list[int]]:
    """Returns [judged, accepted] for each rank, given the entries of `Step.siblings`."""
    num_judged, num_accepted = Counter(num for num, _ in siblings), Counter(rank for _, rank in siblings)
    ranks = range(max(num_judged, default=0))
    return [[sum(num_judged[num] for num in num_judged if num > rank), num_accepted[rank]] for rank in ranks]


def score_fields(scorer: Scorer, text: str, reference: Reference | None) -> dict[str, Any]:
    """Returns the fields of a record that score an answer. `score` is the value of the main metric."""
    score = unscored(scorer.names) if reference is None else judged(scorer, text, reference)
    return {
        "score": score.values[scorer.names[0]],
        "scores": dict(score.values),
        **({"statistics": dict(score.statistics)} if score.statistics else {}),
        **({"problem": score.problem} if score.problem else {}),
        **({"outcome": dict(score.outcome)} if score.outcome else {}),
    }
