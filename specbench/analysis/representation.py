"""How well a drafter knows each language: the languages of texts that it writes on an empty prompt, ranked.

arXiv:2510.02128, section 8.2: the rank by the share of K such texts is beside the acceptance rates of the languages.
There K is 100,000, the prompt is a space, and NLTK's classifier of languages identifies them. K and the prompt can be
given; languages are identified by lingua, because NLTK's classifier (TextCat) needs a corpus that has to be downloaded.
"""

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from rich import box
from rich.table import Table
from rich.text import Text
from scipy import stats

from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.running.compose import stream_seed
from specbench.tasks.scoring.language import language_of
from specbench.training.teacher import Generator, Job

BATCH = 64
CONFIDENCE = 0.95


class LanguageShare(BaseModel):
    """One language: its rank from 1, how many of the texts are in it, their share with its 95 % interval. Languages of
    as many texts have the same rank, the one behind all that have more (1, 2, 2, 4)."""

    model_config = ConfigDict(frozen=True)

    rank: int
    language: str  # ISO 639-1
    num_texts: int
    share: float
    low: float
    high: float


class Representation(BaseModel):
    """What a model writes on an empty prompt, or on one that was given. `num_unknown`: texts without words, or between
    two languages."""

    model_config = ConfigDict(frozen=True)

    model: str
    revision: str | None
    prompt: str  # what its tokens write; of an empty prompt the special token that begins a text
    num_texts: int
    num_unknown: int
    max_new_tokens: int
    temperature: float
    seed: int
    languages: list[LanguageShare]


def representation(
    model: CausalLM,
    num_texts: int,
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    prompt: str = "",
    languages: Sequence[str] = (),
) -> Representation:
    """Sample the texts behind `prompt`, identify the language of each (`languages`: others than the common ones, ISO
    639), rank them.

    Raises ConfigError for a prompt that has no token, as where a model cannot begin a text without one.
    """
    prompt_ids = prompt_tokens(model, prompt)
    drawn = sample(model, prompt_ids, num_texts, max_new_tokens, temperature, seed)
    found = [language_of(model.decode_text(ids), *languages) for ids in drawn]
    return Representation(
        model=model.name, revision=model.revision, prompt=model.tokenizer.decode(prompt_ids), num_texts=num_texts,
        num_unknown=found.count(None), max_new_tokens=max_new_tokens, temperature=temperature, seed=seed,
        languages=ranked_languages(found),
    )  # fmt: skip


def ranked_languages(found: Sequence[str | None]) -> list[LanguageShare]:
    """The languages from most to least texts; those of as many texts, which have one rank, by their code."""
    counts = Counter(language for language in found if language is not None)
    shares = []
    for language, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        rank = 1 + sum(other > count for other in counts.values())
        bounds = stats.binomtest(count, len(found)).proportion_ci(CONFIDENCE, method="wilson")
        shares.append(
            LanguageShare(rank=rank, language=language, num_texts=count, share=count / len(found),
                  low=float(bounds.low), high=float(bounds.high))
        )  # fmt: skip
    return shares


def prompt_tokens(model: CausalLM, prompt: str) -> list[int]:
    """The tokens of a prompt, with those that the tokenizer puts before any text. Where that is none: the token that
    begins a text, else the one that ends it, which stands between the documents that models are trained on. Raises
    ConfigError where there is none of them."""
    ids = model.encode_prompt(prompt, chat=False)
    special = (model.tokenizer.bos_token_id, model.tokenizer.eos_token_id)
    start = ids or [token for token in special if token is not None][:1]
    if not start:
        raise ConfigError(f"model '{model.name}' has no token for the prompt {prompt!r}: give another with --prompt")
    return start


def sample(
    model: CausalLM, prompt_ids: Sequence[int], num_texts: int, max_new_tokens: int, temperature: float, seed: int
) -> list[list[int]]:
    """The tokens of texts drawn from the whole distribution at a temperature above 0, each up to its end token, which
    is left out. Every text has a random stream of its own: more texts begin with the same ones."""
    generator = Generator.of(model, Sampling(temperature), max_new_tokens)
    jobs = [Job(tuple(prompt_ids), stream_seed(seed, "text", number)) for number in range(num_texts)]
    drawn = generator.continue_all(jobs, BATCH)
    return [[token for token in ids if token not in model.eos_token_ids] for ids in drawn]


def representation_table(found: Representation) -> Table:
    """A line per language, the best represented first."""
    caption = (
        f"{found.num_texts} texts of up to {found.max_new_tokens} tokens at temperature {found.temperature:g} behind "
        f"{found.prompt!r}, seed {found.seed}; language by lingua, {found.num_unknown} in none. Short and garbled "
        "texts are often taken for another language."
    )
    table = Table(
        title=Text(f"languages of {found.model}"), caption=Text(caption), caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for header in ("rank", "language", "texts", "share %\n95 % interval"):
        table.add_column(header, justify="right")
    for share in found.languages:
        percent = f"{100 * share.share:.2f} [{100 * share.low:.2f}, {100 * share.high:.2f}]"
        table.add_row(*map(Text, (str(share.rank), share.language, str(share.num_texts), percent)))
    return table
