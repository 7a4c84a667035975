"""`specbench tune` in tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.run import tune


@pytest.fixture
def call(
    tmp_path: Path, tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """The command on a random pair and twenty rows: (stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: None)  # of a checkout at work
    monkeypatch.setattr("sys.argv", ["specbench", "tune"])
    rows = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(20)]
    (tmp_path / "mgsm_en.tsv").write_text("\n".join(rows), encoding="utf-8")

    def run_it(method: str, **options: Any) -> tuple[str, str]:
        options |= {name: Path(options[name]) for name in ("runs", "output") if name in options}
        given = {"task": "mgsm", "target": tiny_pair[0], "drafter": tiny_pair[1], "data": ".", "subsets": "en"}
        tune(method=method, **{**given, "overrides": ["generation.max_new_tokens=6"], **options})
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run_it
