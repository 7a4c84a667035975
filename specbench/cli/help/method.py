"""The help of a method: components, losslessness, needs, presets and commands, and its draft tree, drawn as text."""

import inspect
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from specbench.cli.help.text import NAMES, Parameter, field_parameters, folded, paragraphs, schema_of, section, shown
from specbench.core import dotted
from specbench.core.environment import EMBEDDED
from specbench.core.values import depths
from specbench.decoding.draft_length import DraftLength, make_length
from specbench.decoding.tree_shape import TreeShape, best_shape
from specbench.specs.catalogue import FIXED, load_method, method_names
from specbench.specs.components import Component
from specbench.specs.method import SHARE, MethodSpec, RouteSpec, proposes_trees
from specbench.specs.run import embedded_drafter, own_drafter

EXAMPLE = (0.5, 0.2, 0.1)  # acceptance rates by rank in the example of a growing tree
# Examples of lengths that vary: confidence and entropy of draft tokens, and whether all tokens of a draft are accepted.
EXAMPLE_DRAFT = ((0.95, 0.2), (0.85, 0.5), (0.6, 1.1), (0.35, 2.2), (0.2, 3.1), (0.9, 0.3))
EXAMPLE_VERDICTS = (True, True, False, False, True)
MAX_LINES = 24  # of a drawing; more paths are cut
NEVER_VERIFIED = -1  # rank of a token that the target reads only for the drafter, and that cannot be accepted
TASK = "mgsm"  # the embedded models can answer its sample rows
Lossless = Literal["yes", "no", "claimed", "unknown"]


def method_lines(method: MethodSpec, call: str) -> Iterator[str]:
    """Yields the help of a method. `call`: the name or path given by the user. Raises ConfigError if its code cannot be
    imported."""
    keys = parameters(method)
    yield from folded(f"{method.name} (version {method.version}): {method.title}")
    if preset_of := next((other for other in known_methods() if is_preset(method, other)), None):
        yield f"a preset of {preset_of.name}: the same parts with other values"
    if method.paper:
        yield f"paper: {method.paper}"
    for part in parts(method):
        yield from ("", f"{part.role}: {part.name}", *paragraphs(part.text, 2))
    lossless, reason = verdict(method)
    yield from ("", *folded(f"lossless: {lossless} ({reason})"), *folded(f"needs: {'; '.join(needs(method))}"))
    if models := embedded(method):
        yield from folded(f"models without --target: {', '.join(models)}")
    yield from tree_lines(method)
    yield from draft_lines(method)
    yield from length_lines(method)
    yield from section("parameters", (line for key in keys for line in key.lines()))
    swept = [f"{key}: {', '.join(map(shown, values))}" for key, values in method.sweep.items()]
    yield from section("values that `specbench sweep` tries", (line for each in swept for line in folded(each, 2, 6)))
    names = [f"{other.name}: {other.title}" for other in presets(method)]
    yield from section("presets", (line for each in names for line in folded(each, 2, 6)))
    yield from section("commands", (f"  {line}" for line in commands(method, call, keys)))


@cache
def known_methods() -> list[MethodSpec]:
    return [load_method(name) for name in method_names()]


def presets(method: MethodSpec) -> list[MethodSpec]:
    return [other for other in known_methods() if is_preset(other, method)]


def parameters(method: MethodSpec) -> list[Parameter]:
    """Returns all parameters of a method, with the draft length first. Imports an external decoder's code."""
    settable = set(dotted.flat(method.model_dump(exclude={"sweep"}))) - set(FIXED)
    options: list[tuple[str, type[BaseModel], Mapping[str, object]]]
    if method.decoder is not None:
        from specbench.integrations.external import OFFERED, load_entry, options_model

        code = load_entry(method.decoder.entry)
        model = options_model(code.call, OFFERED, 0 if code.is_class else 1)  # specbench sets the offered ones
        options = [("decoder.options", model, method.decoder.options)]
    else:
        routes = None if method.routes is None else method.routes.items()
        components: dict[str, Component] = {"drafter": method.drafter} if routes is None else {
            f"routes.{name}.drafter": route.drafter for name, route in routes if route.drafter is not None
        }  # fmt: skip
        if method.draft_length is not None:
            components["draft_length"] = method.draft_length
        components |= {"verification": method.verification, "bridge": method.bridge}
        options = [(place, part.registry.options_model(part.name), part.options) for place, part in components.items()]
    found = [each for place, model, values in options for each in field_parameters(model, place, values, settable)]
    return [*own_keys(method), *found]


def own_keys(method: MethodSpec) -> Iterator[Parameter]:
    """Yields the share that the drafter decodes alone, and the draft lengths, with those of all routes, set or not."""
    schema = schema_of(MethodSpec)["properties"]["num_draft_tokens"]
    length = Parameter(
        key="num_draft_tokens", type=NAMES["integer"], range=f"1 to {schema['maximum']}", required=True, default=None,
        value=method.num_draft_tokens, meaning=schema["description"], settable=True,
    )  # fmt: skip
    if method.decodes_with == "random":
        yield replace(
            length, key="drafter_share", type=NAMES["number"], range="0 to 1", value=method.drafter_share, meaning=SHARE
        )
    if method.decoder is not None or method.drafter.type != "none":
        yield length
    for name, route in (method.routes or {}).items():
        yield replace(
            length, key=f"routes.{name}.num_draft_tokens", value=route.num_draft_tokens, required=False,
            type=f"{NAMES['integer']} or null",
            meaning=schema_of(RouteSpec)["properties"]["num_draft_tokens"]["description"],
        )  # fmt: skip


class Part(NamedTuple):
    """A component of a method: its role, its name and the docstring of its code."""

    role: str
    name: str
    text: str


def parts(method: MethodSpec) -> list[Part]:
    """Returns the components: drafter, verification rule, vocabulary bridge; or the external decoder."""
    if method.decoder is not None:
        from specbench.integrations.external import load_entry

        return [Part("decoder", method.decoder.entry, prose(load_entry(method.decoder.entry).call))]
    if method.routes is not None:  # the drafters of all routes first, then what their parts have in common
        components = []
        for part in method.parts:
            drafter, *others = parts(part)
            components.append(drafter._replace(role=f"drafter of {part.name.partition('/')[2]}"))
            components += [other for other in others if other not in components]
        return sorted(components, key=lambda part: part.role in ("verification rule", "vocabulary bridge"))
    chosen: dict[str, Component] = {"drafter": method.drafter}
    if method.draft_length is not None:
        chosen["draft length"] = method.draft_length
    if method.drafter.type != "none":
        chosen["verification rule"] = method.verification
    if method.needs_drafter and method.decodes_with == "target":
        chosen["vocabulary bridge"] = method.bridge
    return [Part(role, component.name, prose(component.factory)) for role, component in chosen.items()]


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
         each.bridge.name, each.draft_length and each.draft_length.name)
        for each in (method, other)
    )  # fmt: skip
    return method.name.startswith(f"{other.name}-") and own == others


def commands(method: MethodSpec, call: str, keys: list[Parameter]) -> list[str]:
    """Returns commands for a method: a run, a run on other models, a run with another value, a sweep and an audit."""
    lacks_drafter = any(own_drafter(part, "") is None for part in method.parts if part.needs_drafter)
    models = " --target HUB_ID_OR_FOLDER" + " --drafter HUB_ID_OR_FOLDER" * lacks_drafter
    required = "" if embedded(method) else models
    end = f"--method {shlex.quote(call)}"
    plain = f"specbench run --task {TASK} {end}{required}"
    lines = [plain, plain + models] if embedded(method) else [plain]
    # Another value: one that a sweep tries, or a draft length. Longer drafts could exceed a tree's levels.
    current = {key.key: key.value for key in keys}
    swept = [(key, value) for key, tried in reversed(method.sweep.items()) for value in reversed(tried)]
    change = next((f"{key}={value}" for key, value in swept if value != current.get(key)), None)
    length = method.num_draft_tokens if "num_draft_tokens" in current else 0
    if change is None and length:
        other = length - 1 if proposes_trees(method) else length + 1 if length < 64 else 1
        change = f"num_draft_tokens={other}" if other else None
    if change is not None:
        lines.append(f"{plain} --set {shlex.quote(change)}")
    if method.sweep:
        lines.append(f"specbench sweep --task {TASK} {end}{required}")
    if method.decoder is not None or method.drafter.type != "none":
        lines.append(f"specbench audit {end}{required}")
    return lines


def tree_lines(method: MethodSpec) -> Iterator[str]:
    """Yields the tree and the step of a method; none if it drafts chains or nothing."""
    if not proposes_trees(method):
        return
    # 1. The tree; of one that grows as it is drafted, one of many.
    options = method.drafter.options
    assert method.drafter.features.tree_shape is not None
    declared = method.drafter.features.tree_shape(**options)
    fixed = declared if isinstance(declared, TreeShape) else None
    shape = fixed or best_shape(EXAMPLE, min(options.get("num_nodes") or 12, 12), method.num_draft_tokens)
    depth_of = depths(shape.parents)
    nodes = {
        node for node, (rank, depth) in enumerate(zip(shape.ranks, depth_of, strict=True))
        if rank == NEVER_VERIFIED or depth <= method.num_draft_tokens
    }  # fmt: skip
    # 2. Its size: by depth of the tokens that can be accepted, and the number of those that cannot.
    counts = [depth_of[node] for node in sorted(nodes) if shape.ranks[node] != NEVER_VERIFIED]
    by_depth = ", ".join(str(counts.count(depth)) for depth in range(1, max(counts) + 1))
    heading = f"{len(counts)} draft tokens on {max(counts)} levels ({by_depth})"
    rates = ", ".join(map(str, EXAMPLE))
    grows = f"it grows as it is drafted; with example acceptance rates {rates} by rank: "
    heading = f"tree: {'at most ' if fixed else grows}{heading}; a number is the rank among the children of a node"
    if num_own := len(nodes) - len(counts):
        heading += f"; w: {num_own} tokens that the target reads only for the drafter and that cannot be accepted"
    yield from ("", *folded(heading), *(f"  {line}" for line in drawing(shape, nodes)))
    # 3. What happens in a step.
    size = len(nodes) if fixed else options.get("num_nodes")
    read = f"up to {size} tokens of the tree" if size else "the tokens of the tree"
    yield from step_lines(
        method,
        draft=f"; {'its shape is fixed' if fixed else 'it grows as it is drafted'}",
        read=f"{read}; each attends to the text and to its ancestors, at the position of its depth",
        cache="the keys and values of the accepted path are moved to the end of the text, all others are dropped",
    )


def draft_lines(method: MethodSpec) -> Iterator[str]:
    """Yields the drawing of a look-up or of another draft, if its drafter has one, and the step of a method that drafts
    chains."""
    if method.decoder is not None or method.routes is not None or method.drafter.type == "none":
        return
    features = method.drafter.features
    if features.drawing is not None:
        lines, text = features.drawing(**method.drafter.options)
        heading = "a look-up" if features.looks_up else "a block" if features.drafts_at_once else "a draft"
        yield from section(heading, [*(f"  {line}" for line in lines), "", *folded(text, 2)])
    elif method.draft_length is not None:  # whose step `length_lines` has
        return
    if proposes_trees(method):  # whose step `tree_lines` has
        return
    nothing = ", or its last token alone if nothing was found" if features.looks_up else ""
    yield from step_lines(
        method,
        draft="",
        read=f"up to {method.num_draft_tokens} draft tokens{nothing}",
        cache="the keys and values of rejected tokens are dropped",
    )


def length_lines(method: MethodSpec) -> Iterator[str]:
    """Yields a draft whose length varies, with example numbers, and the step of its method."""
    length = method.draft_length
    if method.routes is not None or length is None:
        return
    made = make_length(length.factory, length.options, method.drafter.features.asks_length)
    made.begin_prompt()
    draw = drawn_draft if made.is_asked else drawn_lengths
    yield from section("an example", [f"  {line}" for line in draw(made, method.num_draft_tokens)])
    if method.drafter.features.drawing is None:
        yield from step_lines(
            method,
            draft=f". {first_sentence(length.factory)}",
            read=f"the draft tokens, at most {method.num_draft_tokens}",
            cache="the keys and values of rejected tokens are dropped",
        )


def drawn_draft(length: DraftLength, most: int) -> list[str]:
    """Returns a draft of example tokens, and where it ends."""
    allowed = length.limit(min(most, len(EXAMPLE_DRAFT)))
    end, number, num_seen = "at the longest draft of the example", 0, 0
    for confidence, entropy in EXAMPLE_DRAFT[:allowed]:
        num_seen += 1
        if not length.draws(entropy):
            end = f"before token {number + 1}, of whose distribution a pass was made"
            break
        number += 1
        if not length.goes_on(confidence):
            end = f"after token {number}, which is kept"
            break
    shown_tokens = EXAMPLE_DRAFT[:num_seen]
    rows = {
        "token": range(1, len(shown_tokens) + 1),
        "confidence": [f"{confidence:.2f}" for confidence, _ in shown_tokens],
        "entropy": [f"{entropy:.2f}" for _, entropy in shown_tokens],
        "draft": ["yes" if place < number else "–" for place in range(len(shown_tokens))],
    }
    lines = [f"{name:<12}" + "".join(f"{cell!s:>6}" for cell in cells) for name, cells in rows.items()]
    return [*lines, f"the draft ends {end}"]


def drawn_lengths(length: DraftLength, most: int) -> list[str]:
    """Returns the lengths of drafts after example verdicts: whole drafts, then one with a rejected token."""
    drafted, accepted = [], []
    for is_whole in EXAMPLE_VERDICTS:
        drafted.append(length.limit(most))
        accepted.append(drafted[-1] if is_whole else drafted[-1] // 2)
        length.observe(drafted[-1], accepted[-1])
    rows = {"draft": range(1, len(drafted) + 1), "drafted": drafted, "accepted": accepted}
    return [f"{name:<12}" + "".join(f"{cell!s:>6}" for cell in cells) for name, cells in rows.items()]


def step_lines(method: MethodSpec, *, draft: str, read: str, cache: str) -> Iterator[str]:
    """Yields what happens in a step. `draft`: follows the drafter's first sentence; `read`: what the target reads."""
    step = [
        f"draft: {first_sentence(method.drafter.factory)}{draft}",
        f"one pass: the target reads its last token and {read}",
        f"rule {method.verification.rule}: {first_sentence(method.verification.factory)}",
        f"cache: {cache}; the step emits the accepted tokens and one more: 1 to {method.num_draft_tokens + 1}",
    ]
    yield from section("a step", (x for number, text in enumerate(step, 1) for x in folded(f"{number}. {text}", 2, 5)))


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


def first_sentence(code: Any) -> str:
    """Returns the first sentence of a docstring, in one line."""
    text = " ".join(prose(code).split())
    return re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")
