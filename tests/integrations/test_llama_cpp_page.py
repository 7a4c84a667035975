"""tools.llama_cpp: the servers to try, and the measured page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install 'specbench-lm[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specbench-lm[llama-cpp]'")

from specbench.integrations.served.llama_cpp import Serving
from tests.support.processes import subprocess_in_process
from tools.llama_cpp.__main__ import main, page, run_words
from tools.llama_cpp.server import gguf_file


def test_a_file_or_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["servers.yaml", "--write"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "give the name of a file, or --write" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_has_both_engines_and_every_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specbench: Callable[..., tuple[int, str, str]]
) -> None:
    """Of fewer subsets, with short answers of two models of one layer."""
    monkeypatch.setattr("tools.servers_page.subprocess", subprocess_in_process(specbench))
    names = ("drafter", "drafter-scdf")

    def serving(num_draft_tokens: int, num_slots: int) -> Serving:
        return Serving(*map(gguf_file, names), num_draft_tokens, num_slots, threads=1)

    def shorter(*given: Any) -> list[str]:
        fewer = [word.replace("en,sw,th,", "en,sw,") for word in run_words(*given)]
        target, drafter = (f"embedded:{name}" for name in names)
        pair = [] if "--servers" in given else ["--target", target, "--drafter", drafter]
        return [*fewer, *pair, "--set", "generation.max_new_tokens=16"]

    monkeypatch.setattr("tools.llama_cpp.__main__.embedded_serving", serving)
    monkeypatch.setattr("tools.llama_cpp.__main__.run_words", shorter)
    text = page(tmp_path / "work", 1, {"concurrency": [1, 2], "windows": 2}, tmp_path / "load.png")
    assert "{" not in text and (tmp_path / "load.png").stat().st_size > 0
    for task in ("mgsm", "humaneval"):
        for where, method in (("server", "draft"), ("server", "ngram"), ("in process", "sd"), ("in process", "pld")):
            (line,) = (line for line in text.splitlines() if line.startswith(f"| {task} | {where} | {method} |"))
            assert line.endswith("| greedy equal |")
    assert text.count("| 2 | draft |") == text.count("| 1 | ar |") == 2
