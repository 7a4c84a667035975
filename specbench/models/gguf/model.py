"""Language models of GGUF files."""

from typing import Any, Literal, NoReturn

import torch

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import DEQUANTIZED, CausalLM, TextModel
from specbench.models.gguf.engine import ALL_LAYERS, ENGINE, LlamaNetwork, LlamaSequence
from specbench.models.gguf.header import Header
from specbench.models.gguf.options import ATTENTION, GgufOptions
from specbench.models.meters import Clock, PassLog


class DequantizedLM(CausalLM):
    """A GGUF model in torch, with its weights dequantized by transformers."""

    def __init__(self, network: Any, header: Header, tokenizer: Any, name: str, revision: str | None) -> None:
        super().__init__(network, tokenizer, name, revision)
        self.header = header
        self.eos_token_ids = header.end_ids  # as in llama.cpp; configurations of transformers have defaults

    @property
    def precision(self) -> str:
        """Such as "Q4_K_M dequantized (float32)"."""
        return f"{self.header.precision}{DEQUANTIZED} ({self.dtype})"


class GgufLM(CausalLM):
    """A GGUF model without a network in torch: what needs one is refused by `model`. Alone it has no passes, but its
    vocabulary, context limit, revision and encoded prompts are the real ones."""

    def __init__(self, header: Header, tokenizer: Any, name: str, revision: str | None, options: GgufOptions) -> None:
        TextModel.__init__(
            self, tokenizer, name, revision, eos_token_ids=header.end_ids, context_limit=header.context_length,
            vocab_size=len(header.tokens),
        )  # fmt: skip
        self.header, self.options = header, options
        self.quantization = "none"
        self.device, self.passes = torch.device("cpu"), PassLog(Clock(torch.device("cpu")))

    @property
    def model(self) -> NoReturn:
        raise ConfigError(
            f"model '{self.name}' is computed by llama.cpp, which gives logits only, and this needs its network in "
            f"torch, of the weights dequantized: {self.options.other_engine('eager')}"
        )

    @property
    def padded_vocab_size(self) -> int:
        return len(self.header.tokens)

    @property
    def static(self) -> None:
        return None

    @property
    def engine(self) -> Literal["llama.cpp"]:
        return ENGINE

    @property
    def dtype(self) -> str:
        return self.header.precision

    @property
    def rounds(self) -> bool:
        return True  # its kernels round activations to 8 bits

    @property
    def precision(self) -> str:
        return self.header.precision

    @property
    def placement(self) -> str:
        return "cpu"

    @property
    def attention(self) -> str:
        return "none"


class LlamaLM(GgufLM):
    """A GGUF model whose passes llama.cpp computes."""

    sequence: LlamaSequence

    def __init__(
        self, network: LlamaNetwork, header: Header, tokenizer: Any, name: str, revision: str | None,
        options: GgufOptions,
    ) -> None:  # fmt: skip
        super().__init__(header, tokenizer, name, revision, options)
        self.network = network
        self._use(LlamaSequence(network, name, self.vocab_size, PassLog(Clock(network.device)), options.cache_dtype))

    @property
    def needs_room(self) -> bool:
        return True

    @property
    def placement(self) -> str:
        """The CPU, and the layers on a GPU: "cpu+gpu:20"."""
        number = self.network.num_layers_on_gpu
        return "cpu" if number == 0 else "cpu+gpu:all" if number == ALL_LAYERS else f"cpu+gpu:{number}"

    @property
    def attention(self) -> str:
        """The attention and the type of keys and values."""
        return ATTENTION[self.sequence.kind]
