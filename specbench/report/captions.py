"""Rows → the sentences below their tables: conditions, evidence, and reasons to doubt the numbers."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, Protocol

from specbench.core.console import counted
from specbench.results.metric_format import metric_of, names_by_text, score_pair, with_interval
from specbench.results.row import ALL, REPEAT, SHUFFLED, Row, RowWarning
from specbench.results.warnings import fact_of
from specbench.statistics.bootstrap import MIN_PROMPTS, SMALL_SAMPLE
from specbench.tasks.judge import JUDGED

SYNTHETIC = "synthetic"  # the drafter with a prescribed acceptance rate


def _parts(row: Row) -> list[dict[str, Any]]:
    return [*row.options.get("routes", {"": row.options}).values()]


def _drafters(row: Row) -> list[dict[str, object]]:
    return [part.get("drafter") or {} for part in _parts(row)]


def drafter_of(row: Row) -> str:
    """Returns the drafter with its revision, and the drafter of the method that it replaces."""
    replaced = [str(drafter["replaces"]) for drafter in _drafters(row) if "replaces" in drafter]
    replacement = f", which replaces the method's drafter {', '.join(replaced)}" if replaced else ""
    if "routes" in row.options:
        source = "task" if row.options["language"] == "given" else "prompt"
        return f"by the language of the {source}: {row.drafter}{replacement}"
    return f"{model_name(row.drafter, row.drafter_revision)}{replacement}" if row.drafter else drafter_kind(row)


def bridges(row: Row) -> frozenset[str]:
    return frozenset(str(part.get("bridge", "shared")) for part in _parts(row))


def draft_length(row: Row) -> str:
    """Returns in words the number of draft tokens or of levels of draft trees, or that one model decodes alone."""
    if "drafter_share" in row.options:
        return f"alone with {row.options['drafter_share']:.0%} of the queries, drawn at random"
    if decodes_alone(row):
        return "the target decodes alone" if row.lossless else "which decodes alone"
    if "routes" in row.options:
        lengths = [f"{name} {route['num_draft_tokens']}" for name, route in row.options["routes"].items()]
        return f"draft tokens {', '.join(lengths)}"
    plural = "s" * (row.num_draft_tokens != 1)
    is_tree = row.value("tree_nodes") is not None
    tokens = f"up to {row.num_draft_tokens} level{plural}" if is_tree else f"{row.num_draft_tokens} draft token{plural}"
    if policy := row.options.get("draft_length", {}).get("policy"):
        tokens = f"up to {tokens} ({policy})"
    bridge = row.options.get("bridge", "shared")
    name = bridge["type"] if isinstance(bridge, dict) else bridge
    return tokens if name == "shared" else f"{tokens}, bridge {name}"


def decodes_alone(row: Row) -> bool:
    """Returns whether one model decodes alone, so that nothing is drafted or verified."""
    return row.num_draft_tokens == 0 and "decoder" not in row.options


def drafter_kind(row: Row) -> str:
    """Returns the type of the drafter; for a server its speculation method, for other external code "its own"."""
    if "decoder" in row.options:
        return str(row.options["decoder"]["options"].get("method", "none")) if row.served else "its own"
    return str(row.options.get("drafter", {}).get("type", "none"))


def model_name(name: str, revision: str | None) -> str:
    """Returns a model with the beginning of its revision, and what the revision says besides."""
    digest, comma, note = (revision or "").removeprefix("local-").removeprefix("sha256-").partition(",")
    return f"{name} ({digest[:12]}{comma}{note})" if revision else name


def why_unranked(row: Row) -> str | None:
    """Returns the reason why a row is not ranked: its drafter is synthetic, with a prescribed acceptance rate, may have
    copied its own earlier answers to the same prompts, or has the target's own weights: as they are, it says nothing
    about a drafter, and in fewer bytes, it alone would be the better baseline. None for all other rows."""
    if row.memory == REPEAT:
        return "its drafter remembers its own earlier answers to these prompts (repeat)"
    if row.drafter_weights is not None:
        is_same = row.drafter_revision == row.target_revision
        which = "the drafter is the target itself" if is_same else "one is the other's GGUF file"
        return f"target and drafter have the same weights: {which}"
    rates = [
        f"{drafter['acceptance']:g}" if drafter.get("profile") is None else "by a profile"
        for drafter in _drafters(row) if drafter.get("type") == SYNTHETIC
    ]  # fmt: skip
    return f"its α is prescribed ({', '.join(rates)}), not a drafter's" if rates else None


FEW = f"fewer than {SMALL_SAMPLE} prompts"
MANY_CUT = 0.1  # a larger share of answers cut at the limit is reported
NO_INTERVAL = f"; with fewer than {MIN_PROMPTS} in a subset: no interval"
OWN_OUTPUTS = "this run's outputs compared with AR's"
SOURCES = {
    "greedy equal": "this run's outputs equal AR's",
    "lossy by design": "declared by its rule",
}


def few_prompts_line(rows: Iterable[Row], names: Sequence[str] = ()) -> list[str]:
    """Returns the line about rows whose speed-up is of few prompts, none without such rows. `names`: what it names."""
    few = [row for row in rows if row.has_few_prompts]
    where = f" in {', '.join(names)}" if names else ""
    lacks_interval = any(row.metrics["speedup"].low is None for row in few)
    return [f"{FEW}{where}{NO_INTERVAL if lacks_interval else ''}"] if few else []


def caption_lines(rows: Sequence[Row]) -> list[str]:
    """Returns the lines below a table of one task and method, without warnings and notes on scores."""
    row, whole = rows[0], rows[-1]
    # 1. What was measured: models, method, sampling, machine, verdict, data.
    location, *others = dict.fromkeys(each.data_location for each in rows if len(rows) == 1 or each.subset != ALL)
    locations = f"{location} and {len(others)} more" if others else location
    audited = [whole] if whole.subset == ALL else rows
    lossless = {
        "yes": "lossless", "no": "lossy: the output is not the target's own",
        "claimed": "claimed lossless, not verified here", "not claimed": "not claimed to be lossless",
    }[lossless_word(row)]  # fmt: skip
    options = row.options.get("verification", row.options.get("decoder", {}).get("options", {}))
    texts = [f"{name} {value}" for name, value in options.items() if row.served is None or name != "method"]
    shown_options = f" ({', '.join(texts)})" if texts and not decodes_alone(row) else ""
    lines = [
        f"target {model_name(row.target, row.target_revision)}",
        *_code(row),
        f"drafter {drafter_of(row)}, {draft_length(row)}, {lossless}{shown_options}",
        *(
            f"vocabularies differ{f' ({name})' if '/' in name else ''}: {ids.common:,} of the target's "
            f"{ids.target:,} and the drafter's {ids.drafter:,} ids in common; it drafts only these"
            for name, ids in row.common_ids.items()
        ),
        *([f"not ranked: {reason}"] if (reason := why_unranked(row)) else []),
        f"{_by_subset(rows, list(map(sampling_of, rows)))}; {dtype_and_device(row)}",
        f"verdict: {_by_subset(audited, list(map(verdict_of, audited)))}",
        f"data: {row.data_source} ({locations})",
    ]
    # 2. Prompts that are not the task's alone.
    if isinstance(row.chat, dict):
        given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in row.chat.items())
        lines.append(f"chat template with {given}")
    if row.template_date is not None:
        lines.append(f"the chat template prints the date {row.template_date}")
    if row.system is not None:
        lines.append(f"system prompt: {json.dumps(shorten(row.system, 100, placeholder=' …'), ensure_ascii=False)}")
    # 3. How to read the numbers, and why to doubt them.
    if row.value("tree_nodes") is not None:
        nodes, depth = (whole.value(name) or 0.0 for name in ("tree_nodes", "tree_depth"))
        lines.append(f"draft trees of {nodes:.1f} tokens on {depth:.1f} levels; α is defined for chains only")
    if (mean := whole.value("draft_length")) is not None:
        share = whole.value("oracle_share")
        of_oracle = "" if share is None else f"; {share:.0%} of the rate of an oracle with the same drafts"
        lines.append(f"{mean:.1f} draft tokens per step on average{of_oracle}")
    lines += memory_lines(row)
    if cut := [each.subset for each in rows if (each.value("share_cut_by_length") or 0.0) > MANY_CUT]:
        lines.append(f"more than {MANY_CUT:.0%} of the answers were cut at max_new_tokens in {', '.join(cut)}")
    lines += untested_lines(rows, [row.subset for row in rows])
    return [*lines, *few_prompts_line(rows, [each.subset for each in rows if each.has_few_prompts])]


def memory_lines(row: Row) -> list[str]:
    """Returns the line about what the drafter remembers of other prompts; none for one without a memory."""
    if row.memory is None:  # rows of earlier versions have the option only
        options = row.options.get("drafter", {}).get("memory")
        is_kept = options in ("cell", "run")
        return ["the drafter keeps state across prompts; speed depends on their order"] if is_kept else []
    own = row.value("num_own_answers")
    left_out = (
        ""
        if own is None or row.memory == REPEAT
        else f"; of {round(own)} prompts it held an earlier answer, which was left out"
    )
    learnt = "verdicts on" if row.options.get("draft_length", {}).get("state") == "run" else "answers to"
    if row.memory == SHUFFLED and row.served is not None:
        what = f"{learnt} the requests before, in one random order, on which the speed depends"
    elif row.memory == SHUFFLED and row.repeats > 1:
        what = f"{learnt} the prompts before, in {row.repeats} random orders, which intervals resample with the prompts"
    elif row.memory == SHUFFLED:
        what = f"{learnt} the prompts before, in one random order, on which the speed depends"
    else:
        what = MEMORIES.get(row.memory, row.memory)
    return [f"memory: {what}{left_out}"]


MEMORIES = {
    "cold": "empty before each prompt (cold)",
    "repeat": "earlier answers, also those to the same prompts (repeat)",
    "warm": "AR's answers of another run to all other prompts (warm)",
    "warm half": "AR's answers of another run to the half of its prompts that the prompt is not in (warm half)",
}


def untested_lines(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns a line with the rows whose warm-up was too short to tell whether the speed was steady."""
    short = [name for row, name in zip(rows, names, strict=True) if row.warm_up and row.warm_up.steady is None]
    where = "" if len(short) == len(rows) else f" in {', '.join(short)}"
    text = f"warm-up too short to test for a steady speed{where} (--warm-up SECONDS allows more)"
    return [text] if short else []


def verdict_word(row: Row) -> str:
    """Returns the verdict as tables show it; "baseline" for the baseline, which has none. "diverged" has its kinds, if
    they are known."""
    if row.is_baseline:
        return "baseline"
    kinds = row.divergence.kinds.keys() - {"unknown"} if own_divergence(row) and row.divergence is not None else ()
    return f"{row.verdict} ({', '.join(name for name in DIVERGED if name in kinds)})" if kinds else row.verdict


# What a difference from AR's greedy answers says of the method, by its kind.
DIVERGED = {
    "rule": "an emitted token is not the argmax of the method's own pass",
    "state": "the method's own pass gave other logits than the target gives after the same text",
    "width": "the target itself depends on the width of a pass",
    "unknown": "the method's own passes are not known, or nothing shows that the target reads draft trees rightly",
}


def own_divergence(row: Row) -> bool:
    """Returns whether the verdict of a row is about its own outputs, whose kinds of differences are known."""
    return row.evidence is None and row.verdict == "diverged" and row.divergence is not None


def divergence_of(row: Row) -> str:
    """Returns what the kinds of differences of a row say, with the number of answers; empty if they are not known."""
    if row.evidence is not None or row.divergence is None or row.verdict not in ("diverged", "width only"):
        return ""
    counts = row.divergence.kinds
    return "; ".join(f"{name} {counts[name]}: {meaning}" for name, meaning in DIVERGED.items() if name in counts)


OF_DIFFERENCES = ("near-tie only", "width only", "diverged")  # verdicts about outputs that differ from AR's


def differences_of(row: Row) -> str:
    """Returns how many answers differ from AR's; empty if the verdict is not about these, or if it is not known."""
    found = row.differences
    if row.evidence is not None or found is None or row.verdict not in OF_DIFFERENCES:
        return ""
    again = "" if found.decoded_again is None else f", {found.decoded_again} of them decoded again"
    return f"{found.answers} of {counted(found.compared, 'answer')} differ{again}"


def width_of(row: Row) -> str:
    """Returns how the target depends on the width of a pass; empty if the verdict is not about the row's own outputs,
    or if it is not known."""
    width = row.batch_width
    if row.evidence is not None or width is None or row.verdict not in OF_DIFFERENCES:
        return ""
    share = (
        "" if width.share_equal is None else f": {width.share_equal:.0%} of rows equal those of passes over one token"
    )
    return f"the width of a pass explains gaps of up to {width.tolerance:.2g}{share}"


def verdict_of(row: Row) -> str:
    """Returns the verdict with its source: an audit with its evidence, the rule, or the run's own outputs. Outputs
    never give "lossless", and those of a sampled run give no verdict."""
    if row.verdict == "not audited":
        return row.verdict
    if (evidence := row.evidence) is not None:
        parts = [] if evidence.num_prompts is None else [f"greedy on {counted(evidence.num_prompts, 'prompt')}"]
        if evidence.num_draws is not None:
            drawn = f"{evidence.num_draws} samples at temperature {evidence.temperature:g}, p = {evidence.p_value:.2g}"
            parts.append(drawn)
        report = "stated: its report was not kept" if evidence.report is None else f"its report: {evidence.report}"
        where = f"({evidence.task}: {', '.join(evidence.subsets)})"
        return f"{row.verdict}, by an audit: {', '.join(parts)} {where}; {report}"
    if row.verdict == "lossy by design" and "decoder" in row.options:
        return f"{row.verdict}, as its external decoder states: not measured"
    if row.verdict not in SOURCES and (row.verdict in ("lossless", "undecided") or row.sampling.temperature):
        return f"{row.verdict}, stated without evidence"
    source = SOURCES.get(row.verdict, OWN_OUTPUTS)
    details = "; ".join(filter(None, (source, differences_of(row), divergence_of(row), width_of(row))))
    return f"{row.verdict} ({details})"


def stated_verdicts(rows: Sequence[Row]) -> list[str]:
    """Returns a line with the verdicts that were not measured: those that an external decoder declares, and those in a
    file without evidence."""
    verdicts = {f"{row.method_name}: {verdict_of(row)}" for row in rows if not row.is_baseline}
    stated = sorted(text for text in verdicts if text.endswith((": not measured", "stated without evidence")))
    return [f"verdict of {'; '.join(stated)}"] if stated else []


def lossless_word(row: Row) -> str:
    """Returns whether the rule of a method is lossless, or whether external code claims to be."""
    if "decoder" in row.options:
        return "claimed" if row.lossless else "not claimed"
    return "yes" if row.lossless else "no"


def _code(row: Row) -> list[str]:
    """Returns a line on the external code of a method, with a note if it reports no first token."""
    decoder = row.options.get("decoder")
    if decoder is None:
        return []
    if row.served is not None:
        return [f"{row.engine}, settings {row.served.settings}; acceptance from: {row.served.acceptance_source}"]
    silent = row.value("ttft_seconds") is None
    clock = "; it reports no first token, so its tok/s include the prompt" if silent else ""
    return [f"external decoder {decoder['entry']} ({str(decoder['revision']).removeprefix('local-')}){clock}"]


def _by_subset(rows: Sequence[Row], texts: Sequence[str | None]) -> str:
    """Returns the text that all rows share; if they differ, each text with its subsets."""
    return str(texts[0]) if len(set(texts)) == 1 else _with_subsets(rows, texts)


def dtype_and_device(row: Row) -> str:
    engine = "" if row.engine == "eager" else f", {row.engine}"
    products = "" if row.products is None else f", products {row.products}"
    return f"{row.dtype} on {row.device}{engine}{products}{width_of_passes(row.pass_width)}"


def width_of_passes(pass_width: int | None) -> str:
    return "" if pass_width is None else f", --pass-width {pass_width}"


def sampling_of(row: Row) -> str:
    sampling = row.sampling
    if sampling.temperature == 0:
        return "greedy"
    parts = (("temperature", sampling.temperature), ("top-k", sampling.top_k), ("top-p", sampling.top_p))
    return ", ".join(f"{name} {value:g}" for name, value in parts if value is not None)


def conditions_line(rows: Sequence[Row]) -> str:
    """Returns the targets, samplings and machines of rows as a line of a caption."""
    targets = dict.fromkeys(model_name(row.target, row.target_revision) for row in rows)
    samplings, machines = dict.fromkeys(map(sampling_of, rows)), dict.fromkeys(map(dtype_and_device, rows))
    return f"target {'; '.join(map(' or '.join, (targets, samplings, machines)))}"


IN_LANGUAGE = 0.9  # a smaller share of answers in the language of the subset is reported for every task


def score_heading(rows: Sequence[Row]) -> str:
    """Returns the name and unit of the score; "score" if rows have several, which `score_notes` then lists."""
    names = {row.quality for row in rows if row.quality is not None}
    return metric_of(names.pop()).label if len(names) == 1 else "score"


UNSCORED = "not scored (excluded from means)"
COUNTS_OF_ANSWERS = {
    "num_unscored": UNSCORED,
    "num_programs_ended": "programs that a limit ended (time, output), counted as wrong",
    "num_unjudged": "not rated by the judge (excluded from the mean rating)",
}
SHARES_OF_ANSWERS = {
    "share_looping": "answers with a loop, %, ar → method",
    "share_in_loops": "tokens in loops, %, ar → method",
    "reasoning_share": "reasoning tokens, which scores ignore, %, ar → method",
    "share_cut_in_reasoning": "answers that ended inside their reasoning and count as empty, %, ar → method",
}
PAUSE = " (--set drafter.beyond_context=pause lets the drafter pause there instead)"


def score_notes(rows: Sequence[Row], why_unscored: str = "") -> list[str]:
    """Returns the lines on scores: what they are, what else says how good the answers are, and what was not scored.
    `why_unscored`: the reason, if it is known."""
    parts = [row for row in rows if row.subset != ALL] or rows
    lines = []
    if len({row.quality for row in rows if row.quality is not None}) > 1:
        lines.append(f"score: {_with_subsets(rows, [row.quality and metric_of(row.quality).label for row in rows])}")
    for name in dict.fromkeys(name for row in parts for name in row.signatures):
        lines.append(f"{metric_of(name).label}: {_by_subset(parts, [row.signatures.get(name) for row in parts])}")
    notes = [dict(_notes(row)) for row in rows]
    for name in dict.fromkeys(name for own in notes for name in own):
        reason = f", because {why_unscored}" if name == UNSCORED and why_unscored else ""
        lines.append(f"{name}: {_with_subsets(rows, [own.get(name) for own in notes])}{reason}")
    return lines


def _notes(row: Row) -> Iterator[tuple[str, str]]:
    """Yields what a caption says about the answers of a row, with the number or share of them."""
    # 1. Other ratings of the answers.
    for name in (JUDGED, "language_share", "repetition_rate"):
        if _is_reported(row, name):
            yield f"{metric_of(name).label}, ar → method", score_pair(row.metrics, name)
    if row.quality == "loop_free" and row.subset != ALL and row.value("language_share") is None:
        yield "language of the answers", "cannot be identified"
    # 2. Answers that were not scored, or only in part.
    for name, meaning in COUNTS_OF_ANSWERS.items():
        if row.has(name) and (number := row.value(name)):
            yield meaning, counted(round(number), "answer")
    for name, meaning in SHARES_OF_ANSWERS.items():
        pair = [row.value(each) if row.has(each) else None for each in (f"{name}_ar", name)]
        if any(pair):
            yield meaning, " → ".join(f"{100 * (each or 0):.1f}" for each in pair)
    # 3. What the context of a model cut.
    if share := row.value("share_truncated"):  # also the context of a bridged drafter
        yield "prompts truncated in the middle", f"{share:.0%}"
    context = row.context
    limit = "the context"
    if context is not None and context.model:
        limit = f"the context of {context.model}, {context.tokens} tokens"
        may_pause = any(drafter.get("type") in ("model", "model_tree", SYNTHETIC) for drafter in _drafters(row))
        limit += PAUSE if may_pause and context.model != row.target else ""
    own, baseline = row.value("share_cut_by_context") or 0.0, context.share_cut_ar if context else None
    if own or baseline:
        of_ar = "" if baseline is None or row.is_baseline else f"{baseline:.0%} of ar, "
        yield f"answers cut at {limit}", f"{of_ar}{own:.0%} of {row.method_name}"
    if context is not None and context.pauses_at and context.share_paused:
        pause = f"tokens beyond the drafter's context of {context.pauses_at} tokens, where it drafts nothing"
        yield f"{pause} (the expected speed-up leaves them out)", f"{context.share_paused:.0%}"
    elif context is not None and context.trained and context.share_beyond:
        beyond = f"tokens beyond the {context.trained} tokens of text that the head was made for"
        yield f"{beyond} (max_position_embeddings of its config.json)", f"{context.share_beyond:.0%}"


def reasons_by_task(problems: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Returns by task the most frequent reason for missing scores. `problems`: number of answers by task and reason."""
    found = {}
    for task in dict.fromkeys(task for task, _ in problems):
        own = Counter({reason: number for (of, reason), number in problems.items() if of == task})
        reason, count = own.most_common(1)[0]
        num_other = own.total() - count
        other = f"; {num_other} of all methods for other reasons (see `problem` in the records)" if num_other else ""
        found[task] = " ".join(reason.split()) + other
    return found


def _is_reported(row: Row, name: str) -> bool:
    """Returns whether a caption reports a metric: always for texts without a reference; for others the language share
    if it is low, and the judge's rating in addition to the main score."""
    values = [row.value(each) or 0.0 for each in (name, f"{name}_ar") if row.has(each)]
    if name == JUDGED:
        return row.quality != JUDGED and any(values)
    low = name == "language_share" and min(values, default=1.0) < IN_LANGUAGE
    return name in row.metrics and (row.quality == "loop_free" or low)


def _with_subsets(rows: Sequence[Row], texts: Sequence[str | None]) -> str:
    subsets = names_by_text((row.subset, text) for row, text in zip(rows, texts, strict=True))
    return "; ".join(f"{text} in {', '.join(names)}" for text, names in subsets.items())


MARK = "†"


class HasWarnings(Protocol):
    """A row, or what was made of it."""

    @property
    def warnings(self) -> tuple[RowWarning, ...]: ...


def marked(text: str, row: HasWarnings, codes: Collection[str] | None = None) -> str:
    """Returns a number with a mark if the row has a warning, or one of these codes."""
    found = marked_warnings(row).keys()
    return f"{text} {MARK}" if (found if codes is None else found & set(codes)) else text


def marked_warnings(row: HasWarnings) -> dict[str, str]:
    """Returns the text of each marked warning by its code. Few prompts have a line of their own in every caption."""
    return {warning.code: warning.text for warning in row.warnings if warning.code != "few_prompts"}


def warning_lines(rows: Sequence[HasWarnings], names: Sequence[str], for_readers: bool = False) -> list[str]:
    """Returns a line for each kind of warning: the text of the first row that has it, and the names of the others.
    `for_readers`: without what to do, which readers of a paper or a model card cannot."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row, name in zip(rows, names, strict=True):
        for code, text in marked_warnings(row).items():
            found.setdefault(code, []).append((name, fact_of(text) if for_readers else text))
    lines = []
    for (first, text), *others in found.values():
        same = dict.fromkeys(name for name, _ in others if name != first)
        numbers_differ = " (values differ)" * any(other != text for _, other in others)
        lines.append(f"{MARK} {first}: {text}" + (f"; also for {', '.join(same)}{numbers_differ}" if same else ""))
    return lines


PEAK_MEMORY = "the largest memory during an answer, with all models of its run, those of other methods too"
RUNS_ON = "‡"
OFTEN = 0.5  # the share of answers cut by their length from which scores mean nothing and speeds do not compare


def share_cut(row: Row) -> float:
    """Returns the share of answers that the limit on new tokens ended."""
    return row.value("share_cut_by_length") or 0.0


def runs_on(row: Row, baseline: Row) -> bool:
    """Returns whether most answers of a method go on to the limit on new tokens where AR's end."""
    return share_cut(row) - share_cut(baseline) >= OFTEN


def marked_speedup(row: Row, baseline: Row) -> str:
    """Returns the speed-up, with a mark if it has a warning, and another one if answers run on where AR's end."""
    marks = f" {RUNS_ON}" * runs_on(row, baseline)
    return marked(with_interval(row.metric("speedup")), row) + marks


def runs_on_lines(
    rows: Sequence[Row], names: Sequence[str], baseline: Row, place: str = "", limit: int | None = None
) -> list[str]:
    """Returns the line about methods whose answers run on where AR's end; none without such methods. `rows`: of one
    task, with their names. `place`: how the line begins. `limit`: of new tokens."""
    found = [(row, name) for row, name in zip(rows, names, strict=True) if runs_on(row, baseline)]
    if not found:
        return []
    lengths = [(row.value("new_tokens") or 0) / (row.n * row.repeats) for row in (baseline, *(row for row, _ in found))]
    most = "on new tokens" if limit is None else f"of {limit} new tokens"
    return [
        f"{RUNS_ON} {place}the answers of {', '.join(name for _, name in found)} run on: "
        f"{100 * min(share_cut(row) for row, _ in found):.0f} % of their answers go on to the limit {most} "
        f"({min(lengths[1:]):.0f} on average), but {100 * share_cut(baseline):.0f} % of AR's ({lengths[0]:.0f}). "
        "Their speed is that of longer, other texts."
    ]
