"""n-gram drafters beside the draft model, where data are scarce and where they are not (arXiv:2605.30580)."""

from collections.abc import Sequence

from .claims import FALLS, RISES, Claim
from .measuring import comparison, measure, write_held_out
from .trainings import count_bigrams
from .workplace import Workplace

POOR = "sw,bn,te,th"  # 0.05 to 0.14 % of the drafter's training rows are mgsm's in one of these
CLAIMED = {"acceptance_rate.mean": FALLS, "speedup.mean": RISES}
NOTES = (
    "`ngram`, which is shipped, counts up to five tokens, in rows of all tasks in which Swahili has 17 times the share "
    "that the draft model has learnt from; `bigrams` count two tokens, in up to 2,000 training rows of each of these "
    "languages, as the paper's do in monolingual text. Both draft 3 tokens, so that the draft model is measured with 3 "
    "as well (`sd-3`) as with its 5."
)


def claims(place: Workplace) -> list[Claim]:
    """In the four poor languages of mgsm, and in an invented one of which the draft model has seen much."""
    sd = place.method("sd-3", {"type": "model"}, num_draft_tokens=3)
    poor = bigrams(place, "mgsm", POOR)
    mgsm = measure(place, "poor", "mgsm", ["sd", sd, "ngram", poor], "sample", "--subset", POOR)
    rich = bigrams(place, "low_resource_mt", "x-demo")
    rows = write_held_out(place, "low_resource_mt", 64)
    demo = measure(place, "x-demo", "low_resource_mt", ["sd", sd, "ngram", rich], rows, "--subset", "x-demo")
    return [
        claim(place, mgsm, "mgsm", f"in {POOR}, which the draft model has hardly seen"),
        claim(place, demo, "low_resource_mt", "in x-demo, which is 5 % of the draft model's text and not scarce"),
    ]


def bigrams(place: Workplace, task: str, subsets: str) -> str:
    """A method that drafts with bigrams of training rows."""
    folder = count_bigrams(place, task, subsets)
    return place.method(f"bigrams-{task}".replace("_", "-"), {"type": "ngram", "path": folder}, num_draft_tokens=3)


def claim(place: Workplace, run: str, task: str, where: str) -> Claim:
    pairs: Sequence[tuple[str, str]] = [
        (before, after) for after in ("ngram", f"bigrams-{task}".replace("_", "-")) for before in ("sd", "sd-3")
    ]
    reports = {f"{before} → {after}": comparison(place, run, before, after) for before, after in pairs}
    return Claim(
        f"n-grams have a lower α and a higher speed-up than the draft model (arXiv:2605.30580), {where}",
        NOTES, reports, {name: CLAIMED for name in reports},
    )  # fmt: skip
