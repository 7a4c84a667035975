"""What a user asked for, as it was said."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.specs.run_options import RunOptions
from specbench.tasks.judge.judging import Judging


@dataclass(frozen=True)
class Request:
    """A run as a user asks for it; nothing is checked yet. `command`: the command line, which rows keep."""

    tasks: Sequence[str]
    methods: Sequence[str]
    options: RunOptions
    command: str
    output: Path | None = None
    leaderboard: Path | None = None
    plot: Path | None = None
    lm_eval_include: Path | None = None
    judging: Judging | None = None
