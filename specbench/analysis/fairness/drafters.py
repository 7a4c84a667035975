"""The compared drafters, the records that their runs have in common, and the drafters' distributions at the same
positions of the same texts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import Say
from specbench.decoding.bridges import VocabularyMismatch, check_equal
from specbench.decoding.drafters.ngram import NgramDrafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.corpus_models import NgramModel
from specbench.records.records import Key, Record
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.recorded_prompts import Group, ModelLoader, RecordedPrompt
from specbench.statistics.bootstrap import Array
from specbench.tasks.examples import Example
from specbench.training.passes import Batch, Sample, learnt_logits

WHOLE = ""  # the route of a method without routes
RunMethods = Sequence[tuple[RecordedRun, Sequence[str]]]  # runs, each once, with their methods


@dataclass(frozen=True)
class CommonRecords:
    """Runs of one target, with the groups and records that all of them have."""

    runs: tuple[RecordedRun, ...]
    groups: dict[Group, Row]  # AR's row in the first run
    keys: dict[Group, list[Key]]  # the records that have the same prompt in all runs
    num_left_out: int  # records of the first run that another run lacks

    @property
    def labels(self) -> dict[Group, str]:
        several = len({task for task, _ in self.groups}) > 1
        return {(task, subset): f"{task}/{subset}" if several else subset for task, subset in self.groups}


def common_records(runs: Sequence[RecordedRun], tasks: Sequence[str], subsets: Sequence[str]) -> CommonRecords:
    """Returns the records that runs have in common, of the named tasks and subsets (of all if none are named). Raises
    ConfigError if the runs have several targets, or no prompt in common."""
    targets: dict[tuple[str, str | None], Path] = {}
    for run in runs:
        targets.setdefault((run.rows[0].target, run.rows[0].target_revision), run.path)
    if len(targets) > 1:
        shown = "; ".join(f"{path} has {name} ({revision})" for (name, revision), path in targets.items())
        raise ConfigError(f"runs of several targets cannot be compared ({shown}): give runs of one target")
    shared = set.intersection(*({key[:2] for key in run.records} for run in runs))
    groups = {group: row for row in runs[0].rows_of("ar") if (group := (row.task_name, row.subset)) in shared}
    for option, place, names in (("--task", 0, tasks), ("--subset", 1, subsets)):
        values = {group[place] for group in groups}
        for name in names:
            if name not in values:
                raise ConfigError(f"{option} {name}: the runs have none: {nearest(name, values)}")
        groups = {group: row for group, row in groups.items() if not names or group[place] in names}
    keys: dict[Group, list[Key]] = {group: [] for group in groups}
    num_left_out = 0
    for key, record in runs[0].records.items():
        if key[:2] in groups:
            same = all(key in run.records and run.records[key].prompt == record.prompt for run in runs)
            num_left_out += not same
            keys[key[:2]] += [key] * same
    keys = {group: found for group, found in keys.items() if found}
    if not keys:
        paths = ", ".join(str(run.path) for run in runs)
        raise ConfigError(f"runs {paths}: have no prompt in common: give runs of the same task and subsets")
    return CommonRecords(tuple(runs), {group: groups[group] for group in keys}, keys, num_left_out)


Reference = Literal["continuation", "data"]
REFERENCES: tuple[str, ...] = get_args(Reference)


def texts_of(
    common: CommonRecords, prompts: Mapping[Key, RecordedPrompt], target: CausalLM, reference: Reference,
    context_limit: int | None,
) -> dict[Key, Sample]:  # fmt: skip
    """Returns the text to score for every common record: after its prompt, AR's tokens in the first run, or the row's
    reference. A text has at most `context_limit` tokens with its prompt; texts without a position are left out.

    Raises ConfigError if a group has no position, or no reference text.
    """
    texts: dict[Key, Sample] = {}
    for (task, subset), keys in common.keys.items():
        samples = {}
        for key in keys:
            record = common.runs[0].records[key]
            if reference == "continuation":
                new_ids: list[int] = list(record.methods["ar"].token_ids)
            else:
                new_ids = reference_ids(prompts[key].example, record.turn, target)
                if not new_ids:
                    raise ConfigError(
                        f"--reference data: {task}/{subset} example {record.id} has no reference text: use "
                        "--reference continuation"
                    )
            prompt_ids = prompts[key].prompt_ids
            most = None if context_limit is None else max(len(prompt_ids), context_limit + 1)
            samples[key] = Sample(subset, (*prompt_ids, *new_ids)[:most], len(prompt_ids))
        learnt_texts = {key: text for key, text in samples.items() if text.num_learnt}
        if not learnt_texts:
            raise ConfigError(
                f"{task}/{subset}: no text has a position within the shortest context ({context_limit} tokens): leave "
                "the subset out with --subset, or compare models with a longer context"
            )
        texts |= learnt_texts
    return texts


def reference_ids(example: Example, turn: int, target: CausalLM) -> list[int]:
    """Returns the tokens of an example's reference text, the first of several, after a space if the prompt does not end
    in one; none without a reference."""
    listed = example.references[turn]
    answer = listed[0] if isinstance(listed, list | tuple) and listed else listed
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        return []
    space = "" if example.turns[turn][-1:].isspace() else " "
    ids: list[int] = target.tokenizer(f"{space}{answer}", add_special_tokens=False)["input_ids"]
    return ids


NUM_COLUMNS = 8  # in the result of `position_numbers`
CROSS_ENTROPY, KL, TV, ACCEPTANCE, TARGET_MISFIT, DRAFT_MISFIT, EXCLUDED, TOKEN_LOSS = range(NUM_COLUMNS)

TINY = torch.finfo(torch.float32).tiny
CHUNK = 1 << 22  # the most probabilities that are converted to float64 at once


def position_numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of each position, float64 [num_positions, NUM_COLUMNS], on the CPU.

    `target_logits`, `draft_logits`: [num_positions, vocab]; their softmax at temperature 1, without truncation, is p
    and q. `tokens`: [num_positions], the tokens of the text. Columns: H(p, q) and KL(p‖q) in nats, TV = ½ Σ |p − q|,
    α = Σ min(p, q), 1 − p(token), 1 − q(token), the mass of p on tokens that q excludes, and −ln q(token). The
    probability of an
    excluded token is taken as the smallest one in float32, so that D and KL are finite; theorem 1 holds nevertheless.
    Sums are computed in float64, so that the theorems can be tested to 1e-9. arXiv:2510.02128, equations 5, 7 and 10.
    """
    size = max(1, CHUNK // target_logits.shape[-1])
    chunks = []
    for parts in zip(target_logits.split(size), draft_logits.split(size), tokens.split(size), strict=True):
        (p, log_p), (q, log_q) = map(_distribution, parts[:2])
        chosen = parts[2][:, None]
        # No term p ln(p/q) − p + q is below 0, so that rounding cannot make the divergence negative.
        kl = (p * (log_p - log_q) - p + q.clamp_min(TINY)).clamp_min(0.0).sum(-1)
        columns = [
            -(p * log_p).sum(-1) + kl,
            kl,
            (p - q).abs().sum(-1) / 2,
            torch.minimum(p, q).sum(-1),
            *(1.0 - each.gather(1, chosen)[:, 0] for each in (p, q)),
            (p * (q < TINY)).sum(-1),
            -log_q.gather(1, chosen)[:, 0],
        ]
        chunks.append(torch.stack(columns, dim=1).cpu())
    return torch.cat(chunks)


def _distribution(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # mps has no float64
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    return log_probs.exp(), log_probs.clamp_min(torch.tensor(TINY, dtype=torch.float64).log().item())


MAX_LOGITS = 1 << 27  # of one batch of texts: half a gigabyte in float32


@dataclass(frozen=True)
class Forecaster:
    """The next-token distributions of a drafter or of the target. `logits`: returns those at every scored position of
    a batch, [num_learnt, vocab], text by text."""

    name: str
    revision: str | None
    logits: Callable[[Batch], torch.Tensor]


def model_forecaster(model: CausalLM) -> Forecaster:
    return Forecaster(model.name, model.revision, lambda batch: learnt_logits(model.model, batch, model.vocab_size))


def ngram_forecaster(model: NgramModel, vocab_size: int, name: str, device: torch.device) -> Forecaster:
    """Returns the distributions of an n-gram model. Logits are the logarithms of its counts; −∞ for a count of 0."""

    def logits(batch: Batch) -> torch.Tensor:
        rows = torch.full((batch.num_learnt, vocab_size), -torch.inf)
        ends = ((text.ids, end) for text in batch.samples for end in range(text.num_given, len(text.ids)))
        for row, (ids, end) in zip(rows, ends, strict=True):
            token_ids, counts = model.continuations(list(ids[max(0, end - model.order + 1) : end]))
            row[torch.as_tensor(token_ids.astype("int64"))] = torch.as_tensor(counts.astype("float32")).log()
        return rows.to(device)

    return Forecaster(name, model.digest, logits)


def batches(texts: Sequence[Sample], vocab_size: int) -> list[list[int]]:
    numbers_by_batch: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n].ids)):
        if numbers_by_batch and (len(numbers_by_batch[-1]) + 1) * len(texts[number].ids) * vocab_size <= MAX_LOGITS:
            numbers_by_batch[-1].append(number)
        else:
            numbers_by_batch.append([number])
    return numbers_by_batch


Numbers = dict[Key, Array]  # by text, the numbers of its positions [num_positions, NUM_COLUMNS]


@torch.inference_mode()
def forced_numbers(
    target: Forecaster, drafters: Sequence[Forecaster], texts: Mapping[Key, Sample], vocab_size: int, progress: Say
) -> list[Numbers]:
    """Returns the numbers of each drafter at every scored position of the texts. `progress` gets lines with the number
    of finished texts.

    The target reads each text once for all drafters.
    """
    keys = list(texts)
    numbers_by_drafter = [Numbers() for _ in drafters]
    num_done = 0
    for places in batches([texts[key] for key in keys], vocab_size):
        batch = Batch([texts[keys[place]] for place in places])
        target_logits = target.logits(batch)
        ends = np.cumsum([text.num_learnt for text in batch.samples])[:-1]
        for drafter, numbers in zip(drafters, numbers_by_drafter, strict=True):
            logits = drafter.logits(batch).to(target_logits.device)
            device = "cpu" if logits.device.type == "mps" else logits.device
            batch_numbers = position_numbers(target_logits, logits, batch.learnt_ids.to(device)).numpy()
            numbers |= {keys[place]: part for place, part in zip(places, np.split(batch_numbers, ends), strict=True)}
        num_done += len(places)
        progress(f"{num_done} of {len(texts)} texts")
    return numbers_by_drafter


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
        return self.run.rows_of(self.method) if self.run is not None and self.method is not None else []

    @property
    def model(self) -> CausalLM | None:
        return self.models[0] if len(self.models) == 1 and set(self.forecasters) <= {WHOLE} else None

    def route(self, record: Record) -> str:
        return str(record.methods[self.method].route or WHOLE) if self.method is not None else WHOLE

    def num_draft_tokens(self, route: str) -> int:
        """Returns γ of a route from the rows. Raises ConfigError if they lack it."""
        row = self.rows[0]
        if route == WHOLE:
            return row.num_draft_tokens
        route_length: int | None = row.options["routes"][route].get("num_draft_tokens")
        if route_length is None:
            assert self.run is not None
            raise ConfigError(
                f"run '{self.run.path}': the rows of '{self.method}' have no options.routes.{route}.num_draft_tokens, "
                "which the bounds need: measure again"
            )
        return route_length


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
        entries.append(DrafterEntry(name, None, None, {WHOLE: model_forecaster(model)}, (model,)))
    return entries


def make_labels(methods: RunMethods) -> dict[tuple[Path, str], str]:
    """Returns the label of each method of each run: its name; if several runs have it, RUN:METHOD with the name of the
    run's folder, or with the whole path if several folders have that name."""
    counts = Counter(method for _, of_run in methods for method in of_run)
    names = {run.path: run.path.resolve().name for run, _ in methods}
    folders = Counter(names.values())
    places = {path: name if folders[name] == 1 else path for path, name in names.items()}
    return {
        (run.path, method): method if counts[method] == 1 else f"{places[run.path]}:{method}"
        for run, of_run in methods for method in of_run
    }  # fmt: skip


def _measured_entry(label: str, run: RecordedRun, method: str, target: CausalLM, loader: ModelLoader) -> DrafterEntry:
    forecasters: dict[str, Forecaster] = {}
    models: dict[int, CausalLM] = {}
    problem: str | None = None
    row = run.rows_of(method)[0]
    for route, route_options in row.options.get("routes", {WHOLE: row.options}).items():
        options = route_options.get("drafter") or row.options["routes"]["default"]["drafter"]
        name, revision = row.drafter, row.drafter_revision
        if route != WHOLE:
            name, revision = (run.identity["routes"][method][route][key] for key in ("name", "revision"))
        if options["type"] == "model" and name is not None:
            model = loader.load(name, revision)
            models[id(model)], forecasters[route] = model, model_forecaster(model)
            problem = problem or mismatch(target, model)
        elif options["type"] == "ngram":
            ngram_drafter = NgramDrafter(ModelPair(target), Sampling(1.0), path=options.get("path"))
            if ngram_drafter.revision != revision:
                raise ConfigError(f"n-gram model '{name}' is not what the run measured: measure again")
            forecasters[route] = ngram_forecaster(
                ngram_drafter.ngram, target.vocab_size, str(ngram_drafter.name), target.device
            )
        else:
            problem = problem or f"drafter '{options['type']}' has no distribution of its next token"
    return DrafterEntry(label, run, method, {} if problem else forecasters, tuple(models.values()), problem)


def mismatch(target: CausalLM, drafter: CausalLM) -> str | None:
    try:
        check_equal(target, drafter)
    except VocabularyMismatch as error:
        return str(error)
    return None
