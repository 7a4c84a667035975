"""A row of a leaderboard: one result with everything that is needed to compare or repeat it."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.core.values import all_known, text_digest
from specbench.models.near_ties import Divergence
from specbench.records.generation import WarmUpRecord
from specbench.results.fairness import FairnessSummary, GroupNumbers
from specbench.results.metric_format import OF_SCORES, find_metric
from specbench.results.row_metrics import ROW_METRICS
from specbench.specs.components import RowEngine
from specbench.statistics.bootstrap import INTERVALS, SMALL_SAMPLE, Estimate, FilePart, Intervals

FORMAT: Final = 1
DIGEST: Final = "digest"


def digest_of(row: Mapping[str, object]) -> str:
    """Returns 16 hex digits of SHA-256 over the content of a row, in any order of its keys.

    The digest reveals rows that were edited or half merged by mistake, but no forged rows, since a forger can compute
    the digest again. `specbench leaderboard validate --records` compares a row with its run.
    """
    content = {name: value for name, value in row.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text_digest(text, 16)


def with_digest(row: Mapping[str, object]) -> dict[str, object]:
    """Returns a row with its digest, as files hold it."""
    return {**row, DIGEST: digest_of(row)}


Place = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]  # the path of a file or folder, no control characters

ALL = "all"  # the subset of a row over all subsets of its task
REPEAT = "repeat"  # the memory of a drafter that may copy its own earlier answers to the same prompts
SHUFFLED = "shuffled"  # the memory of a drafter that learns from prompt to prompt, in random orders of these
MIN_ORDERS = 5  # of a shuffled row; fewer say little of how the speed depends on them
# Fields that are added later, or that only the file has, so that the run's folder cannot confirm them. All other fields
# are recomputed from the folder.
UNVERIFIABLE_FIELDS = frozenset({"evidence", "fairness", "run"})
# Fields and metrics that rows of earlier versions lack.
LATER_FIELDS = frozenset(
    {
        "batch_width", "common_ids", "context", "coverage", "differences", "divergence", "drafter_passes",
        "drafter_weights", "end_tokens", "memory", "pass_width", "products", "system", "template_date",
    }
)  # fmt: skip
# By what they tell; a row has all of a group or none.
LATER_METRICS = {
    "loops": frozenset({
        "share_looping", "share_looping_ar", "share_in_loops", "share_in_loops_ar", "speedup_without_loops",
        "mean_acceptance_length_without_loops",
    }),
    "parts of answers": frozenset({"reasoning_tokens", "answer_tokens", "reasoning_tokens_ar", "answer_tokens_ar"}),
    "first answers": frozenset({"ttfa_seconds"}),
    "percentiles of first answers": frozenset(f"ttfa_p{share}_seconds" for share in (90, 95, 99)),
    "percentiles": frozenset({
        "itl_seconds", "itl_p99_seconds",
        *(f"{name}_p{share}_seconds" for name in ("ttft", "tpot", "itl", "e2e") for share in (90, 95)),
    }),
    "99th percentiles": frozenset(f"{name}_p99_seconds" for name in ("ttft", "tpot", "e2e")),  # loads had them before
}  # fmt: skip
LATER_WARNINGS = frozenset(
    {"cheap_passes", "uneven_drafts", "ends_at_once", "few_orders", "uneven_sessions", "busy"}
)  # fmt: skip
# The outcome of a measurement; all other fields identify what was measured.
RESULT_FIELDS = frozenset(
    {
        "metrics", "accepted_tokens_per_step", "warnings", "shots", "quality", "signatures", "verdict", "divergence",
        "differences", "batch_width", "evidence", "fairness", "intervals", "created", "command", "request", "run",
        "warm_up", "context", "common_ids", "coverage",
    }
)  # fmt: skip


class RowSampling(FilePart):
    """The parameters that turn both models' logits into probabilities; temperature 0 is greedy."""

    temperature: FiniteFloat
    top_k: int | None = None
    top_p: FiniteFloat | None = None


class Evidence(FilePart):
    """The evidence of an audit: the number of greedy prompts, and of draws of up to five tokens with their p-value."""

    task: str
    subsets: tuple[str, ...]
    num_prompts: int | None
    num_draws: int | None
    temperature: FiniteFloat | None  # at which the answers were drawn
    p_value: FiniteFloat | None
    report: Place | None = None  # the audit's file, relative to the leaderboard's folder; null: it was not kept

    @model_validator(mode="after")
    def _check_draws(self) -> Self:
        if len({value is None for value in (self.num_draws, self.temperature, self.p_value)}) > 1:
            raise ValueError("num_draws, temperature and p_value are all null, or none of them is")
        return self


class RowShots(FilePart):
    """The few-shot examples before each prompt, and the check that none of them is measured.

    `num`: the number before each prompt; if it is 0, all other fields are null. `digest`: 12 hex digits over the text
    before the prompts; if subsets have different texts, "all-" and a digest over their digests. `num_checked`: the
    number of measured examples that were checked: none repeats the question of its few-shot examples, or has an answer
    of 80 characters or more that occurs in them (otherwise the run is refused); null if questions could not be
    compared.
    """

    num: int = Field(ge=0)
    source: Literal["task", "hub", "local", "sample"] | None = None  # null without few-shot examples
    location: str | None = None
    digest: str | None = None
    num_checked: int | None = Field(default=None, ge=0)


class RowWarmUp(FilePart):
    """The warm-up of the method itself before it was measured, in a row over subsets of all of them together. Of
    several processes, or starts of a server, the one with the fewest blocks.

    `blocks`: the number of unmeasured blocks, each of at most 20 new tokens; under load, each with as many requests
    at once as the load. `steady`: whether the speed became steady every time, within the limits of the warm-up; null
    if there were too few blocks to tell.
    """

    blocks: NonNegativeInt
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    steady: bool | None

    @classmethod
    def of(cls, starts: Sequence[Sequence[WarmUpRecord]]) -> Self:
        """Returns the warm-ups of a method as one. `starts`: for each process, or start of a server, its warm-ups."""
        own = [
            cls(
                blocks=sum(part.blocks for part in parts),
                seconds=round(math.fsum(part.seconds for part in parts), 3),
                steady=all_known([part.steady for part in parts]),
            )
            for parts in starts
        ]
        fewest = min(own, key=lambda each: (each.blocks, each.seconds))
        return fewest.model_copy(update={"steady": all_known([each.steady for each in own])})


class RowContext(FilePart):
    """The context at which the answers of all methods of the run end, and the one at which the method's drafter pauses.

    `model`, `tokens`: the first model with the shortest context among those that limit all methods; null: none does.
    `share_cut_ar`: the share of AR's answers that it cut; the method's share is the metric `share_cut_by_context`.
    `pauses_at`: the tokens after which the drafter drafts nothing; null: it does not pause. `share_paused`: the share
    of the method's tokens that came after them. `trained`: of a head, the max_position_embeddings of its config.json,
    and `share_beyond` the share of the method's tokens after as many; null: the drafter is not a head, or the run is of
    an earlier version.
    """

    model: str | None = None
    tokens: PositiveInt | None = None
    share_cut_ar: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.0
    pauses_at: PositiveInt | None = None
    share_paused: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    trained: PositiveInt | None = None
    share_beyond: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None


class Coverage(FilePart):
    """Which examples of the data were measured. `available`: how many the data had; null: nobody counted them, as in a
    stream of the hub. `chosen`: how the measured ones were chosen: all, the first ones, or a part that the caller
    chose."""

    available: PositiveInt | None
    chosen: Literal["all", "first", "part"]


class RowCoverage(Coverage):
    """Which part of a task a row measured: its n examples, of those in the data of its subsets. `subsets`: in a row
    over all of them, how many the task has."""

    subsets: PositiveInt | None = None


def may_be(number: int, coverage: Coverage) -> bool:
    """Returns whether as many examples may have this coverage."""
    if coverage.available is None:
        return coverage.chosen != "all"
    return (number == coverage.available) == (coverage.chosen == "all") and number <= coverage.available


def told_examples(number: int, coverage: Coverage | None, source: str) -> str:
    """Returns how many examples were measured and which, such as "the first 30 of 1,319 examples". `source`: of the
    data."""
    whose = " of the bundled sample" if source == "sample" else ""
    if coverage is None:
        return f"{counted(number, 'example')}{whose}"
    if coverage.chosen == "all":
        return f"{'all ' if number > 1 else 'the only '}{counted(number, 'example')}{whose or ' of the data'}"
    of = "" if coverage.available is None else f" of {coverage.available:,}"
    examples = "example" if number == 1 and not of else "examples"
    which = f"the first {number:,}" if coverage.chosen == "first" else f"{number:,} chosen ones"
    unknown = "" if of else ", total unknown"
    return f"{which}{of} {examples}{whose}{unknown}"


class CommonIds(FilePart):
    """The token ids that mean the same token in two vocabularies that differ in a few: `common` of the `target`'s and
    the `drafter`'s. A drafter drafts these only."""

    common: PositiveInt
    target: PositiveInt
    drafter: PositiveInt


class RowDifferences(FilePart):
    """How many greedy answers are not AR's, whatever the verdict.

    `answers`: their number, among `compared` ones, which followed the same conversation as AR's. `near_ties`: those
    that differ only at a near-tie. `decoded_again`: those that a second decoding, with a recorder of the method's own
    passes, looked into: all but some near-ties. Both are null where no difference was looked into, as for lossy rules;
    the second one also in runs of earlier versions.
    """

    answers: NonNegativeInt
    compared: PositiveInt
    near_ties: NonNegativeInt | None = None
    decoded_again: NonNegativeInt | None = None


class RowBatchWidth(FilePart):
    """How the target depends on the number of tokens that one pass reads, in passes as the method's, along AR's first
    answers from which methods differ, or its first ones if none does.

    `tolerance`: what the width explains of a gap between logits. `share_equal`: rows of logits that are those of passes
    over one token, bit for bit; null in runs of earlier versions. Of several subsets the largest tolerance and the
    smallest share.
    """

    tolerance: Annotated[FiniteFloat, Field(ge=0)]
    share_equal: Annotated[FiniteFloat, Field(ge=0, le=1)] | None


class RowWarning(FilePart):
    """A reason to doubt the speed-up. `text`: one sentence with the figure and what to do."""

    code: Literal[
        "wide_interval", "few_prompts", "ar_drift", "not_steady", "implausible", "trained_on_test",
        "misread_head", "loops", "ends_at_once", "cheap_passes", "uneven_drafts", "few_orders", "uneven_sessions",
        "busy", "past_end",
        # of servers
        "baseline_unchecked", "drafts_nothing", "caches_unknown", "memory_not_stated", "settings_differ", "learns",
        "slow_client", "read_late", "answers_differ", "few_turns", "tokenizer_unchecked", "idle_unchecked",
        "impossible_times",
    ]  # fmt: skip
    text: str


class RowLoad(FilePart):
    """The load of a served row. `level`: requests in flight, or requests per second. `windows`: the number for each
    server; intervals resample windows. `requests`: the number in each window. `context`: the tokens to which prompts
    were cut; null: prompts are as long as they are."""

    kind: Literal["concurrency", "rate"]
    level: Annotated[FiniteFloat, Field(gt=0)]
    windows: PositiveInt
    requests: PositiveInt
    context: PositiveInt | None = None

    def __str__(self) -> str:
        """Returns kind and level, such as "rate 2" or "concurrency 4, context 8192"."""
        return f"{self.kind} {self.level:g}" + ("" if self.context is None else f", context {self.context}")


class RowServing(FilePart):
    """The conditions of a served row.

    `acceptance_source`: the source of the counts of acceptance: steps, histogram, totals or counters of the server; or
    "none: …" with the reason why they are null. `caches`: whether the servers reported that no prompt was cached.
    `memory`: the rule by which both servers reserve memory. `load`: the load of several requests at once; null: one
    request at a time. `turns`: the number of parts of a run in which only one server was up; null: all were up at once.
    `settings`: a digest of the settings that the server reports.
    """

    acceptance_source: str
    caches: Literal["verified empty", "not told"]
    memory: str | None
    load: RowLoad | None = None
    turns: PositiveInt | None = None
    settings: str


class Row(FilePart):
    """One method on one subset or on "all", paired with AR in the same process. Times in seconds, rates in tokens/s."""

    format: Literal[1] = FORMAT
    task: str  # name@version:digest
    subset: str
    language: str | None
    method: str  # name@version:digest
    num_draft_tokens: int
    options: dict[str, Any]
    target: str
    target_revision: str | None
    drafter: str | None
    drafter_revision: str | None
    drafter_passes: str | None = None  # dtype and attention of a drafter that is a GGUF file beside a target that is
    # none, or the reverse; null: as those of the target
    drafter_weights: Literal["the target's"] | None = None  # both are of the same files, or one was dequantized from
    # the other's GGUF file; null: other weights, or not known
    products: str | None = None  # of eager passes on a CPU: packed, plain (a probe found them faster), or a kind for
    # target and drafter each; null: nothing was packed, or the row is of an earlier version
    end_tokens: str | None = None  # of the target, which end answers as stop strings do, with their ids; null: of a
    # server, or of a run of an earlier version, which told them of GGUF files only
    memory: str | None = None  # of other prompts: cold, warm, warm half, shuffled or repeat; null: the drafter has none
    sampling: RowSampling
    dtype: str
    device: str
    attention: str
    engine: RowEngine = "eager"  # "… target": only the target's passes are recorded or compiled
    pass_width: PositiveInt | None = None  # the rows of which each pass of the target was made; null: its tokens
    versions: dict[str, str | None]
    commit: str | None
    command: str
    request: dict[str, object] = Field(default_factory=dict)  # specbench.running.request.Request.settings
    data_source: Literal["hub", "local", "sample"]
    data_location: str
    data_revision: str | None
    chat: bool | dict[str, object]  # whether prompts use the chat template; its variables, if any were given
    template_date: str | None = None  # the date that the chat template prints; null: it reads none
    system: str | None = None  # the system prompt; in a row over all subsets null if they have several
    seed: int
    n: int = Field(ge=0)  # examples
    subsets: dict[str, NonNegativeInt] = Field(default_factory=dict)  # n by subset, in a row over all subsets
    coverage: RowCoverage | None = None  # which part of the data the n are; null: the row is of an earlier version
    repeats: int = Field(ge=1)
    created: str
    run: Place | None = None  # the run's folder, relative to the file's; null: the file's own folder, or unknown
    lossless: bool  # the claim of the rule, or of the author of external code
    verdict: str = "not audited"  # the result of comparing outputs: specbench.results.verdict
    divergence: Divergence | None = None  # kinds of differences from AR's own greedy answers; null: none, or not known
    differences: RowDifferences | None = None  # from AR's own greedy answers; null: sampled, AR itself, or not known
    batch_width: RowBatchWidth | None = None  # of the target; null: not measured
    evidence: Evidence | None = None  # the audit behind the verdict; null if the verdict is of the row's own outputs
    quality: str | None = None  # the metric of the main score; null if nothing is scored, or subsets have others
    signatures: dict[str, str] = Field(default_factory=dict)  # how scores were computed, where a name is not enough
    intervals: Intervals = INTERVALS
    fairness: GroupNumbers | FairnessSummary | None = None  # a subset's numbers; in "all" their summary
    shots: RowShots = RowShots(num=0)
    served: RowServing | None = None  # null: the method ran in this process
    warm_up: RowWarmUp | None = None  # null: the records do not have it
    context: RowContext | None = None  # null: no model has a limit, or the run is of an earlier version
    common_ids: dict[str, CommonIds] = Field(default_factory=dict)  # by method or METHOD/LANGUAGE; empty: all are equal
    warnings: tuple[RowWarning, ...] = ()
    # element k: target passes after the prefill in which k draft tokens were accepted; null where this is unknown
    accepted_tokens_per_step: tuple[NonNegativeInt, ...] | None = None
    metrics: dict[str, Estimate]

    @field_validator("template_date")
    @classmethod
    def _is_date(cls, text: str | None) -> str | None:
        if text is not None:
            date.fromisoformat(text)
        return text

    @field_validator("options")
    @classmethod
    def _writable_options(cls, options: dict[str, object]) -> dict[str, object]:
        return {name: as_json_value(value) for name, value in options.items()}  # a threshold may be infinite

    @model_validator(mode="after")
    def _check_subsets(self) -> Self:
        if self.subsets and (self.subset != ALL or sum(self.subsets.values()) != self.n):
            raise ValueError(f"subsets: a row of '{ALL}' names them, and their examples make n")
        if self.coverage is not None and not may_be(self.n, self.coverage):
            raise ValueError(f"coverage: {self.coverage} does not go with n = {self.n}")
        return self

    @property
    def told_examples(self) -> str:
        """How many examples were measured and which, in words."""
        subsets = self.coverage.subsets if self.coverage is not None else None
        of_subsets = "" if subsets is None else f", in {len(self.examples)} of {counted(subsets, 'subset')}"
        return told_examples(self.n, self.coverage, self.data_source) + of_subsets

    @property
    def task_name(self) -> str:
        """The task's name, without version and digest."""
        return self.task.partition(":")[0].partition("@")[0]

    @property
    def method_name(self) -> str:
        """The method's name, without version and digest."""
        return self.method.partition(":")[0].partition("@")[0]

    @property
    def shown_method(self) -> str:
        """The method's name, and what it remembers of other prompts, if it does."""
        return self.method_name if self.memory in (None, "cold") else f"{self.method_name} ({self.memory})"

    @property
    def level(self) -> str:
        """The load of a served row, such as "concurrency 4"; empty where requests were sent one at a time."""
        return str(self.served.load) if self.served is not None and self.served.load is not None else ""

    @property
    def is_baseline(self) -> bool:
        return self.method_name == "ar"

    @property
    def num_timed(self) -> int:
        """The number of prompts behind the speed-up."""
        num_prompts = self.value("num_prompts_timed")
        return self.n if num_prompts is None else int(num_prompts)

    @property
    def has_few_prompts(self) -> bool:
        """Whether the speed-up is of fewer than SMALL_SAMPLE prompts, so that its interval may be too narrow or absent.
        The baseline's speed-up over itself is exact, and intervals of a load resample windows."""
        has_speedup = self.value("speedup") is not None and not self.is_baseline
        return has_speedup and self.num_timed < SMALL_SAMPLE and not self.level

    @property
    def peak_bytes(self) -> float | None:
        """The largest memory during an answer, with all models of the run: of the CUDA devices if the target computes
        on some, else of the process."""
        on_devices = self.value("peak_device_bytes")
        return self.value("peak_host_bytes") if on_devices is None else on_devices

    @property
    def content_digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.model_dump(mode="json"))

    @property
    def names(self) -> tuple[str, str, str]:
        return self.task_name, self.subset, self.method_name

    def metric(self, name: str | None) -> Estimate:
        """Returns a metric with its interval; an empty one if the row has no value of it, or without a name. Raises
        ConfigError for a name that no metric has."""
        if name and name not in self.metrics:
            self._check_metric(name)
        return self.metrics.get(name or "", Estimate())

    def value(self, name: str) -> float | None:
        """Returns the value of a metric; None if the row has none. Raises ConfigError for a name that no metric has."""
        return self.metric(name).value

    def has(self, name: str) -> bool:
        """Returns whether the row has a value of a metric; False for a name that no metric has."""
        return self.metrics.get(name, Estimate()).value is not None

    def _check_metric(self, name: str) -> None:
        # A score may have been declared elsewhere: by lm-eval, or by a plug-in that is not installed here.
        of_score = {f"{self.quality}{end}" for end in ("", *OF_SCORES)}
        if name not in of_score and find_metric(name) is None:
            known = {*self.metrics, *ROW_METRICS}
            listed = "`specbench list metrics` explains all"
            raise ConfigError(f"row {self.place}: no metric '{name}': {nearest(name, known, listed)}")

    @property
    def examples(self) -> dict[str, int]:
        """The number of examples by subset; a run measures the first ones of each."""
        return self.subsets or {self.subset: self.n}

    @property
    def place(self) -> str:
        """Task, subset, method and load, as messages name a row."""
        return f"{self.task.partition(':')[0]} {self.subset} {self.method.partition(':')[0]} {self.level}".rstrip()

    @property
    def key(self) -> str:
        """The identity of the configuration: every field except RESULT_FIELDS, with the judge and the digest of the
        few-shot examples."""
        own = {"judge": self.signatures.get("judge_score"), "shots": self.shots.digest}
        fields = self.model_dump(mode="json", exclude=set(RESULT_FIELDS))
        return json.dumps(fields | {name: value for name, value in own.items() if value is not None}, sort_keys=True)


def as_json_value(value: Any) -> Any:
    """Returns a value that JSON can hold: infinite numbers become words."""
    if isinstance(value, Mapping):
        return {name: as_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
