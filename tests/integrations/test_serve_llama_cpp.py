"""`specbench serve-llama-cpp`: servers of a GGUF file, and the file that names them."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install 'specbench-lm[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specbench-lm[llama-cpp]'")

from specbench.integrations.served.llama_cpp import Serving
from specbench.results.leaderboard import load
from specbench.specs.run import read_servers
from tests.support import gguf_files
from tools.llama_cpp.server import gguf_file

Run = Callable[..., tuple[int, str, str]]


def test_the_file_names_every_server_with_its_speculation(tmp_path: Path) -> None:
    serving = Serving(Path("t.gguf"), Path("d.gguf"), num_draft_tokens=4)
    file = tmp_path / "servers.yaml"
    addresses = {name: f"http://127.0.0.1:{place}" for place, name in enumerate(serving.speculation, start=8001)}
    file.write_text(serving.file(addresses, "embedded:target", "this machine"))
    found = read_servers(file)
    assert list(found.servers) == ["ar", "draft", "ngram"] and found.load is None
    assert [method.num_draft_tokens for method in found.methods()] == [0, 4, 4]
    assert list(Serving(Path("t.gguf")).speculation) == ["ar", "ngram"]
    # To be read and changed by hand, like the files of the guide.
    assert "hardware: this machine\n" in file.read_text() and "{\n" not in file.read_text()


def test_a_file_is_served_measured_and_ended(specbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run comes in the place of waiting for Ctrl-C."""
    found: list[tuple[int, str]] = []

    def measure() -> None:
        short = ("--data", "sample", "--subset", "en", "--limit", "1", "--set", "generation.max_new_tokens=6",
                 "--output", "mine")  # fmt: skip
        code, _, err = specbench("run", "--task", "mgsm", "--servers", "servers.yaml", *short)
        found.append((code, err))
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.cli.serve.wait", measure)
    words = ("serve-llama-cpp", str(gguf_file("target")), "--drafter", str(gguf_file("drafter")), "--threads", "1")
    code, _, err = specbench(*words, "--context", "512")
    assert (code, [each[0] for each in found]) == (0, [0]), (err, found)
    rows = load(tmp_path / "mine" / "leaderboard.json")
    assert {row.method_name for row in rows} == {"ar", "draft", "ngram"}
    assert all(row.engine.startswith("served llama.cpp") for row in rows)
    code, _, err = specbench(*words)
    assert code == 2 and "--output servers.yaml: exists" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nowhere.gguf",), "nowhere.gguf: there is no such file"), (("text.gguf",), "text.gguf: ")],
)
def test_wrong_files_are_one_line(specbench: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "text.gguf").write_text("no GGUF")
    code, _, err = specbench("serve-llama-cpp", *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1


def test_a_model_that_llama_cpp_does_not_know_is_one_line(specbench: Run, tmp_path: Path) -> None:
    path = gguf_files.rewritten(gguf_file("drafter"), tmp_path / "m.gguf", {}, architecture="xyz")
    code, _, err = specbench("serve-llama-cpp", str(path), "--context", "256", "--threads", "1")
    assert code == 2 and f"{path}: llama.cpp does not start the server 'ar' (" in err
    assert "Traceback" not in err and "take another file" in err
    assert not (tmp_path / "servers.yaml").exists()
