"""Passes by llama.cpp, in this process, through the C interface as llama-cpp-python declares it.

A pass is one `llama_decode`; its logits are copied once, from llama.cpp's buffer into a tensor. Rollback cuts the cache
by position. Recurrent and hybrid models cannot be cut: their whole state is kept at some positions, and the tokens in
between are read again.

A cached token belongs to one or several sequences, and a query sees the tokens of its first sequence up to its own
position. Sequence 0 holds the text. Each leaf of a draft tree has a sequence, to which the text and all nodes above it
belong as well, so that a node sees exactly its ancestors.
"""

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.core.values import depths
from specbench.models.devices import WEIGHTS_IN_FILES, check_memory, own_memory
from specbench.models.eager import MAX_ROWS, NO_TREE, CachedSequence, cannot_read_trees
from specbench.models.gguf.cache_size import cache_bytes
from specbench.models.gguf.header import FETCH, read_header
from specbench.models.meters import PassLog
from specbench.models.recurrent import NUM_SNAPSHOTS, thinned
from specbench.models.scoring import Output
from specbench.specs.components import CacheDtype

ENGINE: Literal["llama.cpp"] = "llama.cpp"
PACKAGE = "llama_cpp"  # llama-cpp-python
LEAST_CAPACITY = 512  # tokens
BATCH = 2048  # tokens that one llama_decode reads at most
ALL_LAYERS = -1
WARNING = 3  # of ggml's log levels
KIND_OF_CACHE = {"float16": 1, "float32": 0}  # ggml's types
NO_SLOT = 1  # a result of llama_decode
# What llama.cpp says of values that it does not know, and their keys.
UNKNOWN = {
    "architecture": "general.architecture", "unknown tokenizer": "tokenizer.ggml.model",
    "pre-tokenizer": "tokenizer.ggml.pre",
}  # fmt: skip


@cache
def library() -> Any:
    """Returns llama-cpp-python's C interface. Raises ConfigError if it is missing or its library does not load."""
    require(PACKAGE, f"--engine {ENGINE}")
    try:
        from llama_cpp import llama_cpp
    except Exception as error:  # a library that was built for another machine, or is not there
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"--engine {ENGINE}: llama-cpp-python does not load ({reason}): build it again (pip install "
            "--force-reinstall --no-cache-dir llama-cpp-python), or take --engine eager"
        ) from error
    llama_cpp.llama_log_set(_LOG.callback(llama_cpp), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


class _Log:
    """Keeps the last warnings and errors of llama.cpp, which are the reasons of what fails, and prints nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def callback(self, llama_cpp: Any) -> Any:
        self._kept = llama_cpp.llama_log_callback(self._add)  # as long as the library may call it
        return self._kept

    def _add(self, level: int, text: bytes, _: Any) -> None:
        if level >= WARNING and text.strip(b". \n"):
            self.lines = [*self.lines[-9:], text.decode("utf-8", "replace").strip()]

    def reason(self) -> str:
        """Returns the first of the last errors in one line, without the name of a function, and forgets all."""
        lines = [line.partition(": ")[2] or line for line in self.lines if "error" in line or "fail" in line]
        self.lines = []
        found = " ".join((lines or ["no reason given"])[0].split())
        for prefix in ("error loading model: ", "error loading model vocabulary: ", "check_tensor_dims: "):
            found = found.replace(prefix, "")
        return found[:200]


_LOG = _Log()


def binding_version() -> str:
    """Returns the versions of the binding and of llama.cpp, as rows name them."""
    return version("llama-cpp-python")


class CannotOpen(ConfigError):
    """llama.cpp does not open a file. `reason`: its own."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LlamaNetwork:
    """The weights of a GGUF model, opened by llama.cpp. `num_layers_on_gpu`: of its layers, that a GPU computes;
    ALL_LAYERS means all. `repacks`: whether weights are brought into an order for the CPU, which takes time and memory.
    Raises CannotOpen if llama.cpp cannot open the file."""

    def __init__(
        self, path: Path, num_layers_on_gpu: int = 0, *, only_vocabulary: bool = False, repacks: bool = True
    ) -> None:
        self.api = library()
        self.path = path
        self.header = read_header(path)  # of a model in several files, the first has the metadata
        self.device = torch.device("cpu")  # where its logits are
        self.num_layers_on_gpu = num_layers_on_gpu
        params = self.api.llama_model_default_params()
        params.n_gpu_layers = num_layers_on_gpu
        params.vocab_only, params.use_extra_bufts = only_vocabulary, repacks
        _LOG.lines = []
        before = own_memory()
        self.handle = self.api.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise cannot_open(path, _LOG.reason())
        self._close = weakref.finalize(self, self.api.llama_model_free, self.handle)
        self.vocab = self.api.llama_model_get_vocab(self.handle)
        self.num_tokens: int = self.api.llama_vocab_n_tokens(self.vocab)
        if only_vocabulary:
            return
        if num_layers_on_gpu == 0:  # those that it has not copied into another order
            WEIGHTS_IN_FILES[self] = max(0, self.num_bytes - max(0, own_memory() - before))
        if not self.api.llama_model_has_decoder(self.handle) or self.api.llama_model_has_encoder(self.handle):
            raise ConfigError(f"{path}: it is an encoder, or has one; specbench measures causal language models")
        # Whether its cache cannot be cut at a position.
        self.is_recurrent = bool(
            self.api.llama_model_is_recurrent(self.handle) or self.api.llama_model_is_hybrid(self.handle)
        )

    @property
    def num_bytes(self) -> int:
        return int(self.api.llama_model_size(self.handle))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Returns the tokens of a text by llama.cpp's own tokenizer."""
        content = text.encode()
        found = (ctypes.c_int32 * (len(content) + 8))()
        number = self.api.llama_tokenize(
            self.vocab, content, len(content), found, len(found), add_special, parse_special
        )
        assert number >= 0, "a token has at least one byte"
        return found[:number]


def cannot_open(path: Path, reason: str) -> CannotOpen:
    """Returns the error for a file that llama.cpp does not open, with what it says of the tensor or key at fault."""
    remedy = f"{FETCH}, or take another" if "tensor" in reason else "take another file"
    found = f"llama.cpp cannot open it: {reason}"
    for words, key in UNKNOWN.items():
        if words in reason:
            found = f"{key} = '{read_header(path).values.get(key)}': llama.cpp cannot open it ({reason})"
            remedy = "take another file or a newer llama-cpp-python"
    return CannotOpen(f"{path}: {found}: {remedy}", reason)


class Context:
    """The cache of a network for `capacity` tokens and `num_sequences` sequences. `kind`: the type of its keys and
    values: float16 with flash attention, or float32 without."""

    def __init__(self, network: LlamaNetwork, name: str, capacity: int, num_sequences: int, kind: CacheDtype) -> None:
        self.network = network
        self.api = api = network.api
        params = api.llama_context_default_params()
        params.n_ctx = capacity
        params.n_batch = BATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        params.type_k = params.type_v = KIND_OF_CACHE[kind]
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED if kind == "float32" else (
            api.LLAMA_FLASH_ATTN_TYPE_AUTO
        )  # fmt: skip
        params.swa_full = True  # of sliding-window layers, too, any part may become visible again
        params.kv_unified = True
        params.offload_kqv = network.num_layers_on_gpu != 0
        params.no_perf = True
        _LOG.lines = []
        self.handle = api.llama_init_from_model(network.handle, params)
        if not self.handle:
            raise ConfigError(
                f"model '{name}': llama.cpp cannot hold {capacity:,} tokens of keys and values ({_LOG.reason()}): free "
                "memory, or measure shorter texts"
            )
        self._close = weakref.finalize(self, api.llama_free, self.handle)
        self.memory = api.llama_get_memory(self.handle)
        self.capacity, self.num_sequences, self.kind = capacity, num_sequences, kind
        # The arrays of a batch, and pointers to the sequences of each token.
        self._tokens, self._positions, self._counts = (np.zeros(BATCH, dtype=np.int32) for _ in range(3))
        self._outputs = np.zeros(BATCH, dtype=np.int8)
        self._pointers = np.zeros(BATCH, dtype=np.uintp)
        self._batch = api.llama_batch()
        self._batch.token, self._batch.pos, self._batch.n_seq_id = (
            array.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            for array in (self._tokens, self._positions, self._counts)
        )
        self._batch.logits = self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch.seq_id = self._pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        self._text = np.zeros(1, dtype=np.int32)  # the sequences of a token of the text
        self._describes_text = False  # whether all tokens of the arrays belong to the text
        # Views of llama.cpp's logits: the address of its buffer, and views by their numbers of rows and columns.
        self._views: tuple[int, dict[tuple[int, int], torch.Tensor]] = (0, {})

    def close(self) -> None:
        self._close()

    def decode(
        self, tokens: Sequence[int], positions: Sequence[int], outputs: slice | Sequence[int],
        sequences: Sequence[Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """Reads at most BATCH tokens. `outputs`: of which of them logits are made. `sequences`: to which each belongs;
        by default to the text. Raises ConfigError if llama.cpp fails."""
        number = len(tokens)
        self._tokens[:number] = tokens
        self._positions[:number] = positions
        self._outputs[:number] = 0
        self._outputs[:number][outputs] = 1
        if sequences is None:
            if not self._describes_text:
                self._counts[:], self._pointers[:], self._describes_text = 1, self._text.ctypes.data, True
        else:
            self._describes_text = False
            counts = [len(each) for each in sequences]
            ids = np.fromiter((index for each in sequences for index in each), dtype=np.int32)
            self._counts[:number] = counts
            self._pointers[:number] = ids.ctypes.data + 4 * (np.cumsum([0, *counts[:-1]]))
        self._batch.n_tokens = number
        result = self.api.llama_decode(self.handle, self._batch)
        if result == NO_SLOT:
            raise ConfigError(
                f"{self.network.path}: its cache of {self.capacity:,} tokens has no room for {number} more: measure "
                "shorter texts, or smaller trees"
            )
        if result != 0:
            raise ConfigError(
                f"{self.network.path}: llama.cpp fails in a pass over {number} tokens (error {result}: "
                f"{_LOG.reason()}): take --engine eager, or another file"
            )

    def logits(self, first: int, num_rows: int, num_columns: int) -> torch.Tensor:
        """Returns the logits of the outputs from the token at `first` in the last batch on: [num_rows, num_columns],
        which is a view of llama.cpp's buffer until the next pass. Rows of outputs follow each other there."""
        pointer = self.api.llama_get_logits_ith(self.handle, first)
        if not pointer:
            raise ConfigError(f"{self.network.path}: llama.cpp gives no logits: take --engine eager, or another file")
        # The buffer mostly stays where it is, and to make a view takes as long as to copy a row.
        address = ctypes.addressof(pointer.contents)
        shape = (num_rows, num_columns)
        if address != self._views[0] or shape not in self._views[1]:
            size = self.network.num_tokens
            buffer = (ctypes.c_float * (num_rows * size)).from_address(address)
            view = torch.frombuffer(buffer, dtype=torch.float32).view(num_rows, size)[:, :num_columns]
            kept = self._views[1] if address == self._views[0] else {}
            self._views = (address, {**kept, shape: view})
        return self._views[1][shape]

    def state(self, sequence: int = 0) -> "np.ndarray[Any, Any]":
        """Returns the state of a sequence, by default of the text, by which `restore` returns to it."""
        size = self.api.llama_state_seq_get_size(self.handle, sequence)
        found = np.empty(size, dtype=np.uint8)
        written = self.api.llama_state_seq_get_data(
            self.handle, found.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)), size, sequence
        )
        assert written == size, f"llama.cpp wrote {written} bytes of a state of {size}"
        return found

    def restore(self, state: "np.ndarray[Any, Any]") -> None:
        self.clear()
        self._write(state, 0)

    def _write(self, state: "np.ndarray[Any, Any]", sequence: int) -> None:
        read = self.api.llama_state_seq_set_data(
            self.handle, state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)), state.size, sequence
        )
        assert read == state.size, f"llama.cpp read {read} bytes of a state of {state.size}"

    def clear(self) -> None:
        self.api.llama_memory_clear(self.memory, False)

    def cut(self, num_tokens: int) -> bool:
        """Removes the text after its first `num_tokens` tokens. Returns whether that was possible."""
        return bool(self.api.llama_memory_seq_rm(self.memory, 0, num_tokens, -1))

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Adds the tokens of a sequence at positions from `start` to before `end` to another one."""
        if start < end:
            self.api.llama_memory_seq_cp(self.memory, source, target, start, end)

    def append(self, sequence: int, start: int, end: int) -> None:
        """Makes the tokens of a sequence at positions from `start`, where the text ends, to before `end` part of the
        text. They move right behind it: in the gaps that a tree leaves, llama.cpp would put later tokens, and sums over
        the cache would have another order than those of a text that was never drafted."""
        self.api.llama_memory_seq_rm(self.memory, sequence, 0, start)
        self.api.llama_memory_seq_rm(self.memory, sequence, end, -1)
        state = self.state(sequence)
        self.keep_text()
        self._write(state, sequence)
        self.copy(sequence, 0, start, end)

    def keep_text(self) -> None:
        """Drops all tokens that do not belong to the text."""
        self.api.llama_memory_seq_keep(self.memory, 0)


class LlamaSequence(CachedSequence):
    """A model's cached sequence, which is extended by llama.cpp. `kind`: see Context."""

    model: LlamaNetwork

    def __init__(
        self, network: LlamaNetwork, name: str, vocab_size: int, passes: PassLog, kind: CacheDtype = "float16"
    ) -> None:
        super().__init__(network, name, vocab_size, passes)
        self.kind = kind
        self._check_room(LEAST_CAPACITY, 0)
        self.context = Context(network, name, LEAST_CAPACITY, 1, kind)
        self._num_sequences = 1  # that are needed
        self._tips: dict[int, int] = {}  # the last node of each sequence of a tree
        self._holders: list[int] = []  # a sequence that holds each node of the tree
        self._snapshots: dict[int, np.ndarray[Any, Any]] = {}  # of a recurrent model, by position, ascending
        self._goes_back = False  # whether it was rolled back, so that tokens are read on trial

    @property
    def capacity(self) -> int:
        return self.context.capacity

    def fix_width(self, num_rows: int) -> None:
        """See CachedSequence. Only passes of one row are alike: of several rows llama.cpp computes some by other
        kernels than the rest."""
        if num_rows != 1:
            raise ConfigError(
                f"--pass-width {num_rows}: llama.cpp computes the rows of one pass by several kernels: give 1, or take "
                "--engine eager"
            )
        if self.model.is_recurrent:
            raise ConfigError(f"--pass-width 1: model '{self.name}' has recurrent layers: leave the option out")
        self.pass_width = num_rows

    def reset(self) -> None:
        super().reset()
        self.context.clear()
        self._snapshots = {}

    def checkpoint(self) -> int:
        self._keep_state()
        return super().checkpoint()

    def rollback(self, num_tokens: int) -> None:
        """Cuts the cache after its first `num_tokens` tokens. A recurrent model returns to the newest state at or
        before that position, and the next pass reads the tokens in between again."""
        if self._tree is not NO_TREE:
            self.context.keep_text()
        if num_tokens < len(self.cached_ids):
            if self.model.is_recurrent:
                num_tokens = self._restore_state(num_tokens)
            elif not self.context.cut(num_tokens):
                self.context.clear()  # the next pass reads the whole text again
                num_tokens = 0
        super().rollback(num_tokens)

    def check_trees(self) -> None:
        if self.model.is_recurrent:
            raise cannot_read_trees(self.name)
        self._num_sequences = int(self.model.api.llama_max_parallel_sequences())

    def _ensure(self, num_tokens: int) -> None:
        context = self.context
        if num_tokens <= context.capacity and self._num_sequences <= context.num_sequences:
            return
        capacity = context.capacity
        while capacity < num_tokens:
            capacity *= 2
        self._check_room(capacity, context.capacity)
        if self._tree is not NO_TREE:
            self.rollback(len(self.cached_ids))
        state = context.state() if self.cached_ids else None
        context.close()  # first, so that both are never held at once
        self.context = Context(self.model, self.name, capacity, self._num_sequences, self.kind)
        if state is not None:
            self.context.restore(state)

    def _check_room(self, capacity: int, held: int) -> None:
        """Raises ConfigError if keys and values of `capacity` tokens do not fit into the free memory and that of `held`
        tokens. A GPU's memory is not looked at: llama.cpp fails if there is too little."""
        if self.model.num_layers_on_gpu:
            return
        # The states of a model whose cache cannot be cut hold its keys and values, too.
        num_states = NUM_SNAPSHOTS if self.model.is_recurrent else 0
        needed, freed = (cache_bytes(self.model.header, number, self.kind) for number in (capacity, held))
        kept = f", with {num_states} earlier states," if num_states else ""
        what = f"model '{self.name}': keys and values of {capacity:,} tokens in {self.kind}{kept} take"
        other = ", --cache-dtype float16" if self.kind == "float32" else ""
        remedy = f"take shorter prompts, a smaller generation.max_new_tokens{other} or a smaller model"
        check_memory((1 + num_states) * needed, what, remedy, freed)

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        if hidden_layers:
            raise ConfigError(
                f"model '{self.name}': --engine {ENGINE} gives no hidden states, which the method reads: take --engine "
                "eager, which computes with the weights dequantized"
            )
        tokens = ids if pending is None else [*ids, *pending.tolist()]
        first = len(tokens) - num_read
        num_logits = max(1, num_logits)  # of a part of a pass, none may be wanted
        # A recurrent model keeps its state before tokens that may be rejected, as models.recurrent does for layers.
        if not parents and (num_logits > 1 or self._goes_back):
            self._keep_state()
        start = self.passes.clock.mark()
        if parents:
            rows = self._read_tree(tokens, parents, first, num_logits)
        else:
            rows = self._read_chain(tokens, first, num_logits)
        self.passes.add(num_read, start, self.passes.clock.mark())
        return Output(rows)

    def _read_chain(self, tokens: Sequence[int], first: int, num_logits: int) -> torch.Tensor:
        """Reads the tokens from `first` on. Returns the logits after the last `num_logits`."""
        total = len(tokens)
        rows: list[torch.Tensor] = []
        for begin in range(first, total, BATCH):
            end = min(begin + BATCH, total)
            output = max(total - num_logits, begin) - begin
            self.context.decode(tokens[begin:end], range(begin, end), slice(output, None))
            if begin + output < end:
                rows.append(self.context.logits(output, end - begin - output, self.vocab_size).clone())
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _read_tree(self, tokens: Sequence[int], parents: Sequence[int], first: int, num_logits: int) -> torch.Tensor:
        """Reads the tokens from `first` on of a text and a tree behind it. See CachedSequence._read."""
        num_text = len(tokens) - len(parents)
        num_known = max(first - num_text, 0)
        if not num_known:
            self._tips, self._holders = {}, []
        levels = depths(parents)
        # 1. Every leaf among the new nodes gets a sequence: that of the cached node above it if it ends there, else a
        #    new one with the same tokens.
        inner = {parent for parent in parents[num_known:] if parent >= num_known}
        lineages: list[list[int]] = [[] for _ in range(len(parents) - num_known)]  # the sequences of each new node
        used: list[int] = []
        for leaf in (node for node in range(num_known, len(parents)) if node not in inner):
            path = [leaf]
            while path[-1] >= num_known:
                path.append(parents[path[-1]])
            above = path.pop()
            sequence = next((each for each, tip in self._tips.items() if tip == above and above >= 0), None)
            if sequence is None:
                sequence = len(self._tips) + 1
                if sequence >= self.context.num_sequences:
                    raise ConfigError(
                        f"model '{self.name}': a draft tree has more than {self.context.num_sequences - 1} leaves, "
                        f"which is what --engine {ENGINE} holds: draft smaller trees"
                    )
                source, end = (
                    (self._holders[above], num_text + levels[above]) if above >= 0 else (0, min(first, num_text))
                )
                self.context.copy(source, sequence, 0, end)
            self._tips[sequence] = leaf
            used.append(sequence)
            for node in path:
                lineages[node - num_known].append(sequence)
        self._holders += [each[0] for each in lineages]
        # 2. One pass. Text that is not cached belongs to all sequences; what one batch cannot hold of it comes before.
        text = [0, *used]
        while len(tokens) - first > BATCH:
            end = min(first + BATCH, len(tokens) - BATCH)
            if first + BATCH > num_text and end > num_text:
                raise ConfigError(
                    f"model '{self.name}': a draft tree has more than {BATCH} tokens: draft smaller trees"
                )
            self.context.decode(tokens[first:end], range(first, end), slice(0, 0), [text] * (end - first))
            first = end
        num_text_read = max(num_text - first, 0)
        positions = [*range(first, num_text), *(num_text + level - 1 for level in levels[num_known:])]
        output = len(positions) - num_logits
        self.context.decode(tokens[first:], positions, slice(output, None), [*[text] * num_text_read, *lineages])
        return self.context.logits(output, num_logits, self.vocab_size).clone()

    def _move(self, start: int, places: list[int]) -> None:
        if places:
            sequence, end = self._holders[places[-1] - start], start + len(places)
            if places == list(range(start, end)):  # right behind the text already
                self.context.copy(sequence, 0, start, end)
            else:
                self.context.append(sequence, start, end)
        self.context.keep_text()

    def _read_suffixes(self, suffixes: list[list[int]]) -> Iterator[torch.Tensor]:
        num_cached, length = len(self.cached_ids), len(suffixes[0])
        if self.model.is_recurrent:
            yield from self._read_suffixes_alone(suffixes)
            return
        num_rows = max(1, min(MAX_ROWS, BATCH // length, len(suffixes)))
        self._num_sequences = max(self._num_sequences, num_rows + 1)
        self._ensure(num_cached + num_rows * length)
        for first in range(0, len(suffixes), num_rows):
            rows = suffixes[first : first + num_rows]
            start = self.passes.clock.mark()
            for sequence in range(1, len(rows) + 1):
                self.context.copy(0, sequence, 0, num_cached)
            tokens = [token for row in rows for token in row]
            self.context.decode(
                tokens, [*range(num_cached, num_cached + length)] * len(rows), slice(length - 1, None, length),
                [[1 + place // length] for place in range(len(tokens))],
            )  # fmt: skip
            logits = self.context.logits(length - 1, len(rows), self.vocab_size).clone()
            self.passes.add(len(tokens), start, self.passes.clock.mark())
            self.context.keep_text()
            yield logits

    def _read_suffixes_alone(self, suffixes: list[list[int]]) -> Iterator[torch.Tensor]:
        num_cached = len(self.cached_ids)
        self._ensure(num_cached + len(suffixes[0]))
        state = self.context.state()
        for suffix in suffixes:
            start = self.passes.clock.mark()
            self.context.decode(suffix, range(num_cached, num_cached + len(suffix)), slice(-1, None))
            logits = self.context.logits(len(suffix) - 1, 1, self.vocab_size).clone()
            self.passes.add(len(suffix), start, self.passes.clock.mark())
            self.context.restore(state)
            yield logits

    def _keep_state(self) -> None:
        """Of a recurrent model only: others are cut at any position."""
        position = len(self.cached_ids)
        if self.model.is_recurrent and position and position not in self._snapshots:
            self._snapshots = thinned({**self._snapshots, position: self.context.state()})

    def _restore_state(self, num_tokens: int) -> int:
        """Returns to the newest state at or before `num_tokens`. Returns its position."""
        self._goes_back = True
        self._snapshots = {place: state for place, state in self._snapshots.items() if place <= num_tokens}
        position = max(self._snapshots, default=0)
        if position:
            self.context.restore(self._snapshots[position])
        else:
            self.context.clear()
        return position
