"""What code outside this package may import: the contract with plug-ins, custom parts and decoders.

    from specbench.plugin import DRAFTERS, Drafter, PointMass, Proposal

Names here keep their meaning between versions, and a change of one is in the changelog. All other modules of specbench
are private: they may move without notice. `specbench` itself has what measures and compares (`run`, `compare`, …).

registries      DRAFTERS, DRAFT_LENGTHS, RULES, BRIDGES, SCORERS, READERS, LOGGERS: `@DRAFTERS.declare(provides=…)` says
                what a factory of an entry point makes; `register(name)` also names it, without an entry point
errors          ConfigError: a mistake of the user, one line, exit code 2. DrafterError: one of a drafter or rule
drafters        Drafter; LookUpDrafter (reads drafts from a text); ModelDrafter (asks a draft model)
draft lengths   AskedLength decides within a draft, by `wants_draw` and `wants_more`; DraftLength before it, by `limit`
proposals       Proposal, TreeProposal; their probabilities are a PointMass, DenseProbs or Distributions
rules           VerificationRule, which returns a Verification; at_tokens, residual and draw help to make it
sampling        Sampling: temperature, top-k and top-p of a run
scorers         Scorer, which returns a Score; PerAnswer makes one from a function; reference_texts; Metric declares
                the name, unit and meaning of a number that a scorer returns
decoders        LoadedModel: what an external decoder is given as its target and its drafter
servers         Engine, with EventContent and Counters: how a serving engine is detected, asked and read
loggers         RunLogger: receives the numbers of a run (`specbench run --log`)
models          model_source: the folder of an embedded model or of one of the hub
options         Annotated[int, Option(ge=1, description="…")]: bounds and help of an option. It is pydantic's Field.

A name is imported when it is first used, so that `import specbench.plugin` takes no time and a scorer needs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import Field as Option

    from specbench.core.errors import ConfigError, DrafterError
    from specbench.core.metric import Metric
    from specbench.core.registry import (
        BRIDGES,
        DRAFT_LENGTHS,
        DRAFTERS,
        LOGGERS,
        READERS,
        RULES,
        SCORERS,
        Registry,
    )
    from specbench.decoding.draft_length import AskedLength, DraftLength
    from specbench.decoding.drafters import Drafter, LookUpDrafter, ModelDrafter
    from specbench.decoding.proposal import PointMass, Proposal, TreeProposal, Verification, at_tokens
    from specbench.decoding.sampling import DenseProbs, Distributions, Sampling, draw, residual
    from specbench.decoding.verification import VerificationRule
    from specbench.integrations.external import LoadedModel
    from specbench.integrations.served.engine import Counters, Engine, EventContent
    from specbench.models.loading import model_source
    from specbench.running.events import RunLogger
    from specbench.tasks.scoring import PerAnswer, Score, Scorer, reference_texts

__all__ = [
    "BRIDGES", "DRAFTERS", "DRAFT_LENGTHS", "LOGGERS", "READERS", "RULES", "SCORERS", "AskedLength", "ConfigError",
    "Counters", "DenseProbs", "Distributions", "DraftLength", "Drafter", "DrafterError", "Engine", "EventContent",
    "LoadedModel", "LookUpDrafter", "Metric", "ModelDrafter", "Option", "PerAnswer", "PointMass", "Proposal",
    "Registry", "RunLogger", "Sampling", "Score", "Scorer", "TreeProposal", "Verification", "VerificationRule",
    "at_tokens", "draw", "model_source", "reference_texts", "residual",
]  # fmt: skip

_MODULES = {
    "specbench.core.errors": ("ConfigError", "DrafterError"),
    "specbench.core.metric": ("Metric",),
    "specbench.core.registry": (
        "BRIDGES",
        "DRAFTERS",
        "DRAFT_LENGTHS",
        "LOGGERS",
        "READERS",
        "RULES",
        "SCORERS",
        "Registry",
    ),
    "specbench.decoding.draft_length": ("AskedLength", "DraftLength"),
    "specbench.decoding.drafters": ("Drafter", "LookUpDrafter", "ModelDrafter"),
    "specbench.decoding.proposal": ("PointMass", "Proposal", "TreeProposal", "Verification", "at_tokens"),
    "specbench.decoding.sampling": ("DenseProbs", "Distributions", "Sampling", "draw", "residual"),
    "specbench.decoding.verification": ("VerificationRule",),
    "specbench.integrations.external": ("LoadedModel",),
    "specbench.integrations.served.engine": ("Counters", "Engine", "EventContent"),
    "specbench.models.loading": ("model_source",),
    "specbench.running.events": ("RunLogger",),
    "specbench.tasks.scoring": ("PerAnswer", "Score", "Scorer", "reference_texts"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "Option":
        return import_module("pydantic").Field
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'specbench.plugin' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
