"""Language modelling: pretraining on raw texts, and fine-tuning on the target's answers (P3 §2.3, App. F.3)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from specbench.errors import ConfigError
from specbench.training.data import TrainingData
from specbench.training.divergence import cross_entropy_sampled
from specbench.training.passes import Batch, Sample, learnt_logits
from specbench.training.sample_objective import SampleObjective
from specbench.training.spec import TrainSpec


def language_modelling(spec: TrainSpec, vocab_size: int, samples: Sequence[Sample]) -> SampleObjective:
    """The cross-entropy of the drafter on the samples' own tokens."""
    assert spec.finetune is not None

    def token_losses(batch: Batch, drafter: nn.Module) -> Tensor:
        logits = learnt_logits(drafter, batch, vocab_size)
        return cross_entropy_sampled(batch.learnt_ids.to(logits.device), logits)

    return SampleObjective(
        samples, spec.finetune.batch_size, spec.finetune.validation_share, spec.seed, token_losses
    )  # fmt: skip


def raw_samples(tokenizer: Any, data: TrainingData, max_tokens: int, end: int | None = None) -> list[Sample]:
    """The texts of the data, of which everything behind the first token is learnt. `end`: the token that ends a text;
    texts that are longer than `max_tokens` lose their end.

    Raises ConfigError for a language without a text of two tokens.
    """
    samples: list[Sample] = []
    for language in data.languages:
        encoded = (tokenizer(text)["input_ids"] for text in data.texts(language))
        ended = ([*ids, *([] if end is None else [end])][:max_tokens] for ids in encoded)
        found = [Sample(language, tuple(ids), 1) for ids in ended if len(ids) > 1]
        if not found:
            raise ConfigError(
                f"data: no text of '{language}' has two tokens or more, nothing can be learnt: give texts"
            )
        samples += found
    return samples
