"""Language identification: every language of the sample, codes of all kinds, and texts that are in none."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from specbench.analysis.fairness.representation import prompt_tokens, rank_languages, sample
from specbench.cli.analyses import languages
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.specs.components import identifiable_code
from specbench.tasks.scoring import COMMON, language_of
from tests.support import tiny

SAMPLE = [json.loads(line) for line in (builtin_dir("tasks") / "samples" / "mgsm.jsonl").open(encoding="utf-8")]
LANGUAGES = ["en", "es", "fr", "de", "ru", "zh", "ja", "th", "sw", "bn", "te"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_of_the_sample_are_in_their_language(language):
    answers = [row["answer"] for row in SAMPLE if row["subset"] == language]
    right = [language_of(answer, language) == language for answer in answers]
    assert len(answers) >= 16 and sum(right) >= 0.9 * len(right)


@pytest.mark.parametrize("text", ["", "   ", "41", "24 + 17 = 41", "…!"])
def test_what_has_no_words_is_in_no_language(text):
    assert language_of(text) is None


def test_codes_of_languages():
    assert [identifiable_code(code) for code in ("de", "pt-BR", "yor", "ZH", "zh-Hant")] == [
        "de",
        "pt",
        "yo",
        "zh",
        "zh",
    ]
    assert [identifiable_code(code) for code in ("am", "amh", "chr", "zgh")] == ["am", "am", "chr", "zgh"]
    assert [identifiable_code(code) for code in ("x-demo", "x", "ber", "grn", "quy", "")] == [None] * 6
    assert all(identifiable_code(code) == code for code in COMMON)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ሰላም ለዓለም! OK.", "am"),
        ("ᎣᏏᏲ ᎡᎶᎯ, ꭳꮟꮿ", "chr"),
        ("ⴰⵣⵓⵍ ⴰⵎⴰⴹⴰⵍ 2", "zgh"),
        ("Peace, peace is ሰላም in Amharic.", "en"),
    ],
)
def test_languages_with_a_script_of_their_own(text, code):
    assert language_of(text) == language_of(text, "am", "de") == code


def test_the_same_language_has_the_same_code_in_every_task():
    story, translation = load_task("story"), load_task("low_resource_mt")
    shared = [name for name in translation.subset_names if name in story.subset_names]
    assert len(shared) == 11
    assert all(story.subset(name).language == translation.subset(name).language for name in shared)
    assert {name for name in shared if identifiable_code(story.subset(name).language)} == {"amh", "chr", "yor", "zgh"}


def test_a_language_that_is_asked_for_is_told_from_the_common_ones():
    text = "Salve! Hodie in horto ambulamus et de rebus antiquis multa verba dicimus."
    assert language_of(text) != "la" and "la" not in COMMON
    assert language_of(text, "la") == "la"
    assert language_of("Das ist ein deutscher Satz, und er ist lang genug.", "la", "x-demo") == "de"


def test_languages_are_ranked_by_their_share_of_all_texts():
    shares = rank_languages(["en"] * 6 + ["de", "fr"] * 2 + [None] * 10)
    assert [(s.rank, s.language, s.num_texts, s.share) for s in shares] == [
        (1, "en", 6, 0.3), (2, "de", 2, 0.1), (2, "fr", 2, 0.1),
    ]  # fmt: skip
    # Wilson by hand for 6 of 20, z = 1.96: (0.3 + z²/40 ± z·sqrt(0.0105 + z²/1600)) / (1 + z²/20)
    assert (shares[0].low, shares[0].high) == pytest.approx((0.1455, 0.5190), abs=2e-4)
    assert rank_languages([None, None]) == []


def test_texts_are_drawn_from_the_models_own_distribution():
    """2,000 pairs of tokens at temperature 0.5 against the exact probabilities."""
    model, start = tiny.causal_lm("llama"), [65]
    model.eos_token_ids = frozenset()
    drawn = sample(model, start, 2000, 2, 0.5, seed=0)
    assert drawn[:5] == sample(model, start, 5, 2, 0.5, seed=0) != sample(model, start, 5, 2, 0.5, seed=1)
    most = max({first for first, _ in drawn}, key=[first for first, _ in drawn].count)
    for prefix, tokens in ((start, [a for a, _ in drawn]), ([*start, most], [b for a, b in drawn if a == most])):
        probs = torch.softmax(model.score(prefix, 1).logits[0] / 0.5, dim=-1)
        for token in torch.topk(probs, 3).indices.tolist():
            expected = float(probs[token])
            error = 4.5 * (expected * (1 - expected) / len(tokens)) ** 0.5
            assert tokens.count(token) / len(tokens) == pytest.approx(expected, abs=error)


def test_a_text_ends_at_its_end_token():
    model = tiny.causal_lm("llama")
    probs = torch.softmax(model.score([65], 1).logits[0], dim=-1)
    model.eos_token_ids = frozenset(torch.topk(probs, 128).indices.tolist())
    drawn = sample(model, [65], 200, 8, 1.0, seed=0)
    assert {len(ids) for ids in drawn} >= {0, 1} and not {token for ids in drawn for token in ids} & model.eos_token_ids


def test_an_empty_prompt_is_the_token_that_begins_a_text():
    model = tiny.causal_lm("llama")
    model.tokenizer.add_special_tokens({"bos_token": "A"})
    assert prompt_tokens(model, "") == [model.tokenizer.convert_tokens_to_ids("A")]
    model.tokenizer.bos_token = model.tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="has no token for the prompt ''"):
        prompt_tokens(model, "")


app = typer.Typer()
app.command()(languages)


def test_the_command_ranks_the_languages_of_the_embedded_drafter():
    options = ["--samples", "100", "--seed", "1", "--max-new-tokens", "16", "--json"]
    runs = [CliRunner().invoke(app, options).stdout for _ in range(2)]
    found = json.loads(runs[0])
    assert runs[0] == runs[1] and found["prompt"] == "<|start|>" and len(found["languages"]) >= 3
    assert sum(each["num_texts"] for each in found["languages"]) + found["num_unknown"] == 100
    table = CliRunner().invoke(app, ["--samples", "100", "--max-new-tokens", "8"]).stdout
    space = json.loads(CliRunner().invoke(app, [*options, "--prompt", " "]).stdout)  # the paper's
    assert space["prompt"].endswith(" ") and space["prompt"] != found["prompt"]
    assert space["languages"] != found["languages"]
    assert "languages of embedded:drafter-bpe" in table.replace("\n", "") and "95 % interval" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "0"], "--temperature 0: must be above 0"),
        (["--extra-languages", "x-demo"], "--extra-languages x-demo: lingua cannot identify this language"),
    ],
)
def test_options_that_mean_nothing_are_one_line(options, said):
    error = CliRunner().invoke(app, options).exception
    assert isinstance(error, ConfigError) and said in str(error)
