"""An external implementation as a decoder: timed by the clock and counted by the ledger of all the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specbench.decoding.ledger import Ledger, StopRules
from specbench.decoding.loop import POSITION_COLUMNS, ExternalCounts, Generation
from specbench.decoding.proposal import Proposal, Step, Verdict
from specbench.decoding.sampling import Distributions
from specbench.errors import ConfigError
from specbench.external.counts import checked, cut
from specbench.external.guard import blaming, seeded
from specbench.models.timing import Clock
from specbench.running.compose import Decoder


class Meter:
    """What a decoder reports tokens to: it stops the clock at the first and knows where the answer ends."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.reported: list[int] = []
        self.first_seconds: float | None = None
        self.num_first_tokens = 0
        self._clock = clock

    def __call__(self, tokens: int | Iterable[int]) -> bool:
        """Take one or more new tokens; whether the answer has ended."""
        token_ids = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        if self.first_seconds is None and token_ids:
            self.first_seconds = self._clock.now()
            self.num_first_tokens = len(token_ids)
        self.reported += token_ids
        emit(self.ledger, token_ids)
        return self.ledger.finished


def emit(ledger: Ledger, token_ids: Iterable[int]) -> None:
    """Enter tokens up to the cut."""
    for token in token_ids:
        if not ledger.finished:
            ledger.start(token)


def no_rule(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    raise AssertionError("an external decoder verifies by itself")


@dataclass(frozen=True)
class ExternalDecoder(Decoder):
    """`call` decodes one prompt; `revision` identifies its code."""

    call: Callable[..., Any]
    revision: str | None

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt. Raises ConfigError in one line for whatever the code raises or gets wrong."""
        ledger, clock = Ledger(list(prompt_ids), stop), self.model.passes.clock
        meter = Meter(ledger, clock)
        with blaming(self.method), seeded(seed, self.model.device), torch.inference_mode():
            start = clock.now()
            result = self.call(
                list(prompt_ids), max_new_tokens=ledger.num_remaining, eos_token_ids=sorted(stop.eos_token_ids),
                seed=seed, on_token=meter,
            )  # fmt: skip
            end = clock.now()
            token_ids, steps, external = self._count(result, meter)
        assert ledger.finish is not None
        first = start if meter.first_seconds is None else meter.first_seconds
        return Generation(
            token_ids=token_ids, finish=ledger.finish, steps=steps, positions=dict.fromkeys(POSITION_COLUMNS),
            target_passes=[], draft_passes=[],
            ttft_seconds=None if meter.first_seconds is None else first - start, draft_prefill_seconds=None,
            decode_seconds=end - first, external=external,
        )  # fmt: skip

    def _count(self, result: Any, meter: Meter) -> tuple[list[int], list[Step], ExternalCounts]:
        """What the ledger keeps of the result. Raises ConfigError where it contradicts itself."""
        try:
            returned = [int(token) for token in getattr(result, "token_ids", result)]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"it returned a {type(result).__name__}: return token ids, or a Decoded") from error
        vocab_size = self.model.model.config.get_text_config().vocab_size
        if wrong := [token for token in returned if not 0 <= token < vocab_size]:
            raise ConfigError(f"it returned token {wrong[0]}, but the target has tokens 0 to {vocab_size - 1}")
        if returned[: len(meter.reported)] != meter.reported:
            raise ConfigError("the tokens it reported to on_token are not those that it returned")
        ledger = meter.ledger
        emit(ledger, returned[len(meter.reported) :])
        if not ledger.finished:
            if not returned or returned[-1] not in self.model.eos_token_ids:
                raise ConfigError(
                    f"it returned {len(returned)} tokens, which end neither in one of eos_token_ids nor at "
                    "max_new_tokens: return the whole answer, without the prompt"
                )
            ledger.finish = "eos"  # where nothing was to end it (the warm-up), a decoder may know its own end
        kept = ledger.new_ids
        steps: list[Step] = []
        num_passes = getattr(result, "num_target_passes", None)
        given: Sequence[Any] | None = getattr(result, "steps", None)
        if given is not None:
            steps, num_passes = cut(checked(given, self.method.num_draft_tokens), len(returned), len(kept))
        elif num_passes is not None and int(num_passes) < 1:
            raise ConfigError(f"num_target_passes = {num_passes}: the prompt alone takes 1")
        num_first = min(meter.num_first_tokens, len(kept))
        return kept, steps, ExternalCounts(num_first, None if num_passes is None else int(num_passes))
