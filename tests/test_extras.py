"""Without the packages of the extras, the core measures, and what needs one names its extra in one line."""

import os
import subprocess
import sys
import tomllib
from importlib import invalidate_caches
from pathlib import Path

import pytest
import yaml
from lingua import Language

from specbench import __version__
from specbench.core.environment import DISTRIBUTION, EXTRAS, is_installed
from specbench.specs.components import LINGUA
from tests.processes import SHORT_WARM_UPS

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUN = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1", "--set",
       "generation.max_new_tokens=4"]  # fmt: skip
MEASURED = [*RUN, "--output", "measured"]
NEEDS = {
    "plots": [*RUN, "--output", "plotted", "--plot", "picture.png"],
    "judge": [*RUN, "--output", "judged", "--judge", "some-model"],
    "lm-eval": ["run", "--task", "lm_eval:gsm8k", "--method", "sd"],
    "train": ["train", "finetune", "--task", "mgsm", "--output", "trained"],
    "language": ["languages", "--samples", "1"],
    "ja": ["run", "--task", "wmt", "--subset", "en-ja", "--method", "sd", "--limit", "1", "--output", "japanese"],
    "ray": ["suite", "suite.yaml", "--ray", "local"],
}
SUITE = {"name": "one", "tasks": [{"task": "mgsm", "subsets": ["en"]}], "methods": ["sd"], "limit": 1,
         "pairs": {"embedded": None}}  # fmt: skip
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({[*EXTRAS]}))
{SHORT_WARM_UPS}
from specbench.cli import main
for words in {[MEASURED, *NEEDS.values()]}:
    sys.argv = ["specbench", *words]
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
"""


def test_the_core_measures_and_each_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    variables = {**os.environ, "OPENAI_API_KEY": "some-secret"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    measured, *others = done.stderr.split("ended with ")[:-1]
    codes = [part[0] for part in done.stderr.split("ended with ")[1:]]
    assert codes == ["0", *["2"] * len(NEEDS)], done.stderr
    assert "the language of the answers is not checked: needs lingua" in measured
    assert (tmp_path / "measured" / "leaderboard.json").is_file()
    for extra, said in zip(NEEDS, others, strict=True):
        assert f"pip install '{DISTRIBUTION}[{extra}]'" in said.splitlines()[-1], said
        assert "Traceback" not in said
    with_records = [path.parent.name for path in tmp_path.glob("*/records.jsonl") if path.stat().st_size]
    assert with_records == ["measured"], "something was measured before the line"


def test_every_package_of_the_table_has_its_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert PROJECT["name"] == DISTRIBUTION
    assert {*EXTRAS.values()} == {*extras} - {"all", "docs", "test"}
    assert extras["all"] == [f"{DISTRIBUTION}[{','.join(dict.fromkeys(EXTRAS.values()))}]"]


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
