"""The models of the last run, kept for the next one: weights are loaded once for all cells of a pair."""

import gc
import time
from typing import Any

import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.running.models import Models, load_models
from specbench.specs import RunSpec


class KeptModels:
    """Models by what they were loaded with. Another target drops them all before it is loaded, so that two pairs are
    never in memory together. `load_seconds`: of the last run."""

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], CausalLM] = {}
        self._used: set[tuple[Any, ...]] = set()
        self.load_seconds = 0.0

    def __call__(self, spec: RunSpec) -> Models:
        """The models of a run, those of the last one where it shares them; its others are dropped."""
        started, self.load_seconds = time.monotonic(), 0.0
        self._used = set()
        target = _key(
            spec.target, revision=spec.target_revision, dtype=spec.dtype, device=spec.device, engine=spec.engine
        )
        if target not in self._held:
            self.drop()
        models = load_models(spec, self._load)
        for key in self._held.keys() - self._used:
            del self._held[key]
        self.load_seconds = time.monotonic() - started
        return models

    def _load(self, name: str, **options: Any) -> CausalLM:
        key = _key(name, **options)
        self._used.add(key)
        if key not in self._held:
            self._held[key] = load_model(name, **options)
        return self._held[key]

    def drop(self) -> None:
        """Free the memory of all models."""
        self._held.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _key(name: str, **options: Any) -> tuple[Any, ...]:
    return (name, *sorted(options.items()))
