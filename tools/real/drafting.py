"""The page of drafting without trained heads, on the real pair, from the archived cells of the group DRAFTING."""

from collections.abc import Iterator, Sequence

import numpy as np

from specbench.analysis.advice.advise import replayed_lengths
from specbench.analysis.draft_lengths import length_name
from specbench.analysis.roofline.predict import Prediction
from specbench.report.captions import marked_speedup, verdict_word
from specbench.results.metric_format import number, speed, with_interval
from specbench.results.row import MIN_ORDERS, Row
from specbench.statistics.bootstrap import Estimate
from tools.drafters.cells import table

from .cells import CALIBRATED, CALIBRATION, CELLS, DRAFTING, FIXED_LENGTHS, MEMORIES, Cell
from .lengths import RECORDED, Mix, StepCosts, rates_of
from .measured import Measured
from .notes import below
from .page import conditions, data_words, differing

PAGE = "drafting.md"
TITLES = {"humaneval": "HumanEval", "gsm8k": "GSM8K", "mt-bench": "MT-Bench, first turns",
          "trace": "A repeated trace of an agent", "wmt": "WMT22, German to English"}  # fmt: skip
MEMORY_KINDS = {"cold": "cold", "warm": "warm", "orders": f"{MIN_ORDERS} orders"}
KINDS = {**{end: f"memory, {kind}" for end, kind in MEMORY_KINDS.items()}, "lengths": "length", "self": "itself",
         "gguf": "its file"}  # fmt: skip
MIXED = ("humaneval", "wmt")
NOT_YET = "Not measured yet.\n"

HEAD = """# Drafting without trained heads

`python -m tools.real MODELS_DIR --data DIR` measures the pair of [real pairs](real.md), Qwen2.5-Coder 1.5B with the
0.5B, bfloat16, greedy, with the drafters that need no training: [memories](../notes/memory.md), [draft lengths that
vary](../notes/draft_length.md), [the target as its own drafter](../notes/self_drafting.md) and a
[cascade](../notes/cascade.md). It writes this page from the records in `leaderboards/real`. Draft trees, and rules that
are lossy by design, are on the page of [real pairs](real.md). No head has been published for this target;
[heads](heads.md) has some that were trained here for a smaller one, and [the kit for other
verifiers](../guide/verifiers.md#what-it-found-in-public-verifiers) what it found in public ones.

{conditions}

Prompts, of which the cells with several orders and those of draft lengths and self-drafts take fewer:

{data}

- *Cold*: the memory is empty before each prompt. *Warm*: it has AR's answers of the cold cell to all other prompts.
  *Orders*: it has the answers to the prompts before, in {orders} random orders, which the intervals resample with the
  prompts. A prompt's own answer is never in it. In the trace, prompts are steps of the same files, so that a warm
  memory has answers of later steps too.
- `c`: median draft pass (or look-up) in target passes. `v`: mean verifying pass in AR's mean passes. `by costs`: τ ÷
  (k · c + v), with k draft passes per step. What the speed-up lacks of it is time outside of passes.
- *Chosen* lengths are those with the most tokens per cost, replayed, on {behind} together, none of which is measured.
- `self-quantized-gguf` drafts with the file that the target was dequantized from. **Both have the same weights**: the
  file alone would be the faster target, and the row is ranked nowhere.

| measured | not measured yet |
| --- | --- |
| {measured} | {missing} |
"""
ANSWERS = """
## Three questions

Intervals are 95 % over prompts, paired. In the first two, a ratio is of tokens/s, in one process for each task.
"""
LENGTHS = """
## Lengths that vary, against fixed ones

The fastest fixed length is chosen with the prompts that it is measured on, which favours it. `of oracle`: tokens per
cost, as a share of those of an oracle that knows the verdicts and takes the best part of each recorded draft.
"""
REPLAYED = """
## Lengths replayed by advise, against measured ones

[`advise`](../guide/examine.md#which-of-these-should-i-run-advise) proposes shorter draft lengths than a run has:
replayed from its verdicts and pass costs, not measured. Here the same process measured the shorter lengths, too.
`known`: the share of the needed verdicts that the records have; intervals are over prompts, and cover unknown verdicts.
"""


def page(found: Measured) -> str:
    """The whole page."""
    parts = [head(found), ANSWERS, *(f"- {line}\n" for line in answers(found)), "\n## Memory\n\n", memory_part(found)]
    parts += [LENGTHS, lengths_part(found), REPLAYED, replayed_part(found)]
    parts += [f"\n## {title}\n\n{task_part(found, task)}" for task, title in TITLES.items() if task != "wmt"]
    return "".join([*parts, commands_part(found)])


def own_cells() -> list[Cell]:
    return [cell for cell in CELLS if cell.group == DRAFTING]


def head(found: Measured) -> str:
    done = [cell for cell in own_cells() if found.has(cell.name)]
    left = [cell.name for cell in own_cells() if not found.has(cell.name)]
    most = {(cell.data.task, cell.data.folder): cell for cell in sorted(own_cells(), key=lambda cell: cell.data.limit)}
    behind = [f"{cell.data.num_prompts} rows of {cell.data.task}" for cell in own_cells() if cell.name in CALIBRATION]
    return HEAD.format(
        conditions=conditions(found, done) or NOT_YET.strip(), data=data_words(list(most.values())), orders=MIN_ORDERS,
        behind=" and ".join(behind), missing=", ".join(left) or "–",
        measured=", ".join(f"{cell.name} (n = {found.row(cell.name, 'ar').n})" for cell in done) or "–",
    )  # fmt: skip


def cells_of(found: Measured, task: str) -> dict[str, Cell]:
    """Returns the measured cells of a task by the end of their name."""
    measured = {cell.name: cell for cell in own_cells() if found.has(cell.name)}
    names = {end: f"{DRAFTING}-{task}-{end}" for end in KINDS}
    return {end: measured[name] for end, name in names.items() if name in measured}


def against_one(ratio: Estimate) -> str:
    """Where an interval lies."""
    if ratio.low is None or ratio.high is None:
        return "no interval"
    return "above 1" if ratio.low > 1 else "below 1" if ratio.high < 1 else "not separable from 1"


def answers(found: Measured) -> Iterator[str]:
    """Yields what was asked, with the measured answer."""
    # 1. Suffix trees and prompt lookup.
    ratios = []
    for task, title in TITLES.items():
        if (cell := cells_of(found, task).get("cold")) is not None:
            ratio = found.change(cell.name, "pld", "suffix", "tokens_per_second")
            ratios.append(f"{title} {with_interval(ratio, 3)}, {against_one(ratio)}")
    yield f"`suffix` ÷ `pld`, both cold: {'; '.join(ratios) or NOT_YET.strip()}"
    # 2. A length that varies: the one that was the best on other prompts.
    tasks = " and ".join(TITLES[task] for task in MIXED)
    mix = mixed(found, MIXED)
    if mix is None or not found.has(*CALIBRATION):
        yield f"A length that varies ÷ the best fixed one, on {tasks} together: {NOT_YET.strip()}"
    else:
        rates = rates_of([found.run(name) for name in CALIBRATION])
        policy = max(rates, key=lambda each: each[1])[0]["policy"]
        name, best = next(name for name, each in CALIBRATED.items() if each == policy), mix.fastest()
        ratio = mix.ratio(name, best)
        shares = [number(mix.metrics(each)["oracle_share"], 0, 100) for each in (name, best)]
        yield (
            f"A length that varies ÷ the best fixed one, on {tasks} together: {with_interval(ratio, 3)}, "
            f"{against_one(ratio)}. The one is {name}, the best on other prompts, with {shares[0]} % of its oracle's "
            f"tokens per cost; the other is {best}, with {shares[1]} % of its own oracle's"
        )
    # 3. The target with fewer bits.
    gains = []
    for task, title in TITLES.items():
        if (cell := cells_of(found, task).get("self")) is not None:
            row = found.row(cell.name, "self-quantized")
            costs = costs_of(found, cell, row)
            step = f"{costs.draft_passes:.1f} draft passes of {costs.c:.2f} and a verifying one of {costs.v:.2f}"
            gains.append(
                f"{title} {with_interval(row.metric('speedup'))}, {against_one(row.metric('speedup'))} "
                f"(τ {costs.emitted:.2f} for {step}: {costs.speedup:.2f} by costs)"
            )
    yield f"`self-quantized`, int8, against AR: {'; '.join(gains) or NOT_YET.strip()}"


def memory_part(found: Measured) -> str:
    """Speed-ups of each memory by its condition."""
    lines = []
    for task, title in TITLES.items():
        cells = cells_of(found, task)
        for method in MEMORIES:
            names = {end: cells[end].name for end in MEMORY_KINDS if end in cells and method in cells[end].methods}
            shown = []
            for end in MEMORY_KINDS:
                if end not in names:
                    shown.append("–")
                    continue
                row = found.row(names[end], method)
                few = f" ({row.repeats} orders only)" if end == "orders" and row.repeats < MIN_ORDERS else ""
                shown.append(marked_speedup(row, found.row(names[end], "ar")) + few)
            gain = "–"
            if "cold" in names and "warm" in names:
                gain = with_interval(found.between((names["cold"], method), (names["warm"], method), "speedup"))
            lines += [[title, method, *shown, gain]] if names else []
    heads = ["task", "method", *(f"speed-up, {kind}" for kind in MEMORY_KINDS.values()), "warm ÷ cold"]
    return table(heads, lines, 2) if lines else NOT_YET


def mixed(found: Measured, tasks: Sequence[str]) -> Mix | None:
    """Returns the answers with the lengths of several tasks; None unless all are measured."""
    names = [f"{DRAFTING}-{task}-lengths" for task in tasks]
    if not found.has(*names):
        return None
    records = [record for name in names for record in found.run(name).records.values()]
    return Mix(records, [f"sd-{length}" for length in FIXED_LENGTHS])


def lengths_part(found: Measured) -> str:
    """The mix of two tasks, then each task alone."""
    parts = []
    for tasks in (MIXED, *((task,) for task in TITLES)):
        mix = mixed(found, tasks)
        if mix is None:
            continue
        best, first = mix.fastest(), f"{DRAFTING}-{tasks[0]}-lengths"
        lines = []
        for name in (*mix.fixed, *CALIBRATED):
            metrics = mix.metrics(name)
            lines.append([
                name, length_name(found.row(first, name).options["draft_length"]) if name in CALIBRATED else "",
                number(metrics["draft_length"], 2), number(metrics["mean_acceptance_length"], 2),
                number(metrics["oracle_share"], 0, 100), number(mix.speed(name), 1), with_interval(metrics["speedup"]),
                "1" if name == best else with_interval(mix.ratio(name, best), 3),
            ])  # fmt: skip
        told = f"The fastest fixed length is that of {best}."
        if len(tasks) > 1:
            alone = [f"that of {only.fastest()} on {TITLES[task]}" for task in tasks if (only := mixed(found, (task,)))]
            told += f" Alone, it is {' and '.join(alone)}."
        heads = ["method", "length", "drafted per step", "τ", "of oracle, %", "tok/s", "speed-up", f"÷ {best}"]
        parts.append(f"### {' and '.join(TITLES[task] for task in tasks)}\n\n{told}\n\n{table(heads, lines, 2)}")
    return "\n" + ("\n".join(parts) or NOT_YET)


def replays(found: Measured) -> Iterator[tuple[Cell, str, Prediction, Row]]:
    """Yields each measured draft length as a longer one of its cell is replayed at it: the cell, the longer method, the
    replay, and the measured row."""
    lengths = {f"sd-{length}": length for length in FIXED_LENGTHS}
    for cell in own_cells():
        fixed = [name for name in lengths if name in cell.methods]
        sources = [name for name in (RECORDED, *reversed(fixed)) if name in cell.methods]
        if not found.has(cell.name) or len(fixed) < 2:
            continue
        run = found.run(cell.name)
        for source in sources:
            replayed = {
                each.num_draft_tokens: each
                for each in replayed_lengths(run, run.with_records(found.row(cell.name, source)))
            }
            for name in fixed:
                if lengths[name] in replayed and name != source:
                    yield cell, source, replayed[lengths[name]], found.row(cell.name, name)


def replayed_part(found: Measured) -> str:
    """A line for each replayed length that was measured, and how far they are apart."""
    lines, off = [], dict[str, list[float]]()
    for cell, source, replay, row in replays(found):
        pairs = {
            "τ": (replay.mean_acceptance_length, row.metric("mean_acceptance_length")),
            "the speed-up": (replay.speedup, row.metric("speedup")),
        }
        ratios = {name: (one.value or 0.0) / (other.value or 1.0) for name, (one, other) in pairs.items()}
        for name, ratio in ratios.items():
            off.setdefault(name, []).append(abs(ratio - 1))
        length, speedup = pairs.values()
        lines.append([
            f"{TITLES[cell.name.split('-')[1]]}{' (calibration)' * (cell.name in CALIBRATION)}", source,
            str(row.num_draft_tokens), number(replay.known_share, 0, 100), number(length[0], 2), number(length[1], 2),
            *map(with_interval, speedup), number(ratios["the speed-up"], 3),
        ])  # fmt: skip
    if not lines:
        return f"\n{NOT_YET}"
    heads = ["prompts", "from", "to γ", "known, %", "τ, replayed", "τ", "speed-up, replayed", "speed-up", "÷ measured"]
    told = ", ".join(
        f"in {name} by at most {max(each):.1%} (median {np.median(each):.1%})" for name, each in off.items()
    )
    return f"\nThe replay is off {told}.\n\n{table(heads, lines, 2)}"


TASK_HEADS = ["drafter", "method", "γ", "τ", "c", "v", "by costs", "tok/s", "speed-up", "verdict", "differ"]


def task_part(found: Measured, task: str) -> str:
    """A line for each method of each cell of a task, and the reasons of marks below."""
    pairs = [(cell, row, KINDS[end]) for end, cell in cells_of(found, task).items() for row in found.whole(cell)]
    lines = []
    for cell, row, kind in pairs:
        costs = costs_of(found, cell, row)
        is_chosen = row.method_name in CALIBRATED
        lines.append([
            kind, row.method_name + (f": {length_name(row.options['draft_length'])}" if is_chosen else ""),
            str(row.num_draft_tokens), number(row.metric("mean_acceptance_length"), 2),
            *(["–", "–", "1"] if row.is_baseline else [f"{each:.2f}" for each in (costs.c, costs.v, costs.speedup)]),
            speed(row.metric("tokens_per_second")),
            "1" if row.is_baseline else marked_speedup(row, found.row(cell.name, "ar")),
            verdict_word(row), differing(found, cell, row),
        ])  # fmt: skip
    return table(TASK_HEADS, lines, 2) + below(found, [(cell, row) for cell, row, _ in pairs]) if lines else NOT_YET


def costs_of(found: Measured, cell: Cell, row: Row) -> StepCosts:
    pair = found.run(cell.name).with_records(row)
    return StepCosts.of(pair.own, pair.baseline)


def commands_part(found: Measured) -> str:
    """The command of every measured cell, as its run recorded it."""
    commands = [found.row(cell.name, "ar").command for cell in own_cells() if found.has(cell.name)]
    if not commands:
        return ""
    told = "In the work folder of `python -m tools.real`, which has the models, rows and method files:"
    return f"\n## Commands\n\n{told}\n\n```bash\n" + "\n".join(commands) + "\n```\n"
