"""What YAML files and the command line may say, as frozen models."""

from specbench.specs.components import Spec, build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec, digest, named
from specbench.specs.task import DatasetSpec, FewshotSpec, GenerationSpec, LocalSpec, TaskSpec

__all__ = [
    "DatasetSpec", "FewshotSpec", "GenerationSpec", "LocalSpec", "MethodSpec", "RunSpec", "Spec", "TaskSpec", "build",
    "digest", "named",
]  # fmt: skip
