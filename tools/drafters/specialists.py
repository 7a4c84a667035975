"""Drafters distilled on a task, or on raw text, beside the drafter as it was (arXiv:2605.30580)."""

from .claims import FALLS, RISES, Claim
from .measuring import comparison, measure, write_held_out
from .workplace import Workplace

SHIPPED = ("sd", "distill-task", "distill-general", "pretrain-finetune", "ngram")


def claim(place: Workplace) -> Claim:
    """The shipped drafters on translation and on stories."""
    translation = measure(place, "wmt", "wmt", SHIPPED, write_held_out(place, "wmt", 32))
    stories = measure(place, "story", "story", SHIPPED, write_held_out(place, "story", 24))
    reports = {
        f"{name}, untrained → {method}": comparison(place, run, "sd", method)
        for method in SHIPPED[1:]
        for name, run in (("wmt", translation), ("story", stories))
    }
    return Claim(
        "distillation on translations gains on translation and loses on stories (arXiv:2605.30580)",
        "wmt: ten directions, 32 held-out rows each, greedy. story: four languages, 24 held-out topics each, at "
        "temperature 1, top-k 100, top-p 0.9. `distill-task` has learnt the target's translations, `distill-general` "
        "raw web text and news (the paper's is about as good as the plain drafter on both tasks), `pretrain-finetune` "
        "German to English.",
        reports,
        {"wmt, untrained → distill-task": {"acceptance_rate.mean": RISES, "speedup.mean": RISES},
         "story, untrained → distill-task": {"acceptance_rate.mean": FALLS, "speedup.mean": FALLS}},
        ("cross_entropy.mean", "acceptance_rate.mean", "speedup.mean"),
    )  # fmt: skip
