"""The ratings in the folder of a run, judgements.jsonl: they stay with the answers that they are of."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specbench import bounded
from specbench.console import say
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.judge.cache import Reply, digest
from specbench.judge.outcomes import Judgement, with_judgements
from specbench.judge.requests import JudgementKey, questions_of, requests_of
from specbench.judge.settings import JudgeSettings
from specbench.running.records import Record, record_key

if TYPE_CHECKING:
    from specbench.running.plan import Cell

FILE = "judgements.jsonl"
REMEDY = "delete the file, and give --judge again for new ones (what was paid for is in the cache)"
KEY = ("task", "subset", "example", "repeat", "turn")  # of a record
Line = dict[str, Any]
Rated = tuple[list[Record], str | None]  # the records, and the signature of the judge whose ratings they have


def with_recorded(records: list[Record], cells: "Sequence[Cell]", folder: Path, console: Console) -> Rated:
    """The records with the ratings that judgements.jsonl has for the very requests that they would be; a line says so.
    Of several judges the last one counts.

    Raises ConfigError for a file that is damaged.
    """
    path = folder / FILE
    lines = _read(path)
    if not lines:
        return records, None
    settings = JudgeSettings(lines[-1]["judge"], lines[-1]["url"])
    scores = {line["request"]: line["score"] for line in lines}
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
    found = {}
    for line in _read(folder / FILE):
        if JudgeSettings(line["judge"], line["url"]).signature == signature:
            found[tuple(line[name] for name in KEY), line["method"]] = line["score"]
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
    replaced = {_identity(line) for line in new}
    kept = [line for line in _read(path) if _identity(line) not in replaced]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept + new)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the judgements ({error.strerror or error})") from error


def _line(key: tuple[Any, ...], method: str, judgement: Judgement, settings: JudgeSettings) -> Line:
    reply = judgement.reply or Reply("", None, None)
    return {
        **dict(zip(KEY, key, strict=True)), "method": method, "judge": settings.model, "url": settings.url,
        "score": judgement.score, "problem": judgement.problem, "reply": judgement.reply and reply.text,
        "prompt_tokens": reply.num_prompt_tokens, "reply_tokens": reply.num_reply_tokens,
        "request": judgement.request, "cached": judgement.was_cached,
        "cost_usd": settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens),
    }  # fmt: skip


def _identity(line: Line) -> tuple[Any, ...]:
    return tuple(line[name] for name in (*KEY, "method", "judge", "url"))


def _read(path: Path) -> list[Line]:
    """The lines of the file; none where there is no file."""
    if not path.exists():
        return []
    text = bounded.read_text(path, REMEDY, 4 * bounded.MAX_BYTES).split("\n")
    lines = [
        bounded.parse_json(line, path, REMEDY, number, strict=False)
        for number, line in enumerate(text, 1)
        if line.strip()
    ]
    try:
        for line in lines:
            hash((_identity(line), line["request"]))
            line["score"] = None if line["score"] is None else float(line["score"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot read the ratings ({type(error).__name__}: {error}): {REMEDY}") from error
    return lines
