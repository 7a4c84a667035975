"""The file of an acceptance profile: how many draft tokens a target accepted, position by position.

`specbench profile` writes it from recorded runs (`specbench.analysis.profile`), and the drafter `synthetic` reads it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from specbench.core import bounded
from specbench.core.errors import ConfigError, nearest
from specbench.specs.components import build
from specbench.statistics.bootstrap import Estimate, FilePart

FORMAT: Final = 1
MARK = b'"profile_format"'  # at the beginning of the file
TOTAL: Final = "total"
REMEDY = "give a file that `specbench profile RUN --output FILE` wrote"
Dimension = Literal["total", "task", "subset", "language", "context", "part"]


class Position(FilePart):
    """A position of a draft, from 1 on; of draft trees a level.

    `verified`: the steps in which its token was accepted or rejected. The others did not reach it: a token before it
    was rejected, the draft was shorter, or the text had ended. `conditional`: a = accepted ÷ verified. It may rise from
    one position to the next. `unconditional`: r = the product of a up to here, the chance that all tokens up to here
    are accepted if a draft reaches so far. It never rises. Intervals are 95 % intervals that resample prompts.
    """

    position: PositiveInt
    verified: NonNegativeInt
    accepted: NonNegativeInt
    conditional: Estimate
    unconditional: Estimate


class AcceptanceLength(FilePart):
    """Tokens per target pass, with the target's own token (1 without any draft).

    `pooled`: emitted tokens ÷ steps, as τ of a row. `of_prompts`: the mean over prompts of the same ratio. `of_rates`:
    1 + Σ r, of steps with a draft of full length that no end of the text cuts; null if a position was never verified.
    """

    pooled: Estimate
    of_prompts: Estimate
    of_rates: Estimate


class ProfileCell(FilePart):
    """The steps of an entry, or those of one value of a dimension.

    `by`: total; task; subset, as TASK/SUBSET (the category of tasks that have some); language; context: tokens of
    prompt and answer before the step; part: "reasoning" or "answer". `histogram`: element j is the number of steps that
    accepted j draft tokens. `histogram_cut`: the same for the steps that the end of the text cut, which `histogram`
    leaves out; tokens behind the end count nowhere. `draft_lengths`: element k is the number of steps that drafted k
    tokens (of trees: levels). `positions`: as many as the method drafts at most.
    """

    by: Dimension
    value: str
    prompts: PositiveInt
    steps: PositiveInt
    emitted: NonNegativeInt
    drafted: NonNegativeInt
    verified: NonNegativeInt
    accepted: NonNegativeInt
    histogram: tuple[NonNegativeInt, ...]
    histogram_cut: tuple[NonNegativeInt, ...]
    draft_lengths: tuple[NonNegativeInt, ...]
    mean_acceptance_length: AcceptanceLength
    positions: Annotated[tuple[Position, ...], Field(min_length=1)]

    @property
    def name(self) -> str:
        return TOTAL if self.by == TOTAL else f"{self.by}={self.value}"

    @property
    def conditional(self) -> list[float]:
        """a of the same positions as `unconditional`; 0 where nothing passed the position before."""
        return [each.conditional.value or 0.0 for each in self.positions if each.unconditional.value is not None]

    @property
    def unconditional(self) -> list[float]:
        """r of the positions up to the last one that any step verified, and of those behind an r of 0."""
        return [each.unconditional.value for each in self.positions if each.unconditional.value is not None]

    @property
    def share_short(self) -> float:
        """The share of the steps with fewer draft tokens than the longest drafts have."""
        return 1 - self.draft_lengths[-1] / self.steps


class ProfileModel(FilePart):
    """A model. `revision`: the commit on the hub, or "local-" and a digest of its files. `precision`: of its weights
    and passes; null: looked up without passes, or a head in the target's precision."""

    name: str
    revision: str | None
    precision: str | None


class ProfilePrompts(FilePart):
    """The prompts of a subset, and how their answers were made. `task`: name@version:digest."""

    task: str
    subset: str
    language: str | None
    examples: NonNegativeInt
    repeats: PositiveInt
    data_source: str
    data_location: str
    data_revision: str | None
    shots: str | None  # digest of the few-shot examples
    system: str | None
    template_date: str | None
    seed: int
    max_new_tokens: PositiveInt
    stop: tuple[str, ...]


class ProfileConditions(FilePart):
    """What may change the acceptance besides models and prompts. `chat`: whether prompts used the chat template; its
    variables, if any were given. `thinking`: "on" if any answer has reasoning. `memory`: of other prompts; null: the
    drafter has none."""

    temperature: FiniteFloat
    top_k: int | None
    top_p: FiniteFloat | None
    chat: bool | dict[str, object]
    thinking: Literal["on", "off"]
    memory: str | None
    prompts: tuple[ProfilePrompts, ...]


class ProfileSource(FilePart):
    """A run with the engine and the machine that made it. `records`: digest of its file of records, whose steps were
    counted. `created`: when the last answer was measured."""

    command: str
    engine: str
    device: str
    attention: str
    pass_width: int | None
    versions: dict[str, str | None]
    commit: str | None
    created: str
    records: str


class ProfileEntry(FilePart):
    """A method on one pair of models, under one set of conditions.

    `id`: of the entry in its file. `shape`: positions of a tree are its levels, at each of which one of several tokens
    may be accepted: they are not rates of a chain. `num_draft_tokens`: K, the most tokens (of trees: levels) that a
    step drafts. `options`: drafter, verification rule, bridge and draft length, with the temperature of drafts.
    """

    id: str
    method: str  # name@version:digest
    lossless: bool
    shape: Literal["chain", "tree"]
    num_draft_tokens: PositiveInt
    rule: str
    options: dict[str, Any]
    target: ProfileModel
    drafter: ProfileModel | None
    conditions: ProfileConditions
    sources: tuple[ProfileSource, ...]
    cells: Annotated[tuple[ProfileCell, ...], Field(min_length=1)]

    @property
    def method_name(self) -> str:
        return self.method.partition("@")[0]

    def cell(self, name: str | None = None) -> ProfileCell:
        """Returns a cell by BY=VALUE; by default the total. Raises ConfigError."""
        found = {cell.name: cell for cell in self.cells}
        if (name or TOTAL) not in found:
            raise ConfigError(f"entry {self.id} has no cell '{name}': {nearest(name or TOTAL, found)}")
        return found[name or TOTAL]


class LeftOut(FilePart):
    """A method of a run that has no entry, and why."""

    run: str
    method: str
    reason: str


class Profile(FilePart):
    """An acceptance profile. `bonus_token`: lengths count the target's own token of each step; counts of accepted
    tokens, rates and histograms do not."""

    profile_format: Literal[1] = FORMAT
    specbench: str
    created: str
    bonus_token: Literal["in lengths only"] = "in lengths only"
    entries: tuple[ProfileEntry, ...]
    left_out: tuple[LeftOut, ...] = ()

    def entries_of(self, name: str | None) -> Sequence[ProfileEntry]:
        """Returns the entries with this id or method name; without a name, all. Raises ConfigError if there are
        none."""
        found = [each for each in self.entries if name in (None, each.id, each.method_name)]
        if not found:
            known = {text for each in self.entries for text in (each.id, each.method_name)}
            raise ConfigError(f"has no entry '{name}': {nearest(str(name), known)}")
        return found

    def entry(self, name: str | None) -> ProfileEntry:
        """Returns the only entry with this id or method name. Raises ConfigError."""
        found = self.entries_of(name)
        if len(found) > 1:
            ids = ", ".join(each.id for each in found)
            raise ConfigError(f"has several entries: give one as `entry` (on the command line --entry): {ids}")
        return found[0]


def is_profile(path: Path) -> bool:
    """Returns whether a file says that it is a profile, of whatever format."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK in file.read(100)


def read_profile(path: Path) -> Profile:
    """Returns a profile. Raises ConfigError for any other file."""
    content = bounded.read_json(path, REMEDY)
    if not isinstance(content, dict) or "profile_format" not in content:
        raise ConfigError(f"{path}: is not an acceptance profile: {REMEDY}")
    if content["profile_format"] != FORMAT:
        raise ConfigError(
            f"{path}: profile_format = {content['profile_format']!r:.60}: this version of specbench reads format "
            f"{FORMAT} only: write the profile again from its runs"
        )
    return build(Profile, content, f"{path}: ", remedy=REMEDY)


def schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Profile.model_json_schema(mode="serialization"),
        "title": "specbench acceptance profile",
    }
