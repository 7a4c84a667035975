"""One method's part of a record: what it wrote, how, and how that is judged."""

from dataclasses import asdict
from typing import Any

from specbench.decoding.ledger import StopRules, text_before_stop
from specbench.decoding.loop import Generation
from specbench.running.compose import Decoder
from specbench.scoring.contract import Reference, Scorer, unscored


def as_json(
    generation: Generation, decoder: Decoder, stop: StopRules, scorer: Scorer | None, reference: Reference | None
) -> dict[str, Any]:
    """One method's part of a record."""
    text = text_before_stop(decoder.model.decode_text(generation.token_ids), stop.stop_strings)
    return {
        **recorded(generation),
        "text": text,
        **(judged(scorer, text, reference) if scorer is not None else {"score": None}),
    }


def recorded(generation: Generation) -> dict[str, Any]:
    """A generation as the metrics read it."""
    return {
        "token_ids": generation.token_ids,
        "finish": generation.finish,
        "steps": [[s.num_drafted, s.num_judged, s.num_accepted, s.num_emitted] for s in generation.steps],
        "positions": generation.positions,
        **({"attempted": generation.attempted} if generation.attempted is not None else {}),
        "passes": {"target": generation.target_passes, "draft": generation.draft_passes},
        "ttft_seconds": generation.ttft_seconds,
        "draft_prefill_seconds": generation.draft_prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "rule_seconds": generation.rule_seconds,
        "tokenizer_seconds": generation.tokenizer_seconds,
        **({"external": asdict(generation.external)} if generation.external else {}),
    }


def judged(scorer: Scorer, text: str, reference: Reference | None) -> dict[str, Any]:
    """The keys of a record that judge an answer: `score` is the value of the main metric."""
    score = unscored(scorer.names) if reference is None else scorer(text, reference)
    return {
        "score": score.values[scorer.names[0]],
        "scores": dict(score.values),
        **({"statistics": dict(score.statistics)} if score.statistics else {}),
        **({"problem": score.problem} if score.problem else {}),
        **({"outcome": dict(score.outcome)} if score.outcome else {}),
    }
