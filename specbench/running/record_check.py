"""Whether a record is whole: its keys and types, and counts that do not contradict each other."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.running.records import Generation, Record

DRAFTED, JUDGED, ACCEPTED, EMITTED = range(4)  # the columns of a step

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Step = Annotated[list[int], Field(min_length=4, max_length=4)]
Pass = tuple[Count, Seconds]
Values = list[float | None] | None  # a divergence may be infinite


class Strict(BaseModel):
    """Other keys may be there: a later version may write more."""

    model_config = ConfigDict(strict=True)


class Passes(Strict):
    target: list[Annotated[Pass, Field(strict=False)]]
    draft: list[Annotated[Pass, Field(strict=False)]]


class ExternalShape(Strict):
    """What is known of a decoder with a loop of its own."""

    num_first_tokens: Count
    num_target_passes: Annotated[int, Field(ge=1)] | None


class GenerationShape(Strict):
    """One method's part of a record."""

    token_ids: Annotated[list[Count], Field(min_length=1)]
    text: Any
    finish: Literal["eos", "stop", "length", "context"]
    steps: list[Step]
    positions: dict[str, Values]
    attempted: list[Finite] | None = None  # only of drafts whose end is not proposed
    passes: Passes
    ttft_seconds: Seconds | None
    draft_prefill_seconds: Seconds | None
    decode_seconds: Seconds
    rule_seconds: Seconds | None = None  # not in records of earlier versions, nor known of external decoders
    tokenizer_seconds: Seconds | None = None
    external: ExternalShape | None = None
    decoded_by: Literal["target", "drafter"] | None = None  # which decodes alone: `passes.target` are its
    route: str | None = None  # of the routes of a method, the one that drafted
    truncated_tokens: Count = 0
    score: Finite | None
    scores: dict[str, Finite | None] = Field(default_factory=dict)
    statistics: dict[str, list[Finite]] = Field(default_factory=dict)
    problem: str | None = None
    outcome: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> "GenerationShape":
        if self.external is None and (self.ttft_seconds is None or self.draft_prefill_seconds is None):
            raise ValueError("ttft_seconds and draft_prefill_seconds are null only where there is 'external'")
        return self


class RecordShape(Strict):
    """The keys that resuming and the metrics read."""

    task: str
    subset: str
    example: Count
    id: Any
    repeat: Count
    turn: Count = 0
    truncated_tokens: Count = 0
    prompt_tokens: Count = 0
    measured_at: Seconds | None = None  # since 1970, when it was finished
    prompt: str
    reference: Any
    methods: dict[str, GenerationShape]


def check_record(record: Record, methods: Mapping[str, int]) -> None:
    """Check a record that was read back. `methods`: the run's, with their num_draft_tokens.

    Raises ValueError in one line: a key that is missing or of another type, another method, or contradictory counts.
    """
    try:
        RecordShape.model_validate(record)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    if set(record["methods"]) != set(methods):
        raise ValueError(f"methods: {', '.join(record['methods'])}, but the run has {', '.join(methods)}")
    for method, num_draft_tokens in methods.items():
        check_counts(record, method, num_draft_tokens)


def check_counts(record: Record, method: str, num_draft_tokens: int) -> None:
    """The identities of the ledger: every token is emitted once, and per step emitted - 1 ≤ accepted ≤ judged ≤
    drafted. An external decoder may tell no steps. Raises ValueError naming the record."""
    name = name_of(record)
    if method not in record["methods"]:
        raise ValueError(f"record of {name}: has no method {method}")
    generation = record["methods"][method]
    external = generation.get("external")
    problems = []
    if external and (external["num_target_passes"] or len(generation["steps"])) < len(generation["steps"]):
        problems.append(f"{external['num_target_passes']} target passes for {len(generation['steps'])} steps")
    told = bool(generation["steps"]) or external is None  # an external decoder may count no steps
    if told and step_sum(generation, EMITTED) + 1 != len(generation["token_ids"]):
        problems.append(f"{step_sum(generation, EMITTED)} emitted + 1 ≠ {len(generation['token_ids'])} new tokens")
    for number, (drafted, judged, accepted, emitted) in enumerate(generation["steps"]):
        if not 0 <= accepted <= judged <= drafted <= num_draft_tokens or not 0 <= emitted <= accepted + 1:
            problems.append(
                f"step {number} has {drafted} drafted (of at most {num_draft_tokens}), {judged} judged, "
                f"{accepted} accepted, {emitted} emitted"
            )
    for key, values in generation["positions"].items():
        if values is not None and len(values) != step_sum(generation, JUDGED):
            problems.append(f"{len(values)} {key} values for {step_sum(generation, JUDGED)} judged tokens")
    attempted = generation.get("attempted")
    if attempted is not None and not step_sum(generation, JUDGED) <= len(attempted) <= step_sum(generation, EMITTED):
        problems.append(
            f"{len(attempted)} attempted values for {step_sum(generation, JUDGED)} judged and "
            f"{step_sum(generation, EMITTED)} emitted tokens"
        )
    if problems:
        raise ValueError(f"record of {name}: {method}: {'; '.join(problems)}")


def name_of(record: Record) -> str:
    name = "task {task}, subset {subset}, example {example}, repeat {repeat}".format(**record)
    return f"{name}, turn {record['turn']}" if record.get("turn") else name


def step_sum(generation: Generation, column: int) -> int:
    """Sum of one column (DRAFTED, JUDGED, ACCEPTED or EMITTED) over the steps of a generation."""
    return sum(int(step[column]) for step in generation["steps"])
