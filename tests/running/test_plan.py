"""The plan is checked before anything runs: prompts fit, tokens exist, references can be read, the machine is idle."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.core import environment as threads
from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.running import plan
from specbench.running.plan import check_prompts, check_references, load_lines, num_gpu_processes
from specbench.running.prompts import PromptRenderer, uses_chat
from specbench.specs.components import ScorerSpec
from specbench.tasks.examples import Example
from specbench.tasks.scoring import make_scorer
from tests.support import tiny


def subset_run(prompt: str, model: Any, context_limit: int | None = 100, reference: str = "1") -> Any:
    data = SimpleNamespace(location="rows.tsv", examples=[Example(0, "first", (prompt,), (reference,))])
    task = SimpleNamespace(name="t", language="en", scorer=ScorerSpec.model_validate({"type": "number"}))
    decoder = SimpleNamespace(model=model)
    decoder.parts = (decoder,)
    scorer = make_scorer(task)
    return SimpleNamespace(
        task=task,
        subset="en",
        data=data,
        decoders=[decoder],
        context_limit=context_limit,
        scorer=scorer,
        limited_by="small",
        renderer=PromptRenderer("never"),
        readers=(model,),
    )


def test_a_prompt_must_leave_room_for_one_token() -> None:
    check_prompts(subset_run("x" * 99, tiny.causal_lm()))
    with pytest.raises(
        ConfigError, match=r"t/en example first: the prompt has 100 tokens.*100 tokens \(that of 'small'"
    ):
        check_prompts(subset_run("x" * 100, tiny.causal_lm()))
    check_prompts(subset_run("x" * 1000, tiny.causal_lm(), context_limit=None))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty after tokenization"):
        check_prompts(subset_run("", tiny.causal_lm()))


def test_a_tokenizer_that_is_wider_than_its_model_is_refused() -> None:
    narrow = tiny.causal_lm(vocab_size=200)
    check_prompts(subset_run("plain", narrow))
    with pytest.raises(ConfigError, match=r"makes token 2[0-9]+, but the model has only 200"):
        check_prompts(subset_run("naïve \x00", narrow))


def test_a_scorer_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    SCORERS.names()
    monkeypatch.setitem(SCORERS._builtin, "number", lambda: len)
    with pytest.raises(ConfigError, match="scorer 'number' returned a builtin_function_or_method, not a "):
        subset_run("x", None)


def test_references_are_read_once_before_the_run() -> None:
    check_references(subset_run("x", None, reference="2,125"))
    with pytest.raises(ConfigError, match=r"rows\.tsv: en example first: .*'many' holds no number"):
        check_references(subset_run("x", None, reference="many"))


def test_chat() -> None:
    model = tiny.causal_lm()
    assert not uses_chat(model, "auto") and not uses_chat(model, "never")
    with pytest.raises(ConfigError, match="no chat template"):
        uses_chat(model, "always")
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    assert uses_chat(model, "auto") and uses_chat(model, "always") and not uses_chat(model, "never")


others_load = plan.others_load  # a fixture of all tests replaces it


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return monkeypatch


@pytest.mark.parametrize(("load", "is_busy"), [(0.0, False), (2.4, False), (2.6, True), (11.0, True)])
def test_a_line_comes_where_cores_are_missing(cpu: pytest.MonkeyPatch, load: float, is_busy: bool) -> None:
    cpu.setattr(plan, "others_load", lambda: load)
    lines = list(load_lines("cpu"))
    assert len(lines) == is_busy
    if lines:
        assert f"other programs use {load:.1f} of its 4 CPU cores, and this one needs 2:" in lines[0]
        assert lines[0].endswith("give --threads 1")
    cpu.setattr(torch, "get_num_threads", lambda: 1)
    assert not any("--threads" in line for line in load_lines("cpu")), "there are no fewer"


def test_workers_that_share_a_machine_are_no_other_programs(cpu: pytest.MonkeyPatch) -> None:
    cpu.setattr(plan, "others_load", lambda: 50.0)
    cpu.setattr(threads, "_num_sharing", 3)
    assert list(load_lines("cpu")) == []


@pytest.mark.parametrize(("idle", "expected"), [(100, 0.0), (75, 1.0), (0, 4.0)])
def test_cores_that_are_busy_now_count(cpu: pytest.MonkeyPatch, tmp_path: Path, idle: int, expected: float) -> None:
    """The load average of the last minute would count an earlier run of the user too."""
    stat = tmp_path / "stat"
    assert others_load(stat) == 0.0, "a system without it"
    stat.write_text("cpu  500 20 80 1000 50 0 0 0 30 0\ncpu0 1 1 1 1\n")
    later = f"cpu  {600 - idle} 20 80 {1000 + idle} 50 0 0 0 90 0\n"
    cpu.setattr(plan, "time", SimpleNamespace(sleep=lambda seconds: stat.write_text(later)))  # of this module alone
    assert others_load(stat) == pytest.approx(expected)


class Nvml:
    """Stands in for the library: the number of processes by GPU, as NVML gives it where the list has no room."""

    def __init__(self, processes: dict[int, int], *, works: bool = True) -> None:
        self.processes, self.works = processes, works

    def nvmlInit_v2(self) -> int:
        return 0 if self.works else 9

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index in self.processes else 2

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, number: Any, found: None) -> int:
        number._obj.value = self.processes[handle.value - 1]
        return 7 if number._obj.value else 0


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_get_nvml_device_index", lambda index: index)
    monkeypatch.setattr("ctypes.CDLL", lambda name: Nvml({0: 2, 1: 0, 3: 1}))
    return monkeypatch


def test_other_processes_on_the_gpu_are_counted(gpus: pytest.MonkeyPatch) -> None:
    names = ("auto", "cuda:3", "cuda:1", "cuda:2", "cpu", "mps")
    assert [num_gpu_processes(name) for name in names] == [2, 1, 0, 0, 0, 0]
    assert [line for line in load_lines("cuda") if "the GPU is shared with 2 other processes" in line]
    gpus.setattr(torch.cuda, "_get_nvml_device_index", lambda index: 3 - index)  # by CUDA_VISIBLE_DEVICES
    assert num_gpu_processes("cuda") == 1


def test_a_gpu_that_cannot_be_read_ends_no_run(gpus: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    for library in (missing, lambda name: Nvml({0: 2}, works=False), lambda name: object()):
        with gpus.context() as patch:
            patch.setattr("ctypes.CDLL", library)
            assert num_gpu_processes("cuda") == 0

    def unknown(index: int) -> int:
        raise RuntimeError("no such device")

    with gpus.context() as patch:
        patch.setattr(torch.cuda, "_get_nvml_device_index", unknown)
        assert num_gpu_processes("cuda") == 0
    gpus.setattr(torch.cuda, "is_initialized", lambda: True)
    assert num_gpu_processes("cuda") == 0
