"""`specbench train ngram`: text files → tokens of the target → an n-gram model."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from specbench.errors import ConfigError
from specbench.models.loading import EMBEDDED, hub_problem, is_local
from specbench.ngram.build import build
from specbench.ngram.corpus import Corpus
from specbench.ngram.folder import vocabulary_digest
from specbench.ngram.model import NgramModel

BATCH_CHARACTERS = 500_000
PLAIN_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class Trained:
    """A finished model and what making it took."""

    model: NgramModel
    num_documents: int
    tokenizing_seconds: float
    counting_seconds: float

    def summary(self) -> str:
        """One line: tokens, n-grams per order, size and speeds."""
        sizes = " · ".join(f"{count:,} {level}-grams" for level, count in enumerate(self.model.num_ngrams, start=1))
        num_bytes = sum(path.stat().st_size for path in self.model.path.iterdir())
        num_tokens = self.model.num_tokens
        return (
            f"{num_tokens:,} tokens in {self.num_documents:,} documents · {sizes} · {decimal(num_bytes)} · "
            f"tokenizing {num_tokens / self.tokenizing_seconds:,.0f} tokens/s · "
            f"counting {num_tokens / self.counting_seconds:,.0f} tokens/s"
        )


def train_ngram(
    files: Sequence[Path], column: str, order: int, target: str, revision: str | None, output: Path, console: Console
) -> Trained:
    """Count the n-grams of a corpus over the tokens of `target` into `output`. Raises ConfigError in one line."""
    corpus = Corpus(files, column)
    tokenizer = load_tokenizer(target, revision)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    with Reading(corpus, tokenizer, console) as documents:
        start = time.perf_counter()
        model = build(
            documents, order, max(vocabulary.values()) + 1, output, vocabulary_digest(vocabulary), documents.counting
        )
        seconds = time.perf_counter() - start
    return Trained(model, documents.num_documents, documents.seconds, seconds - documents.seconds)


def load_tokenizer(name: str, revision: str | None) -> Any:
    """The tokenizer of a model, without its weights. Raises ConfigError for a model that is not there."""
    from transformers import AutoTokenizer

    from specbench.demo.family import member_path

    source = str(member_path(name.removeprefix(EMBEDDED))) if name.startswith(EMBEDDED) else name
    problem = None if is_local(source) else hub_problem(source, revision)
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, local_files_only=problem is not None)
    except Exception as error:  # whatever a tokenizer's files may raise
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"cannot load the tokenizer of '{name}': {(problem or reason)[:300]}") from error


class Reading:
    """The tokens of every document of a corpus, with the time that it took, said while it goes on."""

    def __init__(self, corpus: Corpus, tokenizer: Any, console: Console) -> None:
        self.corpus, self.tokenizer, self.console = corpus, tokenizer, console
        self.num_tokens = self.num_documents = 0
        self.seconds = 0.0
        self._said = time.monotonic()
        columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TaskProgressColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> "Reading":
        self._bar.start()
        self._task = self._bar.add_task("reading", total=self.corpus.num_bytes)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __iter__(self) -> Iterator[Sequence[int]]:
        batches = in_batches(self.corpus)
        start = time.perf_counter()
        for texts in batches:
            batch: list[list[int]] = self.tokenizer(
                texts, add_special_tokens=False, return_attention_mask=False, verbose=False
            )["input_ids"]
            self.num_documents += len(batch)
            self.num_tokens += sum(map(len, batch))
            self.seconds += time.perf_counter() - start
            self.say(
                f"tokenizing · {self.num_tokens:,} tokens · {self.num_tokens / self.seconds:,.0f} tokens/s",
                self.corpus.num_bytes_read,
            )
            yield from batch
            start = time.perf_counter()
        self.seconds += time.perf_counter() - start

    def counting(self, doing: str, num_tokens: int) -> None:
        """What `build` does once all documents are read; while they are read, their tokens are what is said."""
        if doing != "reading":
            self.say(f"{doing} · {num_tokens:,} of {self.num_tokens:,} tokens", self.corpus.num_bytes)

    def say(self, text: str, num_bytes: int) -> None:
        """In the bar; where there is none, as a line from time to time."""
        self._bar.update(self._task, description=text, completed=num_bytes)
        if not self.console.is_terminal and time.monotonic() - self._said >= PLAIN_LINE_SECONDS:
            self._said = time.monotonic()
            self.console.print(text, soft_wrap=True)


def in_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in groups that a tokenizer takes at once."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
