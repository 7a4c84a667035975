"""The help of a method: components, losslessness, needs, presets and commands."""

import inspect
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specbench.cli.help.parameters import Parameter, parameters
from specbench.cli.help.tree import TreeHelp, tree_help
from specbench.core.resources import EMBEDDED
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.method import MethodSpec, proposes_trees
from specbench.specs.run import embedded_drafter, own_drafter

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
    """Returns all built-in and plug-in methods."""
    return [load_method(name) for name in method_names()]


def method_help(method: MethodSpec, call: str) -> MethodHelp:
    """Returns the help of a method. `call`: the name or path given by the user.

    Raises ConfigError if its code cannot be imported.
    """
    found = parameters(method)
    lossless, reason = verdict(method)
    return MethodHelp(
        name=method.name, version=method.version, title=method.title, paper=method.paper, parts=parts(method),
        lossless=lossless, lossless_reason=reason, needs=needs(method), embedded=embedded(method),
        tree=tree_help(method), parameters=found, sweep=method.sweep,
        preset_of=next((other.name for other in known_methods() if is_preset(method, other)), None),
        presets=[Preset(name=other.name, title=other.title) for other in known_methods() if is_preset(other, method)],
        commands=commands(method, call, found),
    )  # fmt: skip


def parts(method: MethodSpec) -> list[Part]:
    """Returns the components: drafter, verification rule, vocabulary bridge; or the external decoder."""
    if method.decoder is not None:
        from specbench.integrations.entry import load

        return [Part(role="decoder", name=method.decoder.entry, text=prose(load(method.decoder.entry).call))]
    if method.routes is not None:
        return routed_parts(method)
    found = [Part(role="drafter", name=method.drafter.name, text=prose(method.drafter.factory))]
    if method.drafter.type != "none":
        found.append(
            Part(role="verification rule", name=method.verification.name, text=prose(method.verification.factory))
        )
    if method.needs_drafter and method.decodes_with == "target":
        found.append(Part(role="vocabulary bridge", name=method.bridge.name, text=prose(method.bridge.factory)))
    return found


def routed_parts(method: MethodSpec) -> list[Part]:
    """Returns the drafters of all routes, then their verification rule and vocabulary bridges."""
    found: list[Part] = []
    for part in method.parts:
        drafter, *others = parts(part)
        found.append(drafter.model_copy(update={"role": f"drafter of {part.name.partition('/')[2]}"}))
        found += [other for other in others if other not in found]
    return sorted(found, key=lambda part: part.role in ("verification rule", "vocabulary bridge"))


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
    found = ["a target model"]
    if not method.needs_drafter:
        found.append("no draft model")
    elif method.same_vocabulary:
        found.append("a draft model with the target's vocabulary" + own_models_note(method))
    elif method.decodes_with == "drafter":
        found.append("a draft model, with any vocabulary")
    else:
        found.append("a draft model, whose vocabulary may differ from the target's" + own_models_note(method))
    return [*found, *other_needs(method)]


def other_needs(method: MethodSpec) -> list[str]:
    """Returns what a method's drafters need besides models, such as a head or a datastore."""
    declared = [part.drafter.needs for part in method.parts if part.decoder is None]
    return list(dict.fromkeys(filter(None, declared)))


def own_models_note(method: MethodSpec) -> str:
    """Returns a note on the draft models that the method's file names."""
    names = list(dict.fromkeys(part.checkpoint for part in method.parts if part.checkpoint))
    if not names:
        return ""
    is_embedded = any(name.startswith(EMBEDDED) for name in names)
    note = "; with a target other than the embedded one, give --drafter" if is_embedded else ""
    return f" (its own: {', '.join(names)}{note})"


def embedded(method: MethodSpec) -> list[str]:
    """Returns the embedded models that a run uses by default, or none if the method cannot run on them."""
    if not all(part.drafter.features.embedded for part in method.parts if part.decoder is None):
        return []
    bridge = method.decoder.bridge_type if method.decoder is not None else method.bridge.type
    target = f"{EMBEDDED}target"
    drafters = [own_drafter(part, target) or embedded_drafter(bridge) for part in method.parts if part.needs_drafter]
    return [target, *dict.fromkeys(drafters)]


def is_preset(method: MethodSpec, other: MethodSpec) -> bool:
    """Returns whether a method is a preset of another: it has the same components, and its name is the other's with a
    hyphen and a suffix."""
    return method.name.startswith(f"{other.name}-") and same_parts(method) == same_parts(other)


def same_parts(method: MethodSpec) -> tuple[str | None, ...]:
    entry = method.decoder.entry if method.decoder is not None else None
    return method.decodes_with, entry, method.drafter.name, method.verification.name, method.bridge.name


def commands(method: MethodSpec, call: str, found: Sequence[Parameter]) -> list[str]:
    """Returns commands for a method: a run, a run on other models, a run with another value, a sweep and an audit."""
    lacks_drafter = any(own_drafter(part, "") is None for part in method.parts if part.needs_drafter)
    models = " --target HUB_ID_OR_FOLDER" + " --drafter HUB_ID_OR_FOLDER" * lacks_drafter
    required = "" if embedded(method) else models
    plain = command("run", call, f"--task {TASK}") + required
    lines = [plain, plain + models] if embedded(method) else [plain]
    change = example_override(method, found)
    if change:
        lines.append(f"{plain} --set {shlex.quote(change)}")
    if method.sweep:
        lines.append(command("sweep", call, f"--task {TASK}") + required)
    if method.decoder is not None or method.drafter.type != "none":
        lines.append(command("audit", call) + required)
    return lines


def command(name: str, call: str, more: str = "") -> str:
    return " ".join(filter(None, ("specbench", name, more, f"--method {shlex.quote(call)}")))


def example_override(method: MethodSpec, found: Sequence[Parameter]) -> str | None:
    """Returns a KEY=VALUE for --set that changes a value, or None."""
    current = {parameter.key: parameter.value for parameter in found}
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
