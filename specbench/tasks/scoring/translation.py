"""BLEU and chrF++ by sacrebleu."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import Reference, Score, alternatives, is_missing, unscored

TOKENIZERS = ("13a", "zh", "ja-mecab", "intl", "char", "none")  # those that need no download


class Translation:
    """BLEU and chrF++, 0 … 100. The value of one answer is its sentence BLEU (of the orders that it is long enough
    for); the corpus values come from the sums of sacrebleu's own statistics."""

    names = ("bleu", "chrf")

    def __init__(self, tokenizer: str) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _metrics(self) -> dict[str, BLEU | CHRF]:
        # force: sacrebleu logs a warning about answers that end in " .", and scores them the same
        return {"bleu": BLEU(tokenize=self._tokenizer, force=True), "chrf": CHRF(word_order=2)}

    @cached_property
    def _sentence(self) -> BLEU:
        return BLEU(tokenize=self._tokenizer, effective_order=True, force=True)

    def __call__(self, text: str, reference: Reference) -> Score:
        if is_missing(reference):
            return unscored(self.names)
        references = alternatives(reference, "bleu")
        columns = [[each] for each in references]
        statistics = {
            name: [float(count) for count in metric._extract_corpus_statistics([text], columns)[0]]
            for name, metric in self._metrics.items()
        }
        sums = [int(count) for count in statistics["bleu"]]
        bleu = float(self._sentence._compute_score_from_stats(sums).score)
        return Score({"bleu": bleu, "chrf": self.corpus("chrf", statistics["chrf"])}, statistics)

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        return float(self._metrics[name]._compute_score_from_stats([int(count) for count in sums]).score)

    @property
    def signature(self) -> Mapping[str, str]:
        """sacrebleu's signatures, for one reference per answer."""
        made = {"bleu": BLEU(tokenize=self._tokenizer), "chrf": CHRF(word_order=2)}
        for metric in made.values():
            metric.num_refs = 1
        return {name: str(metric.get_signature()) for name, metric in made.items()}


@SCORERS.register("bleu")
def bleu(*, tokenizer: str = "13a") -> Translation:
    """Corpus BLEU (the main metric) and chrF++ by sacrebleu, 0 … 100; several references per answer may be given.

    `tokenizer`: sacrebleu's, for BLEU: 13a, zh, ja-mecab, intl, char or none. arXiv:1804.08771
    """
    if tokenizer not in TOKENIZERS:
        raise ConfigError(f"scorer.tokenizer = {tokenizer!r}: {nearest(tokenizer, TOKENIZERS)}")
    return Translation(tokenizer)
