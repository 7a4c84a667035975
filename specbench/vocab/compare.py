"""One `specbench vocab`: what was asked for → tokenizers or models, texts, report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.models.pair import ModelPair
from specbench.models.vocabulary import Vocabulary
from specbench.resources import EMBEDDED
from specbench.threads import set_threads
from specbench.vocab.loading import load_tokenizer
from specbench.vocab.report import Side, VocabReport, make_report
from specbench.vocab.texts import DEFAULT_TASK, task_prompts


@dataclass(frozen=True)
class Comparison:
    """What a user asked for, as it was said."""

    target: str
    drafter: str
    target_revision: str | None
    drafter_revision: str | None
    task: str | None
    subsets: Sequence[str] | None
    limit: int | None
    data: str | None
    acceptance: bool
    seed: int
    dtype: str
    device: str


def compare(asked: Comparison, console: Console) -> VocabReport:
    """The report on a pair; the models' weights are loaded only for their acceptance. `console`: told which subsets
    have no files."""
    check_revision("target", asked.target, asked.target_revision)
    check_revision("drafter", asked.drafter, asked.drafter_revision)
    texts = prompts(asked, console)
    texts_from = f"{len(texts)} prompts of {asked.task or DEFAULT_TASK}"
    if not asked.acceptance:
        target_side = side(asked.target, load_tokenizer(asked.target, asked.target_revision))
        drafter_side = side(asked.drafter, load_tokenizer(asked.drafter, asked.drafter_revision))
        return make_report(target_side, drafter_side, texts, texts_from)
    set_threads(None, asked.target.startswith(EMBEDDED))
    target = load_model(asked.target, revision=asked.target_revision, dtype=asked.dtype, device=asked.device)
    dtype = target.dtype if asked.dtype == "auto" else asked.dtype
    drafter = load_model(asked.drafter, revision=asked.drafter_revision, dtype=dtype, device=asked.device)
    models = ModelPair(target, drafter)
    return make_report(of_model(target), of_model(drafter), texts, texts_from, models, asked.seed)


def check_revision(role: str, name: str, revision: str | None) -> None:
    """A revision names a commit on the hub: beside anything else it would be silently without effect."""
    if revision is not None and (name.startswith(EMBEDDED) or Path(name).is_dir()):
        raise ConfigError(f"--{role}-revision {revision}: '{name}' is not on the hub: leave the revision out")


def prompts(asked: Comparison, console: Console) -> list[str]:
    """The bundled prompts where no task is named or the target is an embedded one, as in `specbench run`."""
    bundled = asked.data is None and (asked.task is None or asked.target.startswith(EMBEDDED))
    return task_prompts(
        asked.task or DEFAULT_TASK, asked.subsets, data=asked.data, use_sample=bundled, limit=asked.limit,
        console=console,
    )  # fmt: skip


def side(name: str, tokenizer: object) -> Side:
    return Side(name=name, tokenizer=tokenizer, vocabulary=Vocabulary(tokenizer))


def of_model(model: CausalLM) -> Side:
    return Side(name=model.name, tokenizer=model.tokenizer, vocabulary=model.text_vocabulary)
