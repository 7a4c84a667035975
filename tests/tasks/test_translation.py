"""The scorer `bleu`: sacrebleu's own numbers, per answer and for a corpus whose statistics were added up."""

import json
import subprocess
import sys

import pytest
import sacrebleu

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.components import complete_options

ENGLISH = [
    ("The cat sat on the mat, and the dog did not.", "The cat is sitting on the mat, and the dog is not."),
    ("Three men walked home.", "Three men went home."),
    ("It's 3.5 km (about 2 miles) to the sea .", "It is 3.5 km (about 2 miles) to the sea."),
    ("no word in common", "Completely different text here"),
    ("", "An answer that never came"),
    ("Yes", "Yes"),
    ("a b c d e f g h", "a b c d e f g h"),
]
JAPANESE = [
    ("私は昨日、学校へ行きました。", "昨日私は学校に行きました。"),
    ("猫が二匹います。", "猫が二匹います。"),
    ("東京は大きい", "東京は大きな町です。"),
]
CHINESE = [
    ("我昨天去了学校。", "昨天我去学校了。"),
    ("有两只猫。", "有两只猫。"),
    ("3.5公里 to the sea", "到海边3.5公里"),
]
CORPORA = {"13a": ENGLISH, "intl": ENGLISH, "none": ENGLISH, "char": CHINESE, "zh": CHINESE, "ja-mecab": JAPANESE}


def summed(scorer, name, pairs):
    columns = [scorer(text, reference).statistics[name] for text, reference in pairs]
    return [sum(column) for column in zip(*columns, strict=True)]


def cli(tmp_path, pairs, tokenizer, *references):
    """What sacrebleu's command line prints, with all its digits."""
    files = [tmp_path / "answers", *(tmp_path / f"references-{n}" for n in range(1 + len(references)))]
    columns = [[text for text, _ in pairs], [reference for _, reference in pairs], *references]
    for path, lines in zip(files, columns, strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, files[1:]), "-i", str(files[0]), "-m", "bleu", "chrf",
               "--chrf-word-order", "2", "-tok", tokenizer, "-f", "json", "-w", "6"]  # fmt: skip
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "ja-mecab"])
def test_the_corpus_and_its_signature_are_those_of_the_command_line(tmp_path, tokenizer):
    scorer, pairs = SCORERS.get("bleu")(tokenizer=tokenizer), CORPORA[tokenizer]
    told = cli(tmp_path, pairs, tokenizer)
    for name, each in zip(("bleu", "chrf"), told, strict=True):
        assert scorer.corpus(name, summed(scorer, name, pairs)) == pytest.approx(each["score"], abs=2e-6)
        parts = scorer.signature[name].split("|")
        assert parts == each["signature"].split("|")
    assert 0 < told[0]["score"] < 100 and told[1]["name"] == "chrF2++"


def test_several_references_are_those_of_the_command_line(tmp_path):
    scorer = SCORERS.get("bleu")()
    second = [reference.replace("is", "was").lower() for _, reference in ENGLISH]
    told = cli(tmp_path, ENGLISH, "13a", second)
    pairs = [(text, [one, other]) for (text, one), other in zip(ENGLISH, second, strict=True)]
    for name, each in zip(("bleu", "chrf"), told, strict=True):
        assert scorer.corpus(name, summed(scorer, name, pairs)) == pytest.approx(each["score"], abs=2e-6)


@pytest.mark.parametrize("tokenizer", CORPORA)
def test_values_of_an_answer_are_sacrebleus(tokenizer):
    scorer = SCORERS.get("bleu")(tokenizer=tokenizer)
    for text, reference in CORPORA[tokenizer]:
        values = scorer(text, reference).values
        bleu = sacrebleu.BLEU(tokenize=tokenizer, effective_order=True).sentence_score(text, [reference]).score
        chrf = sacrebleu.CHRF(word_order=2).sentence_score(text, [reference]).score
        assert (values["bleu"], values["chrf"]) == pytest.approx((bleu, chrf), abs=1e-9)


@pytest.mark.parametrize("tokenizer", CORPORA)
def test_the_reference_itself_has_all_points_and_nothing_has_none(tokenizer):
    scorer = SCORERS.get("bleu")(tokenizer=tokenizer)
    for _, reference in CORPORA[tokenizer]:
        assert scorer(reference, reference).values == pytest.approx({"bleu": 100.0, "chrf": 100.0})
        assert scorer(reference, ["something else", reference]).values == pytest.approx({"bleu": 100.0, "chrf": 100.0})
        assert scorer("", reference).values == {"bleu": 0.0, "chrf": 0.0}


def test_what_cannot_be_judged_and_wrong_options():
    scorer = SCORERS.get("bleu")()
    missing = scorer("text", ["", " "])
    assert missing.values == {"bleu": None, "chrf": None} and missing.statistics == {} and missing.problem
    with pytest.raises(ConfigError, match="the reference is a mapping"):
        scorer("text", {"de": "Text"})
    with pytest.raises(ConfigError, match=r"scorer.tokenizer = 'ja-mecap': did you mean 'ja-mecab'"):
        complete_options(SCORERS, "bleu", {"tokenizer": "ja-mecap"}, "scorer")
    with pytest.raises(ConfigError, match="flores200"):  # it needs a download
        complete_options(SCORERS, "bleu", {"tokenizer": "flores200"}, "scorer")
