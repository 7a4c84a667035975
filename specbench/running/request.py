"""A user's request for a run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.core.environment import EMBEDDED
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunOptions

if TYPE_CHECKING:
    from specbench.tasks.judge.judgements import Judging


@dataclass(frozen=True)
class Request:
    """A user's request for a run before it is checked. `command`: the command line, which rows keep. `own_methods`: the
    specifications of names in `methods` that are neither known methods nor files."""

    tasks: Sequence[str]
    methods: Sequence[str]
    options: RunOptions
    command: str
    output: Path | None = None
    leaderboard: Path | None = None
    plot: Path | None = None
    lm_eval_include: Path | None = None
    servers: Path | None = None
    judging: "Judging | None" = None
    own_methods: Sequence[MethodSpec] = ()
    loggers: Sequence[str] = ()

    def settings(self) -> dict[str, Any]:
        """Returns the request as rows keep it: tasks, methods, and the options that differ from their defaults. Command
        lines with the same meaning have the same settings."""
        found: dict[str, Any] = {"task": ",".join(self.tasks)}
        if self.methods or self.servers is None:
            found["method"] = ",".join(self.methods)
        if self.servers is not None:
            found["servers"] = str(self.servers)
        for field in fields(self.options):
            value = getattr(self.options, field.name)
            if value != field.default:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        if (self.options.target or EMBEDDED).startswith(EMBEDDED):
            found.setdefault("threads", 1)
        return found
