"""The ratings in the folder of a run, judgements.jsonl: they stay with the answers that they are of."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, ValidationError
from rich.console import Console

from specbench import bounded
from specbench.completions import Reply, check_url
from specbench.console import say
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.judge.cache import digest
from specbench.judge.outcomes import Judgement, with_judgements
from specbench.judge.prompts import HIGHEST, LOWEST
from specbench.judge.requests import JudgementKey, questions_of, requests_of
from specbench.judge.settings import JudgeSettings
from specbench.registry import first_problem
from specbench.running.records import Key, Record, record_key

if TYPE_CHECKING:
    from specbench.running.plan import Cell

FILE = "judgements.jsonl"
REMEDY = "delete the file, and give --judge again for new ones (what was paid for is in the cache)"
Rated = tuple[list[Record], str | None]  # the records, and the signature of the judge whose ratings they have


class Line(BaseModel, extra="allow", strict=True):
    """A line of the file: what is read of it again. The rest stays as it was written."""

    task: str
    subset: str
    example: int
    repeat: int
    turn: int
    method: str
    judge: Annotated[str, Field(pattern=r"\S")]
    url: Annotated[str, Field(min_length=1)]
    score: Annotated[float, Field(ge=LOWEST, le=HIGHEST)] | None
    request: str

    @property
    def key(self) -> JudgementKey:
        return (self.task, self.subset, self.example, self.repeat, self.turn), self.method

    @property
    def settings(self) -> JudgeSettings:
        return JudgeSettings(self.judge, self.url)

    @property
    def identity(self) -> tuple[JudgementKey, str, str]:
        return self.key, self.judge, self.url


def with_recorded(records: list[Record], cells: "Sequence[Cell]", folder: Path, console: Console) -> Rated:
    """The records with the ratings that judgements.jsonl has for the very requests that they would be; a line says so.
    Of several judges the last one counts.

    Raises ConfigError for a file that is damaged.
    """
    path = folder / FILE
    lines = _read(path)
    if not lines:
        return records, None
    settings = lines[-1].settings
    scores = {line.request: line.score for line in lines}
    names = {key: digest(each) for key, each in requests_of(records, questions_of(cells), settings).items()}
    found = {key: Judgement(scores.get(name), None, None, name, True) for key, name in names.items()}
    num_rated = sum(each.score is not None for each in found.values())
    if not num_rated:
        return records, None
    rest = "" if num_rated == len(found) else f"; --judge {settings.model} rates the others"
    say(console, f"{num_rated} of {len(found)} answers have ratings of {settings.model} from {path}{rest}")
    return with_judgements(records, found), settings.signature


def ratings(folder: Path, signature: str, records: Sequence[Record]) -> dict[JudgementKey, Judgement]:
    """What the judge with this signature has rated the answers of the records; without a score where it has not."""
    found = {line.key: line.score for line in _read(folder / FILE) if line.settings.signature == signature}
    return {
        (record_key(record), method): Judgement(found.get((record_key(record), method)), None, None, "", True)
        for record in records
        for method in record["methods"]
    }


def write_judgements(path: Path, judgements: Mapping[JudgementKey, Judgement], settings: JudgeSettings) -> None:
    """One JSON line for each answer and judge, behind those that the file has of other answers or other judges.

    Raises ConfigError when the file is damaged or the disk refuses.
    """
    new = [_line(*key, judgement, settings) for key, judgement in judgements.items()]
    replaced = {line.identity for line in new}
    kept = [line for line in _read(path) if line.identity not in replaced]
    text = "".join(json.dumps(line.model_dump(), ensure_ascii=False) + "\n" for line in kept + new)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the judgements ({error.strerror or error})") from error


def _line(key: Key, method: str, judgement: Judgement, settings: JudgeSettings) -> Line:
    task, subset, example, repeat, turn = key
    reply = judgement.reply or Reply("", None, None)
    rest = {
        "problem": judgement.problem, "reply": judgement.reply and reply.text,
        "prompt_tokens": reply.num_prompt_tokens, "reply_tokens": reply.num_reply_tokens,
        "cached": judgement.was_cached, "cost_usd": settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens),
    }  # fmt: skip
    return Line(
        task=task, subset=subset, example=example, repeat=repeat, turn=turn, method=method, judge=settings.model,
        url=settings.url, score=judgement.score, request=judgement.request, **rest,
    )  # fmt: skip


def _read(path: Path) -> list[Line]:
    """Returns the lines of the file, none where there is no file. Raises ConfigError for a file with any other line."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(bounded.read_text(path, REMEDY, 4 * bounded.MAX_BYTES).split("\n"), start=1):
        if not text.strip():
            continue
        value = bounded.parse_json(text, path, REMEDY, number, strict=False)
        try:
            lines.append(Line.model_validate(value))
            check_url(lines[-1].url, "url")
        except (ValidationError, ConfigError) as error:
            said = first_problem(error, Line, remedy="") if isinstance(error, ValidationError) else str(error)
            raise ConfigError(f"{path}: cannot read the ratings (line {number}: {said}): {REMEDY}") from error
    return lines
