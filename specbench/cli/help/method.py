"""The help of a method: components, losslessness, needs, presets and commands, and its draft tree, drawn as text."""

import inspect
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specbench.cli.help import Parameter, parameters
from specbench.core.environment import EMBEDDED
from specbench.core.values import depths
from specbench.decoding.tree_shape import TreeShape, best_shape
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.method import MethodSpec, proposes_trees
from specbench.specs.run import embedded_drafter, own_drafter

EXAMPLE = (0.5, 0.2, 0.1)  # acceptance rates by rank in the example of a growing tree
MAX_LINES = 24  # of a drawing; more paths are cut
NEVER_VERIFIED = -1  # rank of a token that the target reads only for the drafter, and that cannot be accepted
TASK = "mgsm"  # the embedded models can answer its sample rows
Lossless = Literal["yes", "no", "claimed", "unknown"]


class Part(BaseModel):
    """A component of a method: its role, its name and the docstring of its code."""

    role: str
    name: str
    text: str


class Preset(BaseModel):
    name: str
    title: str


class TreeHelp(BaseModel):
    """The tree and the step of a method.

    `is_example`: whether the tree grows as it is drafted, so that the drawing is one of many. `nodes_by_depth`: numbers
    of draft tokens that can be accepted. `num_own`: number of tokens that cannot.
    """

    is_example: bool
    nodes_by_depth: list[int]
    num_own: int
    drawing: list[str]
    step: list[str]


class MethodHelp(BaseModel):
    """The help of a method. `embedded`: the models of a run without --target. `commands`: shell commands."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    kind: Literal["method"] = "method"
    name: str
    version: int
    title: str
    paper: str | None
    parts: list[Part]
    lossless: Lossless
    lossless_reason: str
    needs: list[str]
    embedded: list[str]
    tree: TreeHelp | None = None
    parameters: list[Parameter]
    sweep: dict[str, list[Any]]
    preset_of: str | None
    presets: list[Preset]
    commands: list[str]


@cache
def known_methods() -> list[MethodSpec]:
    return [load_method(name) for name in method_names()]


def method_help(method: MethodSpec, call: str) -> MethodHelp:
    """Returns the help of a method. `call`: the name or path given by the user.

    Raises ConfigError if its code cannot be imported.
    """
    method_parameters = parameters(method)
    lossless, reason = verdict(method)
    return MethodHelp(
        name=method.name, version=method.version, title=method.title, paper=method.paper, parts=parts(method),
        lossless=lossless, lossless_reason=reason, needs=needs(method), embedded=embedded(method),
        tree=tree_help(method), parameters=method_parameters, sweep=method.sweep,
        preset_of=next((other.name for other in known_methods() if is_preset(method, other)), None),
        presets=[Preset(name=other.name, title=other.title) for other in known_methods() if is_preset(other, method)],
        commands=commands(method, call, method_parameters),
    )  # fmt: skip


def parts(method: MethodSpec) -> list[Part]:
    """Returns the components: drafter, verification rule, vocabulary bridge; or the external decoder."""
    if method.decoder is not None:
        from specbench.integrations.external import load_entry

        return [Part(role="decoder", name=method.decoder.entry, text=prose(load_entry(method.decoder.entry).call))]
    if method.routes is not None:  # the drafters of all routes first, then what their parts have in common
        components = []
        for part in method.parts:
            drafter, *others = parts(part)
            components.append(drafter.model_copy(update={"role": f"drafter of {part.name.partition('/')[2]}"}))
            components += [other for other in others if other not in components]
        return sorted(components, key=lambda part: part.role in ("verification rule", "vocabulary bridge"))
    components = [Part(role="drafter", name=method.drafter.name, text=prose(method.drafter.factory))]
    if method.drafter.type != "none":
        components.append(
            Part(role="verification rule", name=method.verification.name, text=prose(method.verification.factory))
        )
    if method.needs_drafter and method.decodes_with == "target":
        components.append(Part(role="vocabulary bridge", name=method.bridge.name, text=prose(method.bridge.factory)))
    return components


def prose(code: Any) -> str:
    return inspect.cleandoc(code.__doc__ or "")


def verdict(method: MethodSpec) -> tuple[Lossless, str]:
    """Returns whether the output follows the target's distribution, and the reason."""
    if method.decoder is not None:
        if method.decoder.claims_lossless:
            return "claimed", "its file claims it (decoder.claims_lossless); `specbench audit` tests it"
        return "unknown", "its file does not claim it; `specbench audit` tests it"
    if method.decodes_with == "drafter":
        return "no", "the drafter decodes alone, without the target"
    if method.decodes_with == "random":
        return "no", "the drafter decodes a share of the queries alone"
    rule = f"the verification rule '{method.verification.rule}'"
    if method.drafter.type == "none":
        return "yes", "the target decodes alone"
    if method.lossless:
        return "yes", f"{rule} keeps the target's distribution for any draft"
    return "no", f"{rule} does not keep the target's distribution"


def needs(method: MethodSpec) -> list[str]:
    """Returns the models that a method needs, and the other needs of its drafters."""
    names = list(dict.fromkeys(part.checkpoint for part in method.parts if part.checkpoint))
    is_embedded = any(name.startswith(EMBEDDED) for name in names)
    note = "; with a target other than the embedded one, give --drafter" if is_embedded else ""
    own = f" (its own: {', '.join(names)}{note})" if names else ""
    if not method.needs_drafter:
        drafter = "no draft model"
    elif method.same_vocabulary:
        drafter = "a draft model with the target's vocabulary" + own
    elif method.decodes_with == "drafter":
        drafter = "a draft model, with any vocabulary"
    else:
        drafter = "a draft model, whose vocabulary may differ from the target's" + own
    return ["a target model", drafter, *other_needs(method)]


def other_needs(method: MethodSpec) -> list[str]:
    """Returns what a method's drafters need besides models, such as a head or a datastore."""
    declared = [part.drafter.needs for part in method.parts if part.decoder is None]
    return list(dict.fromkeys(filter(None, declared)))


def embedded(method: MethodSpec) -> list[str]:
    """Returns the embedded models that a run uses by default, or none if the method cannot run on them."""
    if not all(part.drafter.features.embedded for part in method.parts if part.decoder is None):
        return []
    bridge = method.decoder.bridge_type if method.decoder is not None else method.bridge.type
    target = f"{EMBEDDED}target"
    drafters = [own_drafter(part, target) or embedded_drafter(bridge) for part in method.parts if part.needs_drafter]
    return [target, *dict.fromkeys(drafters)]


def is_preset(method: MethodSpec, other: MethodSpec) -> bool:
    """Returns whether a method has the components of another, and its name with a hyphen and a suffix."""
    own, others = (
        (each.decodes_with, each.decoder and each.decoder.entry, each.drafter.name, each.verification.name,
         each.bridge.name)
        for each in (method, other)
    )  # fmt: skip
    return method.name.startswith(f"{other.name}-") and own == others


def commands(method: MethodSpec, call: str, keys: Sequence[Parameter]) -> list[str]:
    """Returns commands for a method: a run, a run on other models, a run with another value, a sweep and an audit."""
    lacks_drafter = any(own_drafter(part, "") is None for part in method.parts if part.needs_drafter)
    models = " --target HUB_ID_OR_FOLDER" + " --drafter HUB_ID_OR_FOLDER" * lacks_drafter
    required, end = "" if embedded(method) else models, f"--method {shlex.quote(call)}"
    plain = f"specbench run --task {TASK} {end}{required}"
    lines = [plain, plain + models] if embedded(method) else [plain]
    if change := example_override(method, keys):
        lines.append(f"{plain} --set {shlex.quote(change)}")
    if method.sweep:
        lines.append(f"specbench sweep --task {TASK} {end}{required}")
    if method.decoder is not None or method.drafter.type != "none":
        lines.append(f"specbench audit {end}{required}")
    return lines


def example_override(method: MethodSpec, keys: Sequence[Parameter]) -> str | None:
    """Returns a KEY=VALUE for --set that changes a value, or None."""
    current = {parameter.key: parameter.value for parameter in keys}
    for key, values in reversed(method.sweep.items()):
        other = next((value for value in reversed(values) if value != current.get(key)), None)
        if other is not None:
            return f"{key}={other}"
    length = current.get("num_draft_tokens")
    if length is None:
        return None
    if proposes_trees(method):  # longer drafts could exceed the tree's levels
        return f"num_draft_tokens={length - 1}" if length > 1 else None
    return f"num_draft_tokens={length + 1 if length < 64 else 1}"


def tree_help(method: MethodSpec) -> TreeHelp | None:
    """Returns the tree and the step of a method, or None if it drafts chains or nothing."""
    if not proposes_trees(method):
        return None
    options = method.drafter.options
    assert method.drafter.features.tree_shape is not None
    declared = method.drafter.features.tree_shape(**options)
    fixed = declared if isinstance(declared, TreeShape) else None
    shape = fixed or best_shape(EXAMPLE, min(options.get("num_nodes") or 12, 12), method.num_draft_tokens)
    depth_of = depths(shape.parents)
    allowed = [
        node for node, (rank, depth) in enumerate(zip(shape.ranks, depth_of, strict=True))
        if rank == NEVER_VERIFIED or depth <= method.num_draft_tokens
    ]  # fmt: skip
    counts = [depth_of[node] for node in allowed if shape.ranks[node] != NEVER_VERIFIED]
    return TreeHelp(
        is_example=fixed is None,
        nodes_by_depth=[counts.count(depth) for depth in range(1, max(counts) + 1)],
        num_own=len(allowed) - len(counts),
        drawing=drawing(shape, set(allowed)),
        step=step_lines(method, None if fixed is None else len(allowed), options),
    )


def drawing(shape: TreeShape, nodes: set[int]) -> list[str]:
    """Returns the tree from left to right with one line per leaf. A node is its rank among siblings, from 1."""
    children: dict[int, list[int]] = {}
    for node in sorted(nodes, key=lambda node: (shape.ranks[node] == NEVER_VERIFIED, shape.ranks[node], node)):
        children.setdefault(shape.parents[node], []).append(node)

    def paths(node: int) -> list[str]:
        below = children.get(node, [])
        lines: list[str] = []
        for place, child in enumerate(below):
            label = "w" if shape.ranks[child] == NEVER_VERIFIED else str(shape.ranks[child] + 1)
            is_last = place == len(below) - 1
            start = ("───" if is_last else "─┬─") if place == 0 else (" └─" if is_last else " ├─")
            first, *others = paths(child)
            lines.append(start + label + first)
            lines += [("   " if is_last else " │ ") + " " * len(label) + line for line in others]
        return lines or [""]

    first, *others = paths(-1)
    lines = [f"last token{first}", *(" " * len("last token") + line for line in others)]
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} more paths"]


def step_lines(method: MethodSpec, num_nodes: int | None, options: dict[str, Any]) -> list[str]:
    """Returns the parts of a step, one line each. `num_nodes`: the size of the tree, if it is fixed."""
    size = num_nodes or options.get("num_nodes")
    growing = "it grows as it is drafted"
    read = f"up to {size} tokens of the tree" if size else "the tokens of the tree"
    return [
        f"draft: {first_sentence(method.drafter.factory)}; {'its shape is fixed' if num_nodes else growing}",
        f"one pass: the target reads its last token and {read}; each attends to the text and to its ancestors, at the "
        "position of its depth",
        f"rule {method.verification.rule}: {first_sentence(method.verification.factory)}",
        "cache: the keys and values of the accepted path are moved to the end of the text, all others are dropped; the "
        f"step emits the accepted tokens and one more: 1 to {method.num_draft_tokens + 1}",
    ]


def first_sentence(code: Any) -> str:
    """Returns the first sentence of a docstring, in one line."""
    text = " ".join(prose(code).split())
    return re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")
