"""Registries: options are the keyword-only parameters of a factory."""

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

import specbench
from specbench.built_in import BUILT_IN, FEATURES
from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, SCORERS, NoFeatures, Registry
from specbench.specs.components import complete_options


@pytest.fixture
def registry():
    made = Registry("gadget", "specbench.no-such-group", NoFeatures)

    @made.register("dial")
    def dial(model, *, size: Annotated[int, Field(ge=1)], mode: Literal["slow", "fast"] = "slow"):
        return (model, size, mode)

    return made


def test_complete_fills_in_defaults(registry):
    assert complete_options(registry, "dial", {"size": 3}) == {"size": 3, "mode": "slow"}
    assert registry.get("dial")("m", **complete_options(registry, "dial", {"size": 3})) == ("m", 3, "slow")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "gadget 'dial'.size: the key 'size' is missing: add it"),
        ({"size": 0}, "gadget 'dial'.size = 0: input should be greater than or equal to 1"),
        (
            {"size": 1, "moed": "x"},
            "gadget 'dial'.moed: unknown key 'moed': did you mean 'mode'? (choices: mode, size)",
        ),
        ({"size": 1, "mode": "fats"}, "gadget 'dial'.mode = 'fats': did you mean 'fast'? (choices: fast, slow)"),
        ({"size": 1, 2: 3}, "2"),
    ],
)
def test_bad_options(registry, options, expected):
    with pytest.raises(ConfigError) as caught:
        complete_options(registry, "dial", options)
    assert expected in str(caught.value)


def test_all_missing_options_are_named_at_once(registry):
    @registry.register("panel")
    def panel(model, *, width: int, height: int):
        return model

    with pytest.raises(ConfigError, match=r"^gadget 'panel'\.width, gadget 'panel'\.height: these keys are missing"):
        complete_options(registry, "panel", {})


def test_choices_far_from_the_value_read_as_a_sentence(registry):
    with pytest.raises(ConfigError, match=r"^gadget 'dial'\.mode = 'maybe': the choices are fast, slow$"):
        complete_options(registry, "dial", {"size": 1, "mode": "maybe"})


def test_unknown_name_lists_the_choices(registry):
    with pytest.raises(ConfigError, match=r"unknown gadget 'dail': did you mean 'dial'\? \(choices: dial\)"):
        registry.get("dail")


def test_a_name_is_registered_once(registry):
    with pytest.raises(ValueError, match="gadget 'dial' is registered twice"):
        registry.register("dial")(lambda: None)


def test_the_built_in_components_are_there():
    assert {"model", "none"} <= set(DRAFTERS.names())
    assert {"rejection", "fuzzy"} <= set(RULES.names())
    assert "shared" in BRIDGES.names()
    assert "number" in SCORERS.names()


def test_every_module_with_a_component_is_listed() -> None:
    """A module that is not in BUILT_IN would never be imported, and its components would not exist."""
    root = Path(specbench.__file__).parent
    registers = re.compile(r"^ *@?(?:[A-Z_]+\.register|row_reader)\(\s*(?:f?\"|[A-Z]+\))", re.MULTILINE)
    named = {
        ".".join(("specbench", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for path in root.rglob("*.py") if registers.search(path.read_text(encoding="utf-8"))
    }  # fmt: skip
    assert named == {module for modules in BUILT_IN.values() for module in modules}


def test_what_is_known_of_components_without_importing_them_is_of_those_that_there_are() -> None:
    for registry in (DRAFTERS, RULES, BRIDGES):
        assert sorted(FEATURES[registry.group]) == sorted(set(registry.names()) - set(registry.plugins))
