"""Small tokenizers of every kind, trained in memory on a few lines in several scripts; none comes from anywhere."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends.",
    "How much in dollars does she make every day at the farmers' market?  Step by step: 16 - 3 - 4 = 9 eggs a day.",
    "Übermäßig große Größen ärgern Käufer; ein Fußgänger läuft über die Straße und isst süßes Gebäck für 3,50 €.",
    "L'élève a reçu un gâteau à Noël, où la forêt était très enneigée et le garçon déçu.",
    "Сколько яиц в день несут утки Джанет? Она продаёт остаток на рынке.",
    "เป็ดของเจเน็ตออกไข่ 16 ฟองต่อวัน เธอกินสามฟองเป็นอาหารเช้าทุกวัน",
    "జానెట్ యొక్క బాతులు రోజుకు 16 గుడ్లు పెడతాయి. ఆమె ప్రతిరోజూ మూడు తింటుంది.",
    "ジャネットのアヒルは1日に16個の卵を産みます。毎朝3個を朝食に食べます。",
    "def add(first, second):\n    # both are numbers\n    return first + second\n\n\nprint(add(1, 2))\n",
    "🦆🦆🥚 quack 🥚🥚 🧑‍🌾 → €5 👍🏽",
)
END, BEGIN, UNKNOWN = "</s>", "<s>", "<unk>"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s"


def wrap(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **options)


@cache
def byte_level_json(vocab_size: int, pieces: str, specials: tuple[str, ...]) -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pieces), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 2, trainer)
    text: str = backend.to_str()
    return text


def byte_bpe(vocab_size: int = 600) -> PreTrainedTokenizerFast:
    """Byte-level BPE with GPT-2's pieces, numbers in one piece; END is special."""
    return wrap(Tokenizer.from_str(byte_level_json(vocab_size, GPT2, ("<|end|>",))), eos_token="<|end|>")


def other_byte_bpe(vocab_size: int = 420) -> PreTrainedTokenizerFast:
    """A smaller byte-level BPE over other pieces: digits alone, vowel signs with their letters, no runs of blanks."""
    return wrap(Tokenizer.from_str(byte_level_json(vocab_size, WORDS, (END, "<pad>"))), eos_token=END)


def byte_bpe_with_bos() -> PreTrainedTokenizerFast:
    """As Llama 3: a special token before every text."""
    backend = Tokenizer.from_str(byte_level_json(500, GPT2, ("<|begin|>", "<|end|>")))
    backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return wrap(backend, bos_token="<|begin|>", eos_token="<|end|>")


def byte_bpe_with_added() -> PreTrainedTokenizerFast:
    """As Qwen: behind the vocabulary there are special tokens, and added ones that are not special."""
    made = byte_bpe()
    made.add_tokens([AddedToken("<|start|>", special=True)], special_tokens=True)
    made.add_tokens(["<think>", "garçon naïf"])
    return made


def bytes_only() -> PreTrainedTokenizerFast:
    """One token per byte, and END."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return wrap(backend, eos_token="<|end|>")


@cache
def sentencepiece_json(dummy_prefix: bool, metaspace: bool) -> str:
    """BPE over ▁-words with a small alphabet: what is not Latin falls back to byte tokens."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    counts = Counter("▁".join(["", *TEXTS]).replace(" ", "▁"))
    alphabet = sorted(sorted(counts), key=lambda character: -counts[character])[
        :70
    ]  # ties by the character: always one
    trainer = trainers.BpeTrainer(
        vocab_size=420, limit_alphabet=len(alphabet), initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator(["▁" + text for text in TEXTS * 2], trainer)
    model = json.loads(learner.to_str())["model"]
    tokens = [UNKNOWN, BEGIN, END, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True, ignore_merges=False)
    )
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if dummy_prefix else "never")
    else:
        prefix = [normalizers.Prepend("▁")] if dummy_prefix else []
        backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if dummy_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    backend.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 1)])
    text: str = backend.to_str()
    return text


def sentencepiece(dummy_prefix: bool = True, metaspace: bool = False) -> PreTrainedTokenizerFast:
    """As Llama 2: ▁ for a space, byte fallback, a dummy prefix or none, BEGIN before every text."""
    backend = Tokenizer.from_str(sentencepiece_json(dummy_prefix, metaspace))
    return wrap(backend, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN)


def gemma_like() -> PreTrainedTokenizerFast:
    """No dummy prefix, and runs of blanks that are in the model's vocabulary and in the list of added tokens."""
    state = json.loads(sentencepiece_json(False, False))
    vocabulary = state["model"]["vocab"]
    for run in ("▁▁", "▁▁▁▁", "\n\n", "<unused0>"):
        vocabulary.setdefault(run, len(vocabulary))
    made = wrap(Tokenizer.from_str(json.dumps(state)), bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN)
    made.add_tokens([AddedToken(run, normalized=run == "▁▁▁▁") for run in ("▁▁", "▁▁▁▁", "\n\n", "<unused0>")])
    return made


@cache
def unigram_json() -> str:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=450, special_tokens=[UNKNOWN, BEGIN, END], unk_token=UNKNOWN, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 4, trainer)
    text: str = backend.to_str()
    return text


def unigram() -> PreTrainedTokenizerFast:
    """As T5: Unigram over Metaspace, NFKC, one space before every text."""
    return wrap(Tokenizer.from_str(unigram_json()), bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN)


@cache
def wordpiece_json() -> str:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"], show_progress=False
    )
    backend.train_from_iterator(TEXTS * 2, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    text: str = backend.to_str()
    return text


def wordpiece() -> PreTrainedTokenizerFast:
    """As BERT: lower case, no accents, spaces merged, ## before what continues a word."""
    backend = Tokenizer.from_str(wordpiece_json())
    return wrap(backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")


@cache
def end_of_word_json() -> str:
    backend = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[UNKNOWN], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(TEXTS * 2, trainer)
    text: str = backend.to_str()
    return text


def end_of_word() -> PreTrainedTokenizerFast:
    """As GPT: lower case, and a mark on the last piece of every word."""
    return wrap(Tokenizer.from_str(end_of_word_json()), unk_token=UNKNOWN)


EXACT: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_bpe": byte_bpe,
    "other_byte_bpe": other_byte_bpe,
    "byte_bpe_with_bos": byte_bpe_with_bos,
    "byte_bpe_with_added": byte_bpe_with_added,
    "bytes_only": bytes_only,
    "sentencepiece": sentencepiece,
    "sentencepiece_without_prefix": lambda: sentencepiece(dummy_prefix=False),
    "metaspace_without_prefix": lambda: sentencepiece(dummy_prefix=False, metaspace=True),
    "gemma_like": gemma_like,
}  # every text comes back from their tokens
INEXACT: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "metaspace": lambda: sentencepiece(metaspace=True),  # loses the difference between " a" and "a"
    "unigram": unigram,
    "wordpiece": wordpiece,
    "end_of_word": end_of_word,
}
ALL = EXACT | INEXACT
