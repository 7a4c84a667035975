"""The models of a run: one target, and for every method that drafts with a model, its draft model."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD
from specbench.models.causal_lm import CausalLM, ModelPair, shortest_context
from specbench.models.compiling import VERBS
from specbench.models.loading import load_model
from specbench.running.prompts import Budget
from specbench.specs.components import Engine, RowEngine
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec, checkpoint_key, own_drafter


@dataclass(frozen=True)
class Models:
    """A target, and the draft models by the name of the method, or METHOD/LANGUAGE of a route; methods that draft
    without a model have none."""

    target: CausalLM
    drafters: Mapping[str, CausalLM]

    def engine(self, method: MethodSpec) -> RowEngine:
        """How the passes of a method are run."""
        return engine_of(self.target, [self.drafters[part.name] for part in method.parts if part.name in self.drafters])

    def pair(self, method: MethodSpec) -> ModelPair:
        """The models of one method."""
        own = {part.name: self.drafters[part.name] for part in method.parts if part.name in self.drafters}
        return ModelPair(self.target, own.pop(method.name, None), own)

    def context_limit(self, methods: Sequence[MethodSpec]) -> int | None:
        """The positions of the shortest context, so that all methods obey the same limit. A drafter with a vocabulary
        of its own counts other positions: where its context ends it drafts no more, and the generation goes on."""
        drafting = [part for part in parts(methods) if part.name in self.drafters]
        return shortest_context([self.target, *(self.drafters[part.name] for part in drafting if not bridged(part))])

    def budgets(self, methods: Sequence[MethodSpec], num_new_tokens: int) -> tuple[Budget, ...]:
        """The prompts that leave room for the answer in every model's context, and half of it at least for the prompt.
        A drafter that shares the target's tokens reads the target's ids: only one with a vocabulary of its own, and one
        that decodes alone, count their own tokens."""
        common = self.context_limit(methods)
        readers: list[tuple[CausalLM, int | None, CausalLM | None]] = [(self.target, common, None)]
        for part in parts(methods):
            drafter = self.drafters.get(part.name)
            if drafter is not None and bridged(part):
                readers.append((drafter, drafter.context_limit, self.target))
            elif drafter is not None and part.decodes_with != "target":
                readers.append((drafter, common, None))
        budgets = [
            Budget(model, max(limit - num_new_tokens, limit // 2), translated)
            for model, limit, translated in readers if limit
        ]  # fmt: skip
        return tuple({(id(b.model), id(b.translated)): b for b in budgets}.values())


def engine_of(target: CausalLM, drafters: Iterable[CausalLM]) -> RowEngine:
    """How the passes of a target and its drafters are run: beside a recorded or compiled target a drafter may be eager,
    beside an eager one all are."""
    if target.engine != "eager" and any(drafter.engine == "eager" for drafter in drafters):
        return "graphs target" if target.engine == "graphs" else "compiled target"
    return target.engine


def bridged(method: MethodSpec) -> bool:
    """Whether the drafter's tokens are others than the target's."""
    return method.decodes_with == "target" and not method.same_vocabulary


def parts(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """The methods, those with routes as their routes."""
    return [part for method in methods for part in method.parts]


def load_models(spec: RunSpec, load: Callable[..., CausalLM] | None = None) -> Models:
    """The models that the methods of a run ask for, each loaded once, all in the target's dtype. `load`: in place of
    `load_model`. A target whose passes cannot be recorded or compiled makes all eager."""
    load = load or load_model
    target = load(
        spec.target, revision=spec.target_revision, dtype=spec.dtype, device=spec.device,
        engine=engine_for(spec.engine, spec.methods),
    )  # fmt: skip
    if target.why_eager is not None:
        warn_of(target, spec.engine, "this run and its rows are those of --engine eager")
    return Models(target, load_drafters(spec, spec.methods, target, load))


def engine_for(engine: Engine, methods: Sequence[MethodSpec]) -> Engine:
    """Returns the engine of a run: auto is eager beside a method whose code has passes of its own."""
    has_own_passes = any(part.decoder is not None for part in parts(methods))
    return "eager" if engine == "auto" and has_own_passes else engine


def load_drafters(
    spec: RunSpec, methods: Sequence[MethodSpec], target: CausalLM, load: Callable[..., CausalLM] | None = None
) -> dict[str, CausalLM]:
    """The draft models by the name of the method or route. Raises ConfigError naming the key of a checkpoint."""
    load = load or load_model
    dtype = target.dtype if spec.dtype == "auto" else spec.dtype
    loaded: dict[str, CausalLM] = {}
    found: dict[str, CausalLM] = {}
    for part in parts(methods):
        name = spec.drafter_of(part) if part.needs_drafter else None
        if name is None:
            continue
        revision = spec.drafter_revision if name == spec.drafter else None
        if name not in loaded:
            with naming_key(part, spec.target):
                loaded[name] = load(name, revision=revision, dtype=dtype, device=spec.device, engine=target.engine)
        found[part.name] = loaded[name]
    for drafter in {id(model): model for model in found.values() if model.why_eager is not None}.values():
        told = ", ".join(dict.fromkeys(name.partition("/")[0] for name, model in found.items() if model is drafter))
        warn_of(
            drafter,
            target.engine,
            f"it drafts eagerly beside the target, and rows of {told} say engine '{target.engine} target': no row of "
            "another engine compares with them",
        )
    return found


def warn_of(model: CausalLM, engine: Engine, meaning: str) -> None:
    """Say of a model whose passes were to be recorded or compiled that they are not."""
    verb = VERBS.get(engine, "recorded")
    message = f"--engine {engine}: model '{model.name}' cannot be {verb} ({model.why_eager}): {meaning}"
    warnings.warn(message, UserWarning, stacklevel=1)


@contextmanager
def naming_key(part: MethodSpec, target: str) -> Iterator[None]:
    """A model that a method names itself and that cannot be loaded is told with the method and the key."""
    try:
        yield
    except ConfigError as error:
        if own_drafter(part, target) is None:
            raise
        method, key = part.name.partition("/")[0], checkpoint_key(part.name)
        raise ConfigError(f"method '{method}': {key} = '{part.checkpoint}': {error}") from error


def training_prompts(spec: RunSpec, method: MethodSpec) -> set[str]:
    """Returns the digests of the prompts that the drafters of a method were trained on; none where their folders have
    no record that lists prompts. Another layout of the same question has another digest, so it is not seen."""
    folders = {
        part.drafter.options.get("path") or (spec.drafter_of(part) if part.needs_drafter else None)
        for part in method.parts
    }
    return set().union(*(prompts_of(Path(folder)) for folder in folders if folder))


def prompts_of(folder: Path) -> set[str]:
    """The digests of the prompts that a training lists."""
    try:
        data = bounded.read_json(folder / TRAINING_RECORD, "train it again", strict=False)["data"]
        return set(data.get("prompts") or ())
    except (ConfigError, KeyError, TypeError, AttributeError):
        return set()
