"""Imports and identifies the code of external decoders, and binds its keyword arguments."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, create_model

from specbench.core.errors import ConfigError, import_problem, nearest
from specbench.core.registry import DECODERS
from specbench.core.source import code_revision
from specbench.core.values import bytes_digest, file_digest
from specbench.decoding.sampling import Sampling
from specbench.integrations.external import ExternalDecoder, LoadedModel, naming_method
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.specs.catalogue import digest
from specbench.specs.components import build, is_file_entry
from specbench.specs.method import MethodSpec


@dataclass(frozen=True)
class EntryCode:
    """An imported function or class. `revision`: that of its module (`specbench.core.source`)."""

    call: Callable[..., Any]
    revision: str | None

    @property
    def is_class(self) -> bool:
        return isinstance(self.call, type)


def load(entry: str) -> EntryCode:
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
        known = [n for n, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]
        raise ConfigError(f"'{place}' has no function or class '{name}': {nearest(name, known)}")
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
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None  # because it ends in .py
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def options_model(call: Callable[..., Any], offered: Collection[str], num_positional: int) -> type[BaseModel]:
    """Returns the pydantic model of a call's options: all parameters that are not `offered`, validated by annotations
    that can be evaluated. The first `num_positional` parameters are skipped."""
    parameters = list(_signature(call).parameters.values())[num_positional:]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    fields: dict[str, Any] = {
        p.name: (
            Any if p.annotation is p.empty or isinstance(p.annotation, str) else p.annotation,
            ... if p.default is p.empty else p.default,
        )
        for p in parameters
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in offered
    }
    config = ConfigDict(extra="allow" if takes_all else "forbid", arbitrary_types_allowed=True)
    return create_model("decoder options", __config__=config, **fields)


def keywords(
    call: Callable[..., Any],
    offered: Mapping[str, object],
    options: Mapping[str, object],
    num_positional: int,
    place: str = "decoder.options",
) -> dict[str, object]:
    """Returns the keyword arguments of a call: the `offered` ones that its signature accepts, and all options.

    Raises ConfigError for an unknown, missing or invalid option, and for one with the name of an offered argument.
    """
    taken = sorted(offered.keys() & options.keys())
    if taken:
        raise ConfigError(f"{place}.{taken[0]}: specbench passes '{taken[0]}' itself: delete the key")
    model = options_model(call, offered, num_positional)
    checked = build(model, dict(options), place=place)
    passed = {name: value for name, value in offered.items() if takes(call, name, num_positional)}
    return passed | {name: getattr(checked, name) for name in {**model.model_fields, **options}}


def takes(call: Callable[..., Any], name: str, num_positional: int = 0) -> bool:
    """Returns whether a call accepts a keyword. The first `num_positional` parameters are not keywords."""
    parameters = list(_signature(call).parameters.values())[num_positional:]
    kinds = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return any(p.kind is p.VAR_KEYWORD or (p.name == name and p.kind in kinds) for p in parameters)


def takes_sampling(code: EntryCode) -> bool:
    """Returns whether the code accepts `sampling`. Other code decodes greedily only."""
    return any(takes(call, "sampling") for call in (code.call, getattr(code.call, "generate", code.call)))


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # the annotation's name exists only for type checkers
        return inspect.signature(call)


RUN = ("max_new_tokens", "eos_token_ids", "seed", "on_token")  # passed for every generation
OFFERED = ("target", "drafter", "num_draft_tokens", "sampling", *RUN)
# Instances of decoder classes with their draft model, by target.
_BUILT: WeakKeyDictionary[CausalLM, dict[Any, Any]] = WeakKeyDictionary()


@DECODERS.register("external")
def external_decoder(method: MethodSpec, models: ModelPair, sampling: Sampling) -> ExternalDecoder:
    """Loads a method's code. A class is constructed once per sampling for the whole run."""
    assert method.decoder is not None
    options = method.decoder.options
    drafter = models.drafter if method.needs_drafter else None
    fixed = {
        "target": LoadedModel(models.target.model, models.target.tokenizer),
        "drafter": LoadedModel(drafter.model, drafter.tokenizer) if drafter is not None else None,
        "num_draft_tokens": method.num_draft_tokens,
        "sampling": sampling,
    }
    with naming_method(method):
        code = load(method.decoder.entry)
        call: Callable[..., Any] = code.call
        if not sampling.greedy and not takes_sampling(code):
            raise ConfigError("it does not take 'sampling', so it only decodes greedily: set generation.temperature=0")
        if code.is_class:
            key = (method.decoder.entry, code.revision, digest(method), sampling)
            built = _BUILT.setdefault(models.target, {})
            if key not in built or built[key][0] is not drafter:
                built[key] = drafter, call(**keywords(call, fixed, options, 0))
            call, options = built[key][1].generate, {}
        bound = bind(call, fixed, options, "generate" if code.is_class else "decoder.options")
    return ExternalDecoder(method, models.target, bound, code.revision)


def bind(
    call: Callable[..., Any], fixed: Mapping[str, object], options: Mapping[str, object], place: str
) -> Callable[..., Any]:
    """Returns the call with all arguments that are known before a generation; the others are those of RUN."""
    passed = keywords(call, {**fixed, **dict.fromkeys(RUN)}, options, 1, place)
    early = {name: value for name, value in passed.items() if name not in RUN}

    def decode(prompt_ids: list[int], **run: Any) -> Any:
        return call(prompt_ids, **early, **{name: run[name] for name in RUN if name in passed})

    return decode
