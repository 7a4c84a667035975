"""The unit, the meaning and the printed form of every metric."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specbench.core.console import speed_text
from specbench.statistics.bootstrap import SHARE, Bounds, Estimate

NULL = "–"  # the cell of a value that does not exist


def without_digest(versioned: str) -> str:
    """Returns the name@version part of name@version:digest."""
    return versioned.partition(":")[0]


def number(metric: Estimate | float | None, digits: int, factor: float = 1, sign: str = "") -> str:
    """Returns a value as tables show it: times `factor`, with `digits` decimals. `sign`: "+" also shows a plus."""
    value = metric.value if isinstance(metric, Estimate) else metric
    return NULL if value is None else f"{factor * value:{sign}z.{digits}f}"


def speed(metric: Estimate | None) -> str:
    """Returns tokens/s as tables show it: with one decimal below 1000, else without."""
    return NULL if metric is None or metric.value is None else speed_text(metric.value)


def interval(metric: Estimate | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the 95 % interval, such as "[1.20, 1.31]"; empty where there is none."""
    if metric is None or metric.low is None or metric.high is None:
        return ""
    low, high = (f"{factor * end:{sign}z.{digits}f}" for end in (metric.low, metric.high))
    return f"[{low}, {high}]"


def with_interval(metric: Estimate | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the value and its 95 % interval, such as "1.25 [1.20, 1.31]"; only the value if there is no interval."""
    return f"{number(metric, digits, factor, sign)} {interval(metric, digits, factor, sign)}".rstrip()


@dataclass(frozen=True)
class Unit:
    """The printed form of a score. `label`: its name with the unit. `factor`: multiplies the printed value. `digits`:
    its decimals. `most`: the largest possible difference of two values."""

    label: str
    factor: float = 1.0
    digits: int = 1
    most: float = 1.0


SHARES = {
    "accuracy": "accuracy", "f1": "F1", "exact_match": "exact match", "contained": "contained",
    "share_contained": "share contained", "rougeL": "ROUGE-L", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "loop_free": "loop-free",
    "language_share": "asked language", "repetition_rate": "repetition",
}  # fmt: skip
OTHERS = {
    "bleu": Unit("BLEU", most=100.0),
    "chrf": Unit("chrF++", most=100.0),
    "judge_score": Unit("judge 1–10", digits=2, most=9.0),
}
RATINGS: Bounds = (1.0, 10.0)
PERCENT: Bounds = (0.0, 100.0)
PASS_AT = re.compile(r"pass@(\d+)")
PER_NUMBER = re.compile(r"^(pass|rank_chance|verification_cost|tree_acceptance_expected|tree_acceptance_optimal)@\d+$")


def unit_of(name: str | None) -> Unit:
    """Returns the unit of a score. The score of a plug-in is shown unchanged, under its own name."""
    if name is None:
        return Unit("score")
    if "," in name:  # METRIC,FILTER of lm-eval, whose tasks have shares or percentages under the same name
        return Unit(name, digits=3, most=OTHERS.get(name.partition(",")[0], Unit("")).most)
    if name in SHARES or PASS_AT.fullmatch(name):
        return Unit(f"{SHARES.get(name, name)} %", factor=100.0)
    return OTHERS.get(name, Unit(name, digits=3))


def bounds_of(name: str) -> Bounds | None:
    """Returns the least and the greatest value of a score; None for a score of a plug-in."""
    if name in SHARES or PASS_AT.fullmatch(name):
        return SHARE
    return {"bleu": PERCENT, "chrf": PERCENT, "judge_score": RATINGS}.get(name)


def score(metric: Estimate | None, name: str | None) -> str:
    """Returns a value of the score `name` with its 95 % interval, in its unit."""
    unit = unit_of(name)
    return with_interval(metric, unit.digits, unit.factor)


def score_of_answer(value: float | None, name: str) -> str:
    """Returns the score `name` of one answer with the decimals of its unit, such as "95.2 %"."""
    unit = unit_of(name)
    shown = number(value, unit.digits, unit.factor)
    return f"{shown} %" if value is not None and unit.label.endswith("%") else shown


def score_pair(metrics: Mapping[str, Estimate], name: str | None) -> str:
    """Returns the scores of the baseline and of the method, such as "62.5 → 60.0"."""
    unit = unit_of(name)
    both = [number(metrics.get(key), unit.digits, unit.factor) for key in (f"{name}_ar", f"{name}")]
    return NULL if both == [NULL, NULL] else " → ".join(both)


def names_by_text(pairs: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Returns each text once with its names. `pairs`: (name, text); a text of None is left out."""
    names: dict[str, dict[str, None]] = {}
    for name, text in pairs:
        if text is not None:
            names.setdefault(text, {})[name] = None
    return {text: list(found) for text, found in names.items()}


MEAN = "mean over answers (each turn of a conversation is an answer)"
ALL_NODES = "all nodes of a draft tree count, also those of lookahead's window, which cannot be accepted"

MEANINGS: dict[str, tuple[str, str]] = {
    "new_tokens": ("tokens", "emitted tokens of all answers, after the cut at the end token, stop string or limit"),
    "tokens_per_second": (
        "tokens/s",
        "Σ (new tokens − 1) ÷ Σ decode seconds (under a load: tokens that arrived in the time of full load ÷ this "
        "time); the clock starts at the first token, and answers of one token are excluded on both sides",
    ),
    "tokens_per_second_ar": ("tokens/s", "the same for the baseline, over the same answers"),
    "speedup": (
        "ratio",
        "tokens_per_second ÷ tokens_per_second_ar; null if the drafter decodes alone in tokens of another vocabulary "
        "than the target's, and under a load by rate",
    ),
    "ar_drift": (
        "ratio",
        "the baseline's tokens/s in the last third of the run ÷ in the first third, at equal context and answer "
        "lengths (least squares); null if a third has fewer than 5 prompts, or fewer than 10 if a prompt has several "
        "answers",
    ),
    "num_prompts_timed": (
        "prompts",
        "prompts with an answer that counts in tokens_per_second; speedup is computed from them",
    ),
    "speedup_e2e": (
        "ratio",
        "the speed-up with prefill: Σ new tokens ÷ Σ (time to first token + decode seconds), over the baseline's",
    ),
    "speedup_expected": (
        "ratio",
        "f(α, γ, c) = (1 − α^(γ+1)) / ((1 − α)(γc + 1)), arXiv:2211.17192 theorem 3.8; null if a judged token does "
        "not stand for one draft pass (slem, slrs, pld, lookahead, draft trees, external decoders), or if c is null",
    ),
    "ttft_seconds": ("s, median", "from the prompt's tokens to the first emitted token, both prefills included"),
    "draft_prefill_seconds": ("s, median", "the drafter's prefill, which is part of ttft_seconds"),
    "tpot_seconds": ("s, median", "decode seconds ÷ (new tokens − 1)"),
    "ttft_p99_seconds": ("s, 99th percentile", "only under a load: from the request to the first read with a token"),
    "tpot_p99_seconds": ("s, 99th percentile", "only under a load: as tpot_seconds"),
    "e2e_p99_seconds": ("s, 99th percentile", "only under a load: as e2e_seconds"),
    "tpot_ratio": ("ratio", "only under a load: Σ over windows of the baseline's median TPOT ÷ Σ of the method's"),
    "e2e_ratio": ("ratio", "only under a load: as tpot_ratio, for the time from the request to the last token"),
    "tokens_per_second_user": (
        "tokens/s",
        "only under a load: Σ tokens after the first read ÷ Σ seconds in which they came, over all answers",
    ),
    "speedup_user": ("ratio", "only under a load: tokens_per_second_user ÷ the baseline's"),
    "pass_ratio": (
        "ratio",
        "only under a load: seconds per target pass ÷ the baseline's; "
        "speedup_user = mean_acceptance_length ÷ pass_ratio, if the first read of each answer has one token",
    ),
    "e2e_seconds": ("s, median", "only of servers: from the request to the last token"),
    "draft_seconds": ("s, total", "forward passes of the drafter while decoding"),
    "verify_seconds": ("s, total", "forward passes of the target while decoding"),
    "overhead_seconds": ("s, total", "decode seconds outside of forward passes: rules, sampling, tokenizer, Python"),
    "rule_seconds": (
        "s, total",
        "part of overhead_seconds: verification rules and sampling, on the device; null in records without it",
    ),
    "tokenizer_seconds": (
        "s, total",
        "part of overhead_seconds: bridges that tokenize texts again, and the search for stop strings; null in records "
        "without it",
    ),
    "other_seconds": ("s, total", "the rest of overhead_seconds: Python, caches, transfers"),
    "cpu_joules_per_token": (
        "J/token",
        "energy of all processor packages (RAPL) during prefill and decoding, other programs included, ÷ new tokens; "
        "missing where the counters cannot be read",
    ),
    "cpu_joules_per_token_ar": ("J/token", "the same for the baseline"),
    "gpu_joules_per_token": (
        "J/token",
        "energy of the target's whole GPUs (NVML) during prefill and decoding ÷ new tokens; missing without such a GPU",
    ),
    "gpu_joules_per_token_ar": ("J/token", "the same for the baseline"),
    "peak_host_bytes": (
        "bytes",
        "largest resident memory of the process during an answer, with all models of the run; known on Linux only",
    ),
    "peak_host_bytes_ar": ("bytes", "the same for the baseline"),
    "peak_device_bytes": (
        "bytes",
        "largest memory of tensors on the target's CUDA devices during an answer, with all models that are on them; "
        "missing without such a device",
    ),
    "peak_device_bytes_ar": ("bytes", "the same for the baseline"),
    "overhead_share": ("share", "overhead ÷ decode seconds"),
    "overhead_share_ar": ("share", "the same for the baseline"),
    "cost_ratio": (
        "ratio",
        "c: median draft pass ÷ median target pass over one token (the baseline's); null for several routes",
    ),
    "acceptance_rate": ("share", f"α: accepted ÷ judged draft tokens (null for draft trees), {MEAN}"),
    "acceptance_rate_pooled": ("share", "accepted ÷ judged draft tokens, over all answers together"),
    "acceptance_rate_expected": (
        "share",
        "mean per judged token: of Σ min(p, q) for the rejection rule; of p(x) for exact match and for drafts without "
        "a distribution; of the probability of random-accept; null for fuzzy rules and where ψ is not fully known "
        "(slrs); union and tli leave out the cases in which the drafter draws the end of the text, which is not judged",
    ),
    "acceptance_rate_unconditional": (
        "share",
        "only union and tli: (1 − P(end)) · Σ min(p, q given no end), mean over positions where a draft token was to "
        "be drawn: the probability that one is drawn and accepted",
    ),
    "draft_efficiency": ("share", f"accepted ÷ drafted tokens ({ALL_NODES}), {MEAN}"),
    "accepted_per_drafted": (
        "share",
        "only of servers: Σ accepted ÷ Σ drafted tokens by the engine's counts, which include tokens after the end",
    ),
    "ar_changed": (
        "share",
        "only of servers: greedy answers of the server ar that changed when it was asked again (the control)",
    ),
    "tree_acceptance_expected@k": (
        "share",
        "only draft trees: chance that the rule accepts a token of level k if it accepted one on every level before, "
        "given the tree; mean over every 8th of the first 64 steps with drafts of an answer; absent for rules that do "
        "not know it; rules that judge whole paths know it for level 1 only",
    ),
    "tree_acceptance_optimal@k": (
        "share",
        "only draft trees: the largest chance of any lossless rule that judges node by node, with children drawn in "
        "the same way, at the same nodes: min over sets H of p(H) + 1 − Pr(all children in H)",
    ),
    "rank_chance@k": (
        "share",
        "only draft trees: the share of the nodes on accepted paths, with k children or more, whose k-th is accepted",
    ),
    "verification_cost": (
        "ratio",
        "v: mean verifying pass ÷ mean pass of the baseline; only rows of draft trees have it",
    ),
    "verification_cost@k": (
        "ratio",
        "verification_cost of the passes that read at most k tokens and more than k ÷ 2, the token before the tree "
        "included; absent for fewer than 10 passes",
    ),
    "speedup_of_costs": (
        "ratio",
        "only draft trees: τ · (1 + overhead of the baseline) ÷ (draft passes per step · c + v + overhead), with "
        "overheads per step in target passes of the baseline",
    ),
    "tree_nodes": ("tokens", f"only draft trees: draft tokens per target pass after prefill; {ALL_NODES}"),
    "tree_depth": ("tokens", "only draft trees: draft tokens on the longest path, per target pass after prefill"),
    "draft_passes_per_step": ("passes", "only draft trees: draft passes or look-ups per target pass after prefill"),
    "mean_acceptance_length": (
        "tokens",
        "τ: emitted tokens per target pass after prefill, bonus token included; over prompts with such passes",
    ),
    "accepted_length": ("tokens", "accepted tokens per target pass after prefill, bonus token not included"),
    "drafter_share": (
        "share",
        "accepted ÷ new tokens; for random-allocation: new tokens of the drafter's prompts ÷ new tokens",
    ),
    "target_passes_per_token": ("ratio", "target passes, prefill included, ÷ new tokens"),
    "divergence_bound": ("nats", "accepted tokens × threshold, mean over answers, as published in arXiv:2502.20704"),
    "mean_divergence": ("nats", "the fuzzy rule's divergence, mean per judged token (tv has no unit)"),
    "num_unscored": (
        "answers",
        "answers without a score, which no mean includes: they have no reference, or could not be scored",
    ),
    "reasoning_share": (
        "share",
        "tokens of reasoning, tags included, ÷ new tokens; only of models that reason. No score sees them; speed, α "
        "and τ are of all tokens",
    ),
    "reasoning_share_ar": ("share", "the same for the baseline"),
    "share_cut_in_reasoning": (
        "share",
        "answers that ended inside their reasoning; they count as empty; only of models that reason",
    ),
    "share_cut_in_reasoning_ar": ("share", "the same for the baseline"),
    "share_truncated": ("share", "prompts that were too long for the models' context and lost their middle"),
    "share_cut_by_length": ("share", "answers that ended at max_new_tokens"),
    "share_cut_by_context": ("share", "answers that ended at the models' context"),
}

SCORES: dict[str, tuple[str, str]] = {
    "accuracy": ("share", "right answers, by their number or their letter"),
    "exact_match": ("share", "answers that equal a reference after SQuAD's normalisation"),
    "contained": ("share", "answers that hold one of the reference texts"),
    "share_contained": ("share", "reference texts that the answer holds, mean over answers"),
    "f1": ("share", "harmonic mean of precision and recall of words, for the best reference; as in SCROLLS"),
    "rougeL": ("share", "ROUGE-L F-measure by rouge-score: the longest common subsequence of words; mean over answers"),
    "rouge1": ("share", "ROUGE-1 F-measure: words"),
    "rouge2": ("share", "ROUGE-2 F-measure: pairs of words"),
    "bleu": (
        "0 … 100",
        "corpus BLEU by sacrebleu, with its signature in the row; for several subsets the mean of their scores",
    ),
    "chrf": ("0 … 100", "corpus chrF++ by sacrebleu (6-grams of characters, 2-grams of words); as bleu"),
    "pass@k": (
        "share",
        "1 − C(n − c, k) / C(n, k), mean over prompts: n answers (repeats), c of which pass; arXiv:2107.03374",
    ),
    "num_programs_ended": (
        "answers",
        "programs of the method or of AR that the limit on time or output ended; they count as wrong",
    ),
    "judge_score": ("1 … 10", "a judge model's rating"),
    "num_unjudged": ("answers", "answers whose text by the method or by AR has no rating; no mean includes them"),
    "loop_free": ("share", "answers that are not empty and do not end in a loop"),
    "repetition_rate": (
        "share",
        "words in 4-grams that the answer had before (characters in 8-grams for languages without spaces)",
    ),
    "language_share": (
        "share",
        "answers in the language of the subset, identified by lingua; null for letters and short answers",
    ),
}
OF_SCORES: dict[str, tuple[str, str]] = {
    "…_ar": (
        "as the score",
        "of every score above: the baseline's score, over the answers for which both have one",
    ),
    "…_difference": ("as the score", "of every score above: method − baseline, paired by example"),
}
MEANINGS |= SCORES | OF_SCORES


def meaning(name: str) -> tuple[str, str] | None:
    """Returns the unit and the meaning of a metric; None for a score of a plug-in."""
    for suffix in ("_ar", "_difference"):
        score = name.removesuffix(suffix)
        if score != name and name not in MEANINGS:
            found = meaning(score)
            return None if found is None else (found[0], f"{score}: {OF_SCORES['…' + suffix][1].partition(': ')[2]}")
    metric = name.partition(",")[0]  # lm-eval's names: METRIC,FILTER
    return MEANINGS.get(PER_NUMBER.sub(r"\1@k", metric))
