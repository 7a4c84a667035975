"""A command that is repeated when its folder has everything: its plan is made without the weights of the models.

Everything that identifies the run is computed again and compared: data, prompts, tokens, tasks, methods, the files of
models and drafters, the versions and the machine. Only what loaded models alone tell (the precision, the attention and
the engine of passes) is taken from the folder; it follows from the options, which are the same.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.core import bounded
from specbench.core.console import PlainConsole, say
from specbench.core.environment import OBJECT, is_installed
from specbench.core.errors import ConfigError
from specbench.decoding.build import make_rule
from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.sampling import Sampling
from specbench.models.gguf.files import is_gguf
from specbench.models.heads import HEADS, published_head
from specbench.models.heads.checkpoints import head_revision
from specbench.models.loading import choose_device, load_model
from specbench.records.folder import PRODUCTS, RunFolder, folder_names
from specbench.results.rows import MEASUREMENTS_FILE, Measurement, read_measurements
from specbench.running.dry_run import MADE_WITHOUT_WEIGHTS
from specbench.running.measure import check_recorded
from specbench.running.models import LoadedModels, computing_packages, load_models
from specbench.running.plan import Plan, make_plan
from specbench.running.request import ALL, HEAD_DRAFTERS, OWN_HEAD_DRAFTERS, Request, resolve
from specbench.specs.components import RowEngine
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec

WITHOUT_WEIGHTS = {*MADE_WITHOUT_WEIGHTS, "model", "none", "prompt_lookup"}  # drafters whose decoders need no weights
OF_HEADS = {*HEAD_DRAFTERS, *OWN_HEAD_DRAFTERS}
READINGS = ("", ", norm_output=feedback")  # what the revision of a head ends with, see `heads.eagle_drafter`


@dataclass(frozen=True)
class ModelsOfFolder(LoadedModels):
    """Models without weights. `identity_of_run`: the run.json of the folder in which they have measured."""

    device: str = "cpu"
    identity_of_run: Mapping[str, Any] = field(default_factory=dict)

    def engine(self, method: MethodSpec) -> RowEngine:
        found = self.identity_of_run.get("engines", {}).get(method.name)
        engine: RowEngine = found or self.identity_of_run["environment"]["engine"]
        return engine

    def decoder(self, method: MethodSpec, sampling: Sampling) -> Decoder:
        """Returns the decoder of a method; that of a head has its name and its revision, and drafts nothing."""
        kind, options = method.drafter.type, method.drafter.options
        if method.routes is not None or kind not in OF_HEADS:
            return super().decoder(method, sampling)
        if options["path"] is None and kind in OWN_HEAD_DRAFTERS and self.target.name not in HEADS.get(kind, ()):
            raise ConfigError("the heads may be in the target's own checkpoint")
        name = options["path"] or published_head(options.get("head", kind), self.target.name)
        revision = head_revision(name, options["revision"])
        known = self.identity_of_run.get("drafters", {}).get(method.name, {}).get("revision")
        drafter = NoDrafter()
        # Which reading a head without drafter.norm_output has is what a trial of the run found.
        readings = [f"{revision}{end}" for end in READINGS]
        drafter.name, drafter.revision = name, known if known in readings else revision
        return DraftingDecoder(method, self.target, drafter, make_rule(method, self.target.vocab_size), sampling)

    def environment(self) -> dict[str, Any]:
        known = self.identity_of_run["environment"]
        engines = (known["engine"], *self.identity_of_run.get("engines", {}).values())
        return {
            "device": self.device, **{name: known[name] for name in ("dtype", "attention", "engine")},
            "packages": computing_packages(engines),
        }  # fmt: skip

    def identity(self) -> dict[str, object]:
        width = self.identity_of_run.get("pass_width")
        return {} if width is None else {"pass_width": width}


class Notes(PlainConsole):
    """Keeps the lines for the user until it is known whether they are said by another plan."""

    def __init__(self) -> None:
        super().__init__(stderr=True)
        self.lines: list[str] = []

    def print(self, *objects: Any, **_: Any) -> None:
        self.lines += map(str, objects)


def finished_plan(request: Request, console: Console) -> Plan | None:
    """Returns the plan of a request whose folder has all records and the measurement of the same request; None if
    anything may be missing or different, so that the models have to be loaded."""
    if request.servers is not None or request.judge is not None or ALL in request.methods:
        return None
    for folder in _folders(request):
        with suppress(ConfigError):  # what is wrong is told by the plan with the models
            measurement = _measurement(folder, request)
            notes = Notes()
            plan = None if measurement is None else _plan(folder, request, notes)
            if plan is not None and _is_complete(plan):
                for line in notes.lines:
                    say(console, line)
                return replace(plan, measurement=measurement)
    return None


def _folders(request: Request) -> Iterator[Path]:
    """Yields the folders that may be the run's."""
    if request.output is not None:
        yield request.output
        return
    with suppress(ConfigError):
        _, spec, _ = resolve(request)
        yield from sorted(Path("runs").glob(f"{folder_names(spec)}-*"))


def _measurement(folder: Path, request: Request) -> Measurement | None:
    if not (folder / MEASUREMENTS_FILE).is_file():
        return None
    asked, _, _ = resolve(request)
    is_same = is_installed("lingua")
    found = (each for each in reversed(read_measurements(folder)) if asked.is_answered_by(each.request))
    return next((each for each in found if each.identifies_languages == is_same), None)


def _plan(folder: Path, request: Request, console: Console) -> Plan | None:
    identity = bounded.read_mapping(folder / RunFolder.IDENTITY, "restore it", strict=False)

    def load(spec: RunSpec) -> LoadedModels:
        parts = [part for method in spec.methods for part in method.parts]
        names = [spec.target, *(name for part in parts if (name := spec.drafter_of(part)) is not None)]
        if (
            spec.device_map != "none"
            or any(name.startswith(OBJECT) for name in names)
            or len({is_gguf(name) for name in names}) > 1  # whether two formats hold the same weights is compared
            or any(part.decoder is not None or part.drafter.type not in WITHOUT_WEIGHTS | OF_HEADS for part in parts)
            or any(part.drafter.type in OF_HEADS for method in spec.methods if method.routes for part in method.parts)
        ):
            raise ConfigError("the identity of the run needs the weights")
        models = load_models(spec, partial(load_model, weights=False))
        return ModelsOfFolder(models.target, models.drafters, str(choose_device(spec.device)), identity)

    plan = make_plan(request, console, load)
    if products := plan.folder.recorded_products():
        plan.folder.identity[PRODUCTS] = products
    return plan if plan.folder.path == folder else None


def _is_complete(plan: Plan) -> bool:
    """Returns whether all trials are recorded, with the prompts and references of now."""
    with plan.folder.open({each.name: each.most_draft_tokens for each in plan.spec.methods}) as recorded:
        if not all(trial.key in recorded for trial in plan.trials):
            return False
        check_recorded(plan.trials, recorded, plan.folder)
        return True
