"""Sample records: one JSON line per example, repeat and turn, written to disk before the next one is measured.

prompt                      digest of the user's texts up to this turn
prompt_ids_digest           digest of the token ids of AR's prompt, which all methods of its vocabulary read

The key `methods` of a record maps the names of AR and of every method to their generations:

token_ids, text, finish     what was written, and why it ended: eos, stop, length or context
answer, reasoning_tokens    only with reasoning (`specbench.core.reasoning`): the text after it, which is scored, and
                            the number of tokens before it
reasoning_closed            only false: the text ends inside its reasoning, and the answer is empty
steps                       [drafted, judged, accepted, emitted] per target pass; the first token belongs to no step
tree_nodes                  draft trees only: draft tokens per step; the counts of `steps` are then levels of the tree
tree_ranks                  draft trees only, by rank among siblings: [judged, accepted], the number of nodes on
                            accepted paths that have a child of this rank, and of accepted children of this rank
tree_levels                 draft trees only: `tree_ranks` for each level of the trees
tree_samples                draft trees only, for sampled steps and each level: the chance that a child of the root or
                            of the accepted node is accepted, given the tree, and the optimum over lossless rules
                            (`specbench.decoding.tree_acceptance`)
positions                   per judged draft token p(x), q(x), Σ min(p, q), the rule's divergence; null where undefined
draw_overlap                union and tli only: (1 − P(end)) · Σ min(p, q given no end), per position at which the
                            drafter drew a token, including positions at which it drew the end of the text
passes                      [query length, seconds] of each pass of target and draft
ttft_seconds, draft_prefill_seconds
decode_seconds              from the first token on
rule_seconds                part of decode_seconds: verification rules and sampling
tokenizer_seconds           part of decode_seconds: retokenization and the search for stop strings
cpu_joules, gpu_joules      of the processor packages and of the target's GPUs during the generation, prefill included;
                            absent where the machine does not report them
peak_host_bytes             largest resident memory of the process during the generation; absent where unknown
peak_device_bytes           largest memory of tensors on the target's CUDA devices; absent without one
scores, problem             all scores, or the reason why there are none
decoded_by                  the model that decoded alone, if one did
warm_up                     the method's warm-up before this process measured the subset: blocks, seconds, steady
                            (null: too few blocks to tell)
"""

import gc
import json
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.values import Generation as Generation
from specbench.core.values import Key as Key
from specbench.core.values import Record as Record
from specbench.core.values import record_key as record_key

MAX_LINE = 2 * bounded.MAX_BYTES  # characters; enough for ten methods with 32,000 tokens each


def records_of(
    records: Mapping[Key, Record], task: str, examples: Mapping[str, int], repeats: int
) -> list[Record]:  # fmt: skip
    """Returns the records of the first measured examples of some subsets, in the order of a run.

    `examples`: number of examples per subset. Indices of examples have gaps where a run left out examples on which a
    method was tuned. There may be fewer records than requested.
    """
    order = {subset: number for number, subset in enumerate(examples)}
    found = [key for key in records if key[0] == task and key[1] in examples and key[3] < repeats]
    measured: dict[str, set[int]] = {subset: set() for subset in examples}
    for key in found:
        measured[key[1]].add(key[2])
    first = {subset: set(sorted(measured[subset])[:num]) for subset, num in examples.items()}
    chosen = [key for key in found if key[2] in first[key[1]]]
    return [records[key] for key in sorted(chosen, key=lambda key: (order[key[1]], key[3], key[2], key[4]))]


def with_same_history(records: Sequence[Record], method: str) -> list[Record]:
    """Returns the records before which a method and AR had the same conversation: equal answers in all earlier
    turns."""
    differs = {
        record_key(record) for record in records
        if record["methods"][method]["text"] != record["methods"]["ar"]["text"]
    }  # fmt: skip
    return [
        record for record in records
        if not any((*record_key(record)[:4], earlier) in differs for earlier in range(record.get("turn", 0)))
    ]  # fmt: skip


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pauses the collector, which would traverse all lists read so far again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RecordFile:
    """A file of JSON lines that survives being killed at any byte.

    Every line is on disk before the next one begins, so only the last line can be incomplete. Reading cuts off such a
    line, and its example is measured again.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._checked = False

    def append(self, record: Record) -> None:
        """Writes one record and waits until it is on disk. Raises ConfigError for a disk error, and for a number that
        JSON does not have."""
        try:
            text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError as error:
            wrong = not_finite(record)
            if wrong is None:
                raise
            raise ConfigError(
                f"{self.path}: nothing is written, since {wrong[0]} would be {wrong[1]}, which is not a number: a "
                "model, a scorer or a plug-in returned it: run with --dtype float32, or correct the plug-in"
            ) from error
        line = text.encode("utf-8", "surrogatepass") + b"\n"
        if not self._checked:
            self.read()
        self._checked = False  # stays False if the write fails part-way: the next append then repairs the file first
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._disk_error("write", error) from error
        self._checked = True

    @without_garbage_collection()
    def read(self, check: Callable[[Record], None] = lambda record: None) -> list[Record]:
        """Returns all records in order; none for an absent file.

        A last line that is truncated or does not parse is cut off the file. Raises ConfigError for any other such line,
        and for a record for which `check` raises ValueError.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise self._disk_error("read", error) from error
        records, num_good_bytes = self._parse(content, check)
        self._repair(content, num_good_bytes)
        self._checked = True
        return records

    def _parse(self, content: bytes, check: Callable[[Record], None]) -> tuple[list[Record], int]:
        """Returns the records and the number of valid bytes from the start."""
        records = []
        num_good_bytes = 0
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            try:
                record = _parse_line(line)
            except bounded.OutOfBounds as error:  # the line is complete, so it is not cut off
                raise self._line_error(number, str(error)) from error
            end = num_good_bytes + len(line)
            if record is None and line.strip():
                if content[end:].strip():
                    text = line.decode(errors="replace").strip()
                    shown = text if len(text) <= 40 else text[:40] + "…"
                    raise self._line_error(number, f"not a JSON record: {shown!r}")
                break
            if record is not None:
                try:
                    check(record)
                except ValueError as error:
                    raise self._line_error(number, str(error)) from error
                records.append(record)
            num_good_bytes = end
        return records, num_good_bytes

    def _repair(self, content: bytes, num_good_bytes: int) -> None:
        """Cuts off everything after the valid bytes and makes them end with a line break."""
        good = content[:num_good_bytes]
        if good == content and (not good or good.endswith(b"\n")):
            return
        try:
            with self.path.open("r+b") as file:
                file.truncate(num_good_bytes)
                if good and not good.endswith(b"\n"):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._disk_error("repair", error) from error

    def _line_error(self, number: int, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.path}, line {number}: {problem}; "
            "delete that line (its example is measured again) or choose another output folder"
        )

    def _disk_error(self, action: str, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.path}: cannot {action} the records: {error.strerror or error}; nothing measured is lost: "
            "every finished example is kept; free the disk or fix the permissions and run the same command to resume"
        )


def not_finite(value: Any, place: str = "") -> tuple[str, float] | None:
    """Returns the place of the first NaN or infinite number in a value, such as methods.sd.score, and the number."""
    if isinstance(value, float) and not math.isfinite(value):
        return place, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    found = (not_finite(part, f"{place}.{name}" if place else str(name)) for name, part in parts)
    return next(filter(None, found), None)


def _parse_line(line: bytes) -> Record | None:
    """Returns the record of a line; None if the line is cut off or holds no record. Raises OutOfBounds for a complete
    line that exceeds a bound."""
    try:
        value = bounded.json_value(line.decode("utf-8", "surrogatepass"), strict=False, max_characters=MAX_LINE)
    except bounded.OutOfBounds:
        if line.endswith(b"\n"):
            raise
        return None
    except ValueError:  # includes invalid UTF-8: a line cut inside a character
        return None
    return value if isinstance(value, dict) else None


DRAFTED, JUDGED, ACCEPTED, EMITTED = range(4)  # the columns of a step

Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = NonNegative
Finite = Annotated[float, Field(allow_inf_nan=False)]
Step = Annotated[list[int], Field(min_length=4, max_length=4)]
Pass = tuple[Count, Seconds]
Values = list[float | None] | None  # a divergence may be infinite


class RecordPart(BaseModel):
    """Base class of the parts of a record. Unknown keys are allowed, because later versions may write more keys."""

    model_config = ConfigDict(strict=True, defer_build=True)


class Passes(RecordPart):
    target: list[Annotated[Pass, Field(strict=False)]]
    draft: list[Annotated[Pass, Field(strict=False)]]


class ExternalShape(RecordPart):
    """The counts that a decoder with its own loop reports."""

    num_first_tokens: Count
    num_target_passes: Annotated[int, Field(ge=1)] | None


class WarmUpShape(RecordPart):
    """The warm-up of a method (`specbench.running.warm_up`)."""

    blocks: Count
    seconds: Seconds
    steady: bool | None


class GenerationShape(RecordPart):
    """One method's part of a record."""

    token_ids: Annotated[list[Count], Field(min_length=1)]
    text: Any
    answer: str | None = None  # absent if the text is the answer
    reasoning_tokens: Count = 0
    reasoning_closed: bool = True
    finish: Literal["eos", "stop", "length", "context"]
    steps: list[Step]
    tree_nodes: list[Count] | None = None
    tree_ranks: list[Annotated[list[Count], Field(min_length=2, max_length=2)]] | None = None
    tree_levels: list[list[Annotated[list[Count], Field(min_length=2, max_length=2)]]] | None = None
    tree_samples: list[list[Annotated[tuple[Finite, Finite], Field(strict=False)]]] | None = None
    positions: dict[str, Values]
    draw_overlap: list[Finite] | None = None  # only for drafts that do not propose the end token
    passes: Passes
    ttft_seconds: Seconds | None
    draft_prefill_seconds: Seconds | None
    decode_seconds: Seconds
    rule_seconds: Seconds | None = None  # absent from records of earlier versions; unknown for external decoders
    tokenizer_seconds: Seconds | None = None
    external: ExternalShape | None = None
    decoded_by: Literal["target", "drafter"] | None = (
        None  # the model that decoded alone; `passes.target` holds its passes
    )
    warm_up: WarmUpShape | None = None  # absent from records of earlier versions
    route: str | None = None  # the route of a method with routes
    truncated_tokens: Count = 0
    cpu_joules: NonNegative | None = None
    gpu_joules: NonNegative | None = None
    peak_host_bytes: Count | None = None
    peak_device_bytes: Count | None = None
    score: Finite | bool | None  # bool: records of earlier versions, as plug-ins' scorers returned it
    scores: dict[str, Finite | bool | None] = Field(default_factory=dict)
    statistics: dict[str, list[Finite]] = Field(default_factory=dict)
    problem: str | None = None
    outcome: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> "GenerationShape":
        if self.external is None and (self.ttft_seconds is None or self.draft_prefill_seconds is None):
            raise ValueError("ttft_seconds and draft_prefill_seconds may be null only if there is 'external'")
        return self


class RecordShape(RecordPart):
    """The keys that resuming and the metrics read."""

    task: str
    subset: str
    example: Count
    id: Any
    repeat: Count
    turn: Count = 0
    truncated_tokens: Count = 0
    prompt_tokens: Count = 0
    measured_at: Seconds | None = None  # Unix time at which the measurement ended
    prompt: str
    prompt_ids_digest: str | None = None  # of AR's prompt; absent from records of earlier versions
    reference: Any
    methods: dict[str, GenerationShape]


def check_record(record: Record, methods: Mapping[str, int]) -> None:
    """Checks a record that was read back. `methods`: the methods of the run with their num_draft_tokens.

    Raises ValueError with a one-line message for a missing key, a wrong type, a different set of methods, or
    contradictory counts.
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
    """Raises ValueError, with the record's name, unless every token is emitted once and in every step
    emitted - 1 ≤ accepted ≤ judged ≤ drafted. An external decoder may have no steps."""
    name = describe_record(record)
    if method not in record["methods"]:
        raise ValueError(f"record of {name}: has no method {method}")
    generation = record["methods"][method]
    external = generation.get("external")
    problems = []
    if external and (external["num_target_passes"] or len(generation["steps"])) < len(generation["steps"]):
        problems.append(f"{external['num_target_passes']} target passes for {len(generation['steps'])} steps")
    has_steps = bool(generation["steps"]) or external is None
    if has_steps and step_sum(generation, EMITTED) + 1 != len(generation["token_ids"]):
        problems.append(f"{step_sum(generation, EMITTED)} emitted + 1 ≠ {len(generation['token_ids'])} new tokens")
    for number, (drafted, judged, accepted, emitted) in enumerate(generation["steps"]):
        if not 0 <= accepted <= judged <= drafted <= num_draft_tokens or not 0 <= emitted <= accepted + 1:
            problems.append(
                f"step {number} has {drafted} drafted (of at most {num_draft_tokens}), {judged} judged, "
                f"{accepted} accepted, {emitted} emitted"
            )
    if generation.get("reasoning_tokens", 0) > len(generation["token_ids"]):
        problems.append(
            f"{generation['reasoning_tokens']} reasoning_tokens of {len(generation['token_ids'])} new tokens"
        )
    sizes = generation.get("tree_nodes")
    depths = [step[DRAFTED] for step in generation["steps"]]
    if sizes is not None and (len(sizes) != len(depths) or any(map(operator.lt, sizes, depths))):
        problems.append(f"trees of {sizes} draft tokens for steps with {depths} levels")
    num_judged, num_emitted = step_sum(generation, JUDGED), step_sum(generation, EMITTED)
    problems += _rank_problems(generation.get("tree_ranks"), num_judged, step_sum(generation, ACCEPTED))
    for key, values in generation["positions"].items():
        if values is not None and len(values) != num_judged:
            problems.append(f"{len(values)} {key} values for {num_judged} judged tokens")
    draws = generation.get("draw_overlap")
    if draws is not None and not num_judged <= len(draws) <= num_emitted:
        problems.append(f"{len(draws)} draw_overlap values for {num_judged} judged and {num_emitted} emitted tokens")
    if problems:
        raise ValueError(f"record of {name}: {method}: {'; '.join(problems)}")


def _rank_problems(ranks: Sequence[Sequence[int]] | None, num_judged: int, num_accepted: int) -> list[str]:
    """Returns problems of the counts by rank among siblings: every judged level has a first child, and every accepted
    token has one rank."""
    if ranks is None:
        return []
    judged, accepted = [pair[0] for pair in ranks], [pair[1] for pair in ranks]
    is_falling = judged == sorted(judged, reverse=True) and all(map(operator.ge, judged, accepted))
    if is_falling and max(judged, default=0) == num_judged and sum(accepted) == num_accepted:
        return []
    return [f"tree_ranks {ranks} for {num_judged} judged and {num_accepted} accepted tokens"]


def describe_record(record: Record) -> str:
    name = "task {task}, subset {subset}, example {example}, repeat {repeat}".format(**record)
    return f"{name}, turn {record['turn']}" if record.get("turn") else name


def step_sum(generation: Generation, column: int) -> int:
    """Returns the sum of one column (DRAFTED, JUDGED, ACCEPTED or EMITTED) over the steps of a generation."""
    return sum(int(step[column]) for step in generation["steps"])
