"""What a run is of: everything but which examples and how many repeats are asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import Drafter
from specbench.running.compose import RoutedDecoder
from specbench.running.models import Models
from specbench.running.plan import Cell
from specbench.specs.run import RunSpec, named
from specbench.tasks.sandbox import run as permission

Drafting = dict[str, str | None]  # name and revision


def run_identity(
    spec: RunSpec, cells: Sequence[Cell], models: Models, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """What all records of a folder must share: everything but which examples and how many repeats are asked for."""
    drafters = {
        decoder.method.name: drafter_identity(decoder, models) for cell in cells[:1] for decoder in cell.decoders
    }
    codes = {
        decoder.method.name: decoder.code_revision
        for cell in cells[:1] for decoder in cell.decoders if decoder.method.decoder is not None
    }  # fmt: skip
    routes = {
        decoder.method.name: route_identities(decoder, models)
        for cell in cells[:1] for decoder in cell.decoders if isinstance(decoder, RoutedDecoder)
    }  # fmt: skip
    engines = {
        method.name: engine for method in spec.methods
        if (engine := models.engine(method)) != models.target.engine
    }  # fmt: skip
    revisions = {f"{cell.task.name}/{cell.subset}": cell.data.revision for cell in cells if cell.data.source == "hub"}
    return {
        "seed": spec.seed,
        "tasks": {task.name: named(task) for task in spec.tasks},
        "methods": {method.name: named(method) for method in spec.methods},
        "target": {"name": models.target.name, "revision": models.target.revision},
        "drafters": {method: found for method, found in drafters.items() if found["name"] is not None},
        **({"routes": routes} if routes else {}),
        **({"code": codes} if codes else {}),
        **({"engines": engines} if engines else {}),
        "data": {cell.task.name: cell.data.source for cell in cells},
        **({"data_revisions": revisions} if revisions else {}),
        "chat": spec.chat,
        **({"code_execution": True} if permission.allowed() else {}),  # without it answers have no scores
        "environment": dict(environment),
    }


def drafter_identity(decoder: Decoder, models: Models) -> Drafting:
    """Name and revision of what a method drafts with: a model, or a drafter that is a thing of its own; of a method
    with routes those of them all, each behind its language."""
    if isinstance(decoder, RoutedDecoder):
        found = route_identities(decoder, models)
        return {
            "name": ", ".join(f"{route} {each['name']}" for route, each in found.items()),
            "revision": ", ".join(f"{route} {each['revision']}" for route, each in found.items() if each["revision"]),
        }
    drafter = decoder.drafter if isinstance(decoder, DraftingDecoder) else Drafter()
    holder = models.drafters.get(decoder.method.name, drafter)
    return {"name": holder.name, "revision": holder.revision}


def route_identities(decoder: RoutedDecoder, models: Models) -> dict[str, Drafting]:
    """By language; a drafter without a name (one that copies, or none) is called by its type."""
    found = {}
    for name, route in decoder.routes.items():
        own = drafter_identity(route, models)
        found[name] = {**own, "name": own["name"] or route.method.drafter.type}
    return found
