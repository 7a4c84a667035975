"""The declaration of a metric, of built-in scorers and of plug-ins: what tables, pages and help say about it."""

from dataclasses import dataclass, replace
from typing import Self

Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
PERCENT: Bounds = (0.0, 100.0)


@dataclass(frozen=True)
class Metric:
    """A metric of a row. A scorer declares its metrics where it is registered:

        @SCORERS.declare(metrics=(Metric("polite", "share", "answers that say please", label="polite %", factor=100),))

    `unit`: of its values. `formula`, `meaning`: how it is computed, and what else a reader must know. `label`: its
    heading in tables; empty: its name. `bounds`: the least and the greatest value, from which intervals of scores
    benefit; None if unknown. `factor`, `digits`: of the printed value.
    """

    name: str
    unit: str
    meaning: str
    formula: str = ""
    label: str = ""
    bounds: Bounds | None = None
    factor: float = 1.0
    digits: int = 3
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @classmethod
    def share(cls, name: str, label: str, meaning: str, formula: str = "", *, lower_is_better: bool = False) -> Self:
        """Returns the declaration of a score between 0 and 1 that is printed in percent."""
        return cls(name, "share", meaning, formula, f"{label} %", SHARE, 100.0, 1, lower_is_better)

    @property
    def explanation(self) -> str:
        return "; ".join(filter(None, (self.formula, self.meaning)))

    @property
    def most(self) -> float:
        """The largest possible difference of two values; 1 if unknown."""
        return 1.0 if self.bounds is None else self.bounds[1] - self.bounds[0]

    def numbered(self, number: str) -> "Metric":
        """Returns the metric NAME@number of the declared NAME@k."""
        return replace(self, name=self.name.replace("@k", number), label=self.label.replace("@k", number))
