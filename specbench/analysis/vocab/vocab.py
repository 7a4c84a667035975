"""`specbench vocab`: compares two vocabularies, in general and on texts."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from pydantic import BaseModel
from rich.console import Console

from specbench.analysis.vocab.figures import (
    Decompositions,
    FitVerdict,
    Injectivity,
    MethodAcceptance,
    MethodFit,
    Overlap,
    TextOverlap,
    costs_in_texts,
    decompositions,
    expected_acceptance,
    injectivity,
    text_overlap,
    vocabulary_overlap,
)
from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.table import Table, number_columns, text_columns
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model, load_tokenizer
from specbench.models.vocabulary import Vocabulary, can_share_ids, same_ids
from specbench.results.metric_format import NULL, interval, number
from specbench.running.plan import subsets_with_rows
from specbench.running.request import check_revision
from specbench.specs.catalogue import load_method, load_task, method_names
from specbench.specs.run_options import RunOptions
from specbench.tasks.examples import load_examples

LARGE_OVERLAP = 0.75  # a share of the target's tokens in texts; below it the vocabularies alone limit a method
MANY_PASSES = 16  # for ψ of one token, which the paper calls large (figure 1)


class VocabReport(BaseModel):
    """Tables 3, 4, 5, 8, 9, 10 and 11 of arXiv:2502.05202 for one pair. `acceptance`: only if it was requested.

    passes_in_texts: the least number of draft passes for ψ, a mean over all occurrences of target tokens in the texts.
    writable_in_texts: the share of these occurrences that drafter tokens can spell.
    num_same_ids: the number of ids that mean the same token in both vocabularies.
    """

    target: str
    drafter: str
    texts: str
    same_vocabulary: bool
    num_same_ids: int = 0
    overlap: Overlap
    text_overlap: TextOverlap
    target_injectivity: Injectivity
    drafter_injectivity: Injectivity
    decompositions: Decompositions
    passes_in_texts: float
    writable_in_texts: float
    acceptance: list[MethodAcceptance] | None = None
    methods: list[MethodFit] = []

    @property
    def sides(self) -> dict[str, Injectivity]:
        return {"T": self.target_injectivity, "D": self.drafter_injectivity}


class NamedTokenizer(NamedTuple):
    """A model's name and tokenizer."""

    name: str
    tokenizer: Any


def make_report(
    target: NamedTokenizer, drafter: NamedTokenizer, texts: Sequence[str], texts_from: str,
    models: ModelPair | None = None, seed: int = 0,
) -> VocabReport:  # fmt: skip
    """Returns the comparison of two vocabularies, in general and on texts; with `models` also the expected acceptance
    of methods."""
    ours, theirs = Vocabulary(target.tokenizer), Vocabulary(drafter.tokenizer)
    own_ids, other_ids = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    passes, writable = costs_in_texts(ours, theirs, texts)
    report = VocabReport(
        target=target.name,
        drafter=drafter.name,
        texts=texts_from,
        same_vocabulary=own_ids == other_ids,
        num_same_ids=len(same_ids(own_ids, other_ids, ours, theirs)),
        overlap=vocabulary_overlap(ours, theirs),
        text_overlap=text_overlap(ours, theirs, texts),
        target_injectivity=injectivity(target.tokenizer, ours, texts),
        drafter_injectivity=injectivity(drafter.tokenizer, theirs, texts),
        decompositions=decompositions(ours, theirs),
        passes_in_texts=passes,
        writable_in_texts=writable,
    )
    methods = method_fits(report)
    acceptance = None if models is None else expected_acceptance(models, methods, texts, seed)
    return report.model_copy(update={"methods": methods, "acceptance": acceptance})


def method_fits(report: VocabReport) -> list[MethodFit]:
    """Returns the verdicts on the paper's methods, in its order. They do not tell whether the drafter is accurate: that
    needs the models (`expected_acceptance`)."""
    share = report.text_overlap.share_of_target
    changed = "; ".join(
        f"{found.num_changed_by_bridges} of {found.num_texts} texts do not round-trip through the {side}'s tokenizer"
        for side, found in zip(("target", "drafter"), report.sides.values(), strict=True)
        if found.num_changed_by_bridges
    )
    weak = f"{changed}, so the drafter sees changed texts" if changed else ""
    passes = f"ψ of a token takes {report.passes_in_texts:.1f} draft passes"
    slrs: tuple[FitVerdict, str] = ("fits", f"{passes}: the drafter's tokens are short")
    if report.writable_in_texts < LARGE_OVERLAP:
        written = f"{report.writable_in_texts:.1%} of the target's tokens in the texts"
        reasons = [f"the drafter can write {written}: only those can be accepted", *([weak] if weak else [])]
        slrs = ("weak", "; ".join(reasons))
    elif weak:
        slrs = ("weak", weak)
    elif report.passes_in_texts > MANY_PASSES:
        slrs = ("costly", f"{passes}: the drafter's tokens are too long")
    verdicts: dict[str, tuple[FitVerdict, str]] = {
        "sd": ("cannot run", "it compares probabilities of the same token ids, but the vocabularies differ"),
        "union": ("no gain", "never accepts more than tli (Theorem 4.1)"),
        "slem": ("weak", weak)
        if weak
        else ("fits", "texts round-trip through both tokenizers; the vocabularies may differ in any way"),
        "slrs": slrs,
        "tli": (
            "fits" if share >= LARGE_OVERLAP else "weak",
            f"the drafter has {share:.1%} of the target's tokens in the texts: only those can be accepted",
        ),
    }
    if report.same_vocabulary:
        verdicts |= {
            "sd": ("fits", "both have the same vocabulary"),
            "slem": ("no gain", "sd runs this pair, and exact match accepts less (Theorem 3.1)"),
            "slrs": ("no gain", "sd runs this pair, and needs no sum over texts"),
            "tli": ("no gain", "the intersection is the vocabulary itself: it is sd"),
        }
    shares_ids = can_share_ids(report.num_same_ids, report.overlap.target_size, report.overlap.drafter_size)
    if shares_ids and not report.same_vocabulary:
        verdicts["sd"] = ("fits", f"{report.num_same_ids:,} ids mean the same token in both: only those are drafted")
    known, fits = set(method_names()), []
    for name, (verdict, reason) in verdicts.items():
        if name in known:
            runs = report.same_vocabulary or shares_ids or not load_method(name).same_vocabulary
            fits.append(MethodFit(method=name, runs=runs, verdict=verdict if runs else "cannot run", reason=reason))
    return fits


NUM_PROMPTS = 50  # as in arXiv:2502.05202, table 10
DEFAULT_TASK = "mgsm"


def task_prompts(
    task: str, subsets: Sequence[str] | None, *, data: str | None, use_sample: bool, limit: int | float | None,
    console: Console,
) -> list[str]:  # fmt: skip
    """Returns the first `limit` prompts of every subset; without a limit 50 in all, spread evenly over the subsets.

    subsets: None for all; with a user's own files, those that have files, and the others are listed on the console.
    Raises ConfigError for an unknown task or subset and for anything wrong with the data.
    """
    spec = load_task(task)
    if subsets is None:
        subsets = subsets_with_rows(spec, data, console) or spec.subset_names
    names = list(dict.fromkeys(subsets))
    if not names:
        raise ConfigError("--subset is empty: name at least one, or leave the option out")
    num_each = -(-NUM_PROMPTS // len(names)) if limit is None else limit
    loaded = [
        load_examples(spec, name, data=data, use_sample=use_sample, limit=num_each, num_subsets=len(names)).examples
        for name in names
    ]
    in_turn = [example.prompt for row in zip_longest(*loaded) for example in row if example is not None]
    return in_turn[: NUM_PROMPTS if limit is None else None]


def vocab_report(options: RunOptions, task: str | None, acceptance: bool, console: Console) -> VocabReport:
    """Returns the report on the pair that the options name. Models are loaded with their weights only for `acceptance`.
    `console` gets a line about subsets that have no files."""
    target, drafter = options.target, options.drafter
    assert target is not None and drafter is not None  # the command has defaults
    check_revision("target", target, options.target_revision)
    check_revision("drafter", drafter, options.drafter_revision)
    # Without a task, or with an embedded target, the bundled prompts are used, as in `specbench run`.
    bundled = options.data is None and (task is None or target.startswith(EMBEDDED))
    task = task or DEFAULT_TASK
    texts = task_prompts(
        task, options.subsets, data=options.data, use_sample=bundled, limit=options.limit, console=console
    )
    texts_from = f"{counted(len(texts), 'prompt')} of {task}"
    names = ((target, options.target_revision), (drafter, options.drafter_revision))
    if not acceptance:
        own, other = (
            NamedTokenizer(name, load_tokenizer(name, revision, trust_remote_code=options.trust_remote_code))
            for name, revision in names
        )
        return make_report(own, other, texts, texts_from)
    set_threads(None, target.startswith(EMBEDDED))
    dtype: str = options.dtype
    models: list[CausalLM] = []
    for name, revision in names:
        model = load_model(
            name, revision=revision, dtype=dtype, device=options.device, trust_remote_code=options.trust_remote_code
        )
        dtype = model.dtype if dtype == "auto" else dtype
        models.append(model)
    own, other = (NamedTokenizer(model.name, model.tokenizer) for model in models)
    return make_report(own, other, texts, texts_from, ModelPair(models[0], models[1]), options.seed)


BAR_WIDTH = 30
MANY_LENGTHS = 20


def report_parts(report: VocabReport) -> Iterator[Table | str]:
    # 1. How many tokens both have.
    both, texts = report.overlap, report.text_overlap
    shared_plain = both.intersection / max(1, both.target_plain)
    yield f"T: {report.target}\nD: {report.drafter}\n"
    yield Table("vocabularies", text_columns("tokens") + number_columns("T", "D", "T ∩ D", "T ∩ D / T"), [
        _cells("all", both.target_size, both.drafter_size, both.intersection, f"{both.ratio:.3f}"),
        _cells("plain, by the bytes they write", both.target_plain, both.drafter_plain, both.intersection,
               f"{shared_plain:.3f}"),
        _cells(f"in {texts.num_texts} texts", texts.target_tokens, texts.drafter_tokens, texts.intersection,
               f"{texts.ratio:.3f}"),
    ])  # fmt: skip
    yield (
        f"texts: {report.texts}; the drafter has {texts.share_of_target:.1%} of the target's tokens there, the\n"
        f"target has {texts.share_of_drafter:.1%} of the drafter's, counted as often as they appear\n"
    )
    # 2. Whether texts survive each tokenizer.
    columns = text_columns("") + number_columns("texts", "changed", "by bridges", "injective")
    yield Table("texts that round-trip", columns, [
        _cells(side, found.num_texts, found.num_changed, found.num_changed_by_bridges,
               "yes, on these" if found.injective else "no")
        for side, found in report.sides.items()
    ])  # fmt: skip
    for side, found in report.sides.items():
        if found.first is not None:
            yield f"{side}: {found.first.text!r} becomes {found.first.round_trip!r}\n"
    # 3. How the drafter's tokens spell the target's.
    ways = report.decompositions
    summaries = {
        "length in bytes": ways.length, "decompositions into D": ways.number,
        "draft passes for ψ, at least": ways.passes,
    }  # fmt: skip
    impossible = f", {ways.num_impossible:,} impossible" if ways.num_impossible else ""
    columns = text_columns("per token") + number_columns("mean", "sd", "min", "25 %", "median", "75 %", "max")
    yield Table(f"ways to spell the {ways.num_tokens:,} plain tokens of T in D{impossible}", columns, [
        _cells(name, of.mean, of.sd, of.min, of.quartile_1, of.median, of.quartile_3, of.max)
        for name, of in summaries.items()
    ])  # fmt: skip
    lengths, longer = ways.by_length[:MANY_LENGTHS], ways.by_length[MANY_LENGTHS:]
    longest_bar = max((of.median.bit_length() for of in lengths), default=0)
    columns = text_columns("bytes") + number_columns("tokens", "median", "max") + text_columns("log of median")
    yield Table("decompositions by the length of the token", columns, [
        _cells(str(of.length), of.num_tokens, of.median, of.max,
               "█" * round(BAR_WIDTH * of.median.bit_length() / max(1, longest_bar)))
        for of in lengths
    ])  # fmt: skip
    if longer:
        yield (
            f"and {sum(of.num_tokens for of in longer):,} tokens of {longer[0].length} to {longer[-1].length} bytes, "
            f"with up to {_count(max(of.max for of in longer))} decompositions (--json lists them)\n"
        )
    # 4. What methods make of it.
    if report.acceptance is not None:
        columns = text_columns("method") + number_columns("acceptance", "95 % interval", "positions", "drafted")
        yield Table("expected acceptance of the next token at temperature 1", columns, [
            _cells(of.method, number(of.value, 3), interval(of.value, 3) or NULL, of.num_positions, of.num_drafted)
            for of in report.acceptance
        ])  # fmt: skip
        yield from (f"{of.method}: not computed: {of.problem}\n" for of in report.acceptance if of.problem)
    rows = [[fit.method, "yes" if fit.runs else "no", fit.verdict, fit.reason] for fit in report.methods]
    title = "methods for this pair, if the drafter is accurate"
    yield Table(title, text_columns("method", "runs", "verdict", "why"), rows)


def _cells(*cells: str | float) -> list[str]:
    return [cell if isinstance(cell, str) else _count(cell) for cell in cells]


def _count(value: float) -> str:
    """Returns a count with separators, or a huge count as a power of ten; any other number with two decimals."""
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10**6 else f"{value:.2e}"
    if value < 10**9:
        return f"{value:,}"
    digits = str(value)
    return f"{digits[0]}.{digits[1]}e{len(digits) - 1}"
