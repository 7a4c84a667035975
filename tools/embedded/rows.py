"""Rows of the embedded world for the build: those of the training, those that the package ships, the samples, and those
that models answer."""

import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from specbench.decoding.decoder import stream_seed
from specbench.embedded import MAX_WORLD_ROWS
from tools.world import WORLDS
from tools.world import choices as mmlu

SEED_STRIDE, MAX_DRAWS = 100, 10_000
SAMPLE_SEED, EVALUATION_SEED = 11, 12
NUM_SAMPLES = dict.fromkeys(WORLDS, 12) | {"mgsm": 24, "humaneval": 24, "wmt": 16}  # bundled rows of each subset
NUM_EVALUATED = dict.fromkeys(WORLDS, 16) | {"mgsm": 64, "humaneval": 64}  # rows of each subset that models answer


def training_rows(
    worlds: Mapping[str, float], num_rows: int, random: Random, mix_power: float = 1.0
) -> list[dict[str, Any]]:
    """Returns `num_rows` rows drawn by the shares of the worlds and, inside a world, by weight ** mix_power of the
    subsets."""
    choices, shares = [], []
    for name, share in worlds.items():
        weights = {subset: weight**mix_power for subset, weight in WORLDS[name].weights().items()}
        choices += [(name, subset) for subset in weights]
        shares += [share * weight / sum(weights.values()) for weight in weights.values()]
    drawn = random.choices(choices, weights=shares, k=num_rows)
    return [{"task": name, **WORLDS[name].draw(subset, False, random)} for name, subset in drawn]


def held_out_rows(task: str, num_per_subset: int, seed: int, max_draws: int = MAX_DRAWS) -> list[dict[str, Any]]:
    """Returns `num_per_subset` different held-out rows for each subset of a task, with ids such as `en-0`.

    Every task has its own draws, seeded by its place in the table; otherwise the tasks of a family would have the same
    rows. Raises ValueError if the world has fewer different rows.
    """
    random = Random(seed + SEED_STRIDE * list(WORLDS).index(task))
    rows: list[dict[str, Any]] = []
    for subset in WORLDS[task].weights():
        different: dict[str, dict[str, Any]] = {}
        for _ in range(max_draws):
            if len(different) == num_per_subset:
                break
            row = WORLDS[task].draw(subset, True, random)
            different.setdefault(row["_key"], row)
        else:
            raise ValueError(f"task {task}, subset {subset}: {num_per_subset} different held-out rows were asked for, "
                             f"{max_draws} draws gave {len(different)}; ask for fewer")  # fmt: skip
        rows += [{**row, "task": task, "id": f"{subset}-{number}"} for number, row in enumerate(different.values())]
    return rows


DRAWS_PER_ROW = 20  # at most, since some subsets have few different rows


def shipped_rows(name: str, num_per_subset: int = MAX_WORLD_ROWS) -> Iterator[dict[str, str]]:
    """Yields different training rows of each subset: the rows that `specbench train --task world:NAME` reads. Of a
    conversation, it is the first turn."""
    for subset in WORLDS[name].weights():
        random = Random(stream_seed(0, "world", name, subset))
        different: dict[tuple[str, str], None] = {}
        for _ in range(DRAWS_PER_ROW * num_per_subset):
            prompt, answer, *_ = WORLDS[name].example(WORLDS[name].draw(subset, False, random))
            different[prompt, answer] = None
            if len(different) == num_per_subset:
                break
        yield from ({"subset": subset, "prompt": prompt, "answer": answer} for prompt, answer in different)


def write_shipped_rows(folder: Path) -> None:
    """Writes the rows that the package ships, one compressed file of JSON lines for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in WORLDS:
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8", preset=9) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in shipped_rows(name))


def write_samples(folder: Path) -> None:
    """Writes the bundled held-out rows of every task of the world; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "mmlu-dev.jsonl", mmlu.mmlu_exemplars())
    for task, world in WORLDS.items():
        if world.has_task:
            rows = held_out_rows(task, NUM_SAMPLES[task], SAMPLE_SEED)
            write_rows(folder / f"{task}.jsonl", [sample_of(row) for row in rows])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes a file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def sample_of(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of a row that a sample has: its subset and id first, without the world's private keys."""
    public = {key: value for key, value in row.items() if key != "task" and not key.startswith("_")}
    return {"subset": row["subset"], "id": row["id"], **public}


def evaluation_rows(smoke: bool) -> list[dict[str, Any]]:
    """Returns held-out rows of every task of the world, different from the samples."""
    return [
        row for task, world in WORLDS.items() if world.has_task
        for row in held_out_rows(task, 1 if smoke else NUM_EVALUATED[task], EVALUATION_SEED)
    ]  # fmt: skip
