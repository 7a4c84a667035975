"""Routing: each query is drafted for by the drafter of its language, given by the task or identified from the prompt.

Asked for in arXiv:2605.30580, section 5, and arXiv:2406.16758, appendix C: no drafter is the best for all languages.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError, nearest
from specbench.models.pair import ModelPair
from specbench.running.compose import UNKNOWN, Decoder, QueryInfo, compose, stream_seed
from specbench.scoring.language import known, language_of, prepare
from specbench.specs import MethodSpec, TaskSpec
from specbench.specs.routes import DEFAULT


@dataclass(frozen=True)
class Route(Decoder):
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

    def chosen(self, seed: int, query: QueryInfo = UNKNOWN) -> Decoder:
        """The route of a query's language; of an unknown one, or one without a route, the default."""
        if self.method.language == "given":
            return self.routes[route_of(query.language, self.routes)]
        start = perf_counter()
        name = route_of(language_of(query.text, *self.routes), self.routes)
        return replace(self.routes[name], seconds=perf_counter() - start)

    def marks(self, chosen: Decoder) -> dict[str, str]:
        assert isinstance(chosen, Route)
        return {"route": chosen.name}

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


def routed(method: MethodSpec, models: ModelPair, sampling: Sampling) -> RoutedDecoder:
    """The decoder of a method with routes. Raises ConfigError, naming the route, where a pair does not fit it."""
    routes = {name: _route(method, name, models, sampling) for name in method.routes or ()}
    if method.language == "identified":
        prepare(*routes)
    default = routes[DEFAULT]
    return RoutedDecoder(method, models.target, NoDrafter(), default.rule, sampling, routes)


def _route(method: MethodSpec, name: str, models: ModelPair, sampling: Sampling) -> Route:
    part = method.route(name)
    pair = ModelPair(models.target, models.of_routes.get(part.name, models.drafter) if part.needs_drafter else None)
    try:
        made = compose(part, pair, sampling)
    except ConfigError as error:
        raise ConfigError(str(error).replace("drafter.", f"routes.{name}.drafter.")) from error
    return Route(part, made.model, made.drafter, made.rule, sampling, name)
