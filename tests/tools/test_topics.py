"""Topics of stories, made of the user's word lists or of ours."""

import builtins
import sys
from types import SimpleNamespace

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples
from tools import topics

RATINGS = "Word\tBigram\tConc.M\tConc.SD\tUnknown\tTotal\tPercent_known\tSUBTLEX\tDom_Pos\n"
VECTORS = "garden 1 0 0\nsunny 0.9 0.1 0\nriver 0 1 0\nwet 0.1 0.9 0\nidea 0 0 1\nvague 0 0.1 0.9\nof 1 1 1\n"


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Ratings of three nouns, vectors, and a Brown corpus of three adjectives."""
    rated = [("garden", 0, 4.9, "Noun"), ("idea", 0, 1.6, "Noun"), ("river", 0, 5, "Noun"), ("red wine", 1, 5, "Noun"),
             ("wet", 0, 4.5, "Adjective")]  # fmt: skip
    lines = [f"{word}\t{bigram}\t{concrete}\t0\t0\t25\t1\t9\t{part}\n" for word, bigram, concrete, part in rated]
    (tmp_path / "ratings.tsv").write_text(RATINGS + "".join(lines))
    (tmp_path / "vectors.txt").write_text(VECTORS)
    monkeypatch.setattr(topics, "brown_adjectives", lambda: ["wet", "sunny", "vague"])
    return SimpleNamespace(ratings=tmp_path / "ratings.tsv", vectors=tmp_path / "vectors.txt")


def test_the_most_concrete_nouns_come_first(words):
    assert topics.concrete_nouns(words.ratings) == ["river", "garden", "idea"]


def test_words_are_paired_by_similarity(words):
    pairs = topics.make_topics(3, words.ratings, words.vectors)
    assert sorted(pairs) == [("sunny", "garden"), ("vague", "idea"), ("wet", "river")]


def test_the_most_similar_pairs_are_taken(words):
    words.vectors.write_text(VECTORS.replace("sunny 0.9 0.1 0", "sunny 1 0 0"))
    assert topics.make_topics(1, words.ratings, words.vectors) == [("sunny", "garden")]


def test_our_own_words_make_the_two_hundred_topics_of_the_paper():
    pairs = topics.make_topics()
    assert len(set(pairs)) == 200 and pairs[0] == ("sunlit", "garden")
    assert len({noun for _, noun in pairs}) == 40 and len({adjective for adjective, _ in pairs}) == 50


@pytest.mark.parametrize("missing", ["nltk", "corpus"])
def test_without_nltk_or_its_corpus_there_are_no_brown_adjectives(missing, monkeypatch):
    if missing == "nltk":
        real = builtins.__import__

        def refuse(name, *rest):
            if name.startswith("nltk"):
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", refuse)
    else:
        corpus = SimpleNamespace(brown=SimpleNamespace(tagged_words=_no_corpus))
        monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(corpus=corpus))
        monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    assert topics.brown_adjectives() is None


def _no_corpus():
    raise LookupError("Resource brown not found")


def test_brown_adjectives_come_by_frequency(monkeypatch):
    tagged = [("Old", "JJ"), ("old", "JJ"), ("house", "NN"), ("new", "JJ"), ("old-time", "JJ"), ("bigger", "JJR")]
    corpus = SimpleNamespace(brown=SimpleNamespace(tagged_words=lambda: tagged))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(corpus=corpus))
    assert topics.brown_adjectives() == ["old", "new"]


def test_what_is_wrong_with_word_lists_is_said(words, tmp_path):
    def fails(match, *arguments):
        with pytest.raises(ConfigError, match=match) as error:
            topics.make_topics(*arguments)
        assert "\n" not in str(error.value)

    fails("needs --vectors", 3, words.ratings)
    fails("cannot be read", 3, tmp_path / "nothing.tsv", words.vectors)
    fails("3 adjectives and 3 nouns", 4, words.ratings, words.vectors)
    fails("make 200 topics", 201)
    fails("at least", 0)
    words.vectors.write_text("garden 1 x\n")
    fails("line 1: not a word and its numbers", 1, words.ratings, words.vectors)
    words.vectors.write_text("garden 1 0\nsunny 1\n")
    fails("different lengths", 1, words.ratings, words.vectors)
    words.ratings.write_text(RATINGS + "wet\t0\t4.5\t0\t0\t25\t1\t9\tAdjective\n")
    fails("none of its 1 words is a Noun", 1, words.ratings, words.vectors)
    words.ratings.write_text("Word\nwet\n")
    fails("Bigram", 1, words.ratings, words.vectors)


def test_one_file_of_topics_serves_all_languages(tmp_path, monkeypatch, capsys):
    path = tmp_path / "topics.jsonl"
    monkeypatch.setattr(sys, "argv", ["topics", str(path), "--num", "3"])
    topics.main()
    assert "3 topics" in capsys.readouterr().out and len(path.read_text().splitlines()) == 3 * 15
    for subset, language in (("de", "German"), ("yor", "Yoruba")):
        data = load_examples(
            load_task("story"), subset, data=str(path), use_sample=False, limit=None, num_subsets=15
        ).examples
        assert len(data) == 3
        assert data[0].prompt == f"Write a short story in {language} about this topic: sunlit garden\n\nStory:\n"
    monkeypatch.setattr(sys, "argv", ["topics", str(path), "--num", "999"])
    with pytest.raises(SystemExit, match="2"):
        topics.main()
    assert capsys.readouterr().err.startswith("error: --num 999")
