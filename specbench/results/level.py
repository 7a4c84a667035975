"""How far a row is confirmed: its level, and two independent marks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specbench.results.row import Row

Name = Literal["stated", "recomputed"]


@dataclass(frozen=True)
class Rerun:
    """Independent runs of a row's configuration. `num_runs`: with the row's own. `agrees`: whether all pairs of them
    agree. `machines`, `operators`: how many; an operator is who signed a run, so that it is 0 for unsigned ones."""

    num_runs: int
    agrees: bool
    machines: int = 1
    operators: int = 0

    def __str__(self) -> str:
        return f"{self.num_runs} runs {'agree' if self.agrees else 'differ'}"


@dataclass(frozen=True)
class Level:
    """What was found of a row; no file states it.

    `name`: recomputed if every computed field was made again from the records and is equal; otherwise stated.
    `except_for`: fields that no records can confirm, such as fairness. `signed_by`: who signed the bundle that has the
    row, which says who, not that the numbers are true. `rerun`: other runs; None without any.
    """

    name: Name = "stated"
    except_for: tuple[str, ...] = ()
    signed_by: tuple[str, ...] = ()
    rerun: Rerun | None = None

    @property
    def marks(self) -> str:
        """Who signed it and how other runs agree; empty without both."""
        signed = f"signed by {', '.join(self.signed_by)}" if self.signed_by else ""
        return " · ".join(filter(None, [signed, str(self.rerun or "")]))

    def __str__(self) -> str:
        return " · ".join(filter(None, [self.name, self.marks]))

    def columns(self) -> dict[str, object]:
        """Returns the level as columns of a table."""
        return {
            "level": self.name, "level_except_for": ", ".join(self.except_for) or None,
            "signed_by": ", ".join(self.signed_by) or None, "num_runs": self.rerun.num_runs if self.rerun else None,
            "runs_agree": self.rerun.agrees if self.rerun else None,
        }  # fmt: skip


STATED = Level()
Levels = Mapping[str, Level]  # by the digest of a row's content, so that an edited copy of a row has none


def level_of(row: Row, levels: Levels) -> Level:
    """Returns the level of a row: stated, unless it was found in a bundle."""
    return levels.get(row.content_digest, STATED) if levels else STATED
