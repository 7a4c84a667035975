"""What a board YAML says: pairs of models, runs of tasks and methods on them, conditions, published figures."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.boards.figures import FigureTable, Place
from specbench.errors import ConfigError, nearest
from specbench.resources import EMBEDDED
from specbench.results.glossary import meaning
from specbench.specs.components import Name, Spec, Text, Version

Count = Annotated[int, Field(ge=1)]
QUALITY = "quality"  # the metric that stands for the quality of a row, whichever it is
FAIRNESS = "fairness."  # what the path of a number of `specbench fairness` begins with


class PairSpec(Spec):
    """A target and a drafter. Without a target it is the embedded family, which stands in for every published pair.

    `runs`: those of the board that it takes part in, all when absent. `methods`: what it measures in place of a method
    of the board; null: nothing. `subsets`: by run, those that it measures.
    """

    target: Text | None = None
    drafter: Text | None = None
    target_revision: Text | None = None
    drafter_revision: Text | None = None
    limit: Count | None = None
    runs: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    methods: dict[str, Text | None] = Field(default_factory=dict)
    subsets: dict[str, tuple[Text, ...]] = Field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """Whether its numbers are shown beside the figures of all published pairs."""
        return self.target is None or self.target == f"{EMBEDDED}target"


class BoardRun(Spec):
    """One task with methods that are measured together. `set`: overrides as `--set` takes them. `fairness`: whether
    the rows get the numbers of `specbench fairness` too."""

    task: Text
    methods: Annotated[tuple[Text, ...], Field(min_length=1)]
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    set: tuple[Text, ...] = ()
    limit: Count | None = None
    repeats: Count | None = None
    fairness: bool = False


class Conditions(Spec):
    """What holds for all runs. `limit`: examples per subset; the command line wins over the pair, the pair over the
    run, the run over this."""

    limit: Count | None = None
    repeats: Count = 1
    seed: Annotated[int, Field(ge=0)] = 0
    set: tuple[Text, ...] = ()
    dtype: Text = "auto"
    chat: Text = "auto"


class BoardSpec(Spec):
    """A board. `columns`: the metrics that its own table shows of every method."""

    name: Name
    version: Version
    title: Text
    paper: Text | None = None
    pairs: Annotated[dict[Name, PairSpec], Field(min_length=1)]
    conditions: Conditions = Conditions()
    runs: Annotated[dict[Name, BoardRun], Field(min_length=1)]
    columns: Annotated[tuple[Text, ...], Field(min_length=1)]
    published: tuple[FigureTable, ...] = ()

    @model_validator(mode="after")
    def _refers_to_what_is_there(self) -> Self:
        methods = {"ar", *(method for run in self.runs.values() for method in run.methods)}
        for name, pair in self.pairs.items():
            for method in pair.methods:
                _known(f"pairs.{name}.methods", "method", method, methods)
            for key, named in (("subsets", pair.subsets), ("runs", pair.runs or ())):
                for run in named:
                    _known(f"pairs.{name}.{key}", "run", run, self.runs)
        for metric in self.columns:
            if metric != QUALITY and meaning(metric) is None:
                raise ConfigError(f"columns: unknown metric '{metric}': `specbench list metrics` shows them")
        numbers = [table.number for table in self.published]
        twice = [number for number in numbers if numbers.count(number) > 1]
        if twice:
            raise ConfigError(f"published: table '{twice[0]}' is there twice: delete or rename one")
        for table in self.published:
            for place in table.places():
                self._check(f"published: table {table.number}", place, methods)
        return self

    def _check(self, where: str, place: Place, methods: Any) -> None:
        """Every place refers to what the board has; what it does not name is a figure that we have no number for."""
        _known(where, "pair", place.pair, self.pairs)
        _known(where, "run", place.run, self.runs)
        for key in ("method", "minus", "change_from"):
            _known(where, key, getattr(place, key), methods)
        plain = place.metric is not None and place.metric != QUALITY and not place.metric.startswith(FAIRNESS)
        if plain and meaning(str(place.metric)) is None:
            raise ConfigError(f"{where}: unknown metric '{place.metric}': `specbench list metrics` shows them")


def _known(where: str, key: str, name: str | None, choices: Any) -> None:
    if name is not None and name not in choices:
        raise ConfigError(f"{where}: {key} = '{name}': the board has no such {key}: {nearest(name, choices)}")
