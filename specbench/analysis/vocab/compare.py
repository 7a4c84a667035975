"""One `specbench vocab`: what was asked for → tokenizers or models, texts, report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specbench.analysis.vocab.report import Side, VocabReport, make_report
from specbench.core.errors import ConfigError
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model, load_tokenizer
from specbench.models.vocabulary import Vocabulary
from specbench.running.plan import with_files
from specbench.specs.catalogue import load_task
from specbench.tasks.examples import load_examples

NUM_PROMPTS = 50  # as in arXiv:2502.05202, table 10
DEFAULT_TASK = "mgsm"


def task_prompts(
    task: str, subsets: Sequence[str] | None, *, data: str | None, use_sample: bool, limit: int | None,
    console: Console,
) -> list[str]:  # fmt: skip
    """The first `limit` prompts of every subset; without a limit 50 in all, spread evenly over the subsets. Where none
    is named, of a user's own files those that have any; the others are named on the console.

    Raises ConfigError for an unknown task or subset and for anything wrong with the data.
    """
    spec = load_task(task)
    if subsets is None:
        subsets = with_files(spec, data, console) or spec.subset_names
    names = list(dict.fromkeys(subsets))
    if not names:
        raise ConfigError("--subset is empty: name at least one, or leave the option out")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be 1 or more")
    each = -(-NUM_PROMPTS // len(names)) if limit is None else limit
    loaded = [
        load_examples(spec, name, data=data, use_sample=use_sample, limit=each, num_subsets=len(names)).examples
        for name in names
    ]
    in_turn = [examples[row].prompt for row in range(each) for examples in loaded if row < len(examples)]
    return in_turn[: NUM_PROMPTS if limit is None else None]


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
