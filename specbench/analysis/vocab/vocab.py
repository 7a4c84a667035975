"""`specbench vocab`: compares two vocabularies, in general and on texts: their overlap, how the drafter's tokens spell
those of the target, and the expected acceptance of a method's next token (arXiv:2502.05202, tables 3 to 11)."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, median_low, pstdev
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel
from rich.console import Console

from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.table import Table, number_columns, text_columns
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal
from specbench.decoding.sampling import Distributions, Sampling, process
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model, load_tokenizer
from specbench.models.vocabulary import Vocabulary, can_share_ids, same_ids
from specbench.results.metric_format import with_interval
from specbench.running.plan import subsets_with_rows
from specbench.running.prompts import uses_chat
from specbench.specs.catalogue import load_method, load_task, method_names
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import SHARE, Estimate, Resampler
from specbench.tasks.examples import load_examples


class Overlap(BaseModel):
    """|T|, |D| and |T ∩ D| of some tokens of two vocabularies, which are equal if they have the same bytes."""

    target: int
    drafter: int
    both: int
    ratio: float  # |T ∩ D| / |T|

    @classmethod
    def of(cls, target: int, drafter: int, both: int) -> Self:
        return cls(target=target, drafter=drafter, both=both, ratio=both / max(1, target))


def overlaps(target: Vocabulary, drafter: Vocabulary, texts: Sequence[str]) -> dict[str, Overlap]:
    """Returns the overlap of all tokens, of the plain ones, and of those that appear in texts."""
    ours, theirs = (token_counts(vocabulary, texts).keys() for vocabulary in (target, drafter))
    both = len(target.id_of.keys() & drafter.id_of.keys())
    return {
        "all": Overlap.of(target.num_tokens, drafter.num_tokens, both),
        "plain, by the bytes they write": Overlap.of(len(target.id_of), len(drafter.id_of), both),
        "in the texts": Overlap.of(len(ours), len(theirs), len(ours & theirs)),
    }


def share_of_occurrences(counts: Counter[bytes], other: Vocabulary) -> float:
    """Returns the share of the occurrences of tokens in texts whose token the other vocabulary has too."""
    return sum(count for written, count in counts.items() if written in other.id_of) / max(1, counts.total())


def token_counts(vocabulary: Vocabulary, texts: Sequence[str]) -> Counter[bytes]:
    counts = Counter(index for text in texts for index in vocabulary.encode(text))
    num_by_token: Counter[bytes] = Counter()
    for index, count in counts.items():
        written = vocabulary.token_bytes[index]
        if written is not None and vocabulary.plain[index]:
            num_by_token[written] += count
    return num_by_token


NUM_SHOWN = 24  # characters of a text around the first difference


class TextChange(BaseModel):
    """Excerpts of a text and of its round trip, around their first difference."""

    text: str
    round_trip: str


class Injectivity(BaseModel):
    """Whether decode(encode(s)) == s for texts. `num_changed`: with the tokenizer's own decoding;
    `num_changed_by_bridges`: with the bridges' decoding, which drops exactly one dummy space, while some decoders drop
    all leading spaces."""

    num_texts: int
    num_changed: int
    num_changed_by_bridges: int
    first: TextChange | None

    @property
    def injective(self) -> bool:
        return self.num_changed == 0


def injectivity(tokenizer: Any, vocabulary: Vocabulary, texts: Sequence[str]) -> Injectivity:
    num_changed = num_changed_by_bridges = 0
    first = None
    for text in texts:
        ids = vocabulary.encode(text)
        num_changed_by_bridges += vocabulary.text(ids) != (text, 0)
        round_trip = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        num_changed += round_trip != text
        if round_trip != text and first is None:
            pairs = enumerate(zip(text, round_trip, strict=False))
            place = next((i for i, (one, other) in pairs if one != other), min(len(text), len(round_trip)))
            shown = slice(max(0, place - NUM_SHOWN // 3), max(0, place - NUM_SHOWN // 3) + NUM_SHOWN)
            first = TextChange(text=text[shown], round_trip=round_trip[shown])
    return Injectivity(
        num_texts=len(texts), num_changed=num_changed, num_changed_by_bridges=num_changed_by_bridges, first=first
    )


class CountSummary(BaseModel):
    """A summary of integers. A quartile is a value that occurs, the lower one between two."""

    mean: float
    sd: float
    min: int
    quartile_1: int
    median: int
    quartile_3: int
    max: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Self:
        ordered = sorted(values)
        low, middle, high = (ordered[(len(ordered) - 1) * quarters // 4] for quarters in (1, 2, 3))
        return cls(
            mean=fmean(ordered), sd=pstdev(ordered), min=ordered[0], quartile_1=low, median=middle, quartile_3=high,
            max=ordered[-1],
        )  # fmt: skip


class LengthSummary(BaseModel):
    """The numbers of decompositions of the target tokens with one length in bytes."""

    length: int
    num_tokens: int
    median: int
    max: int


class Decompositions(BaseModel):
    """Decompositions of target tokens into drafter tokens. number: how many a token has. passes: how many draft passes
    the sum over them takes, the least cost of ψ: one for each beginning of a decomposition that ends inside the token,
    and for the empty one. num_impossible: target tokens without a decomposition, which count as 0."""

    num_tokens: int
    num_impossible: int
    length: CountSummary
    number: CountSummary
    passes: CountSummary
    by_length: list[LengthSummary]

    @classmethod
    def of(cls, ways: Mapping[bytes, tuple[int, int]]) -> Self:
        """`ways`: the result of `count_decompositions` for each plain token of the target."""
        numbers = [num_ways for num_ways, _ in ways.values()]
        by_length: dict[int, list[int]] = defaultdict(list)
        for token, (num_ways, _) in ways.items():
            by_length[len(token)].append(num_ways)
        return cls(
            num_tokens=len(ways), num_impossible=numbers.count(0),
            length=CountSummary.of([len(token) for token in ways]),
            number=CountSummary.of(numbers), passes=CountSummary.of([passes for _, passes in ways.values()]),
            by_length=[
                LengthSummary(length=length, num_tokens=len(of), median=median_low(of), max=max(of))
                for length, of in sorted(by_length.items())
            ],
        )  # fmt: skip


def all_decompositions(target: Vocabulary, drafter: Vocabulary) -> dict[bytes, tuple[int, int]]:
    pieces = drafter.id_of.keys()
    longest = max(map(len, pieces), default=0)
    return {token: count_decompositions(token, pieces, longest) for token in target.id_of}


def count_decompositions(token: bytes, pieces: Collection[bytes], longest: int) -> tuple[int, int]:
    """Returns how many sequences of pieces join to `token`, and how many join to one of its proper prefixes.

    Both are exact: ways[end] is the sum of ways[start] over the pieces token[start:end]. `longest`: the length of the
    longest piece.
    """
    ways = [1] + [0] * len(token)
    for end in range(1, len(token) + 1):
        for start in range(max(0, end - longest), end):
            if ways[start] and token[start:end] in pieces:
                ways[end] += ways[start]
    return ways[-1], sum(ways[:-1])


FitVerdict = Literal["fits", "costly", "weak", "no gain", "cannot run"]


class MethodFit(BaseModel):
    """A method on a pair. runs: whether the method's bridge accepts the pair. acceptance: the mean probability that the
    next token is an accepted draft token, with its 95 % interval over prompts, if it was requested; null for the reason
    in `problem`. A position without a draft counts as 0; num_drafted: the number of positions with a draft."""

    method: str
    runs: bool
    verdict: FitVerdict
    reason: str
    acceptance: Estimate | None = None
    num_positions: int = 0
    num_drafted: int = 0
    problem: str | None = None


NUM_SAMPLED = 20
NUM_NEW_TOKENS = 32
SAMPLING = Sampling(temperature=1.0)  # the formulas are for the models' own distributions


class SampledText(NamedTuple):
    """The target's own sampled continuation of a prompt. `target_probs`: [num_new_tokens, vocab]."""

    prompt_ids: list[int]
    new_ids: list[int]
    target_probs: torch.Tensor


def sample_texts(target: CausalLM, prompts: Sequence[str], seed: int) -> list[SampledText]:
    decoder = build_decoder(load_method("ar"), ModelPair(target), SAMPLING)
    stop = StopRules(NUM_NEW_TOKENS, target.eos_token_ids, context_limit=target.context_limit)
    samples: list[SampledText] = []
    for prompt in prompts[:NUM_SAMPLED]:
        ids = target.encode_prompt(prompt, uses_chat(target, "auto"))
        if not ids or len(ids) >= (target.context_limit or len(ids) + 1):
            continue  # a prompt that fills the context has no next token
        new_ids = decoder.generate(ids, stop, seed + len(samples)).token_ids
        logits = target.score((ids + new_ids)[:-1], len(new_ids)).logits
        samples.append(SampledText(ids, new_ids, process(logits, SAMPLING)))
    if not samples:
        raise ConfigError(f"no prompt fits into the context of target '{target.name}' ({target.context_limit})")
    return samples


def expected_acceptance(
    models: ModelPair, methods: Sequence[MethodFit], prompts: Sequence[str], seed: int = 0
) -> list[MethodFit]:
    """Returns the methods with their acceptance, each with its own drafter and bridge, on texts that the target wrote
    at temperature 1.

    For sd it is Σ min(p, q). For union and tli it is that times the probability that the drafter does not draw the end
    of a text, which they never propose. For other methods one draft per position is verified: by p(x) for an exact
    match (on average Σ p ψ), by min(1, p(x) / ψ(x)) for slrs (on average Σ min(p, ψ)).
    """
    texts = sample_texts(models.target, prompts, seed)
    estimated_fits = []
    for fit in methods:
        try:
            if not fit.runs:
                raise ConfigError("undefined for different vocabularies")
            values, num_drafted = acceptance_of_method(load_method(fit.method), models, texts, seed)
        except ConfigError as error:
            estimated_fits.append(fit.model_copy(update={"problem": str(error)}))
            continue
        cluster = np.repeat(np.arange(len(texts)), [len(text.target_probs) for text in texts])
        numbers = {"num_positions": len(values), "num_drafted": num_drafted}
        estimated_fits.append(
            fit.model_copy(update={"acceptance": Resampler(cluster, seed).mean(values, SHARE), **numbers})
        )
    return estimated_fits


@torch.inference_mode()
def acceptance_of_method(
    method: MethodSpec, models: ModelPair, texts: Sequence[SampledText], seed: int
) -> tuple[list[float], int]:
    """Returns the acceptance at each position, and the number of positions with a draft."""
    decoder = build_decoder(method, models, SAMPLING)
    assert isinstance(decoder, DraftingDecoder)
    generator = torch.Generator(device=models.target.device).manual_seed(seed)
    num_draft_tokens = 1 if method.verification.rule == "rejection" else method.num_draft_tokens  # text needs several
    values: list[float] = []
    num_drafted = 0
    for text in texts:
        decoder.drafter.prefill(text.prompt_ids)
        for place, target_probs in enumerate(text.target_probs):
            proposal = decoder.drafter.propose(text.prompt_ids + text.new_ids[:place], num_draft_tokens, generator)
            num_drafted += bool(proposal.token_ids)
            values.append(acceptance_probability(proposal, target_probs))
    return values, num_drafted


def acceptance_probability(proposal: Proposal, target_probs: torch.Tensor) -> float:
    if proposal.probs is None:
        return 0.0
    draw_overlap = proposal.probs.draw_overlap(target_probs[:0], Distributions(target_probs.log()[None], SAMPLING))
    if draw_overlap is not None:
        return float(draw_overlap[0])
    if not proposal.token_ids:
        return 0.0
    drafted = proposal.on(target_probs.device)
    overlap = proposal.probs.overlap(target_probs.expand(len(drafted), -1))
    if overlap is not None:
        return float(overlap[0])
    token = proposal.token_ids[0]
    if token == OUT_OF_VOCABULARY:
        return 0.0
    return min(1.0, float(target_probs[token] / proposal.probs.token_probs(drafted)[0]))


LARGE_OVERLAP = 0.75  # a share of the target's tokens in texts; below it the vocabularies alone limit a method
MANY_PASSES = 16  # for ψ of one token, which the paper calls large (figure 1)


class VocabReport(BaseModel):
    """Tables 3, 4, 5, 8, 9, 10 and 11 of arXiv:2502.05202 for one pair.

    overlaps: by the kind of tokens; in the texts, the ratio is the formula of table 10. share_of_target: the share of
    occurrences of target tokens in the texts that the drafter has too; share_of_drafter: the share of occurrences of
    drafter tokens that the target has too, which the authors' published code prints as table 10.
    passes_in_texts: the least number of draft passes for ψ, a mean over all occurrences of target tokens in the texts.
    writable_in_texts: the share of these occurrences that drafter tokens can spell.
    num_same_ids: the number of ids that mean the same token in both vocabularies.
    target_dtype, drafter_dtype: that of the passes for the expected acceptance.
    """

    target: str
    drafter: str
    target_dtype: str | None = None
    drafter_dtype: str | None = None
    texts: str
    same_vocabulary: bool
    num_same_ids: int = 0
    overlaps: dict[str, Overlap]
    share_of_target: float
    share_of_drafter: float
    target_injectivity: Injectivity
    drafter_injectivity: Injectivity
    decompositions: Decompositions
    passes_in_texts: float
    writable_in_texts: float
    methods: list[MethodFit] = []

    @property
    def sides(self) -> dict[str, Injectivity]:
        return {"T": self.target_injectivity, "D": self.drafter_injectivity}


NamedTokenizer = tuple[str, Any]  # the name of a model, and its tokenizer


def make_report(
    target: NamedTokenizer, drafter: NamedTokenizer, texts: Sequence[str], texts_from: str,
    models: ModelPair | None = None, seed: int = 0,
) -> VocabReport:  # fmt: skip
    """Returns the comparison of two vocabularies, in general and on texts; with `models` also the expected acceptance
    of methods."""
    (target_name, own), (drafter_name, other) = target, drafter
    ours, theirs = Vocabulary(own), Vocabulary(other)
    own_ids, other_ids = own.get_vocab(), other.get_vocab()
    ways = all_decompositions(ours, theirs)
    counts = token_counts(ours, texts)
    total = max(1, counts.total())
    report = VocabReport(
        target=target_name, drafter=drafter_name, texts=texts_from, same_vocabulary=own_ids == other_ids,
        num_same_ids=len(same_ids(own_ids, other_ids, ours, theirs)),
        overlaps=overlaps(ours, theirs, texts), share_of_target=share_of_occurrences(counts, theirs),
        share_of_drafter=share_of_occurrences(token_counts(theirs, texts), ours),
        target_injectivity=injectivity(own, ours, texts), drafter_injectivity=injectivity(other, theirs, texts),
        decompositions=Decompositions.of(ways),
        passes_in_texts=sum(count * ways[token][1] for token, count in counts.items()) / total,
        writable_in_texts=sum(count for token, count in counts.items() if ways[token][0]) / total,
    )  # fmt: skip
    methods = method_fits(report)
    if models is None:
        return report.model_copy(update={"methods": methods})
    assert models.drafter is not None
    return report.model_copy(update={
        "methods": expected_acceptance(models, methods, texts, seed),
        "target_dtype": models.target.precision, "drafter_dtype": models.drafter.precision,
    })  # fmt: skip


def method_fits(report: VocabReport) -> list[MethodFit]:
    """Returns the verdicts on the paper's methods, in its order. They do not tell whether the drafter is accurate: that
    needs the models (`expected_acceptance`)."""
    share = report.share_of_target
    changed = "; ".join(
        f"{round_trips.num_changed_by_bridges} of {round_trips.num_texts} texts do not round-trip through the {side}'s "
        "tokenizer"
        for side, round_trips in zip(("target", "drafter"), report.sides.values(), strict=True)
        if round_trips.num_changed_by_bridges
    )
    weak = f"{changed}, so the drafter sees changed texts" if changed else ""
    passes = (
        f"when sampling, ψ of each drafted token costs at least {report.passes_in_texts:.1f} draft passes on average"
    )
    slrs: tuple[FitVerdict, str] = ("fits", f"{passes}, where tli takes one")
    if report.writable_in_texts < LARGE_OVERLAP:
        written = f"{report.writable_in_texts:.1%} of the target's tokens in the texts"
        reasons = [f"the drafter can write {written}: only those can be accepted", *([weak] if weak else [])]
        slrs = ("weak", "; ".join(reasons))
    elif weak:
        slrs = ("weak", weak)
    elif report.passes_in_texts > MANY_PASSES:
        slrs = ("costly", f"{passes}, where tli takes one: the drafter's tokens are too long")
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
    sizes = report.overlaps["all"]
    shares_ids = can_share_ids(report.num_same_ids, sizes.target, sizes.drafter)
    if shares_ids and not report.same_vocabulary:
        verdicts["sd"] = ("fits", f"{report.num_same_ids:,} ids mean the same token in both: only those are drafted")
    built_in_names = set(method_names())
    fits = []
    for name, (verdict, reason) in verdicts.items():
        if name in built_in_names:
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
            (name, load_tokenizer(name, revision, trust_remote_code=options.trust_remote_code))
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
    own, other = ((model.name, model.tokenizer) for model in models)
    return make_report(own, other, texts, texts_from, ModelPair(models[0], models[1]), options.seed)


MANY_LENGTHS = 20


def report_parts(report: VocabReport) -> Iterator[Table | str]:
    # 1. How many tokens both have.
    own, other = (f", {dtype}" if dtype else "" for dtype in (report.target_dtype, report.drafter_dtype))
    yield f"T, the target: {report.target}{own}\nD, the drafter: {report.drafter}{other}\n"
    columns = text_columns("tokens") + number_columns("T", "D", "T ∩ D", "T ∩ D / T")
    rows = [_cells(kind, of.target, of.drafter, of.both, f"{of.ratio:.3f}") for kind, of in report.overlaps.items()]
    caption = [
        "T, D: tokens of the target and of the drafter; T ∩ D: those that both have; plain: without special tokens"
    ]
    yield Table("vocabularies", columns, rows, caption)
    yield (
        f"texts: {report.texts}; the drafter has {report.share_of_target:.1%} of the target's tokens there, the "
        f"target has {report.share_of_drafter:.1%} of the drafter's, counted as often as they appear\n"
    )
    # 2. Whether texts survive each tokenizer.
    columns = text_columns("") + number_columns("texts", "changed", "changed\nin bridges", "injective")
    rows = [
        _cells(side, round_trips.num_texts, round_trips.num_changed, round_trips.num_changed_by_bridges,
               "yes, on these" if round_trips.injective else "no")
        for side, round_trips in report.sides.items()
    ]  # fmt: skip
    caption = [
        "changed: the text of its tokens is another one; injective: no text was changed",
        "changed in bridges: as vocabulary bridges decode, which drop one leading space at most",
    ]
    yield Table("texts that round-trip", columns, rows, caption)
    for side, round_trips in report.sides.items():
        if round_trips.first is not None:
            yield f"{side}: {round_trips.first.text!r} becomes {round_trips.first.round_trip!r}\n"
    # 3. How the drafter's tokens spell the target's.
    ways = report.decompositions
    summaries = {"bytes": ways.length, "decompositions": ways.number, "draft passes for ψ": ways.passes}
    columns = text_columns("of a token") + number_columns("min", "25 %", "median", "75 %", "max")
    rows = [
        _cells(name, of.min, of.quartile_1, of.median, of.quartile_3, of.max) for name, of in summaries.items()
    ]  # no means: a few long tokens, such as runs of spaces, have more decompositions than all others together
    most = max(ways.by_length, key=lambda of: of.max)
    caption = [
        "decompositions: the sequences of D's tokens that join to the bytes of a token of T",
        *([f"0 decompositions: D cannot write {ways.num_impossible:,} of the tokens"] if ways.num_impossible else []),
        *([f"the most decompositions: of a token of {most.length} bytes"] if most.max > 1 else []),
        "ψ: the chance that D drafts the text of a token, a sum over its decompositions, which slrs needs where it "
        "samples; it takes so many draft passes or more",
    ]
    yield Table(f"how D's tokens write the {ways.num_tokens:,} plain tokens of T", columns, rows, caption)
    lengths, longer = ways.by_length[:MANY_LENGTHS], ways.by_length[MANY_LENGTHS:]
    columns = text_columns("bytes") + number_columns("tokens", "median", "max")
    yield Table("decompositions by the length of the token", columns, [
        _cells(str(of.length), of.num_tokens, of.median, of.max) for of in lengths
    ])  # fmt: skip
    if longer:
        yield (
            f"and {sum(of.num_tokens for of in longer):,} tokens of {longer[0].length} to {longer[-1].length} bytes "
            "(--json lists them)\n"
        )
    # 4. What methods make of it.
    columns = text_columns("method", "runs", "verdict")
    rows = [[fit.method, "yes" if fit.runs else "no", fit.verdict, fit.reason] for fit in report.methods]
    title = "methods for this pair, if the drafter is accurate"
    if any(fit.acceptance or fit.problem for fit in report.methods):
        title = "methods for this pair, with the expected acceptance of the next token at temperature 1"
        columns += number_columns("acceptance\n95 % interval")
        rows = [
            [
                *row[:3],
                with_interval(fit.acceptance, 3),
                f"{row[3]}{f'; not computed: {fit.problem}' * bool(fit.problem)}",
            ]
            for row, fit in zip(rows, report.methods, strict=True)
        ]
    yield Table(title, (*columns, *text_columns("why")), rows)


def _cells(*cells: str | int) -> list[str]:
    return [cell if isinstance(cell, str) else f"{cell:,}" if cell <= 10**9 else "> 10⁹" for cell in cells]
