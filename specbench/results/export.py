"""Rows of a leaderboard as a flat table, in CSV or Parquet."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.files import check_output, write_output
from specbench.results.row import Row

FORMATS = (".csv", ".parquet")


def columns(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Returns the rows as flat mappings with the same keys. Tasks and methods have their bare names, and their
    versioned names as task_id and method_id. Each metric has its interval as NAME_low and NAME_high. Other values that
    have parts are JSON text."""
    flat = []
    for row in rows:
        data = row.model_dump(mode="json", exclude={"metrics"})
        cells = {
            name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
            for name, value in data.items()
        }
        ids = {"task_id": row.task, "method_id": row.method}
        cells = {"task": row.task_name, "subset": row.subset, "method": row.method_name} | {
            name: value for name, value in (cells | ids).items() if name not in ("task", "subset", "method")
        }
        for name, metric in row.metrics.items():
            cells |= {name: metric.value, f"{name}_low": metric.low, f"{name}_high": metric.high}
        flat.append(cells)
    names = list(dict.fromkeys(name for cells in flat for name in cells))
    return [{name: cells.get(name) for name in names} for cells in flat]


def export(rows: Sequence[Row], to: Path) -> None:
    """Writes rows to a file in the format of its suffix. Raises ConfigError for another suffix, and if the file cannot
    be written."""
    if to.suffix not in FORMATS:
        raise ConfigError(
            f"--output {to}: the suffix must give the format: name a file that ends in {' or '.join(FORMATS)}"
        )
    check_output("--output", to)
    flat = columns(rows)
    write_output("--output", to, parquet_bytes(flat) if to.suffix == ".parquet" else csv_text(flat))


def csv_text(flat: Sequence[dict[str, Any]]) -> str:
    """Returns a CSV file with a header; null is an empty cell."""
    written = io.StringIO()
    writer = csv.DictWriter(written, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return written.getvalue()


def parquet_bytes(flat: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    written = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(list(flat)), written)
    content: bytes = written.getvalue().to_pybytes()
    return content
