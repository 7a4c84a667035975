"""How many tokens and target passes a recorded generation has, whatever decoder it is of."""

from specbench.running.record_check import EMITTED, step_sum
from specbench.running.records import Generation


def with_own_passes(generation: Generation, decodes_with: str) -> Generation:
    """The generation with its passes where they belong: of one model that decodes alone, the decode loop calls every
    pass the target's. `decodes_with` is the method's; "random" is settled by the record, which says who `decoded_by`.

    Raises ValueError where the record does not say.
    """
    decoder = generation.get("decoded_by") if decodes_with == "random" else decodes_with
    if decoder is None:
        raise ValueError("has no decoded_by: which model decoded this query")
    if decoder == "target":
        return generation
    passes = {"target": [], "draft": generation["passes"]["target"]}
    return {**generation, "passes": passes, "decoded_by": decoder}


def is_drafted_alone(generation: Generation) -> bool:
    """Whether the drafter decoded it without the target; asked of what `with_own_passes` gives."""
    return generation.get("decoded_by") == "drafter"


def new_tokens(generation: Generation) -> int:
    return len(generation["token_ids"])


def timed_tokens(generation: Generation) -> int:
    """The tokens that decode_seconds were spent on: all but those that were there when its clock started, which is one,
    unless an external decoder reported several at once or (0) did not report any."""
    return new_tokens(generation) - int(generation.get("external", {}).get("num_first_tokens", 1))


def target_passes(generation: Generation) -> int | None:
    """Target passes, the prefill included; None where an external decoder does not tell."""
    if "external" in generation:
        told: int | None = generation["external"]["num_target_passes"]
        return told
    return 0 if is_drafted_alone(generation) else len(generation["steps"]) + 1


def tokens_of_passes(generation: Generation) -> tuple[int, int]:
    """Emitted tokens, and the target passes that emitted them; (0, 0) where the passes are not known, or none.

    A prefill that emits a token by itself is left out with its token, where the steps are known.
    """
    num_passes, num_steps = target_passes(generation), len(generation["steps"])
    if not num_passes:
        return 0, 0
    if "external" in generation and (num_steps == 0 or num_passes == num_steps):
        return new_tokens(generation), num_passes
    return step_sum(generation, EMITTED), num_steps
