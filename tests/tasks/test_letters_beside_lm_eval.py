"""lm-eval's verdict beside ours on the English forms with a letter: docs count the differences, with reasons."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.letter_forms import FILES, FOLDER, chosen, forms
from tests.support.read_yaml import read_yaml

TASKS = {  # name → its file in lm-eval, its filter, how it writes the right letter
    "mmlu_generative": ("generative/_default_template_yaml", "get_response", "{}"),
    "mmlu_flan_cot_zeroshot": ("flan_cot_zeroshot/_mmlu_flan_cot_zeroshot_template_yaml", "flexible-extract", "({})"),
}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "scoring.md"
OPTIONS = FILES["en"]["options"]
TEXTS = [text for group in FILES["en"]["forms"] for text in forms("en", group)]
SHOWN = 5  # examples of a reason in docs
DIFFERENCES = read_yaml(FOLDER / "lm_eval.yaml")


def lm_eval_chosen(task: str) -> dict[str, str]:
    """Text → the letter that lm-eval's filter and metric judge right, or "none"."""
    from lm_eval import tasks as lm_eval_tasks  # takes a second
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters import build_filter_ensemble

    file, name, written = TASKS[task]
    config = yaml.safe_load((Path(lm_eval_tasks.__path__[0]) / "mmlu" / file).read_text(encoding="utf-8"))
    steps = next(each["filter"] for each in config["filter_list"] if each["name"] == name)
    named = [(step["function"], {key: step[key] for key in step if key != "function"}) for step in steps]
    asked = [Instance("generate_until", {"choices": list(OPTIONS.values())}, (), 0, resps=[text]) for text in TEXTS]
    build_filter_ensemble(name, named).apply(asked)
    (metric,) = config["metric_list"]
    settings = {key: metric[key] for key in metric if key.startswith("ignore")}

    def is_right(found: str, letter: str) -> bool:
        return bool(exact_match_hf_evaluate([found], [written.format(letter)], **settings)["exact_match"])

    found = {text: each.filtered_resps[name] for text, each in zip(TEXTS, asked, strict=True)}
    return {text: "".join(letter for letter in OPTIONS if is_right(found[text], letter)) or "none" for text in TEXTS}


def rows(task: str) -> list[str]:
    """The lines of the table in docs: a reason, what lm-eval chooses, how many forms, the first of them."""
    return [
        f"| {each['reason']} | {', '.join(each['chooses'])} | {len(texts)} | {' · '.join(map(code, texts[:SHOWN]))} |"
        for each in DIFFERENCES[task]
        if (texts := [text for chosen_texts in each["chooses"].values() for text in chosen_texts])
    ]


def code(text: str) -> str:
    """A text as JSON writes it, in a code span."""
    return f"`{json.dumps(text, ensure_ascii=False)[1:-1]}`"


@pytest.mark.parametrize("task", TASKS)
def test_the_differences_are_those_of_the_list(task: str) -> None:
    listed = [
        (text, letter) for each in DIFFERENCES[task] for letter, texts in each["chooses"].items() for text in texts
    ]
    assert dict(listed) == {
        text: letter for text, letter in lm_eval_chosen(task).items() if letter != chosen(text, OPTIONS)
    }
    assert len(listed) == len(dict(listed))


def test_docs_print_the_tables() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("### Beside lm-eval")[2]
    printed = re.findall(r"^\|.*\| \d+ \|.*$", section, re.MULTILINE)
    assert printed == [row for task in TASKS for row in rows(task)]
