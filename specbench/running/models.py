"""The models of a run: one target, and a draft model for every method that drafts with one."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specbench.core import bounded
from specbench.core.environment import EMBEDDED, OBJECT
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD
from specbench.decoding.bridges import check_equal, share_ids
from specbench.decoding.build import build_decoder, check_vocabulary, pauses
from specbench.decoding.decoder import Decoder
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair, TextModel
from specbench.models.gguf.files import is_gguf
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.machine import LLAMA_CPP
from specbench.models.packed import packing_pays, products_of, unpack
from specbench.models.scoring import VERBS, ScoringModel
from specbench.running.prompts import PromptBudget, uses_chat
from specbench.specs.components import EngineName, RowEngine
from specbench.specs.method import MethodSpec, inner_name
from specbench.specs.run import RunSpec, checkpoint_key, own_drafter
from specbench.specs.run_options import TARGET_OPTIONS, RunOptions


@dataclass(frozen=True)
class LoadedModels:
    """A target, and the draft models by method name, or METHOD/LANGUAGE for a route. Methods that draft without a model
    have no entry."""

    target: CausalLM
    drafters: Mapping[str, CausalLM]

    def engine(self, method: MethodSpec) -> RowEngine:
        """Returns the engine that runs the passes of a method."""
        return engine_of(self.target, self._of([method]).values())

    @property
    def scoring(self) -> ScoringModel | None:
        """The target as a model that scores answers; None if it gives no log-probabilities."""
        return self.target

    @property
    def placement(self) -> str | None:
        """The devices of the target; None if it is not in this process."""
        return self.target.placement

    def environment(self) -> dict[str, Any]:
        """Returns the device, the dtype, the attention and the engine of the target's passes, and the further packages
        that compute passes."""
        target = self.target
        engines = [model.engine for model in (target, *self.drafters.values())]
        return {
            "device": target.placement, "dtype": target.precision, "attention": target.attention,
            "engine": target.engine, "packages": computing_packages(engines),
        }  # fmt: skip

    def identity(self) -> dict[str, object]:
        """Returns the parts of a run's identity about its models, other than their names and revisions."""
        return {} if self.target.pass_width is None else {"pass_width": self.target.pass_width}

    def log_into(self, folder: Path) -> None:
        """Makes servers log into the run's folder. Models in this process have no logs."""

    def pair(self, method: MethodSpec) -> ModelPair:
        """Returns the models of one method."""
        own = self._of([method])
        return ModelPair(self.target, own.pop(method.name, None), own, own.pop(inner_name(method), None))

    def decoder(self, method: MethodSpec, sampling: Sampling) -> Decoder:
        """Returns the decoder of a method. Raises ConfigError if the models do not fit it."""
        return build_decoder(method, self.pair(method), sampling)

    def _of(self, methods: Sequence[MethodSpec]) -> dict[str, CausalLM]:
        """Returns the draft models of methods, and those that draft for these, by their names in `drafters`."""
        names = [name for part in parts(methods) for name in (part.name, inner_name(part))]
        return {name: self.drafters[name] for name in names if name in self.drafters}

    def context_limit(self, methods: Sequence[MethodSpec]) -> int | None:
        """Returns the shortest context in tokens, which limits all methods alike; None if no model has a limit."""
        model = self.limiting_model(methods)
        return None if model is None else model.context_limit

    def limiting_model(self, methods: Sequence[MethodSpec]) -> CausalLM | None:
        """Returns the model whose context limits all methods alike: the shortest one, of equal ones the target's. A
        drafter behind a vocabulary bridge is left out, since its positions differ, and so is one that `pauses`: at the
        end of its context it stops drafting, and the generation continues."""
        drafting = [part for part in parts(methods) if self._of([part])]
        limiting = [part for part in drafting if not uses_bridge(part) and not pauses(part)]
        models = [self.target, *self._of(limiting).values()]
        return min(
            (each for each in models if each.context_limit), key=lambda each: each.context_limit or 0, default=None
        )

    def budgets(self, methods: Sequence[MethodSpec], num_new_tokens: int) -> tuple[PromptBudget, ...]:
        """Returns the maximum prompt lengths that leave room for the answer in every model's context. A prompt may have
        at least half of the context. Drafters that read the target's ids need no budget of their own; those behind a
        vocabulary bridge and those that decode alone have budgets in their own tokens."""
        common = self.context_limit(methods)
        readers: list[tuple[CausalLM, int | None, CausalLM | None]] = [(self.target, common, None)]
        for part in parts(methods):
            drafter = self.drafters.get(part.name)
            if drafter is not None and uses_bridge(part) and not pauses(part):
                readers.append((drafter, drafter.context_limit, self.target))
            elif drafter is not None and part.decodes_with != "target":
                readers.append((drafter, common, None))
        budgets = [
            PromptBudget(model, max(limit - num_new_tokens, limit // 2), translated)
            for model, limit, translated in readers if limit
        ]  # fmt: skip
        return tuple({(id(b.model), id(b.translated)): b for b in budgets}.values())


def set_template_options(
    model: TextModel, chat: str, args: Mapping[str, object], day: date | None
) -> None:  # fmt: skip
    """Sets the variables and the date of a model's chat template. Raises ConfigError if they are given but have no
    effect."""
    template = model.chat_template
    template.args, template.date = args, day
    given = [f"--chat-template-args {name}" for name in template.args]
    given += [] if template.date is None else [f"--template-date {template.date}"]
    if given and not uses_chat(model, chat):
        why = "--chat never" if template.exists else f"model '{model.name}' has no chat template"
        raise ConfigError(f"{given[0]}: has no effect, since {why}: leave the option out")
    if given:
        template.check_args()


def engine_of(target: CausalLM, drafters: Iterable[CausalLM]) -> RowEngine:
    """Returns the engine of a target and its drafters, which may have another: eager if theirs cannot be recorded or
    compiled, and llama.cpp, or any but it, if only one of the two is a GGUF file."""
    others = {drafter.engine for drafter in drafters} - {target.engine}
    if "llama.cpp" in others:
        return f"{target.engine} target, llama.cpp drafter"
    return f"{target.engine} target" if others else target.engine


def uses_bridge(method: MethodSpec) -> bool:
    """Returns whether the drafter drafts behind a bridge between different vocabularies."""
    return method.decodes_with == "target" and not method.same_vocabulary


def has_other_vocabulary(method: MethodSpec, models: LoadedModels) -> bool:
    """Returns whether the drafter decodes alone in another vocabulary than the target's, so that their tokens/s cannot
    be compared."""
    alone = models.drafters.get(method.name) if method.decodes_with == "drafter" else None
    return alone is not None and not share_ids(models.target, alone)


def parts(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """Returns the methods, each method with routes replaced by its routes."""
    return [part for method in methods for part in method.parts]


def load_models(spec: RunSpec, load: Callable[..., CausalLM] | None = None) -> LoadedModels:
    """Returns the models that the methods of a run need, each loaded once and in the target's dtype. All are eager if
    the target's passes cannot be recorded or compiled. `load`: the loader, by default `load_model`."""
    load = load or load_model
    target = load(
        spec.target, revision=spec.target_revision, dtype=spec.dtype, device=spec.device,
        engine="eager" if spec.changes_target and spec.engine == "auto"
        else engine_for(spec.engine, spec.methods, spec.target),
        **gguf_options(spec, spec.target, spec.tokenizer),
        **{name: value for name, default in TARGET_OPTIONS.items() if (value := getattr(spec, name)) != default},
    )  # fmt: skip
    set_template_options(target, spec.chat, spec.chat_template_args, spec.chosen_date)
    if target.why_eager is not None:
        warn_not_static(target, spec.engine, "this run and its rows use --engine eager")
    return LoadedModels(target, load_drafters(spec, spec.methods, target, load))


def check_vocabularies(spec: RunSpec) -> None:
    """Raises ConfigError for a draft model with another vocabulary than its method needs. The tokenizers tell, which
    are read in a fraction of the time that weights take; the models that come with specbench are loaded as fast."""
    methods = tuple(each for each in spec.methods if any(part.same_vocabulary for part in each.parts))
    names = [spec.target, *(name for part in parts(methods) if (name := spec.drafter_of(part)) is not None)]
    if len(set(names)) == 1 or all(name.startswith(EMBEDDED) for name in names) or spec.target.startswith(OBJECT):
        return
    models = load_models(spec.model_copy(update={"methods": methods}), partial(load_model, weights=False))
    for part in parts(methods):
        check_vocabulary(part, models.pair(part))


class ModelCache:
    """Loads the models of runs that follow each other, each model once. A new target first drops all of them, so that
    two pairs are never in memory together."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], CausalLM] = {}
        self._target: list[object] = []  # of the last run

    def __call__(self, spec: RunSpec) -> LoadedModels:
        """Returns the models of a run. Models of the last run that this one does not use are dropped."""
        target: list[object] = [
            spec.target, spec.target_revision, spec.dtype, spec.device, spec.engine, spec.trust_remote_code
        ]  # fmt: skip
        if target != self._target:
            self.drop()
        self._target, before, self._held = target, self._held, {}

        def load(name: str, **options: Any) -> CausalLM:
            key = (name, *sorted(options.items()))
            if key not in self._held:
                self._held[key] = before[key] if key in before else load_model(name, **options)
            return self._held[key]

        return load_models(spec, load)

    def drop(self) -> None:
        """Frees the memory of all models. The next run frees it again, since other code may load models meanwhile."""
        self._held, self._target = {}, []
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def engine_for(engine: EngineName, methods: Sequence[MethodSpec], target: str) -> EngineName:
    """Returns the engine for a run: replaces auto by eager if the code of a method runs its own passes, unless the
    target is a GGUF file, of which eager passes would be those of another model."""
    has_own = engine == "auto" and any(part.decoder is not None for part in parts(methods))
    return "eager" if has_own and not is_gguf(target) else engine


def computing_packages(engines: Iterable[str]) -> tuple[str, ...]:
    """Returns the packages other than torch that compute passes of engines, such as "llama.cpp target"."""
    return (LLAMA_CPP,) if any("llama.cpp" in engine for engine in engines) else ()


def gguf_options(
    spec: RunSpec | RunOptions, name: str, tokenizer: str | None = None, *, is_drafter: bool = False
) -> dict[str, Any]:
    """Returns the option of `load_model` by which a GGUF model is loaded; none for others."""
    if not is_gguf(name):
        return {}
    option: Any = "--drafter-tokenizer" if is_drafter else "--tokenizer"
    return {"gguf": GgufOptions(tokenizer, spec.gpu_layers, spec.cache_dtype, "options", option)}


def drafter_engine(engine: EngineName, target: CausalLM, name: str) -> EngineName:
    """Returns the engine of a drafter: the target's, unless only one of both is a GGUF file and the engine of the run
    leaves theirs open."""
    if target.engine == "llama.cpp" and engine not in ("auto", "llama.cpp"):  # of a target without its weights
        return engine
    if target.engine == "llama.cpp" or (engine == "auto" and is_gguf(name)):
        return "auto" if is_gguf(name) else "eager"
    return target.engine


def load_drafters(
    spec: RunSpec, methods: Sequence[MethodSpec], target: CausalLM, load: Callable[..., CausalLM] = load_model
) -> dict[str, CausalLM]:
    """Returns the draft models by the name of the method or route. Raises ConfigError, with the key that named the
    checkpoint."""
    dtype = target.dtype if spec.dtype == "auto" and target.engine != "llama.cpp" else spec.dtype
    device = str(target.device) if target.name.startswith(OBJECT) else spec.device
    loaded: dict[str, CausalLM] = {}
    by_part: dict[str, CausalLM] = {}
    for part in parts(methods):
        name = spec.drafter_of(part) if part.needs_drafter else None
        if name is None:
            continue
        revision = spec.drafter_revision if name == spec.drafter else None
        if name not in loaded:
            try:
                loaded[name] = load(
                    name, revision=revision, dtype=dtype, device=device,
                    engine=drafter_engine(spec.engine, target, name), trust_remote_code=spec.trust_remote_code,
                    **gguf_options(
                        spec, name, spec.drafter_tokenizer if name == spec.drafter else None, is_drafter=True
                    ),
                )  # fmt: skip
            except ConfigError as error:
                if own_drafter(part, spec.target) is None:
                    raise
                method = part.name.partition("/")[0]
                key = checkpoint_key(part.name)
                raise ConfigError(f"method '{method}': {key} = '{part.checkpoint}': {error}") from error
            if name.startswith(OBJECT) and loaded[name].device != target.device:
                raise ConfigError(
                    f"model '{name}' is on {loaded[name].device}, and the target on {target.device}: move it there"
                )
            # llama.cpp's logits are in the memory of the host. Models without weights, on `meta`, tell no device.
            if "meta" not in (kinds := {loaded[name].device.type, target.device.type}) and len(kinds) > 1:
                raise ConfigError(
                    f"drafter '{name}' gives logits on {loaded[name].device}, and target '{target.name}' on "
                    f"{target.device}: take --device cpu"
                )
            template = loaded[name].chat_template
            template.args, template.date = spec.chat_template_args, target.chat_template.date
        by_part[part.name] = loaded[name]
    for part in parts(methods):  # the models that draft for draft models
        if (inner := part.inner_checkpoint) is None:
            continue
        try:
            if inner not in loaded:
                loaded[inner] = load(
                    inner, revision=None, dtype=dtype, device=device,
                    engine=drafter_engine(spec.engine, target, inner), trust_remote_code=spec.trust_remote_code,
                    **gguf_options(spec, inner),
                )  # fmt: skip
            check_equal(by_part.get(part.name, target), loaded[inner])
        except ConfigError as error:
            method = part.name.partition("/")[0]
            raise ConfigError(f"method '{method}': drafter.inner.checkpoint = '{inner}': {error}") from error
        by_part[inner_name(part)] = loaded[inner]
    for drafter in {id(model): model for model in by_part.values() if model.why_eager is not None}.values():
        names = ", ".join(dict.fromkeys(name.partition("/")[0] for name, model in by_part.items() if model is drafter))
        warn_not_static(
            drafter,
            target.engine,
            f"it drafts eagerly, and rows of {names} say engine '{target.engine} target': they cannot be compared with "
            "rows of another engine",
        )
    return by_part


def choose_products(models: LoadedModels, recorded: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each model of `--engine auto` whose products are packed, with the rates that a probe gave.
    Makes them plain if torch's own are faster: both have the same bits, up to those of CPUs without bfloat16.
    `recorded`: the choice of the commands before, by model, which then decides."""
    chosen = dict(recorded)
    for model in packable(models):
        if products_of(model.model) != "packed":
            continue
        why = "as before in this folder"
        if model.name not in chosen and (found := packing_pays(model.model)) is not None:
            pays, rates = found
            chosen[model.name], why = "packed" if pays else "plain", f"{rates} in a probe"
        if chosen.get(model.name) == "plain":
            unpack(model.model)
        kind = "torch's own products: packed ones" if chosen.get(model.name) == "plain" else "packed products"
        yield f"--engine auto: eager passes of {model.name} with {kind} ({why})"


def products_by_model(models: LoadedModels) -> dict[str, str]:
    """Returns how the models multiply on a CPU, by name; those without packed products are left out."""
    found = {model.name: products_of(model.model) for model in packable(models)}
    return {name: kind for name, kind in found.items() if kind is not None}


def packable(models: LoadedModels) -> list[CausalLM]:
    """Returns the models with eager or compiled passes of unquantized weights, whose products may be packed."""
    return [
        model for model in dict.fromkeys((models.target, *models.drafters.values()))
        if isinstance(model, CausalLM) and model.engine in ("eager", "compiled") and model.quantization == "none"
    ]  # fmt: skip


def warn_not_static(model: CausalLM, engine: EngineName, effect: str) -> None:
    """Warns that the passes of a model cannot be recorded or compiled. `effect`: what follows from that."""
    verb = VERBS.get(engine, "recorded")
    message = f"--engine {engine}: model '{model.name}' cannot be {verb} ({model.why_eager}): {effect}"
    warnings.warn(message, UserWarning, stacklevel=1)


def training_prompts(spec: RunSpec, method: MethodSpec) -> set[str]:
    """Returns the digests of the prompts that a method's drafters were trained on; none if no training record lists
    prompts. The same question in another layout has another digest and is not detected."""
    digests: set[str] = set()
    for part in method.parts:
        options = part.drafter.options
        folder = options.get("path") or options.get("corpus") or (spec.drafter_of(part) if part.needs_drafter else None)
        if folder:
            with suppress(ConfigError, KeyError, TypeError, AttributeError):  # no record that can be read
                data = bounded.read_json(Path(folder) / TRAINING_RECORD, "train it again", strict=False)["data"]
                digests |= set(data.get("prompts") or ())
    return digests
