"""Small runs of the embedded family."""

from rich.console import Console

from specbench.core.environment import PACKAGE
from specbench.running.execute import execute
from specbench.running.request import Request as RunRequest
from specbench.specs.run_options import RunOptions

TARGET, DRAFTER = "embedded:drafter", "embedded:drafter-scdf"  # one tokenizer, one layer each
NGRAM = PACKAGE / "embedded" / "weights" / "ngram"


NAMES = ("en", "de", "sw")


def run_into(
    folder, methods="sd,ngram", subsets=NAMES, drafter=None, limit=3, task="mgsm", leaderboard=None, target=TARGET,
    seed=0, temperature=None,
):  # fmt: skip
    """A run of the bundled rows; without `drafter`, TARGET has DRAFTER."""
    is_default, asked = target == TARGET, methods.split(",")
    paths = {"ngram": "drafter.path", "routed": "routes.sw.drafter.path"}
    overrides = [f"{paths[each]}={NGRAM}" for each in asked if each in paths and is_default]
    overrides += [] if temperature is None else [f"generation.temperature={temperature}"]
    request = RunRequest(
        tasks=[task], methods=asked, command=f"specbench run --task {task}", output=folder,
        leaderboard=leaderboard,
        options=RunOptions(subsets=tuple(subsets), drafter=drafter or (DRAFTER if is_default else None), target=target,
                           threads=1, limit=limit, data="sample", seed=seed,
                           overrides=("generation.max_new_tokens=6", *overrides)),
    )  # fmt: skip
    return execute(request, Console(quiet=True))
