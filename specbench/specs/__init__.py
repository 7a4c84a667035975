"""Frozen models of the contents of YAML files and of the command line."""

from specbench.specs.components import Spec, build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec, digest, named
from specbench.specs.task import DatasetSpec, FewshotSpec, GenerationSpec, LocalSpec, TaskSpec

__all__ = [
    "DatasetSpec", "FewshotSpec", "GenerationSpec", "LocalSpec", "MethodSpec", "RunSpec", "Spec", "TaskSpec", "build",
    "digest", "named",
]  # fmt: skip
