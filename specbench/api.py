"""The Python interface of the commands `run`, `compare` and `check`. Models and methods may be Python objects.

    import specbench

    results = specbench.run("mgsm", "sd", limit=8)
    results = specbench.run("mgsm", specbench.Method(my_drafter), target=(model, tokenizer), data="sample")

A mistake raises `specbench.ConfigError`, whose message is one line.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

from specbench.core.console import PlainConsole, stderr
from specbench.core.environment import OBJECT
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.core.progress import Heartbeat
from specbench.core.registry import DRAFTERS, RULES, DrafterFeatures, Registry, RuleFeatures
from specbench.gate.report import CheckedRuns
from specbench.report.display import ComparedRuns, Results
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import OPTIONS, RunOptions, spec_of, split, with_options

Options = spec_of("Options")
# Options may also be named as on the command line: subset= is subsets=.
NAMES = {option.flag.removeprefix("--"): name for name, option in OPTIONS.items()}


class Model(NamedTuple):
    """A loaded transformers model and its tokenizer. `name`: its name in rows, by default the name of its class."""

    model: Any
    tokenizer: Any
    name: str = ""


ModelLike = str | Path | Model | tuple[Any, Any]


@dataclass(frozen=True)
class Method:
    """A method whose drafter or verification rule may be a Python object.

    drafter: the name of a drafter; a mapping as in YAML; a function of the token ids so far and a maximum number, which
        returns at most that number of next tokens; a `specbench.decoding.drafters.Drafter`; or its factory, as in a
        plug-in (a class, or a declared function).
    rule: the name of a rule; a mapping as in YAML; a function that is called as `rule(proposal, target, generator)` and
        returns a `Verification` or (num_accepted, next_token); a
        `specbench.decoding.verification.VerificationRule`; or its factory.
    draft_length: a policy for the number of tokens that a step drafts, as in YAML; None: as many as fit.
    name: its name in rows, by default made from the objects' names.
    lossless: whether a rule that is a function or an object keeps the target's distribution. A factory declares it.

    Rows have a digest of the objects' current code and state, so that changed code counts as another method.
    """

    drafter: Any = "model"
    rule: Any = "rejection"
    num_draft_tokens: int = 5
    bridge: str | Mapping[str, Any] = "shared"
    name: str = ""
    lossless: bool = False
    draft_length: Mapping[str, Any] | None = None

    @cached_property
    def spec(self) -> MethodSpec:
        """The specification of the method. Raises ConfigError for parts that do not fit each other."""
        from specbench.decoding.checked_parts import drafter_factory, rule_factory
        from specbench.specs.catalogue import method_names

        drafter_features = DrafterFeatures(provides=frozenset({"probs"}))
        drafter = _component(DRAFTERS, "type", self.drafter, drafter_factory, drafter_features)
        verification = _component(RULES, "rule", self.rule, rule_factory, RuleFeatures(lossless=self.lossless))
        parts = [part for part in (self.drafter, self.rule) if not isinstance(part, str | Mapping)]
        names = [str(drafter.get("type", "drafter")), str(verification.get("rule", "rule"))]
        name = self.name or "-".join(map(_label, parts)) or "-".join(names)
        if not isinstance(self.lossless, bool):
            raise ConfigError(f"method '{name}': lossless = {self.lossless!r:.60}: give True or False")
        if name in method_names():
            raise ConfigError(f"method '{name}': a built-in method has this name: give another name")
        data = {
            "name": name, "version": 1, "title": f"{name}, from Python", "drafter": drafter,
            "verification": verification, "num_draft_tokens": self.num_draft_tokens,
        }  # fmt: skip
        bridge = {} if self.bridge == "shared" else {"bridge": self.bridge}
        length = {} if self.draft_length is None else {"draft_length": self.draft_length}
        return build(MethodSpec, {**data, **bridge, **length}, prefix=f"method '{name}': ")


def _component(
    registry: Registry[..., Any], key: str, part: Any, factory_of: Callable[[Any], Callable[..., Any]], default: Any
) -> dict[str, Any]:
    """Returns a component as in YAML. Registers it if it is an object. `default`: its features if it declares none."""
    if isinstance(part, str | Mapping):
        return {key: part} if isinstance(part, str) else dict(part)
    from specbench.models.objects import object_digest

    factory = part if registry.is_declared(part) else factory_of(part)
    return {key: registry.add_object(f"{_label(part)}-{object_digest(part)}", factory, default)}


def _label(part: Any) -> str:
    name = getattr(part, "__name__", type(part).__name__)
    return re.sub(r"[^A-Za-z0-9_.-]+", "", name).lstrip("_.-") or "object"


def run(
    task: str | Sequence[str], method: str | Method | Sequence[str | Method], *, target: ModelLike | None = None,
    drafter: ModelLike | None = None, output: str | Path | None = None, leaderboard: str | Path | None = None,
    lm_eval_include: str | Path | None = None, judge: str | None = None, judge_base_url: str | None = None,
    judge_template: str | Path | None = None, sweep: str | Sequence[str] | Mapping[str, str | Sequence[Any]] = (),
    quiet: bool = False, **options: Any,
) -> Results:  # fmt: skip
    """Measures methods and AR on tasks, as `specbench run` does. The same call resumes an interrupted run.

    task, method: names or YAML files, separated by commas or in a list. A method may be a `Method`.
    target, drafter: hub ids, folders or `embedded:NAME`; or a loaded transformers model with its tokenizer, as a pair
        or a `Model`. It is measured on its device and in its dtype, and its rows have a digest of its weights.
    output: folder of the run. leaderboard: file that the rows are merged into. quiet: print no progress.
    sweep: conditions and their values, such as {"context": [2048, 4096]}, or as on the command line: "context=2k,4k".
        A run at each value; the results have the rows of all, and `output` has a folder of each.
    options: the fields of `RunOptions`, which are the options of `specbench run`, such as limit=8, data="sample",
        subsets=["en", "de"] and overrides={"generation.max_new_tokens": 64}; subset= and set= mean the same as the
        last two. limit=None or "all" measures all examples. Without `limit`, a run of the embedded models measures a
        share of their sample, as the command does.

    Raises ConfigError for bad input.
    """
    from specbench.report.sweep import RowsOfSweep
    from specbench.running.request import Judge, Request, check_request
    from specbench.running.sweep import run_sweep, sweep_requests

    # 1. The request: objects are registered, and named as rows name them.
    models = {"target": _model_name("target", target)}
    models["drafter"] = _model_name("drafter", drafter, taken=models["target"])
    chosen = _run_options({**options, **models})
    methods = _listed("method", method, Method)
    own = [each.spec for each in methods if isinstance(each, Method)]
    names = [name for each in methods for name in ([each.spec.name] if isinstance(each, Method) else split(each))]
    tasks = [name for each in _listed("task", task) for name in split(each)]
    for key, text in {"judge": judge, "judge_base_url": judge_base_url}.items():
        if not isinstance(text, str | None):
            raise ConfigError(f"{key} = {text!r:.60}: give a text")
    rating = Judge(judge, judge_base_url, template=_path("judge_template", judge_template))
    sweeps = _sweeps(sweep)
    given = [f"{name}={value!r}" for name, value in chosen.changed().items()]
    given += [f"sweep={sweeps!r}"] if sweeps else []
    arguments = [repr(",".join(tasks)), repr(",".join(names)), *given]
    command = f"specbench.run({', '.join(arguments)})"  # as rows keep it
    request = Request(
        tasks, names, chosen, command, output=_path("output", output), leaderboard=_path("leaderboard", leaderboard),
        lm_eval_include=_path("lm_eval_include", lm_eval_include), own_methods=own,
        judge=None if rating == Judge(None) else rating, may_limit="limit" not in options,
    )  # fmt: skip
    requests = sweep_requests(request, sweeps) if sweeps else [request]
    for each in requests:
        check_request(each)
    from specbench.running.execute import execute  # imports torch

    # 2. The run, after which this process is as it was.
    console = stderr
    if quiet:
        console = PlainConsole(stderr=True)
        console.quiet = True
    silence = nullcontext() if quiet else Heartbeat(console)
    with _restored_process(chosen, [target, drafter]), silence:
        if sweeps:
            folder = run_sweep(requests, console)
            return Results(RowsOfSweep.read(folder), folder)
        outcome = execute(request, console)
    return Results(outcome, outcome.records.parent)


def _sweeps(given: str | Sequence[str] | Mapping[str, str | Sequence[Any]]) -> list[str]:
    """Returns the conditions of a sweep as on the command line, CONDITION=VALUE,VALUE each."""
    if not isinstance(given, Mapping):
        return [given] if isinstance(given, str) else _listed("sweep", given)
    try:
        texts = {name: each if isinstance(each, str) else json.dumps(list(each))[1:-1] for name, each in given.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sweep = {given!r:.60}: give each condition a list of texts or numbers") from error
    return [f"{name}={text}" for name, text in texts.items()]


def _path(key: str, place: Path | str | None) -> Path | None:
    if not isinstance(place, str | os.PathLike | None):
        raise ConfigError(f"{key} = {place!r:.60}: give a path")
    return None if place is None else Path(place)


def _listed(key: str, given: Any, *kinds: type) -> list[Any]:
    """Returns the names that are given, alone or in a list. `kinds`: what else may be given."""
    found = list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        if not isinstance(each, (str, Path, *kinds)):
            also = "".join(f", or a specbench.{kind.__name__}" for kind in kinds)
            raise ConfigError(f"{key} = {each!r:.60}: give a name or a YAML file{also}, or a list of these")
    return [str(each) if isinstance(each, Path) else each for each in found]


def _model_name(key: str, given: ModelLike | None, taken: str | None = None) -> str | None:
    """Returns the name that loads a model. Registers it if it is an object. `taken`: the other model's name."""
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
        raise ConfigError(
            f"{key} = {given!r:.60}: give a hub id, a folder or embedded:NAME, or a transformers model and its "
            "tokenizer as a pair"
        )
    from specbench.models.objects import add_model

    model = Model(*given)
    name = model.name or type(model.model).__name__
    return add_model(model.model, model.tokenizer, f"{name}-{key}" if OBJECT + name == taken else name)


def _run_options(given: Mapping[str, object]) -> RunOptions:
    """Returns the options of a run. Raises ConfigError for an unknown option, and for a value of a wrong type."""
    values = {NAMES.get(name, name): str(value) if isinstance(value, Path) else value for name, value in given.items()}
    if values.get("limit") == "all":
        values["limit"] = None
    subsets, overrides, limit = (values.get(name) for name in ("subsets", "overrides", "limit"))
    if isinstance(subsets, str):
        values["subsets"] = split(subsets)
    if isinstance(overrides, Mapping):
        pairs = []
        for key, value in overrides.items():
            try:
                pairs.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
            except (TypeError, ValueError) as error:
                problem = "give a text, a number or a list of these"
                raise ConfigError(f"overrides['{key}'] = {value!r:.60}: {problem}") from error
        values["overrides"] = pairs
    is_share = isinstance(limit, float) and 0 < limit < 1
    is_number = isinstance(limit, int) and limit >= 1 and limit is not True
    if not (limit is None or is_share or is_number):
        raise ConfigError(
            f"limit = {limit!r}: give a number of examples from 1, a share between 0 and 1, such as 0.1, or None (all)"
        )
    return RunOptions(**dict(build(Options, values)))


_RUNNING = threading.Lock()


@contextmanager
def _restored_process(options: RunOptions, models: Sequence[ModelLike | None]) -> Iterator[None]:
    """Restores what a run changes in this process: torch's threads, the permission to run programs, and the models'
    modes and forward functions. An interrupt is raised as KeyboardInterrupt.

    Raises ConfigError while another thread of this process runs one, or a drafter that is being measured: both would be
    slower, and share what is restored here.
    """
    import torch

    from specbench.tasks.sandbox import run as permission

    if not _RUNNING.acquire(blocking=False):
        raise ConfigError("specbench.run: another run of this process is not finished: wait for it, or use processes")
    parts = [part for each in models if isinstance(each, tuple) for part in each[0].modules()]
    states = [(part.training, vars(part).get("forward")) for part in parts]
    threads = torch.get_num_threads()
    allowed = permission.allowed()
    permission.allow(options.allow_code_execution)
    try:
        yield
    except SystemExit as stop:
        raise (KeyboardInterrupt if stop.code == INTERRUPTED else stop) from None
    finally:
        permission.allow(allowed)
        torch.set_num_threads(threads)
        for part, (is_training, forward) in zip(parts, states, strict=True):
            part.training = is_training
            vars(part).pop("forward", None)  # a run replaces that of recurrent layers
            if forward is not None:
                part.forward = forward
        _RUNNING.release()


with_options(run, "options", (
    Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
    for name, option in OPTIONS.items() if name not in ("target", "drafter")
))  # fmt: skip


def load(path: str | Path) -> Results:
    """Returns the results of a finished run or of a sweep, or the rows of a leaderboard file. Raises ConfigError for
    other paths."""
    from specbench.records.records import RECORDS
    from specbench.report.sweep import RowsOfSweep
    from specbench.results.runs import read_path
    from specbench.results.sweeps import is_sweep
    from specbench.running.execute import RunOutcome

    if not isinstance(path, str | Path):
        raise ConfigError(f"path = {path!r:.60}: give the folder of a run, or a leaderboard file")
    if is_sweep(Path(path)):
        return Results(RowsOfSweep.read(Path(path)), Path(path))
    found = read_path(str(path), Path(path))
    return Results(RunOutcome(found.rows, found.file.parent / RECORDS, found.file), Path(path))


def compare(
    first: Results | str | Path, second: Results | str | Path, *, task: str = "", subset: str = "",
    filters: Sequence[str] = (),
) -> ComparedRuns:  # fmt: skip
    """Compares two runs, methods or rows, as `specbench compare` does: configuration, then paired changes of metrics.

    first, second: results, or paths as PATH, PATH:METHOD or FILE:NUMBER of a row. task, subset: names, separated by
    commas; filters: KEY=VALUE that rows of both must have.
    """
    from specbench.report.compare import compare as compared
    from specbench.results.runs import read_input, select_rows

    inputs = [read_input(_path_of(each), filters) for each in (first, second)]
    return ComparedRuns(**vars(compared(*(select_rows(each, split(task), split(subset)) for each in inputs))))


def check(
    baseline: Results | str | Path, candidate: Results | str | Path, *, max_regression: float = 0.03,
    ignore: Sequence[str] = (),
) -> CheckedRuns:  # fmt: skip
    """Checks whether a run is worse than a baseline, as `specbench check` does.

    baseline, candidate: results, or paths as PATH or PATH:METHOD. max_regression: how far a speed-up may fall (0.03:
    3 %). ignore: conditions that may differ (attention, device, dtype, target, versions).
    """
    from specbench.gate.check import check as checked

    if not isinstance(max_regression, int | float) or not 0 <= max_regression < 1:
        raise ConfigError(f"max_regression = {max_regression!r:.60}: give a share from 0 to below 1, such as 0.03")
    ignored = [name for each in _listed("ignore", ignore) for name in split(each)]
    return CheckedRuns(**vars(checked(_path_of(baseline), _path_of(candidate), max_regression, ignored)))


def _path_of(given: Results | str | Path) -> str:
    return str(given.path if isinstance(given, Results) else given)
