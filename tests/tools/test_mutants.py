"""Every entry of the table of mutants names a text that stands in the source exactly once."""

from functools import cache

import pytest

from tools.mutants import ROOT, Mutant, Unfit, read_table, source_texts

texts = cache(source_texts)


@pytest.mark.parametrize("mutant", read_table(), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    assert mutant.file(ROOT, texts(ROOT)).suffix == ".py" and mutant.old != mutant.new and mutant.why


def test_a_text_that_the_source_lacks_does_not_fit() -> None:
    with pytest.raises(Unfit, match="in no file"):
        Mutant("gone", "", "a text that no file has", "").file(ROOT, texts(ROOT))
