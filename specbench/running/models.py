"""The models of a run: one target, and for every method that drafts with a model, its draft model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.models.pair import ModelPair
from specbench.running.prompts import Budget
from specbench.specs import MethodSpec, RunSpec


@dataclass(frozen=True)
class Models:
    """A target, and the draft models by the name of the method; methods that draft without a model have none."""

    target: CausalLM
    drafters: Mapping[str, CausalLM]

    def pair(self, method: MethodSpec) -> ModelPair:
        """The models of one method."""
        return ModelPair(self.target, self.drafters.get(method.name))

    def context_limit(self, methods: Sequence[MethodSpec]) -> int | None:
        """The positions of the shortest context, so that all methods obey the same limit. A drafter with a vocabulary
        of its own counts other positions: where its context ends it drafts no more, and the generation goes on."""
        counted = [self.target, *(self.drafters[m.name] for m in methods if m.name in self.drafters and not bridged(m))]
        limits = [model.context_limit for model in counted if model.context_limit]
        return min(limits) if limits else None

    def budgets(self, methods: Sequence[MethodSpec], num_new_tokens: int) -> tuple[Budget, ...]:
        """The prompts that leave room for the answer in every model's context, and half of it at least for the prompt.
        A drafter that shares the target's tokens reads the target's ids: only one with a vocabulary of its own, and one
        that decodes alone, count their own tokens."""
        common = self.context_limit(methods)
        readers: list[tuple[CausalLM, int | None, CausalLM | None]] = [(self.target, common, None)]
        for method in methods:
            drafter = self.drafters.get(method.name)
            if drafter is not None and bridged(method):
                readers.append((drafter, drafter.context_limit, self.target))
            elif drafter is not None and method.decodes_with != "target":
                readers.append((drafter, common, None))
        budgets = [
            Budget(model, max(limit - num_new_tokens, limit // 2), translated)
            for model, limit, translated in readers if limit
        ]  # fmt: skip
        return tuple({(id(b.model), id(b.translated)): b for b in budgets}.values())


def bridged(method: MethodSpec) -> bool:
    """Whether the drafter's tokens are others than the target's."""
    return method.decodes_with == "target" and not method.same_vocabulary


def load_models(spec: RunSpec) -> Models:
    """The models that the methods of a run ask for, each loaded once, all in the target's dtype."""
    target = load_model(spec.target, revision=spec.target_revision, dtype=spec.dtype, device=spec.device)
    dtype = target.dtype if spec.dtype == "auto" else spec.dtype
    names = {method.name: spec.drafter_of(method) for method in spec.methods if method.needs_drafter}
    loaded = {
        name: load_model(name, revision=spec.drafter_revision, dtype=dtype, device=spec.device)
        for name in {name for name in names.values() if name is not None}
    }
    return Models(target, {method: loaded[name] for method, name in names.items() if name is not None})
