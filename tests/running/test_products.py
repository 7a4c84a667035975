"""How eager passes on a CPU multiply is a condition of rows, and the same when a run is resumed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from specbench.models import packed
from specbench.results.conditions import conditions_that_differ
from specbench.results.leaderboard import load
from specbench.results.rows import products_of_row
from specbench.running import models as running
from tests.support import tiny
from tests.support.rows import row

needs_packing = pytest.mark.skipif(not packed.packs_bfloat16(), reason="torch has no packed products here")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(specbench: Run, tmp_path: Path) -> Run:
    """Runs `pld` on a task of two rows, in bfloat16."""
    tiny.save(tmp_path / "model", num_hidden_layers=1)
    lines = ["name: t", "version: 1", "title: T", "prompt: '{{ row.text }}'", "local: {files: [rows]}"]
    (tmp_path / "t.yaml").write_text("\n".join([*lines, "generation: {max_new_tokens: 3}"]))
    (tmp_path / "rows.jsonl").write_text('{"text": "One?"}\n{"text": "Two?"}\n')
    fixed = ("--task", "t.yaml", "--data", ".", "--method", "pld", "--target", str(tmp_path / "model"), "--json")
    return lambda *words, dtype="bfloat16": specbench("run", *fixed, "--dtype", dtype, "--device", "cpu", *words)


class Probe:
    """Stands in for the probe: says what it is told to say."""

    def __init__(self) -> None:
        self.pays, self.num_calls = True, 0

    def __call__(self, network: nn.Module) -> tuple[bool, str]:
        self.num_calls += 1
        return self.pays, "9 GB/s"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    made = Probe()
    monkeypatch.setattr(running, "packing_pays", made)
    return made


def products(out: str) -> set[Any]:
    return {row["products"] for row in json.loads(out)}


@needs_packing
@pytest.mark.parametrize(("pays", "kind"), [(True, "packed"), (False, "plain")])
def test_a_resumed_run_keeps_the_products_of_its_folder(run: Run, probe: Probe, pays: bool, kind: str) -> None:
    probe.pays = pays
    code, out, err = run("--limit", "1", "--output", "a")
    assert code == 0 and products(out) == {kind}, err
    assert list(json.loads(Path("a/run.json").read_text())["products"].values()) == [kind]
    probe.pays = not pays  # as a busy machine may let it seem
    code, out, err = run("--output", "a")
    assert code == 0 and products(out) == {kind} and probe.num_calls == 1, err
    assert "(as before in this folder)" in out + err
    code, out, err = run("--output", "b")
    (differing,) = conditions_that_differ(load(Path("a/leaderboard.json"))[0], load(Path("b/leaderboard.json"))[0])
    assert differing.field == "products" and {differing.first, differing.second} == {"packed", "plain"}


@needs_packing
def test_the_folder_of_a_request_is_found_whatever_a_probe_says(run: Run, probe: Probe) -> None:
    assert run()[0] == 0
    probe.pays = False
    assert run()[0] == 0 and len(list(Path("runs").iterdir())) == 1


@needs_packing
def test_without_a_choice_products_are_packed_and_other_ones_are_refused(run: Run, probe: Probe) -> None:
    probe.pays = False
    code, out, _ = run("--engine", "eager", "--output", "eager")
    assert code == 0 and products(out) == {"packed"} and probe.num_calls == 0
    assert run("--output", "a")[0] == 0
    code, _, err = run("--engine", "eager", "--output", "a")
    assert code == 2 and '"plain" → "packed"' in err


def test_other_dtypes_have_no_products(run: Run, probe: Probe) -> None:
    code, out, err = run("--output", "a", dtype="float32")
    assert code == 0 and products(out) == {None} and probe.num_calls == 0, err
    assert "products" not in json.loads(Path("a/run.json").read_text())


@pytest.mark.parametrize(("found", "drafter", "expected"), [
    ({}, "d", None), ({"t": "packed"}, None, "packed"), ({"t": "plain", "d": "plain"}, "d", "plain"),
    ({"t": "packed", "d": "plain"}, "d", "packed target, plain drafter"), ({"d": "plain"}, "d", "plain"),
    ({"t": "packed", "d": "plain"}, None, "packed"),
])  # fmt: skip
def test_the_products_of_a_row(found: dict[str, str], drafter: str | None, expected: str | None) -> None:
    assert products_of_row(found, "t", drafter) == expected


def test_the_drafters_products_part_no_rows_of_a_quantized_target() -> None:
    """A drafter in bfloat16 beside an int8 target has packed products, `pld` of the same run has none."""
    for dtype, differ in (("int8 (bfloat16)", []), ("bfloat16", ["products"])):
        first, second = row(dtype=dtype, products="packed"), row(dtype=dtype, products=None)
        assert [each.field for each in conditions_that_differ(first, second)] == differ
