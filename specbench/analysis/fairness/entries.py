"""The drafters that are compared: those of the runs' methods, and others by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.analysis.fairness.forced import Forecaster, ModelForecaster, NgramForecaster
from specbench.analysis.fairness.runs import WHOLE, Drafting, drafters_of
from specbench.core.errors import ConfigError
from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges.token_level import shared
from specbench.decoding.drafters.ngram import ngram_drafter
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.results.recorded_prompts import ModelLoader
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.records import Record


@dataclass(frozen=True)
class Entry:
    """A drafter as it is compared. `run`, `method`: where it was measured; None for one that is only teacher-forced.
    `forecasters`: its distributions, by route; empty where one of them has none over the target's tokens, for the
    reason in `problem`. `models`: what had to be loaded."""

    label: str
    run: RecordedRun | None
    method: str | None
    forecasters: Mapping[str, Forecaster]
    models: tuple[CausalLM, ...] = ()
    problem: str | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows of the method in its run."""
        return self.run.rows_of(self.method) if self.run is not None and self.method is not None else []

    @property
    def model(self) -> CausalLM | None:
        """The draft model of a method that has one and no other."""
        return self.models[0] if len(self.models) == 1 and set(self.forecasters) <= {WHOLE} else None

    def route(self, record: Record) -> str:
        """The route that a record took."""
        return str(record["methods"][self.method].get("route") or WHOLE) if self.method is not None else WHOLE

    def num_draft_tokens(self, route: str) -> int:
        """γ of a route, as the rows have it. Raises ConfigError where they do not."""
        row = self.rows[0]
        if route == WHOLE:
            return row.num_draft_tokens
        own: int | None = row.options["routes"][route].get("num_draft_tokens")
        if own is None:
            assert self.run is not None
            raise ConfigError(
                f"run '{self.run.path}': the rows of '{self.method}' have no options.routes.{route}.num_draft_tokens, "
                "which the bounds need: measure again"
            )
        return own


def make_entries(
    chosen: Sequence[tuple[RecordedRun, Sequence[str]]], others: Sequence[str], loader: ModelLoader
) -> list[Entry]:
    """The drafters of the runs' methods, then `others` by name, each with its label (`labels`).

    Raises ConfigError for a model that cannot be loaded, and for one of `others` with another vocabulary."""
    target_row = chosen[0][0].rows[0]
    target = loader.load(target_row.target, target_row.target_revision)
    entries = []
    for (run, method), label in labels(chosen).items():
        entries.append(_measured(label, run_of(chosen, run), method, target, loader))
    for name in others:
        model = loader.load(name)
        problem = mismatch(target, model)
        if problem is not None:
            raise ConfigError(f"--drafter {name}: {problem}")
        entries.append(Entry(name, None, None, {WHOLE: ModelForecaster(model)}, (model,)))
    return entries


def run_of(chosen: Sequence[tuple[RecordedRun, Sequence[str]]], path: Path) -> RecordedRun:
    return next(run for run, _ in chosen if run.path == path)


def labels(chosen: Sequence[tuple[RecordedRun, Sequence[str]]]) -> dict[tuple[Path, str], str]:
    """What each method of each run is called in tables: its name; where several runs have it, RUN:METHOD with the name
    of the run's folder, or the whole path where that is not enough either."""
    pairs = list(dict.fromkeys((run.path, method) for run, methods in chosen for method in methods))
    methods = [method for _, method in pairs]
    names = {path: path.resolve().name for path, _ in pairs}

    def label(path: Path, method: str) -> str:
        if methods.count(method) == 1:
            return method
        return f"{names[path] if [*names.values()].count(names[path]) == 1 else path}:{method}"

    return {pair: label(*pair) for pair in pairs}


def _measured(label: str, run: RecordedRun, method: str, target: CausalLM, loader: ModelLoader) -> Entry:
    found: dict[str, Forecaster] = {}
    models: list[CausalLM] = []
    problems = []
    for route, drafter in drafters_of(run, method).items():
        forecaster, model, problem = _forecaster(drafter, target, loader)
        if forecaster is not None:
            found[route] = forecaster
        if model is not None and all(model is not other for other in models):
            models.append(model)
        problems += [problem] if problem else []
    problem = problems[0] if problems else None
    return Entry(label, run, method, {} if problem else found, tuple(models), problem)


def _forecaster(
    drafter: Drafting, target: CausalLM, loader: ModelLoader
) -> tuple[Forecaster | None, CausalLM | None, str | None]:
    """The distributions of a drafter, the model that had to be loaded for them, and why there are none."""
    if drafter.kind == "model" and drafter.name is not None:
        model = loader.load(drafter.name, drafter.revision)
        problem = mismatch(target, model)
        return (None if problem else ModelForecaster(model)), model, problem
    if drafter.kind == "ngram":
        return _ngram(drafter, target), None, None
    return None, None, f"drafter '{drafter.kind}' has no distribution of its next token"


def _ngram(drafter: Drafting, target: CausalLM) -> Forecaster:
    made = ngram_drafter(ModelPair(target), Sampling(1.0), path=drafter.options.get("path"))
    if made.revision != drafter.revision:
        raise ConfigError(f"n-gram model '{drafter.name}' is not what the run measured: measure again")
    return NgramForecaster(made.model, target.vocab_size, made.name, target.device)


def mismatch(target: CausalLM, drafter: CausalLM) -> str | None:
    """Why the drafter's distributions are not over the target's tokens; None where they are."""
    try:
        shared(ModelPair(target, drafter), Sampling(1.0), lambda model: NoDrafter())
    except VocabularyMismatch as error:
        return str(error)
    return None
