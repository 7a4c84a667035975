"""What a figure shows, before it is drawn: panels of values with their intervals, and a line of data for each value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.report.captions import HasWarnings, marked_warnings
from specbench.statistics.bootstrap import Bounds, Estimate

Scale = Literal["categories", "linear", "log2", "map"]
MOST_SERIES = 14  # methods that colours and markers tell apart


@dataclass(frozen=True)
class Mark:
    """A value with its interval, in the unit of its axis. `x`: its place, or its category. `n`: the number of units
    that intervals resample. `row`: the row or the way that it is of. `cells`: further cells of its line of data.
    `y_place`: its place on the second axis of a map, whose values are written into its cells."""

    series: str
    x: float | str
    y: Estimate
    n: int
    row: HasWarnings | None = None
    x_interval: Estimate | None = None
    cells: Mapping[str, object] = field(default_factory=dict)
    y_place: float | None = None

    @property
    def is_flagged(self) -> bool:
        """Whether a line of the caption warns of it."""
        return self.row is not None and bool(marked_warnings(self.row))


@dataclass(frozen=True)
class Panel:
    """The values of a pair of axes. `metric`: the name of y in the data. `reference`: the value of AR, a dashed line;
    of a map, the value below which cells are hatched.
    `is_joined`: whether a line joins the marks of a series. `front`: the corners of a Pareto front, `less_is_better`:
    whether of x. `bounds`: of y. `from_zero`: whether y begins at 0. `x_name`: the name of x in the data, if it is not
    the figure's. `x_lines`: places of dotted lines across x. `is_beside`: whether it stands beside the panel before it.
    """

    heading: str
    x_label: str
    y_label: str
    metric: str
    marks: tuple[Mark, ...]
    scale: Scale = "categories"
    reference: float | None = None
    is_joined: bool = False
    front: tuple[tuple[float, float], ...] = ()
    bounds: Bounds | None = None
    x_name: str = ""
    x_lines: tuple[float, ...] = ()
    less_is_better: bool = False
    from_zero: bool = False
    is_beside: bool = False

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(str(mark.x) for mark in self.marks))

    @property
    def names_its_series(self) -> bool:
        """Whether the categories are the series, or the heading names the only one, so that no legend has to."""
        return self.scale == "map" or (self.scale == "categories" and all(mark.x == mark.series for mark in self.marks))


@dataclass(frozen=True)
class Drawing:
    """A figure. `x_name`: the name of x in the data. `n_of`: what `n` counts. `caption`: its sentences."""

    panels: tuple[Panel, ...]
    x_name: str
    n_of: str
    caption: Sequence[str]

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(mark.series for panel in self.panels for mark in panel.marks))

    def data(self) -> list[dict[str, object]]:
        """Returns what is drawn: a line for each value, with the same keys."""
        lines = list(self._lines())
        names = list(dict.fromkeys(name for line in lines for name in line))
        last = [name for name in names if name == "warnings"]
        names = [name for name in names if name not in last] + last
        return [{name: line.get(name) for name in names} for line in lines]

    def _lines(self) -> Iterator[dict[str, object]]:
        for panel in self.panels:
            name = panel.x_name or self.x_name
            for mark in panel.marks:
                line: dict[str, object] = {"panel": panel.heading, "method": mark.series, name: mark.x}
                if mark.x_interval is not None:
                    line |= {f"{name}_low": mark.x_interval.low, f"{name}_high": mark.x_interval.high}
                line |= {"metric": panel.metric, "value": mark.y.value, "low": mark.y.low, "high": mark.y.high}
                line |= {"n": mark.n, "n_of": self.n_of, **mark.cells}
                codes = [] if mark.row is None else [warning.code for warning in mark.row.warnings]
                yield line | {"warnings": " ".join(codes)}
