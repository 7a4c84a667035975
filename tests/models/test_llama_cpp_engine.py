"""The engine llama.cpp: logits of the same weights in torch, its cache, trees, batches and snapshots, and whole runs.

The models are embedded ones with float32 weights, whose passes do not depend on the width, a random Mamba, and a random
Jamba, which also has attention.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.analysis.audit.audit import scoring_target
from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.batch_width import TRUSTED, BaselineAnswer, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.cache_size import cache_bytes
from specbench.models.gguf.engine import Context, LlamaNetwork, LlamaSequence
from specbench.models.gguf.header import read_header
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.mmap_store import vocabulary_digest
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.results.runs import finished_run
from specbench.running.models import LoadedModels
from specbench.running.recorded_prompts import Target
from specbench.specs.catalogue import load_method, method_names
from specbench.training.corpus_arrays import build_datastore, build_ngrams
from tests.support import gguf_files
from tests.support.loops import autoregressive

gguf_files.needs_llama_cpp()

Outcome = tuple[int, str, str]
PARENTS = (-1, -1, 0, 0, 1, 2, 2, 5, 3, 4)
CLOSE = {"atol": 2e-3, "rtol": 1e-3}


def opened(path: Path, dtype: str = "float32") -> CausalLM:
    return load_model(
        str(path), device="cpu", engine="llama.cpp", gguf=GgufOptions(cache_dtype=dtype, given_by="options")
    )


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return opened(gguf_files.embedded("drafter"))


@pytest.fixture(scope="module")
def mamba() -> CausalLM:
    return opened(gguf_files.recurrent())


@pytest.fixture(scope="module")
def hybrid() -> CausalLM:
    return opened(gguf_files.hybrid())


def text(length: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(1, 200), k=length)


def path_to(node: int) -> list[int]:
    found = []
    while node >= 0:
        found.append(node)
        node = PARENTS[node]
    return found[::-1]


def fresh(model: CausalLM, ids: list[int], num_logits: int = 1) -> torch.Tensor:
    model.reset()
    return model.score(ids, num_logits).logits


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("float16", 5e-2)])
def test_its_logits_are_those_of_the_weights_in_torch(dtype: str, tolerance: float) -> None:
    model, network = opened(gguf_files.embedded("drafter"), dtype), load_model("embedded:drafter", device="cpu")
    ids = text(40)
    found, expected = model.score(ids, 30).logits, network.score(ids, 30).logits
    assert found.dtype == torch.float32 and found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=1e-3)
    assert (model.engine, model.precision, model.attention) == (
        "llama.cpp", "F32", {"float32": "float32 K/V", "float16": "flash, float16 K/V"}[dtype]
    )  # fmt: skip


def test_logits_stay_what_they_are_in_later_passes(model: CausalLM) -> None:
    first = fresh(model, text(8))
    kept = first.clone()
    model.score(text(9, seed=1), 1)
    assert torch.equal(first, kept)


def test_rejected_tokens_leave_nothing_behind(model: CausalLM) -> None:
    ids = text(30)
    expected = fresh(model, [*ids, 7, 8])
    fresh(model, ids)
    model.score([*ids, 9, 10, 11], 4)  # a draft of which nothing is accepted
    torch.testing.assert_close(model.score([*ids, 7, 8], 1).logits, expected, **CLOSE)
    assert [length for length, _ in model.passes.read()][-1] == 2


def test_a_cache_that_grows_keeps_the_text() -> None:
    model = opened(gguf_files.embedded("drafter"))
    ids = text(500)
    fresh(model, ids)
    before = model.sequence.capacity
    model.passes.clear()
    grown = model.score(text(500) + text(40, seed=1), 1).logits
    assert model.sequence.capacity > before
    assert [length for length, _ in model.passes.read()] == [40]  # nothing was read again
    torch.testing.assert_close(grown, fresh(model, text(500) + text(40, seed=1)), **CLOSE)


def test_room_is_made_before_a_generation(model: CausalLM) -> None:
    model.sequence.make_room(3000)
    assert model.sequence.capacity >= 3000


@pytest.mark.parametrize(
    ("which", "dtype"), [("drafter", "float16"), ("drafter", "float32"), ("hybrid", "float16"), ("mamba", "float16")]
)
def test_the_size_of_a_cache_is_that_of_llama_cpp(which: str, dtype: str) -> None:
    """As it writes them: keys and values, and for each token its position and sequence."""
    path = {"hybrid": gguf_files.hybrid, "mamba": gguf_files.recurrent}.get(which, lambda: gguf_files.embedded(which))()
    model = opened(path, dtype)
    sizes = []
    for length in (40, 140):
        fresh(model, text(length))
        sizes.append(len(model.sequence.context.state()))
    expected = cache_bytes(read_header(path), 100, dtype)
    assert 0 <= sizes[1] - sizes[0] - expected <= 100 * 16 and (expected > 0) is (which != "mamba")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_cache_that_does_not_fit_is_refused_at_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would grant it, and end the process while it is filled. The one that it replaces becomes free."""
    model = opened(gguf_files.embedded("drafter"), dtype)
    expected = fresh(model, text(20))
    taken = [cache_bytes(read_header(gguf_files.embedded("drafter")), number, dtype) for number in (4096, 512)]
    monkeypatch.setattr("specbench.models.devices.free_memory", lambda: taken[0] - taken[1] - 1)
    with pytest.raises(ConfigError) as caught:
        model.sequence.make_room(3000)
    assert re.match(
        rf"model '.*': keys and values of 4,096 tokens in {dtype} take [\d.]+ GiB of memory, and [\d.]+ GiB are free.*"
        ": free memory, or take shorter prompts, a smaller generation.max_new_tokens",
        str(caught.value),
    )
    assert ("--cache-dtype float16" in str(caught.value)) is (dtype == "float32") and "\n" not in str(caught.value)
    assert torch.equal(fresh(model, text(20)), expected) and model.sequence.capacity == 512  # as it was
    monkeypatch.setattr("specbench.models.devices.free_memory", lambda: taken[0] - taken[1])
    model.sequence.make_room(3000)
    assert model.sequence.capacity == 4096


def test_a_hybrid_model_needs_room_for_its_kept_states(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(gguf_files.hybrid(), "float16")
    once = cache_bytes(read_header(gguf_files.hybrid()), 1024, "float16")
    monkeypatch.setattr("specbench.models.devices.free_memory", lambda: 5 * once)
    with pytest.raises(ConfigError, match="keys and values of 1,024 tokens in float16, with 8 earlier states, take"):
        model.sequence.make_room(1000)


def test_a_run_without_room_ends_before_anything_is_measured(
    specbench: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's cache fits, and that of the drafter does not fit beside it."""
    target, drafter = gguf_files.embedded("drafter"), gguf_files.embedded("drafter-scdf")
    begin, free = Context.__init__, [2**40]

    def begun(self: Context, network: LlamaNetwork, name: str, capacity: int, *others: Any) -> None:
        begin(self, network, name, capacity, *others)
        if capacity > 512 and network.path == target:  # which takes all that the machine has
            free[0] = 0

    monkeypatch.setattr(Context, "__init__", begun)
    monkeypatch.setattr("specbench.models.devices.free_memory", lambda: free[0])
    words = (*RUN[:-1], "generation.max_new_tokens=700", "--target", str(target), "--drafter", str(drafter))
    code, _, said = specbench(*words, "--method", "sd")
    assert code == 2 and free == [0], said
    assert said.splitlines()[-1].startswith(f"error: model '{drafter}': keys and values of "), said
    assert not (tmp_path / "here" / "records.jsonl").read_bytes(), "something was measured"


class Copies(TorchDispatchMode):
    """Keeps the addresses of what operations copy: those of at least `least` numbers with a memory of their own."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.sources: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [each for each in args if isinstance(each, torch.Tensor)]
        is_large = isinstance(made, torch.Tensor) and made.is_floating_point() and made.numel() >= self.least
        if is_large and all(made.untyped_storage().data_ptr() != each.untyped_storage().data_ptr() for each in given):
            self.sources += [each.data_ptr() for each in given] or [0]
        return made


def copied_logits(model: CausalLM) -> list[list[int]]:
    """The copies of a pass over a chain, of one over a tree, and of a greedy answer of 6 tokens."""
    model.check_trees()
    passes = (
        lambda: fresh(model, text(20), 5), lambda: model.score_tree(text(20), text(10, 1), PARENTS, 11),
        lambda: autoregressive(model, text(20), StopRules(6, frozenset())),
    )  # fmt: skip
    found = []
    for call in passes:
        with Copies(model.vocab_size) as copies:
            call()
        found.append(copies.sources)
    return found


def test_logits_are_copied_once(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """From llama.cpp's buffer, and never again."""
    buffers = set()
    view = Context.logits

    def watched(self: Context, *given: int) -> torch.Tensor:
        found = view(self, *given)
        buffers.add(found.data_ptr())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Context, "logits", watched)
        chain, tree, answer = copied_logits(model)
    assert (len(chain), len(tree), len(answer)) == (1, 1, 6) and {*chain, *tree, *answer} <= buffers
    monkeypatch.setattr(Context, "logits", lambda *given: view(*given).clone())
    assert [len(each) for each in copied_logits(model)] == [2, 2, 12]  # a second copy is seen


def test_a_prompt_longer_than_a_batch_is_one_pass(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = text(100)
    expected = fresh(model, ids, 60)
    monkeypatch.setattr("specbench.models.gguf.engine.BATCH", 32)
    model.passes.clear()
    torch.testing.assert_close(fresh(model, ids, 60), expected, **CLOSE)
    assert [length for length, _ in model.passes.read()] == [100]


@pytest.mark.parametrize("num_cached", [0, 5, 20])
def test_each_node_of_a_tree_sees_its_ancestors_alone(model: CausalLM, num_cached: int) -> None:
    """Also if text before the tree is read in the same pass, and if the tree grows."""
    model.check_trees()
    ids, nodes = text(20), text(len(PARENTS), seed=1)
    chains = [fresh(model, [*ids, *(nodes[each] for each in path_to(node))]) for node in range(len(nodes))]
    rows = torch.cat([fresh(model, ids), *chains])

    def begin() -> None:
        model.reset()
        if num_cached:
            model.score(ids[:num_cached], 1)

    begin()
    torch.testing.assert_close(model.score_tree(ids, nodes, PARENTS, len(nodes) + 1).logits, rows, **CLOSE)
    begin()
    first = model.score_tree(ids, nodes[:2], PARENTS[:2], 3).logits
    second = model.score_tree(ids, nodes[:5], PARENTS[:5], 3).logits
    third = model.score_tree(ids, nodes, PARENTS, 5).logits
    torch.testing.assert_close(torch.cat([first, second, third]), rows, **CLOSE)
    # What is kept of it is the text from then on.
    kept = path_to(7)
    model.keep_path(kept)
    whole = [*ids, *(nodes[each] for each in kept), 3]
    model.passes.clear()
    after = model.score(whole, 1).logits
    assert [length for length, _ in model.passes.read()] == [1]
    torch.testing.assert_close(after, fresh(model, whole), **CLOSE)


def check_kept_paths(model: CausalLM, leaves: tuple[int, ...]) -> None:
    """Reads trees one after the other and keeps the path to a leaf of each. The rows after them are bit for bit
    those of the same text without trees: the order of the cache is the same, too."""
    model.check_trees()
    model.reset()
    ids = text(40)
    model.score(ids[:-1], 1)
    for step, leaf in enumerate(leaves):
        nodes = text(len(PARENTS), seed=step)
        model.score_tree(ids, nodes, PARENTS, len(nodes) + 1)
        model.keep_path(path_to(leaf))
        ids = [*ids, *(nodes[each] for each in path_to(leaf)), step + 1]
    after = model.score([*ids, 5, 6], 3).logits
    fresh(model, ids[:-1])
    assert torch.equal(model.score([*ids, 5, 6], 3).logits, after)


def test_kept_paths_leave_no_trace_of_their_trees() -> None:
    check_kept_paths(opened(gguf_files.embedded("drafter"), "float16"), (7, 9, 1, 6, 0))


def test_a_tree_that_is_rejected_leaves_nothing_behind(model: CausalLM) -> None:
    model.check_trees()
    ids, nodes = text(12), text(len(PARENTS), seed=1)
    expected = fresh(model, [*ids, 5])
    model.reset()
    model.score_tree(ids, nodes, PARENTS, 1)
    model.keep_path([])
    torch.testing.assert_close(model.score([*ids, 5], 1).logits, expected, **CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_its_trees_are_shown_to_be_right_before_a_verdict(dtype: str) -> None:
    """So that what the order of the cache does to their rows is noise, and no fault of the state."""
    model = opened(gguf_files.embedded("drafter"), dtype)
    model.check_trees()
    measured = measure_batch_width(model, [BaselineAnswer("", text(20), text(16, seed=1))], 4, 9)
    trees = next(each for each in measured.changes if each.compared == "fresh tree")
    assert measured.sibling_change == 0 and measured.trust(trees.width) == TRUSTED
    assert measured.noise(4, trees.width).max_gap_change >= trees.max_gap_change


def test_a_tree_with_more_leaves_than_sequences_is_refused(model: CausalLM) -> None:
    model.check_trees()
    model.reset()
    with pytest.raises(ConfigError, match="more than 255 leaves"):
        model.score_tree(text(4), [1] * 256, [-1] * 256, 1)
    model.reset()


@pytest.mark.parametrize("which", ["model", "mamba", "hybrid"])
def test_alternative_continuations(which: str, request: pytest.FixtureRequest) -> None:
    model: CausalLM = request.getfixturevalue(which)
    ids, suffixes = text(10), [[number % 90 + 1, 3] for number in range(70)]  # more than one pass holds
    expected = torch.cat([fresh(model, [*ids, *suffix]) for suffix in suffixes[::23]])
    model.reset()
    found = model.score_batch(ids, suffixes)
    torch.testing.assert_close(found[::23], expected, **CLOSE)
    assert model.sequence.cached_ids == ids
    torch.testing.assert_close(model.score([*ids, 4], 1).logits, fresh(model, [*ids, 4]), **CLOSE)


def after_drafts(model: CausalLM) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Of a text of 30 tokens and drafts, of which 0 to 3 tokens are accepted: the logits after what was accepted and
    one token, those of the same text alone, and the number of tokens that were read for the first."""
    ids, found = text(30), []
    for accepted in range(4):
        whole = [*ids, 40, *range(50, 50 + accepted), 9]
        expected = fresh(model, whole)
        fresh(model, ids)
        model.score([*ids, 40, 50, 51, 52, 53], 5)
        model.passes.clear()
        logits = model.score(whole, 1).logits
        found.append((logits, expected, sum(length for length, _ in model.passes.read())))
    return found


@pytest.mark.parametrize("which", ["mamba", "hybrid"])
def test_a_recurrent_model_returns_to_a_kept_state(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: CausalLM = request.getfixturevalue(which)
    for accepted, (found, expected, num_read) in enumerate(after_drafts(model)):
        torch.testing.assert_close(found, expected, **CLOSE)
        assert num_read == accepted + 2  # from the state after the prompt
    with pytest.raises(ConfigError, match="recurrent layers, which cannot read a draft tree"):
        model.check_trees()
    # Without kept states, all is read again.
    monkeypatch.setattr(LlamaSequence, "_keep_state", lambda self: None)
    assert [num_read for _, _, num_read in after_drafts(model)] == [32, 33, 34, 35]


def test_a_cache_that_llama_cpp_does_not_cut_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a hybrid model, if its kind were not known. Going on after a refused cut would keep the draft."""
    model = opened(gguf_files.hybrid())
    monkeypatch.setattr(model.sequence.model, "is_recurrent", False)
    cut, answers = Context.cut, []

    def watched(self: Context, num_tokens: int) -> bool:
        answers.append(cut(self, num_tokens))
        return answers[-1]

    monkeypatch.setattr(Context, "cut", watched)
    for accepted, (found, expected, num_read) in enumerate(after_drafts(model)):
        torch.testing.assert_close(found, expected, **CLOSE)
        assert num_read == 32 + accepted
    assert answers and not any(answers), "llama.cpp refuses"
    monkeypatch.setattr(Context, "cut", lambda *given: True)
    wrong = False
    try:
        wrong = any(not torch.allclose(found, expected, **CLOSE) for found, expected, _ in after_drafts(model))
    except ConfigError:  # llama.cpp refuses positions that do not follow those that it has
        wrong = True
    assert wrong, "a refused cut must not be taken for one that was made"


def test_passes_of_one_row(mamba: CausalLM) -> None:
    """Chains and trees are read token by token, and count as one pass."""
    model, plain = opened(gguf_files.embedded("drafter"), "float16"), opened(gguf_files.embedded("drafter"), "float16")
    model.sequence.fix_width(1)
    for each in (model, plain):
        each.check_trees()
    ids, nodes = text(9), text(len(PARENTS), seed=1)
    model.passes.clear()
    rows = model.score(ids, 9).logits.clone()
    assert [length for length, _ in model.passes.read()] == [9]
    assert torch.equal(rows, torch.cat([fresh(model, ids[:end]) for end in range(1, 10)]))
    torch.testing.assert_close(rows, plain.score(ids, 9).logits, atol=5e-2, rtol=1e-3)
    trees = [each.score_tree(ids, nodes, PARENTS, len(nodes) + 1).logits for each in (model, plain)]
    torch.testing.assert_close(*trees, atol=5e-2, rtol=1e-3)
    with pytest.raises(ConfigError, match=r"^--pass-width 6: llama.cpp computes the rows of one pass by several"):
        model.sequence.fix_width(6)
    with pytest.raises(ConfigError, match=r"^--pass-width 1: model .* has recurrent layers"):
        mamba.sequence.fix_width(1)


def test_what_needs_the_network_is_refused_in_one_line(model: CausalLM) -> None:
    with pytest.raises(ConfigError, match="its network in torch, of the weights dequantized: take --engine eager"):
        model.model  # noqa: B018
    of_a_run, named = (GgufOptions(given_by=source) for source in ("run", "name"))
    assert of_a_run.other_engine("eager") == "measure again with --engine eager"
    assert "--engine" not in named.other_engine("eager") and "--tokenizer" not in named.other_tokenizer
    model.hidden_layers = (1,)
    try:
        with pytest.raises(ConfigError, match="gives no hidden states"):
            model.score([1, 2], 1)
    finally:
        model.hidden_layers = ()
        model.reset()


def test_an_audit_of_servers_scores_a_file_with_llama_cpps_kernels(model: CausalLM) -> None:
    """As the server computes; torch's, with the weights dequantized, are another target."""
    served = cast(LoadedModels, SimpleNamespace(target=model, scoring=None))
    scoring = scoring_target(served, str(gguf_files.embedded("drafter")))
    assert isinstance(scoring, CausalLM) and (scoring.engine, scoring.precision) == ("llama.cpp", "F32")


@pytest.mark.parametrize("method", ["self-quantized", "self-skip", "self-window"])
def test_drafts_by_other_passes_of_the_target_are_refused_in_one_line(method: str, model: CausalLM) -> None:
    with pytest.raises(ConfigError, match=r"of engine llama.cpp.*take --engine eager") as caught:
        build_decoder(load_method(method), ModelPair(model), Sampling())
    assert "\n" not in str(caught.value)


RUN = ("run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1", "--threads", "1", "--output",
       "here", "--set", "generation.max_new_tokens=12")  # fmt: skip
LONGER = (*RUN[:-1], "generation.max_new_tokens=48")  # in which drafts are accepted and rejected
# Methods that llama.cpp's passes cannot serve, by what a run says of them.
LEFT_OUT = {
    **dict.fromkeys(("hf-pld", "hf-sd", "hf-slem", "hf-tli"), "its code runs the passes of transformers"),
    **dict.fromkeys(
        ("eagle", "eagle2", "eagle3", "eagle3-chain", "medusa", "medusa-typical", "mtp", "dflash", "dspark", "domino",
         "peagle", "self-quantized", "self-skip", "self-skip-swift", "self-window"),
        "llama.cpp gives logits only, and ",
    ),
    **dict.fromkeys(("ngram", "rest", "routed"), "drafter.path is missing"),  # made of texts first
}  # fmt: skip
RUNS = [name for name in method_names() if name not in LEFT_OUT]
LOSSY = {name for name in RUNS if not load_method(name).lossless}
WITH_A_DRAFT_MODEL = {name for name in RUNS if load_method(name).needs_drafter}
BRIDGED = "slem,tli,union,slrs"
# Those without a checkpoint of their own, which would draft for the embedded target in place of the one that is given.
OF_A_GIVEN_MODEL = {name for name in WITH_A_DRAFT_MODEL if load_method(name).checkpoint is None}
FEW = {"sd", "sd-block", "sd-tree", "sd-confidence", "cascade", "slem", "fsd-low", "draft-only"}
Answers = dict[str, tuple[list[int], list[list[int]]]]


def side(form: str, name: str) -> str:
    """An embedded model as a GGUF file or as the checkpoint that torch computes."""
    return str(gguf_files.embedded(name)) if form == "gguf" else f"embedded:{name}"


def answers_of(folder: Path) -> Answers:
    """The tokens of the one example, and its steps as [drafted, verified, accepted, emitted], by method."""
    (record,) = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return {name: (answer["token_ids"], answer["steps"]) for name, answer in record["methods"].items()}


def check_answers(folder: Path) -> Answers:
    """Returns the answers of a run. Lossless methods wrote what AR wrote, and the counts of all fit their tokens."""
    found = answers_of(folder)
    verdicts = {row.method_name: row.verdict for row in load(folder / "leaderboard.json")}
    assert verdicts == {name: "lossy by design" if name in LOSSY else "greedy equal" for name in found}
    for name, (ids, steps) in found.items():
        assert ids == found["ar"][0] or name in LOSSY, name
        assert sum(emitted for *_, emitted in steps) == len(ids) - 1, name  # the first token is of the prompt's pass
        for drafted, verified, accepted, emitted in steps:
            assert drafted >= verified >= accepted >= emitted - 1 >= 0, (name, steps)
    return found


def num_accepted(answer: tuple[list[int], list[list[int]]]) -> int:
    return sum(accepted for _, _, accepted, _ in answer[1])


def num_verified(answer: tuple[list[int], list[list[int]]]) -> int:
    return sum(verified for _, verified, _, _ in answer[1])


def test_every_method_writes_what_ar_writes(specbench: Callable[..., Outcome], tmp_path: Path) -> None:
    """Every one of the catalogue, but for those that a run leaves out with a reason."""
    words = ("--target", side("gguf", "target"), "--drafter", side("gguf", "drafter"), "--method", "all",
             "--engine", "llama.cpp")  # fmt: skip
    code, _, said = specbench(*LONGER, *words)
    assert code == 0, said
    found, told = check_answers(tmp_path / "here"), " ".join(said.split())
    assert set(found) == set(RUNS)
    for name, reason in LEFT_OUT.items():
        assert re.search(rf"[; ]{name}: [^;]*{re.escape(reason)}", told), (name, told)
    for name in WITH_A_DRAFT_MODEL - LOSSY:
        assert 0 < num_accepted(found[name]) < num_verified(found[name]), name
    row = load(tmp_path / "here" / "leaderboard.json")[0]
    assert (row.engine, row.dtype, row.attention) == ("llama.cpp", "F32", "flash, float16 K/V")
    assert row.target_revision.startswith("sha256-") and row.versions["llama-cpp-python"]
    # The folder goes on under the same conditions only.
    records = (tmp_path / "here" / "records.jsonl").read_bytes()
    code, _, said = specbench(*LONGER, *words)
    assert code == 0 and (tmp_path / "here" / "records.jsonl").read_bytes() == records, said
    code, _, said = specbench(*LONGER, *words, "--cache-dtype", "float32")
    assert code == 2 and "environment.attention" in said


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pld", []), ("jacobi", []), ("lookahead", []), ("token-recycling", []), ("suffix", []),
        ("sam", ["drafter.min_match=1", "num_draft_tokens=4"]),
        ("ngram-mod", ["drafter.ngram=1", "drafter.min_tokens=1", "num_draft_tokens=4"]),
        ("ngram", ["drafter.path=ngram"]), ("rest", ["drafter.path=rest"]),
    ],
)  # fmt: skip
def test_drafts_without_a_draft_model_are_accepted_and_rejected(
    method: str, settings: list[str], specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    """N-grams and the datastore are of AR's answer, in which every fifth token is wrong."""
    target = ("--target", side("gguf", "target"))
    longer = (*RUN[:-1], "generation.max_new_tokens=96")
    if method in ("ngram", "rest"):
        code, _, said = specbench(*longer, *target, "--method", "ar", "--output", "first")
        assert code == 0, said
        model = opened(gguf_files.embedded("target"))
        ids = answers_of(tmp_path / "first")["ar"][0]
        wrong = [(token + 1) % model.vocab_size if place % 5 == 0 else token for place, token in enumerate(ids)]
        digest = vocabulary_digest(model.vocabulary)
        build_ngrams([wrong], 3, model.vocab_size, tmp_path / "ngram", digest)
        build_datastore([wrong], model.vocab_size, tmp_path / "rest", digest)
    code, _, said = specbench(*longer, *target, "--method", method, *(w for each in settings for w in ("--set", each)))
    assert code == 0, said
    answer = check_answers(tmp_path / "here")[method]
    assert 0 < num_accepted(answer) < num_verified(answer), answer


def test_a_route_has_a_drafter_made_of_texts(
    specbench: Callable[..., Outcome], tmp_path: Path, model: CausalLM
) -> None:
    build_ngrams([text(400)], 3, model.vocab_size, tmp_path / "ngram", vocabulary_digest(model.vocabulary))
    for subset in ("sw", "en"):  # that of n-grams, and the default one, a model in torch
        code, _, said = specbench(
            *RUN, "--target", side("gguf", "drafter"), "--drafter", side("torch", "drafter-scdf"), "--method", "routed",
            "--subset", subset, "--output", subset, "--set", "routes.sw.drafter.path=ngram",
        )  # fmt: skip
        assert code == 0, said
        assert num_verified(check_answers(tmp_path / subset)["routed"]) > 0, subset


@pytest.mark.parametrize(
    ("method", "key", "values"),
    [("fsd", "verification.threshold", ("0", ".inf")), ("random-accept", "verification.probability", ("0", "1"))],
)
def test_a_lossy_method_accepts_by_its_own_rule(
    method: str, key: str, values: tuple[str, str], specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Nothing, and then it writes what AR writes; or everything, and then its tokens are the drafter's."""
    pair = ("--target", side("gguf", "target"), "--drafter", side("gguf", "drafter"))
    found = []
    for value in values:
        words = ("--method", method, "--set", f"{key}={value}", "--output", value)
        code, _, said = specbench(*LONGER, *pair, *words)
        assert code == 0, said
        found.append(check_answers(tmp_path / value))
    none, every = found
    assert none[method][0] == none["ar"][0] and num_accepted(none[method]) == 0 < num_verified(none[method])
    assert every[method][0] != every["ar"][0] and num_accepted(every[method]) > 0
    assert all(verified == accepted for _, verified, accepted, _ in every[method][1][:-1])


@pytest.mark.parametrize(
    ("target", "drafter", "methods"),
    [
        ("gguf", "gguf", LOSSY),  # lossless ones: see above
        ("gguf", "torch", FEW), ("torch", "gguf", FEW),
        *(pytest.param(*sides, OF_A_GIVEN_MODEL, marks=pytest.mark.slow, id="-".join((*sides, "all")))
          for sides in (("gguf", "torch"), ("torch", "gguf"))),
    ],
)  # fmt: skip
def test_methods_accept_what_they_accept_in_torch(
    specbench: Callable[..., Outcome], tmp_path: Path, target: str, drafter: str, methods: set[str]
) -> None:
    """Both models, or one of them, computed by llama.cpp: the tokens and the steps are those of the same weights in
    torch, of lossy methods too. With keys and values in float32, as there."""
    found = []
    for forms in ((target, drafter), ("torch", "torch")):
        pair = ["--target", side(forms[0], "target"), "--drafter", side(forms[1], "drafter")]
        pair += ["--tokenizer", "embedded:target"] if forms[0] == "gguf" else []
        pair += ["--drafter-tokenizer", "embedded:drafter"] if forms[1] == "gguf" else []
        pair += ["--cache-dtype", "float32"] if "gguf" in forms else []
        code, _, said = specbench(*LONGER, *pair, "--method", ",".join(sorted(methods)), "--output", "-".join(forms))
        assert code == 0, said
        found.append(check_answers(tmp_path / "-".join(forms)))
    assert set(found[0]) == {"ar", *methods} and found[0] == found[1]


def test_records_are_judged_as_they_were_made(specbench: Callable[..., Outcome], tmp_path: Path) -> None:
    """With the type of keys and values and with the tokenizers of their run."""
    target, drafter = gguf_files.embedded("drafter"), gguf_files.embedded("drafter-scdf")
    names = ("--target", str(target), "--drafter", str(drafter), "--method", "sd")
    tokenizers = ("--tokenizer", "embedded:drafter", "--drafter-tokenizer", "embedded:drafter-scdf")
    code, _, said = specbench(*RUN, *names, *tokenizers, "--cache-dtype", "float32")
    assert code == 0, said
    run = finished_run(tmp_path / "here")
    identity = json.loads((tmp_path / "here" / "run.json").read_text())
    assert "embedded:drafter-scdf" in json.dumps(identity)
    loader = Target(run, trust_remote_code=False).loader
    model = loader.load(str(target), run.rows[0].target_revision)
    assert model.attention == run.rows[0].attention == "float32 K/V"
    assert loader.gguf[str(target)].tokenizer == "embedded:drafter"
    assert loader.gguf[str(drafter)].tokenizer == "embedded:drafter-scdf"
    assert loader.load("embedded:drafter").engine == "eager"  # a drafter of another format, which shortened prompts


def test_a_roofline_of_a_gguf_pair(specbench: Callable[..., Outcome]) -> None:
    pair = ("--target", str(gguf_files.embedded("drafter")), "--drafter", str(gguf_files.embedded("drafter-scdf")))
    code, out, said = specbench(
        "roofline", *pair, "--cache-dtype", "float32", "--context", "16", "--repeats", "1", "--json"
    )
    assert code == 0, said
    report = json.loads(out)
    assert report["environment"]["engine"] == "llama.cpp" and report["target"]["model"]["attention"] == "float32 K/V"
    assert not report["target"].get("products"), "llama.cpp's products are not torch's"


def test_drawn_answers_have_the_law_of_the_target(specbench: Callable[..., Outcome]) -> None:
    """As the audit's control shows, whose every draft token is accepted."""
    pair = ("--target", str(gguf_files.embedded("drafter")), "--drafter", str(gguf_files.embedded("drafter-scdf")))
    code, out, said = specbench(
        "audit", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", *pair, "--threads", "1",
        "--method", "sd,slem", "--draws", "1500", "--json",
    )  # fmt: skip
    assert code == 0, said
    report = json.loads(out)
    assert report["engine"] == "llama.cpp" and report["attention"] == "flash, float16 K/V"
    assert report["control"]["distribution"]["p_value"] < 1e-3, "the audit had no power"
    for verdict in report["verdicts"]:
        if verdict["method"] in ("sd", "slem"):
            assert verdict["verdict"] == "lossless", verdict["reason"]
            assert verdict["distribution"]["num_draws"] == 1500 and verdict["distribution"]["num_accepted"] > 100


@pytest.mark.parametrize(
    ("target", "drafter", "engine"),
    [("gguf", "torch", "llama.cpp target"), ("torch", "gguf", "eager target, llama.cpp drafter")],
)
def test_only_one_of_both_is_a_gguf_file(
    specbench: Callable[..., Outcome], tmp_path: Path, target: str, drafter: str, engine: str
) -> None:
    names = {
        "--target": {"gguf": gguf_files.embedded("drafter"), "torch": "embedded:drafter"}[target],
        "--drafter": {"gguf": gguf_files.embedded("drafter-bpe"), "torch": "embedded:drafter-bpe"}[drafter],
    }
    words = [word for name, value in names.items() for word in (name, str(value))]
    methods = f"{BRIDGED},pld"
    code, _, said = specbench(*RUN, *words, "--method", methods)
    assert code == 0, said
    rows = {row.method_name: row for row in load(tmp_path / "here" / "leaderboard.json")}
    assert set(rows) == {"ar", *methods.split(",")}
    for name in BRIDGED.split(","):
        assert (rows[name].engine, rows[name].verdict) == (engine, "greedy equal"), name
    assert rows["pld"].engine == rows["ar"].engine == engine.partition(" target")[0]
    assert rows["slem"].versions["llama-cpp-python"], "whichever of both it computes"
    passes = {"torch": "float32, sdpa", "gguf": "F32, flash, float16 K/V"}[drafter]
    assert rows["slem"].drafter_passes == passes and rows["pld"].drafter_passes is None
    option = {"torch": ("--dtype", "bfloat16"), "gguf": ("--cache-dtype", "float32")}[drafter]
    code, _, said = specbench(*RUN, *words, "--method", methods, *option)
    assert code == 2 and "drafters.slem.passes" in said, said


@pytest.mark.parametrize("method", ["hf-pld", "medusa", "eagle3"])
def test_methods_of_the_network_are_refused(specbench: Callable[..., Outcome], method: str) -> None:
    code, _, said = specbench(*RUN, "--target", str(gguf_files.embedded("drafter")), "--method", method)
    assert code == 2 and len(said.strip().splitlines()) <= 2 and f"method '{method}'" in said


def test_what_has_no_effect_is_refused(specbench: Callable[..., Outcome]) -> None:
    target = ("--target", str(gguf_files.embedded("drafter")), "--method", "pld")
    for words, said_of in (
        (("--dtype", "bfloat16"), "--dtype bfloat16: has no effect on models that llama.cpp computes"),
        (("--quantize", "int8"), "--quantize int8: has no effect"),
        (("--engine", "eager", "--cache-dtype", "float32"), "--cache-dtype float32: has no effect with --engine eager"),
        (("--gpu-layers", "3"), "built without a GPU"),
    ):
        code, _, said = specbench(*RUN, *target, *words)
        assert code == 2 and said_of in said


OF_ONE_VOCABULARY = "sd,sd-block,pld,lookahead,jacobi,token-recycling,synthetic,cascade"


def real_rows(
    specbench: Callable[..., Outcome], folder: Path, target: Path, drafter: Path, methods: str, *words: str,
    output: str = "here",
) -> dict[str, Row]:  # fmt: skip
    """The rows of one example by method."""
    code, _, said = specbench(
        *RUN, "--target", str(target), "--drafter", str(drafter), "--method", methods, "--chat", "never", "--warm-up",
        "0", "--output", output, *words,
    )  # fmt: skip
    assert code == 0, said
    return {row.method_name: row for row in load(folder / output / "leaderboard.json")}


@pytest.mark.real
@pytest.mark.parametrize(
    ("drafter", "methods"),
    [
        ("smollm2-135m", f"{OF_ONE_VOCABULARY},{BRIDGED},fsd-low,random-accept"),  # by transformers
        ("qwen-coder-0.5b.gguf", BRIDGED), ("gemma3-270m.gguf", BRIDGED),
    ],
)  # fmt: skip
def test_a_public_model_writes_what_ar_writes(
    real_models: Path, specbench: Callable[..., Outcome], tmp_path: Path, drafter: str, methods: str
) -> None:
    """Its passes do not depend on their width (Q4_1), so that every lossless method writes AR's tokens, with drafters
    of other formats and vocabularies too."""
    target = real_models / "smollm2-135m.gguf"
    rows = real_rows(specbench, tmp_path, target, real_models / drafter, methods)
    assert set(rows) == {"ar", *methods.split(",")}
    verdicts = {row.verdict for name, row in rows.items() if name not in {*LOSSY, "ar"}}
    assert verdicts == {"greedy equal"}
    assert any(0 < (row.value("acceptance_rate") or 0) < 1 for row in rows.values()), "all drafts were equal, or none"
    sides = "llama.cpp" if drafter.endswith(".gguf") else "llama.cpp target"
    assert {rows[name].engine for name in BRIDGED.split(",")} == {sides}


@pytest.mark.real
def test_a_public_gguf_drafts_for_a_model_in_torch(
    real_models: Path, specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    methods = "sd,fsd-low,tli"
    rows = real_rows(
        specbench, tmp_path, real_models / "smollm2-135m", real_models / "smollm2-135m.gguf", methods, "--dtype",
        "float32",
    )  # fmt: skip
    assert rows["sd"].engine == "eager target, llama.cpp drafter"
    assert {rows[name].verdict for name in ("sd", "tli")} <= {"greedy equal", "near-tie only"}


@pytest.mark.real
def test_a_public_model_draws(real_models: Path, specbench: Callable[..., Outcome], tmp_path: Path) -> None:
    target, drafter = real_models / "smollm2-135m.gguf", real_models / "qwen-coder-0.5b.gguf"
    drawn = []
    for output, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        words = ("--set", "generation.temperature=1.0", "--seed", seed)
        rows = real_rows(specbench, tmp_path, target, drafter, "slem,tli,pld", *words, output=output)
        assert {row.sampling.temperature for row in rows.values()} == {1.0}
        (record,) = map(json.loads, (tmp_path / output / "records.jsonl").read_text().splitlines())
        drawn.append({name: answer["token_ids"] for name, answer in record["methods"].items()})
    assert drawn[0] == drawn[1], "one seed, one answer"
    assert all(drawn[0][name] != drawn[2][name] for name in drawn[0]), "another seed, another answer"
    for name in ("slem", "tli"):
        assert 0 < rows[name].value("acceptance_rate") < 1, name


@pytest.mark.real
@pytest.mark.parametrize(("kind", "method"), [("ngram", "ngram"), ("retrieval", "rest")])
def test_a_public_model_has_a_drafter_made_of_texts(
    real_models: Path, specbench: Callable[..., Outcome], tmp_path: Path, kind: str, method: str
) -> None:
    target = real_models / "smollm2-135m.gguf"
    words = ("--task", "mgsm", "--subset", "en", "--data", "sample", "--target", str(target), "--output", kind)
    code, _, said = specbench("train", kind, *words)
    assert code == 0, said
    rows = real_rows(specbench, tmp_path, target, target, method, "--set", f"drafter.path={kind}")
    assert rows[method].verdict == "greedy equal"


@pytest.mark.real
def test_a_public_model_is_near_its_dequantized_folder(real_models: Path) -> None:
    """llama.cpp rounds activations to 8 bits, torch does not; a wrong token or position would be far off."""
    model = load_model(str(real_models / "smollm2-135m.gguf"), device="cpu", engine="llama.cpp")
    network = load_model(str(real_models / "smollm2-135m"), device="cpu")
    ids = network.encode_prompt("The capital of France is Paris, and the capital of Italy is Rome.", chat=False)
    assert ids == model.encode_prompt("The capital of France is Paris, and the capital of Italy is Rome.", chat=False)
    found, expected = (torch.log_softmax(each.score(ids, len(ids)).logits, dim=-1) for each in (model, network))
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert divergence.max() < 0.1 and (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.8
    assert (expected.exp() * (expected - found.roll(1, 0))).sum(-1).mean() > 1  # of rows at other positions


@pytest.mark.real
def test_rows_of_a_tree_are_those_of_its_chains_bit_for_bit(real_models: Path) -> None:
    """On a file whose passes do not depend on their width, with flash attention, which leaves masked tokens out."""
    model = load_model(str(real_models / "smollm2-135m.gguf"), device="cpu", engine="llama.cpp")
    model.check_trees()
    ids, nodes = text(40), text(len(PARENTS), seed=1)
    fresh(model, ids[:-1])
    rows = model.score_tree(ids, nodes, PARENTS, len(nodes) + 1).logits
    for node in range(len(nodes)):
        chain = path_to(node)
        fresh(model, ids[:-1])
        row = model.score([*ids, *(nodes[each] for each in chain)], len(chain) + 1).logits[-1]
        assert torch.equal(rows[1 + node], row)
    check_kept_paths(model, (7, 9, 1, 6, 0))


def test_a_model_in_several_files(model: CausalLM, tmp_path: Path) -> None:
    parts = gguf_files.split(gguf_files.embedded("drafter"), tmp_path)
    assert torch.equal(fresh(opened(parts[-1]), text(20)), fresh(model, text(20)))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = gguf_files.changed(
        gguf_files.embedded("drafter"), tmp_path / "m.gguf", b"blk.0.attn_norm.weight", b"blk.0.attn_nxrm.weight"
    )
    with pytest.raises(
        ConfigError, match=r"^\S+/m.gguf: llama.cpp cannot open it: tensor 'blk.0.attn_norm.weight' not found: fet"
    ) as caught:
        opened(path)
    assert "general.architecture" not in str(caught.value) and "\n" not in str(caught.value)


def test_an_architecture_that_llama_cpp_lacks(tmp_path: Path) -> None:
    path = gguf_files.rewritten(gguf_files.embedded("drafter"), tmp_path / "m.gguf", {}, architecture="xxxma")
    with pytest.raises(
        ConfigError, match=r"m.gguf: general.architecture = 'xxxma': llama.cpp cannot open it \(unknown model "
    ):
        opened(path)
