"""The declarations of a row's metrics, besides the scores, which their scorers declare."""

from dataclasses import replace

from specbench.core.metric import Metric
from specbench.tasks.judge import RATING
from specbench.tasks.scoring import LANGUAGE

MEAN = "mean over answers (each turn of a conversation is an answer)"
ALL_NODES = "all nodes of a draft tree count, also those of lookahead's window, which cannot be accepted"

_DECLARED = (
    Metric(
        "new_tokens", "tokens", "emitted tokens of all answers, after the cut at the end token, stop string or limit"
    ),
    Metric(
        "tokens_per_second",
        "tokens/s",
        "the clock starts at the first token, and answers of one token are excluded on both sides",
        "Σ (new tokens − 1) ÷ Σ decode seconds (under load: tokens that arrived in the time of full load ÷ this time)",
        label="tok/s",
        digits=1,
    ),
    Metric(
        "tokens_per_second_ar",
        "tokens/s",
        "the same for the baseline, over the same answers",
        label="tok/s of AR",
        digits=1,
    ),
    Metric(
        "speedup",
        "ratio",
        "null if the drafter decodes alone in tokens of another vocabulary than the target's, and under load by rate",
        "tokens_per_second ÷ tokens_per_second_ar",
        label="speed-up",
    ),
    Metric(
        "ar_drift",
        "ratio",
        "null if a third has fewer than 5 prompts, or fewer than 10 if a prompt has several answers",
        "the baseline's tokens/s in the last third of the run ÷ in the first third, at equal context and "
        "answer lengths (least squares)",
    ),
    Metric(
        "num_prompts_timed",
        "prompts",
        "prompts with an answer that counts in tokens_per_second; speedup is computed from them",
    ),
    Metric(
        "speedup_e2e",
        "ratio",
        "",
        "the speed-up with prefill: Σ new tokens ÷ Σ (time to first token + decode seconds), over the baseline's",
        label="speed-up e2e",
    ),
    Metric(
        "speedup_expected",
        "ratio",
        "null if a verified token does not stand for one draft pass (slem, slrs, pld, lookahead, draft "
        "trees, draft lengths that vary, external decoders), or if c is null",
        "f(α, γ, c) = (1 − α^(γ+1)) / ((1 − α)(γc + 1)), arXiv:2211.17192 theorem 3.8",
    ),
    Metric(
        "ttft_seconds",
        "s, median",
        "from the prompt's tokens to the first emitted token, both prefills included",
        lower_is_better=True,
    ),
    Metric(
        "draft_prefill_seconds",
        "s, median",
        "the drafter's prefill, which is part of ttft_seconds",
        lower_is_better=True,
    ),
    Metric("tpot_seconds", "s, median", "", "decode seconds ÷ (new tokens − 1)", lower_is_better=True),
    Metric(
        "itl_seconds",
        "s, median",
        "only of servers: over the tokens of all answers, each with its share of the time since the read before; a "
        "server may send the tokens of a step one by one or together, which changes its percentiles",
        "seconds between two reads ÷ tokens of the later one",
        lower_is_better=True,
    ),
    *(
        Metric(
            f"{name}_p{share}_seconds",
            f"s, {share}th percentile",
            f"only of servers: {meaning}",
            lower_is_better=True,
        )
        for name, meaning in (
            ("ttft", "from the request to the first read with a token"),
            ("ttfa", "as ttfa_seconds"),
            ("tpot", "as tpot_seconds"),
            ("itl", "as itl_seconds"),
            ("e2e", "as e2e_seconds"),
        )
        for share in (90, 95, 99)
    ),
    Metric(
        "tpot_ratio",
        "ratio",
        "only under load: Σ over windows of the baseline's median TPOT ÷ Σ of the method's",
        label="TPOT ratio",
    ),
    Metric(
        "e2e_ratio",
        "ratio",
        "only under load: as tpot_ratio, for the time from the request to the last token",
        label="E2E ratio",
    ),
    Metric(
        "tokens_per_second_user",
        "tokens/s",
        "only under load: Σ tokens after the first read ÷ Σ seconds in which they came, over all answers",
    ),
    Metric("speedup_user", "ratio", "only under load: tokens_per_second_user ÷ the baseline's"),
    Metric(
        "pass_ratio",
        "ratio",
        "only under load: seconds per target pass ÷ the baseline's; speedup_user = "
        "mean_acceptance_length ÷ pass_ratio, if the first read of each answer has one token",
    ),
    Metric(
        "ttfa_seconds",
        "s, median",
        "time to the first answer token: from the request to the first read with text behind the reasoning; answers "
        "that ended inside it have none (share_cut_in_reasoning); only of servers whose answers reason, null in "
        "records without it",
        label="TTFA",
        lower_is_better=True,
    ),
    Metric("e2e_seconds", "s, median", "only of servers: from the request to the last token", lower_is_better=True),
    Metric("draft_seconds", "s, total", "forward passes of the drafter while decoding", lower_is_better=True),
    Metric("verify_seconds", "s, total", "forward passes of the target while decoding", lower_is_better=True),
    Metric(
        "overhead_seconds",
        "s, total",
        "decode seconds outside of forward passes: rules, sampling, tokenizer, Python",
        lower_is_better=True,
    ),
    Metric(
        "rule_seconds",
        "s, total",
        "part of overhead_seconds: verification rules and sampling, on the device; null in records without it",
        lower_is_better=True,
    ),
    Metric(
        "tokenizer_seconds",
        "s, total",
        "part of overhead_seconds: bridges that tokenize texts again, and the search for stop strings; "
        "null in records without it",
        lower_is_better=True,
    ),
    Metric(
        "other_seconds", "s, total", "the rest of overhead_seconds: Python, caches, transfers", lower_is_better=True
    ),
    Metric(
        "cpu_joules_per_token",
        "J/token",
        "missing where the counters cannot be read",
        "energy of all processor packages (RAPL) during prefill and decoding, other programs included, ÷ new tokens",
        lower_is_better=True,
    ),
    Metric(
        "gpu_joules_per_token",
        "J/token",
        "missing without such a GPU",
        "energy of the target's whole GPUs (NVML) during prefill and decoding ÷ new tokens",
        lower_is_better=True,
    ),
    Metric(
        "peak_host_bytes",
        "bytes",
        "largest resident memory of the process during an answer, with all models of the run; known on Linux only",
        lower_is_better=True,
    ),
    Metric(
        "peak_device_bytes",
        "bytes",
        "largest memory of tensors on the target's CUDA devices during an answer, with all models that "
        "are on them; missing without such a device",
        lower_is_better=True,
    ),
    Metric("overhead_share", "share", "", "overhead ÷ decode seconds", lower_is_better=True),
    Metric(
        "cost_ratio",
        "ratio",
        "null for several routes",
        "c: median draft pass ÷ median target pass over one token (the baseline's)",
        label="c",
        lower_is_better=True,
    ),
    Metric(
        "acceptance_rate", "share", "", f"α: accepted ÷ verified draft tokens (null for draft trees), {MEAN}", label="α"
    ),
    Metric("acceptance_rate_pooled", "share", "", "accepted ÷ verified draft tokens, over all answers together"),
    Metric(
        "acceptance_rate_expected",
        "share",
        "of p(x) for exact match and for drafts without a distribution; of the probability of "
        "random-accept; null for fuzzy rules and where ψ is not fully known (slrs); union and tli leave "
        "out the cases in which the drafter draws the end of the text, which is not verified",
        "mean per verified token: of Σ min(p, q) for the rejection rule",
    ),
    Metric(
        "acceptance_rate_unconditional",
        "share",
        "only union and tli: (1 − P(end)) · Σ min(p, q given no end), mean over positions where a draft "
        "token was to be drawn: the probability that one is drawn and accepted",
    ),
    Metric(
        "draft_efficiency",
        "share",
        "",
        f"accepted ÷ drafted tokens ({ALL_NODES}), mean over answers (each turn of a conversation is an answer)",
    ),
    Metric(
        "accepted_per_drafted",
        "share",
        "only of servers: Σ accepted ÷ Σ drafted tokens by the engine's counts, which include tokens after the end",
    ),
    Metric(
        "ar_changed",
        "share",
        "only of servers: greedy answers of the server ar that changed when it was asked again (the control)",
    ),
    Metric(
        "tree_acceptance_expected@k",
        "share",
        "only draft trees: chance that the rule accepts a token of level k if it accepted one on every "
        "level before, given the tree; mean over every 8th of the first 64 steps with drafts of an "
        "answer; absent for rules that do not know it; rules that verify whole paths know it for level 1 "
        "only",
    ),
    Metric(
        "tree_acceptance_optimal@k",
        "share",
        "only draft trees: the largest chance of any lossless rule that verifies node by node, with "
        "children drawn in the same way, at the same nodes: min over sets H of p(H) + 1 − Pr(all children "
        "in H)",
    ),
    Metric(
        "rank_chance@k",
        "share",
        "only draft trees: the share of the nodes on accepted paths, with k children or more, whose k-th is accepted",
    ),
    Metric(
        "verification_cost",
        "ratio",
        "only rows of draft trees have it",
        "v: mean verifying pass ÷ mean pass of the baseline",
    ),
    Metric(
        "verification_cost@k",
        "ratio",
        "absent for fewer than 10 passes",
        "verification_cost of the passes that read at most k tokens and more than k ÷ 2, the token before "
        "the tree included",
    ),
    Metric(
        "speedup_of_costs",
        "ratio",
        "only draft trees: τ · (1 + overhead of the baseline) ÷ (draft passes per step · c + v + "
        "overhead), with overheads per step in target passes of the baseline",
    ),
    Metric("tree_nodes", "tokens", f"only draft trees: draft tokens per target pass after prefill; {ALL_NODES}"),
    Metric("tree_depth", "tokens", "only draft trees: draft tokens on the longest path, per target pass after prefill"),
    Metric(
        "draft_passes_per_step", "passes", "only draft trees: draft passes or look-ups per target pass after prefill"
    ),
    Metric(
        "draft_length",
        "tokens",
        "only methods with `draft_length`",
        "drafted tokens per target pass after prefill",
    ),
    Metric(
        "oracle_share",
        "share",
        "only methods with `draft_length`: the oracle drafts in each recorded step only accepted tokens, and so many "
        "of them that its rate is the largest",
        "rate ÷ the oracle's; rate: Σ emitted tokens ÷ Σ (draft passes · c + v(drafted + 1)), with v(n) the mean "
        "target pass over n tokens in mean passes of the baseline",
        label="of oracle",
    ),
    Metric(
        "mean_acceptance_length",
        "tokens",
        "τ: emitted tokens per target pass after prefill, bonus token included; over prompts with such passes",
        label="τ",
    ),
    Metric("accepted_length", "tokens", "accepted tokens per target pass after prefill, bonus token not included"),
    Metric(
        "drafter_share",
        "share",
        "for random-allocation: new tokens of the drafter's prompts ÷ new tokens",
        "accepted ÷ new tokens",
    ),
    Metric(
        "target_passes_per_token", "ratio", "", "target passes, prefill included, ÷ new tokens", lower_is_better=True
    ),
    Metric(
        "divergence_bound",
        "nats",
        "accepted tokens × threshold, mean over answers, as published in arXiv:2502.20704",
        lower_is_better=True,
    ),
    Metric(
        "mean_divergence",
        "nats",
        "the fuzzy rule's divergence, mean per verified token (tv has no unit)",
        lower_is_better=True,
    ),
    Metric(
        "num_unscored",
        "answers",
        "answers without a score, which no mean includes: they have no reference, or could not be scored",
        lower_is_better=True,
    ),
    Metric(
        "reasoning_tokens",
        "tokens, mean",
        f"tokens of reasoning, tags included, {MEAN}; only of models that reason",
        digits=1,
    ),
    Metric(
        "answer_tokens",
        "tokens, mean",
        f"new tokens behind the reasoning, {MEAN}; only of models that reason",
        digits=1,
    ),
    Metric(
        "reasoning_share",
        "share",
        "only of models that reason. No score sees them; speed, α and τ are of all tokens",
        "tokens of reasoning, tags included, ÷ new tokens",
    ),
    Metric(
        "share_cut_in_reasoning",
        "share",
        "answers that ended inside their reasoning; they count as empty; only of models that reason",
        lower_is_better=True,
    ),
    Metric(
        "share_looping",
        "share",
        "answers with a loop: a run of 48 tokens or more that repeats up to 64 tokens at least four times",
        lower_is_better=True,
    ),
    Metric(
        "share_in_loops",
        "share",
        "a loop's first round is not in it",
        "tokens in loops ÷ new tokens",
        lower_is_better=True,
    ),
    Metric(
        "speedup_without_loops",
        "ratio",
        "only if a method of the run loops; null if one does at every prompt",
        "speedup without the prompts at which any method of the run, AR included, gave an answer with a loop",
        label="speed-up without loops",
    ),
    Metric(
        "mean_acceptance_length_without_loops",
        "tokens",
        "as speedup_without_loops",
        "τ without these prompts",
        label="τ without loops",
    ),
    Metric(
        "num_own_answers",
        "prompts",
        "prompts to which the drafter's memory held an earlier answer, which it left out; only with a memory of others",
    ),
    Metric(
        "share_truncated",
        "share",
        "prompts too long for the models' context, or for max_prompt_tokens, which were truncated in the middle",
        lower_is_better=True,
    ),
    Metric("share_cut_by_length", "share", "answers that ended at max_new_tokens", lower_is_better=True),
    Metric("share_cut_by_context", "share", "answers that ended at the models' context", lower_is_better=True),
    Metric(
        "num_programs_ended",
        "answers",
        "programs of the method or of AR that the limit on time or output ended; they count as wrong",
        lower_is_better=True,
    ),
    Metric(
        "num_unjudged",
        "answers",
        "answers whose text by the method or by AR has no rating; no mean includes them",
        lower_is_better=True,
    ),
)
# Metrics of which a row has the baseline's value too, besides tokens_per_second.
_WITH_BASELINE = {
    "cpu_joules_per_token", "gpu_joules_per_token", "peak_host_bytes", "peak_device_bytes", "overhead_share",
    "reasoning_tokens", "answer_tokens", "reasoning_share", "share_cut_in_reasoning", "share_looping", "share_in_loops",
}  # fmt: skip
_OF_BASELINE = [
    replace(each, name=f"{each.name}_ar", label=f"{each.name}_ar", meaning="the same for the baseline", formula="")
    for each in _DECLARED if each.name in _WITH_BASELINE
]  # fmt: skip
ROW_METRICS = {each.name: each for each in (*_DECLARED, *_OF_BASELINE)}
OTHER_SCORES = {each.name: each for each in (RATING, LANGUAGE)}  # of answers that any scorer may have scored
