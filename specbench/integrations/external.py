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

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, create_model

from specbench.core.errors import ConfigError, import_problem, nearest, raised
from specbench.core.registry import DECODERS
from specbench.core.source import OWN, code_revision
from specbench.core.values import bytes_digest, file_digest
from specbench.decoding.checked_parts import same_torch_state
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import POSITION_COLUMNS, GenerationOutput, GenerationState, StopRules
from specbench.decoding.proposal import Step
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.devices import is_out_of_memory
from specbench.models.meters import Clock
from specbench.records.generation import External
from specbench.specs.catalogue import digest
from specbench.specs.components import build, is_file_entry
from specbench.specs.method import MethodSpec

Counts = Step | Sequence[int]
RUN = ("max_new_tokens", "eos_token_ids", "seed", "on_token")  # passed for every generation
OFFERED = ("target", "drafter", "num_draft_tokens", "sampling", *RUN)


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


@dataclass(frozen=True)
class EntryCode:
    """An imported function or class. `revision`: that of its module (`specbench.core.source`)."""

    call: Callable[..., Any]
    revision: str | None

    @property
    def is_class(self) -> bool:
        return isinstance(self.call, type)

    @property
    def takes_sampling(self) -> bool:
        """Whether the code accepts `sampling`. Other code decodes greedily only."""
        calls = keywords_of(self.call), keywords_of(getattr(self.call, "generate", self.call))
        return any(takes_all or "sampling" in named for named, takes_all in calls)


def load_entry(entry: str) -> EntryCode:
    """Imports an entry. Raises ConfigError if the import fails, or if it is neither a function nor a class with a
    method `generate`."""
    place, _, name = entry.rpartition(":")
    try:
        module = _from_file(Path(place)) if is_file_entry(entry) else importlib.import_module(place)
    except BaseException as error:
        problem = f"cannot be imported: {import_problem(error)}"
        raise ConfigError(f"'{place}' {problem}: correct the entry or the code") from error
    call = getattr(module, name, None)
    if not callable(call):
        names = [n for n, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]
        raise ConfigError(f"'{place}' has no function or class '{name}': {nearest(name, names)}")
    if isinstance(call, type) and not callable(getattr(call, "generate", None)):
        raise ConfigError(f"class '{name}' has no method 'generate': add it, or name a function")
    file = getattr(module, "__file__", None)  # this package's own decoders, and libraries', are one file each
    return EntryCode(call, code_revision([module]) or (f"local-{file_digest(Path(file))}" if file else None))


def _from_file(path: Path) -> ModuleType:
    """Returns a file as a module. Like a script, it can import other modules of its folder."""
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    name = f"specbench_external_{bytes_digest([str(path).encode(), path.read_bytes()])}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None and module_spec.loader is not None  # because it ends in .py
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def keywords_of(call: Callable[..., Any], num_positional: int = 0) -> tuple[dict[str, inspect.Parameter], bool]:
    """Returns the keyword arguments that a call names, after the first `num_positional` parameters, and whether it
    takes any others."""
    try:
        signature = inspect.signature(call, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # the annotation's name exists only for type checkers
        signature = inspect.signature(call)
    parameters = list(signature.parameters.values())[num_positional:]
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def options_model(call: Callable[..., Any], offered: Collection[str], num_positional: int) -> type[BaseModel]:
    """Returns the pydantic model of a call's options: all keyword arguments that are not `offered`, validated by
    annotations that can be evaluated."""
    named, takes_all = keywords_of(call, num_positional)
    fields: dict[str, Any] = {
        name: (
            Any if p.annotation is p.empty or isinstance(p.annotation, str) else p.annotation,
            ... if p.default is p.empty else p.default,
        )
        for name, p in named.items() if name not in offered
    }  # fmt: skip
    config = ConfigDict(extra="allow" if takes_all else "forbid", arbitrary_types_allowed=True)
    return create_model("decoder options", __config__=config, **fields)


def keywords(
    call: Callable[..., Any], offered: Mapping[str, object], options: Mapping[str, object], num_positional: int,
    place: str = "decoder.options",
) -> dict[str, object]:  # fmt: skip
    """Returns the keyword arguments of a call: the `offered` ones that its signature accepts, and all options.

    Raises ConfigError for an unknown, missing or invalid option, and for one with the name of an offered argument.
    """
    taken = sorted(offered.keys() & options.keys())
    if taken:
        raise ConfigError(f"{place}.{taken[0]}: specbench passes '{taken[0]}' itself: delete the key")
    model = options_model(call, offered, num_positional)
    checked = build(model, dict(options), place=place)
    named, takes_all = keywords_of(call, num_positional)
    passed = {name: value for name, value in offered.items() if takes_all or name in named}
    return passed | {name: getattr(checked, name) for name in {**model.model_fields, **options}}


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
        return self.emit(token_ids)

    def emit(self, token_ids: Iterable[int]) -> bool:
        for token in token_ids:
            if not self.state.finished:
                self.state.start(token)
        return self.state.finished


@dataclass(frozen=True)
class ExternalDecoder(Decoder):
    """A decoder with its own loop. `call` decodes one prompt; `run_arguments`: those of RUN that it takes. `revision`
    identifies its code."""

    model: CausalLM
    call: Callable[..., Any]
    run_arguments: frozenset[str]
    revision: str | None

    @property
    def code_revision(self) -> str | None:
        return self.revision

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes one prompt. Raises ConfigError if the code raises an exception or returns an inconsistent result."""
        state = GenerationState(list(prompt_ids), stop)
        clock = self.model.passes.clock
        device = self.model.device
        meter = TokenMeter(state, clock)
        given = {
            "max_new_tokens": state.num_remaining, "eos_token_ids": sorted(stop.eos_token_ids), "seed": seed,
            "on_token": meter,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if name in self.run_arguments}
        assert self.method.decoder is not None
        is_own = self.method.decoder.entry.startswith(f"{OWN}.")  # code of this package
        watched = nullcontext() if is_own else same_torch_state("it")
        unseeded = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        with naming_method(self.method), watched, unseeded, torch.inference_mode():
            torch.manual_seed(seed)
            start = clock.now()
            result = self.call(list(prompt_ids), **given)
            end = clock.now()
            steps, external = self._count(result, meter)
        assert state.finish is not None
        first = start if meter.first_seconds is None else meter.first_seconds
        return GenerationOutput(
            token_ids=state.new_ids, finish=state.finish, steps=steps, positions=dict.fromkeys(POSITION_COLUMNS),
            target_passes=[], draft_passes=[],
            ttft_seconds=None if meter.first_seconds is None else first - start, draft_prefill_seconds=None,
            decode_seconds=end - first, external=external,
        )  # fmt: skip

    def _count(self, result: Any, meter: TokenMeter) -> tuple[list[Step], External]:
        """Adds the returned tokens to the answer. Returns its steps and counts. Raises ConfigError for an inconsistent
        result."""
        # 1. The tokens.
        try:
            returned = [int(token) for token in getattr(result, "token_ids", result)]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"its result is of type {type(result).__name__}: return token ids, or a Decoded"
            ) from error
        vocab_size = self.model.model.config.get_text_config().vocab_size
        if wrong := [token for token in returned if not 0 <= token < vocab_size]:
            raise ConfigError(f"it returned token {wrong[0]}, but the target has tokens 0 to {vocab_size - 1}")
        if returned[: len(meter.reported)] != meter.reported:
            raise ConfigError("the tokens that it reported to on_token differ from the returned ones")
        if not meter.emit(returned[len(meter.reported) :]):
            if not returned or returned[-1] not in self.model.eos_token_ids:
                raise ConfigError(
                    f"it returned {len(returned)} tokens, which do not end with one of eos_token_ids nor at "
                    "max_new_tokens: return the whole answer, without the prompt"
                )
            meter.state.finish = "eos"  # in the warm-up, without end tokens, a decoder may still stop at one
        # 2. The target passes, and their steps if it counts them.
        num_kept = meter.state.num_new_tokens
        steps = list[Step]()
        num_passes = getattr(result, "num_target_passes", None)
        given: Sequence[Counts] | None = getattr(result, "steps", None)
        if given is not None:
            steps, num_passes = count_steps(given, self.method.num_draft_tokens, len(returned), num_kept)
        elif num_passes is not None and int(num_passes) < 1:
            raise ConfigError(f"num_target_passes = {num_passes}: the prompt alone takes 1")
        num_first = min(meter.num_first_tokens, num_kept)
        return steps, External(
            num_first_tokens=num_first, num_target_passes=None if num_passes is None else int(num_passes)
        )  # fmt: skip


# Instances of decoder classes with their draft model, by target.
_BUILT: WeakKeyDictionary[CausalLM, dict[Any, Any]] = WeakKeyDictionary()


@DECODERS.register("external")
def external_decoder(method: MethodSpec, models: ModelPair, sampling: Sampling) -> ExternalDecoder:
    """Loads a method's code. A class is constructed once per sampling for the whole run."""
    assert method.decoder is not None
    options = method.decoder.options
    place = "decoder.options"
    drafter = models.drafter if method.needs_drafter else None
    fixed = {
        "target": LoadedModel(models.target.model, models.target.tokenizer),
        "drafter": LoadedModel(drafter.model, drafter.tokenizer) if drafter is not None else None,
        "num_draft_tokens": method.num_draft_tokens,
        "sampling": sampling,
    }
    with naming_method(method):
        code = load_entry(method.decoder.entry)
        call = code.call
        if not sampling.greedy and not code.takes_sampling:
            raise ConfigError("it does not take 'sampling', so it only decodes greedily: set generation.temperature=0")
        if code.is_class:
            key = (method.decoder.entry, code.revision, digest(method), sampling)
            built = _BUILT.setdefault(models.target, {})
            if key not in built or built[key][0] is not drafter:
                built[key] = drafter, call(**keywords(call, fixed, options, 0))
            call = built[key][1].generate
            options = {}
            place = "generate"
        passed = keywords(call, {**fixed, **dict.fromkeys(RUN)}, options, 1, place)
    arguments = {name: value for name, value in passed.items() if name not in RUN}
    taken = frozenset(passed.keys() & set(RUN))
    return ExternalDecoder(method, models.target, partial(call, **arguments), taken, code.revision)


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


def count_steps(
    given: Sequence[Counts], num_draft_tokens: int, num_returned: int, num_kept: int
) -> tuple[list[Step], int]:  # fmt: skip
    """Returns the steps up to the last kept token, without the first token, and the number of target passes.

    Raises ConfigError that names the first inconsistent step, or if the steps do not emit the returned tokens.
    """
    # 1. Each step for itself.
    steps = []
    for number, counts in enumerate(given):
        if isinstance(counts, Step):
            counts = (counts.num_drafted, counts.num_verified, counts.num_accepted, counts.num_emitted)
        try:
            drafted, verified, accepted, emitted = map(int, counts)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"step {number} is {counts!r}: write (drafted, verified, accepted, emitted)") from error
        if not (0 <= accepted <= verified <= drafted <= num_draft_tokens and 1 <= emitted <= accepted + 1):
            raise ConfigError(
                f"step {number} has {drafted} drafted (of at most {num_draft_tokens}), {verified} verified, {accepted} "
                f"accepted, {emitted} emitted: give accepted ≤ verified ≤ drafted and 1 ≤ emitted ≤ accepted + 1"
            )
        steps.append(Step(drafted, verified, accepted, emitted))
    # 2. Their tokens. The first step's pass may be the one that reads the prompt, whose first token is in no step.
    num_emitted = sum(step.num_emitted for step in steps)
    reads_prompt = num_emitted == num_returned
    if not reads_prompt and num_emitted + 1 != num_returned:
        raise ConfigError(f"its steps emit {num_emitted} tokens, but it returned {num_returned}: count each token once")
    # 3. Dropped tokens count neither as accepted nor as verified.
    left = num_kept - (not reads_prompt)
    counted_steps = list[Step]()
    for step in steps:
        if left <= 0:
            break
        if step.num_emitted > left:
            num_accepted = min(step.num_accepted, left)
            step = Step(step.num_drafted, num_accepted, num_accepted, left)
        counted_steps.append(step)
        left -= step.num_emitted
    if reads_prompt:
        counted_steps[0] = replace(counted_steps[0], num_emitted=counted_steps[0].num_emitted - 1)
    return counted_steps, len(counted_steps) + (not reads_prompt)
