"""The long columns of a record in compact form: token ids, values per position, steps and passes."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    AnyArray = array[Any]
else:
    AnyArray = array  # no generic before Python 3.12


class _Column(AnyArray):
    """Numbers in a row. It equals a list of the same numbers."""

    TYPE = "d"

    def __new__(cls, values: Iterable[float] = ()) -> "_Column":
        return super().__new__(cls, cls.TYPE, values)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | tuple | range) else super().__eq__(other)

    __hash__ = None  # as a list

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return type(self), (self.tolist(),)

    def __deepcopy__(self, memo: object) -> "_Column":
        return type(self)(self)


class Ints(_Column):
    TYPE = "i"

    @classmethod
    def of(cls, values: Sequence[int]) -> "Ints":
        """Returns the column. Raises ValueError for a value that is not a count."""
        column = cls(values)
        if column and min(column) < 0:
            raise ValueError(f"{min(column)} is negative")
        return column


class Floats(_Column):
    """Undefined values, null in the files of earlier versions, are NaN. A divergence may be infinite."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Floats":
        try:
            return cls(values)  # type: ignore[arg-type]
        except TypeError:  # one is null
            return cls(math.nan if value is None else value for value in values)


class StepCounts(NamedTuple):
    """The tokens of a step, or of all steps of a generation. The levels of a draft tree count as drafted tokens."""

    drafted: int
    verified: int
    accepted: int
    emitted: int


class Steps(Sequence[StepCounts]):
    """The counts of every step after the prefill: `counts` is [num_steps, 4], `total` their sums."""

    __slots__ = ("counts", "total")

    def __init__(self, steps: Sequence[Sequence[int]]) -> None:
        if not {4}.issuperset(map(len, steps)):
            raise ValueError("a step has 4 counts: drafted, verified, accepted, emitted")
        flat = array("i", chain.from_iterable(steps))
        self.counts: NDArray[np.int32] = np.array(flat, dtype=np.int32).reshape(-1, 4)
        self.total = StepCounts(*self.counts.sum(axis=0).tolist())

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, place: Any) -> Any:
        part = self.counts[place].tolist()
        return [StepCounts(*each) for each in part] if isinstance(place, slice) else StepCounts(*part)

    def __iter__(self) -> Iterator[StepCounts]:
        return map(StepCounts._make, self.counts.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.as_json() == [list(step) for step in other]

    @property
    def drafted(self) -> NDArray[np.int32]:
        return self.counts[:, 0]

    @property
    def verified(self) -> NDArray[np.int32]:
        return self.counts[:, 1]

    @property
    def accepted(self) -> NDArray[np.int32]:
        return self.counts[:, 2]

    @property
    def emitted(self) -> NDArray[np.int32]:
        return self.counts[:, 3]

    def as_json(self) -> list[list[int]]:
        steps: list[list[int]] = self.counts.tolist()
        return steps


class PassTimes(Sequence[tuple[int, float]]):
    """The passes of a model after the prefill: query lengths and seconds."""

    __slots__ = ("query_lengths", "seconds")

    def __init__(self, passes: Sequence[tuple[int, float]]) -> None:
        if not {2}.issuperset(map(len, passes)):
            raise ValueError("a pass has a query length and seconds")
        self.query_lengths = Ints.of(list(map(itemgetter(0), passes)))
        self.seconds = Floats(map(itemgetter(1), passes))
        if self.seconds and not (min(self.seconds) >= 0 and sum(self.seconds) < math.inf):  # false for a NaN, too
            raise ValueError(f"{next(each for each in self.seconds if not 0 <= each < math.inf)} seconds")

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return list(zip(self.query_lengths[place], self.seconds[place], strict=True))
        return self.query_lengths[place], self.seconds[place]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.query_lengths, self.seconds, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.as_json() == [list(each) for each in other]

    def as_json(self) -> list[list[float]]:
        return [[length, seconds] for length, seconds in self]
