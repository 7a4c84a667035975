"""The curves of a training as a picture, where matplotlib is installed."""

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specbench.training.record import TrainingRecord


def draw(record: TrainingRecord, path: Path) -> bool:
    """Loss per language and learning rate of the chosen curve, and the held-back loss; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    curve = record.curves[record.chosen]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel: Any = figure.subplots()
    lines: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for point in curve["steps"]:
        for language, loss in point["loss"].items():
            lines[language][0].append(point["step"])
            lines[language][1].append(loss)
    for language, (steps, losses) in lines.items():
        panel.plot(steps, losses, label=language, linewidth=1, marker="." if len(steps) < 30 else "")
    if curve["validation"]:
        held_back = {int(num_done): loss for num_done, loss in curve["validation"].items()}
        panel.plot(*zip(*held_back.items(), strict=True), "ko--", label="held back")
    panel.set_xlabel("step (update)")
    panel.set_ylabel("loss (nats per token)")
    panel.set_title(f"{record.settings['kind']} · learning rate {curve['learning_rate']:g}", loc="left")
    panel.legend(ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    return True
