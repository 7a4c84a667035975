"""What the counting of an n-gram model is asked to do."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specbench.specs.components import Text
from specbench.training.data_spec import DataSpec, Seed
from specbench.training.described import Described


class CorpusSpec(DataSpec):
    """What is counted: also texts of no language in particular, which are never in memory as a whole."""

    places: ClassVar[dict[str, str]] = {"corpus": "--corpus", **DataSpec.places}

    corpus: tuple[Text, ...] = ()
    """Files of texts as in text, of any size; limit holds for all of them together."""


class NgramSpec(Described):
    """One n-gram model. What is counted are the tokens of each text, without those that the target's tokenizer adds; a
    row's answer is followed by the token that ends the target's texts."""

    kind: Literal["ngram"] = "ngram"
    target: Text = "embedded:target"
    """The model whose tokens are counted: hub id, folder or embedded:NAME."""
    target_revision: str | None = None
    """Hub revision of the target."""
    data: CorpusSpec
    output: Text
    """Folder of the n-gram model."""
    seed: Seed = 0
    """Of the rows that are drawn from the embedded world."""
    order: Annotated[int, Field(ge=1, le=16)] = 2
    """Tokens of the longest n-gram; 2 counts bigrams."""
