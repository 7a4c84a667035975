"""The records of a file, by key, of which memory holds only a part: each is read when it is asked for.

A run may have more records than memory. What needs them (rows, comparisons, pages, a resumed run) needs those of one
subset and method at a time, so the store keeps the place of every record in the file and of every method in its line.
"""

import gc
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from specbench.core.errors import ConfigError
from specbench.records.records import MAX_LINE, Key, Record, RecordFile

KEPT = 2**24  # bytes of lines whose records stay in memory, so that most runs are read once


class Place(NamedTuple):
    """A line of the file. `methods`: their names; empty if the places of their parts are not known. `bounds`: where the
    part of each begins and ends in the line."""

    start: int
    length: int
    methods: tuple[str, ...] = ()
    bounds: Sequence[int] = ()

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        return dict(zip(self.methods, zip(self.bounds[::2], self.bounds[1::2], strict=True), strict=True))


class _Line(msgspec.Struct):
    methods: dict[str, msgspec.Raw]


_parts = msgspec.json.Decoder(_Line)


def _place_of(start: int, line: bytes, known: dict[tuple[str, ...], tuple[str, ...]]) -> Place:
    """Returns the place of a line. `known`: names of methods, which all records of a run share."""
    try:
        methods = _parts.decode(line).methods
    except (ValueError, RecursionError):  # a line of an earlier version, which is read as a whole
        return Place(start, len(line))
    bounds, end = array("l"), 0
    for part in methods.values():
        begin = line.index(bytes(part), end)
        end = begin + len(bytes(part))
        bounds.extend((begin, end))
    names = tuple(methods)
    return Place(start, len(line), known.setdefault(names, names), bounds)


class RecordStore(Mapping[Key, Record]):
    """The records of a file by key, in the order of the file.

    `only`: a part of the store, with some of the records or of their methods. `add`: writes a new record to the file.
    """

    def __init__(
        self, file: RecordFile, check: Callable[[Record], None] = lambda record: None,
        hear: Callable[[Record, bytes], None] | None = None,
    ) -> None:  # fmt: skip
        """Reads the whole file once. `hear`: is told each record with its line. Raises ConfigError for a damaged file
        and for a record for which `check` raises ValueError."""
        self._file = file
        self._methods: frozenset[str] | None = None  # all
        self._places: dict[Key, Place] = {}
        self._kept: dict[Key, Record] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._room = KEPT
        if hear is None:
            gc.disable()  # records hold no cycles, and a search for some takes a tenth of the time of reading
        try:
            for start, line, record in file.located(check):
                if hear is not None:
                    hear(record, line)
                self._place(record, start, line)
        finally:
            gc.enable()

    def _place(self, record: Record, start: int, line: bytes) -> None:
        key = record.key
        if self._room >= len(line):
            self._room -= len(line)
            self._places[key] = Place(start, len(line))
            self._kept[key] = record
        else:
            self._kept.pop(key, None)
            self._places[key] = _place_of(start, line, self._names)

    def add(self, record: Record) -> None:
        """Writes a record to the end of the file. Raises ConfigError for a disk error."""
        start, line = self._file.append(record)
        self._place(record, start, line)

    def only(self, keys: Collection[Key] | None = None, methods: Collection[str] | None = None) -> "RecordStore":
        """Returns the part of the store with these keys, in their order, and with at least these methods."""
        part = object.__new__(RecordStore)
        part._file = self._file
        part._kept = self._kept
        part._room = 0
        part._places = self._places if keys is None else {key: self._places[key] for key in keys}
        part._methods = self._methods if methods is None else frozenset(methods)
        return part

    def __getitem__(self, key: Key) -> Record:
        place = self._places[key]
        return self._kept.get(key) or self._read(key, place)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __eq__(self, other: object) -> bool:
        """One record at a time, so that two large runs can be compared."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(self[key] == other[key] for key in self)

    __hash__ = None  # type: ignore[assignment]

    def _read(self, key: Key, place: Place) -> Record:
        line = self._file.bytes_at(place.start, place.length)
        if self._methods is not None and place.methods:
            # the line with fewer methods: what is before the first, these, and what is after the last
            first, last = place.bounds[0], place.bounds[-1]
            parts = {name: line[slice(*of)] for name, of in place.parts.items() if name in self._methods}
            names = (msgspec.json.encode(name) + b":" + part for name, part in parts.items())
            line = line[: line.rindex(b"{", 0, first) + 1] + b",".join(names) + line[last:]
        try:
            record: Record = self._file.decoder.decode(line, MAX_LINE)
        except ValueError as error:
            raise ConfigError(f"{self._file.path}: was changed while it was read ({error}): try again") from error
        if record.key != key:
            raise ConfigError(f"{self._file.path}: was changed while it was read: try again")
        return record


class RecordList(Sequence[Record]):
    """Some records of a store in a given order, each read, and then changed, when it is asked for."""

    def __init__(
        self, records: Mapping[Key, Record], keys: Sequence[Key],
        change: Callable[[Record], Record] = lambda record: record,
    ) -> None:  # fmt: skip
        self._records = records
        self._keys = keys
        self._change = change

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return RecordList(self._records, self._keys[place], self._change)
        return self._change(self._records[self._keys[place]])
