"""What a user asked for, as it was said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.tasks.judge.judging import Judging


@dataclass(frozen=True)
class Request:
    """What a user asked for, as it was said; `options` are the fields of RunSpec that are taken over as they are."""

    tasks: Sequence[str]
    methods: Sequence[str]
    subsets: Sequence[str] | None
    overrides: Sequence[str]
    target: str | None
    drafter: str | None
    threads: int | None
    output: Path | None
    leaderboard: Path | None
    plot: Path | None
    command: str
    options: Mapping[str, Any]
    lm_eval_include: Path | None = None
    judging: Judging | None = None
