"""lm-eval in both directions: specbench as a model of lm-eval, and lm-eval's generation tasks as tasks of specbench.

Importing the package registers the model `specbench` with lm-eval.
"""

from specbench.integrations.lm_eval.evaluation import simple_evaluate
from specbench.integrations.lm_eval.model import SpecbenchLM

__all__ = ["SpecbenchLM", "simple_evaluate"]
