"""`specbench train ngram` and `retrieval`: settings → texts → the target's tokens → a model with its record, which is
an n-gram model or a datastore: the tokens of documents and their suffix array."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import TimeElapsedColumn

from specbench.core.progress import ProgressBar
from specbench.models.corpus_models import Datastore, NgramModel
from specbench.models.loading import load_tokenizer
from specbench.models.machine import environment
from specbench.models.meters import CostMeter
from specbench.models.mmap_store import vocabulary_digest
from specbench.training.corpus_arrays import count_ngrams, join_documents, sort_suffixes
from specbench.training.data import TrainingData, TrainingPrompt, gather_data, texts_of, warn_of_overlap
from specbench.training.output import CorpusCounts, CorpusRecord, data_record
from specbench.training.spec import CorpusModelSpec, CorpusSpec, NgramSpec

BATCH_TEXTS = 1000  # in one call of the tokenizer, which is slow on single texts


class TokenizedTexts:
    """The token ids of each text: first of the data, then of the corpus, whose files are read row by row.

    Counts texts and tokens, and reports progress during the iteration. The target's end token follows the answer of a
    row. `digest`: of all texts read so far; without a corpus it equals that of `TrainingData`. Iterating raises
    ConfigError with file and row.
    """

    def __init__(self, data: TrainingData, spec: CorpusSpec, tokenizer: Any, console: Console) -> None:
        corpus = islice(texts_of(spec.corpus, spec.column), spec.limit)
        self._texts = chain(*data.prompts.values(), (TrainingPrompt("", text) for text in corpus))
        self._tokenizer = tokenizer
        self._state = hashlib.sha256()
        self.num_tokens = self.num_documents = 0
        self.bar = ProgressBar(console, "reading", None, TimeElapsedColumn())

    @property
    def digest(self) -> str:
        return self._state.hexdigest()[:12]

    def __iter__(self) -> Iterator[Sequence[int]]:
        end = self._tokenizer.eos_token_id
        while batch := list(islice(self._texts, BATCH_TEXTS)):
            encoded: list[list[int]] = self._tokenizer(
                [text.whole for text in batch], add_special_tokens=False, return_attention_mask=False, verbose=False
            )["input_ids"]
            for text, ids in zip(batch, encoded, strict=True):
                self._state.update(text.identity)
                if text.reference is not None and end is not None:
                    ids.append(end)
                self.num_tokens += len(ids)
                yield ids
            self.num_documents += len(batch)
            self.say(f"tokenizing · {self.num_tokens:,} tokens")

    def say(self, doing: str) -> None:
        self.bar.update(doing, self.num_documents)


NETWORK_FIELDS = ("dtype", "attention", "engine")  # of the environment, meaningless for these models


def build_from_corpus(spec: CorpusModelSpec, console: Console, command: str) -> CorpusRecord:
    """Builds a model with these settings. It replaces a model in the output folder. Raises ConfigError."""
    model_type: type[NgramModel] | type[Datastore] = NgramModel if isinstance(spec, NgramSpec) else Datastore
    output = Path(spec.output)
    model_type.check_replaceable(output)
    with CostMeter(torch.device("cpu")) as meter:
        # 1. The texts and the vocabulary.
        data = gather_data(spec.data, spec.seed)
        warn_of_overlap(data, console)
        tokenizer = load_tokenizer(spec.target, spec.target_revision, trust_remote_code=spec.trust_remote_code)
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        digest = vocabulary_digest(vocabulary)
        vocab_size = max(vocabulary.values()) + 1
        texts = TokenizedTexts(data, spec.data, tokenizer, console)
        with model_type.replacing(output) as folder, texts.bar:
            # 2. All tokens, then the arrays.
            start = time.perf_counter()
            tokens = join_documents(texts, vocab_size)
            read = time.perf_counter()
            if isinstance(spec, NgramSpec):
                built = count_ngrams(tokens, spec.order, vocab_size, texts.say)
            else:
                texts.say(f"sorting {texts.num_tokens:,} tokens")
                built = sort_suffixes(tokens, vocab_size)
            model_type.write(folder, {**built.fields, "tokenizer_digest": digest}, built.arrays)
            made_in = time.perf_counter() - read
            # 3. The record.
            model = model_type.load(folder)
            counts: CorpusCounts = {
                "num_documents": texts.num_documents, "num_tokens": model.num_tokens,
                "num_bytes": sum(path.stat().st_size for path in folder.iterdir()), "digest": model.digest,
                "tokenizing_seconds": read - start,
            }  # fmt: skip
            if isinstance(model, NgramModel):
                counts["num_ngrams"] = model.num_ngrams
                counts["counting_seconds"] = made_in
            else:
                counts["sorting_seconds"] = made_in
            about = data_record(data)
            about["digest"] = texts.digest
            if spec.data.corpus:
                num_texts = texts.num_documents - data.num_prompts
                about["sources"] = [*data.sources, f"{num_texts} from {', '.join(spec.data.corpus)}"]
            record = CorpusRecord(
                settings=spec.model_dump(mode="json"),
                data=about,
                models={"target": {"name": spec.target, "tokenizer_digest": digest}},
                counts=counts,
                cost=meter.cost(),
                environment={k: v for k, v in environment("cpu", "", "").items() if k not in NETWORK_FIELDS},
                command=command,
            )
            record.write(folder)
    return record
