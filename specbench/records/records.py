"""The file of records: one line per example, repeat and turn, written to disk before the next one is measured."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.records.generation import Decoder, NotAnObject, Stored, encode, not_finite
from specbench.records.generation import Generation as Generation
from specbench.records.generation import Key as Key
from specbench.records.generation import Record as Record

RECORDS = "records.jsonl"  # the file of a run's records
MAX_LINE = 2 * bounded.MAX_BYTES  # characters; enough for ten methods with 32,000 tokens each
Line = TypeVar("Line")


def keys_of(keys: Iterable[Key], task: str, examples: Mapping[str, int], repeats: int) -> list[Key]:
    """Returns the keys of the first measured examples of some subsets, in the order of a run.

    `examples`: number of examples per subset. Indices of examples have gaps where a run left out examples on which a
    method was tuned. There may be fewer records than requested.
    """
    order = {subset: number for number, subset in enumerate(examples)}
    found = [key for key in keys if key[0] == task and key[1] in examples and key[3] < repeats]
    measured: dict[str, set[int]] = {subset: set() for subset in examples}
    for key in found:
        measured[key[1]].add(key[2])
    first = {subset: set(sorted(measured[subset])[:num]) for subset, num in examples.items()}
    chosen = [key for key in found if key[2] in first[key[1]]]
    return sorted(chosen, key=lambda key: (order[key[1]], key[3], key[2], key[4]))


class LineFile(Generic[Line]):
    """A file of JSON lines of one kind that survives being killed at any byte.

    Every line is on disk before the next one begins, so only the last line can be incomplete. Reading cuts off such a
    line, and its example is measured again.
    """

    def __init__(self, path: Path | str, kind: Any) -> None:
        self.path = Path(path)
        self._checked = False
        self.decoder = Decoder(kind)

    def append(self, line: Line) -> tuple[int, bytes]:
        """Writes one line and waits until it is on disk. Returns its place in the file and its bytes. Raises
        ConfigError for a disk error, and for a number that JSON does not have."""
        try:
            encoded = encode(line) + b"\n"
        except ValueError as error:
            wrong = not_finite(line.as_json() if isinstance(line, Stored) else line)
            if wrong is None:
                raise
            raise ConfigError(
                f"{self.path}: nothing is written, since {wrong[0]} would be {wrong[1]}, which is not a number: a "
                "model, a scorer or a plug-in returned it: run with --dtype float32, or correct the plug-in"
            ) from error
        if not self._checked:
            for _ in self.stream():
                pass
        self._checked = False  # stays False if the write fails part-way: the next append then repairs the file first
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                start = file.seek(0, os.SEEK_END)
                file.write(encoded)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._disk_error("write", error) from error
        self._checked = True
        return start, encoded

    def read(self, check: Callable[[Line], None] = lambda line: None) -> list[Line]:
        """Returns all lines in order (`stream`)."""
        return list(self.stream(check))

    def stream(self, check: Callable[[Line], None] = lambda line: None) -> Iterator[Line]:
        """Yields all lines in order; none for an absent file (`located`)."""
        return (line for _, _, line in self.located(check))

    def located(self, check: Callable[[Line], None] = lambda line: None) -> Iterator[tuple[int, bytes, Line]]:
        """Yields the place in the file, the bytes and the content of all lines in order; none for an absent file.

        A last line that is truncated or does not parse is cut off the file. Raises ConfigError for any other such line,
        and for a line for which `check` raises ValueError.
        """
        num_good_bytes, broken = 0, None  # of whole lines; the number and text of a line that does not parse
        ends_line = True
        try:
            with self.path.open("rb") as file:
                for number, text in enumerate(file, start=1):
                    if broken is not None and text.strip():
                        raise self._line_error(broken[0], f"not a JSON record: {_shortened(broken[1])}")
                    if broken is not None:
                        continue
                    if text.strip():
                        line = self._parse(text, number)
                        if line is None:
                            broken = number, text
                            continue
                        try:
                            check(line)
                        except ValueError as error:
                            raise self._line_error(number, str(error)) from error
                        yield num_good_bytes, text, line
                    num_good_bytes += len(text)
                    ends_line = text.endswith(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._disk_error("read", error) from error
        if broken is not None or not ends_line:
            self._repair(num_good_bytes, ends_line)
        self._checked = True

    def bytes_at(self, start: int, length: int) -> bytes:
        """Returns a part of the file. Raises ConfigError for a disk error."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise self._disk_error("read", error) from error

    def _parse(self, text: bytes, number: int) -> Line | None:
        """Returns what a line holds; None if it is cut off or no object. Raises ConfigError for a complete line that
        exceeds a bound or does not fit."""
        try:
            line: Line = self.decoder.decode(text, MAX_LINE)
            return line
        except bounded.OutOfBounds as error:
            if not text.endswith(b"\n"):
                return None
            raise self._line_error(number, str(error)) from error
        except (json.JSONDecodeError, UnicodeError):  # a line may be cut inside a character
            return None
        except NotAnObject:
            return None
        except ValueError as error:
            raise self._line_error(number, str(error)) from error

    def _repair(self, num_good_bytes: int, ends_line: bool) -> None:
        """Cuts off everything after the valid bytes and makes them end with a line break."""
        try:
            with self.path.open("r+b") as file:
                file.truncate(num_good_bytes)
                if not ends_line:
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._disk_error("repair", error) from error

    def _line_error(self, number: int, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.path}, line {number}: {problem}; "
            "delete that line (its example is measured again) or choose another output folder"
        )

    def _disk_error(self, action: str, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.path}: cannot {action} the records: {error.strerror or error}; nothing measured is lost: "
            "every finished example is kept; free the disk or fix the permissions and run the same command to resume"
        )


def _shortened(text: bytes) -> str:
    shown = text.decode(errors="replace").strip()
    return repr(shown if len(shown) <= 40 else shown[:40] + "…")


class RecordFile(LineFile[Record]):
    """The records of a run."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, Record)
