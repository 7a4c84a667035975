"""The trainings, from the smallest on, and the run that measures each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.drafters.workplace import Workplace, checkpoint

from .prompts import COLUMN, SUBSETS, TEXTS

# One common choice for all parts, made on the validation loss of 30 steps on 32 answers.
COMMON = (
    "--set", f"data.column={COLUMN}", "--set", "max_new_tokens=192", "--set", "checkpoint_every=25",
    "--dtype", "bfloat16", "--threads", "1",
)  # fmt: skip
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "eagle3": (
        "--learning-rate", "1e-3", "--set", "eagle3.draft_vocab_size=8192", "--set", "eagle3.batch_size=4",
        "--set", "eagle3.num_draft_steps=4", "--set", "eagle3.validation_share=0.05",
    ),
    "medusa": (
        "--learning-rate", "2e-3", "--set", "medusa.own_output=false", "--set", "medusa.num_heads=3",
        "--set", "medusa.batch_size=4", "--set", "medusa.validation_share=0.05",
    ),
    "distill": (
        "--init-layers", "6", "--learning-rate", "5e-4", "--set", "gradient_accumulation=1",
        "--set", "distill.batch_size=4",
    ),
    "peagle": (
        "--learning-rate", "1e-3", "--set", "peagle.num_layers=2", "--set", "peagle.num_draft_tokens=4",
        "--set", "peagle.draft_vocab_size=8192", "--set", "peagle.batch_size=4",
        "--set", "peagle.validation_share=0.05",
    ),
    "mtp": (
        "--learning-rate", "1e-3", "--set", "mtp.batch_size=4", "--set", "mtp.validation_share=0.05",
    ),
    "dflash": (
        "--learning-rate", "1e-3", "--set", "dflash.num_layers=2", "--set", "dflash.block_size=8",
        "--set", "dflash.num_anchors=32", "--set", "dflash.draft_vocab_size=8192", "--set", "dflash.batch_size=4",
        "--set", "dflash.validation_share=0.05",
    ),
    "dspark": (
        "--learning-rate", "1e-3", "--set", "dspark.num_layers=2", "--set", "dspark.block_size=7",
        "--set", "dspark.num_anchors=32", "--set", "dspark.markov_rank=64", "--set", "dspark.draft_vocab_size=8192",
        "--set", "dspark.batch_size=4", "--set", "dspark.validation_share=0.05",
    ),
}  # fmt: skip
NUM_DRAFT_TOKENS = 3
NODES = 8  # of a tree: on a CPU, a pass over the 60 nodes of the papers takes three times as long as one over a token
RUN = ("--limit", "3", "--set", "generation.max_new_tokens=64", "--dtype", "bfloat16", "--threads", "1")
TASK = "spec_bench"
# For estimates, with SmolLM2-135M on one core.
SECONDS_PER_STEP = {
    "eagle3": 1.1, "medusa": 3.1, "distill": 2.6, "peagle": 2.0, "mtp": 2.0, "dflash": 2.0, "dspark": 2.0,
}  # fmt: skip
GUESSED = {"peagle", "dflash", "dspark"}  # whose steps were not measured yet
SECONDS_PER_ANSWER = 1.0
SECONDS_OF_RUN = 120.0


@dataclass(frozen=True)
class Part:
    """One training: its kind, the number of answers, and how often each is learnt. `minutes`: an estimate of answers,
    training and run on one idle core."""

    kind: str
    num_answers: int
    epochs: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.num_answers}-{self.epochs}"

    @property
    def folder(self) -> str:
        return f"trained/{self.name}"

    @property
    def record(self) -> str:
        return f"{self.folder}/training.json"

    @property
    def run(self) -> str:
        return f"runs/{self.name}"

    @property
    def length(self) -> tuple[str, ...]:
        """The options that say how long it is trained. Distillation counts steps of 4 answers, others epochs."""
        if self.kind == "distill":
            return ("--num-steps", str(self.epochs * self.num_answers // 4))
        return ("--set", f"{self.kind}.epochs={self.epochs}")

    @property
    def minutes(self) -> float:
        steps = self.epochs * self.num_answers / 4
        return (SECONDS_PER_ANSWER * self.num_answers + SECONDS_PER_STEP[self.kind] * steps + SECONDS_OF_RUN) / 60

    def methods(self) -> dict[str, dict[str, Any]]:
        """The drafters and rules by method name."""
        if self.kind == "distill":
            return {f"{self.name}-chain": {"drafter": checkpoint(self.folder), "verification": {"rule": "rejection"}}}
        if self.kind == "medusa":
            tree = {"type": "medusa", "path": self.folder, "num_nodes": NODES}
            return {f"{self.name}-tree": {"drafter": tree, "verification": {"rule": "exact_match"}}}
        if self.kind != "eagle3":  # which drafts a chain alone: a block is one, too
            drafter = {"type": "mtp"} if self.kind == "mtp" else {"type": "block", "head": self.kind}
            chain = {**drafter, "path": self.folder}
            return {f"{self.name}-chain": {"drafter": chain, "verification": {"rule": "rejection"}}}
        chain = {"type": "eagle", "head": "eagle3", "path": self.folder}
        tree = {"type": "eagle_tree", "head": "eagle3", "path": self.folder, "num_nodes": NODES, "top_k": 4}
        return {
            f"{self.name}-chain": {"drafter": chain, "verification": {"rule": "rejection"}},
            f"{self.name}-tree": {"drafter": tree, "verification": {"rule": "exact_match"}},
        }


PARTS = (
    Part("eagle3", 32, 10), Part("eagle3", 100, 3), Part("distill", 100, 3), Part("medusa", 100, 3),
    Part("mtp", 100, 3), Part("dflash", 100, 3), Part("dspark", 100, 3), Part("peagle", 100, 3),
    Part("eagle3", 100, 10), Part("eagle3", 300, 3), Part("distill", 300, 3), Part("medusa", 300, 3),
    Part("mtp", 300, 3), Part("dflash", 300, 3), Part("dspark", 300, 3), Part("peagle", 300, 3),
    Part("eagle3", 300, 10), Part("mtp", 300, 10), Part("dflash", 300, 10), Part("dspark", 300, 10),
    Part("peagle", 300, 10), Part("eagle3", 300, 20), Part("distill", 300, 10),
)  # fmt: skip


def train(place: Workplace, part: Part, target: str) -> None:
    place.specbench(
        part.record, "train", part.kind, "--target", target, "--text", f"prompts={TEXTS}",
        "--limit", str(part.num_answers), *COMMON, *SETTINGS[part.kind], *part.length, "--output", part.folder,
    )  # fmt: skip


def measure(place: Workplace, part: Part, target: str) -> None:
    files = []
    for name, parts in part.methods().items():
        method = {"name": name, "version": 1, "title": name, **parts, "num_draft_tokens": NUM_DRAFT_TOKENS}
        files.append(place.write_yaml(f"methods/{name}.yaml", method))
    place.specbench(
        f"{part.run}/leaderboard.json", "run", "--target", target, "--task", TASK, "--subset", ",".join(SUBSETS[TASK]),
        "--data", f"data/measured/{TASK}.jsonl", *RUN, "--method", ",".join(("ar", *files)),
        "--output", part.run,
    )  # fmt: skip
