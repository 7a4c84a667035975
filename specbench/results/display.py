"""Results as Python objects that notebooks show as tables and pictures."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.core.console import PlainConsole
from specbench.core.errors import ConfigError
from specbench.core.files import write_output
from specbench.core.table import Table
from specbench.results.check_findings import CheckReport
from specbench.results.compare import Comparison
from specbench.results.export import columns, parquet_bytes
from specbench.results.row import Row

if TYPE_CHECKING:
    from specbench.results.execute import RunOutcome


class DisplayedResult:
    """A result that notebooks show as tables, and `print` as text."""

    def tables(self) -> Iterable[Table | str]:
        """Returns the tables, and lines of text between them."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        parts = self.tables()
        return "".join(part.html() if isinstance(part, Table) else f"<p>{escape(part)}</p>\n" for part in parts)

    def __str__(self) -> str:
        console = PlainConsole()
        with console.capture() as captured:
            for part in self.tables():
                console.print(part, soft_wrap=isinstance(part, str))
        return captured.get()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Results(DisplayedResult):
    """The rows and the records of a run, or the rows of a leaderboard file. `path`: its folder or its file."""

    outcome: "RunOutcome"
    path: Path

    @property
    def rows(self) -> Sequence[Row]:
        """The rows: one per method and subset, and one over all subsets."""
        return self.outcome.rows

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records: for every example the tokens, steps and times of each method. Raises ConfigError if there are
        none."""
        from specbench.results.runs import RecordedRun

        if not self.path.is_dir():
            raise ConfigError(f"{self.path}: a leaderboard file has no records: load the folder of a run")
        return list(RecordedRun(self.path).records.values())

    def tables(self) -> Iterable[Table]:
        """Returns the tables that `specbench run` prints."""
        return self.outcome.tables()

    def columns(self) -> list[dict[str, Any]]:
        """Returns the rows as flat mappings, as `leaderboard export` writes them (`results.export.columns`)."""
        return columns(self.rows)

    def to_pandas(self) -> Any:
        """Returns a DataFrame with a line per row and the columns of `columns`."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.columns())

    def to_parquet(self, path: str | Path) -> Path:
        """Writes a Parquet file with a line per row and the columns of `columns`. Returns its path."""
        write_output("to_parquet", Path(path), parquet_bytes(self.columns()))
        return Path(path)

    def plot(self, path: str | Path | None = None) -> "Picture":
        """Returns a picture of speed-up and acceptance by subset, and writes it into a file if `path` is given."""
        from specbench.results.plots import check_plot, draw, picture_of

        if path is not None:
            check_plot(Path(path))
            draw(self.outcome.by_method(), Path(path))
        return Picture(picture_of(self.outcome.by_method()))


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure that notebooks show."""

    figure: Any

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=100)
        return content.getvalue()


class ComparedRuns(DisplayedResult, Comparison):
    """A comparison of two runs or methods."""

    def tables(self) -> Iterable[Table]:
        from specbench.results.compare import comparison_tables

        return comparison_tables(self)


class CheckedRuns(DisplayedResult, CheckReport):
    """A check of a run against a baseline. `result`: fine, regressed, identical or cannot compare."""

    def tables(self) -> Iterable[Table | str]:
        from specbench.results.check_report import screen

        return screen(self)
