"""`specbench train ngram` and `retrieval`: settings → texts → the target's tokens → a model with its record, which is
an n-gram model or a datastore: the tokens of documents and their suffix array."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import TaskProgressColumn

from specbench.core.errors import ConfigError
from specbench.core.progress import ProgressBar
from specbench.models.corpus_models import DATASTORE_FOLDER, Datastore, NgramModel
from specbench.models.loading import load_tokenizer
from specbench.models.meters import CostMeter
from specbench.models.mmap_store import SUFFIX, Array, ArrayModel, vocabulary_digest
from specbench.results.conditions import environment
from specbench.training.data import CorpusFiles, TrainingData, TrainingPrompt, gather_data, warn_of_overlap
from specbench.training.ngram_build import (
    CHUNK_TOKENS,
    NOTHING,
    CountingProgress,
    Document,
    append,
    count_into,
    ignore_progress,
    smallest,
    token_chunks,
)
from specbench.training.output import CorpusCounts, CorpusRecord, data_record
from specbench.training.spec import CorpusModelSpec, CorpusSpec, NgramSpec

BATCH_CHARACTERS = 500_000


class TokenizedTexts:
    """The token ids of each text: first of the data, then of the corpus, which is read lazily.

    Counts texts, tokens and seconds, and reports progress during the iteration. The target's end token follows the
    answer of a row. `digest`: of all texts read so far; without a corpus it equals that of `TrainingData`. Raises
    ConfigError for a missing file or another format. Iterating raises ConfigError with file and line, and for a corpus
    without tokens.
    """

    def __init__(self, data: TrainingData, spec: CorpusSpec, tokenizer: Any, console: Console) -> None:
        self._prompts = [prompt for prompts in data.prompts.values() for prompt in prompts]
        self._corpus = CorpusFiles([Path(file) for file in spec.corpus], spec.column) if spec.corpus else None
        self._spec, self.tokenizer = spec, tokenizer
        self._state, self._characters_read = hashlib.sha256(), 0
        self.num_tokens = self.num_documents = 0
        self.seconds = 0.0
        characters = sum(len(prompt.whole) for prompt in self._prompts)
        self._size = characters + (self._corpus.num_bytes if self._corpus else 0)
        self.bar = ProgressBar(console, "reading", self._size, TaskProgressColumn())

    @property
    def digest(self) -> str:
        return self._state.hexdigest()[:12]

    def __iter__(self) -> Iterator[Sequence[int]]:
        start = time.perf_counter()
        texts = self._texts()
        while True:
            # 1. About BATCH_CHARACTERS at once, since a tokenizer is slow on single texts.
            prompts: list[TrainingPrompt] = []
            size = 0
            while size < BATCH_CHARACTERS and (prompt := next(texts, None)) is not None:
                prompts.append(prompt)
                size += len(prompt.whole)
            if not prompts:
                break
            # 2. Their tokens. The time in which the tokens are used is not counted.
            batch = self._tokens(prompts)
            self.num_documents += len(batch)
            self.num_tokens += sum(map(len, batch))
            self.seconds += time.perf_counter() - start
            size_read = self._characters_read + (self._corpus.num_bytes_read if self._corpus else 0)
            speed = f"{self.num_tokens / self.seconds:,.0f} tokens/s"
            self.bar.update(f"tokenizing · {self.num_tokens:,} tokens · {speed}", size_read)
            yield from batch
            start = time.perf_counter()
        self.seconds += time.perf_counter() - start
        if self.num_tokens == 0 and self._spec.corpus:
            raise ConfigError(
                f"--corpus {', '.join(self._spec.corpus)}: the corpus has no tokens: give files with text"
            )

    def _texts(self) -> Iterator[TrainingPrompt]:
        for prompt in self._prompts:
            self._state.update(prompt.identity)
            self._characters_read += len(prompt.whole)
            yield prompt
        for text in islice(self._corpus or (), self._spec.limit):
            prompt = TrainingPrompt("", text)
            self._state.update(prompt.identity)
            yield prompt

    def _tokens(self, prompts: Sequence[TrainingPrompt]) -> list[list[int]]:
        batch: list[list[int]] = self.tokenizer(
            [prompt.whole for prompt in prompts], add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        end = self.tokenizer.eos_token_id
        return [
            [*ids, end] if prompt.reference is not None and end is not None else ids
            for prompt, ids in zip(prompts, batch, strict=True)
        ]

    def building(self, doing: str, num_tokens: int) -> None:
        if doing != "reading":
            self.bar.update(f"{doing} · {num_tokens:,} of {self.num_tokens:,} tokens", self._size)


def build_datastore(documents: Iterable[Document], vocab_size: int, output: Path, tokenizer_digest: str) -> Datastore:
    """Writes documents (token ids each) and their suffix array into the folder `output`.

    A datastore at `output` is replaced when the new one is complete. Raises ConfigError if `output` is anything else,
    for ids outside the vocabulary, and for a corpus without tokens.
    """
    with DATASTORE_FOLDER.replacing(Path(output)) as folder:
        store_into(folder, documents, vocab_size, tokenizer_digest, ignore_progress)
    return Datastore.load(output)


def store_into(
    folder: Path, documents: Iterable[Document], vocab_size: int, tokenizer_digest: str, progress: CountingProgress
) -> None:
    """Builds a datastore as `build_datastore` does, but into an empty folder. `progress` is called with the current
    action and its number of tokens."""
    chunks = [
        np.where(chunk == NOTHING, vocab_size, chunk).astype(smallest(vocab_size))
        for chunk in token_chunks(documents, vocab_size, CHUNK_TOKENS, progress)
    ]
    tokens = np.concatenate(chunks)
    progress("sorting", len(tokens))
    suffixes = suffix_array(tokens)
    suffixes = suffixes[tokens[suffixes] != vocab_size].astype(smallest(len(tokens)))
    arrays = {"tokens": tokens, "suffixes": suffixes}
    for name, array in arrays.items():
        append(folder / f"{name}{SUFFIX}", array)
    fields = {"vocab_size": vocab_size, "num_tokens": len(suffixes), "num_documents": len(tokens) - len(suffixes),
              "tokenizer_digest": tokenizer_digest}  # fmt: skip
    DATASTORE_FOLDER.write(folder, fields, {name: (array.dtype.str, len(array)) for name, array in arrays.items()})


def suffix_array(tokens: Array) -> Array:
    """Returns the suffix array, the start positions of all suffixes in sorted order: int64 [n]. A suffix comes before
    its continuations.

    Prefix doubling: each round compares twice as many tokens, using the ranks of the round before.
    """
    ranks = tokens.astype(np.int64)
    length = 1
    while True:
        keys = ranks * (int(ranks.max()) + 2)
        keys[:-length] += ranks[length:] + 1
        order = np.argsort(keys)
        is_new = np.diff(keys[order]) != 0
        ranks[order[1:]] = np.cumsum(is_new)
        ranks[order[0]] = 0
        if is_new.all():
            return order
        length *= 2


NETWORK_FIELDS = ("dtype", "attention", "engine")  # of the environment, meaningless for these models
MODELS: dict[str, type[ArrayModel]] = {"ngram": NgramModel, "retrieval": Datastore}


def build_from_corpus(spec: CorpusModelSpec, console: Console, command: str) -> CorpusRecord:
    """Builds a model with these settings. It replaces a model in the output folder. Raises ConfigError."""
    output, model_type = Path(spec.output), MODELS[spec.kind]
    model_type.kind.check_replaceable(output)
    with CostMeter(torch.device("cpu")) as meter:
        data = gather_data(spec.data, spec.seed)
        warn_of_overlap(data, console)
        tokenizer = load_tokenizer(spec.target, spec.target_revision, trust_remote_code=spec.trust_remote_code)
        documents = TokenizedTexts(data, spec.data, tokenizer, console)
        with model_type.kind.replacing(output) as folder, documents.bar:
            start = time.perf_counter()
            vocabulary: dict[str, int] = tokenizer.get_vocab()
            digest, vocab_size = vocabulary_digest(vocabulary), max(vocabulary.values()) + 1
            if isinstance(spec, NgramSpec):
                count_into(folder, documents, spec.order, vocab_size, digest, documents.building)
            else:
                store_into(folder, documents, vocab_size, digest, documents.building)
            seconds = time.perf_counter() - start
            model = model_type.load(folder)
            counts: CorpusCounts = {"num_documents": documents.num_documents, "num_tokens": model.num_tokens}
            if isinstance(model, NgramModel):
                counts["num_ngrams"] = model.num_ngrams
            counts["num_bytes"] = sum(path.stat().st_size for path in folder.iterdir())
            counts["digest"], counts["tokenizing_seconds"] = model.digest, documents.seconds
            work: Literal["counting_seconds", "sorting_seconds"]
            work = "counting_seconds" if isinstance(model, NgramModel) else "sorting_seconds"
            counts[work] = seconds - documents.seconds
            num_texts = documents.num_documents - data.num_prompts
            corpus = [f"{num_texts} from {', '.join(spec.data.corpus)}"] if spec.data.corpus else []
            read = data_record(data)
            read["digest"], read["sources"] = documents.digest, [*data.sources, *corpus]
            record = CorpusRecord(
                settings=spec.model_dump(mode="json"),
                data=read,
                models={"target": {"name": spec.target, "tokenizer_digest": digest}},
                counts=counts,
                cost=meter.cost(),
                environment={k: v for k, v in environment("cpu", "", "").items() if k not in NETWORK_FIELDS},
                command=command,
            )
            record.write(folder)
    return record
