"""A row → what drafted, in words."""

from specbench.results.row import Row

SYNTHETIC = "synthetic"  # the drafter whose acceptance rate is an option


def drafter_of(row: Row) -> str:
    """The drafter by name and revision, and what the draft model that the method itself names has to do with it."""
    if "routes" in row.options:
        told = "by the language of the task" if row.options["language"] == "given" else "by the language of the prompt"
        return f"{told}: {row.drafter}{_own(row)}"
    return f"{model_name(row.drafter, row.drafter_revision)}{_own(row)}" if row.drafter else drafter_kind(row)


def _own(row: Row) -> str:
    parts = [part.get("drafter") or {} for part in row.options.get("routes", {"": row.options}).values()]
    replaced = [drafter["replaces"] for drafter in parts if "replaces" in drafter]
    if replaced:
        return f" in the place of the method's own {', '.join(replaced)}"
    return ", the method's own" if any(drafter.get("checkpoint") for drafter in parts) else ""


def draft_length(row: Row) -> str:
    """What the drafter does in every query, or in how many it does all."""
    if "drafter_share" in row.options:
        return f"alone with {row.options['drafter_share']:.0%} of the queries, drawn at random"
    if decodes_alone(row):
        return "the target decodes alone" if row.lossless else "which decodes alone"
    if "routes" in row.options:
        lengths = [f"{name} {route['num_draft_tokens']}" for name, route in row.options["routes"].items()]
        return f"draft tokens {', '.join(lengths)}"
    tokens = f"{row.num_draft_tokens} draft token{'s' * (row.num_draft_tokens != 1)}"
    bridge = row.options.get("bridge", "shared")
    name = bridge["type"] if isinstance(bridge, dict) else bridge
    return tokens if name == "shared" else f"{tokens}, bridge {name}"


def decodes_alone(row: Row) -> bool:
    """Whether nothing is drafted, so that the rule judges nothing."""
    return row.num_draft_tokens == 0 and "decoder" not in row.options


def drafter_kind(row: Row) -> str:
    """The kind of drafter; external code without a draft model has one of its own, or none."""
    if "decoder" in row.options:
        return "its own"
    return str(row.options.get("drafter", {}).get("type", "none"))


def model_name(name: str, revision: str | None) -> str:
    return f"{name} ({revision.removeprefix('local-')[:12]})" if revision else name


def prescribed(row: Row) -> str | None:
    """Why a row stands in no ranking: its acceptance rate was set, by a drafter that knows the target's tokens. None
    for all others."""
    parts = row.options.get("routes", {"": row.options}).values()
    rates = [part["drafter"]["acceptance"] for part in parts if (part.get("drafter") or {}).get("type") == SYNTHETIC]
    if not rates:
        return None
    return f"its α is prescribed ({', '.join(f'{rate:g}' for rate in rates)}), not a drafter's"
