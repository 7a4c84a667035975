"""Ratings that the folder of a run holds already: they stay with the answers that they are of."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.errors import ConfigError
from specbench.judge.cache import digest
from specbench.judge.outcomes import Judgement, with_judgements
from specbench.judge.requests import questions_of, requests_of
from specbench.judge.settings import JudgeSettings
from specbench.running.plan import Cell
from specbench.running.progress import say
from specbench.running.records import Record

FILE = "judgements.jsonl"
Rated = tuple[list[Record], str | None]  # the records, and the signature of the judge whose ratings they have


def with_recorded(records: list[Record], cells: Sequence[Cell], folder: Path, console: Console) -> Rated:
    """The records with the ratings that judgements.jsonl has for the very requests that they would be; a line says so.

    Raises ConfigError for a file that is damaged.
    """
    path = folder / FILE
    scores, settings = _read(path)
    if settings is None:
        return records, None
    names = {key: digest(each) for key, each in requests_of(records, questions_of(cells), settings).items()}
    found = {key: Judgement(scores.get(name), None, None, name, True) for key, name in names.items()}
    num_rated = sum(each.score is not None for each in found.values())
    if not num_rated:
        return records, None
    rest = "" if num_rated == len(found) else f"; --judge {settings.model} rates the others"
    say(console, f"{num_rated} of {len(found)} answers have ratings of {settings.model} from {path}{rest}")
    return with_judgements(records, found), settings.signature


def _read(path: Path) -> tuple[dict[str, float | None], JudgeSettings | None]:
    """Score by request, and the judge that gave them; nothing where there is no file."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        scores = {str(line["request"]): None if line["score"] is None else float(line["score"]) for line in lines}
        judges = {(line["judge"], line["url"]) for line in lines}
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot read the ratings ({type(error).__name__}: {error}): delete the file, and give --judge "
            "again for new ones (what was paid for is in the cache)"
        ) from error
    return scores, JudgeSettings(*judges.pop()) if len(judges) == 1 else None
