"""Models that are Python objects of this process, named `object:NAME`, and digests that distinguish objects."""

import dis
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from typing import Any

import torch

from specbench.core.environment import OBJECT
from specbench.core.errors import ConfigError
from specbench.core.registry import ELSEWHERE
from specbench.core.source import code_revision, is_library
from specbench.core.values import json_digest
from specbench.models.causal_lm import CausalLM

_MODELS: dict[str, tuple[Callable[[], Any], Any]] = {}  # network and tokenizer by name


def add_model(network: Any, tokenizer: Any, name: str) -> str:
    """Registers a transformers model of this process for `load_model` as long as it exists. Returns its name there.

    Raises ConfigError for a network that is not a transformers model, or has no weights, and for a tokenizer that is
    not one of transformers.
    """
    if not isinstance(network, torch.nn.Module) or not hasattr(network, "config"):
        raise ConfigError(
            f"model '{name}' is of type {type(network).__name__}: give a transformers model and its tokenizer, or a "
            "name"
        )
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise ConfigError(f"model '{name}': a {type(tokenizer).__name__} is not a tokenizer of transformers: give one")
    if torch.device("meta") in {parameter.device for parameter in network.parameters()}:
        raise ConfigError(f"model '{name}' has no weights (it is on the device meta): load them")
    _MODELS[OBJECT + name] = weakref.ref(network), tokenizer
    return OBJECT + name


def object_model(name: str) -> CausalLM:
    """Returns a registered model. Its revision is a digest of configuration, code, weights and tokenizer.

    Raises ConfigError if the model no longer exists in this process.
    """
    reference, tokenizer = _MODELS.get(name, (lambda: None, None))
    network: Any = reference()
    if network is None:
        raise ConfigError(f"model '{name}': {ELSEWHERE}")
    network.eval()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json_digest(tokenizer.get_vocab())
    return CausalLM(
        network, tokenizer, name, f"local-{object_digest([network, words, getattr(tokenizer, 'chat_template', None)])}"
    )


UNUSED = ("__module__", "__doc__", "__firstlineno__")  # members of a class that do not affect its behaviour
PLAIN = (str, bytes, int, float, complex, bool, type(None))


def object_digest(value: Any) -> str:
    """Returns 12 hex digits over the code and the state of an object: a function, class, instance, tensor, network or
    container. Code of a file counts with the file and with what it imports; code of libraries counts by its name only,
    since rows hold the versions of libraries."""
    state = sha256()
    for part in _parts(value, {}):
        state.update(part)
    return state.hexdigest()[:12]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """Yields the bytes for an object's digest. `seen`: the objects read so far by id, each of which is read only once.
    It holds the objects, since the id of a deleted object could be reused."""
    yield type(value).__qualname__.encode() + b"("
    if isinstance(value, PLAIN):
        yield repr(value).encode()
    elif id(value) not in seen:
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype} {tuple(value.shape)}".encode()
            yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        else:
            for part in _contents(value):
                yield from _parts(part, seen)
    yield b")"


def _contents(value: Any) -> list[Any]:
    if isinstance(value, torch.nn.Module):
        tensors = chain(value.named_parameters(), value.named_buffers())
        config = getattr(value, "config", None)
        settings = {} if config is None else {**config.to_dict(), "_name_or_path": None}
        return [settings, dict.fromkeys(type(part) for part in value.modules()), *tensors]
    if isinstance(value, Mapping):
        return [*chain.from_iterable(value.items())]
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, set | frozenset):
        return sorted(map(object_digest, value))
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, types.ModuleType):
        return [value.__name__, code_revision([value])]
    if isinstance(value, types.CodeType):
        imported = [each.argval for each in dis.get_instructions(value) if each.opname == "IMPORT_NAME"]
        return [value.co_code, value.co_consts, value.co_names, code_revision(filter(None, imported))]
    if isinstance(value, types.FunctionType | type):
        return _code(value)
    if hasattr(value, "__dict__"):
        return [type(value), dict(value.__dict__)]
    try:  # arrays, objects with slots, deques: as pickle takes them apart
        return [*(list(part) if isinstance(part, Iterator) else part for part in value.__reduce_ex__(2))]
    except Exception:  # objects without a state that can be kept, such as locks
        return [type(value)]


def _code(value: Any) -> list[Any]:
    """Returns the parts of a class (bases and members), or of a function: its code, its defaults, the variables that it
    encloses, and the globals of its module that it uses."""
    name = f"{value.__module__}.{value.__qualname__}"
    if is_library(value.__module__):
        return [name]
    file = None if value.__module__ == "__main__" else code_revision([value.__module__])
    if isinstance(value, type):
        members = [
            (key, getattr(member, "__func__", member)) for key, member in vars(value).items()
            if not isinstance(member, types.GetSetDescriptorType) and key not in UNUSED
        ]  # fmt: skip
        return [name, file, value.__bases__, members]
    used = [value.__globals__[key] for key in _names(value.__code__) if key in value.__globals__]
    enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
    return [value.__code__, file, value.__defaults__, value.__kwdefaults__, enclosed, used]


def _names(code: types.CodeType) -> list[str]:
    """Returns the names that a function's code looks up, also in its lambdas and comprehensions."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return [*dict.fromkeys([*code.co_names, *chain.from_iterable(inner)])]
