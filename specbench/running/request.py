"""A user's request for a run, its checks, and the specification that it is turned into.

`check_request` needs neither torch nor a model, so that everything missing is reported at once, within a second.
What names and files alone cannot tell is checked by `resolve`, and when models and data are loaded.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, EXTRAS, OBJECT, is_installed, missing, require
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import ResumableFolder
from specbench.core.registry import LOGGERS
from specbench.models.gguf.files import check_gguf, is_gguf
from specbench.models.heads import published_head
from specbench.models.sources import is_local, lacks_template, model_source
from specbench.specs import yaml_files
from specbench.specs.catalogue import (
    NUM_SHOTS,
    builtin_task_names,
    has_shots,
    load_method,
    load_task,
    load_tasks,
    method_keys,
    method_names,
    namesake,
    with_overrides,
)
from specbench.specs.components import QUANTIZED_BY, build, check_quantized
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec, own_drafter, read_servers
from specbench.specs.run_options import LEAST, SHARE, TARGET_OPTIONS, RunOptions, flag_of
from specbench.specs.sweep import SWEEP, Value
from specbench.specs.task import GenerationSpec, TaskSpec
from specbench.tasks.judge import JUDGEMENTS_FILE

if TYPE_CHECKING:
    from specbench.tasks.judge.judgements import Judging

ALL = "all"
LM_EVAL = "lm_eval:"
TARGET = EMBEDDED + "target"
# Built-in drafters that need a draft model, and those with a model of their own over the target's tokens; and the
# built-in loggers. Their registries would import torch.
MODEL_DRAFTERS = {"model", "model_tree", "synthetic", "cascade"}
TABLE_DRAFTERS = {"ngram": "n-gram model", "retrieval": "datastore"}
HEAD_DRAFTERS = {"eagle", "eagle_tree", "block"}
OWN_HEAD_DRAFTERS = {"medusa", "mtp"}  # whose heads may also be in the target's own checkpoint
PATH_DRAFTERS = {*TABLE_DRAFTERS, *HEAD_DRAFTERS, *OWN_HEAD_DRAFTERS}
# What drafters need of the target, of which llama.cpp gives logits alone.
OF_NETWORK = {
    **dict.fromkeys((*HEAD_DRAFTERS, "medusa"), "its head reads the target's hidden states"),
    "mtp": "it drafts with a layer of the target",
    "self_skip": "its draft passes skip layers of the target",
    "self_window": "its draft passes read the target's keys and values",
    "self_quantized": "it copies the target's weights (or drafts with --set drafter.quantize=null --set "
    "drafter.checkpoint=FILE.gguf)",
}
LOGGER_PACKAGES = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True)
class Judge:
    """The model that is asked to rate every answer, before it is checked: see the options --judge-…."""

    model: str | None
    base_url: str | None = None
    prices: str | None = None
    is_dry_run: bool = False
    template: Path | None = None

    def make(self) -> "Judging | None":
        """Raises ConfigError for options without a model, and for a template that cannot be read."""
        from specbench.tasks.judge.judgements import make_judging

        return make_judging(self.model, self.base_url, self.prices, self.is_dry_run, self.template)


@dataclass(frozen=True)
class Request:
    """A user's request for a run before it is checked. `command`: the command line or Python call, which rows keep.
    `own_methods`: the specifications of names in `methods` that are neither known methods nor files. `may_limit`:
    whether a run of the embedded models' bundled sample may be limited if the options name no limit. `point`: of a
    sweep, the value of each condition, which the options have too."""

    tasks: Sequence[str]
    methods: Sequence[str]
    options: RunOptions
    command: str
    output: Path | None = None
    leaderboard: Path | None = None
    plot: Path | None = None
    lm_eval_include: Path | None = None
    servers: Path | None = None
    judge: Judge | None = None
    own_methods: Sequence[MethodSpec] = ()
    loggers: Sequence[str] = ()
    may_limit: bool = False
    point: Mapping[str, Value] = field(default_factory=dict)

    def settings(self) -> dict[str, object]:
        """Returns the request as rows keep it: tasks, methods, and the options that differ from their defaults. Command
        lines with the same meaning have the same settings."""
        settings: dict[str, object] = {"task": ",".join(self.tasks)}
        if self.methods or self.servers is None:
            settings["method"] = ",".join(self.methods)
        if self.servers is not None:
            settings["servers"] = str(self.servers)
        for name, value in self.options.changed().items():
            settings[name] = list(value) if isinstance(value, tuple) else value
        if (self.options.target or EMBEDDED).startswith(EMBEDDED):
            settings.setdefault("threads", 1)
        if self.point:
            settings[SWEEP] = dict(self.point)
        return settings

    def is_answered_by(self, settings: Mapping[str, object]) -> bool:
        """Returns whether rows with these settings have the conditions of this request: all but the warm-up, which
        changes how long it takes and not what is measured."""
        requested = self.settings()
        return {**settings, "warm_up": None} == {**requested, "warm_up": None}


def check_request(request: Request) -> None:
    """Raises ConfigError, in one line, with everything that the request lacks."""
    check_all(checks(request))


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
    options, judge, include = request.options, request.judge, request.lm_eval_include
    if request.output is not None and request.output.is_dir():
        yield ResumableFolder(request.output).check_free
    if judge is not None:
        yield judge.make
    for name in request.tasks if ALL in request.tasks else dict.fromkeys(request.tasks):
        if name.startswith(LM_EVAL):
            yield partial(require, "lm_eval", f"--task {name}")
        elif name != ALL:
            yield partial(load_task, name)
    if request.servers is not None:
        yield partial(yaml_files.read, request.servers)
        yield partial(check_data, options.data)
    else:
        yield from option_checks(options)
        own_names = {method.name for method in request.own_methods}
        for name in () if ALL in request.methods else request.methods:  # those that lack something are left out
            if name not in own_names:
                yield partial(check_method, name, request)
    if include is not None and not include.is_dir():
        yield partial(refuse, f"--lm-eval-include {include}: no such folder: give one with YAML files of tasks")
    if request.plot is not None:
        yield partial(require, "matplotlib", "--plot")
    has_ratings = request.output is not None and (request.output / JUDGEMENTS_FILE).exists()
    if judge is not None and judge.model is not None and not judge.is_dry_run and not has_ratings:
        yield partial(require, "openai", "--judge")
    for name in request.loggers:
        logger_names = sorted({*LOGGER_PACKAGES, *LOGGERS.plugins})
        if name not in logger_names:
            yield partial(refuse, f"--log {name}: {nearest(name, logger_names)}")
        elif EXTRAS.get(name) == name and name not in sys.modules and not is_installed(name):
            yield partial(refuse, f"--log {name}: {missing(name)}")


def option_checks(options: RunOptions, *, needs_weights: bool = True) -> Iterator[Callable[[], object]]:
    """Yields the checks of models, device and data. `needs_weights`: whether the models' weights are read, and not only
    their tokenizers."""
    yield from model_checks(options, needs_weights)
    yield partial(check_device, options)
    yield partial(check_data, options.data)


def model_checks(options: RunOptions, needs_weights: bool = True) -> Iterator[Callable[[], object]]:
    if needs_weights:
        yield partial(check_gguf_options, options)
    yield partial(check_model, options.target or TARGET, options.chat, needs_config=needs_weights)
    if options.drafter is not None:
        yield partial(check_model, options.drafter, needs_config=needs_weights)
    for role, name, revision in (
        ("target", options.target, options.target_revision),
        ("drafter", options.drafter, options.drafter_revision),
    ):
        yield partial(check_revision, role, name, revision)


def check_data(data: str | None) -> None:
    if data not in (None, "hub", "sample") and not os.path.exists(data):
        raise ConfigError(f"--data {data}: no such folder or file: check the path")


def refuse(problem: str) -> None:
    raise ConfigError(problem)


def check_method(name: str, request: Request) -> None:
    """Raises ConfigError for an unknown method, a missing file, and a drafter, head, n-gram model or datastore that the
    request does not give."""
    keys = method_keys(name)
    given = given_keys(request)
    target = request.options.target or TARGET
    drafter: Any = keys.get("drafter") if isinstance(keys.get("drafter"), Mapping) else {}
    kind = drafter.get("type")
    label = str(keys.get("name", name))
    path = given.get("drafter.path", drafter.get("path")) if kind in PATH_DRAFTERS else None
    if (unfit := no_network(keys, request)) is not None:
        raise ConfigError(f"method '{label}': {unfit}, or another method")
    if keys.get("routes"):
        return
    model = request.options.drafter
    unused = "" if model is None else f"; --drafter {model} names a draft model, as for --method sd, and does not help"
    if path is None and kind in TABLE_DRAFTERS and target != TARGET:
        noun = TABLE_DRAFTERS[kind]
        command = f"specbench train {kind} --target {target}"
        raise ConfigError(
            f"method '{label}': drafter.path is missing: target '{target}' has no {noun} of its own: train one with "
            f"`{command}` and give --set drafter.path=DIR{unused}"
        )
    if path is None and kind in HEAD_DRAFTERS and not target.startswith((EMBEDDED, OBJECT)):
        try:
            published_head(str(drafter.get("head", "eagle3")), target)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}{unused}") from error
    is_folder = kind in TABLE_DRAFTERS or str(path).startswith((".", "/", "~")) or str(path).count("/") > 1
    is_folder &= path is not None and path != "null" and not str(path).startswith(EMBEDDED)
    if is_folder and not os.path.exists(str(path)):
        raise ConfigError(f"method '{label}': drafter.path = '{path}': no such folder: check the path")
    checkpoint = given.get("drafter.checkpoint", drafter.get("checkpoint"))
    if checkpoint is not None and str(checkpoint).startswith(EMBEDDED) and target != TARGET:
        checkpoint = None
    if needs_drafter(keys) and checkpoint is None and request.options.drafter is None and target != TARGET:
        raise ConfigError(f"drafter: method '{label}' needs a drafter model: give one with --drafter")


def given_keys(request: Request) -> dict[str, str]:
    """Returns the values of --set by key."""
    pairs = (pair.split("=", 1) for pair in request.options.overrides if "=" in pair)
    return {key.strip(): value.strip() for key, value in pairs}


def has_network(request: Request) -> bool:
    """Returns whether torch computes the target, and not llama.cpp."""
    return not (is_gguf(request.options.target or TARGET) and uses_llama_cpp(request.options.engine))


def no_network(keys: Mapping[str, Any], request: Request) -> str | None:
    """Returns why a method cannot run because llama.cpp computes the target; None if it can. `keys`: the unchecked ones
    of its file."""
    if has_network(request):
        return None
    needed = next(needs_of_network(keys, given_keys(request)), None)
    return needed and (
        f"llama.cpp gives logits only, and {needed}: take --engine eager, which computes with the weights dequantized"
    )


def needs_of_network(keys: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    """Yields what a method needs of the target's network in torch."""
    if isinstance(keys.get("decoder"), Mapping):
        yield "its code runs the passes of transformers"
    routes = keys.get("routes")
    for part in (keys, *(routes.values() if isinstance(routes, Mapping) else ())):
        drafter: Any = part.get("drafter") if isinstance(part, Mapping) else None
        kind = drafter.get("type") if isinstance(drafter, Mapping) else None
        if kind == "self_quantized" and given.get("drafter.quantize", drafter.get("quantize")) in (None, "null"):
            continue
        if kind in OF_NETWORK:
            yield OF_NETWORK[kind]


def uses_llama_cpp(engine: str) -> bool:
    """Returns whether llama.cpp computes the passes of GGUF files."""
    return engine == "llama.cpp" or (engine == "auto" and is_installed("llama_cpp"))


def needs_drafter(keys: Mapping[str, Any]) -> bool:
    """Returns whether a method certainly needs a draft model, by the unchecked keys of its file."""
    decoder, drafter = keys.get("decoder"), keys.get("drafter")
    if isinstance(decoder, Mapping):
        return decoder.get("drafter") in ("same_vocabulary", "other_vocabulary")
    if keys.get("decodes_with") in ("drafter", "random"):
        return True
    return isinstance(drafter, Mapping) and drafter.get("type") in MODEL_DRAFTERS and not drafter.get("level")


def check_model(name: str, chat: str = "auto", *, needs_config: bool = True) -> None:
    """Raises ConfigError for a folder or an embedded model that does not exist, and, with `chat` "always", for one
    without a chat template. `needs_config`: whether a folder with only a tokenizer is refused too."""
    if is_gguf(name):
        check_gguf(name)
        return
    if name.startswith(OBJECT) or not (name.startswith(EMBEDDED) or is_local(name, needs_config=needs_config)):
        return
    folder = Path(model_source(name))
    if chat == "always" and lacks_template(folder):
        raise ConfigError(f"--chat always: model '{name}' has no chat template; use --chat auto or never")


def check_gguf_options(options: RunOptions) -> None:
    """Raises ConfigError for --engine llama.cpp without a GGUF target, options that only GGUF files have, options that
    have no effect on them, and missing packages."""
    engine = options.engine
    names = {"target": options.target or TARGET, "drafter": options.drafter}
    found = {role: name for role, name in names.items() if name is not None and is_gguf(name)}
    by_llama = uses_llama_cpp(engine)
    if engine == "llama.cpp":
        if "target" not in found:
            raise ConfigError(
                f"--engine llama.cpp: target '{names['target']}' is not a GGUF file: give one (FILE.gguf, or "
                "org/repo:Q4_K_M), or take --engine auto"
            )
        require("llama_cpp", "--engine llama.cpp")
    if "target" not in found:
        refuse_options(options, ("tokenizer",), f"on '{names['target']}', which is not a GGUF file")
    if "drafter" not in found:
        where = "without --drafter" if options.drafter is None else f"on '{options.drafter}', which is not a GGUF file"
        refuse_options(options, ("drafter_tokenizer",), where)
    if not found or not by_llama:
        what = "without a GGUF file" if not found else f"with --engine {engine}, which dequantizes GGUF files"
        refuse_options(options, ("gpu_layers", "cache_dtype"), what)
    if "target" in found:
        refuse_options(
            options, ("quantize", "device_map"), f"on '{found['target']}', whose weights are quantized already"
        )
        if by_llama and options.drafter in (None, found.get("drafter")):
            refuse_options(options, ("dtype",), "on models that llama.cpp computes")
    if found and not by_llama:
        require("accelerate", f"GGUF file '{next(iter(found.values()))}' without llama.cpp")


def check_revision(role: str, name: str | None, revision: str | None) -> None:
    """Raises ConfigError for a revision of no model, or of one that is not on the hub, which would have no effect."""
    if revision is not None and name is None:
        raise ConfigError(f"--{role}-revision {revision}: needs --{role} with a hub id")
    if revision is not None and (str(name).startswith((EMBEDDED, OBJECT)) or os.path.exists(str(name))):
        raise ConfigError(f"--{role}-revision {revision}: '{name}' is not on the hub: leave the revision out")


def check_device(options: RunOptions) -> None:
    """Raises ConfigError for options that need a CUDA device on a machine without one, and for missing packages."""
    if (options.target or "").startswith(OBJECT):
        loading = ("dtype", "device", "quantize", "device_map")
        refuse_options(options, loading, f"on '{options.target}', which is loaded already")
    kind = options.device.partition(":")[0]
    has_no_cuda = kind == "cpu" or not may_have_cuda()
    if kind == "cuda" and has_no_cuda:
        raise ConfigError(f"--device {options.device}: not available on this machine (no CUDA driver is installed)")
    if options.quantize != "none" and options.engine in ("auto", *QUANTIZED_BY):  # others refuse it whatever the device
        if has_no_cuda or kind == "cuda":
            this = "cpu" if kind == "auto" else kind
            check_quantized(options.quantize, this, options.dtype, options.device_map, options.engine)
        if not has_no_cuda and options.quantize != "int4":
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


def resolve(request: Request) -> tuple[Request, RunSpec, dict[str, str] | None]:
    """Returns a request with the names that "all" methods stand for and with the default limit, its specification, and
    why some of all methods are left out; None if it names its methods."""
    methods, left_out = requested_methods(request)
    spec = run_spec(replace(request, methods=methods))
    limit = request.options.limit
    is_bundled = spec.target.startswith(EMBEDDED) and spec.uses_sample and all(task.has_sample for task in spec.tasks)
    if request.may_limit and limit is None and is_bundled:  # first results come early
        limit = max(LEAST, SHARE // len(spec.task_subsets()))
        spec = spec.model_copy(update={"limit": limit})
    return replace(request, methods=methods, options=replace(request.options, limit=limit)), spec, left_out


def run_spec(request: Request) -> RunSpec:
    """Returns the checked specification of a run. Its first method is AR, even if AR was not requested."""
    options = request.options
    servers = None
    if not request.tasks or not (request.methods or request.servers):
        raise ConfigError("--task and --method need at least one name each; `specbench list` shows them")
    if options.subsets is not None and not options.subsets:
        raise ConfigError("--subset is empty: name at least one, or leave the option out")
    if request.lm_eval_include is not None and not any(name.startswith(LM_EVAL) for name in request.tasks):
        raise ConfigError(f"--lm-eval-include: has no effect without --task {LM_EVAL}NAME: leave it out, or name one")
    # 1. Tasks and methods. With servers, these are the methods, and they hold the models.
    tasks = [task for name in requested_tasks(request.tasks) for task in load_tasks(name, request.lm_eval_include)]
    names = list(dict.fromkeys(["ar", *request.methods]))
    if request.servers is not None:
        models = ("target", "drafter", "target_revision", "drafter_revision", "dtype", "device", "engine")
        refuse_options(options, (*models, *TARGET_OPTIONS), "with --servers, which hold the models")
        servers = read_servers(request.servers)
        for name in request.methods:
            if name not in servers.servers:
                problem = f"{request.servers} has no such server: {nearest(name, servers.servers)}"
                raise ConfigError(f"--method {name}: {problem}")
        methods, target = servers.methods(names), servers.tokenizer
    else:
        own_methods = {method.name: method for method in request.own_methods}
        methods, target = [own_methods.get(name) or load_method(name) for name in names], options.target or TARGET
        check_all(model_checks(options))
    # 2. Changed keys: first the sampling that the target's checkpoint asks for, then those of --set.
    overrides = list(options.overrides)
    if options.sampling == "model":
        from specbench.models.loading import model_sampling

        asked = model_sampling(target, options.target_revision)
        values = asked.values
        prefix = f"--sampling model: '{target}': {asked.source}: "
        build(GenerationSpec, {"max_new_tokens": 1, **values}, prefix=prefix)
        overrides = [*(f"generation.{name}={json.dumps(value)}" for name, value in values.items()), *overrides]
    tasks, methods = with_overrides(tasks, methods, overrides)
    # 3. The whole.
    given = {name: value for name, value in asdict(options).items() if name in RunSpec.model_fields}
    given["chat_template_args"] = parse_template_args(options.chat_template_args, options.chat)
    data = {**given, "tasks": tasks, "methods": methods, "servers": servers, "target": target}
    spec = build(RunSpec, data, prefix="")
    check_samples(spec)
    return spec


def refuse_options(options: RunOptions, names: Sequence[str], where: str) -> None:
    """Raises ConfigError for an option that is given but has no effect. `where`: continues "has no effect"."""
    for name in names:
        value = getattr(options, name)
        if value != getattr(RunOptions, name):
            raise ConfigError(f"{flag_of(name)} {value}: has no effect {where}: leave it out")


def parse_template_args(pairs: Sequence[str], chat: str) -> dict[str, object]:
    """Returns the variables of the chat template by name. Values are read as YAML."""
    if pairs and chat == "never":
        raise ConfigError(f"--chat-template-args {','.join(pairs)}: has no effect with --chat never: leave one out")
    arguments = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"--chat-template-args {pair}: write it as KEY=VALUE, such as enable_thinking=false")
        arguments[name.strip()] = yaml_files.parse(text, f"--chat-template-args {pair}")
    return arguments


def check_samples(spec: RunSpec) -> None:
    """Raises ConfigError if a task is scored by pass@k but the run has fewer than k different answers per example."""
    for task, name in spec.task_subsets():
        subset = task.subset(name)
        k = max(subset.scorer.options.get("k", (1,)), default=1) if subset.scorer and runs_programs(subset) else 1
        if k > 1 and (k > spec.repeats or subset.generation.temperature == 0):
            raise ConfigError(
                f"--repeats {spec.repeats}: pass@{k} of task {task.name} needs --repeats {k} and a temperature: give "
                f"them (--set generation.temperature=0.8), or leave {k} out of scorer.k"
            )


def runs_programs(task: TaskSpec) -> bool:
    """Returns whether answers are scored by executing them."""
    return task.scorer is not None and task.scorer.type == "code"


def requested_tasks(names: Sequence[str]) -> list[str]:
    """Returns the names of the requested tasks; "all" means every built-in task. Raises ConfigError for "all" with
    other names."""
    if ALL in names and len(set(names)) > 1:
        raise ConfigError(f"--task {','.join(names)}: '{ALL}' is every task: name no other task")
    return builtin_task_names() if ALL in names else list(dict.fromkeys(names))


def requested_methods(request: Request) -> tuple[Sequence[str], dict[str, str] | None]:
    """Returns the names of the methods. For "all", these are the methods without a draft model and those whose draft
    model is known, and why the others cannot run, by name. Raises ConfigError for "all" with other names."""
    if ALL not in request.methods:
        return request.methods, None
    if set(request.methods) != {ALL}:
        raise ConfigError(f"--method {','.join(request.methods)}: '{ALL}' is every method: give no other name with it")
    if request.servers is not None:  # without names, all servers are methods
        return [], {}
    target = request.options.target or TARGET
    unfit = {} if has_network(request) else {name: no_network(method_keys(name), request) for name in method_names()}
    has_drafter = request.options.drafter is not None or target == TARGET
    reasons = {
        method.name: "it needs a draft model: give one with --drafter"
        for method in (() if has_drafter else map(load_method, method_names()))
        if any(part.needs_drafter and own_drafter(part, target) is None for part in method.parts)
    } | {name: reason for name, reason in unfit.items() if reason is not None}  # fmt: skip
    return [name for name in method_names() if name not in reasons], reasons


def request_notes(request: Request, spec: RunSpec) -> Iterator[str]:
    """Yields notes about a request:

    - a file of the user has the name of a built-in method or task;
    - a task lacks requested subsets or few-shot examples, or its bundled sample lacks subsets;
    - the language of a task's answers cannot be identified;
    - no method uses the draft model, or no subset uses a route.
    """
    from specbench.decoding.build import unused_routes
    from specbench.tasks.scoring import identified_language, make_scorer

    for kind, names in (("tasks", request.tasks), ("methods", request.methods)):
        yield from filter(None, (namesake(kind, name) for name in names))
    for name, absent in spec.left_out().items():
        them = "it" if len(absent) == 1 else "them"
        yield f"{absent_subsets_line(name, absent, 'bundled sample')}: give --data to measure {them}"
    for task in spec.tasks:
        lacking = ", ".join(name for name in spec.subsets or () if name not in task.subset_names)
        measured = ", ".join(name for other, name in spec.task_subsets() if other is task)
        if lacking and not task.subsets:
            yield f"--subset: {task.name} has no subsets: it is measured as a whole"
        elif lacking:
            what = f"only {measured} of it is measured" if measured else "it is not measured"
            yield f"--subset: {task.name} has no {lacking}: {what}"
    overrides = dict(pair.split("=", 1) for pair in request.options.overrides)
    if overrides.get(NUM_SHOTS, "0") != "0":
        for name in (task.name for task in spec.tasks if not has_shots(task)):
            yield f"few-shot examples: {name} has none: it is measured without them"
    subsets = [] if is_installed("lingua") else [task.subset(name) for task, name in spec.task_subsets()]
    unchecked = [task.name for task in subsets if identified_language(task.language, make_scorer(task))]
    for name in dict.fromkeys(unchecked):
        yield f"{name}: the language of the answers is not checked: {missing('lingua')}"
    if request.options.sampling == "model":
        from specbench.models.loading import model_sampling

        checkpoint_sampling = model_sampling(spec.target, spec.target_revision)
        others = ", ".join(f"{name} {json.dumps(value)}" for name, value in checkpoint_sampling.others.items())
        are = "is" if len(checkpoint_sampling.others) == 1 else "are"
        ignored = f"; its {others} {are} not supported and left out" if others else ""
        yield f"--sampling model: {checkpoint_sampling} of the target's {checkpoint_sampling.source}{ignored}"
    drafter = request.options.drafter
    uses_it = any(part.needs_drafter or part.decoder is not None for each in spec.methods for part in each.parts)
    if drafter is not None and not uses_it:
        yield (
            f"warning: --drafter {drafter}: has no effect, as no method of this run has a draft model; a head, an "
            "n-gram model or a datastore is given by --set drafter.path=PATH"
        )
    if spec.trust_remote_code:
        yield "--trust-remote-code: Python code of the checkpoints may run in this process"
    for method in spec.methods:
        yield from unused_routes(method, spec.tasks)


MAX_NAMED = 5  # subsets that one line names


def absent_subsets_line(task: str, names: Sequence[str], lacking: str) -> str:
    """Returns the beginning of a line about subsets that have no `lacking`."""
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    return f"{task}: {counted(len(names), 'subset')} {'has' if len(names) == 1 else 'have'} no {lacking} ({shown})"
