"""Recorded generations → how many draft tokens were accepted, and how many tokens a target pass was worth."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.results.bootstrap import SHARE, Bounds, Metric, Prompts
from specbench.results.counts import is_drafted_alone, new_tokens, target_passes, tokens_of_passes
from specbench.running.record_check import ACCEPTED, DRAFTED, JUDGED, step_sum
from specbench.running.records import Generation


def acceptance(prompts: Prompts, own: Sequence[Generation], verification: dict[str, Any]) -> dict[str, Metric]:
    """Acceptance of draft tokens, and target passes. A query that the drafter decoded alone has no target pass: it
    counts in `target_passes_per_token`, and it has no acceptance length."""
    drafted, judged, accepted = ([step_sum(g, column) for g in own] for column in (DRAFTED, JUDGED, ACCEPTED))
    num_steps = [len(g["steps"]) for g in own]
    passes = [target_passes(g) for g in own]
    verified = [tokens_of_passes(g) for g in own]
    num_new = [new_tokens(g) for g in own]
    any_judged = sum(judged) > 0  # where nothing is judged (ar, draft-only) there is no acceptance to speak of
    threshold = verification.get("threshold") if verification.get("rule") == "fuzzy" else None

    def per_position(key: str, bounds: Bounds | None = None) -> Metric:
        lists = [[value for value in g["positions"].get(key) or [] if value is not None] for g in own]
        return prompts.ratio([sum(values) for values in lists], [len(values) for values in lists], bounds=bounds)

    return {
        "acceptance_rate": prompts.mean([a / j if j else None for a, j in zip(accepted, judged, strict=True)], SHARE),
        "acceptance_rate_pooled": prompts.ratio(accepted, judged, bounds=SHARE),
        "acceptance_rate_expected": per_position("overlap", SHARE),
        **_unconditional(prompts, own),
        "draft_efficiency": prompts.mean([a / d if d else None for a, d in zip(accepted, drafted, strict=True)], SHARE),
        "mean_acceptance_length": prompts.ratio([tokens for tokens, _ in verified], [n for _, n in verified]),
        "accepted_length": prompts.ratio(accepted, num_steps) if any_judged else Metric(),
        "drafter_share": prompts.ratio(accepted, num_new, bounds=SHARE) if any_judged else Metric(),
        # the prefill is the target pass that gives the first token
        "target_passes_per_token": prompts.ratio(
            [n or 0 for n in passes], [t * (n is not None) for t, n in zip(num_new, passes, strict=True)]
        ),
        # new_tokens · drafter_share · T of each example, as published: arXiv:2502.20704; its own caveats apply
        "divergence_bound": Metric() if threshold is None else prompts.mean([a * threshold for a in accepted]),
        "mean_divergence": per_position("divergence"),
    }


def _unconditional(prompts: Prompts, own: Sequence[Generation]) -> dict[str, Metric]:
    """Only of drafts whose end is not proposed: of all others it is `acceptance_rate_expected`."""
    if not any("attempted" in g for g in own):
        return {}
    lists = [g.get("attempted") or [] for g in own]
    rate = prompts.ratio([sum(values) for values in lists], [len(values) for values in lists], bounds=SHARE)
    return {"acceptance_rate_unconditional": rate}


def accepted_lengths(own: Sequence[Generation], num_draft_tokens: int) -> tuple[int, ...] | None:
    """Element k: the target passes after the prefill in which k draft tokens were accepted, 0 to `num_draft_tokens`;
    their sum is that of all steps of all answers. None of an external decoder, and where no answer has a target pass:
    queries that the drafter decoded alone are left out."""
    verified = [g for g in own if not is_drafted_alone(g)]
    if not verified or any("external" in g for g in verified):
        return None
    counts = Counter(step[ACCEPTED] for g in verified for step in g["steps"])
    return tuple(counts[length] for length in range(num_draft_tokens + 1))


def allocated_share(prompts: Prompts, own: Sequence[Generation]) -> Metric:
    """`drafter_share` of random allocation: the new tokens of the queries that the drafter decoded ÷ all new tokens."""
    num_new = [new_tokens(g) for g in own]
    alone = [n * is_drafted_alone(g) for n, g in zip(num_new, own, strict=True)]
    return prompts.ratio(alone, num_new, bounds=SHARE)
