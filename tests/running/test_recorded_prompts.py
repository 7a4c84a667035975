"""The models of a finished run, loaded again."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.report.shown import Selection, shown_run
from specbench.results.runs import RecordedRun
from specbench.running import recorded_prompts
from specbench.running.recorded_prompts import ModelLoader, asked_revisions, rendered_prompts
from tests.support.rows import row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("recorded", "wanted"),
    [(COMMIT, COMMIT), ("sha256-0123456789ab", "v2"), ("local-0123456789ab", "v2")],
)
def test_a_model_is_loaded_from_the_revision_of_the_run(
    monkeypatch: pytest.MonkeyPatch, recorded: str, wanted: str
) -> None:
    """A digest names no revision of the hub: there the one that the run was given holds."""
    seen = []

    def load_model(name: str, **options: Any) -> SimpleNamespace:
        seen.append((name, options["revision"]))
        return SimpleNamespace(revision=recorded)

    monkeypatch.setattr(recorded_prompts, "load_model", load_model)
    measured = row(target="org/repo:Q4_K_M", drafter=None, request={"target_revision": "v2"})
    loader = ModelLoader("cpu", "auto", asked=asked_revisions(measured))
    loader.load(measured.target, recorded)
    assert seen == [("org/repo:Q4_K_M", wanted)]
    with pytest.raises(ConfigError, match="has changed since the run"):
        ModelLoader("cpu", "auto").load(measured.target, "sha256-ffffffffffff")


def test_prompts_have_the_keys_that_the_command_changed(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Other numbers of few-shot examples give other prompts; pairs of methods and other tasks do not matter."""
    words = ("--limit", "1", "--set", "fewshot.num_shots=2", "--set", "num_draft_tokens=2",
             "--set", "generation.max_new_tokens=4", "--output", "mine")  # fmt: skip
    assert specbench("run", "--task", "gsm8k", "--method", "sd", *words)[0] == 0
    shown = shown_run(RecordedRun(tmp_path / "mine"), Selection(), rendered_prompts)
    assert not shown.problems and shown.records[0].prompt is not None
