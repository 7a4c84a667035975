"""Recorded generations → how many draft tokens were accepted, and how many tokens each target pass emitted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.results.bootstrap import SHARE, Bounds, Metric, Prompts
from specbench.running.records import ACCEPTED, DRAFTED, EMITTED, JUDGED, Generation, step_sum


def with_own_passes(generation: Generation, decodes_with: str) -> Generation:
    """Returns the generation with each pass under the model that ran it. The decode loop calls every pass of a model
    that decodes alone the target's. `decodes_with`: of the method; with "random" the record says which model decoded
    (`decoded_by`).

    Raises ValueError for a record without `decoded_by`.
    """
    decoder = generation.get("decoded_by") if decodes_with == "random" else decodes_with
    if decoder is None:
        raise ValueError("has no decoded_by: which model decoded this query")
    if decoder == "target":
        return generation
    passes = {"target": [], "draft": generation["passes"]["target"]}
    return {**generation, "passes": passes, "decoded_by": decoder}


def is_drafted_alone(generation: Generation) -> bool:
    """Returns whether the drafter decoded without the target. `generation`: from `with_own_passes`."""
    return generation.get("decoded_by") == "drafter"


def new_tokens(generation: Generation) -> int:
    return len(generation["token_ids"])


def timed_tokens(generation: Generation) -> int:
    """Returns the tokens that decode_seconds covers: all but those that exist when its clock starts. That is one
    token, unless an external decoder reported several first tokens, or none."""
    return new_tokens(generation) - int(generation.get("external", {}).get("num_first_tokens", 1))


def target_passes(generation: Generation) -> int | None:
    """Returns the number of target passes, the prefill included; None for an external decoder that does not report
    it."""
    if "external" in generation:
        told: int | None = generation["external"]["num_target_passes"]
        return told
    return 0 if is_drafted_alone(generation) else len(generation["steps"]) + 1


def tokens_of_passes(generation: Generation) -> tuple[int, int]:
    """Returns the emitted tokens and the target passes that emitted them; (0, 0) where the passes are unknown.

    Where the steps are known, a prefill that emits a token by itself is left out, and so is its token.
    """
    num_passes, num_steps = target_passes(generation), len(generation["steps"])
    if not num_passes:
        return 0, 0
    if "external" in generation and (num_steps == 0 or num_passes == num_steps):
        return new_tokens(generation), num_passes
    return step_sum(generation, EMITTED), num_steps


def acceptance(prompts: Prompts, own: Sequence[Generation], verification: dict[str, Any]) -> dict[str, Metric]:
    """Returns the metrics of acceptance and of target passes. A query that the drafter decoded alone has no target
    pass: it counts in `target_passes_per_token`, and has no acceptance length."""
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
    """Returns the unconditional acceptance rate, for drafters that do not propose the end of a text; for all others
    it equals `acceptance_rate_expected`."""
    if not any("draw_overlap" in g for g in own):
        return {}
    lists = [g.get("draw_overlap") or [] for g in own]
    rate = prompts.ratio([sum(values) for values in lists], [len(values) for values in lists], bounds=SHARE)
    return {"acceptance_rate_unconditional": rate}


def accepted_tokens_per_step(own: Sequence[Generation], num_draft_tokens: int) -> tuple[int, ...] | None:
    """Returns a histogram: element k is the number of target passes after the prefill in which k draft tokens were
    accepted, k from 0 to `num_draft_tokens`.

    Returns None for an external decoder, and where no answer has a target pass. Queries that the drafter decoded alone
    are left out.
    """
    verified = [g for g in own if not is_drafted_alone(g)]
    if not verified or any("external" in g for g in verified):
        return None
    counts = Counter(step[ACCEPTED] for g in verified for step in g["steps"])
    return tuple(counts[length] for length in range(num_draft_tokens + 1))


def allocated_share(prompts: Prompts, own: Sequence[Generation]) -> Metric:
    """Returns `drafter_share` of random allocation: the new tokens of the queries that the drafter decoded ÷ all new
    tokens."""
    num_new = [new_tokens(g) for g in own]
    alone = [n * is_drafted_alone(g) for n, g in zip(num_new, own, strict=True)]
    return prompts.ratio(alone, num_new, bounds=SHARE)
