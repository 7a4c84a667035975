"""The default folder of a run: the same for the same request, another one for any other."""

from typing import Any

import pytest

from specbench.records.folder import default_folder
from specbench.specs.catalogue import load_method, load_task
from specbench.specs.run import RunSpec

IDENTITY = {"seed": 0, "methods": {"sd": "sd@1:abc"}}


def spec(**options: Any) -> RunSpec:
    tasks, methods = (load_task("mgsm"),), (load_method("ar"), load_method("sd"))
    return RunSpec(tasks=tasks, methods=methods, target="embedded:target", **options)


def test_the_same_request_has_the_same_folder() -> None:
    assert default_folder(spec(), IDENTITY) == default_folder(spec(), dict(IDENTITY))
    assert default_folder(spec(), IDENTITY).name.startswith("mgsm-sd-")
    assert default_folder(spec(data="rows"), IDENTITY) == default_folder(spec(data="./rows"), IDENTITY)


@pytest.mark.parametrize(
    "other", [{"data": "rows"}, {"data": "others"}, {"limit": 3}, {"repeats": 2}, {"subsets": ("en",)}]
)
def test_another_request_has_another_folder(other: dict[str, Any]) -> None:
    assert len({default_folder(s, IDENTITY) for s in (spec(), spec(**other), spec(data="third"))}) == 3
    assert default_folder(spec(), IDENTITY) != default_folder(spec(), {**IDENTITY, "seed": 1})
