"""lm-eval both ways: specbench as a model of lm-eval, and lm-eval's generation tasks as tasks of specbench.

Importing the package registers the model `specbench` with lm-eval.
"""

from specbench.lmeval.evaluation import simple_evaluate
from specbench.lmeval.model import SpecbenchLM

__all__ = ["SpecbenchLM", "simple_evaluate"]
