"""Batched generation by a frozen model, and a cache of its continuations. Every prompt has its own random stream, so
that batching changes nothing."""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Sampling, process
from specbench.models.causal_lm import CausalLM
from specbench.models.kv_cache import BatchedLayer
from specbench.running.progress import PLAIN_LINE_SECONDS
from specbench.training.passes import accepts_argument, device_of, unwrapped


def batched_cache(config: Any) -> DynamicCache:
    """Returns an empty cache in which layers of full attention can drop rows; other layers are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [BatchedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


Ids = tuple[int, ...]


@dataclass(frozen=True)
class GenerationJob:
    """A prompt to continue, and the seed of its random stream; greedy continuations need none."""

    prompt_ids: Ids
    seed: int = 0


@dataclass(frozen=True)
class Generator:
    """A model that continues prompts. A continuation ends with one of `eos_token_ids`, which it then includes, or after
    `max_new_tokens`. Logits beyond `vocab_size` are padding of the output layer."""

    model: nn.Module
    vocab_size: int
    eos_token_ids: frozenset[int]
    sampling: Sampling
    max_new_tokens: int

    @classmethod
    def of(cls, model: CausalLM, sampling: Sampling, max_new_tokens: int) -> "Generator":
        return cls(model.model, model.vocab_size, model.eos_token_ids, sampling, max_new_tokens)

    def continue_all(self, jobs: Sequence[GenerationJob], batch_size: int) -> list[Ids]:
        """Returns the continuations in the order of the jobs."""
        found = dict(pair for batch in self.batches(jobs, batch_size) for pair in batch)
        return [found[place] for place in range(len(jobs))]

    def batches(self, jobs: Sequence[GenerationJob], batch_size: int) -> Iterator[list[tuple[int, Ids]]]:
        """Yields batches of (index of the job, continuation); prompts of similar length are batched together."""
        order = sorted(range(len(jobs)), key=lambda place: len(jobs[place].prompt_ids))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield list(zip(chosen, self._continue([jobs[place] for place in chosen]), strict=True))

    @torch.no_grad()
    def _continue(self, jobs: Sequence[GenerationJob]) -> list[Ids]:
        was_training = self.model.training
        self.model.eval()
        uniforms = None if self.sampling.greedy else torch.stack([self._uniforms(job.seed) for job in jobs])
        found: list[list[int]] = [[] for _ in jobs]
        live = list(range(len(jobs)))  # the index of the job of every row of the batch
        sequence = LeftPadded(self.model, [job.prompt_ids for job in jobs])
        for step in range(self.max_new_tokens):
            probs = process(sequence.logits[:, : self.vocab_size], self.sampling).cpu()
            tokens = probs.argmax(-1) if uniforms is None else inverse_draw(probs, uniforms[live, step])
            for job, token in zip(live, tokens.tolist(), strict=True):
                if not self._has_ended(found[job]):
                    found[job].append(token)
            going_on = [row for row, job in enumerate(live) if not self._has_ended(found[job])]
            if not going_on or step + 1 == self.max_new_tokens:
                break
            if sequence.can_drop_rows and 2 * len(going_on) <= len(live):
                sequence.keep(going_on)
                live, tokens = [live[row] for row in going_on], tokens[going_on]
            sequence.append(tokens)
        self.model.train(was_training)
        return [tuple(tokens) for tokens in found]

    def _has_ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self.eos_token_ids

    def _uniforms(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.max_new_tokens, generator=generator, dtype=torch.float64)


def inverse_draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Returns a token of each distribution [num_rows, vocab]: the first whose cumulative probability exceeds the row's
    uniform number in [0, 1). A token of probability 0 is never drawn."""
    cumulative = probs.double().cumsum(-1)
    wanted = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    last = (
        probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1)
    )  # rounding may leave the uniform number above the sum
    return torch.minimum(drawn, last)


class LeftPadded:
    """Prompts of several lengths, padded on the left, and their key-value cache. `logits` follow the last token of
    every row: [num_rows, output_size]."""

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int]]) -> None:
        self._model = unwrapped(model)
        self._device = device_of(model)
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        self._mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self._options: dict[str, Any] = {"logits_to_keep": 1} if accepts_argument(model, "logits_to_keep") else {}
        self._counts_positions = accepts_argument(model, "position_ids")
        self._cache_name = "past_key_values" if accepts_argument(model, "past_key_values") else "cache_params"
        self._cache = batched_cache(self._model.config)
        layers = self._cache.layers
        self.can_drop_rows = bool(layers) and all(isinstance(layer, BatchedLayer) for layer in layers)
        self.logits = self._feed(ids, (self._mask.cumsum(-1) - 1).clamp_min(0))

    def append(self, tokens: Tensor) -> None:
        """Appends one token to every row: [num_rows]."""
        self._mask = torch.cat([self._mask, torch.ones(len(tokens), 1, dtype=self._mask.dtype)], dim=1)
        self.logits = self._feed(tokens[:, None], self._mask.sum(-1, keepdim=True) - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only some rows."""
        self._mask, self.logits = self._mask[rows], self.logits[rows]
        self._cache.batch_select_indices(torch.tensor(rows, device=self._device))

    def _feed(self, ids: Tensor, positions: Tensor) -> Tensor:
        options = {**self._options, self._cache_name: self._cache}
        if self._counts_positions:
            options["position_ids"] = positions.to(self._device)
        is_prefill = ids.shape == self._mask.shape
        if not bool(self._mask.all()) and (
            is_prefill or self._counts_positions
        ):  # other models read one token at a time
            options["attention_mask"] = self._mask.to(self._device)
        output = self._model(input_ids=ids.to(self._device), use_cache=True, **options)
        logits: Tensor = output.logits[:, -1]
        return logits


FILE = "generations.sqlite"
KEYS_PER_QUERY = 500  # in one query
GeneratedBatches = Iterator[list[tuple[int, Any]]]  # batches of (index, value)


class GenerationCache:
    """An SQLite file of continuations; each batch is written in one transaction. `console`: shows the progress."""

    def __init__(self, folder: Path, console: Console | None = None) -> None:
        self.path = folder / FILE
        self._console = console

    def continued(
        self, target: CausalLM, generator: Generator, jobs: Sequence[GenerationJob], batch_size: int
    ) -> list[Ids]:
        """Returns the target's continuations in the order of the jobs; cached ones are not generated again."""
        common = {
            "model": model_fingerprint(target), "sampling": asdict(generator.sampling),
            "max_new_tokens": generator.max_new_tokens, "ends": sorted(generator.eos_token_ids),
        }  # fmt: skip
        greedy = generator.sampling.greedy
        keys = [generation_key({**common, "prompt": job.prompt_ids, "seed": 0 if greedy else job.seed}) for job in jobs]

        def make(places: Sequence[int]) -> GeneratedBatches:
            for batch in generator.batches([jobs[place] for place in places], batch_size):
                yield [(places[index], ids) for index, ids in batch]

        temperature = f"{generator.sampling.temperature:g}"
        what = f"continuations by {target.name} at temperature {temperature}"
        return [tuple(ids) for ids in self.filled(keys, make, what)]

    def filled(self, keys: Sequence[str], make: Callable[[Sequence[int]], GeneratedBatches], what: str) -> list[Any]:
        """Returns the value of each key. `make` is called once with the indices of the missing keys.

        Raises ConfigError if the disk is not writable, or the file is damaged.
        """
        with self._open() as database:
            known = read_values(database, keys)
            first = {key: place for place, key in reversed(list(enumerate(keys))) if key not in known}
            missing = sorted(first.values())
            num_made, said = 0, time.monotonic()
            for batch in make(missing) if missing else ():
                new = {keys[place]: value for place, value in batch}
                write_values(database, new)
                known |= new
                num_made += len(batch)
                if self._console and (num_made == len(missing) or time.monotonic() - said >= PLAIN_LINE_SECONDS):
                    said = time.monotonic()
                    say(self._console, f"{num_made}/{len(missing)} {what} ({len(keys) - len(missing)} from the cache)")
        return [known[key] for key in keys]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as database:
                with database:
                    database.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                yield database
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"{self.path}: cannot store the target's continuations there ({error}): free the disk, fix the "
                "permissions, or delete the file if it is damaged"
            ) from error


def read_values(database: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Any]:
    """Returns the cached values by key."""
    found: dict[str, Any] = {}
    for start in range(0, len(keys), KEYS_PER_QUERY):
        some = list(keys[start : start + KEYS_PER_QUERY])
        marks = ",".join("?" * len(some))
        found |= dict(database.execute(f"SELECT key, value FROM kept WHERE key IN ({marks})", some))
    return {key: json.loads(value) for key, value in found.items()}


def write_values(database: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    rows = [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()]
    with database:
        database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)


def generation_key(request: Mapping[str, Any]) -> str:
    """Returns 64 hex digits over all that a continuation depends on."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def model_fingerprint(model: CausalLM) -> str:
    """Returns what identifies the distribution of a model: its revision, or its weights if it has none, and the
    precision of its computation."""
    name = model.revision
    if name is None:
        state = hashlib.sha256()
        for key, value in sorted(model.model.state_dict().items()):
            state.update(key.encode() + value.detach().cpu().float().numpy().tobytes())
        name = f"weights-{state.hexdigest()[:16]}"
    four_bits = " quantized" if getattr(model.model, "is_quantized", False) else ""
    return f"{name} {model.dtype}{four_bits}"
