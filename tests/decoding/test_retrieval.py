"""Retrieval: look-ups and trees are those of a plain search, the folder is checked, and the command makes it."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import NoDrafter
from specbench.decoding.drafters.retrieval import RetrievalDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import TreeProposal
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import exact_match, rejection
from specbench.models.causal_lm import ModelPair
from specbench.models.corpus_models import Datastore, most_frequent_tree
from specbench.models.loading import load_model, load_tokenizer
from specbench.models.mmap_store import vocabulary_digest
from specbench.training import corpus
from specbench.training.corpus_arrays import build_datastore, suffix_array
from tests.support import tiny

VOCAB = 5
Specbench = Callable[..., tuple[int, str, str]]
Documents = list[list[int]]


def random_documents(seed: int, count: int = 30) -> Documents:
    """Short documents of skewed tokens, some empty, of one token or equal. The last token never occurs."""
    random = Random(seed)
    lengths = [0, 1, 2, 5, 12, 40]
    documents = [random.choices(range(VOCAB - 1), [8, 4, 2, 1], k=random.choice(lengths)) for _ in range(count)]
    return [*documents, *documents[:3]]


def random_text(seed: int, length: int) -> list[int]:
    random = Random(seed)
    return random.choices(range(VOCAB), [8, 4, 2, 1, 0.3], k=length)


def continuations_of(documents: Documents, text: list[int]) -> Documents:
    """All that follows the text in a document, by search."""
    ends = [(document, place + len(text)) for document in documents for place in range(len(document))]
    return [document[end:] for document, end in ends if end < len(document) and document[end - len(text) : end] == text]


def longest_match(documents: Documents, ids: list[int], max_match: int, min_match: int) -> tuple[int, Documents]:
    """The longest suffix that something follows, and its continuations."""
    for length in range(min(max_match, len(ids)), min_match - 1, -1):
        if found := continuations_of(documents, ids[len(ids) - length :]):
            return length, found
    return 0, []


def trie_counts(continuations: Documents, depth: int, end_ids: tuple[int, ...] = ()) -> Counter[tuple[int, ...]]:
    """How many continuations begin with each text of up to `depth` tokens, without those after an end token."""
    counts: Counter[tuple[int, ...]] = Counter()
    for continuation in continuations:
        for length in range(1, min(depth, len(continuation)) + 1):
            counts[tuple(continuation[:length])] += 1
            if continuation[length - 1] in end_ids:
                break
    return counts


def paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """The text of each node of a tree."""
    found: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        found[node] = (*found[parent], token)  # a parent comes before its children
    return list(found.values())[1:]


@pytest.mark.parametrize("length", [1, 2, 3, 10, 200])
def test_the_suffix_array_orders_all_suffixes(length: int) -> None:
    for seed in range(5):
        for tokens in (random_text(seed, length), [3] * length, [seed % 2, 1] * length):
            expected = sorted(range(len(tokens)), key=lambda place: tokens[place:])
            assert suffix_array(np.array(tokens, dtype=np.uint16)).tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_look_up_finds_what_a_search_finds(tmp_path: Path, seed: int) -> None:
    documents = random_documents(seed)
    store = build_datastore(documents, VOCAB, tmp_path / "store", "d")
    assert (store.num_tokens, store.max_token_id) == (sum(map(len, documents)), VOCAB - 2)
    assert list(store.texts()) == [each for each in documents if each]
    lengths = Counter[int]()
    for number in range(150):
        ids = random_text(number, 1 + number % 12)
        max_match, min_match, depth = 1 + number % 7, 1 + number % 2, 1 + number % 4
        length, expected = longest_match(documents, ids, max_match, min_match)
        found, start, end = store.longest_match(ids, max_match, min_match)
        assert (found, end - start) == (length, len(expected))
        lengths[length] += 1
        tokens, parents = most_frequent_tree(store.continuations(ids, max_match, min_match, depth, 5000), VOCAB, (), 99)
        counts = trie_counts(expected, depth)
        ranked = sorted(counts, key=lambda text: (-counts[text], len(text), text))
        assert paths(tokens, parents) == ranked[:99]
    assert lengths[0] and max(lengths) >= 4


@pytest.mark.parametrize("num_nodes", [1, 3, 8, 1000])
def test_a_tree_has_the_most_frequent_nodes(num_nodes: int) -> None:
    """Texts that end early, and texts with an end token, which stays without children."""
    for seed in range(20):
        texts = sorted(random_text(100 * seed + number, Random(number).choice([1, 2, 6])) for number in range(40))
        rows = np.array([[*text, VOCAB, 0, 0, 0, 0, 0][:6] for text in texts], dtype=np.uint8)
        rows = rows[np.lexsort(rows.T[::-1])]
        tokens, parents = most_frequent_tree(rows, VOCAB, (2,), num_nodes)
        counts = trie_counts(texts, 6, (2,))
        ranked = sorted(counts, key=lambda text: (-counts[text], len(text), text))
        assert paths(tokens, parents) == ranked[:num_nodes]
        TreeProposal(tokens, parents)  # it refuses children before parents, and equal children


def test_of_many_occurrences_some_are_counted(tmp_path: Path) -> None:
    """Evenly over all of them, so that the shares stay."""
    store = build_datastore([[0, 1]] * 60 + [[0, 2]] * 20, VOCAB, tmp_path / "store", "d")
    rows = store.continuations([0], 16, 1, 1, 25)
    assert len(rows) == 20 and Counter(rows[:, 0].tolist()) == {1: 15, 2: 5}


def test_no_continuation_crosses_documents(tmp_path: Path) -> None:
    """A text at the end of a document counts as not found, so that its shorter suffixes are looked up."""
    store = build_datastore([[0, 1, 2], [3, 3], [1, 2, 0]], VOCAB, tmp_path / "store", "d")
    assert store.longest_match([0, 1, 2], 16, 1)[0] == 2
    tree = most_frequent_tree(store.continuations([0, 1, 2], 16, 1, 4, 9), VOCAB, (), 9)
    assert tree == ([0], [-1])
    assert store.longest_match([1, 2, 0], 16, 1)[0] == 1  # only 0 alone is followed by a token
    assert store.longest_match([1, 2, 0], 16, 2) == (0, 0, 0)


@pytest.mark.parametrize("vocab_size", [255, 256, 65_535, 65_536, 70_000])
def test_ids_may_have_any_width(tmp_path: Path, vocab_size: int) -> None:
    top = vocab_size - 1
    store = build_datastore([np.array([0, top, 0, top, 1]), (top, 0)], vocab_size, tmp_path / "store", "d")
    assert store.max_token_id == top and not store.tokens.flags.writeable
    assert most_frequent_tree(store.continuations([0, top], 16, 2, 2, 9), vocab_size, (), 9)[0] == [0, 1, top]
    sizes = {"tokens": 1 if top < 255 else 2 if top < 65_535 else 4, "suffixes": 1}
    for name, size in sizes.items():
        assert (tmp_path / "store" / f"{name}.bin").stat().st_size == size * {"tokens": 9, "suffixes": 7}[name]


def make_drafter(store: Datastore, eos: tuple[int, ...] = (), num_nodes: int = 64) -> RetrievalDrafter:
    models: Any = SimpleNamespace(target=SimpleNamespace(eos_token_ids=frozenset(eos)))
    return RetrievalDrafter(models, Sampling(0.0), store, num_nodes=num_nodes, min_match=1)


def test_a_proposal_is_one_look_up_without_memory(tmp_path: Path) -> None:
    drafter = make_drafter(build_datastore([[0, 1, 2, 3], [0, 1, 3]], VOCAB, tmp_path / "store", "d"), eos=(2,))
    generator = torch.Generator()
    drafter.prefill([0])
    tree = drafter.propose([4, 0], 3, generator)
    assert isinstance(tree, TreeProposal) and tree.draws == "fixed"
    assert (tree.token_ids, list(tree.parents)) == ([1, 2, 3], [-1, 0, 0])  # nothing follows the end token 2
    assert drafter.propose([4, 0], 1, generator).token_ids == [1]
    assert drafter.propose([4, 0], 0, generator).token_ids == drafter.propose([4], 3, generator).token_ids == []
    assert drafter.passes is not None and drafter.propose([4, 0], 3, generator).token_ids == tree.token_ids


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_greedy_outputs_are_those_of_autoregressive_decoding(tmp_path: Path, kind: str) -> None:
    """With a corpus that holds the target's own outputs, most of them cut or changed."""
    target, stop = tiny.causal_lm(kind, num_hidden_layers=2), StopRules(48)
    prompt = list(range(40, 60))

    def decoded(drafter: NoDrafter | RetrievalDrafter) -> tuple[list[int], int]:
        rule = exact_match if isinstance(drafter, RetrievalDrafter) else rejection
        made = decode(target, drafter, rule, prompt, num_draft_tokens=6, sampling=Sampling(0.0), stop=stop,
                      generator=torch.Generator())  # fmt: skip
        return made.token_ids, len(made.steps)

    expected, _ = decoded(NoDrafter())
    text = [*prompt, *expected]
    documents = [text[start : start + 12] for start in range(0, len(text), 5)] + [[*text[start:][:4], 7] for start in
                                                                                 range(len(text))]  # fmt: skip
    drafter = make_drafter(build_datastore(documents, target.vocab_size, tmp_path / "store", "d"), num_nodes=12)
    found, num_steps = decoded(drafter)
    assert found == expected and num_steps < 30
    assert decoded(drafter) == (found, num_steps)  # no state passes from prompt to prompt


def edit(folder: Path, **changes: object) -> None:
    data = json.loads((folder / "retrieval.json").read_text())
    (folder / "retrieval.json").write_text(json.dumps({**data, **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "retrieval.json").unlink(), "no datastore .retrieval.json is missing"),
        (lambda folder: (folder / "retrieval.json").write_text("{"), "not valid JSON"),
        (lambda folder: edit(folder, format=2), "format = 2"),
        (lambda folder: edit(folder, num_tokens="two"), "num_tokens = 'two'"),
        (lambda folder: edit(folder, num_documents=3), "arrays: their lengths contradict"),
        (lambda folder: edit(folder, colour="red"), "unknown key 'colour'"),
        (lambda folder: (folder / "suffixes.bin").unlink(), "the datastore lacks this file"),
        (lambda folder: (folder / "tokens.bin").write_bytes(b"1"), "tokens.bin: 1 bytes where retrieval.json says"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    build_datastore([[0, 1]], VOCAB, tmp_path / "store", "d")
    damage(tmp_path / "store")
    with pytest.raises(ConfigError, match=message) as caught:
        Datastore.load(tmp_path / "store")
    assert "specbench train retrieval" in str(caught.value) and str(tmp_path / "store") in str(caught.value)


@pytest.mark.parametrize(
    ("documents", "message"),
    [([[0, VOCAB]], f"token id {VOCAB} is outside the vocabulary"), ([[-1]], "token id -1"), ([[]], "no tokens")],
)
def test_a_corpus_that_does_not_fit_is_refused(tmp_path: Path, documents: Documents, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_datastore(documents, VOCAB, tmp_path / "store", "d")
    assert not (tmp_path / "store").exists()


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[str, str]) -> ModelPair:
    return ModelPair(load_model(tiny_pair[0], device="cpu"))


def own_store(folder: Path, target: ModelPair, digest: str | None = None) -> Datastore:
    """A datastore of a text in the target's tokens."""
    ids = target.target.tokenizer("the cat and the hat and the bat " * 3)["input_ids"]
    return build_datastore(
        [ids], target.target.vocab_size, folder, digest or vocabulary_digest(target.target.vocabulary)
    )


def test_the_factory_takes_a_folder_and_refuses_what_does_not_fit(tmp_path: Path, target: ModelPair) -> None:
    folder = str(tmp_path / "store")
    with pytest.raises(ConfigError, match="no datastore of its own: train one with `specbench train retrieval"):
        RetrievalDrafter(target, Sampling())
    with pytest.raises(ConfigError, match="no datastore"):
        RetrievalDrafter(target, Sampling(), path=folder)
    own_store(Path(folder), target, "another digest")
    with pytest.raises(ConfigError, match="with another tokenizer"):
        RetrievalDrafter(target, Sampling(), path=folder)
    store = own_store(Path(folder), target)
    narrow = SimpleNamespace(name="narrow", vocabulary=target.target.vocabulary, vocab_size=50)
    with pytest.raises(ConfigError, match="with another tokenizer"):
        RetrievalDrafter(SimpleNamespace(target=narrow), Sampling(), path=folder)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_match = 3: is above max_match = 2: give 1 to 2"):
        RetrievalDrafter(target, Sampling(), path=folder, max_match=2, min_match=3)
    made = RetrievalDrafter(target, Sampling(), path=folder)
    assert (made.name, made.revision) == (folder, store.digest)
    with pytest.raises(ConfigError, match="is a datastore: it drafts the tokens of its target"):
        load_tokenizer(folder)


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_run_records_the_datastore(specbench: Specbench, tmp_path: Path, target: ModelPair, temperature: str) -> None:
    own = own_store(tmp_path / "store", target)
    (tmp_path / "mgsm_en.tsv").write_text("the cat and the hat\t5\nthe bat\t7\n", encoding="utf-8")
    code, out, err = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", "rest", "--data", str(tmp_path), "--json",
        "--target", target.target.name, "--set", "generation.max_new_tokens=24", "--set", "drafter.path=store",
        "--set", f"generation.temperature={temperature}", "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    for part in ('"drafter": "store"', f'"drafter_revision": "{own.digest}"', '"method": "rest@1'):
        assert part in out


def test_train_sorts_the_tokens_of_rows_and_files(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abab\n\nb\n")
    tiny.save(tmp_path / "model")
    given = ("--target", str(tmp_path / "model"), "--output", "out/store")
    code, out, err = specbench("train", "retrieval", "--corpus", "a.txt", "--text", "en=a.txt", *given)
    assert code == 0, err
    store, record = Datastore.load("out/store"), json.loads(Path("out/store/training.json").read_text())
    tokenizer = tiny.tokenizer()
    documents = [tokenizer(text)["input_ids"] for text in ("abab", "b") * 2]
    assert store.tokens.tolist() == [token for ids in documents for token in (*ids, store.vocab_size)]
    assert store.tokenizer_digest == vocabulary_digest(tokenizer.get_vocab())
    assert record["settings"]["kind"] == "retrieval" and record["counts"]["digest"] == store.digest
    assert record["counts"]["num_documents"] == 4 and record["counts"]["sorting_seconds"] > 0
    for part in (f"{store.num_tokens} tokens in 4 documents", "tokenizing", "sorting", "tokens/s"):
        assert part in out
    assert "--method rest --set drafter.path=out/store" in err
    code, _, err = specbench("train", "retrieval", "--corpus", "a.txt", *given)
    assert code == 0 and Datastore.load("out/store").num_tokens == store.num_tokens // 2  # it was replaced


def test_ctrl_c_and_other_folders_are_left_as_they_are(
    specbench: Specbench, tmp_path: Path, tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus, "sort_suffixes", interrupt)
    (tmp_path / "a.txt").write_text("words\n")
    given = ("train", "retrieval", "--corpus", "a.txt", "--target", tiny_pair[0])
    code, out, err = specbench(*given, "--output", "out")
    assert code == 130 and not out and "interrupted" in err and not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ngram.json").write_text("{}")
    code, _, err = specbench(*given, "--output", "mine")
    assert code == 2 and "holds ngram.json but no datastore" in err and err.count("\n") == 1
    code, _, err = specbench(*given, "--output", "out", "--set", "order=3")
    assert code == 2 and "unknown key 'order'" in err and err.count("\n") == 1
