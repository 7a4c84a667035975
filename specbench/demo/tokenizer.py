"""Learning the tokenizers of the family: byte-level BPE, down to one token per byte, with a start token or not."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from specbench.demo.recipe import TokenizerRecipe

END, PAD, START = "<|end|>", "<|pad|>", "<|start|>"


def train_tokenizer(texts: Iterable[str], recipe: TokenizerRecipe) -> PreTrainedTokenizerFast:
    """A tokenizer learnt from `texts`; END is the end of a text, PAD is never produced, START may begin every text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(recipe.pieces), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=[END, PAD, START] if recipe.has_start else [END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if recipe.has_start:
        start_id = tokenizer.token_to_id(START)
        tokenizer.post_processor = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, start_id)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({"bos_token": START} if recipe.has_start else {}),
        eos_token=END,
        pad_token=PAD,
        model_max_length=recipe.max_length,
        clean_up_tokenization_spaces=False,
    )
