"""A scorer that looks at the beginning of an answer."""

from specbench.plugin import PerAnswer, reference_texts


def starts_with() -> PerAnswer:
    """1 if the answer begins with one of the references, else 0."""
    return PerAnswer(("begins",), lambda text, right: {"begins": text.strip().startswith((*reference_texts(right),))})
