"""specbench: a benchmark harness for speculative decoding of language models."""

from importlib.metadata import version

__version__ = version("specbench")
