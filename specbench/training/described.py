"""What the specs of trainings share: the text below a key is its meaning, which the command line's help shows."""

from pydantic import ConfigDict

from specbench.specs.components import Spec


class Described(Spec):
    """A spec whose keys say what they mean in the text below each."""

    model_config = ConfigDict(use_attribute_docstrings=True)
