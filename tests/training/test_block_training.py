"""`specbench train dflash`, `dspark`, `domino` and `peagle`: they learn, resume to the bit, and name their mistakes."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.results.leaderboard import load
from specbench.training.objectives import SampleObjective
from tests.support import tiny
from tests.support.training_toys import in_a_process, killed_at, same

Run = Callable[..., tuple[int, str, str]]
KINDS = ["dflash", "dspark", "domino", "peagle"]
SMALL = {
    "dflash": (),
    "dspark": ("--set", "dspark.markov_rank=8"),
    "domino": ("--set", "domino.gru_hidden_dim=8", "--set", "domino.emb_dim=8"),
    "peagle": (),
}


def length(kind: str, num_rows: int) -> tuple[str, str]:
    """The setting of a draft of as many tokens as DFlash has in blocks of `num_rows` rows."""
    return "--set", f"peagle.num_draft_tokens={num_rows - 1}" if kind == "peagle" else f"{kind}.block_size={num_rows}"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: tmp_path / "cache")


def arguments(kind: str, folder: Path, name: str, *more: str) -> list[str]:
    """A training of a small head for a tiny random target, which answers lines of a file."""
    target = folder / "target"
    if not target.exists():
        tiny.save(target, hidden_size=16, num_hidden_layers=4)
        (folder / "en.txt").write_text("".join(f"line number {number} of some\n" for number in range(12)))
    return ["train", kind, "--target", str(target), "--text", f"en={folder / 'en.txt'}", "--device", "cpu",
            "--threads", "1", "--set", "max_new_tokens=12", "--set", f"{kind}.num_layers=1",
            *length(kind, 4), "--set", f"{kind}.validation_share=0.2", *SMALL[kind],
            "--output", str(folder / name), *more]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["dspark", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "dspark")]
)
def test_a_head_learns_its_target_s_answers(kind: str, specbench: Run, tmp_path: Path) -> None:
    rate = "0.003" if kind == "peagle" else "0.02"  # P-EAGLE's embeddings are trained, too
    given = arguments(kind, tmp_path, "out", "--num-steps", "24", "--learning-rate", rate, "--set", "warmup=0",
                      "--set", "checkpoint_every=8")  # fmt: skip
    code, _, err = specbench(*given)
    assert code == 0, err
    assert f"specbench run --task TASK --method {kind} --set drafter.path={tmp_path / 'out'}" in err
    assert f"--set num_draft_tokens={4 if kind == 'dspark' else 3}" in err  # the method has more
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    [curve] = record["curves"]
    losses = [step["loss"]["en"] for step in curve["steps"]]
    # P-EAGLE's loss stays above the entropy of the target, whose random weights make it high.
    assert sum(losses[-4:]) < (0.98 if kind == "peagle" else 0.9) * sum(losses[:4])
    validation = [curve["validation"][number] for number in ("8", "16", "24")]
    assert validation[-1] < validation[0] and curve["validation_loss"] == validation[-1]
    assert record["settings"][kind]["num_layers"] == 1 and record["models"]["drafter"]["name"] == f"new {kind}"
    assert specbench(*given)[2].startswith(f"{tmp_path / 'out'}: is already finished")
    answers = ("--target", str(tmp_path / "target"), "--data", str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").write_text('{"question": "line number 3 of some", "answer": "1"}\n')
    code, _, err = specbench(
        "run", "--task", "gsm8k", "--method", f"ar,{kind}", "--set", f"drafter.path={tmp_path / 'out'}", *answers,
        "--set", "generation.max_new_tokens=12", "--set", "num_draft_tokens=3", "--warm-up", "0",
        "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    row = next(row for row in load(tmp_path / "run" / "leaderboard.json") if row.method.startswith(f"{kind}@"))
    assert row.verdict == "greedy equal"


@pytest.mark.parametrize(
    "kind", ["domino", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "domino")]
)
def test_a_killed_training_resumes_to_the_bit(
    kind: str, specbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anchors, the places that learn a draft token, and Domino's mixture of losses depend on the pass alone."""

    def trained(name: str) -> str:
        places = "peagle.kept_share=0.4" if kind == "peagle" else f"{kind}.num_anchors=3"
        more = ("--num-steps", "4", "--set", "checkpoint_every=2", "--set", places, "--dtype", "bfloat16")
        code, _, err = specbench(*arguments(kind, tmp_path, name, *more))
        assert code == 0, err
        return err

    trained("whole")
    original = SampleObjective.rows
    with monkeypatch.context() as patch:
        patch.setattr(SampleObjective, "rows", lambda *of: killed_at(3)(of[2]) or original(*of))
        assert in_a_process(lambda: trained("out")) == -signal.SIGKILL
    assert "resuming at step 3 of 4\n" in trained("out")
    assert same(tmp_path / "whole", tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "words", "problem"),
    [
        ("dflash", ("dflash.target_layer_ids=[0,3]",), "dflash.target_layer_ids = [0, 3]: give different layers"),
        ("dflash", ("dflash.mask_token_id=900",), "dflash.mask_token_id = 900: the embeddings of target"),
        ("dflash", ("dflash.draft_vocab_size=257",), "dflash.draft_vocab_size = 257: the target has 257 tokens"),
        ("dflash", ("dflash.block_size=1",), "dflash.block_size = 1"),
        ("dflash", ("dspark.markov_rank=8",), "dspark: has no effect in a training of kind 'dflash'"),
        ("dflash", ("lora.rank=4",), "lora: has no effect on a draft head"),
        ("domino", ("domino.draft_vocab_size=8",), "domino.draft_vocab_size"),
        ("peagle", ("peagle.mask_token_id=900",), "peagle.mask_token_id = 900: the embeddings of target"),
        ("peagle", ("peagle.kept_share=0",), "peagle.kept_share = 0"),
        ("dspark", ("dspark.markov_head_type=rmn",), "dspark.markov_head_type = 'rmn'"),
        ("dspark", ("dspark.entropy_weight=0", "dspark.distance_weight=0"), "nothing would be learnt"),
    ],
)
def test_a_mistake_is_one_line(
    kind: str, words: tuple[str, ...], problem: str, specbench: Run, tmp_path: Path
) -> None:  # fmt: skip
    more = [word for pair in words for word in ("--set", pair)]
    code, _, err = specbench(*arguments(kind, tmp_path, "out", "--num-steps", "1", *more))
    last = err.splitlines()[-1]
    assert code == 2 and problem in last and last.startswith("error: "), err


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the target's answers, which all kinds of heads learn."""
    return tmp_path_factory.mktemp("answers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_drafts_better_than_a_new_one(
    kind: str, specbench: Run, tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the embedded target; a new head has trained for one step with a learning rate of almost nothing."""
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: shared_cache)
    common = ("--task", "world:mgsm", "--subset", "en", "--limit", "32", "--set", "max_new_tokens=48", "--set",
              f"{kind}.num_layers=2", *length(kind, 6), *SMALL[kind], "--threads", "1")  # fmt: skip
    common += () if kind == "peagle" else ("--set", f"{kind}.num_anchors=24")
    tau: dict[str, float] = {}
    for name, steps, rate, limit in (("new", "1", "1e-9", "1"), ("trained", "120", "3e-3", "3")):
        path = str(tmp_path / name)
        code, _, err = specbench("train", kind, *common, "--num-steps", steps, "--learning-rate", rate,
                                 "--set", "log_every=50", "--output", path)  # fmt: skip
        assert code == 0, err
        run: dict[str, Any] = {"output": str(tmp_path / f"run-{name}")}
        code, _, err = specbench("run", "--task", "mgsm", "--subset", "en", "--limit", limit, "--method", f"ar,{kind}",
                                 "--set", f"drafter.path={path}", "--set", "num_draft_tokens=5", "--warm-up", "0",
                                 "--output", run["output"])  # fmt: skip
        assert code == 0, err
        row = next(row for row in load(Path(run["output"]) / "leaderboard.json") if row.method.startswith(f"{kind}@"))
        assert row.verdict == "greedy equal"
        value = row.value("mean_acceptance_length")
        assert value is not None
        tau[name] = value
    assert tau["new"] < 1.3 and tau["trained"] > tau["new"] + 0.5, tau
