"""A row's numbers → what a reader must know before its speed-up is trusted, each with its figure and what to do."""

import math

from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.captions import num_timed, rests_on_few
from specbench.results.row import Row, Warning

WIDE = 1.25  # end ÷ start of an interval that is too wide to tell a method from one a quarter faster


def warnings_of(row: Row) -> tuple[Warning, ...]:
    """The warnings of a row, by what its metrics say."""
    found = (wide_interval(row), few_prompts(row))
    return tuple(each for each in found if each is not None)


def wide_interval(row: Row) -> Warning | None:
    """An interval of the speed-up whose ends are more than WIDE apart. Widths on the log scale fall with the root of
    the number of prompts, so that (width ÷ wanted width)² as many are needed."""
    speedup = row.metrics.get("speedup", Metric())
    if not speedup.low or not speedup.high or speedup.high / speedup.low <= WIDE:
        return None
    ratio, prompts = speedup.high / speedup.low, num_timed(row)
    needed = math.ceil(prompts * (math.log(ratio) / math.log(WIDE)) ** 2)
    text = (
        f"the speed-up's interval ends are {ratio:.2f} times apart ({speedup.low:.2f} to {speedup.high:.2f}): measure "
        f"about {needed} prompts instead of {prompts} to bring that under {WIDE}, or on a machine with nothing beside"
    )
    return Warning(code="wide_interval", text=text)


def few_prompts(row: Row) -> Warning | None:
    """A speed-up of so few prompts that its interval may be too narrow, or that it has none."""
    if not rests_on_few(row):
        return None
    text = (
        f"the speed-up's interval rests on {num_timed(row)} prompts and may be too narrow: measure {SMALL_SAMPLE} or "
        "more"
    )
    return Warning(code="few_prompts", text=text)
