"""Where the time of a row goes: milliseconds per emitted token, of the method and of its baseline."""

from dataclasses import dataclass

from specbench.results.breakdown import per_token
from specbench.results.row import Row

NAMES = {
    "draft": ("draft", "passes of the drafter"),
    "verify": ("verify", "passes of the target"),
    "overhead": ("overhead", "rules, sampling, tokenizers, Python"),
    "rule and sampling": ("rule", "verification and sampling"),
    "tokenizer": ("tokenizer", "text and tokens"),
    "other": ("other", "what is left: Python, bookkeeping"),
}
OF_OVERHEAD = ("rule and sampling", "tokenizer", "other")


@dataclass(frozen=True)
class Part:
    name: str
    meaning: str
    milliseconds: float


@dataclass(frozen=True)
class Breakdown:
    label: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> float:
        return sum(part.milliseconds for part in self.parts)


def breakdown_of(row: Row, label: str) -> Breakdown | None:
    """Of a decoded token after the first, so that the sum is what tok/s says; rows of earlier formats know of their
    overhead no parts. None where the row does not know its passes."""
    spent = per_token(row)
    whole, draft, verify = spent["all"], spent["draft"], spent["verify"]
    if whole is None or draft is None or verify is None:
        return None
    parts = {"draft": draft, "verify": verify}
    known = {name: found for name in OF_OVERHEAD if (found := spent[name]) is not None}
    parts |= known if len(known) == len(OF_OVERHEAD) else {"overhead": max(0.0, whole - draft - verify)}
    return Breakdown(label, tuple(Part(*NAMES[name], milliseconds) for name, milliseconds in parts.items()))


def beside_baseline(row: Row, baseline: Row | None) -> list[Breakdown]:
    """The baseline's first, where there is one, and the row's own."""
    found = [] if baseline is None or baseline is row else [breakdown_of(baseline, "ar")]
    found.append(breakdown_of(row, row.method.partition("@")[0]))
    return [each for each in found if each is not None]
