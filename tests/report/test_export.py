"""Rows as a flat table, in CSV and Parquet."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from specbench.core.errors import ConfigError
from specbench.report.display import export
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row

ROWS = [
    row(method="sd@1:0123", metrics={"speedup": Estimate(value=1.5, low=1.2, high=1.8)}),
    row(method="ar@1", metrics={"speedup": Estimate(value=1.0), "bleu": Estimate(value=30.0)}, language=None),
]


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return found
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_line_per_row_with_the_same_columns(tmp_path: Path, suffix: str) -> None:
    export(ROWS, tmp_path / f"rows.{suffix}")
    first, second = read(tmp_path / f"rows.{suffix}")
    null = "" if suffix == "csv" else None
    assert list(first) == list(second)
    assert [first[name] for name in ("method", "method_id")] == ["sd", "sd@1:0123"]
    assert [float(first[f"speedup{end}"]) for end in ("", "_low", "_high")] == [1.5, 1.2, 1.8]
    assert (first["bleu"], second["speedup_low"], second["language"]) == (null, null, null)
    assert float(second["bleu"]) == 30.0 and json.loads(first["sampling"])["temperature"] == 0


def test_no_text_is_a_formula_and_negative_numbers_are_numbers(tmp_path: Path) -> None:
    """A spreadsheet runs a cell that begins with one of these characters."""
    texts = ["=HYPERLINK(1)", "+1-1", "-x", "@SUM(1)", "\t=1", "\r=1", "\n=1", "-1.5", "+2e-7", "a=1", "", "-"]
    for text in texts:
        export([row(language=text, metrics={"=1": Estimate(value=-1.5)})], tmp_path / "rows.csv")
        (found,) = read(tmp_path / "rows.csv")
        is_kept = text in ("-1.5", "+2e-7", "a=1", "")
        shown = text.replace("\r", "\n")
        assert found["language"] == (text if is_kept else f"'{shown}") and found["'=1"] == "-1.5"


def test_no_rows_are_a_table_too(tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.parquet"):
        export([], tmp_path / name)
        assert read(tmp_path / name) == []


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a file that ends in \.csv or \.parquet"):
        export(ROWS, tmp_path / "rows.xlsx")
    with pytest.raises(ConfigError, match="cannot be written"):
        (tmp_path / "rows.csv").mkdir()
        export(ROWS, tmp_path / "rows.csv")
