"""Documents that are cut so that a prompt has a given number of tokens."""

from collections.abc import Callable

from specbench.specs import templates
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import Row

Span = tuple[int, int]  # first character, and the one behind the last


def find_document(task: TaskSpec, row: Row, prompt: str) -> Span | None:
    """Returns where the document of a row stands in its prompt: the longest text of the row in it. None if there is
    none."""
    texts = (row.get(column) for column in sorted(templates.used(task.prompt, "row")))
    document = max((text for text in texts if isinstance(text, str)), key=len, default="")
    start = prompt.find(document)
    return (start, start + len(document)) if document and start >= 0 else None


def cut_to_tokens(prompt: str, document: Span, num_tokens: int, count: Callable[[str], int]) -> str | None:
    """Returns the prompt with the end of its document cut off, so that it has as many tokens as fit into `num_tokens`;
    what stands around the document, such as instruction and question, is kept. None if the whole prompt has fewer
    tokens, or what is kept has more. `count`: the tokens of a prompt."""
    start, end = document
    if count(prompt) < num_tokens:
        return None
    fits, too_long = start - 1, end + 1  # ends of the document; the first one is none yet
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count(prompt[:middle] + prompt[end:]) <= num_tokens:
            fits = middle
        else:
            too_long = middle
    return None if fits <= start else prompt[:fits] + prompt[end:]
