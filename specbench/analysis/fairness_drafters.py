"""The drafters that are compared, and their distributions at the same positions of the same texts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch

from specbench.analysis.fairness_runs import WHOLE, Drafting, drafters_of
from specbench.analysis.group_statistics import Array
from specbench.core.errors import ConfigError
from specbench.decoding.bridges import VocabularyMismatch
from specbench.decoding.bridges.token_level import shared
from specbench.decoding.drafters.ngram import ngram_drafter
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.ngram import NgramModel
from specbench.results.recorded_prompts import ModelLoader
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.records import Key, Record
from specbench.training.passes import Batch, Sample, learnt_logits

# The columns of what `position_numbers` gives.
CROSS_ENTROPY: Final = 0
KL: Final = 1
TV: Final = 2
ACCEPTANCE: Final = 3
TARGET_MISFIT: Final = 4
DRAFT_MISFIT: Final = 5
EXCLUDED: Final = 6
NUM_COLUMNS: Final = 7

TINY = torch.finfo(torch.float32).tiny
CHUNK = 1 << 22  # probabilities that are in float64 at once


def position_numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of each position, float64 [num_positions, NUM_COLUMNS], on the CPU.

    `target_logits`, `draft_logits`: [num_positions, vocab], whose softmax at temperature 1, untruncated, is p and q;
    `tokens`: [num_positions], the text's own. Columns: H(p, q) and KL(p‖q) in nats, TV = ½ Σ |p − q|, α = Σ min(p, q),
    1 − p(token), 1 − q(token), and the mass of p on tokens that q excludes. These count as the smallest probability
    that float32 holds, so that D and KL stay finite; to theorem 1 that changes nothing. Sums are made in float64, so
    that the theorems can be tested to 1e-9. arXiv:2510.02128, equations 5, 7 and 10.
    """
    size = max(1, CHUNK // target_logits.shape[-1])
    parts = zip(target_logits.split(size), draft_logits.split(size), tokens.split(size), strict=True)
    return torch.cat([_numbers(*part) for part in parts])


def _numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    p, log_p = _distribution(target_logits)
    q, log_q = _distribution(draft_logits)
    # Summed term by term as p ln(p/q) − p + q, none of which is below 0: rounding cannot make the divergence negative.
    kl = (p * (log_p - log_q) - p + q.clamp_min(TINY)).clamp_min(0.0).sum(-1)
    entropy = -(p * log_p).sum(-1)
    columns = [
        entropy + kl,
        kl,
        (p - q).abs().sum(-1) / 2,
        torch.minimum(p, q).sum(-1),
        1.0 - p.gather(1, tokens[:, None])[:, 0],
        1.0 - q.gather(1, tokens[:, None])[:, 0],
        (p * (q < TINY)).sum(-1),
    ]
    return torch.stack(columns, dim=1).cpu()


def _distribution(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [n, vocab] and their logarithms, with zero as TINY."""
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # mps has no float64
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    return log_probs.exp(), log_probs.clamp_min(torch.tensor(TINY, dtype=torch.float64).log().item())


MAX_LOGITS = 1 << 27  # of one batch of texts: half a gigabyte in float32


class Forecaster(Protocol):
    """Gives the next-token distribution at every learnt position of texts; `context_limit` as CausalLM's."""

    name: str
    revision: str | None
    context_limit: int | None

    def logits(self, batch: Batch) -> torch.Tensor:
        """[num_learnt, vocab], the texts one below the other."""


class ModelForecaster:
    """A causal language model, without its cache."""

    def __init__(self, model: CausalLM) -> None:
        self.name, self.revision, self.context_limit = model.name, model.revision, model.context_limit
        self._model = model

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        return learnt_logits(self._model.model, batch, self._model.vocab_size)


class NgramForecaster:
    """An n-gram model: the logarithms of its counts; what never followed has −∞."""

    def __init__(self, model: NgramModel, vocab_size: int, name: str, device: torch.device) -> None:
        self.name = name
        self.revision: str | None = model.digest
        self.context_limit: int | None = None
        self._model, self._vocab_size, self._device = model, vocab_size, device

    def logits(self, batch: Batch) -> torch.Tensor:
        rows = [self._row(context) for text in batch.samples for context in self._contexts(text)]
        return torch.stack(rows).to(self._device)

    def _contexts(self, text: Sample) -> list[list[int]]:
        num_before = self._model.order - 1
        return [list(text.ids[max(0, end - num_before) : end]) for end in range(text.num_given, len(text.ids))]

    def _row(self, context: list[int]) -> torch.Tensor:
        token_ids, counts = self._model.continuations(context)
        row = torch.full((self._vocab_size,), -torch.inf)
        row[torch.as_tensor(token_ids.astype("int64"))] = torch.as_tensor(counts.astype("float32")).log()
        return row


def batches(texts: Sequence[Sample], vocab_size: int) -> list[list[int]]:
    """Returns the numbers of the texts in batches of similar length, each with at most MAX_LOGITS logits (or a single
    text)."""
    made: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n].ids)):
        together = [*made[-1], number] if made else [number]
        longest = len(texts[number].ids)
        if made and len(together) * longest * vocab_size <= MAX_LOGITS:
            made[-1].append(number)
        else:
            made.append([number])
    return made


Numbers = dict[Key, Array]  # of each text its positions' numbers [num_positions, positions.NUM_COLUMNS]


@torch.inference_mode()
def forced_numbers(
    target: Forecaster,
    drafters: Sequence[Forecaster],
    texts: Mapping[Key, Sample],
    vocab_size: int,
    report: Callable[[int], None] = lambda num_texts: None,
) -> list[Numbers]:
    """Returns the numbers of each drafter at every learnt position of the texts; `report` gets the number of texts
    done.

    The target reads each text once, whatever the number of drafters.
    """
    keys, found = list(texts), [Numbers() for _ in drafters]
    num_done = 0
    for chosen in batches([texts[key] for key in keys], vocab_size):
        batch = Batch([texts[keys[number]] for number in chosen])
        target_logits = target.logits(batch)
        ends = np.cumsum([text.num_learnt for text in batch.samples])[:-1]
        for drafter, numbers in zip(drafters, found, strict=True):
            logits = drafter.logits(batch).to(target_logits.device)
            place = "cpu" if logits.device.type == "mps" else logits.device
            made = position_numbers(target_logits, logits, batch.learnt_ids.to(place)).numpy()
            numbers |= {keys[number]: part for number, part in zip(chosen, np.split(made, ends), strict=True)}
        num_done += len(chosen)
        report(num_done)
    return found


MARK = "*"
LEAST = 1e-6  # of the target's mass: adds less than 1e-4 nats
MOST_NAMED = 12  # groups


def marked(text: str, *masses: float) -> str:
    """Returns a number (with its interval), with the mark where the excluded `masses` change its digits."""
    return text + MARK * any(mass >= LEAST for mass in masses)


def exclusion_notes(masses: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the lines of a caption that explain the mark; none where nothing is marked. `masses`: the target's mean
    mass on excluded tokens, by drafter and group."""
    seen = {
        drafter: {group: mass for group, mass in found.items() if mass >= LEAST} for drafter, found in masses.items()
    }
    lines = [f"{drafter} excludes {_listed(found)}" for drafter, found in seen.items() if found]
    meaning = (
        f"{MARK} counts tokens to which the drafter gives no probability as {TINY:.1e}, {-math.log(TINY) / 100:.2f} "
        "nats for each % of the target's mass on them: a convention; exactly, D and KL are infinite"
    )
    return [meaning, *lines] if lines else []


def _listed(masses: Mapping[str, float]) -> str:
    if len(masses) > MOST_NAMED:
        return f"{_percent(min(masses.values()))} to {_percent(max(masses.values()))} in {len(masses)} groups"
    return ", ".join(f"{_percent(mass)} in {group}" for group, mass in masses.items())


def _percent(mass: float) -> str:
    return f"{100 * mass:.2g} %"


@dataclass(frozen=True)
class DrafterEntry:
    """A drafter of the comparison. `run`, `method`: where it was measured; None for one that is only teacher-forced.
    `forecasters`: its distributions, by route; empty where one of them has none over the target's tokens, for the
    reason in `problem`. `models`: those that were loaded for it."""

    label: str
    run: RecordedRun | None
    method: str | None
    forecasters: Mapping[str, Forecaster]
    models: tuple[CausalLM, ...] = ()
    problem: str | None = None

    @property
    def rows(self) -> list[Row]:
        """Returns the rows of the method in its run."""
        return self.run.rows_of(self.method) if self.run is not None and self.method is not None else []

    @property
    def model(self) -> CausalLM | None:
        """Returns the draft model of a method that has exactly one."""
        return self.models[0] if len(self.models) == 1 and set(self.forecasters) <= {WHOLE} else None

    def route(self, record: Record) -> str:
        """Returns the route that a record took."""
        return str(record["methods"][self.method].get("route") or WHOLE) if self.method is not None else WHOLE

    def num_draft_tokens(self, route: str) -> int:
        """Returns γ of a route, as the rows have it. Raises ConfigError where they lack it."""
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
) -> list[DrafterEntry]:
    """Returns the drafters of the runs' methods, then `others` by name, each with its label (`labels`).

    Raises ConfigError for a model that cannot be loaded, and for one of `others` with another vocabulary."""
    target_row = chosen[0][0].rows[0]
    target = loader.load(target_row.target, target_row.target_revision)
    entries = []
    for (run, method), label in labels(chosen).items():
        entries.append(_measured_entry(label, run_of(chosen, run), method, target, loader))
    for name in others:
        model = loader.load(name)
        problem = mismatch(target, model)
        if problem is not None:
            raise ConfigError(f"--drafter {name}: {problem}")
        entries.append(DrafterEntry(name, None, None, {WHOLE: ModelForecaster(model)}, (model,)))
    return entries


def run_of(chosen: Sequence[tuple[RecordedRun, Sequence[str]]], path: Path) -> RecordedRun:
    return next(run for run, _ in chosen if run.path == path)


def labels(chosen: Sequence[tuple[RecordedRun, Sequence[str]]]) -> dict[tuple[Path, str], str]:
    """Returns the label of each method of each run: its name; where several runs have it, RUN:METHOD with the name of
    the run's folder, or with the whole path where several folders have that name."""
    pairs = list(dict.fromkeys((run.path, method) for run, methods in chosen for method in methods))
    methods = [method for _, method in pairs]
    names = {path: path.resolve().name for path, _ in pairs}

    def label(path: Path, method: str) -> str:
        if methods.count(method) == 1:
            return method
        return f"{names[path] if [*names.values()].count(names[path]) == 1 else path}:{method}"

    return {pair: label(*pair) for pair in pairs}


def _measured_entry(label: str, run: RecordedRun, method: str, target: CausalLM, loader: ModelLoader) -> DrafterEntry:
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
    return DrafterEntry(label, run, method, {} if problem else found, tuple(models), problem)


def _forecaster(
    drafter: Drafting, target: CausalLM, loader: ModelLoader
) -> tuple[Forecaster | None, CausalLM | None, str | None]:
    """Returns the distributions of a drafter, the model that was loaded for them, and the reason where there are
    none."""
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
    """Returns why the drafter's distributions are not over the target's tokens; None where they are."""
    try:
        shared(ModelPair(target, drafter), Sampling(1.0), lambda model: NoDrafter())
    except VocabularyMismatch as error:
        return str(error)
    return None
