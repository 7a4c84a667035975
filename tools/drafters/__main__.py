"""Trains drafters for the embedded target, measures them beside the shipped ones, and writes docs/measured/drafters.md.

This takes hours. The work folder, `runs/drafters-<digest of the shipped weights>` unless --work names another, keeps
every part that is done, and the same command continues there.
"""

import argparse
import shutil
from pathlib import Path

import torch
import transformers

from specbench.core.files import write_atomically
from specbench.core.values import json_digest
from specbench.embedded import read_manifest
from tools.commands import ROOT

from . import low_resource, scaling, specialists
from .document import Findings, page
from .equality import paired
from .measuring import fairness, measure
from .trainings import RATES, SEEDS, WEIGHTINGS, distil, train_all
from .workplace import Workplace, checkpoint

OUTPUT = ROOT / "docs" / "measured"
PICTURE = "drafters-languages.png"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.drafters", description=__doc__)
    digest = json_digest(read_manifest())
    parser.add_argument("--work", help="work folder", type=Path, default=Path("runs") / f"drafters-{digest}")
    place = Workplace(parser.parse_args().work.resolve())
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    place.folder.mkdir(parents=True, exist_ok=True)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    found = findings(place)
    shutil.copyfile(place.path(PICTURE), OUTPUT / PICTURE)
    scaling.draw(found.scaling, OUTPUT / "drafters-tokens.png")
    write_atomically(OUTPUT / "drafters.md", page(found))


def findings(place: Workplace) -> Findings:
    """Trains and measures everything."""
    trained = train_all(place)
    methods = {f"{w}-seed{seed}": place.method(f"{w}-seed{seed}", checkpoint(trained.folders[w][seed]))
               for w in WEIGHTINGS for seed in SEEDS}  # fmt: skip
    methods["distilled"] = place.method("distilled", checkpoint(distil(place)))
    run = measure(place, "mgsm", "mgsm", ["sd", "scdf", "ngram", "routed", *methods.values()], "sample")
    columns = {"untrained": "sd", "equal weights": "equal-seed0", "s-CDF": "corrective-seed0",
               "distilled": "distilled", "n-gram": "ngram", "routed": "routed"}  # fmt: skip
    drafters = [f"{run}:{method}" for method in columns.values()]
    languages = fairness(place, "languages", *drafters, "--plot", PICTURE)
    seeds = fairness(place, "seeds", f"{run}:sd", *(f"{run}:{w}-seed{seed}" for w in WEIGHTINGS for seed in SEEDS))
    words = [word for w in WEIGHTINGS for rate in RATES for word in ("--drafter", f"trained/{w}-{rate}-seed0")]
    rates = fairness(place, "rates", f"{run}:sd", *words)
    claims = [paired(place, run), specialists.claim(place), *low_resource.claims(place)]
    return Findings(
        trained, languages, columns, seeds, rates, claims, scaling.scaling(place), place.path(run), place.commands
    )


if __name__ == "__main__":
    main()
