"""Suites and boards whose pairs are sets of servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.publish.suite_runs import load_suite
from specbench.results.leaderboard import load
from tests.support.processes import InProcess
from tests.support.scripted_server import AR, SD, Script, servers_file

FIGURES = {
    "number": "1", "title": "tokens/s", "hardware": "1 x GPU", "differs": ["the GPU"], "task": "mgsm",
    "metric": "tokens_per_second", "columns": [{"label": "8 at once", "load": "concurrency 2"}, {"label": "alone"}],
    "groups": [{"rows": [{"label": "draft", "method": "draft", "figures": [1000, 500]}]}],
}  # fmt: skip


def write_suite(folder: Path, file: Path, **keys: Any) -> Path:
    content = {
        "name": "board", "pairs": {"here": {"servers": str(file), "subsets": {"mgsm": ["en"]}}}, "methods": ["draft"],
        "tasks": ["mgsm"], "limit": 2, "published": [FIGURES],
    }  # fmt: skip
    path = folder / "board.yaml"
    path.write_text(json.dumps(content | keys))
    return path


def test_a_pair_may_be_a_set_of_servers(tmp_path, specbench, monkeypatch) -> None:
    monkeypatch.setattr("specbench.publish.suite.MeasuringProcess", InProcess)
    scripts = {"ar": Script("vllm", AR), "draft": Script("vllm", SD), "other": Script("vllm", SD)}
    load_keys = {"load": {"concurrency": [2], "windows": 2, "requests": 2}}
    with servers_file(tmp_path, scripts, **load_keys) as file:
        path = write_suite(tmp_path, file)
        code, shown, problem = specbench("suite", path, "--runs", tmp_path / "runs")
        assert code == 0, problem
        board = tmp_path / "runs/suites/board/leaderboard.json"
        rows = load(board)
        places = [(row.method_name, row.level) for row in rows]
        assert places == [(name, level) for level in ("", "concurrency 2") for name in ("ar", "draft")]
        assert not scripts["other"].requests  # a server that the suite does not name
        code, shown, problem = specbench("suite", path, "--runs", tmp_path / "runs", "--dry-run")
        assert code == 0 and "measured already" in shown
        code, shown, problem = specbench("board", "show", path, "--runs", tmp_path / "runs", "--json")
        assert code == 0, problem
        ours = [figure["ours"] for figure in json.loads(shown)]
        expected = [row.value("tokens_per_second") for row in rows if row.method_name == "draft"]
        assert ours == expected[::-1] and None not in ours


def test_figures_are_shown_before_the_servers_are_written_down(tmp_path, specbench) -> None:
    path = write_suite(tmp_path, tmp_path / "absent.yaml")
    code, shown, _ = specbench("board", "show", path)
    assert code == 0 and "its servers in" in shown.replace("\n", " ")
    code, shown, _ = specbench("suite", path, "--dry-run", "--runs", tmp_path / "runs")
    assert code == 0 and "would fail here" in shown and "absent.yaml" in shown
    code, _, problem = specbench("suite", path, "--runs", tmp_path / "runs", "--ray", "local")
    assert code == 2 and "--ray local: workers would disturb each other at the servers" in problem


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pairs": {"a": {"servers": "s.yaml"}, "b": None}}, r"pairs.a: has servers, but other pairs have none"),
        ({"pairs": {"a": {"servers": "s.yaml", "drafter": "d"}}}, r"drafter = 'd': has no effect with servers"),
        ({"tasks": [{"task": "mgsm", "fairness": True}]}, r"'mgsm' has fairness, which needs models in this process"),
    ],
)
def test_what_servers_have_not_is_refused(tmp_path, keys, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load_suite(str(write_suite(tmp_path, tmp_path / "s.yaml", **keys)))
