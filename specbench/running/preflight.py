"""The checks of a request that need neither torch nor a model, so that what is missing is told within a second, and all
of it at once. Whatever cannot be told from names and files alone is checked when it is loaded."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specbench.core.environment import EMBEDDED, EXTRAS, OBJECT, is_installed, missing, require
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import LOGGERS
from specbench.models.heads import published_head
from specbench.models.sources import is_local, lacks_template, model_source
from specbench.running.request import ALL, LM_EVAL, Request, requested_tasks
from specbench.specs import yaml_files
from specbench.specs.catalogue import load_task, method_keys
from specbench.specs.run_options import RunOptions

# Built-in drafters that need a draft model, and those with a model of their own over the target's tokens. Their
# registry would import torch.
MODEL_DRAFTERS = {"model", "model_tree", "synthetic"}
TABLE_DRAFTERS = {"ngram": "n-gram model", "retrieval": "datastore"}
HEAD_DRAFTERS = {"eagle", "eagle_tree"}  # Medusa heads may also be in the target's own checkpoint
PATH_DRAFTERS = {*TABLE_DRAFTERS, *HEAD_DRAFTERS, "medusa"}
LOGGER_PACKAGES = ("mlflow", "tensorboard", "wandb")  # the built-in loggers, whose registry would import torch
TARGET = EMBEDDED + "target"


def check_request(request: Request) -> None:
    """Raises ConfigError, in one line, with everything that the request lacks."""
    check_all(checks(request))


def check_options(options: RunOptions, *, needs_weights: bool = True) -> None:
    """Raises ConfigError, in one line, if the models, the data or the device of options are not there. `needs_weights`:
    whether the models' weights are read, and not only their tokenizers."""
    check_all(option_checks(options, needs_weights=needs_weights))


def check_all(made: Iterable[Callable[[], object]]) -> None:
    """Makes checks. Raises ConfigError, in one line, with the problems of all of them."""
    problems: dict[str, None] = {}
    for check in made:
        try:
            check()
        except ConfigError as error:
            problems[str(error)] = None
    if len(problems) > 1:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
        raise ConfigError(f"{len(problems)} problems: {listed}")
    for problem in problems:
        raise ConfigError(problem)


def checks(request: Request) -> Iterator[Callable[[], object]]:
    """Yields the checks of a request, each of which raises ConfigError."""
    options = request.options
    if request.judge is not None:
        yield request.judge.make
    tasks = request.tasks if ALL in request.tasks else requested_tasks(request.tasks)
    for name in tasks:
        if name.startswith(LM_EVAL):
            yield partial(require, "lm_eval", f"--task {name}")
        elif name != ALL:
            yield partial(load_task, name)
    if request.servers is not None:
        yield partial(yaml_files.read, request.servers)
        yield partial(check_data, options.data)
    else:
        yield from option_checks(options)
        own = {method.name for method in request.own_methods}
        for name in () if ALL in request.methods else request.methods:  # those that lack something are left out
            if name not in own:
                yield partial(check_method, name, request)
    if request.lm_eval_include is not None and not request.lm_eval_include.is_dir():
        place = request.lm_eval_include
        yield partial(refuse, f"--lm-eval-include {place}: no such folder: give one with YAML files of tasks")
    if request.plot is not None:
        yield partial(require, "matplotlib", "--plot")
    for name in request.loggers:
        known = sorted({*LOGGER_PACKAGES, *LOGGERS.plugins})
        if name not in known:
            yield partial(refuse, f"--log {name}: {nearest(name, known)}")
        elif EXTRAS.get(name) == name and name not in sys.modules and not is_installed(name):
            yield partial(refuse, f"--log {name}: {missing(name)}")


def option_checks(options: RunOptions, *, needs_weights: bool = True) -> Iterator[Callable[[], object]]:
    """Yields the checks of models, data and device."""
    yield partial(check_model, options.target or TARGET, options.chat, needs_config=needs_weights)
    if options.drafter is not None:
        yield partial(check_model, options.drafter, needs_config=needs_weights)
    yield partial(check_device, options)
    yield partial(check_data, options.data)


def check_data(data: str | None) -> None:
    if data not in (None, "hub", "sample") and not os.path.exists(data):
        raise ConfigError(f"--data {data}: no such folder or file: check the path")


def refuse(problem: str) -> None:
    raise ConfigError(problem)


def check_method(name: str, request: Request) -> None:
    """Raises ConfigError for an unknown method, a missing file, and a drafter, head, n-gram model or datastore that the
    request does not give."""
    keys = method_keys(name)
    given = dict(pair.split("=", 1) for pair in request.options.overrides if "=" in pair)
    given = {key.strip(): value.strip() for key, value in given.items()}
    target = request.options.target or TARGET
    drafter: Any = keys.get("drafter") if isinstance(keys.get("drafter"), Mapping) else {}
    kind, label = drafter.get("type"), str(keys.get("name", name))
    path = given.get("drafter.path", drafter.get("path")) if kind in PATH_DRAFTERS else None
    if keys.get("routes"):
        return
    if path is None and kind in TABLE_DRAFTERS and target != TARGET:
        noun, command = TABLE_DRAFTERS[kind], f"specbench train {kind} --target {target}"
        raise ConfigError(
            f"method '{label}': drafter.path is missing: target '{target}' has no {noun} of its own: train one with "
            f"`{command}` and give --set drafter.path=DIR"
        )
    if path is None and kind in HEAD_DRAFTERS and not target.startswith((EMBEDDED, OBJECT)):
        try:
            published_head(str(drafter.get("head", "eagle3")), target)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}") from error
    is_folder = kind in TABLE_DRAFTERS or str(path).startswith((".", "/", "~")) or str(path).count("/") > 1
    is_folder &= path is not None and path != "null" and not str(path).startswith(EMBEDDED)
    if is_folder and not os.path.exists(str(path)):
        raise ConfigError(f"method '{label}': drafter.path = '{path}': no such folder: check the path")
    checkpoint = given.get("drafter.checkpoint", drafter.get("checkpoint"))
    if checkpoint is not None and str(checkpoint).startswith(EMBEDDED) and target != TARGET:
        checkpoint = None
    if needs_drafter(keys) and checkpoint is None and request.options.drafter is None and target != TARGET:
        raise ConfigError(f"drafter: method '{label}' needs a drafter model: give one with --drafter")


def needs_drafter(keys: Mapping[str, Any]) -> bool:
    """Returns whether a method certainly needs a draft model, by the unchecked keys of its file."""
    decoder, drafter = keys.get("decoder"), keys.get("drafter")
    if isinstance(decoder, Mapping):
        return decoder.get("drafter") in ("same_vocabulary", "other_vocabulary")
    if keys.get("decodes_with") in ("drafter", "random"):
        return True
    return isinstance(drafter, Mapping) and drafter.get("type") in MODEL_DRAFTERS


def check_model(name: str, chat: str = "auto", *, needs_config: bool = True) -> None:
    """Raises ConfigError for a folder or an embedded model that does not exist, and, with `chat` "always", for one
    without a chat template. `needs_config`: whether a folder with only a tokenizer is refused too."""
    if name.startswith(OBJECT) or not (name.startswith(EMBEDDED) or is_local(name, needs_config=needs_config)):
        return
    folder = Path(model_source(name))
    if chat == "always" and lacks_template(folder):
        raise ConfigError(f"--chat always: model '{name}' has no chat template; use --chat auto or never")


def check_device(options: RunOptions) -> None:
    """Raises ConfigError for options that need a CUDA device on a machine without one, and for missing packages."""
    kind = options.device.partition(":")[0]
    has_no_cuda = kind == "cpu" or not may_have_cuda()
    if kind == "cuda" and has_no_cuda:
        raise ConfigError(f"--device {options.device}: not available on this machine (no CUDA driver is installed)")
    if options.quantize != "none" and options.engine in ("auto", "eager"):  # with others it does not go together
        if has_no_cuda:
            this = "cpu" if kind == "auto" else kind
            raise ConfigError(f"--quantize {options.quantize}: needs a CUDA device, and this is {this}: leave it out")
        require("bitsandbytes", f"--quantize {options.quantize}")
        require("accelerate", f"--quantize {options.quantize}")
    elif options.device_map != "none":
        require("accelerate", f"--device-map {options.device_map}")


def may_have_cuda() -> bool:
    """Returns whether torch may find a CUDA or ROCm device: False only if there is certainly no driver for one."""
    if sys.platform == "darwin":
        return False
    if Path("/dev/kfd").exists():  # AMD's, which torch calls cuda too
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
