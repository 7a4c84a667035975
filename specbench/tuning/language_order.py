"""The languages of a task in the order in which the drafter knows them, with the speed-up of each.

arXiv:2510.02128, section 8.2 and figure 6: languages that a drafter rarely writes on an empty prompt are sped up less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from specbench.console import say
from specbench.errors import ConfigError
from specbench.fairness.spread import spearman
from specbench.representation import Representation, Share, representation
from specbench.results import plots
from specbench.results.row import Row
from specbench.scoring.language import known
from specbench.specs import RunSpec
from specbench.tuning.formats import add_columns, conditions, names, new_table, number_of, with_interval
from specbench.tuning.trials import Measured, Trials

NUM_TEXTS, MAX_NEW_TOKENS = 1000, 64
SHOWN = ("acceptance_rate", "mean_acceptance_length", "speedup", "speedup_expected", "cost_ratio")


@dataclass(frozen=True)
class Order:
    """The rows of a method from the best represented language to the least, each with its share of the texts; those
    whose language cannot be identified come last, with no share."""

    run: Measured
    texts: Representation
    rows: Sequence[tuple[Row, Share | None]]

    def correlation(self, metric: str) -> float | None:
        """Spearman's ρ between the share of a language and a metric of it; None for too few, or all the same."""
        pairs = [
            (share.share, value) for row, share in self.rows
            if share is not None and (value := row.metrics[metric].value) is not None
        ]  # fmt: skip
        shares, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        found = float(spearman(shares, values))
        return found if np.isfinite(found) else None

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.run.folder), "num_texts": self.texts.num_texts, "num_unknown": self.texts.num_unknown,
            "drafter": self.texts.model,
            "languages": [
                {"subset": row.subset, "language": row.language, "share": share and share.model_dump(),
                 "metrics": {name: row.metrics[name].model_dump() for name in SHOWN}}
                for row, share in self.rows
            ],
            "spearman": {name: self.correlation(name) for name in ("acceptance_rate", "speedup")},
        }  # fmt: skip


def check(spec: RunSpec) -> None:
    """Raise ConfigError for a method that no texts can be sampled from, or a task without several languages."""
    method = spec.methods[1]
    if method.routes is not None or not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model or with several, so there is no drafter to sample texts "
            "from: choose a method with one draft model, such as sd"
        )
    languages = {task.subset(subset).language for task, subset in spec.cells()} - {None}
    if len(languages) < 2:
        raise ConfigError(
            f"--task {spec.tasks[0].name}: its chosen subsets are of {len(languages)} language: choose a task or "
            "subsets of several"
        )


def measure(trials: Trials, num_texts: int) -> Order:
    """One run over all subsets, and texts of the drafter on an empty prompt."""
    run = trials.run("language-order", [trials.base])
    rows = [row for row in run.rows if row.method.startswith(f"{trials.base.name}@") and row.subset != "all"]
    drafter = trials.models.drafters[trials.base.name]
    say(trials.console, f"sampling {num_texts} texts from {drafter.name}")
    texts = representation(
        drafter, num_texts, max_new_tokens=MAX_NEW_TOKENS, temperature=1.0, seed=trials.spec.seed,
        languages=[row.language for row in rows if row.language],
    )  # fmt: skip
    return Order(run, texts, ordered(rows, texts.languages))


def ordered(rows: Sequence[Row], shares: Sequence[Share]) -> list[tuple[Row, Share | None]]:
    """Rows by the rank of their language; one that is in none of the texts is behind those that are, with share 0."""
    by_code = {share.language: share for share in shares}
    last = len(shares) + 1
    found = []
    for row in rows:
        code = known(row.language) if row.language else None
        absent = Share(rank=last, language=code, num_texts=0, share=0.0, low=0.0, high=0.0) if code else None
        found.append((row, by_code.get(code, absent) if code else None))
    return sorted(found, key=lambda pair: last + 1 if pair[1] is None else pair[1].rank)


def table(trials: Trials, order: Order) -> Table:
    """A line for each subset, the best represented language first."""
    found = {name: order.correlation(name) for name in ("acceptance_rate", "speedup")}
    told = ", ".join(
        f"{'α' if name == 'acceptance_rate' else 'speed-up'} {'–' if rho is None else f'{rho:z.2f}'}"
        for name, rho in found.items()
    )
    made = new_table(
        f"{names(trials)}: languages as the drafter knows them",
        f"Share of {order.texts.num_texts} texts that the drafter writes on an empty prompt, language by lingua. "
        f"Spearman's ρ of the share with {told}.\n{conditions(trials)}",
    )
    add_columns(made, "rank", "subset", "share %", "α\n95 % interval", "speed-up\n95 % interval", "expected\nspeed-up")
    for row, share in order.rows:
        made.add_row(
            "–" if share is None else str(share.rank), row.subset, "–" if share is None else f"{100 * share.share:.1f}",
            with_interval(row.metrics["acceptance_rate"], 3), with_interval(row.metrics["speedup"], 2),
            number_of(row.metrics["speedup_expected"], 2),
        )  # fmt: skip
    return made


def draw(order: Order, path: Path) -> None:
    """Speed-up with its interval and α, the best represented language first."""
    plots.draw([[row for row, _ in order.rows]], path)
