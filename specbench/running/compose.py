"""A method on a model pair: drafter × rule × bridge put together, ready to decode a prompt."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import cast

from specbench import decoding  # noqa: F401  (registers the built-in components)
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import DECODERS
from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges.token_level import shared
from specbench.decoding.decoder import UNKNOWN, Decoder, DraftingDecoder, QueryInfo, stream_seed
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import ScoringModel
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.generation_state import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.composition import DEFAULT
from specbench.specs.languages import known
from specbench.specs.method import MethodSpec
from specbench.specs.task import GenerationSpec, TaskSpec
from specbench.tasks.scoring.language import language_of, prepare


def compose(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """Build a method's parts. Raises ConfigError where the pair does not fit the method."""
    if method.routes is not None:
        return compose_routed(method, models, sampling)
    if method.needs_drafter and models.drafter is None:
        raise ConfigError(f"method '{method.name}' needs a draft model: give one with --drafter")
    if method.decoder is not None:
        return compose_external(method, models, sampling)
    if method.decodes_with == "random":
        check_vocabularies(method, models, sampling)
        return compose_allocation(method, models, sampling)
    rule = make_rule(method)
    if method.decodes_with == "drafter":
        assert models.drafter is not None
        alone = ModelPair(models.drafter)
        return DraftingDecoder(method, alone.target, make_drafter(method, alone, sampling), rule, sampling)
    drafter = bridged_drafter(method, models, sampling)
    check_sampling(method, rule, sampling, drafter.sampling or sampling)
    return DraftingDecoder(method, models.target, drafter, rule, sampling)


def compose_external(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """Returns the decoder of a method that brings its own loop."""
    assert method.decoder is not None
    if models.target.static is not None:
        raise ConfigError(
            f"method '{method.name}': its code has passes of its own, which --engine {models.target.engine} does not "
            "reach: "
            "leave the method out, or take --engine eager"
        )
    if method.same_vocabulary:
        check_vocabularies(method, models, sampling)
    made: Decoder = DECODERS.get(method.decoder.type)(method, models, sampling)
    return made


def check_vocabularies(method: MethodSpec, models: ModelPair, sampling: Sampling) -> None:
    """Raise ConfigError where target and drafter do not share a vocabulary."""
    with naming_able_methods(method):
        shared(models, sampling, lambda model: NoDrafter())


def make_rule(method: MethodSpec) -> VerificationRule:
    """Returns the method's verification rule."""
    made = method.verification.factory(**method.verification.options)
    if not isinstance(made, VerificationRule):
        raise ConfigError(
            f"method '{method.name}': rule '{method.verification.rule}' made a {type(made).__name__}, which is no "
            "specbench.decoding.verification.Rule: derive its class from that one"
        )
    return made


def make_drafter(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Drafter:
    """The method's own drafter, before any bridge."""
    try:
        made = method.drafter.factory(models, sampling, **method.drafter.options)
    except ConfigError as error:
        raise ConfigError(f"method '{method.name}': {error}") from error
    if not isinstance(made, Drafter):
        raise ConfigError(
            f"method '{method.name}': drafter '{method.drafter.type}' made a {type(made).__name__}, which is no "
            "specbench.decoding.drafters.Drafter: derive its class from that one"
        )
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


def check_sampling(method: MethodSpec, rule: VerificationRule, target: Sampling, draft: Sampling) -> None:
    """A rule that compares processed distributions needs that both are drawn from: a greedy one is a point mass."""
    if rule.compares_processed and (target.greedy or draft.greedy):
        side = "generation.temperature" if target.greedy else "drafter.temperature"
        raise ConfigError(
            f"method '{method.name}': verification.divergence_on = 'processed' compares point masses where decoding is "
            f"greedy: set {side} above 0, or verification.divergence_on=raw"
        )


def methods_for_any_vocabulary() -> list[str]:
    """The known methods that run whether or not target and drafter share a vocabulary."""
    known = [load_method(name) for name in method_names()]
    return [method.name for method in known if not method.same_vocabulary]


def sampling_of(generation: GenerationSpec) -> Sampling:
    return Sampling(generation.temperature, generation.top_k, generation.top_p)


def unique(items: Sequence[str]) -> list[str]:
    """The items in order, each once."""
    return list(dict.fromkeys(items))


@dataclass(frozen=True)
class Route(DraftingDecoder):
    """The decoder of one language. `seconds`: what finding the language of the query took, part of its ttft_seconds."""

    name: str
    seconds: float = 0.0

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt with the random stream of `seed`."""
        made = super().generate(prompt_ids, stop, seed)
        assert made.ttft_seconds is not None
        return replace(made, ttft_seconds=self.seconds + made.ttft_seconds)


@dataclass(frozen=True)
class RoutedDecoder(Decoder):
    """`parts` draft each for a language; target, rule and bridge are common."""

    routes: Mapping[str, Route]

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The routes."""
        return tuple(self.routes.values())

    def select_decoder(self, seed: int, query: QueryInfo = UNKNOWN) -> Decoder:
        """The route of a query's language; of an unknown one, or one without a route, the default."""
        if self.method.language == "given":
            return self.routes[route_of(query.language, self.routes)]
        start = perf_counter()
        name = route_of(language_of(query.text, *self.routes), self.routes)
        return replace(self.routes[name], seconds=perf_counter() - start)

    def record_fields(self, selected: Decoder) -> dict[str, str]:
        assert isinstance(selected, Route)
        return {"route": selected.name}

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode a prompt of which neither language nor text is known, as an audit does: by a route that is drawn for
        prompt and seed, so that all are audited."""
        drawn = stream_seed(seed, "route", *prompt_ids) % len(self.routes)
        return self.parts[drawn].generate(prompt_ids, stop, seed)


def route_of(language: str | None, routes: Collection[str]) -> str:
    """The route of a language: by its code as it is, without region or script, or in the other ISO 639."""
    codes = (language, language.partition("-")[0], known(language)) if language else ()
    return next((code for code in codes if code in routes and code is not None), DEFAULT)


def without_subset(method: MethodSpec, tasks: Sequence[TaskSpec]) -> list[str]:
    """A line for each route whose language no subset of the tasks has: a code that is misspelt would go unseen."""
    if method.routes is None or method.language != "given":
        return []
    languages = [task.subset(name).language for task in tasks for name in task.subset_names]
    taken = {route_of(language, method.routes) for language in languages}
    names = ", ".join(task.name for task in tasks)
    return [
        f"method '{method.name}': no subset of {names} has the language of route '{route}': "
        + nearest(route, [language for language in languages if language])
        for route in method.routes
        if route not in taken and route != DEFAULT
    ]


def compose_routed(method: MethodSpec, models: ModelPair, sampling: Sampling) -> RoutedDecoder:
    """The decoder of a method with routes. Raises ConfigError, naming the route, where a pair does not fit it."""
    routes = {name: _route(method, name, models, sampling) for name in method.routes or ()}
    if method.language == "identified":
        prepare(*routes)
    return RoutedDecoder(method, models.target, routes)


def _route(method: MethodSpec, name: str, models: ModelPair, sampling: Sampling) -> Route:
    part = method.route(name)
    pair = ModelPair(models.target, models.of_routes.get(part.name, models.drafter) if part.needs_drafter else None)
    try:
        made = compose(part, pair, sampling)
    except ConfigError as error:
        raise ConfigError(str(error).replace("drafter.", f"routes.{name}.drafter.")) from error
    assert isinstance(made, DraftingDecoder)
    return Route(part, made.model, made.drafter, made.rule, sampling, name)


NUM_SEEDS = 2**63  # of stream_seed


@dataclass(frozen=True)
class RandomAllocation(Decoder):
    """`parts` decode alone: the target as `ar` does, the drafter as `draft-only` does."""

    alone: tuple[Decoder, Decoder]

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The target alone, the drafter alone."""
        return self.alone

    def select_decoder(self, seed: int, query: QueryInfo = UNKNOWN) -> Decoder:
        """Drawn anew for every query, from its own random stream: order of execution and resuming change nothing."""
        assert self.method.drafter_share is not None
        return self.alone[stream_seed(seed, "allocation") < self.method.drafter_share * NUM_SEEDS]

    def record_fields(self, selected: Decoder) -> dict[str, str]:
        return {"decoded_by": selected.method.decodes_with}

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt with the model that its random stream chooses. Its passes are called the target's."""
        return self.select_decoder(seed).generate(prompt_ids, stop, seed)


def compose_allocation(method: MethodSpec, models: ModelPair, sampling: Sampling) -> RandomAllocation:
    """The decoder of a method that shares the queries out; the pair must share a vocabulary."""
    target, drafter = (
        compose(method.model_copy(update={"decodes_with": model, "drafter_share": None}), models, sampling)
        for model in ("target", "drafter")
    )
    return RandomAllocation(method, models.target, (target, drafter))
