"""`specbench train ngram`: settings → texts → tokens of the target → an n-gram model with its record."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from specbench.analysis.vocab import load_tokenizer
from specbench.core.errors import ConfigError
from specbench.models.ngram import NgramModel, check_replaceable, replacing, vocabulary_digest
from specbench.results.environment import environment
from specbench.running.progress import PLAIN_LINE_SECONDS
from specbench.training.command import TrainRequest, say_overlap
from specbench.training.cost import Meter
from specbench.training.data import Prompt, TrainingData, gathered
from specbench.training.ngram_build import count_into
from specbench.training.ngram_corpus import Corpus
from specbench.training.record import CountingRecord, data_of, now
from specbench.training.settings import read_settings
from specbench.training.spec import CorpusSpec, NgramSpec

BATCH_CHARACTERS = 500_000


class Texts:
    """The rows and texts of the data, then those of the corpus, which are read as they are asked for.

    `size`: characters of the data and bytes of the corpus's files, `size_read`: how much of it has come. `digest`: of
    all that has come, for data without a corpus that of `TrainingData`. Raises ConfigError for a file that is not there
    or of another kind.
    """

    def __init__(self, data: TrainingData, spec: CorpusSpec) -> None:
        self._prompts = [prompt for prompts in data.prompts.values() for prompt in prompts]
        self._corpus = Corpus([Path(file) for file in spec.corpus], spec.column) if spec.corpus else None
        self.files = spec.corpus
        self._limit = spec.limit
        self._state = hashlib.sha256()
        self._characters_read = 0
        characters = sum(len(prompt.whole) for prompt in self._prompts)
        self.size = characters + (self._corpus.num_bytes if self._corpus else 0)

    @property
    def size_read(self) -> int:
        return self._characters_read + (self._corpus.num_bytes_read if self._corpus else 0)

    @property
    def digest(self) -> str:
        return self._state.hexdigest()[:12]

    def __iter__(self) -> Iterator[Prompt]:
        """Raises ConfigError naming file and line."""
        for prompt in self._prompts:
            self._state.update(prompt.identity)
            self._characters_read += len(prompt.whole)
            yield prompt
        for text in islice(self._corpus or (), self._limit):
            prompt = Prompt("", text)
            self._state.update(prompt.identity)
            yield prompt


class Documents:
    """The tokens of every text, with the time that it took, said while it goes on. A row's answer is followed by the
    token that ends the target's texts. Iterating raises ConfigError for a corpus without tokens."""

    def __init__(self, texts: Texts, tokenizer: Any, console: Console) -> None:
        self.texts, self.tokenizer, self.console = texts, tokenizer, console
        self.num_tokens = self.num_documents = 0
        self.seconds = 0.0
        self._said = time.monotonic()
        columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TaskProgressColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> "Documents":
        self._bar.start()
        self._task = self._bar.add_task("reading", total=self.texts.size)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __iter__(self) -> Iterator[Sequence[int]]:
        batches = in_batches(self.texts)
        start = time.perf_counter()
        for prompts in batches:
            batch = self._tokens(prompts)
            self.num_documents += len(batch)
            self.num_tokens += sum(map(len, batch))
            self.seconds += time.perf_counter() - start
            self.say(
                f"tokenizing · {self.num_tokens:,} tokens · {self.num_tokens / self.seconds:,.0f} tokens/s",
                self.texts.size_read,
            )
            yield from batch
            start = time.perf_counter()
        self.seconds += time.perf_counter() - start
        if self.num_tokens == 0 and self.texts.files:
            raise ConfigError(f"--corpus {', '.join(self.texts.files)}: the corpus has no tokens: give files with text")

    def _tokens(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        batch: list[list[int]] = self.tokenizer(
            [prompt.whole for prompt in prompts], add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        end = self.tokenizer.eos_token_id
        return [
            [*ids, end] if prompt.reference is not None and end is not None else ids
            for prompt, ids in zip(prompts, batch, strict=True)
        ]

    def counting(self, doing: str, num_tokens: int) -> None:
        """What `build` does once all documents are read; while they are read, their tokens are what is said."""
        if doing != "reading":
            self.say(f"{doing} · {num_tokens:,} of {self.num_tokens:,} tokens", self.texts.size)

    def say(self, text: str, size: int) -> None:
        """In the bar; where there is none, as a line from time to time."""
        self._bar.update(self._task, description=text, completed=size)
        if not self.console.is_terminal and time.monotonic() - self._said >= PLAIN_LINE_SECONDS:
            self._said = time.monotonic()
            self.console.print(text, soft_wrap=True)


def in_batches(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """The texts in groups that a tokenizer takes at once."""
    batch: list[Prompt] = []
    size = 0
    for prompt in prompts:
        batch.append(prompt)
        size += len(prompt.whole)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


OF_NETWORKS = ("dtype", "attention", "engine")


def execute_counting(request: TrainRequest, console: Console) -> tuple[CountingRecord, Path]:
    """Count as a user asked; a model that is in the folder is replaced. Raises ConfigError in one line."""
    spec = read_settings(NgramSpec, request.kind, request.config, request.options, request.overrides)
    output = Path(spec.output)
    check_replaceable(output)
    with Meter(torch.device("cpu")) as meter:
        record = counted(spec, output, request.command, meter, console)
    return record, output


def counted(spec: NgramSpec, output: Path, command: str, meter: Meter, console: Console) -> CountingRecord:
    """The record of a model that is counted and written."""
    data = gathered(spec.data, spec.seed)
    texts = Texts(data, spec.data)
    say_overlap(data, console)
    tokenizer = load_tokenizer(spec.target, spec.target_revision)
    with replacing(output) as folder, Documents(texts, tokenizer, console) as documents:
        start = time.perf_counter()
        digest = count(documents, spec, folder)
        seconds = time.perf_counter() - start
        record = CountingRecord(
            settings=spec.model_dump(mode="json"),
            data=told(data, spec, documents),
            models={"target": {"name": spec.target, "tokenizer_digest": digest}},
            counts=counts_of(folder, documents, seconds),
            cost=meter.cost(),
            environment={k: v for k, v in environment("cpu", "", "").items() if k not in OF_NETWORKS},
            command=command,
            finished=now(),
        )
        record.write(folder)
    return record


def count(documents: Documents, spec: NgramSpec, folder: Path) -> str:
    """Count into an empty folder; the digest of the vocabulary."""
    vocabulary: dict[str, int] = documents.tokenizer.get_vocab()
    digest = vocabulary_digest(vocabulary)
    count_into(folder, documents, spec.order, max(vocabulary.values()) + 1, digest, documents.counting)
    return digest


def told(data: TrainingData, spec: NgramSpec, documents: Documents) -> dict[str, Any]:
    """What identifies the data, the texts of the corpus among them."""
    files, num_texts = spec.data.corpus, documents.num_documents - data.num_prompts
    corpus = [f"{num_texts} from {', '.join(files)}"] if files else []
    return {**data_of(data), "digest": documents.texts.digest, "sources": [*data.sources, *corpus]}


def counts_of(folder: Path, documents: Documents, seconds: float) -> dict[str, Any]:
    """What `CountingRecord` says of a model that was made in so many seconds."""
    model = NgramModel.load(folder)
    return {
        "num_documents": documents.num_documents, "num_tokens": model.num_tokens, "num_ngrams": model.num_ngrams,
        "num_bytes": sum(path.stat().st_size for path in folder.iterdir()), "digest": model.digest,
        "tokenizing_seconds": documents.seconds, "counting_seconds": seconds - documents.seconds,
    }  # fmt: skip
