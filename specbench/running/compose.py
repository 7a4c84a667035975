"""A method on a model pair: drafter × rule × bridge put together, ready to decode a prompt."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch

from specbench import decoding  # noqa: F401  (registers the built-in components)
from specbench.catalogue import load_method, method_names
from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges.shared import shared
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import ScoringModel
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import Rule
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.pair import ModelPair
from specbench.specs import GenerationSpec, MethodSpec


@dataclass(frozen=True)
class QueryInfo:
    """What is known of a query before it is decoded: the language of its answer by the task, and its text."""

    language: str | None = None
    text: str = ""


UNKNOWN = QueryInfo()


@dataclass(frozen=True)
class Decoder:
    """One method, composed for one pair and one way of sampling."""

    method: MethodSpec
    model: CausalLM
    drafter: Drafter
    rule: Rule
    sampling: Sampling

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt with the random stream of `seed`. A drafter that must know the target's tokens sees them in
        a rehearsal, before any clock runs."""
        rehearse = getattr(self.drafter, "rehearse", None)
        if rehearse is not None:
            rehearse(lambda: self._decode(prompt_ids, stop, seed))
        return self._decode(prompt_ids, stop, seed)

    def _decode(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        generator = torch.Generator(device=self.model.device).manual_seed(seed)
        return decode(
            self.model, self.drafter, self.rule, prompt_ids, num_draft_tokens=self.method.num_draft_tokens,
            sampling=self.sampling, stop=stop, generator=generator,
        )  # fmt: skip

    def chosen(self, seed: int, query: QueryInfo = UNKNOWN) -> "Decoder":
        """What decodes a query with the random stream of `seed`: this decoder, unless it shares the queries out."""
        return self

    def marks(self, chosen: "Decoder") -> dict[str, str]:
        """What a record says of who decoded a query, beside its generation."""
        return {"decoded_by": "drafter"} if self.method.decodes_with == "drafter" else {}

    @property
    def parts(self) -> "tuple[Decoder, ...]":
        """All that may be chosen."""
        return (self,)

    def stop_rules(self, generation: GenerationSpec, context_limit: int | None) -> StopRules:
        """Where a generation of this method's model ends."""
        return StopRules(
            max_new_tokens=generation.max_new_tokens,
            eos_token_ids=self.model.eos_token_ids,
            stop_strings=generation.stop,
            decode_text=self.model.decode_text,
            context_limit=context_limit,
        )


def compose(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """Build a method's parts. Raises ConfigError where the pair does not fit the method."""
    if method.routes is not None:
        return compose_routes(method, models, sampling)
    if method.needs_drafter and models.drafter is None:
        raise ConfigError(f"method '{method.name}' needs a draft model: give one with --drafter")
    if method.decoder is not None:
        return compose_external(method, models, sampling)
    if method.decodes_with == "random":
        return compose_allocation(method, models, sampling)
    rule: Rule = method.verification.factory(**method.verification.options)
    if method.decodes_with == "drafter":
        assert models.drafter is not None
        alone = ModelPair(models.drafter)
        return Decoder(method, alone.target, make_drafter(method, alone, sampling), rule, sampling)
    drafter = bridged_drafter(method, models, sampling)
    check_sampling(method, rule, sampling, getattr(drafter, "sampling", None) or sampling)
    return Decoder(method, models.target, drafter, rule, sampling)


def compose_external(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """The decoder of a method that brings its own loop."""
    from specbench.external.build import external_decoder  # it imports this module

    if models.target.compiled is not None:
        raise ConfigError(
            f"method '{method.name}': its code has passes of its own, which --engine compiled does not reach: "
            "leave the method out, or take --engine eager"
        )
    if method.same_vocabulary:
        check_vocabularies(method, models, sampling)
    return external_decoder(method, models, sampling)


def compose_allocation(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """The decoder of a method that shares the queries out between target and drafter."""
    from specbench.running.allocation import random_allocation  # it imports this module

    check_vocabularies(method, models, sampling)
    return random_allocation(method, models, sampling)


def compose_routes(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """The decoder of a method that has a drafter for each language."""
    from specbench.running.routing import routed  # it imports this module

    return routed(method, models, sampling)


def check_vocabularies(method: MethodSpec, models: ModelPair, sampling: Sampling) -> None:
    """Raise ConfigError where target and drafter do not share a vocabulary."""
    with naming_able_methods(method):
        shared(models, sampling, lambda model: NoDrafter())


def make_drafter(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Drafter:
    """The method's own drafter, before any bridge."""
    try:
        made: Drafter = method.drafter.factory(models, sampling, **method.drafter.options)
    except ConfigError as error:
        raise ConfigError(f"method '{method.name}': {error}") from error
    return made


def bridged_drafter(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Drafter:
    """The method's drafter, speaking the target's tokens."""
    if models.drafter is None or not method.needs_drafter:
        return make_drafter(method, models, sampling)

    def make(model: ScoringModel) -> Drafter:
        return make_drafter(method, replace(models, drafter=cast(CausalLM, model)), sampling)

    with naming_able_methods(method):
        made: Drafter = method.bridge.factory(models, sampling, make, **method.bridge.options)
    return made


@contextmanager
def naming_able_methods(method: MethodSpec) -> Iterator[None]:
    """Two vocabularies that do not fit the method end in one line with the methods that they fit."""
    try:
        yield
    except VocabularyMismatch as error:
        able = ", ".join(methods_for_any_vocabulary())
        raise ConfigError(f"method '{method.name}': {error}; methods that can run this pair: {able}") from error


def check_sampling(method: MethodSpec, rule: Rule, target: Sampling, draft: Sampling) -> None:
    """A rule that compares processed distributions needs that both are drawn from: a greedy one is a point mass."""
    if getattr(rule, "compares_processed", False) and (target.greedy or draft.greedy):
        side = "generation.temperature" if target.greedy else "drafter.temperature"
        raise ConfigError(
            f"method '{method.name}': verification.divergence_on = 'processed' compares point masses where decoding is "
            f"greedy: set {side} above 0, or verification.divergence_on=raw"
        )


def methods_for_any_vocabulary() -> list[str]:
    """The known methods that run whether or not target and drafter share a vocabulary."""
    known = [load_method(name) for name in method_names()]
    return [method.name for method in known if not method.same_vocabulary]


def stream_seed(*parts: str | int) -> int:
    """The seed of one random stream, from what names it: order of execution and resuming change nothing."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def sampling_of(generation: GenerationSpec) -> Sampling:
    return Sampling(generation.temperature, generation.top_k, generation.top_p)


def unique(items: Sequence[str]) -> list[str]:
    """The items in order, each once."""
    return list(dict.fromkeys(items))
