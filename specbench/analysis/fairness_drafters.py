"""The compared drafters, and their distributions at the same positions of the same texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specbench.analysis.fairness_runs import WHOLE, RecordedDrafter, RunMethods, drafters_of
from specbench.analysis.group_statistics import Array
from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.decoding.bridges import VocabularyMismatch, shared
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.drafters.ngram import ngram_drafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.ngram import NgramModel
from specbench.results.recorded_prompts import ModelLoader
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.records import Key, Record
from specbench.training.passes import Batch, Sample, learnt_logits

NUM_COLUMNS = 7  # in the result of `position_numbers`
CROSS_ENTROPY, KL, TV, ACCEPTANCE, TARGET_MISFIT, DRAFT_MISFIT, EXCLUDED = range(NUM_COLUMNS)

TINY = torch.finfo(torch.float32).tiny
CHUNK = 1 << 22  # the most probabilities that are converted to float64 at once


def position_numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of each position, float64 [num_positions, NUM_COLUMNS], on the CPU.

    `target_logits`, `draft_logits`: [num_positions, vocab]; their softmax at temperature 1, without truncation, is p
    and q. `tokens`: [num_positions], the tokens of the text. Columns: H(p, q) and KL(p‖q) in nats, TV = ½ Σ |p − q|,
    α = Σ min(p, q), 1 − p(token), 1 − q(token), and the mass of p on tokens that q excludes. The probability of an
    excluded token is taken as the smallest one in float32, so that D and KL are finite; theorem 1 holds nevertheless.
    Sums are computed in float64, so that the theorems can be tested to 1e-9. arXiv:2510.02128, equations 5, 7 and 10.
    """
    size = max(1, CHUNK // target_logits.shape[-1])
    parts = zip(target_logits.split(size), draft_logits.split(size), tokens.split(size), strict=True)
    return torch.cat([_numbers(*part) for part in parts])


def _numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    p, log_p = _distribution(target_logits)
    q, log_q = _distribution(draft_logits)
    # No term p ln(p/q) − p + q is below 0, so that rounding cannot make the divergence negative.
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
    """Returns probabilities [n, vocab] and their logarithms, in which a probability of 0 is TINY."""
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # mps has no float64
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    return log_probs.exp(), log_probs.clamp_min(torch.tensor(TINY, dtype=torch.float64).log().item())


MAX_LOGITS = 1 << 27  # of one batch of texts: half a gigabyte in float32


class ModelForecaster:
    """The next-token distributions of a causal language model, without its cache."""

    def __init__(self, model: CausalLM) -> None:
        self.name, self.revision = model.name, model.revision
        self._model = model

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Returns the logits at every scored position, [num_learnt, vocab], text by text."""
        return learnt_logits(self._model.model, batch, self._model.vocab_size)


class NgramForecaster:
    """The next-token distributions of an n-gram model. Logits are the logarithms of its counts; −∞ for a count of 0."""

    def __init__(self, model: NgramModel, vocab_size: int, name: str, device: torch.device) -> None:
        self.name = name
        self.revision: str | None = model.digest
        self._model, self._vocab_size, self._device = model, vocab_size, device

    def logits(self, batch: Batch) -> torch.Tensor:
        """Returns the logits at every scored position, [num_learnt, vocab], text by text."""
        rows = torch.full((batch.num_learnt, self._vocab_size), -torch.inf)
        ends = ((text.ids, end) for text in batch.samples for end in range(text.num_given, len(text.ids)))
        for row, (ids, end) in zip(rows, ends, strict=True):
            token_ids, counts = self._model.continuations(list(ids[max(0, end - self._model.order + 1) : end]))
            row[torch.as_tensor(token_ids.astype("int64"))] = torch.as_tensor(counts.astype("float32")).log()
        return rows.to(self._device)


Forecaster = ModelForecaster | NgramForecaster


def batches(texts: Sequence[Sample], vocab_size: int) -> list[list[int]]:
    """Returns the indices of the texts in batches of similar length, with at most MAX_LOGITS logits or a single text
    each."""
    made: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n].ids)):
        if made and (len(made[-1]) + 1) * len(texts[number].ids) * vocab_size <= MAX_LOGITS:
            made[-1].append(number)
        else:
            made.append([number])
    return made


Numbers = dict[Key, Array]  # by text, the numbers of its positions [num_positions, NUM_COLUMNS]


@torch.inference_mode()
def forced_numbers(
    target: Forecaster,
    drafters: Sequence[Forecaster],
    texts: Mapping[Key, Sample],
    vocab_size: int,
    progress: Say = say_nothing,
) -> list[Numbers]:
    """Returns the numbers of each drafter at every scored position of the texts. `progress` gets lines with the number
    of finished texts.

    The target reads each text once for all drafters.
    """
    keys, found = list(texts), [Numbers() for _ in drafters]
    num_done = 0
    for places in batches([texts[key] for key in keys], vocab_size):
        batch = Batch([texts[keys[place]] for place in places])
        target_logits = target.logits(batch)
        ends = np.cumsum([text.num_learnt for text in batch.samples])[:-1]
        for drafter, numbers in zip(drafters, found, strict=True):
            logits = drafter.logits(batch).to(target_logits.device)
            device = "cpu" if logits.device.type == "mps" else logits.device
            made = position_numbers(target_logits, logits, batch.learnt_ids.to(device)).numpy()
            numbers |= {keys[place]: part for place, part in zip(places, np.split(made, ends), strict=True)}
        num_done += len(places)
        progress(f"{num_done} of {len(texts)} texts")
    return found


@dataclass(frozen=True)
class DrafterEntry:
    """A drafter of the comparison. `run`, `method`: where it was measured; None if it is only teacher-forced.
    `forecasters`: its distributions by route; empty if a route has none over the target's tokens, for the reason in
    `problem`. `models`: the models that were loaded for it."""

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
        """Returns γ of a route from the rows. Raises ConfigError if they lack it."""
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


def make_entries(methods: RunMethods, others: Sequence[str], loader: ModelLoader) -> list[DrafterEntry]:
    """Returns the drafters of the runs' methods, then the models that `others` names.

    Raises ConfigError for a model that cannot be loaded, and for a model of `others` with another vocabulary.
    """
    target_row = methods[0][0].rows[0]
    target = loader.load(target_row.target, target_row.target_revision)
    labels = make_labels(methods)
    entries = [
        _measured_entry(labels[run.path, method], run, method, target, loader)
        for run, run_methods in methods for method in run_methods
    ]  # fmt: skip
    for name in others:
        model = loader.load(name)
        problem = mismatch(target, model)
        if problem is not None:
            raise ConfigError(f"--drafter {name}: {problem}")
        entries.append(DrafterEntry(name, None, None, {WHOLE: ModelForecaster(model)}, (model,)))
    return entries


def make_labels(methods: RunMethods) -> dict[tuple[Path, str], str]:
    """Returns the label of each method of each run: its name; if several runs have it, RUN:METHOD with the name of the
    run's folder, or with the whole path if several folders have that name."""
    counts = Counter(method for _, of_run in methods for method in of_run)
    names = {run.path: run.path.resolve().name for run, _ in methods}
    folders = Counter(names.values())

    def label(path: Path, method: str) -> str:
        if counts[method] == 1:
            return method
        return f"{names[path] if folders[names[path]] == 1 else path}:{method}"

    return {(run.path, method): label(run.path, method) for run, of_run in methods for method in of_run}


def _measured_entry(label: str, run: RecordedRun, method: str, target: CausalLM, loader: ModelLoader) -> DrafterEntry:
    forecasters: dict[str, Forecaster] = {}
    models: dict[int, CausalLM] = {}
    problem: str | None = None
    for route, drafter in drafters_of(run, method).items():
        if drafter.kind == "model" and drafter.name is not None:
            model = loader.load(drafter.name, drafter.revision)
            models[id(model)], forecasters[route] = model, ModelForecaster(model)
            problem = problem or mismatch(target, model)
        elif drafter.kind == "ngram":
            forecasters[route] = _ngram(drafter, target)
        else:
            problem = problem or f"drafter '{drafter.kind}' has no distribution of its next token"
    return DrafterEntry(label, run, method, {} if problem else forecasters, tuple(models.values()), problem)


def _ngram(drafter: RecordedDrafter, target: CausalLM) -> Forecaster:
    made = ngram_drafter(ModelPair(target), Sampling(1.0), path=drafter.options.get("path"))
    if made.revision != drafter.revision:
        raise ConfigError(f"n-gram model '{drafter.name}' is not what the run measured: measure again")
    return NgramForecaster(made.ngram, target.vocab_size, made.name, target.device)


def mismatch(target: CausalLM, drafter: CausalLM) -> str | None:
    """Returns the reason why the drafter's distributions are not over the target's tokens; None if they are."""
    try:
        shared(ModelPair(target, drafter), Sampling(1.0), lambda model: NoDrafter())
    except VocabularyMismatch as error:
        return str(error)
    return None
