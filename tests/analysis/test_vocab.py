"""`specbench vocab`: overlap, injectivity, decompositions, expected acceptance and the methods that fit a pair."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from specbench.analysis.vocab import vocab as accepted
from specbench.analysis.vocab.vocab import (
    CountSummary,
    Decompositions,
    MethodFit,
    NamedTokenizer,
    VocabReport,
    all_decompositions,
    count_decompositions,
    injectivity,
    make_report,
    overlaps,
    share_of_occurrences,
    task_prompts,
    token_counts,
)
from specbench.cli.analyses import vocab
from specbench.core.errors import ConfigError
from specbench.core.table import Table
from specbench.decoding.proposal import OUT_OF_VOCABULARY, PointMass, Proposal
from specbench.decoding.sampling import DraftProbs, process
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_tokenizer
from specbench.models.vocabulary import Vocabulary
from tests.support import tiny
from tests.support import tokenizers_made_here as made


def side(tokenizer: PreTrainedTokenizerFast, name: str = "here") -> NamedTokenizer:
    return name, tokenizer


def report_on(target: PreTrainedTokenizerFast, drafter: PreTrainedTokenizerFast) -> VocabReport:
    return make_report(side(target), side(drafter), made.TEXTS, "lines")


# ---- overlap


def test_overlap_is_counted_by_bytes_whatever_the_spelling() -> None:
    target, drafter = Vocabulary(made.byte_bpe()), Vocabulary(made.sentencepiece())
    found, plain, _ = overlaps(target, drafter, ["eggs"]).values()
    assert found.target == len(made.byte_bpe()) and found.drafter == len(made.sentencepiece())
    assert plain.target == found.target - 1  # all but the end of a text
    assert b" day" in target.id_of and b" day" in drafter.id_of  # "Ġday" and "▁day"
    spelt = set(made.byte_bpe().get_vocab()) & set(made.sentencepiece().get_vocab())
    assert found.both == plain.both == len(target.id_of.keys() & drafter.id_of.keys()) > 2 * len(spelt)
    assert found.ratio == found.both / found.target


def test_overlap_in_texts_counts_what_appears_there() -> None:
    target, drafter, texts = Vocabulary(made.byte_bpe()), Vocabulary(made.bytes_only()), ["eggs eggs", "x"]
    *_, found = overlaps(target, drafter, texts).values()
    ours = [made.byte_bpe().tokenize(text) for text in texts]
    kinds = {token for tokens in ours for token in tokens}
    single = [token for tokens in ours for token in tokens if len(token) == 1]
    assert (found.target, found.drafter) == (len(kinds), len(set("eggs x")))
    assert found.both == len(set(single)) and found.ratio == found.both / len(kinds)
    assert share_of_occurrences(token_counts(target, texts), drafter) == len(single) / sum(map(len, ours))
    assert share_of_occurrences(token_counts(drafter, texts), target) == 1.0  # the target has every byte


def test_a_vocabulary_overlaps_with_itself_in_all_but_its_special_tokens() -> None:
    found = report_on(made.gemma_like(), made.gemma_like())
    _, plain, in_texts = found.overlaps.values()
    assert found.same_vocabulary and plain.both == plain.target == plain.drafter
    assert in_texts.ratio == found.share_of_target == 1.0


# ---- decompositions


HELLO = ["H", "e", "l", "o", "lo", "ll", "el", "ell", "ello", "He", "Hel", "Hell", "Hello"]


def pieces(*names: str) -> set[bytes]:
    return {name.encode() for name in names}


def test_the_example_of_the_paper_has_its_14_decompositions_and_16_passes() -> None:
    assert count_decompositions(b"Hello", pieces(*HELLO), 5) == (14, 16)


@pytest.mark.parametrize("length", [1, 2, 7, 300])
def test_a_complete_vocabulary_has_two_to_the_length_minus_one(length: int) -> None:
    assert count_decompositions(b"a" * length, {b"a" * i for i in range(1, length + 1)}, length)[0] == 2 ** (
        length - 1
    )  # Lemma 3.1


def test_a_token_that_cannot_be_written_has_none() -> None:
    assert count_decompositions(b"abx", pieces("a", "b", "ab"), 2) == (0, 4)
    assert count_decompositions(b"abc", pieces("ab", "bc"), 2) == (0, 2)


def listed(token: bytes, known: set[bytes]) -> Iterator[list[bytes]]:
    """Every sequence of known pieces that joins to the token."""
    if not token:
        yield []
    for piece in known:
        if token.startswith(piece):
            yield from ([piece, *rest] for rest in listed(token[len(piece) :], known))


@given(
    st.binary(min_size=1, max_size=8).map(lambda b: bytes(byte % 2 for byte in b)),
    st.sets(st.lists(st.integers(0, 1), min_size=1, max_size=4).map(bytes), max_size=12),
)
def test_counting_agrees_with_listing(token: bytes, known: set[bytes]) -> None:
    number, passes = count_decompositions(token, known, max(map(len, known), default=0))
    assert number == len(list(listed(token, known)))
    assert passes == sum(len(list(listed(token[:end], known))) for end in range(len(token)))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_summaries_agree_with_numpy(values: list[int]) -> None:
    found = CountSummary.of(values)
    quartiles = np.quantile(values, [0.25, 0.5, 0.75], method="lower").tolist()
    assert [found.quartile_1, found.median, found.quartile_3] == quartiles
    assert (found.min, found.max) == (min(values), max(values))
    assert found.mean == pytest.approx(np.mean(values)) and found.sd == pytest.approx(np.std(values), abs=1e-5)


def test_all_tokens_are_counted_once_and_by_their_length() -> None:
    target, drafter = Vocabulary(made.byte_bpe()), Vocabulary(made.bytes_only())
    found = Decompositions.of(all_decompositions(target, drafter))
    assert found.num_tokens == len(target.id_of) == sum(of.num_tokens for of in found.by_length)
    assert found.num_impossible == 0 and found.number.min == found.number.max == 1  # one byte after the other
    assert found.passes == found.length and found.length.max == max(map(len, target.id_of))
    itself = Decompositions.of(all_decompositions(target, target))
    assert [of.median for of in itself.by_length][:2] == [1, 2] and itself.number.max > found.number.max
    impossible = Decompositions.of(all_decompositions(target, Vocabulary(made.wordpiece()))).num_impossible
    assert 0 < impossible < found.num_tokens


# ---- injectivity


@pytest.mark.parametrize("name", made.EXACT)
def test_texts_come_back_from_exact_tokenizers(name: str) -> None:
    tokenizer = made.EXACT[name]()
    found = injectivity(tokenizer, Vocabulary(tokenizer), made.TEXTS)
    assert found.injective and found.num_changed_by_bridges == 0 and found.first is None


def test_the_first_text_that_changes_is_shown_where_it_does() -> None:
    tokenizer = made.wordpiece()
    found = injectivity(tokenizer, Vocabulary(tokenizer), ["a day", "she eats muffins for the Élève", "a"])
    assert not found.injective and (found.num_changed, found.num_changed_by_bridges) == (1, 1)
    assert found.first is not None
    assert (found.first.text, found.first.round_trip) == ("for the Élève", "for the eleve")


def test_bridges_keep_spaces_that_a_decoder_drops() -> None:
    tokenizer = made.sentencepiece(metaspace=True)
    tokenizer.backend_tokenizer.decoder = made.unigram().backend_tokenizer.decoder  # drops all that stand first
    tokenizer.add_tokens(["▁▁▁"])
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("▁▁▁", "a")]
    assert tokenizer.decode(ids) == "a" and Vocabulary(tokenizer).text(ids) == ("  a", 0)


# ---- which methods fit


def verdicts(report: VocabReport) -> dict[str, tuple[bool, str]]:
    return {fit.method: (fit.runs, fit.verdict) for fit in report.methods}


def test_with_one_vocabulary_only_sd_is_needed() -> None:
    found = verdicts(report_on(made.byte_bpe(), made.byte_bpe()))
    assert found.pop("sd") == (True, "fits")
    assert found and set(found.values()) == {(True, "no gain")}


def test_with_other_vocabularies_sd_cannot_run_and_union_gains_nothing() -> None:
    found = verdicts(report_on(made.byte_bpe(400), made.byte_bpe(600)))
    assert found["sd"] == (False, "cannot run") and found["union"] == (True, "no gain")
    assert found["tli"] == (True, "fits") and found["slem"] == (True, "fits")


def test_with_a_few_added_tokens_sd_shares_the_other_ids() -> None:
    report = report_on(made.byte_bpe(), made.byte_bpe_with_added())
    assert report.num_same_ids == 600 and verdicts(report)["sd"] == (True, "fits")


def test_small_overlaps_and_texts_that_change_are_weaknesses() -> None:
    assert verdicts(report_on(made.byte_bpe(), made.bytes_only()))["tli"] == (True, "weak")
    assert verdicts(report_on(made.byte_bpe(), made.wordpiece()))["slem"] == (True, "weak")
    assert report_on(made.byte_bpe(), made.bytes_only()).passes_in_texts < 3  # about the bytes of a token


def test_string_rejection_is_weak_where_the_drafter_cannot_write() -> None:
    """Tokens that it cannot write take few passes, which is not a merit."""
    short = report_on(made.byte_bpe(), made.bytes_only())
    assert short.writable_in_texts == 1 and verdicts(short)["slrs"] == (True, "fits")
    cost = next(fit.reason for fit in short.methods if fit.method == "slrs")
    assert cost.startswith(
        f"when sampling, ψ of each drafted token costs at least {short.passes_in_texts:.1f} draft passes"
    )
    found = report_on(made.byte_bpe(), made.wordpiece())
    assert found.writable_in_texts < 0.75 and verdicts(found)["slrs"] == (True, "weak")
    reason = next(fit.reason for fit in found.methods if fit.method == "slrs")
    assert f"can write {found.writable_in_texts:.1%} of the target's tokens" in reason and "do not round-trip" in reason


# ---- expected acceptance


def model(tokenizer: PreTrainedTokenizerFast, seed: int) -> CausalLM:
    network = tiny.network(seed=seed, vocab_size=len(tokenizer), num_hidden_layers=1)
    return CausalLM(network, tokenizer, f"tiny-{seed}", None)


def fits(*names: str) -> list[MethodFit]:
    return [MethodFit(method=name, runs=True, verdict="fits", reason="") for name in names]


def values(models: ModelPair, *names: str, seed: int = 0) -> dict[str, float]:
    found = accepted.expected_acceptance(models, fits(*names), made.TEXTS[:6], seed)
    assert all(of.problem is None for of in found), found
    return {of.method: (of.acceptance and of.acceptance.value) or 0.0 for of in found}


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "NUM_NEW_TOKENS", 10)


@pytest.mark.usefixtures("few_tokens")
def test_a_target_accepts_all_of_its_own_drafts_but_for_exact_match() -> None:
    one = model(made.bytes_only(), 0)
    found = values(ModelPair(one, model(made.bytes_only(), 0)), "sd", "slem")
    assert found["sd"] == pytest.approx(1.0, abs=1e-5)
    assert found["slem"] < 0.9  # Theorem 3.1


@pytest.mark.usefixtures("few_tokens")
def test_intersection_accepts_at_least_as_much_as_union() -> None:
    models = ModelPair(model(made.byte_bpe(), 0), model(made.other_byte_bpe(), 1))
    found = values(models, "union", "tli")
    assert 0 < found["union"] < found["tli"] < 1  # Theorem 4.1


@pytest.mark.usefixtures("few_tokens")
def test_the_value_of_sd_is_the_mean_overlap_of_the_two_models() -> None:
    models = ModelPair(model(made.bytes_only(), 0), model(made.bytes_only(), 1))
    assert models.drafter is not None
    texts = accepted.sample_texts(models.target, made.TEXTS[:6], 0)
    overlaps = []
    for prompt_ids, new_ids, _ in texts:
        ids = (prompt_ids + new_ids)[:-1]
        rows = [
            process(each.score(ids, len(new_ids)).logits, accepted.SAMPLING) for each in (models.target, models.drafter)
        ]
        overlaps += torch.minimum(*rows).sum(dim=-1).tolist()
    assert values(models, "sd")["sd"] == pytest.approx(float(np.mean(overlaps)), abs=1e-5)


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_value_of_a_token_bridge_is_that_of_the_models_whatever_is_drawn(seed: int) -> None:
    """Also where the drafter draws the end of a text: (1 − P(end)) · Σ min(p, q given no end), without noise."""
    models = ModelPair(model(made.bytes_only(), 0), model(made.bytes_only(), 1))
    assert models.drafter is not None
    ends = [models.drafter.text_vocabulary.id_of[letter] for letter in (b"a", b"e", b"n")]
    models.drafter.eos_token_ids = frozenset(ends)
    head = models.drafter.model.lm_head
    models.drafter.model.lm_head = torch.nn.Linear(head.in_features, head.out_features)
    models.drafter.model.lm_head.weight = head.weight
    bias = torch.zeros(head.out_features)
    bias[ends] = 5.0  # so that ends are drawn often
    models.drafter.model.lm_head.bias = torch.nn.Parameter(bias)
    texts = accepted.sample_texts(models.target, made.TEXTS[:6], seed)
    chances, given_no_end = [], []
    for prompt_ids, new_ids, _ in texts:
        ids = (prompt_ids + new_ids)[:-1]
        rows = [
            process(each.score(ids, len(new_ids)).logits, accepted.SAMPLING) for each in (models.target, models.drafter)
        ]
        end = rows[1][:, ends].sum(dim=-1)
        shared = [token for token in models.target.text_vocabulary.id_of.values() if token not in ends]
        overlap = torch.minimum(rows[0], rows[1] / (1 - end)[:, None])[:, shared].sum(dim=-1)
        given_no_end += overlap.tolist()
        chances += ((1 - end) * overlap).tolist()
    found = values(models, "union", seed=seed)["union"]
    assert found == pytest.approx(float(np.mean(chances)), abs=1e-4)
    assert found < float(np.mean(given_no_end)) - 0.04


class DrawnOnly(DraftProbs):
    """What slrs knows of its draft: ψ of the tokens that were drawn, and no sum over the vocabulary."""

    def __init__(self, psi: torch.Tensor) -> None:
        self.psi = psi

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.psi[token_ids]

    def overlap(self, target_probs: torch.Tensor) -> None:
        return None

    residual_is_sampled = True

    def sample_residual(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        raise AssertionError("nothing is drawn")


def test_single_drafts_give_the_formulas_of_the_paper_on_average() -> None:
    target_probs, psi = torch.tensor([0.5, 0.1, 0.3, 0.1]), torch.tensor([0.2, 0.4, 0.3, 0.1])
    judged = [
        (accepted.acceptance_probability(Proposal([t], DrawnOnly(psi)), target_probs), float(psi[t])) for t in range(4)
    ]
    certain = [
        (accepted.acceptance_probability(Proposal([t], PointMass([t])), target_probs), float(psi[t])) for t in range(4)
    ]
    assert sum(value * share for value, share in judged) == pytest.approx(float(torch.minimum(target_probs, psi).sum()))
    assert sum(value * share for value, share in certain) == pytest.approx(float((target_probs * psi).sum()))
    assert accepted.acceptance_probability(Proposal(), target_probs) == 0.0
    assert accepted.acceptance_probability(Proposal([OUT_OF_VOCABULARY], DrawnOnly(psi)), target_probs) == 0.0


def test_a_method_that_cannot_run_says_so_and_the_others_go_on(few_tokens: None) -> None:
    models = ModelPair(model(made.byte_bpe(), 0), model(made.other_byte_bpe(), 1))
    asked = [MethodFit(method="sd", runs=False, verdict="cannot run", reason=""), *fits("tli")]
    found = accepted.expected_acceptance(models, asked, made.TEXTS[:6])
    assert found[0].acceptance is None and found[0].problem == "undefined for different vocabularies"
    acceptance = found[1].acceptance
    assert acceptance is not None and acceptance.low is not None and acceptance.low < (acceptance.value or 0.0)
    assert 0 < found[1].num_drafted <= found[1].num_positions <= 60


# ---- texts and the command


def test_fifty_prompts_are_spread_evenly_over_the_subsets() -> None:
    found = task_prompts(
        "mgsm", ["en", "th", "te"], data=None, use_sample=True, console=Console(quiet=True), limit=None
    )
    each = [
        task_prompts("mgsm", [name], data=None, use_sample=True, console=Console(quiet=True), limit=17)
        for name in ("en", "th", "te")
    ]
    assert found == [prompt for row in zip(*each, strict=True) for prompt in row][:50]
    assert len(task_prompts("mgsm", None, data=None, use_sample=True, console=Console(quiet=True), limit=2)) == 22


Call = Callable[..., str]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in this process: what it prints."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(vocab)

    def run(*arguments: str) -> str:
        app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer alone: no weights, no config."""
    path = tmp_path_factory.mktemp("tokenizer")
    made.other_byte_bpe().save_pretrained(path)
    return path


def test_the_report_fits_into_100_columns_and_needs_no_weights(call: Call, folder: Path) -> None:
    out = call("--drafter", str(folder), "--subset", "en,te", "--limit", "3")
    assert max(map(len, out.splitlines())) <= 100
    for part in ("T ∩ D", "6 prompts of mgsm", "injective", "decompositions by the length", "Theorem 4.1"):
        assert part in out
    assert "expected acceptance" not in out
    told = " ".join(out.split())
    for term in ("T, the target:", "D, the drafter:", "T ∩ D: those that both have", "plain: without special",
                 "injective: no text was changed", "changed in bridges: as", "decompositions: the sequences of",
                 "ψ: the chance that D drafts the text of a token"):  # fmt: skip
        assert term in told, f"{term}: no legend in {out}"


def test_no_mean_hides_that_a_few_tokens_have_almost_all_decompositions() -> None:
    """A run of 40 spaces has 2^39 of them, so that a mean over all tokens tells of this token alone."""
    spaces = {b" " * length: (2 ** (length - 1), 2**length - 1) for length in range(1, 41)} | {b"a": (0, 1)}
    report = report_on(made.byte_bpe(), made.bytes_only()).model_copy(
        update={"decompositions": Decompositions.of(spaces)}
    )
    parts = [part for part in accepted.report_parts(report) if isinstance(part, Table)]
    assert not any(column.heading == "mean" for part in parts for column in part.columns)
    (ways,) = [part for part in parts if "plain tokens of T" in part.title]
    assert ["decompositions", "0", "512", "524,288", "536,870,912", "> 10⁹"] in ways.rows
    caption = ways.caption
    assert "the most decompositions: of a token of 40 bytes" in caption
    assert "0 decompositions: D cannot write 1 of the tokens" in caption


def test_json_holds_the_whole_report(call: Call, folder: Path) -> None:
    found = VocabReport.model_validate(json.loads(call("--drafter", str(folder), "--subset", "en", "--json")))
    again = VocabReport.model_validate_json(found.model_dump_json())
    assert again == found and found.drafter == str(folder)
    assert all(fit.acceptance is None for fit in found.methods)
    assert found.overlaps["all"].target == 2048 and len(found.decompositions.by_length) > 20


def test_acceptance_loads_both_models(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "NUM_NEW_TOKENS", 2)
    pair = ("--target", "embedded:drafter", "--drafter", "embedded:drafter-bpe")
    out = call(*pair, "--task", "mgsm", "--subset", "en", "--limit", "5", "--acceptance")
    assert "expected acceptance of the next token" in out and max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "mgms"], "unknown task 'mgms': did you mean 'mgsm'?"),
        (["--subset", "eng"], "task 'mgsm' has no subset 'eng': did you mean 'en'?"),
        (["--subset", ""], "--subset is empty: name at least one, or leave the option out"),
        (["--limit", "0"], "--limit 0: give a number of examples from 1, or a share"),
        (["--target", "./nowhere"], "model folder './nowhere' does not exist"),
        (["--drafter", "embedded:nothing"], "nothing"),
        (["--drafter-revision", "main"], "--drafter-revision main: 'embedded:drafter' is not on the hub"),
    ],
)
def test_mistakes_are_one_line(call: Call, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        call("--drafter", "embedded:drafter", *arguments)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_a_tokenizer_is_named(call: Call, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer_config.json", tmp_path)
    with pytest.raises(ConfigError, match="cannot load the tokenizer of"):
        call("--drafter", str(tmp_path))


def test_every_kind_of_pair_has_a_report() -> None:
    for target, drafter in itertools.product(("byte_bpe", "unigram", "wordpiece"), repeat=2):
        found = report_on(made.ALL[target](), made.ALL[drafter]())
        assert found.same_vocabulary == (target == drafter)
        _, plain, _ = found.overlaps.values()
        assert 0 < plain.both <= min(plain.target, plain.drafter)


def test_an_ngram_folder_has_no_vocabulary_of_its_own() -> None:
    with pytest.raises(ConfigError, match="'embedded:ngram' is an n-gram folder"):
        load_tokenizer("embedded:ngram")
    with pytest.raises(ConfigError, match="'embedded:retrieval' is a datastore"):
        load_tokenizer("embedded:retrieval")
