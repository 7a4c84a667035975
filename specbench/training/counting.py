"""`specbench train ngram`: settings → texts → tokens of the target → an n-gram model with its record."""

import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.ngram.build import count_into
from specbench.ngram.folder import check_replaceable, replacing, vocabulary_digest
from specbench.ngram.model import NgramModel
from specbench.results.environment import environment
from specbench.training.command import TrainRequest, say_overlap
from specbench.training.cost import Meter
from specbench.training.data import TrainingData, gathered
from specbench.training.documents import Documents, Texts
from specbench.training.ngram_spec import NgramSpec
from specbench.training.record import CountingRecord, data_of, now
from specbench.training.settings import read_settings
from specbench.vocab.loading import load_tokenizer

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
