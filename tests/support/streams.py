"""A stand-in for CUDA streams."""

import torch


class Stream:
    """One state of two CPU generators, as graphs and a generation share one on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator()

    def join(self, generator: torch.Generator) -> None:
        self.generator = generator
