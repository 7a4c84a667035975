"""lm-eval in both directions: specbench as a model for lm-eval, and lm-eval's generation tasks for specbench.

Importing the package registers the model `specbench` with lm-eval.
"""

from specbench.core.environment import require

require("lm_eval", "lm-eval and its tasks")

from specbench.integrations.lm_eval.evaluation import simple_evaluate  # noqa: E402 (imports lm-eval)
from specbench.integrations.lm_eval.model import SpecbenchLM  # noqa: E402

__all__ = ["SpecbenchLM", "simple_evaluate"]
