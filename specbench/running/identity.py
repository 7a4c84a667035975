"""The identity of a run: all settings except the choice of examples and the number of repeats."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.decoding.decoder import Decoder, DraftingDecoder
from specbench.decoding.drafters import Drafter
from specbench.running.compose import RoutedDecoder
from specbench.running.models import Models
from specbench.running.plan import Cell
from specbench.specs.catalogue import versioned_name
from specbench.specs.run import RunSpec
from specbench.tasks.sandbox import run as permission

Drafting = dict[str, str | None]  # name and revision


def run_identity(
    spec: RunSpec, cells: Sequence[Cell], models: Models, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings that all records of a folder must share."""
    drafters = {
        decoder.method.name: drafter_identity(decoder, models) for cell in cells[:1] for decoder in cell.decoders
    }
    codes = {
        decoder.method.name: decoder.code_revision
        for cell in cells[:1] for decoder in cell.decoders if decoder.method.decoder is not None
    }  # fmt: skip
    routes = {
        decoder.method.name: route_drafter_identities(decoder, models)
        for cell in cells[:1] for decoder in cell.decoders if isinstance(decoder, RoutedDecoder)
    }  # fmt: skip
    engines = {
        method.name: engine for method in spec.methods
        if (engine := models.engine(method)) != models.environment()["engine"]
    }  # fmt: skip
    revisions = {f"{cell.task.name}/{cell.subset}": cell.data.revision for cell in cells if cell.data.source == "hub"}
    return {
        "seed": spec.seed,
        "tasks": {task.name: versioned_name(task) for task in spec.tasks},
        "methods": {method.name: versioned_name(method) for method in spec.methods},
        "target": {"name": models.target.name, "revision": models.target.revision},
        "drafters": {method: found for method, found in drafters.items() if found["name"] is not None},
        **({"routes": routes} if routes else {}),
        **({"code": codes} if codes else {}),
        **({"engines": engines} if engines else {}),
        "data": {cell.task.name: cell.data.source for cell in cells},
        **({"data_revisions": revisions} if revisions else {}),
        "chat": spec.chat,
        **({"chat_template_args": spec.chat_template_args} if spec.chat_template_args else {}),
        **({"trust_remote_code": True} if spec.trust_remote_code else {}),
        **({"code_execution": True} if permission.allowed() else {}),  # answers have no scores without it
        **models.identity(),
        "environment": dict(environment),
    }


def drafter_identity(decoder: Decoder, models: Models) -> Drafting:
    """Returns name and revision of a method's draft model, or of its drafter if it has no model. For a method with
    routes, both values list all routes, each as "language value"."""
    if isinstance(decoder, RoutedDecoder):
        found = route_drafter_identities(decoder, models)
        return {
            "name": ", ".join(f"{route} {each['name']}" for route, each in found.items()),
            "revision": ", ".join(f"{route} {each['revision']}" for route, each in found.items() if each["revision"]),
        }
    drafter = decoder.drafter if isinstance(decoder, DraftingDecoder) else Drafter()
    holder = models.drafters.get(decoder.method.name, drafter)
    return {"name": holder.name, "revision": holder.revision}


def route_drafter_identities(decoder: RoutedDecoder, models: Models) -> dict[str, Drafting]:
    """Returns name and revision of the drafters by language. A drafter without a name, such as one that copies, is
    named by its type."""
    found = {}
    for name, route in decoder.routes.items():
        own = drafter_identity(route, models)
        found[name] = {**own, "name": own["name"] or route.method.drafter.type}
    return found
