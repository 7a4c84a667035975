"""The packages of the extras; test_imports.py runs what needs them without them."""

import tomllib
from importlib import invalidate_caches
from pathlib import Path

import pytest
import yaml
from lingua import Language

from specbench import __version__
from specbench.core.environment import DISTRIBUTION, EXTRAS, is_installed
from specbench.specs.components import LINGUA

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_package_of_the_table_has_its_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert PROJECT["name"] == DISTRIBUTION
    assert {*EXTRAS.values()} == {*extras} - {"all", "docs", "test"}
    assert extras["all"] == [  # [gguf] is built from source
        f"{DISTRIBUTION}[{','.join(each for each in dict.fromkeys(EXTRAS.values()) if each != 'gguf')}]"
    ]


def test_every_language_of_lingua_is_known() -> None:
    codes = {each.iso_code_639_1.name.lower(): each.iso_code_639_3.name.lower() for each in Language.all()}
    assert codes == LINGUA


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__ and cited["license"] == PROJECT["license"]
    assert [each["name"] for each in cited["authors"]] == [each["name"] for each in PROJECT["authors"]]


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb writes a folder `wandb` where it runs, and `python -m` can import from there."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_logger").mkdir()
    assert not is_installed("some_logger")
    (tmp_path / "some_logger" / "__init__.py").touch()
    invalidate_caches()
    assert is_installed("some_logger") and is_installed("sys")
