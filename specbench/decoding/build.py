"""From a method to its decoder: drafter, verification rule and vocabulary bridge for a pair of models."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar, cast

from specbench.core.environment import OBJECT
from specbench.core.errors import ConfigError, DrafterError, naming_code, nearest
from specbench.core.registry import DECODERS
from specbench.core.source import is_outside
from specbench.decoding.bridges import VocabularyMismatch, check_equal, check_shared
from specbench.decoding.checked_parts import CheckedDrafter, CheckedRule, FunctionDrafter, FunctionRule
from specbench.decoding.decoder import UNKNOWN, Decoder, DraftingDecoder, QueryInfo, stream_seed
from specbench.decoding.draft_length import make_length
from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.own_passes import OwnPasses
from specbench.models.scoring import ScoringModel
from specbench.specs.components import SERVED, Component, identifiable_code
from specbench.specs.method import DEFAULT, MethodSpec, check_draws, inner_name
from specbench.specs.task import GenerationSpec, TaskSpec
from specbench.tasks.scoring import language_of, prepare_detector


def build_decoder(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Decoder:
    """Returns the decoder of a method. Raises ConfigError if the pair does not fit the method."""
    # 1. Methods that select one of several decoders for each query.
    if method.routes is not None:
        routes = {}
        for name in method.routes:
            part = method.route(name)
            route_drafter = models.route_drafters.get(part.name, models.drafter) if part.needs_drafter else None
            try:
                inner = models.route_drafters.get(inner_name(part))
                made = build_decoder(part, ModelPair(models.target, route_drafter, inner=inner), sampling)
            except ConfigError as error:
                raise ConfigError(str(error).replace("drafter.", f"routes.{name}.drafter.")) from error
            routes[name] = replace(cast(DraftingDecoder, made), record_fields={"route": name})
        if method.language == "identified":
            prepare_detector(*routes)
        return SelectingDecoder(method, models.target, routes)
    if method.needs_drafter and models.drafter is None:
        raise ConfigError(f"method '{method.name}' needs a draft model: give one with --drafter")
    if method.decodes_with == "random":
        check_vocabulary(method, models)
        either = {}
        for name in ("target", "drafter"):
            part = method.model_copy(update={"decodes_with": name, "drafter_share": None})
            made = build_decoder(part, models, sampling)
            either[name] = replace(cast(DraftingDecoder, made), record_fields={"decoded_by": name})
        return SelectingDecoder(method, models.target, either)
    # 2. A method with a loop of its own, whose passes no engine of this package runs.
    if method.decoder is not None:
        # Of a target that servers have, only the tokenizer is here, which may be a GGUF file's.
        if models.target.engine != "eager" and method.decoder.type != SERVED:
            raise ConfigError(
                f"method '{method.name}': external decoders ignore --engine {models.target.engine}: drop the method or "
                "use --engine eager"
            )
        if models.target.pass_width is not None:
            raise ConfigError(
                f"method '{method.name}': external decoders ignore --pass-width {models.target.pass_width}: drop the "
                "method or leave the option out"
            )
        check_vocabulary(method, models)
        external: Decoder = DECODERS.get(method.decoder.type)(method, models, sampling)
        return external
    # 3. All others run the decode loop: the drafter alone decodes without proposals, like the target in ar.
    rule = make_rule(method, models.target.vocab_size)
    if method.decodes_with == "drafter":
        assert models.drafter is not None
        drafter = make_drafter(method, ModelPair(models.drafter), sampling)
        return DraftingDecoder(method, models.drafter, drafter, rule, sampling, record_fields={"decoded_by": "drafter"})
    drafter = bridged_drafter(method, models, sampling)
    if method.draft_length is not None:
        length = method.draft_length
        drafter.use_length(make_length(length.factory, length.options, method.drafter.features.asks_length))
    check_sampling(method, rule, sampling, drafter.sampling or sampling)
    if drafter.longest is not None and method.num_draft_tokens > drafter.longest:
        raise ConfigError(
            f"method '{method.name}': num_draft_tokens = {method.num_draft_tokens}: drafter '{drafter.name}' drafts at "
            f"most {drafter.longest} tokens at once: give --set num_draft_tokens={drafter.longest} or less"
        )
    if drafter.draws is not None:
        check_draws(method, {drafter.draws}, f"method '{method.name}': ")
        for model in filter(None, (models.target, models.drafter if method.needs_drafter else None)):
            model.check_trees()
    return DraftingDecoder(method, models.target, drafter, rule, sampling)


def check_vocabulary(method: MethodSpec, models: ModelPair) -> None:
    """Raises ConfigError if the vocabularies of target and drafter differ in more tokens than the method can leave out:
    in any, if it has a loop of its own or decodes with both. The models may be without weights."""
    if models.drafter is None or not method.same_vocabulary:
        return
    check = check_shared if method.decoder is None and method.decodes_with == "target" else check_equal
    with naming_bridges(method, models):
        check(models.target, models.drafter)


def make_rule(method: MethodSpec, vocab_size: int) -> VerificationRule:
    """Returns the method's verification rule. One from outside this package is checked while it decodes. `vocab_size`:
    the target's number of tokens."""
    rule, place = make_part(method, method.verification, VerificationRule)
    if isinstance(rule, FunctionRule):
        return CheckedRule(rule.function, place, vocab_size)
    return CheckedRule(rule, place, vocab_size) if is_outside(rule) else rule


def make_drafter(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Drafter:
    """Returns the method's own drafter, without a vocabulary bridge. One from outside this package is checked while it
    drafts."""
    factory = method.drafter.factory
    has_own = not isinstance(factory, type) or factory.__init__ is not Drafter.__init__  # type: ignore[misc]
    drafter, place = make_part(method, method.drafter, Drafter, models if has_own else None, sampling)
    if isinstance(drafter, FunctionDrafter):
        drafter.place = place
    if not is_outside(drafter):
        return drafter
    vocabulary = models.drafter if method.needs_drafter and models.drafter is not None else models.target
    needs_probs = "probs" in method.verification.features.requires
    return CheckedDrafter(drafter, place, vocabulary.vocab_size, needs_probs)


Part = TypeVar("Part")


def make_part(method: MethodSpec, component: Component, base: type[Part], *given: object) -> tuple[Part, str]:
    """Returns what the factory of a drafter or a rule makes, and its name for messages. Raises DrafterError for what
    code outside this package raises, and ConfigError unless the part's class derives from `base`."""
    name, factory = component.name, component.factory
    if name.startswith(OBJECT):  # a Python object goes by its own name, without the digest
        name = name.removeprefix(OBJECT).rpartition("-")[0]
    place = f"method '{method.name}': {component.registry.kind} '{name}'"
    call = f"{getattr(factory, '__name__', 'factory')}({'models, sampling, ' if given else ''}…)"
    try:
        with naming_code(f"{place}: {call}", DrafterError) if is_outside(factory) else nullcontext():
            part = factory(*given, **component.options)
    except DrafterError:
        raise
    except ConfigError as error:
        raise ConfigError(f"method '{method.name}': {error}") from error
    if isinstance(part, base):
        return part, place
    raise ConfigError(
        f"{place} made a {type(part).__name__}, which is not a {base.__module__}.{base.__name__}: derive its class "
        "from that one"
    )


def pauses(method: MethodSpec) -> bool:
    """Returns whether the drafter drafts nothing beyond its own context, so that it limits no other method."""
    return method.decodes_with == "target" and method.drafter.options.get("beyond_context") == "pause"


def bridged_drafter(method: MethodSpec, models: ModelPair, sampling: Sampling) -> Drafter:
    """Returns the method's drafter, which proposes tokens of the target, behind a vocabulary bridge if needed."""
    if models.drafter is None or not method.needs_drafter:
        return make_drafter(method, models, sampling)

    limit = models.drafter.context_limit if pauses(method) else None

    def make(model: ScoringModel) -> Drafter:
        made = make_drafter(method, replace(models, drafter=cast(CausalLM, model)), sampling)
        made.pauses_at = limit
        return made

    with naming_bridges(method, models):
        made: Drafter = method.bridge.factory(models, sampling, make, **method.bridge.options)
    return made


@contextmanager
def naming_bridges(method: MethodSpec, models: ModelPair) -> Iterator[None]:
    """Turns a VocabularyMismatch into a ConfigError with the method's name and the remedy."""
    try:
        yield
    except VocabularyMismatch as error:
        names = f"--target {models.target.name} --drafter {models.drafter and models.drafter.name}"
        raise ConfigError(
            f"method '{method.name}': {error}: use a method for two vocabularies, such as tli or slem (`specbench "
            f"vocab {names}` tells which of them fit)"
        ) from error


def check_sampling(method: MethodSpec, rule: VerificationRule, target: Sampling, draft: Sampling) -> None:
    """Raises ConfigError if the rule compares processed distributions and one of them is greedy, and so one-hot."""
    if rule.compares_processed and (target.greedy or draft.greedy):
        side = "generation.temperature" if target.greedy else "drafter.temperature"
        raise ConfigError(
            f"method '{method.name}': verification.divergence_on = 'processed' compares point masses where decoding is "
            f"greedy: set {side} above 0, or verification.divergence_on=raw"
        )


def sampling_of(generation: GenerationSpec) -> Sampling:
    return Sampling(generation.temperature, generation.top_k, generation.top_p)


NUM_SEEDS = 2**63  # number of values of stream_seed


@dataclass(frozen=True)
class SelectingDecoder(Decoder):
    """A decoder that selects one of others for each query: by language one of the method's routes, which share target,
    rule and bridge; or at random `target`, as in `ar`, or `drafter`, as in `draft-only`."""

    decoders: Mapping[str, DraftingDecoder]

    @property
    def parts(self) -> tuple[Decoder, ...]:
        return tuple(self.decoders.values())

    def select_decoder(self, seed: int, query: QueryInfo = UNKNOWN) -> Decoder:
        """Returns the route for the query's language, or the default route if it is unknown or has no route. A model is
        drawn from the query's own random stream, so that the order of execution and resuming do not change it."""
        if self.method.drafter_share is not None:
            is_drafter = stream_seed(seed, "allocation") < self.method.drafter_share * NUM_SEEDS
            return self.decoders["drafter" if is_drafter else "target"]
        if self.method.language == "given":
            return self.decoders[route_of(query.language, self.decoders)]
        start = perf_counter()
        name = route_of(language_of(query.text, *self.decoders), self.decoders)
        return replace(self.decoders[name], select_seconds=perf_counter() - start)

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes a prompt of unknown language and text, as in an audit: a route is drawn from seed and prompt, so that
        all routes are audited. The passes of either model count as target passes."""
        return self._drawn(prompt_ids, seed).generate(prompt_ids, stop, seed)

    def record_passes(self, prompt_ids: list[int], stop: StopRules, seed: int, position: int) -> OwnPasses | None:
        return self._drawn(prompt_ids, seed).record_passes(prompt_ids, stop, seed, position)

    def _drawn(self, prompt_ids: list[int], seed: int) -> Decoder:
        if self.method.routes is None:
            return self.select_decoder(seed)
        return self.parts[stream_seed(seed, "route", *prompt_ids) % len(self.decoders)]


def route_of(language: str | None, routes: Collection[str]) -> str:
    """Returns the route of a language, looked up by the given code, by the code without region and script, and by the
    code in the other ISO 639 form. Returns the default route if there is none."""
    codes = (language, language.partition("-")[0], identifiable_code(language)) if language else ()
    return next((code for code in codes if code in routes and code is not None), DEFAULT)


def unused_routes(method: MethodSpec, tasks: Sequence[TaskSpec]) -> list[str]:
    """Returns a line for each route whose language no subset of the tasks has: its code may be misspelt."""
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
