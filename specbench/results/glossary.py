"""What every metric of a row means, and its unit."""

MEANINGS: dict[str, tuple[str, str]] = {
    "new_tokens": ("tokens", "emitted tokens of all examples, after the cut at the end token, stop string or limit"),
    "tokens_per_second": ("tokens/s", "Σ (new tokens − 1) ÷ Σ decode seconds; the clock starts at the first token"),
    "tokens_per_second_ar": ("tokens/s", "the same of the baseline on the same prompts"),
    "speedup": (
        "ratio",
        "tokens_per_second ÷ tokens_per_second_ar; null where a drafter decodes alone in tokens of its own vocabulary",
    ),
    "speedup_e2e": ("ratio", "the same with prefill: Σ new tokens ÷ Σ (time to first token + decode seconds)"),
    "speedup_expected": (
        "ratio",
        "f(α, γ, c) = (1 − α^(γ+1)) / ((1 − α)(γc + 1)), arXiv:2211.17192 theorem 3.8; null where a draft token is not "
        "one draft pass (drafts as text, prompt lookup, external decoders)",
    ),
    "ttft_seconds": ("s, median", "prompt tokens in → first emitted token, both prefills included"),
    "draft_prefill_seconds": ("s, median", "the drafter's prefill, part of ttft_seconds"),
    "tpot_seconds": ("s, median", "decode seconds ÷ (new tokens − 1)"),
    "draft_seconds": ("s, total", "forward passes of the drafter while decoding"),
    "verify_seconds": ("s, total", "forward passes of the target while decoding"),
    "overhead_seconds": ("s, total", "decode seconds that are no forward pass: rules, sampling, tokenizer, Python"),
    "overhead_share": ("share", "overhead ÷ decode seconds"),
    "overhead_share_ar": ("share", "the same of the baseline"),
    "cost_ratio": ("ratio", "c: median draft pass ÷ median target pass over one token (the baseline's)"),
    "acceptance_rate": ("share", "α: accepted ÷ judged draft tokens, mean over examples"),
    "acceptance_rate_pooled": ("share", "the same over all tokens at once"),
    "acceptance_rate_expected": (
        "share",
        "per judged token: Σ min(p, q) where rejection judges, p(x) where drafts are matched or certain, the "
        "probability of random-accept; null for fuzzy rules and where ψ is not known in full (slrs)",
    ),
    "draft_efficiency": ("share", "accepted ÷ drafted tokens, mean over examples"),
    "mean_acceptance_length": (
        "tokens",
        "τ: emitted tokens per target pass, bonus token included; over queries that have target passes",
    ),
    "accepted_length": ("tokens", "accepted tokens per target pass, bonus token not included"),
    "drafter_share": (
        "share",
        "accepted ÷ new tokens; of random allocation: new tokens of the drafter's queries ÷ new tokens",
    ),
    "target_passes_per_token": ("ratio", "target passes, prefill included, ÷ new tokens"),
    "divergence_bound": ("nats", "accepted tokens × threshold, mean over examples, as published in arXiv:2502.20704"),
    "mean_divergence": ("nats", "the fuzzy rule's divergence per judged token (tv: no unit)"),
    "accuracy": ("share", "mean score of the answers"),
    "accuracy_ar": ("share", "the same of the baseline"),
    "accuracy_difference": ("share", "accuracy − accuracy_ar, paired by example"),
    "share_cut_by_length": ("share", "examples that ended at max_new_tokens"),
    "share_cut_by_context": ("share", "examples that ended at the models' context"),
}
