"""How well a drafter knows languages: their ranks by their shares of the texts that it writes without a prompt.

arXiv:2510.02128, section 8.2, compares the rank by the share of K such texts with the acceptance rates. There K is
100,000, the prompt is a space, and NLTK's classifier identifies the languages. Here K and the prompt are options, and
lingua identifies the languages, because NLTK's classifier (TextCat) needs a corpus that has to be downloaded.
"""

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from scipy import stats

from specbench.core.errors import ConfigError
from specbench.core.reasoning import TAGS, answer_in
from specbench.core.table import Table, number_columns
from specbench.decoding.decoder import stream_seed
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.results.metric_format import with_interval
from specbench.specs.components import identifiable_code
from specbench.statistics.bootstrap import Estimate
from specbench.tasks.scoring import language_of
from specbench.training.teacher import GenerationJob, Generator

BATCH = 64
CONFIDENCE = 0.95


class LanguageShare(BaseModel):
    """One language: its rank from 1, the number of texts in it, and their share with its 95 % interval. Languages with
    equally many texts have the same rank (1, 2, 2, 4)."""

    model_config = ConfigDict(frozen=True)

    rank: int
    language: str  # ISO 639-1
    num_texts: int
    share: float
    low: float
    high: float


class Representation(BaseModel):
    """The languages of texts that a model writes after an empty or a given prompt. `num_unknown`: the number of texts
    without words, or whose language is a tie."""

    model_config = ConfigDict(frozen=True)

    model: str
    revision: str | None
    dtype: str | None = None
    prompt: str  # as its tokens decode; for an empty prompt, the special token that begins a text
    num_texts: int
    num_unknown: int
    max_new_tokens: int
    temperature: float
    seed: int
    languages: list[LanguageShare]


def representation(
    model: CausalLM, num_texts: int, *, seed: int, max_new_tokens: int = 64, temperature: float = 1.0,
    prompt: str = "", languages: Sequence[str] = (),
) -> Representation:  # fmt: skip
    """Samples texts after `prompt`, identifies their languages, and ranks these. `languages`: ISO 639 codes to identify
    besides the common languages.

    Raises ConfigError for a prompt without tokens, if the model has no token that begins a text.
    """
    prompt_ids = prompt_tokens(model, prompt)
    drawn = sample(model, prompt_ids, num_texts, max_new_tokens, temperature, seed)
    is_open = prompt.rstrip().endswith(TAGS.open)
    texts = [model.decode_text(ids, TAGS) for ids in drawn]
    found = [language_of(answer_in(text, is_open=is_open), *languages) for text in texts]
    return Representation(
        model=model.name, revision=model.revision, dtype=model.precision, prompt=model.tokenizer.decode(prompt_ids),
        num_texts=num_texts, num_unknown=found.count(None), max_new_tokens=max_new_tokens,
        temperature=temperature, seed=seed, languages=rank_languages(found),
    )  # fmt: skip


def rank_languages(found: Sequence[str | None]) -> list[LanguageShare]:
    """Returns the languages from most to fewest texts. Languages with equally many are in the order of their codes."""
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


def share_of(shares: Sequence[LanguageShare], language: str | None) -> LanguageShare | None:
    """Returns the share of a language; None if lingua cannot identify the language. A language without texts has the
    share 0 and the last rank."""
    code = identifiable_code(language) if language else None
    if code is None:
        return None
    absent = LanguageShare(rank=len(shares) + 1, language=code, num_texts=0, share=0.0, low=0.0, high=0.0)
    return next((share for share in shares if share.language == code), absent)


def prompt_tokens(model: CausalLM, prompt: str) -> list[int]:
    """Returns the tokens of a prompt, including those that the tokenizer puts before any text.

    If there are none, returns the token that begins a text, else the token that ends a text, which separates documents
    in training data. Raises ConfigError for a model that has neither.
    """
    ids = model.encode_prompt(prompt, chat=False)
    special = (model.tokenizer.bos_token_id, model.tokenizer.eos_token_id)
    start = ids or [token for token in special if token is not None][:1]
    if not start:
        raise ConfigError(f"model '{model.name}' has no token for the prompt {prompt!r}: give another with --prompt")
    return start


def sample(
    model: CausalLM, prompt_ids: Sequence[int], num_texts: int, max_new_tokens: int, temperature: float, seed: int
) -> list[list[int]]:
    """Returns the tokens of texts drawn from the whole distribution at a temperature above 0, without their end tokens.

    Every text has its own random stream, so that a larger sample begins with the same texts.
    """
    generator = Generator.of(model, Sampling(temperature), max_new_tokens)
    jobs = [GenerationJob(tuple(prompt_ids), stream_seed(seed, "text", number)) for number in range(num_texts)]
    drawn = generator.continue_all(jobs, BATCH)
    return [[token for token in ids if token not in model.eos_token_ids] for ids in drawn]


def representation_table(found: Representation) -> Table:
    caption = (
        f"{found.num_texts} texts of up to {found.max_new_tokens} tokens, sampled at temperature "
        f"{found.temperature:g} after {found.prompt!r}, seed {found.seed}. lingua identified their languages, except "
        f"for {found.num_unknown} texts. Short and garbled texts are often taken for another language."
    )
    rows = [
        [str(share.rank), share.language, str(share.num_texts),
         with_interval(Estimate(value=share.share, low=share.low, high=share.high), 2, 100)]
        for share in found.languages
    ]  # fmt: skip
    columns = number_columns("rank", "language", "texts", "share %\n95 % interval")
    dtype = f" ({found.dtype})" if found.dtype else ""
    return Table(f"languages of {found.model}{dtype}", columns, rows, [caption], num_keys=2)
