"""A command is repeated when its run is finished: rows at once, and no weights are read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.models.gguf.engine import LlamaNetwork
from specbench.models.loading import model_source
from tests.support.gguf_files import embedded, needs_llama_cpp

Specbench = Callable[..., tuple[int, str, str]]
WORDS = ("run", "--task", "mgsm", "--subset", "en", "--limit", "2", "--data", "sample", "--threads", "1",
         "--set", "generation.max_new_tokens=6")  # fmt: skip
LOADED = "weights are read"


@pytest.fixture
def refuse_weights(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, reading weights is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(LOADED)

    readers = ("loading.load_network", "gguf.loading.load_dequantized", "heads.checkpoints.read_tensors")

    def patch() -> None:
        for reader in readers:
            monkeypatch.setattr(f"specbench.models.{reader}", refuse)

    return patch


def change_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("output", [("--output", "here"), ()])
@pytest.mark.parametrize("method", ["sd,pld"])
def test_rows_are_made_again_without_the_models(
    method: str, output: tuple[str, ...], specbench: Specbench, tmp_path: Path, refuse_weights: Callable[[], None]
) -> None:
    words = (*WORDS, "--method", method, *output)
    code, first, err = specbench(*words)
    assert code == 0, err
    (folder,) = [each.parent for each in tmp_path.rglob("records.jsonl")]
    before = {name: (folder / name).read_bytes() for name in ("records.jsonl", "run.json", "measurements.json")}
    rows = (folder / "leaderboard.json").read_bytes()
    (folder / "leaderboard.json").unlink()
    refuse_weights()
    code, again, err = specbench(*words)
    assert code == 0 and "all 2 examples are measured already" in err, err
    assert again == first and (folder / "leaderboard.json").read_bytes() == rows
    assert before == {name: (folder / name).read_bytes() for name in before}
    code, _, err = specbench(*words, "--leaderboard", "board.json")
    assert code == 0 and (tmp_path / "board.json").is_file(), err


@pytest.mark.parametrize(("method", "head"), [("medusa", "medusa"), ("eagle3-chain", "eagle3")])
def test_a_finished_run_of_heads_loads_neither_target_nor_heads(
    method: str, head: str, specbench: Specbench, tmp_path: Path, refuse_weights: Callable[[], None]
) -> None:
    heads = tmp_path / "heads"
    shutil.copytree(model_source(f"embedded:{head}"), heads)
    common = (*WORDS, "--limit", "1", "--method", method, "--set", f"drafter.path={heads}", "--output", "here")
    code, first, err = specbench(*common)
    assert code == 0, err
    rows = (tmp_path / "here" / "leaderboard.json").read_bytes()
    refuse_weights()
    code, again, err = specbench(*common)
    assert code == 0 and again == first, err
    assert (tmp_path / "here" / "leaderboard.json").read_bytes() == rows
    change_last_byte(next(heads.glob("*.safetensors")))
    code, _, err = specbench(*common)
    assert code == 2 and LOADED in err, "other heads"


@pytest.mark.parametrize("engine", ["eager", "llama.cpp"])
def test_a_finished_run_of_gguf_files_loads_neither(
    engine: str, specbench: Specbench, tmp_path: Path, refuse_weights: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if engine == "llama.cpp":
        needs_llama_cpp()
    target, drafter = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    for file in (target, drafter):
        shutil.copy(embedded(file.stem), file)
    common = (*WORDS, "--limit", "1", "--method", "sd", "--output", "here", "--target", str(target), "--drafter",
              str(drafter), "--engine", engine)  # fmt: skip
    code, first, err = specbench(*common)
    assert code == 0, err
    rows = (tmp_path / "here" / "leaderboard.json").read_bytes()
    refuse_weights()
    if engine == "llama.cpp":
        opened = LlamaNetwork.__init__

        def open_vocabulary(network: LlamaNetwork, *words: object, only_vocabulary: bool = False) -> None:
            assert only_vocabulary, LOADED
            opened(network, *words, only_vocabulary=True)  # type: ignore[arg-type]

        monkeypatch.setattr(LlamaNetwork, "__init__", open_vocabulary)
    code, again, err = specbench(*common)
    assert code == 0 and again == first, err
    assert (tmp_path / "here" / "leaderboard.json").read_bytes() == rows
    change_last_byte(drafter)
    with pytest.raises(AssertionError, match=LOADED):  # another drafter
        specbench(*common)


def test_what_is_missing_or_changed_loads_the_models(
    specbench: Specbench, tmp_path: Path, refuse_weights: Callable[[], None]
) -> None:
    target = tmp_path / "target"
    shutil.copytree(model_source("embedded:target"), target)
    common = (*WORDS, "--method", "sd", "--output", "here", "--target", str(target), "--drafter", "embedded:drafter")
    code, _, err = specbench(*common)
    assert code == 0, err
    folder = tmp_path / "here"
    refuse_weights()
    assert specbench(*common)[0] == 0
    for more in (("--limit", "3"), ("--repeats", "2"), ("--dtype", "bfloat16")):
        code, _, err = specbench(*common, *more)
        assert code == 2 and LOADED in err, (more, err)
    kept = {name: (folder / name).read_text() for name in ("records.jsonl", "measurements.json", "run.json")}
    environment = json.loads(kept["run.json"])
    environment["environment"]["versions"]["torch"] = "0.1"
    for name, text in (
        ("records.jsonl", kept["records.jsonl"].splitlines()[0] + "\n"),
        ("measurements.json", '{"measurements": []}'),
        ("run.json", json.dumps(environment)),
    ):
        (folder / name).write_text(text)
        code, _, err = specbench(*common)
        says = "versions.torch: " if name == "run.json" else LOADED  # what needs no model is told before
        assert code == 2 and says in err, (name, err)
        (folder / name).write_text(kept[name])
    assert specbench(*common)[0] == 0
    change_last_byte(next(target.glob("*.safetensors")))
    code, _, err = specbench(*common)
    assert code == 2 and LOADED in err, "another checkpoint"
