"""GGUF files: their names, headers and tokenizers, models in torch with dequantized weights, and what is refused."""

import gc
import json
import mmap
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, file_digest
from specbench.models import devices
from specbench.models.gguf import engine
from specbench.models.gguf.cache_size import cache_bytes
from specbench.models.gguf.engine import ALL_LAYERS
from specbench.models.gguf.files import find_gguf, is_gguf, models_among, one_of, unknown_type
from specbench.models.gguf.header import Header, read_header
from specbench.models.gguf.loading import layers_on_gpu
from specbench.models.gguf.model import GgufLM
from specbench.models.gguf.options import GgufOptions
from specbench.models.gguf.tokenizer import check_tokenizer, load_gguf_tokenizer
from specbench.models.loading import gguf_sampling, load_model
from specbench.results.leaderboard import load
from specbench.running.models import LoadedModels, choose_products
from tests.support import gguf_files, tiny

Outcome = tuple[int, str, str]
FILE_ONLY = GgufOptions()


@pytest.fixture(scope="module")
def file() -> Path:
    return gguf_files.embedded("drafter")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.gguf", True), ("folder/MODEL.GGUF", True), ("org/repo:Q4_K_M", True), ("org/repo:sub/m.gguf", True),
        ("hf.co/org/repo:Q4_K_M", True), ("https://huggingface.co/org/repo:m.gguf", True), ("x/org/repo:Q8_0", False),
        ("org/repo", False), ("embedded:target", False), ("object:model", False), ("folder", False), ("a:b", False),
    ],
)  # fmt: skip
def test_names(name: str, expected: bool) -> None:
    assert is_gguf(name) is expected


def test_a_folder_with_one_file_is_a_model(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "model.gguf")
    (tmp_path / "mmproj-model.gguf").write_bytes(b"GGUF")
    assert is_gguf(str(tmp_path)) and find_gguf(str(tmp_path)).path == tmp_path / "model.gguf"
    shutil.copy(file, tmp_path / "other.gguf")
    find_gguf.cache_clear()
    with pytest.raises(ConfigError, match=r"several GGUF models \(model.gguf, other.gguf\): give the file"):
        find_gguf(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert not is_gguf(str(tmp_path))


def test_header_and_identity(file: Path) -> None:
    header = read_header(file)
    assert (header.architecture, header.precision, header.context_length) == ("llama", "F32", 2048)
    assert len(header.tokens) == 2048 and header.end_ids
    assert find_gguf(str(file)).identity == f"sha256-{file_digest(file, WHOLE)}"


def test_names_of_quantizations() -> None:
    files = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf",
             "mmproj-m-f16.gguf", "README.md"]  # fmt: skip
    models = models_among(files)
    assert len(models) == 3
    assert one_of(models, "q4_k_m", "m") == "m-Q4_K_M.gguf"
    assert one_of(models, "Q8_0", "m") == "Q8_0/m-Q8_0-00001-of-00002.gguf"
    assert one_of(models, "m-Q4_K_S.gguf", "m") == "m-Q4_K_S.gguf"
    for wanted, problem in (("Q4", "no such file"), ("Q4_K", "no such file"), ("m", "several files have this name")):
        with pytest.raises(ConfigError, match=problem):
            one_of(models, wanted, "model 'org/m'")


def test_a_file_in_the_hubs_cache_is_found_without_the_hub(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, repo = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--org--tiny"
    (repo / "snapshots" / commit).mkdir(parents=True)
    shutil.copy(file, repo / "snapshots" / commit / "tiny-Q4_K_M.gguf")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("org/tiny:Q4_K_M", "org/tiny:tiny-Q4_K_M.gguf"):
        assert find_gguf(name).path.read_bytes() == file.read_bytes()
    place = "HF_HUB_OFFLINE is set, so the hub is not asked, and the local cache of org/tiny has no such file"
    with pytest.raises(ConfigError, match=rf"^model 'org/tiny:Q8_0': {place}: .*tiny-Q4_K_M.gguf"):
        find_gguf("org/tiny:Q8_0")
    with pytest.raises(ConfigError, match=rf"{place} \(Q9_K is no type of llama.cpp, as Q4_K_M and Q8_0 are\): "):
        find_gguf("org/tiny:Q9_K")
    with pytest.raises(ConfigError) as caught:
        find_gguf("org/absent:Q8_0")
    assert str(caught.value) == (
        "cannot load model 'org/absent:Q8_0': HF_HUB_OFFLINE is set, so the hub is not asked, and the "
        "local cache has no GGUF file of it: give a GGUF file, or a repository that this machine can reach"
    )
    with pytest.raises(ConfigError, match=r"no GGUF file of it \(Q9_K is no type of llama.cpp, .*\): give a GGUF file"):
        find_gguf("org/absent:Q9_K")


def test_names_that_publishers_give_to_types_are_not_called_unknown() -> None:
    for known in ("Q4_K_M", "q8_0", "UD-Q4_K_XL", "Q2_K_L", "IQ4_XS", "BF16", "instruct", "MXFP4", "Q6_K-imat"):
        assert unknown_type(known) == "", known
    for unknown in ("Q9_K", "Q4_Z", "f17"):
        assert f"{unknown} is no type of llama.cpp" in unknown_type(unknown)


def test_files_that_are_no_whole_model(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    broken = {
        "cut.gguf": (content[: len(content) // 2], "is truncated: its tensors end at byte"),
        "header.gguf": (content[:5000], "is truncated: its header goes beyond its 5,000 bytes"),
        "short.gguf": (b"GGUF", "has 4 bytes, which is not a GGUF file"),
        "text.gguf": (b"x" * 100, "is not a GGUF file"),
        "lfs.gguf": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a pointer of Git LFS"),
        "big.gguf": (content[:4] + content[4:8][::-1] + content[8:], "is a big-endian file"),
        "new.gguf": (content[:4] + b"\x09\0\0\0" + content[8:], "has version 9 of GGUF"),
        "counts.gguf": (content[:8] + b"\xff" * 8 + content[16:], "is truncated"),
        "notokens.gguf": (content.replace(b"ggml.tokens", b"ggml.tekens"), "tokenizer.ggml.tokens is missing"),
        "m-00001-of-00002.gguf": (content, "is one of 2 parts, and m-00002-of-00002.gguf is missing beside it"),
    }
    for name, (data, problem) in broken.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=problem) as caught:
            find_gguf(str(path))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"does not exist \(.* has big.gguf, counts.gguf"):
        find_gguf(str(tmp_path / "absent.gguf"))


@pytest.mark.parametrize("tensor", ["blk.0.attn_q.weight", "output_norm.weight"])
def test_weights_of_an_unknown_type(file: Path, tmp_path: Path, tensor: str) -> None:
    """Their bytes are not known, so that nothing could show that the file lacks some."""
    path = gguf_files.retyped(file, tmp_path / "m.gguf", tensor, 200)
    with pytest.raises(ConfigError, match=rf"m.gguf: tensor '{tensor}' has type 200, which the package gguf does not"):
        find_gguf(str(path))
    find_gguf(str(gguf_files.retyped(file, tmp_path / "same.gguf", tensor, 0)))  # float32, as it was


def test_a_truncated_file_names_its_last_tensor(file: Path, tmp_path: Path) -> None:
    last = max(read_header(file).tensors.items(), key=lambda item: item[1].start)[0]
    path = tmp_path / "m.gguf"
    path.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ConfigError, match=rf"m.gguf: is truncated: its tensors end at byte [\d,]+ with '{last}'"):
        find_gguf(str(path))


def test_a_vocabulary_alone_is_no_model(file: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "m.gguf", file.read_bytes()
    path.write_bytes(content[:8] + bytes(8) + content[16:])  # a number of tensors of 0
    with pytest.raises(ConfigError, match=r"m.gguf: it has no tensors: it is the vocabulary of a model"):
        find_gguf(str(path))


def test_parts_belong_together(file: Path, tmp_path: Path) -> None:
    whole = gguf_files.split(file, tmp_path)
    number, num_tensors = len(whole), len(read_header(file).tensors)
    assert number > 2 and find_gguf(str(whole[0])).paths == tuple(whole)  # as they are, they do

    def copied(name: str) -> list[Path]:
        (tmp_path / name).mkdir()
        return [Path(shutil.copy(part, tmp_path / name)) for part in whole]

    def refused(path: Path, *said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            find_gguf(str(path))
        assert "\n" not in str(caught.value)
        for words in said:
            assert words in str(caught.value)

    first, second, third, *_ = copied("place")
    shutil.copy(third, second)
    refused(
        first,
        f"{second}: split.no = 2 (the first is 0), split.count = {number},",
        f"and its name says part 2 of {number}",
    )
    first, second, *_ = copied("number")
    key = b"split.count\x02\0\0\0"
    gguf_files.changed(second, second, key + bytes([number, 0]), key + bytes([number + 1, 0]))
    refused(
        first,
        f"{second}: split.no = 1 (the first is 0), split.count = {number + 1},",
        f"and its name says part 2 of {number}",
    )
    first, second, *_ = copied("tensors")
    key = b"split.tensors.count\x05\0\0\0"
    gguf_files.changed(second, second, key + bytes([num_tensors, 0]), key + bytes([num_tensors + 1, 0]))
    refused(first, f"{second}: split.tensors.count = {num_tensors + 1}, and the {number} parts have {num_tensors}")
    first, second, *others = copied("twice")
    name, other = next(
        (name, other) for part in others for other in read_header(part).tensors for name in read_header(second).tensors
        if len(name) == len(other)
    )  # fmt: skip
    gguf_files.changed(second, second, name.encode(), other.encode())
    refused(first, f"{first}: tensor '{other}' is in {second.name} and in ", "of different models or quantizations")
    plain = whole[0].rename(tmp_path / "plain.gguf")
    refused(plain, f"{plain}: split.no = 0 (the first is 0), split.count = {number}, and its name says none")


def test_a_whole_file_under_the_name_of_a_part(file: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        shutil.copy(file, tmp_path / f"m-0000{number}-of-00002.gguf")
    with pytest.raises(ConfigError, match=r"m-00001-of-00002.gguf: split.no = None .* and its name says part 1 of 2:"):
        find_gguf(str(tmp_path / "m-00001-of-00002.gguf"))


def header_of(**values: Any) -> Header:
    named = {f"m.{name.replace('__', '.')}": value for name, value in values.items()}
    return Header(Path("m.gguf"), {"general.architecture": "m", **named}, {}, 0, {})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 4 * 8 * (10 + 10)),  # as many key and value heads as query heads, of a length that follows
        ({"attention__head_count_kv": 2}, 4 * 2 * (10 + 10)),
        ({"attention__head_count_kv": [0, 2, 0, 2]}, 2 * 2 * (10 + 10)),  # two layers without attention
        ({"attention__head_count_kv": 2, "attention__key_length": 16, "attention__value_length": 8}, 4 * 2 * (16 + 8)),
        ({"attention__sliding_window": 3}, 4 * 8 * (10 + 10)),  # the whole history
        ({"attention__sliding_window_pattern": 2, "attention__key_length_swa": 4}, 8 * (2 * 4 + 2 * 10 + 4 * 10)),
        ({"attention__sliding_window_pattern": [True, False, True, True], "attention__key_length_swa": 4},
         8 * (3 * 4 + 10 + 4 * 10)),
        ({"attention__shared_kv_layers": 3}, 8 * (10 + 10)),
        ({"nextn_predict_layers": 1}, 3 * 8 * (10 + 10)),
        ({"attention__head_count_kv": 1, "attention__key_length": 24, "attention__value_length": 16,
          "attention__key_length_mla": 12}, 4 * 24),
        ({"attention__head_count": 0}, 0),
    ],
)  # fmt: skip
def test_bytes_of_keys_and_values(values: dict[str, Any], expected: int) -> None:
    header = header_of(**{"block_count": 4, "embedding_length": 80, "attention__head_count": 8, **values})
    assert cache_bytes(header, 7, "float16") == 7 * 2 * expected
    assert cache_bytes(header, 7, "float32") == 7 * 4 * expected


def test_weights_that_stay_in_their_file_are_not_free(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says so of their pages: two models that need all of them would read the disk at every pass."""
    monkeypatch.setattr(engine, "library", fake_library)
    monkeypatch.setattr(engine, "own_memory", lambda: 0)
    monkeypatch.setattr("specbench.models.devices.available_memory", lambda: 5000 + others)
    gc.collect()
    others = sum(devices.WEIGHTS_IN_FILES.values())
    check = partial(devices.check_memory, 4500, "a drafter: its weights take", "take a smaller one")
    check()
    target = engine.LlamaNetwork(file)
    assert devices.free_memory() == 4000
    with pytest.raises(ConfigError, match=r"are free beside the weights of open models: free memory, or take a sm"):
        check()
    del target
    check()


def test_weights_that_were_copied_are_counted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((500, 1200))  # of the process, before and after llama.cpp brings 700 of 1000 bytes into an order
    monkeypatch.setattr(engine, "library", fake_library)
    monkeypatch.setattr(engine, "own_memory", lambda: next(readings))
    network = engine.LlamaNetwork(file)
    assert devices.WEIGHTS_IN_FILES[network] == 300


@pytest.mark.parametrize(
    ("groups", "folder", "limit", "usage", "prefix"),
    [("0::/box/inner\n", "box", "memory.max", "memory.current", ""),
     ("0::/\n", ".", "memory.max", "memory.current", ""),
     ("9:cpu:/x\n4:hugetlb,memory:/in/123\n", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")],
)  # fmt: skip
def test_a_container_allows_less_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, folder: str, limit: str, usage: str, prefix: str
) -> None:
    """Linux ends the process there. Pages of files, which it gives back, are free."""
    (tmp_path / "groups").write_text(groups)
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    (place / limit).write_text("1000\n")
    (place / usage).write_text("700\n")
    (place / "memory.stat").write_text(f"anon 500\n{prefix}active_file 50\n{prefix}inactive_file 150\n")
    found = devices.memory_of_groups(tmp_path / "groups", tmp_path)
    assert found == [500]
    (place / limit).write_text("max\n")
    assert devices.memory_of_groups(tmp_path / "groups", tmp_path) == []
    assert devices.memory_of_groups(tmp_path / "nowhere") == []
    monkeypatch.setattr("specbench.models.devices.memory_of_groups", lambda: found)
    assert devices.available_memory() in (500, None)


def test_memory_of_this_process() -> None:
    before = devices.own_memory()
    if not before:
        pytest.skip("the system does not tell")
    # Pages from the system: an object could be put where other tests have freed memory.
    with mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(bytes(len(held)))
        assert devices.own_memory() - before > 0.9 * len(held)


def test_a_tokenizer_that_transformers_lacks(file: Path, tmp_path: Path) -> None:
    path = gguf_files.changed(file, tmp_path / "kind.gguf", b"gpt2", b"abcd")
    with pytest.raises(ConfigError, match=r"tokenizer.ggml.model = 'abcd': .*folder or hub id instead of the file"):
        load_model(str(path), device="cpu", weights=False)
    of_a_run = GgufOptions(given_by="options")
    with pytest.raises(ConfigError, match=r"tokenizer.ggml.model = 'abcd': .*--tokenizer"):
        load_model(str(path), device="cpu", weights=False, gguf=of_a_run)


def test_a_tokenizer_without_its_merges(file: Path, tmp_path: Path) -> None:
    path = gguf_files.changed(file, tmp_path / "m.gguf", b"ggml.merges", b"ggml.mergez")
    with pytest.raises(ConfigError, match=r"m.gguf: tokenizer.ggml.merges is missing: .*--tokenizer"):
        load_model(str(path), device="cpu", weights=False, gguf=GgufOptions(given_by="options"))


def test_a_tokenizer_with_other_tokens(file: Path) -> None:
    found = find_gguf(str(file))
    check_tokenizer(load_gguf_tokenizer(found, FILE_ONLY), found, FILE_ONLY, None)
    with pytest.raises(ConfigError, match=r"tokenizer.ggml.tokens: .* of 2,048 are others in the tokenizer of --"):
        check_tokenizer(tiny.tokenizer(), found, GgufOptions("tiny"), None)
    with pytest.raises(ConfigError, match=r"it has 2,048 tokens, and the tokenizer .* makes token 3,"):
        check_tokenizer(tiny.tokenizer(num_extra=3000), found, GgufOptions("tiny"), None)


def test_added_tokens_are_listed_a_few_times_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes the dictionary anew at each access: once per token, Gemma's check would take minutes."""
    found, tokenizer, reads = find_gguf(str(file)), load_gguf_tokenizer(find_gguf(str(file)), FILE_ONLY), []
    added = type(tokenizer).added_tokens_decoder.fget

    def counted(self: object) -> dict[int, object]:
        reads.append(self)
        return dict(added(self))

    monkeypatch.setattr(type(tokenizer), "added_tokens_decoder", property(counted))
    check_tokenizer(tokenizer, found, FILE_ONLY, None)
    assert 0 < len(reads) < 10


def test_a_tokenizer_that_splits_otherwise(file: Path) -> None:
    """llama.cpp's is not needed to show it: one that makes a token of each byte."""
    found, tokenizer = find_gguf(str(file)), load_gguf_tokenizer(find_gguf(str(file)), FILE_ONLY)

    def split(text: str, adds: bool) -> list[int]:
        return [token for character in text for token in tokenizer(character)["input_ids"]]

    with pytest.raises(ConfigError, match=r"tokenizer.ggml.pre = 'gpt-2': llama.cpp splits a sample of text into"):
        check_tokenizer(tokenizer, found, FILE_ONLY, split)
    with pytest.warns(UserWarning, match="splits a sample of text"):  # the user's choice
        check_tokenizer(tokenizer, found, GgufOptions("org/model"), split)


def test_dequantized_it_is_the_checkpoint(file: Path) -> None:
    model, network = load_model(str(file), device="cpu", engine="eager"), load_model("embedded:drafter", device="cpu")
    ids = list(range(40))
    torch.testing.assert_close(model.score(ids, 30).logits, network.score(ids, 30).logits, atol=1e-4, rtol=1e-4)
    assert (model.engine, model.precision) == ("eager", "F32 dequantized (float32)")
    assert model.revision == find_gguf(str(file)).identity and model.eos_token_ids == network.eos_token_ids


def test_an_unknown_way_of_splitting_is_told_without_llama_cpp(file: Path, tmp_path: Path) -> None:
    found = find_gguf(str(file))
    check_tokenizer(load_gguf_tokenizer(found, FILE_ONLY), found, FILE_ONLY, None)  # a known one says nothing
    path = gguf_files.changed(file, tmp_path / "m.gguf", b"gpt-2", b"gpt-9")
    unknown = find_gguf(str(path))
    tokenizer = load_gguf_tokenizer(unknown, FILE_ONLY)
    with pytest.warns(UserWarning, match=r"m.gguf: tokenizer.ggml.pre = 'gpt-9': whether transformers splits text as"):
        check_tokenizer(tokenizer, unknown, FILE_ONLY, None)
    check_tokenizer(tokenizer, unknown, GgufOptions("org/model"), None)


def test_an_unknown_way_of_splitting_is_refused_with_llama_cpp(file: Path, tmp_path: Path) -> None:
    """Its reason is told; a tokenizer that the user chose is taken."""
    found = find_gguf(str(gguf_files.changed(file, tmp_path / "m.gguf", b"gpt-2", b"gpt-9")))
    tokenizer, reason = load_gguf_tokenizer(found, FILE_ONLY), "unknown pre-tokenizer type: 'gpt-9'"
    with pytest.raises(ConfigError, match=rf"pre = 'gpt-9': llama.cpp does not know how to split text \({reason}\)"):
        check_tokenizer(tokenizer, found, FILE_ONLY, reason)
    with pytest.warns(UserWarning, match="that of --tokenizer 'org/model' is taken unchecked"):
        check_tokenizer(tokenizer, found, GgufOptions("org/model"), reason)
    with pytest.warns(
        UserWarning, match=r"without llama.cpp, which cannot open it \(unknown model architecture\): give"
    ):
        check_tokenizer(tokenizer, found, FILE_ONLY, "unknown model architecture")


def test_a_dry_run_refuses_an_unknown_way_of_splitting(
    file: Path, specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason=gguf_files.NO_BINDING)
    path = gguf_files.changed(file, tmp_path / "m.gguf", b"gpt-2", b"gpt-9")
    code, _, said = specbench("run", "--task", "mgsm", "--method", "pld", "--data", "sample", "--dry-run", "--engine",
                              "eager", "--target", str(path))  # fmt: skip
    assert code == 2 and "(unknown pre-tokenizer type: 'gpt-9')" in " ".join(said.split())


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [("tokenizer.ggml.pre", b"gpt-2", b"gpt-9"), ("tokenizer.ggml.model", b"gpt2", b"abcd")], ids=str,
)  # fmt: skip
def test_llama_cpp_names_a_tokenizer_that_it_does_not_know(
    file: Path, tmp_path: Path, key: str, old: bytes, new: bytes
) -> None:
    """Another tokenizer would not do there: the remedy has the other engine, too."""
    pytest.importorskip("llama_cpp", reason=gguf_files.NO_BINDING)
    path, of_a_run = gguf_files.changed(file, tmp_path / "m.gguf", old, new), GgufOptions(given_by="options")
    for weights in (True, False):
        with pytest.raises(ConfigError, match=rf"m.gguf: {key} = '{new.decode()}': llama.cpp cannot open it") as caught:
            load_model(str(path), device="cpu", engine="llama.cpp", weights=weights, gguf=of_a_run)
        assert str(caught.value).endswith(
            "or take --engine eager and the tokenizer of the original model with --tokenizer"
        )


def test_the_tokenizer_of_a_drafter_has_an_option_of_its_own(
    file: Path, specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = gguf_files.changed(file, tmp_path / "m.gguf", b"ggml.merges", b"ggml.mergez")
    code, _, said = specbench("run", "--task", "mgsm", "--method", "sd", "--data", "sample", "--dry-run", "--engine",
                              "eager", "--target", str(file), "--drafter", str(path))  # fmt: skip
    assert code == 2 and "merges is missing: give the one of the original model with --drafter-tokenizer" in " ".join(
        said.split()
    )


def test_a_dry_run_refuses_an_architecture_that_llama_cpp_does_not_know(
    file: Path, specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason=gguf_files.NO_BINDING)
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {}, architecture="xyz")
    code, _, said = specbench("run", "--task", "mgsm", "--method", "pld", "--data", "sample", "--dry-run", "--target",
                              str(path))  # fmt: skip
    assert code == 2 and "general.architecture = 'xyz': llama.cpp cannot open it" in " ".join(said.split())


def test_a_model_in_several_files_is_dequantized(file: Path, tmp_path: Path) -> None:
    parts = gguf_files.split(file, tmp_path)
    assert len(parts) > 1 and parts[0].name.startswith("model-00001-of-0000")
    whole, model = (load_model(str(path), device="cpu", engine="eager") for path in (file, parts[1]))
    ids = list(range(40))
    assert torch.equal(model.score(ids, 30).logits, whole.score(ids, 30).logits)
    assert model.revision != whole.revision  # which is of the files


def test_the_header_of_a_model_in_several_files_is_that_of_the_whole(file: Path, tmp_path: Path) -> None:
    parts = gguf_files.split(file, tmp_path)
    whole, found = find_gguf(str(file)).header, find_gguf(str(parts[0])).header
    assert (found.num_bytes, found.types, found.table_bytes, found.tokens) == (
        whole.num_bytes, whole.types, whole.table_bytes, whole.tokens
    )  # fmt: skip
    content = parts[-1].read_bytes()
    parts[-1].write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=rf"{parts[-1].name}: is truncated"):
        find_gguf(str(parts[1]))


@pytest.mark.parametrize(
    ("able", "is_cpu", "wanted", "expected"),
    [(True, False, None, ALL_LAYERS), (True, True, None, 0), (True, True, 3, 3), (False, False, None, 0),
     (False, False, 0, 0)],
)  # fmt: skip
def test_layers_that_a_gpu_computes(
    monkeypatch: pytest.MonkeyPatch, able: bool, is_cpu: bool, wanted: int | None, expected: int
) -> None:
    """llama.cpp may have a GPU that torch was built without."""
    built = SimpleNamespace(llama_supports_gpu_offload=lambda: able)
    monkeypatch.setattr("specbench.models.gguf.loading.library", lambda: built)
    assert layers_on_gpu(is_cpu, wanted) == expected
    if not able:
        with pytest.raises(ConfigError, match="--gpu-layers 3: this llama-cpp-python was built without a GPU"):
            layers_on_gpu(is_cpu, 3)


def test_parts_are_joined_only_where_there_is_room(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = gguf_files.split(file, tmp_path)
    monkeypatch.setattr("specbench.models.gguf.loading.disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(ConfigError, match=r"parts are joined in .*, and 0.00 GiB are free there: name another folder"):
        load_model(str(parts[0]), device="cpu", engine="eager")


def test_a_file_that_does_not_fit_into_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.devices.free_memory", lambda: 10)
    with pytest.raises(ConfigError, match=r"dequantized to float32, take [\d.]+ GiB of memory, and 0.00 GiB are free"):
        load_model(str(file), device="cpu", engine="eager")


def test_a_run_tells_that_weights_are_dequantized(
    file: Path, specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    words = ("run", "--target", str(file), "--engine", "eager", "--task", "mgsm", "--subset", "en", "--data", "sample",
             "--limit", "1", "--method", "pld", "--set", "generation.max_new_tokens=6", "--output", "here")  # fmt: skip
    code, printed, said = specbench(*words)
    assert code == 0, said
    assert "F32 dequantized (float32)" in printed


def test_the_sampling_that_a_file_asks_for(file: Path, specbench: Callable[..., Outcome], tmp_path: Path) -> None:
    """As llama.cpp's conversion writes it; the file's keys are those of a checkpoint's generation_config.json."""
    path = gguf_files.with_floats(
        file, tmp_path / "m.gguf", general__sampling__temp=0.7, general__sampling__top_k=20,
        general__sampling__top_p=0.8, general__sampling__min_p=0, general__sampling__penalty_repeat=1.05,
        general__sampling__xtc_threshold=0.1,
    )  # fmt: skip
    words = ("run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--method", "pld",
             "--engine", "eager", "--sampling", "model", "--set", "generation.max_new_tokens=4", "--target",
             str(path), "--output", "here")  # fmt: skip
    code, printed, said = specbench(*words)
    assert code == 0, said
    asked = "temperature 0.7, top_k 20, top_p 0.8 of the target's general.sampling.*; its penalty_repeat 1.05 is not"
    assert asked in " ".join(said.split()) and "temperature 0.7, top-k 20, top-p 0.8" in printed
    (found,) = {(row.end_tokens, row.sampling.temperature) for row in load(tmp_path / "here" / "leaderboard.json")}
    assert found == ("0 <|end|>", 0.7)
    code, printed, _ = specbench("show", str(path))
    assert code == 0 and "sampling of the file's metadata (--sampling model): temperature 0.7, top_k 20" in " ".join(
        printed.split()
    )
    code, _, said = specbench(*words[:-3], str(file))
    assert code == 2 and "asks for no sampling (it has no keys general.sampling.* that do)" in " ".join(said.split())


def test_what_keys_of_sampling_mean() -> None:
    assert gguf_sampling({}) is gguf_sampling({"temp": 0.0, "top_k": 40}) is gguf_sampling({"top_k": 0}) is None
    found = gguf_sampling({"top_k": -1, "xtc_probability": 0.5, "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5})
    assert found is not None and found.values == {"temperature": 1.0, "top_k": None, "top_p": None}
    assert found.others == {"xtc_probability": 0.5, "xtc_threshold": 0.1}


def test_commands_without_an_engine_tell_that_weights_are_dequantized(
    file: Path, specbench: Callable[..., Outcome]
) -> None:
    """They compute in torch, with llama.cpp installed or not."""
    words = ("vocab", "--target", str(file), "--drafter", "embedded:drafter", "--subset", "en", "--limit", "1")
    code, printed, said = specbench(*words)
    assert code == 0 and "dequantized" not in printed + said  # of the tokenizers alone
    code, printed, said = specbench(*words, "--acceptance", "--dtype", "float32", "--json")
    assert code == 0 and f"model '{file}' is computed in torch, F32 dequantized (float32)" in " ".join(said.split())
    dtypes = json.loads(printed)
    assert (dtypes["target_dtype"], dtypes["drafter_dtype"]) == ("F32 dequantized (float32)", "float32")


def test_a_dry_run_of_a_pair(file: Path, specbench: Callable[..., Outcome], tmp_path: Path) -> None:
    """From headers and tokenizers alone, with llama.cpp or without it."""
    words = ("run", "--task", "mgsm", "--method", "pld,slem", "--subset", "en", "--limit", "2", "--data", "sample",
             "--target", str(file), "--dry-run", "--drafter")  # fmt: skip
    code, printed, said = specbench(*words, str(gguf_files.embedded("drafter-bpe")))
    assert code == 0, said
    told = " ".join(printed.split())
    assert f"target {file} (sha256-" in told and "2 trials of 3 methods; nothing was measured or written" in told
    code, _, said = specbench(*words, "embedded:drafter-bpe")  # of another format
    assert code == 0, said
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:-100])
    code, _, said = specbench(*words, "cut.gguf")
    assert code == 2 and "cut.gguf: is truncated" in said


def test_the_engine_needs_a_gguf_target(specbench: Callable[..., Outcome]) -> None:
    code, _, said = specbench("run", "--task", "mgsm", "--method", "pld", "--engine", "llama.cpp")
    assert code == 2 and "target 'embedded:target' is not a GGUF file: give one" in said
    code, _, said = specbench("run", "--task", "mgsm", "--method", "pld", "--tokenizer", "x")
    assert code == 2 and "--tokenizer x: has no effect on 'embedded:target', which is not a GGUF file" in said
    code, _, said = specbench("run", "--task", "mgsm", "--method", "sd", "--drafter-tokenizer", "x")
    assert code == 2 and "--drafter-tokenizer x: has no effect without --drafter" in said
    code, _, said = specbench(
        "run", "--task", "mgsm", "--method", "sd", "--drafter", "embedded:drafter", "--drafter-tokenizer", "x"
    )
    assert code == 2 and "--drafter-tokenizer x: has no effect on 'embedded:drafter', which is not a GGUF file" in said


def test_a_missing_binding_is_told_at_once(
    file: Path, specbench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.core.environment.is_installed", lambda name: name != "llama_cpp")
    code, _, said = specbench(
        "run", "--task", "mgsm", "--method", "pld", "--target", str(file), "--engine", "llama.cpp"
    )
    assert code == 2 and "--engine llama.cpp: needs llama_cpp: pip install 'specbench-lm[gguf]'" in said


def fake_library(**functions: Any) -> SimpleNamespace:
    """What `LlamaNetwork` and `Context` call before they fail, without llama.cpp."""
    found = {
        "llama_model_default_params": SimpleNamespace, "llama_context_default_params": SimpleNamespace,
        "llama_model_load_from_file": lambda path, params: 1, "llama_model_free": lambda handle: None,
        "llama_model_get_vocab": lambda handle: 1, "llama_vocab_n_tokens": lambda vocab: 9,
        "llama_model_has_decoder": lambda handle: True, "llama_model_has_encoder": lambda handle: False,
        "llama_model_is_recurrent": lambda handle: False, "llama_model_is_hybrid": lambda handle: False,
        "llama_model_size": lambda handle: 1000,
        "LLAMA_FLASH_ATTN_TYPE_AUTO": -1, "LLAMA_FLASH_ATTN_TYPE_DISABLED": 0,
    } | functions  # fmt: skip
    return SimpleNamespace(**found)


def test_a_binding_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.models.gguf.engine.require", lambda *given: None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # importing it fails
    engine.library.cache_clear()
    with pytest.raises(
        ConfigError, match=r"llama-cpp-python does not load \(.*\): build it again \(pip .*, or take --engine eager"
    ):
        engine.library()
    engine.library.cache_clear()


def test_an_encoder_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_library(llama_model_has_encoder=lambda handle: True)
    monkeypatch.setattr(engine, "library", lambda: library)
    with pytest.raises(ConfigError, match=r"it is an encoder, or has one; specbench measures causal language models"):
        engine.LlamaNetwork(file)


def test_a_file_that_llama_cpp_cannot_open(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "library", lambda: fake_library(llama_model_load_from_file=lambda path, params: 0))
    with pytest.raises(
        ConfigError, match=r"drafter.gguf: llama.cpp cannot open it: no reason given: take another file"
    ):
        engine.LlamaNetwork(file)


def test_a_context_that_does_not_fit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake_library(llama_init_from_model=lambda handle, params: 0)
    monkeypatch.setattr(engine, "library", lambda: library)
    with pytest.raises(ConfigError, match=r"model 'm': llama.cpp cannot hold 4,096 tokens of keys and values \(no re"):
        engine.Context(engine.LlamaNetwork(file), "m", 4096, 1, "float16")


def test_a_model_is_shown(file: Path, specbench: Callable[..., Outcome]) -> None:
    code, printed, said = specbench("show", str(file))
    assert code == 0, said
    shown = " ".join(printed.split())
    assert "a GGUF file of architecture llama, F32" in shown and "2048 tokens" in shown and "sha256-" in shown


def test_products_are_chosen_for_models_in_torch_only() -> None:
    """A model by llama.cpp refuses to show a network."""
    model = object.__new__(GgufLM)
    assert list(choose_products(LoadedModels(model, {}), {})) == []
