"""The warnings of a row: reasons to doubt its speed-up, each with its number and a remedy."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specbench.core.console import counted
from specbench.records.folder import unused_ends_of
from specbench.records.generation import WarmUpRecord
from specbench.results.answers import Answer, joined
from specbench.results.conditions import differences
from specbench.results.metric_format import with_interval
from specbench.results.row import MIN_ORDERS, SHUFFLED, Row, RowWarmUp, RowWarning
from specbench.results.verdict import control_outcomes
from specbench.statistics import special
from specbench.statistics.bootstrap import SMALL_SAMPLE, TAILS, Array, Estimate, Resampler

# What to do, at the end of a warning: for whoever measured, not for the readers of a paper.
REMEDY = re.compile(
    r"([:;] (for × [\d.]+ )?(measure|judge by|see|check|switch|add|set|run) .*| \(docs/[\w/.-]+\))$", re.DOTALL
)


def fact_of(text: str) -> str:
    """Returns the text of a warning without what to do."""
    return REMEDY.sub("", text)


MIN_PROMPTS = 5  # in each third; with fewer, one slow prompt would look like a drift
MANY_PROMPTS = SMALL_SAMPLE // 3  # in each third; with fewer, the jackknife errors are too uncertain
TOLERATED = 1.05  # a smaller drift is ignored: the method, measured alternately with the baseline, drifts alike


def drift_of(seconds: Array, tokens: Array, prompt_tokens: Array, prompts: np.ndarray) -> Estimate:
    """Returns AR's speed in the last third of the run ÷ in the first third, with its interval; null if a third has
    fewer than MIN_PROMPTS prompts, or fewer than MANY_PROMPTS and prompts have several answers. All arrays are
    [num_answers], in the order of measurement. `prompts`: the number of each answer's prompt, from 0."""
    size = len(seconds) // 3
    nums = [len(set(third.tolist())) for third in (prompts[:size], prompts[len(seconds) - size :])]
    has_many = min(nums) >= MANY_PROMPTS
    is_repeated = len(set(prompts.tolist())) < len(prompts)
    if min(nums) < MIN_PROMPTS or (is_repeated and not has_many) or not (seconds > 0).all():
        return Estimate()
    place = np.arange(len(seconds))
    last = place >= len(seconds) - size
    columns = [prompt_tokens + tokens / 2, 1 / tokens, (place >= size) & ~last, last]
    design = np.column_stack([np.ones(len(seconds)), *(_scaled(np.asarray(c, dtype=np.float64)) for c in columns)])
    speeds = np.log(seconds / tokens)
    drift, error, num_free = (
        (*_last_coefficient(design, speeds, prompts), sum(nums) - 2) if has_many else _least_squares(design, speeds)
    )
    # the last column is 1 in the last third and was scaled to a width of 1, so its coefficient is the log ratio
    half = special.stdtrit(num_free, TAILS[1]) * error
    ends = [float(np.exp(-drift + sign * half)) for sign in (-1, 1)]
    return Estimate(value=float(np.exp(-drift)), low=ends[0], high=ends[1]) if np.isfinite(ends).all() else Estimate()


def has_drifted(ratio: Estimate) -> bool:
    """Returns whether the whole interval lies beyond TOLERATED on one side."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > TOLERATED or ratio.high < 1 / TOLERATED


def _scaled(column: Array) -> Array:
    """Returns a column centred and scaled to a width of 1; zeros for a column of equal values."""
    width = np.ptp(column)
    return (column - column.mean()) / width if width > 1e-9 * abs(column).max() else np.zeros_like(column)


def _last_coefficient(design: Array, values: Array, prompts: np.ndarray) -> tuple[float, float]:
    """Returns the least squares coefficient of the last column, and its standard error by the jackknife over
    prompts."""
    num_prompts, num_columns = int(prompts.max()) + 1, design.shape[1]
    products, targets = np.zeros((num_prompts, num_columns, num_columns)), np.zeros((num_prompts, num_columns))
    np.add.at(products, prompts, design[:, :, None] * design[:, None, :])
    np.add.at(targets, prompts, design * values[:, None])
    whole, target = products.sum(axis=0), targets.sum(axis=0)
    coefficient = float((np.linalg.pinv(whole, hermitian=True) @ target)[-1])
    without = np.linalg.pinv(whole - products, hermitian=True) @ (target - targets)[:, :, None]
    deviations = without[:, -1, 0] - coefficient
    return coefficient, float(np.sqrt((num_prompts - 1) / num_prompts * np.square(deviations).sum()))


def _least_squares(design: Array, values: Array) -> tuple[float, float, int]:
    """Returns the least squares coefficient of the last column, its standard error for independent errors of equal
    variance, and the degrees of freedom."""
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    coefficients = inverse @ design.T @ values
    num_free = len(values) - int(np.linalg.matrix_rank(design))
    errors = values - design @ coefficients
    return float(coefficients[-1]), float(np.sqrt(errors @ errors / num_free * inverse[-1, -1])), num_free


WIDE = 1.25  # high ÷ low of an interval that is too wide to separate a method from one that is a quarter faster


def warnings_of(
    row: Row, own: Sequence[Answer], baseline: Sequence[Answer], num_trained_on: int = 0,
    identity: Mapping[str, Any] | None = None,
) -> tuple[RowWarning, ...]:  # fmt: skip
    """Returns the warnings of a row. `own`, `baseline`: its answers and AR's. `num_trained_on`: the number of measured
    prompts on which its drafter was trained. `identity`: the content of run.json."""
    texts = {
        "wide_interval": wide_interval(row),
        "few_prompts": few_prompts(row),
        "ar_drift": drift(row, len({answer.process for answer in own})),
        "uneven_sessions": uneven_sessions(row, baseline),
        "busy": busy(row, own, baseline),
        "not_steady": unsteady_start(row, warm_up_of(baseline)),
        "implausible": implausible(row),
        "trained_on_test": num_trained_on
        and f"the drafter was trained on {num_trained_on} of the {row.n} measured prompts, as its training.json says, "
        "so it may know them better than others: measure prompts that it was not trained on, or train it on others",
        "misread_head": misread_head(row, own),
        "loops": loops(row),
        "ends_at_once": ends_at_once(row, own, baseline),
        "past_end": past_end(row, own, baseline, unused_ends_of(identity or {})),
        "cheap_passes": cheap_passes(row, own, baseline),
        "uneven_drafts": uneven_drafts(row, own, baseline),
        "few_orders": few_orders(row),
        **(served_warnings(row, own, baseline, identity) if identity and row.served and not row.is_baseline else {}),
    }
    return tuple(RowWarning.model_validate({"code": code, "text": text}) for code, text in texts.items() if text)


def warm_up_of(own: Sequence[Answer]) -> RowWarmUp | None:
    """Returns the warm-up of a method, counting each once although many records hold it; None if a record lacks it."""
    starts: dict[object, dict[str, WarmUpRecord]] = {}  # by process and part of a rotation: each subset's warm-up
    for answer in own:
        if answer.warm_up is None:
            return None
        starts.setdefault((answer.process, answer.part), {})[answer.subset] = answer.warm_up
    return RowWarmUp.of([list(each.values()) for each in starts.values()]) if starts else None


def wide_interval(row: Row) -> str | None:
    """Warns of a speed-up whose interval ends are more than a factor of WIDE apart. The width on the log scale falls
    with the root of the number of prompts (or of turns of servers), so (width ÷ wanted width)² times as many are
    needed."""
    speedup = row.metric("speedup")
    if not speedup.low or not speedup.high or speedup.low < 0 or speedup.high / speedup.low <= WIDE:
        return None
    ratio = speedup.high / speedup.low
    turns = row.served.turns if row.served is not None else None
    resampled, number = ("turns", turns) if turns else ("prompts", row.num_timed)
    needed = math.ceil(number * ((math.log(speedup.high) - math.log(speedup.low)) / math.log(WIDE)) ** 2)
    return (
        f"the speed-up's interval is wide, {speedup.low:.2f} to {speedup.high:.2f} (× {ratio:.2f}): for × {WIDE} "
        f"measure about {needed} {resampled} instead of {number}, or on a quieter machine"
    )


def few_prompts(row: Row) -> str | None:
    """Warns of a speed-up from so few prompts that its interval may be too narrow or absent."""
    if not row.has_few_prompts:
        return None
    prompts = counted(row.num_timed, "prompt")
    has_interval = row.metrics["speedup"].low is not None
    problem = (
        f"the speed-up's interval rests on {prompts} and may be too narrow"
        if has_interval
        else f"the speed-up rests on {prompts} and has no interval"
    )
    return f"{problem}: measure {SMALL_SAMPLE} or more"


def few_orders(row: Row) -> str | None:
    """Warns of a drafter that learns from prompt to prompt and was measured in fewer than MIN_ORDERS orders of them. A
    server has one order, of which another warning tells."""
    if row.memory != SHUFFLED or row.served is not None or row.repeats >= MIN_ORDERS:
        return None
    interval = "the interval knows nothing of others" if row.repeats == 1 else "the interval over them is wide"
    return (
        f"its drafter learns from prompt to prompt and was measured in only {counted(row.repeats, 'order')} of the "
        f"prompts, on which its speed depends, and {interval}: measure with --repeats {MIN_ORDERS} or more"
    )


def drift(row: Row, num_processes: int) -> str | None:
    """Warns of a baseline whose speed changed during the run. The effect on the speed-up is unknown, since the method
    ran alternately with the baseline, and may gain or lose from the same change. The baseline gets no such warning."""
    ratio = row.metric("ar_drift")
    if row.metric("speedup").low is None or not has_drifted(ratio):
        return None
    resumed = f", {num_processes} processes one after the other," if num_processes > 1 else ""
    return (
        f"in the last third of the run{resumed} the baseline ran at {with_interval(ratio)} times its speed in the "
        "first third, so load or clock changed: measure again into another folder, without a break and with nothing "
        "else running"
    )


def uneven_sessions(row: Row, baseline: Sequence[Answer]) -> str | None:
    """Warns of a run in several processes, in one of which AR's median speed was more than WIDE times that in another:
    also of so few prompts that no drift has an interval. Speeds are compared within a subset, as long prompts are
    slower, and a process may have measured other subsets than the next one."""
    speeds: dict[str, dict[str, list[float]]] = {}  # by subset and process
    for answer in baseline:
        if answer.process is not None and answer.decode_seconds > 0 and answer.num_timed_tokens > 0:
            of_subset = speeds.setdefault(answer.subset, {})
            of_subset.setdefault(answer.process, []).append(answer.num_timed_tokens / answer.decode_seconds)
    relative: dict[str, list[float]] = {}  # by process, to the median of the subset
    for of_subset in speeds.values():
        middle = float(np.median([speed for each in of_subset.values() for speed in each]))
        for process, each in of_subset.items():
            relative.setdefault(process, []).extend(speed / middle for speed in each)
    medians = [float(np.median(each)) for each in relative.values()]
    if len(medians) < 2 or max(medians) <= WIDE * min(medians) or has_drifted(row.metric("ar_drift")):
        return None
    return (
        f"of the {len(medians)} processes that measured it one after the other, the baseline ran in one at "
        f"{max(medians) / min(medians):.2f} times its speed in another (medians), so load or clock changed: measure "
        "again into another folder, without a break and with nothing else running"
    )


WAITING = 0.1  # seconds of waiting for a CPU in each second of decoding, of all threads together


def busy(row: Row, own: Sequence[Answer], baseline: Sequence[Answer]) -> str | None:
    """Warns of threads that waited for a CPU while they decoded, as other programs took it or there are more threads
    than cores."""
    shares = []
    for side in (own, baseline):
        known = [(each.cpu_wait_seconds, each.seconds) for each in side if each.cpu_wait_seconds is not None]
        seconds = sum(of_answer for _, of_answer in known)
        shares.append(sum(waited for waited, _ in known) / seconds if seconds > 0 else 0.0)
    if max(shares) <= WAITING:
        return None
    of_baseline = "" if row.is_baseline else f" (ar's {shares[1]:.2f} s)"
    fewer_threads = "" if row.device.endswith(", 1 thread") else ", or with fewer --threads"
    return (
        f"its threads waited for a CPU, together {shares[0]:.2f} s in each second{of_baseline}, as more of them and of "
        "other programs were ready than the machine has cores, so speeds are too low: measure again into another "
        f"folder with nothing else running{fewer_threads}"
    )


def unsteady_start(row: Row, baseline: RowWarmUp | None) -> str | None:
    """Warns of a method whose speed, or its baseline's, was not steady at the start of the measurement. `baseline`: the
    warm-up of AR."""
    if row.warm_up is not None and row.warm_up.steady is False:
        return not_steady(row.warm_up.blocks, row.warm_up.seconds)
    is_other = baseline is not None and baseline.steady is False and not row.is_baseline
    return not_steady(baseline.blocks, baseline.seconds, "speed of ar") if baseline and is_other else None


def not_steady(blocks: int, seconds: float, what: str = "speed") -> str:
    """Returns the warning of a warm-up that ended before the speed was steady."""
    return (
        f"the {what} was not steady after the warm-up ({counted(blocks, 'block')}, {seconds:.0f} s): measure again, "
        "into another folder, with nothing else running"
    )


POSSIBLE = 1.1  # speed-up ÷ τ at most, as a pass over several tokens may be measured a little cheaper than over one


def implausible(row: Row) -> str | None:
    """Warns of a speed-up that its tokens per target pass do not allow, as passes over several tokens take no less time
    than passes over one. Code with its own passes, servers, and methods whose drafter decodes some tokens alone may
    differ from their baseline in more than drafts."""
    speedup, length = row.metric("speedup"), row.value("mean_acceptance_length")
    lowest = speedup.value if speedup.low is None else speedup.low
    has_other_passes = row.served is not None or not {"decoder", "decodes_with"}.isdisjoint(row.options)
    if length is None or lowest is None or has_other_passes or lowest <= POSSIBLE * length:
        return None
    return (
        f"a speed-up of {lowest:.2f} or more is not possible with {length:.2f} tokens per target pass, so passes of ar "
        "were disturbed: measure again, with more prompts, a longer --warm-up, or nothing else running"
    )


MAX_CHANGE = 0.05  # of speed-up and τ by answers with loops


def loops(row: Row) -> str | None:
    """Warns of answers with loops that change the speed-up or τ, or of which there is one at every prompt. Drafters
    predict loops more easily than other text."""
    pairs = {
        label: (row.value(name), row.value(f"{name}_without_loops"))
        for name, label in (("speedup", "speed-up"), ("mean_acceptance_length", "τ"))
    }
    own, baseline = (row.value(f"share_looping{side}") or 0.0 for side in ("", "_ar"))
    shares = f"{own:.0%} of its answers and {baseline:.0%} of ar's repeat themselves in loops"
    told = shares if own or baseline else ANOTHER_LOOPS
    if "speedup_without_loops" in row.metrics and not any(without for _, without in pairs.values()):
        return f"{told}; at every prompt one of the methods loops, so that nothing is without: measure other prompts"
    changed = [
        f"a {label} of {without:.2f} instead of {whole:.2f}"
        for label, (whole, without) in pairs.items()
        if whole and without and abs(whole / without - 1) > MAX_CHANGE
    ]
    if not changed:
        return None
    return (
        f"{told}; the prompts at which no "
        f"method does give {' and '.join(changed)}: judge by these, or measure other prompts or fewer new tokens"
    )


ANOTHER_LOOPS = (
    "none of its answers and none of ar's repeat themselves in loops, but those of another method of the run do"
)
EARLIER_WORDS = {ANOTHER_LOOPS: "0% of its answers and 0% of ar's repeat themselves in loops"}  # of earlier versions


def in_words_of(row: Row, warnings: Sequence[RowWarning]) -> tuple[RowWarning, ...]:
    """Returns warnings in the words that the row has for the same, which may be those of an earlier version."""
    told = {each.text for each in row.warnings}

    def earlier(warning: RowWarning) -> RowWarning:
        texts = [warning.text.replace(now, before) for now, before in EARLIER_WORDS.items()]
        known = next((text for text in texts if text in told), warning.text)
        return warning.model_copy(update={"text": known})

    return tuple(map(earlier, warnings))


def ends_at_once(row: Row, own: Sequence[Answer], baseline: Sequence[Answer]) -> str | None:
    """Warns if most answers of a method or of AR end with their first token. A base model may begin with a stop string
    where a chat model would answer."""
    nums = [sum(a.num_new_tokens <= 1 and a.finish != "length" for a in side) for side in (own, baseline)]
    if not any(2 * num > len(side) for num, side in zip(nums, (own, baseline), strict=True)):
        return None
    of_baseline = "" if row.is_baseline else f" and {nums[1]} of ar's"
    return (
        f"{nums[0]} of its {counted(len(own), 'answer')}{of_baseline} end with their first token, a stop string or an "
        "end token, so only the others tell its speed: see the prompts with `specbench sample`, and change the "
        "template (--chat), or the stop strings (--set generation.stop=[])"
    )


def past_end(row: Row, own: Sequence[Answer], baseline: Sequence[Answer], ends: Mapping[int, str]) -> str | None:
    """Warns of answers that go on behind a token that ends texts by its name and is no end token of the run. AR may
    write little there, before it comes to a stop string that a lossy method misses. `ends`: the texts of such tokens by
    id."""
    passed = [[each.end_passed for each in side if each.end_passed is not None] for side in (own, baseline)]
    if not any(passed):
        return None
    nums = [sum(each.num_new_tokens for each in side) for side in (own, baseline)]
    shares = [
        sum(behind for _, behind in side) / max(1, whole) for side, whole in zip(passed, nums, strict=True)
    ]  # fmt: skip
    answers, tokens = (
        ("", "") if row.is_baseline else (f" and {len(passed[1])} of ar's", f" and {shares[1]:.1%} of ar's")
    )
    found = {token: ends[token] for token in sorted({token for side in passed for token, _ in side})}
    return (
        f"{len(passed[0])} of its {counted(len(own), 'answer')}{answers} go on behind a token that marks the end of a "
        f"text and is no end token of this run ({', '.join(f'{token} {text}' for token, text in found.items())}), with "
        f"{shares[0]:.1%} of its tokens{tokens} behind it, which count in speed, acceptance and scores: "
        f"{end_remedy(found.values())}"
    )


def end_remedy(texts: Iterable[str]) -> str:
    """Returns what to do about special tokens that do not end answers."""
    listed = json.dumps(list(texts), ensure_ascii=False)
    return (
        f"add it to the stop strings (--set 'generation.stop={listed}', with the task's own), or to eos_token_id in "
        "generation_config.json of the target's folder"
    )


NEARLY = 0.95  # v without an interval, from which on it may be 1


def cheap_passes(row: Row, own: Sequence[Answer], baseline: Sequence[Answer]) -> str | None:
    """Warns of verifying passes that took less time than AR's passes over one token (v < 1), which read less. Whoever
    runs own code or a server may differ from the baseline in more than drafts."""
    has_other_passes = row.served is not None or not {"decoder", "decodes_with"}.isdisjoint(row.options)
    if row.is_baseline or has_other_passes or not own or len(own) != len(baseline):
        return None
    sums: list[list[float]] = []
    for side in (own, baseline):
        sums += [each.target_seconds for each in side], [each.num_steps for each in side]
    cost = Resampler.of(own, row.seed).ratio(*sums)
    if cost.value is None or not (cost.value < NEARLY if cost.high is None else cost.high < 1):
        return None
    return (
        f"v = {with_interval(cost)}: a verifying pass took less time than AR's pass over one token, which reads less, "
        "so AR ran slower than it can, and the speed-up is not of drafts alone: measure again with nothing else "
        "running, or take an --engine or --pass-width whose passes over one token are not slower (`specbench roofline`)"
    )


UNEVEN = 1.25  # mean ÷ median of draft passes, or the reverse
MATTERS = 0.05  # of a target pass: a smaller error of a step's drafts changes no speed-up that counts


def uneven_drafts(row: Row, own: Sequence[Answer], baseline: Sequence[Answer]) -> str | None:
    """Warns of a draft cost c, a ratio of medians, that is far from the ratio of means, which the speed-up follows."""
    cost = row.value("cost_ratio")
    num_steps = sum(each.num_steps for each in own)
    if not cost or not num_steps:
        return None
    # One column of all answers of a large run at a time.
    plain = joined(baseline, "token_passes")
    if not plain.sum():
        return None
    plain_mean, plain_median = plain.mean(), np.median(plain, overwrite_input=True)
    del plain
    drafts = joined(own, "draft_passes")
    if not len(drafts):
        return None
    mean = float(drafts.mean() / plain_mean)
    is_uneven = max(mean / cost, cost / mean) > UNEVEN
    if not is_uneven or abs(mean - cost) * len(drafts) / num_steps < MATTERS:
        return None
    first, last = np.percentile(drafts, [10, 90], overwrite_input=True) / plain_median
    return (
        f"c = {cost:.3f} is a ratio of medians, but a draft pass took {mean:.3f} target passes on average (eight of "
        f"ten took {first:.3f} to {last:.3f}): drafts cost what the average says, while the expected speed-up uses c"
    )


HEADS = ("eagle", "eagle_tree", "block", "medusa", "mtp")  # drafters that read a draft head
USUAL = 0.3  # the usual share of accepted first draft tokens
MIN_VERIFIED = 50  # first draft tokens, below which their share is not compared with USUAL


def misread_head(row: Row, own: Sequence[Answer]) -> str | None:
    """Warns of a draft head whose tokens are rarely accepted: its checkpoint may belong to another target, or have a
    layout that was read wrongly. In draft trees only the first child of each verified node counts, since one of many
    children may be accepted by chance."""
    kind = row.options.get("drafter", {}).get("type")
    if kind not in HEADS:
        return None
    is_tree = any(answer.is_tree for answer in own)
    firsts = [a.tree_ranks[0] for a in own if a.tree_ranks] if is_tree else [a.first_tokens for a in own]
    num_verified, num_accepted = (sum(pair[place] for pair in firsts) for place in (0, 1))
    token, cases = ("the first child of a node", "verified nodes") if is_tree else ("the first draft token", "steps")
    if num_verified < MIN_VERIFIED or num_accepted / num_verified >= USUAL:
        return None
    cause = (
        "the layer of the target may be read wrongly"
        if kind == "mtp" and row.options["drafter"].get("path") is None
        else "its checkpoint may be of another target, or read wrongly: check drafter.path"
    )
    return (
        f"{token} of its head is accepted in only {num_accepted / num_verified:.0%} of {num_verified} {cases}, "
        f"and heads usually reach {USUAL:.0%}: {cause} (docs/notes/heads.md)"
    )


UNKNOWN_SOURCE = "none: "  # begins the source of acceptance counts that are not known
SLOW_CLIENT = 0.05  # a larger share of an answer's time outside the server gives a warning
FEW_TURNS = 5  # with fewer turns, a drift of the machine does not average out
LEARNS = "learns_across_requests"  # keys of a server's entry in run.json
UNKNOWN_TOKENIZER = "tokenizer_not_checked"


def served_warnings(
    row: Row, answers: Sequence[Answer], plain: Sequence[Answer], identity: Mapping[str, Any]
) -> dict[str, object]:
    """Returns by its code a warning for each condition of a fair comparison that a server does not meet."""
    assert row.served is not None
    method = row.method_name
    reports, baseline = ([answer.reported for answer in side] for side in (answers, plain))
    again = control_outcomes(plain)
    unknown = [source for each in baseline if (source := each.acceptance_source or "").startswith(UNKNOWN_SOURCE)]
    has_drafted = any(counts.totals is None or counts.totals[0] for counts in reports)
    pairs = list(zip(answers, plain, strict=True))
    num_different = sum(a.tokens_digest != b.tokens_digest for a, b in pairs) * (not row.sampling.temperature)
    own_settings, settings = identity["servers"][method], identity["servers"]["ar"]
    changed = [
        each
        for each in differences(settings, own_settings, absent=None)
        if each.field not in (LEARNS, UNKNOWN_TOKENIZER)
    ]
    differing = ", ".join(f"{each.field} {each.first} ≠ {each.second}" for each in changed)
    impossible = next((text for each in (*reports, *baseline) if (text := each.impossible_time)), None)
    waiting, waiting_for = max((share_of_waiting(plain), "ar"), (share_of_waiting(answers), method))
    num_late = {"ar": sum(map(is_read_late, plain)), method: sum(map(is_read_late, answers))}
    return {
        "baseline_unchecked": unknown
        and f"it is unknown whether the server 'ar' drafts ({unknown[0].removeprefix(UNKNOWN_SOURCE)})",
        "tokenizer_unchecked": (settings.get(UNKNOWN_TOKENIZER) or own_settings.get(UNKNOWN_TOKENIZER))
        and "it could not be checked whether the servers serve the model of the tokenizer: they have no endpoint that "
        "tokenizes a text",
        "idle_unchecked": not all(counts.was_idle for counts in (*reports, *baseline))
        and "it could not be checked whether the servers were idle: they do not report how many requests run",
        "drafts_nothing": not has_drafted
        and f"its server had no drafts in {counted(len(reports), 'answer')}: see the server's log",
        "caches_unknown": row.served.caches == "not told"
        and "the servers do not report how many prompt tokens were cached: switch their prefix caches off, and make "
        "them report it (vLLM: --enable-prompt-tokens-details)",
        "memory_not_stated": row.served.memory is None
        and "the file of the servers does not say how they reserve memory: add the key memory",
        "settings_differ": differing and f"the servers differ in more than speculation: {differing}",
        "learns": own_settings.get(LEARNS)
        and "its drafter learns across requests, so its speed depends on the order of the prompts",
        "impossible_times": impossible
        and f"a server reports times that cannot be ({impossible}): they are left out; see the server's log",
        "few_turns": (row.served.turns or FEW_TURNS) < FEW_TURNS
        and f"the servers took turns, but had only {counted(row.served.turns or 0, 'turn')} each, so a drift of the "
        f"machine may be part of the speed-up: set turns to {FEW_TURNS} or more",
        "slow_client": waiting > SLOW_CLIENT
        and f"{waiting:.0%} of the time of the answers of '{waiting_for}' is spent outside the server: the client or "
        "the network is the bottleneck",
        "read_late": any(num_late.values())
        and "client-bound: tokens arrived in bursts, in less than half the time in which the server wrote them "
        f"({', '.join(f'{number} of {name!r}' for name, number in num_late.items() if number)} answers): measure again "
        "with nothing else running",
        "answers_differ": num_different
        and row.verdict not in ("near-tie only", "width only")
        and f"{num_different} of {counted(len(answers), 'answer')} differ from those of the server 'ar', which itself "
        f"changed {again.count(False)} of {counted(len(again), 'answer')} when asked again: run both with "
        "batch-invariant kernels, and run specbench audit --servers",
    }


def share_of_waiting(answers: Sequence[Answer]) -> float:
    """Returns the share of the time of a server's answers that is spent outside the server; 0 if it does not report its
    time."""
    pairs = [(answer.seconds, answer.reported.server_seconds) for answer in answers]
    reported_pairs = [(whole, reported) for whole, reported in pairs if reported is not None]
    whole = sum(whole for whole, _ in reported_pairs)
    return (whole - sum(reported for _, reported in reported_pairs)) / whole if whole > 0 else 0.0


def is_read_late(answer: Answer) -> bool:
    """Returns whether the client read the tokens after its first read in less than half the time in which the server
    reports to have written them, so that they waited for the client."""
    reported, num_first = answer.reported.server_decode_seconds, answer.reported.num_first_tokens
    num_new = answer.num_new_tokens
    if reported is None or num_new < 2:
        return False
    written = reported * (num_new - num_first) / (num_new - 1)  # the server's time begins with the first token
    return bool(answer.decode_seconds < written / 2)
