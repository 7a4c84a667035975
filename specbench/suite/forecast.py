"""How long a suite takes: what its cells have left to measure, at the speeds that were measured."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.running.records import Record
from specbench.suite.cells import Cell
from specbench.suite.evidence import Evidence

Group = tuple[str, str]  # pair and task: cells that have them in common take about the same for an example


@dataclass
class Planned:
    """A cell and its work: `subsets`: of each its blocks (an example, repeat and turn) and the tokens that an answer
    may have; None where the data cannot be read here. `methods` are names as records have them. `problem`: why the cell
    cannot be measured, as far as that is seen without a model."""

    cell: Cell
    methods: tuple[str, ...]
    subsets: tuple[tuple[int, int], ...] | None
    is_measured: bool
    num_done: int = 0
    problem: str | None = None

    @property
    def group(self) -> Group:
        return self.cell.pair_name, self.cell.task.called

    @property
    def num_blocks(self) -> int:
        return sum(number for number, _ in self.subsets or ())

    @property
    def num_left(self) -> int:
        return 0 if self.is_measured else max(0, self.num_blocks - self.num_done)


@dataclass(frozen=True)
class Estimate:
    """Seconds. `most`: where every answer has all tokens that it may have, at the same speeds. `unknown`: cells that
    are not in it, since nothing like them was measured."""

    seconds: float
    most: float
    unknown: int = 0


@dataclass
class Forecast:
    """`loading` and `other`: seconds of a pair's models, and of a cell beside its answers (data, warming up)."""

    plan: Sequence[Planned]
    evidence: dict[Group, Evidence] = field(default_factory=lambda: defaultdict(Evidence))
    loading: dict[str, float] = field(default_factory=dict)
    other: dict[Group, float] = field(default_factory=dict)

    def add(self, number: int, record: Record, counts: bool = True) -> None:
        """A record of a cell; `counts`: whether it is one more of those that the cell is to have."""
        planned = self.plan[number]
        self.evidence[planned.group].add(record)
        planned.num_done += counts

    def of(self, planned: Planned) -> Estimate | None:
        """What a cell has left, without loading its models; None where nothing like it was measured."""
        known = self.evidence[planned.group]
        if planned.is_measured:
            return Estimate(0, 0)
        seconds = known.seconds(planned.methods)
        if seconds is None or planned.subsets is None:
            return None
        other = self.other.get(planned.group, 0.0)
        share = planned.num_left / planned.num_blocks if planned.num_blocks else 0.0
        most = sum(number * (known.most(planned.methods, tokens) or 0.0) for number, tokens in planned.subsets)
        about = seconds * planned.num_left
        return Estimate(other + about, other + max(about, most * share))

    def total(self, num_workers: int) -> Estimate:
        """What is left of all cells, shared by the workers: at least what the longest one takes. Each worker loads the
        models of each pair that it comes to."""
        left = [planned for planned in self.plan if not planned.is_measured]
        found = [estimate for planned in left if (estimate := self.of(planned)) is not None]
        pairs = [planned.cell.pair_name for planned in left]
        loading = sum(
            self.loading.get(pair, 0.0) * min(num_workers, pairs.count(pair)) for pair in dict.fromkeys(pairs)
        )
        num_workers = max(1, min(num_workers, len(left)))

        def shared(seconds: Sequence[float]) -> float:
            return max((sum(seconds) + loading) / num_workers, max(seconds, default=0.0))

        about, most = ([getattr(each, name) for each in found] for name in ("seconds", "most"))
        return Estimate(shared(about), shared(most), len(left) - len(found))


def shown(seconds: float) -> str:
    """45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def cells_in(forecast: Forecast) -> str:
    """1 cell, 12 cells."""
    return f"{len(forecast.plan)} cell{'' if len(forecast.plan) == 1 else 's'}"
