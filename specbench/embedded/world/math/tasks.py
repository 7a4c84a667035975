"""The word problems of `mgsm` in the layouts of other tasks, whose own prompts ask them: gsm8k, mcot, msvamp."""

from random import Random
from typing import Any

from specbench.embedded.world.math import mgsm
from specbench.embedded.world.texts import example_of


def weights(task: str) -> dict[str, float]:
    """The share of each subset of a task: its languages, as in `mgsm`; MSVAMP has no Telugu, GSM8K is English."""
    if task == "gsm8k":
        return {"default": 1.0}
    return {language: share for language, share in mgsm.weights().items() if task != "msvamp" or language != "te"}


def draw(task: str, subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One random problem in the columns of the task's dataset."""
    problem = mgsm.draw("en" if task == "gsm8k" else subset, held_out, random)
    question, worked, number = problem["question"], problem["answer"], problem["answer_number"]
    columns = {
        "gsm8k": {"question": question, "answer": f"{worked}\n#### {number}"},
        "mcot": {"question": question, "answer": worked, "lang-id": subset},
        "msvamp": {"m_query": question, "response": str(number)},
    }
    return {"subset": subset, **columns[task], "_completion": worked, "_key": question}


def example(task: str, row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as the task's own file renders it, and the worked answer."""
    return example_of(task, row)
