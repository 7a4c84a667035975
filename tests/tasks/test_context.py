"""Documents cut to a number of tokens: what stands around them is kept, and no more goes than must."""

import pytest

from specbench.specs.catalogue import load_task
from specbench.tasks.context import cut_to_tokens, find_document
from specbench.tasks.examples import load_examples

PROMPT = "Read this: one two three four five six. Who came?"
DOCUMENT = (11, 38)


def count(prompt: str) -> int:
    return len(prompt.split())


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (10, PROMPT),
        (9, "Read this: one two three four five. Who came?"),
        (5, "Read this: one. Who came?"),
        (4, None),  # nothing of the document would be left
        (11, None),  # it is not so long
    ],
)
def test_the_end_of_the_document_goes(num_tokens: int, expected: str | None) -> None:
    cut = cut_to_tokens(PROMPT, DOCUMENT, num_tokens, count)
    assert (cut and " ".join(cut.replace(" .", ".").split())) == expected
    assert cut is None or count(cut) == num_tokens


@pytest.mark.parametrize("subset", ["qmsum", "gov_report", "quality"])
def test_the_document_of_a_prompt_is_its_longest_text(subset: str) -> None:
    task = load_task("scrolls")
    data = load_examples(task, subset, data="sample", use_sample=True, limit=3)
    for example in data.examples:
        assert example.document is not None
        start, end = example.document
        kept = example.prompt[:start] + example.prompt[end:]
        assert len(example.prompt[start:end]) > len(kept) and ("Summarize" in kept or "Question: " in kept)


def test_a_task_whose_prompts_are_not_shortened_has_no_documents() -> None:
    data = load_examples(load_task("mgsm"), "en", data="sample", use_sample=True, limit=2)
    assert [example.document for example in data.examples] == [None, None]
    assert find_document(load_task("cnn_dm"), {"article": "two apples"}, "Summarize nothing.") is None
