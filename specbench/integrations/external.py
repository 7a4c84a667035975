"""External decoders, which have their own generation loop. They are measured, counted and audited like other methods.

A method names the code: `decoder: {type: external, entry: "package.module:name"}` (or "path/to/file.py:name", relative
to the YAML file). The code is one of:

- a function, called once per generation: `decode(prompt_ids, *, …, **options)`;
- a class, constructed once per model pair and sampling, outside the measured time, as `Name(*, …, **options)`, with a
  method `generate(prompt_ids, *, …)` that is called once per generation and keeps no state between calls.

The code gets the following keywords if its signature names them (all of them if it takes `**kwargs`). The constructor
of a class may name the first four, `generate` all eight.

target: LoadedModel             the target and its tokenizer, shared with other methods: copy what you modify
drafter: LoadedModel | None     the draft model, if the YAML has `drafter: same_vocabulary` or `other_vocabulary`
num_draft_tokens: int           the maximum number of draft tokens in a step
sampling: Sampling              temperature (0 is greedy), top_k, top_p; code that does not take it is only run greedily
max_new_tokens: int             the maximum number of tokens; further tokens are dropped, but their time counts
eos_token_ids: list[int]        tokens that end an answer; tokens after them are dropped. Empty during the warm-up,
                                whose answers have max_new_tokens tokens
seed: int                       the seed of this generation; torch's global generators are already seeded with it
on_token: callable              call it with new tokens, one or more, as soon as they are known. The first call sets the
                                time to first token. It returns True once the answer has ended, also at a stop string,
                                so that the decoder can return. If it is never called, all time, including prefill,
                                counts as decoding.

The code returns the new token ids without the prompt, or a `Decoded` (or any object with its attributes).

A minimal example:

    import torch

    def decode(prompt_ids, *, target, max_new_tokens, eos_token_ids, on_token):
        ids = torch.tensor([prompt_ids], device=target.device)
        for _ in range(max_new_tokens):
            best = target.model(ids).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
            if on_token([int(best)]) or int(best) in eos_token_ids:
                break
        return ids[0, len(prompt_ids) :].tolist()
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from specbench.core.errors import ConfigError, raised
from specbench.core.source import OWN
from specbench.decoding.checked_parts import same_torch_state
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import POSITION_COLUMNS, ExternalCounts, GenerationOutput, GenerationState, StopRules
from specbench.decoding.proposal import Step
from specbench.models.causal_lm import CausalLM
from specbench.models.devices import is_out_of_memory
from specbench.models.meters import Clock
from specbench.specs.method import MethodSpec

Counts = Step | Sequence[int]


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in evaluation mode, on its device and in the run's dtype, with its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """The device of the model and its inputs."""
        found: torch.device = self.model.device
        return found


@dataclass(frozen=True)
class Decoded:
    """The new tokens and, if the decoder counts them, its target passes. Attributes are read outside the measured time.

    steps: (drafted, verified, accepted, emitted) per target pass, with accepted ≤ verified ≤ drafted ≤ num_draft_tokens
    and 1 ≤ emitted ≤ accepted + 1. Together the steps emit all returned tokens (if the first pass reads the prompt and
    verifies draft tokens), or all but the first (if a separate pass reads the prompt). num_target_passes includes the
    pass over the prompt, and is needed only without steps.
    """

    token_ids: Sequence[int]
    steps: Sequence[Counts] | None = None
    num_target_passes: int | None = None


def checked_steps(steps: Sequence[Counts], num_draft_tokens: int) -> list[Step]:
    """Returns the steps. Raises ConfigError that names the first inconsistent one."""
    found = []
    for number, counts in enumerate(steps):
        if not isinstance(counts, Step):
            try:
                drafted, verified, accepted, emitted = map(int, counts)
                counts = Step(drafted, verified, accepted, emitted)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"step {number} is {counts!r}: write (drafted, verified, accepted, emitted)"
                ) from error
        is_ordered = 0 <= counts.num_accepted <= counts.num_judged <= counts.num_drafted <= num_draft_tokens
        if not is_ordered or not 1 <= counts.num_emitted <= counts.num_accepted + 1:
            raise ConfigError(
                f"step {number} has {counts.num_drafted} drafted (of at most {num_draft_tokens}), {counts.num_judged} "
                f"verified, {counts.num_accepted} accepted, {counts.num_emitted} emitted: give accepted ≤ verified ≤ "
                "drafted and 1 ≤ emitted ≤ accepted + 1"
            )
        found.append(counts)
    return found


def cut_steps(steps: Sequence[Step], num_returned: int, num_kept: int) -> tuple[list[Step], int]:
    """Returns the steps up to the last kept token, without the first token, and the number of target passes.

    Raises ConfigError if the steps do not emit the returned tokens.
    """
    num_emitted = sum(step.num_emitted for step in steps)
    reads_prompt = num_emitted == num_returned  # the first step's pass is the one that reads the prompt
    if not reads_prompt and num_emitted + 1 != num_returned:
        raise ConfigError(f"its steps emit {num_emitted} tokens, but it returned {num_returned}: count each token once")
    left = num_kept - (not reads_prompt)
    kept: list[Step] = []
    for step in steps:
        if left <= 0:
            break
        if step.num_emitted > left:  # dropped tokens count neither as accepted nor as verified
            num_accepted = min(step.num_accepted, left)
            step = Step(step.num_drafted, num_accepted, num_accepted, left)
        kept.append(step)
        left -= step.num_emitted
    if reads_prompt:
        kept[0] = replace(kept[0], num_emitted=kept[0].num_emitted - 1)
    return kept, len(kept) + (not reads_prompt)


@contextmanager
def naming_method(method: MethodSpec) -> Iterator[None]:
    """Turns exceptions of a method's code into ConfigErrors that name the method and the line, except out-of-memory
    errors."""
    assert method.decoder is not None
    place = f"method '{method.name}': decoder.entry = '{method.decoder.entry}'"
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"{place}: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(f"{place} {raised(error)}") from error


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generators until the block ends, then restores them."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class TokenMeter:
    """The `on_token` callback. It takes the time of the first token and detects the end of the answer."""

    def __init__(self, state: GenerationState, clock: Clock) -> None:
        self.state = state
        self.reported: list[int] = []
        self.first_seconds: float | None = None
        self.num_first_tokens = 0
        self._clock = clock

    def __call__(self, tokens: int | Iterable[int]) -> bool:
        """Records one or more new tokens. Returns whether the answer has ended."""
        token_ids = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        if self.first_seconds is None and token_ids:
            self.first_seconds = self._clock.now()
            self.num_first_tokens = len(token_ids)
        self.reported += token_ids
        emit(self.state, token_ids)
        return self.state.finished


def emit(state: GenerationState, token_ids: Iterable[int]) -> None:
    for token in token_ids:
        if not state.finished:
            state.start(token)


@dataclass(frozen=True)
class ExternalDecoder(Decoder):
    """A decoder with its own loop. `call` decodes one prompt; `revision` identifies its code."""

    model: CausalLM
    call: Callable[..., Any]
    revision: str | None

    @property
    def code_revision(self) -> str | None:
        return self.revision

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes one prompt. Raises ConfigError if the code raises an exception or returns an inconsistent result."""
        state, clock = GenerationState(list(prompt_ids), stop), self.model.passes.clock
        meter = TokenMeter(state, clock)
        assert self.method.decoder is not None
        is_own = self.method.decoder.entry.startswith(f"{OWN}.")  # code of this package
        watched = nullcontext() if is_own else same_torch_state("it")
        with naming_method(self.method), watched, seeded(seed, self.model.device), torch.inference_mode():
            start = clock.now()
            result = self.call(
                list(prompt_ids), max_new_tokens=state.num_remaining, eos_token_ids=sorted(stop.eos_token_ids),
                seed=seed, on_token=meter,
            )  # fmt: skip
            end = clock.now()
            token_ids, steps, external = self._count(result, meter)
        assert state.finish is not None
        first = start if meter.first_seconds is None else meter.first_seconds
        return GenerationOutput(
            token_ids=token_ids, finish=state.finish, steps=steps, positions=dict.fromkeys(POSITION_COLUMNS),
            target_passes=[], draft_passes=[],
            ttft_seconds=None if meter.first_seconds is None else first - start, draft_prefill_seconds=None,
            decode_seconds=end - first, external=external,
        )  # fmt: skip

    def _count(self, result: Any, meter: TokenMeter) -> tuple[list[int], list[Step], ExternalCounts]:
        """Returns the kept tokens, steps and counts of the result. Raises ConfigError for an inconsistent result."""
        try:
            returned = [int(token) for token in getattr(result, "token_ids", result)]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"it returned a {type(result).__name__}: return token ids, or a Decoded") from error
        vocab_size = self.model.model.config.get_text_config().vocab_size
        if wrong := [token for token in returned if not 0 <= token < vocab_size]:
            raise ConfigError(f"it returned token {wrong[0]}, but the target has tokens 0 to {vocab_size - 1}")
        if returned[: len(meter.reported)] != meter.reported:
            raise ConfigError("the tokens that it reported to on_token differ from the returned ones")
        state = meter.state
        emit(state, returned[len(meter.reported) :])
        if not state.finished:
            if not returned or returned[-1] not in self.model.eos_token_ids:
                raise ConfigError(
                    f"it returned {len(returned)} tokens, which do not end with one of eos_token_ids nor at "
                    "max_new_tokens: return the whole answer, without the prompt"
                )
            state.finish = "eos"  # in the warm-up, without end tokens, a decoder may still stop at one
        kept = state.new_ids
        steps: list[Step] = []
        num_passes = getattr(result, "num_target_passes", None)
        given: Sequence[Any] | None = getattr(result, "steps", None)
        if given is not None:
            steps, num_passes = cut_steps(checked_steps(given, self.method.num_draft_tokens), len(returned), len(kept))
        elif num_passes is not None and int(num_passes) < 1:
            raise ConfigError(f"num_target_passes = {num_passes}: the prompt alone takes 1")
        num_first = min(meter.num_first_tokens, len(kept))
        return kept, steps, ExternalCounts(num_first, None if num_passes is None else int(num_passes))
