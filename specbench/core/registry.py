"""Registries that map names to factories of components, from this package and from plug-ins: drafters, draft lengths,
verification rules, vocabulary bridges, decoders, readers, loggers, scorers, task sources and serving engines.

The keyword-only parameters of a factory are the options of the component; their annotations and defaults are the
schema.
"""

import importlib
import inspect
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, ParamSpec, TypeVar, cast

from pydantic import BaseModel, ConfigDict, create_model

from specbench.built_in import BUILT_IN, FEATURES
from specbench.core.environment import OBJECT
from specbench.core.errors import ConfigError, import_problem, nearest
from specbench.core.metric import Metric
from specbench.core.source import code_revision
from specbench.core.validation import StrictModel

Factory = Callable[..., Any]
ELSEWHERE = "this is a Python object of another process: give it to specbench.run in Python"


AnyFactory = TypeVar("AnyFactory", bound=Factory)
Declared = ParamSpec("Declared")
AnyFeatures = TypeVar("AnyFeatures")


class Registry(Generic[Declared, AnyFeatures]):
    """The registry of one kind of component.

    `group`: the entry point group of its plug-ins, and the key of its modules in BUILT_IN. `features`: the class of
    what a factory declares about its components. Its fields are the keywords of `register` and `declare`.
    """

    def __init__(self, kind: str, group: str, features: Callable[Declared, AnyFeatures]) -> None:
        self.kind = kind
        self.group = group
        self._builtin: dict[str, Factory] = {}
        self._objects: dict[str, Factory] = {}
        self._make_features = features
        self._features: dict[Factory, AnyFeatures] = {}
        self._options: dict[str, tuple[Factory, type[BaseModel]]] = {}
        self._known = FEATURES.get(group, {})

    def register(
        self, name: str, *args: Declared.args, **declared: Declared.kwargs
    ) -> Callable[[AnyFactory], AnyFactory]:
        """Returns a decorator that registers a factory under a name, with the features that it declares besides those
        of `built_in.FEATURES`."""
        features = self._make_features(*args, **{**self._known.get(name, {}), **declared})  # type: ignore[arg-type]

        def add(factory: AnyFactory) -> AnyFactory:
            if name in self._builtin:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._builtin[name], self._features[factory] = factory, features
            return factory

        return add

    def declare(self, *args: Declared.args, **declared: Declared.kwargs) -> Callable[[AnyFactory], AnyFactory]:
        """Returns a decorator for the factory of a plug-in, which is named by its entry point."""
        features = self._make_features(*args, **declared)

        def add(factory: AnyFactory) -> AnyFactory:
            self._features[factory] = features
            return factory

        return add

    def add_object(self, name: str, factory: Factory, default: AnyFeatures) -> str:
        """Registers a factory of this process as `object:NAME`. `default`: its features if it declares none."""
        self._objects[OBJECT + name] = factory
        self._features.setdefault(factory, default)
        return OBJECT + name

    def is_declared(self, factory: Any) -> bool:
        """Returns whether `register` or `declare` has decorated a factory."""
        return isinstance(factory, Hashable) and factory in self._features

    def declared(self) -> list[AnyFeatures]:
        """Returns what the factories loaded so far declare."""
        return list(self._features.values())

    def features(self, name: str) -> AnyFeatures:
        """Returns the features that a factory declares, by default those of an empty declaration. Of a built-in
        component that is not imported yet, those of `built_in.FEATURES`."""
        make = cast(Callable[..., AnyFeatures], self._make_features)
        if name in self._known and name not in self._builtin:
            return make(**self._known[name])
        return self._features.get(self.get(name)) or make()

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The entry points of installed packages, by name. Nothing is imported."""
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        for module in BUILT_IN.get(self.group, ()):
            importlib.import_module(module)
        return sorted({*self._builtin, *self.plugins})

    def get(self, name: str) -> Factory:
        """Returns a factory. Built-in modules are imported only until one of them registers it. Raises ConfigError that
        lists the choices."""
        if name.startswith(OBJECT):
            if name not in self._objects:
                raise ConfigError(f"{self.kind} '{name}': {ELSEWHERE}")
            return self._objects[name]
        modules = iter(BUILT_IN.get(self.group, ()))
        while name not in self._builtin and (module := next(modules, None)):
            importlib.import_module(module)
        if name in self._builtin:
            return self._builtin[name]
        if name not in self.plugins:
            raise ConfigError(f"unknown {self.kind} '{name}': {nearest(name, self.names())}")
        try:
            factory: Factory = self.plugins[name].load()
        except BaseException as error:
            problem = f"({self.plugins[name].value}) failed to load: {import_problem(error)}"
            raise ConfigError(f"plug-in {self.kind} '{name}' {problem}: repair or uninstall it") from error
        return factory

    def revision(self, name: str) -> str | None:
        """Returns the revision of a component's code; None for built-in ones, whose code the commit identifies, and for
        Python objects, whose names hold a digest of it."""
        if name.startswith(OBJECT):
            return None
        point = None if name in self._builtin else self.plugins.get(name)
        factory = self.get(name)
        return code_revision([None if point is None else point.module, getattr(factory, "__module__", None)])

    def options_model(self, name: str) -> type[BaseModel]:
        factory = self.get(name)
        known = self._options.get(name)
        if known is None or known[0] is not factory:
            try:
                fields: dict[str, Any] = {
                    p.name: (p.annotation, ... if p.default is p.empty else p.default)
                    for p in inspect.signature(factory, eval_str=True).parameters.values() if p.kind is p.KEYWORD_ONLY
                }  # fmt: skip
                self._options[name] = known = factory, create_model(f"{name} options", __base__=_Options, **fields)
            except Exception as error:
                if name in self._builtin:
                    raise
                raise ConfigError(
                    f"{self.kind} '{name}' ({factory!r:.60}) is not a factory with keyword-only options of types that "
                    f"pydantic knows: {type(error).__name__}: {error!s:.200}: repair or uninstall it"
                ) from error
        return known[1]


class _Options(StrictModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class DrafterFeatures:
    """What the factory of a drafter declares.

    family: where its drafts come from, a heading of `specbench list`; None: its name is the heading.
    provides: the distributions that its proposals have, `probs` (after temperature and truncation) and `raw_probs`.
    needs_model: whether it needs a draft model. model_option: the option without which it needs none. model_replaced:
        the option with which it needs none.
    needs: what else a user must provide, and in brackets how to get it;
        {option} is replaced by an option's value. embedded: whether it works with the embedded target.
    looks_up: whether drafts are read from a text or a table, so that they take no pass of a network.
    drafts_at_once: whether all tokens of a draft come from one pass of a network.
    drawing: maps the options to a drawing of a draft, in lines of at most 90 characters, and a text about it.
    prescribes: the verification rule whose acceptance rate the drafter sets, so that the rate is not a measurement.
    tree_shape: for a drafter that may propose trees. Maps its options to the largest tree (`parents` and `ranks` of the
        nodes and `depth`, as in decoding.tree_shape), or to the maximum number of levels if trees grow as they are
        drafted; None: with these options it drafts chains. Raises ConfigError for options that do not fit.
    draws: for trees. Maps the options to the ways in which a node's children may be drawn (see `TreeProposal`). The
        temperature selects one of them. None: fixed children.
    asks_length: whether it asks `Drafter.length` before and after each draw of a chain whether to go on.
    """

    family: str | None = None
    provides: AbstractSet[str] = frozenset()
    needs_model: bool = False
    model_option: str | None = None
    model_replaced: str | None = None
    needs: str | None = None
    embedded: bool = True
    looks_up: bool = False
    drafts_at_once: bool = False
    drawing: Callable[..., tuple[Sequence[str], str]] | None = None
    prescribes: str | None = None
    tree_shape: Callable[..., Any] | None = None
    draws: Callable[..., AbstractSet[str]] | None = None
    asks_length: bool = False


@dataclass(frozen=True, kw_only=True)
class LengthFeatures:
    """What the factory of a draft length declares.

    looks_at_drafts: whether it decides within a draft, by the drafter's distributions, so that the drafter must ask it
        (`DrafterFeatures.asks_length`).
    """

    looks_at_drafts: bool = False


@dataclass(frozen=True, kw_only=True)
class RuleFeatures:
    """What the factory of a verification rule declares.

    lossless: whether the output follows the target's distribution. requires: the distributions that a drafter must
        provide. verifies_trees: whether it verifies draft trees too. draws: the ways of drawing children that it is
        valid for; None: all. needs_equal_widths: whether all nodes of a depth must have equally many children.
    """

    lossless: bool = False
    requires: AbstractSet[str] = frozenset()
    verifies_trees: bool = False
    draws: AbstractSet[str] | None = None
    needs_equal_widths: bool = False


@dataclass(frozen=True, kw_only=True)
class BridgeFeatures:
    """What the factory of a vocabulary bridge declares.

    same_vocabulary: whether it needs equal vocabularies. removes: distributions of the drafter that do not pass it.
    """

    same_vocabulary: bool = False
    removes: AbstractSet[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ScorerFeatures:
    """What the factory of a scorer declares.

    needs_reference: if False, the scorer is called with "" as reference. takes_language: whether the factory's first
        argument is the task's language. version: raise it when a change of the code changes scores: tasks with this
        scorer get another digest, so that old and new scores do not share a table. packages: other distributions that
        compute its scores, which with other versions may be others. examples: for tasks of another harness, a function
        of the scorer's options, `data` and `limit`. It returns the TaskData that replaces the task's rows. metrics: the
        declarations of its metrics.
    """

    metrics: tuple[Metric, ...] = ()
    needs_reference: bool = True
    takes_language: bool = False
    version: int = 1
    packages: tuple[str, ...] = ()
    examples: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ReaderFeatures:
    """What the factory of a reader declares. join: merges two consecutive rows before they are read, or returns None to
    keep both."""

    join: Callable[[dict[str, object], dict[str, Any]], dict[str, Any] | None] | None = None


@dataclass(frozen=True, kw_only=True)
class NoFeatures:
    """The features of kinds whose factories declare nothing."""


DRAFTERS = Registry("drafter", "specbench.drafters", DrafterFeatures)
DRAFT_LENGTHS = Registry("draft length", "specbench.draft_lengths", LengthFeatures)
DECODERS = Registry("decoder", "specbench.decoders", NoFeatures)
RULES = Registry("rule", "specbench.rules", RuleFeatures)
BRIDGES = Registry("bridge", "specbench.bridges", BridgeFeatures)
READERS = Registry("reader", "specbench.readers", ReaderFeatures)
LOGGERS = Registry("logger", "specbench.loggers", NoFeatures)
SCORERS = Registry("scorer", "specbench.scorers", ScorerFeatures)
TASK_SOURCES = Registry("task source", "specbench.task_sources", NoFeatures)
ENGINES = Registry("engine", "specbench.engines", NoFeatures)
