"""The notebook of the documentation and the code of its page on Python run, on few questions."""

import re
from pathlib import Path

import pytest

from tools.notebook import execute, page, read

PYTHON = Path(__file__).resolve().parents[2] / "docs" / "guide" / "python.md"


# One layer in the place of 24: `small` are options of the runs that name no target.
SMALL = "; small = dict(target='embedded:drafter', drafter='embedded:drafter-scdf', data='sample')"
ONE_LAYER = {'model_source("embedded:target")': 'model_source("embedded:drafter")'}


@pytest.fixture(autouse=True)
def few_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 4)
    monkeypatch.chdir(tmp_path)


def test_the_cells_of_the_notebook_run() -> None:
    pytest.importorskip("matplotlib")
    cells = read()["cells"]
    fewer = ONE_LAYER | {
        "limit=3": "limit=1",
        '"generation.max_new_tokens": 48}': '"generation.max_new_tokens": 4}' + SMALL,
        "overrides=short, quiet=True)": "overrides=short, quiet=True, **small)",
    }
    sources = []
    for cell in cells:
        text = "".join(cell["source"])
        for long, short in fewer.items():
            text = text.replace(long, short)
        sources.append({**cell, "source": [text]})
    assert sum(long in "".join(map(str, cells)) for long in fewer) == len(fewer)
    for old, new in zip(cells, execute(sources), strict=True):
        if old["cell_type"] == "code":  # each shows again what it shows in the documentation
            assert [sorted(each.get("data", ())) for each in new["outputs"]] == [
                sorted(each.get("data", ())) for each in old["outputs"]
            ], "".join(old["source"])


def test_its_page_holds_all_cells_and_outputs() -> None:
    cells, text = read()["cells"], page()
    assert all("".join(cell["source"]) in text for cell in cells)
    num_outputs = sum(len(cell.get("outputs", ())) for cell in cells)
    assert text.count("<div>") + text.count("<img ") + text.count("```text") == num_outputs >= 6


def test_the_code_of_the_page_on_python_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names: dict[str, object] = {}
    fewer = ONE_LAYER | {"limit=2": "limit=1", "16}": "4}" + SMALL, "overrides=short)": "overrides=short, **small)"}
    text = PYTHON.read_text(encoding="utf-8")
    assert all(long in text for long in fewer)
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        for long, short in fewer.items():
            block = block.replace(long, short)
        exec(block, names)
    out = capsys.readouterr().out
    assert "identical" in out and "mgsm@4 · repeat@1" in out and "object:step-1000" in out
    assert (tmp_path / "rows.parquet").is_file() and (tmp_path / "speed.png").is_file()
