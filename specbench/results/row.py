"""A row of a leaderboard: one result with everything that is needed to compare or repeat it."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, field_validator, model_validator

from specbench.analysis.fairness.numbers import Family, GroupNumbers
from specbench.results.bootstrap import INTERVALS, Intervals, Metric

FORMAT: Final = 1
DIGEST: Final = "digest"


def digest_of(row: dict[str, Any]) -> str:
    """Returns 16 hex digits of SHA-256 over all that a row says, whatever the order of its keys.

    The digest shows that a row was edited or half merged by mistake. It does not show a forged row: whoever edits a row
    can compute the digest again. `specbench leaderboard validate --records` compares a row with its run.
    """
    content = {name: value for name, value in row.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sealed(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row as it is written: with its digest."""
    return {**row, DIGEST: digest_of(row)}


# "graphs target", "compiled target": the target's passes are recorded or compiled, and those of a drafter cannot be.
RowEngine = Literal["eager", "graphs", "compiled", "graphs target", "compiled target"]

Place = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]  # of a file or folder; no control characters

ALL = "all"  # the subset of a row over all subsets of its task
# Where the fields of a row come from. COMPUTED: from the records and specs in its run's folder. NOTED: from what the
# run noted there. STATED: they were added later, or only the file has them, so nothing in the folder shows whether
# they are true.
COMPUTED = frozenset(
    {
        "format", "task", "subset", "language", "method", "num_draft_tokens", "options", "sampling", "n", "subsets",
        "repeats", "created", "lossless", "verdict", "quality", "signatures", "intervals", "warnings",
        "accepted_lengths", "metrics",
    }
)  # fmt: skip
NOTED = frozenset(
    {
        "target", "target_revision", "drafter", "drafter_revision", "dtype", "device", "attention", "engine",
        "versions", "commit", "command", "data_source", "data_location", "data_revision", "chat", "seed", "shots",
    }
)  # fmt: skip
STATED = frozenset({"evidence", "fairness", "run"})
# Everything but these fields says which result a row is.
RESULT_FIELDS = frozenset(
    {
        "metrics", "accepted_lengths", "warnings", "shots", "quality", "signatures", "verdict", "evidence", "fairness",
        "intervals", "created", "command", "run",
    }
)  # fmt: skip


class Part(BaseModel):
    """A part of a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sampling(Part):
    """How both models' logits become probabilities; temperature 0 is greedy."""

    temperature: FiniteFloat
    top_k: int | None = None
    top_p: FiniteFloat | None = None


class Evidence(Part):
    """What an audit's verdict rests on: prompts of greedy outputs, draws of up to five tokens and their p-value."""

    task: str
    subsets: tuple[str, ...]
    num_prompts: int | None
    num_draws: int | None
    temperature: FiniteFloat | None  # of the draws
    p_value: FiniteFloat | None
    report: Place | None = None  # file of the audit, from the file's folder; null: it was not kept

    @model_validator(mode="after")
    def _draws_are_told_whole(self) -> Self:
        if len({value is None for value in (self.num_draws, self.temperature, self.p_value)}) > 1:
            raise ValueError("num_draws, temperature and p_value are all null, or none of them is")
        return self


class Shots(Part):
    """The worked examples before each prompt, and the guard against contamination: that none of them is measured.

    `num`: before each prompt; where it is 0 all else is null. `digest`: of the text before the prompts, 12 hex digits;
    of several subsets that differ "all-" and a digest of theirs. `num_checked`: the measured examples, each of which
    asks something else than the worked examples before it, and has no answer of 80 characters or more that stands there
    (else the run is refused); null where questions could not be told apart.
    """

    num: int = Field(ge=0)
    source: Literal["task", "hub", "local", "sample"] | None = None  # null without worked examples
    location: str | None = None
    digest: str | None = None
    num_checked: int | None = Field(default=None, ge=0)


class Warning(Part):
    """What a reader must know before the speed-up is trusted. `text`: one sentence with the figure and what to do."""

    code: Literal["wide_interval", "few_prompts", "ar_drift", "trained_on_test"]
    text: str


class Row(Part):
    """One method on one subset (or on "all"), paired to AR in the same process. Times in seconds, rates in tokens/s."""

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
    sampling: Sampling
    dtype: str
    device: str
    attention: str
    engine: RowEngine = "eager"
    versions: dict[str, str | None]
    commit: str | None
    command: str
    data_source: Literal["hub", "local", "sample"]
    data_location: str
    data_revision: str | None
    chat: bool | str
    seed: int
    n: int = Field(ge=0)  # examples
    subsets: dict[str, NonNegativeInt] = Field(default_factory=dict)  # of a row over all: its subsets, each with its n
    repeats: int = Field(ge=1)
    created: str
    run: Place | None = None  # the folder of the records, from the file's folder; null: the file's folder, or unknown
    lossless: bool  # what the rule, or the author of external code, claims
    verdict: str = "not audited"  # what the outputs say: specbench.analysis.audit.greedy
    evidence: Evidence | None = None  # of an audit that gave the verdict; null where the row's own outputs did
    quality: str | None = None  # the metric that stands for it; null where nothing is scored, or by several
    signatures: dict[str, str] = Field(default_factory=dict)  # how metrics were computed, where a name is not enough
    intervals: Intervals = INTERVALS  # how those of the metrics were computed
    fairness: GroupNumbers | Family | None = None  # of `specbench fairness`: of a subset, or in "all" of all subsets
    shots: Shots = Shots(num=0)
    warnings: tuple[Warning, ...] = ()
    # element k: target passes after the prefill in which k draft tokens were accepted; null where these are not known
    accepted_lengths: tuple[NonNegativeInt, ...] | None = None
    metrics: dict[str, Metric]

    @field_validator("options")
    @classmethod
    def _infinity_as_word(cls, options: dict[str, Any]) -> dict[str, Any]:
        return {name: writable(value) for name, value in options.items()}  # JSON has no infinity; a threshold may be

    @model_validator(mode="after")
    def _is_of_its_subsets(self) -> Self:
        if self.subsets and (self.subset != ALL or sum(self.subsets.values()) != self.n):
            raise ValueError(f"subsets: a row of '{ALL}' names them, and their examples make n")
        return self

    @property
    def examples(self) -> dict[str, int]:
        """By subset how many examples the row is of: the first ones that its run measured."""
        return self.subsets or {self.subset: self.n}

    @property
    def place(self) -> str:
        """Task, subset and method, by which a message names a row."""
        return f"{self.task.partition(':')[0]} {self.subset} {self.method.partition(':')[0]}"

    @property
    def key(self) -> str:
        """What identifies the result: every field but the metrics, the date and the command line; and the judge, and
        the worked examples before the prompts."""
        told = {"judge": self.signatures.get("judge_score"), "shots": self.shots.digest}
        also = {name: value for name, value in told.items() if value is not None}
        return json.dumps(self.model_dump(mode="json", exclude=set(RESULT_FIELDS)) | also, sort_keys=True)


def writable(value: Any) -> Any:
    """A value of a row as JSON can hold it: an infinite number as a word."""
    if isinstance(value, Mapping):
        return {name: writable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
