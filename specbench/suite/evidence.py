"""How long a method took for an example, from records; what an estimate rests on."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specbench import bounded
from specbench.running.records import MAX_LINE, Generation, Record


@dataclass
class Taken:
    """Sums over the answers of one method. `first_seconds`: until the first token, `tokens`: after it."""

    answers: int = 0
    first_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens: int = 0

    def add(self, generation: Generation) -> None:
        """Count one answer."""
        self.answers += 1
        self.first_seconds += generation["ttft_seconds"] or 0.0
        self.decode_seconds += generation["decode_seconds"]
        self.tokens += len(generation["token_ids"]) - 1

    @property
    def seconds(self) -> float:
        """Of an answer, in the mean."""
        return (self.first_seconds + self.decode_seconds) / self.answers

    def most(self, max_new_tokens: int) -> float:
        """Of an answer that has all tokens that it may have, at the mean speed."""
        per_token = self.decode_seconds / self.tokens if self.tokens else 0.0
        return self.first_seconds / self.answers + per_token * max(0, max_new_tokens - 1)


@dataclass
class Evidence:
    """What the methods took on one task and pair."""

    taken: dict[str, Taken] = field(default_factory=lambda: defaultdict(Taken))

    def add(self, record: Record) -> None:
        """Count one record."""
        for method, generation in record["methods"].items():
            self.taken[method].add(generation)

    @property
    def num_records(self) -> int:
        return max((taken.answers for taken in self.taken.values()), default=0)

    def seconds(self, methods: Iterable[str]) -> float | None:
        """Of one example with these methods; None where nothing is known. A method that was not measured counts as
        the mean of the others."""
        return self._sum({name: taken.seconds for name, taken in self.taken.items()}, methods)

    def most(self, methods: Iterable[str], max_new_tokens: int) -> float | None:
        """The same where every answer has all tokens that it may have."""
        return self._sum({name: taken.most(max_new_tokens) for name, taken in self.taken.items()}, methods)

    @staticmethod
    def _sum(known: Mapping[str, float], methods: Iterable[str]) -> float | None:
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        return sum(known.get(name, mean) for name in methods)


def generation_seconds(record: Record) -> float:
    """What all answers of a record took."""
    return float(sum((g["ttft_seconds"] or 0.0) + g["decode_seconds"] for g in record["methods"].values()))


def records_in(folder: Path) -> Iterator[Record]:
    """The records of a run's folder as they are, a half-written last one left out. They are not checked: measuring
    does that."""
    path = folder / "records.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        while line := lines.readline(MAX_LINE + 1):
            try:
                record = bounded.json_value(line, strict=False, max_characters=MAX_LINE)
                generation_seconds(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            yield record
