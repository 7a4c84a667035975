"""The machine and the versions of a measurement, as rows name them."""

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from specbench.built_in import __version__
from specbench.core.environment import PACKAGE, called, num_sharing
from specbench.core.values import WHOLE, bytes_digest, file_digest

PACKAGES = ("torch", "transformers", "datasets")
LLAMA_CPP = "llama-cpp-python"  # which has a version of llama.cpp; only rows of its engine name it
version = cache(metadata.version)  # which reads all of a package's metadata
MEASURED_FILES = ("specbench", "tasks", "methods")  # changes of other files do not change the numbers


def environment(
    device: str, dtype: str, attention: str, engine: str = "eager", packages: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns device name, dtype, attention, engine, threads, platform, python, versions and commit; null if unknown.
    `packages`: further ones that compute, whose versions are told.
    `device`: a torch device ("cpu", "cuda:0", "mps"), or several that share a model ("cuda:0+cuda:1"). The speed of a
    CPU depends on the number of threads, on other workers and on the clock; its name holds these, so that rows in which
    they differ are not compared. Never raises."""
    import torch

    return {
        "device": _or_null(lambda: _device_names(device)) or device,
        "dtype": dtype, "attention": attention, "engine": engine, "num_threads": torch.get_num_threads(),
        "platform": platform.platform(), "python": platform.python_version(),
        "versions": {
            "python": platform.python_version(),
            **{name: _or_null(partial(version, name)) for name in (*PACKAGES, *packages)},
            "specbench": __version__,
        },
        "commit": commit(PACKAGE.parent),
    }  # fmt: skip


def commit(checkout: Path) -> str | None:
    """Returns the commit of a checkout; None for any other folder. If measured files differ from the commit, "-dirty-"
    and 8 hex digits over these files are appended, so that different states are not confused."""
    with suppress(Exception):
        if (checkout / ".git").exists():  # a package installed inside another repository has no commit of its own
            head, changed = _git_status(checkout)
            if head != "(initial)":  # otherwise there is no commit yet
                paths = {name: checkout / name for name in sorted(changed)}
                contents = {
                    name: file_digest(each, WHOLE) if each.is_file() else "gone" for name, each in paths.items()
                }
                parts = (f"{name}\0{text}\0".encode("utf-8", "surrogateescape") for name, text in contents.items())
                return f"{head}-dirty-{bytes_digest(parts, 8)}" if changed else head
    return None


def _git_status(checkout: Path) -> tuple[str, list[str]]:
    """Returns the commit, and the measured files that were changed or added since."""
    command = [
        "git", "-C", str(checkout), "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-z",
        "--untracked-files=all", "--no-renames", "--", *MEASURED_FILES,
    ]  # fmt: skip
    # Inside a git hook, GIT_DIR and similar variables point at the hook's repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    output = subprocess.run(command, env=variables, capture_output=True, timeout=10, check=True).stdout
    head, changed = "", []
    for line in os.fsdecode(output).split("\0"):
        if line.startswith("# branch.oid "):
            head = line.split(" ", 2)[2]
        elif line and not line.startswith("#"):
            num_fields = {"1": 8, "u": 10, "?": 1}[line[0]]  # before the name
            changed.append(line.split(" ", num_fields)[num_fields])
    return head, changed


def _device_names(devices: str) -> str:
    """Returns the names of devices with the number of equal ones: "2 × NVIDIA H100 + some CPU, 1 thread"."""
    names = Counter(place if place == "disk" else _device_name(place) for place in devices.split("+"))
    return " + ".join(f"{number} × {name}" if number > 1 else name for name, number in names.items())


def _device_name(device: str) -> str:
    import torch

    from specbench.models.meters import HOST  # which imports torch

    kind, _, layers = device.partition(":")
    if kind == "gpu":  # of llama.cpp, beside the CPU
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "GPU"
        return f"{name} for {layers} layers"
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.get_device_name(device)
    if kind == "mps":
        return f"{platform.processor() or platform.machine()} mps"
    num_threads = torch.get_num_threads()
    pages = ", huge pages" if asks_for_huge_pages() else ""
    left_out = ", waits for a CPU left out" if HOST.leaves_out_waits else ""
    threads = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
    return called(f"{_cpu_model()}, {threads}{pages}{left_out}", num_sharing())


@cache
def details() -> dict[str, Any]:
    """Returns what somebody who repeats a measurement may want to know of machine and software beyond `environment`:
    all installed packages, the CPU with its flags, memory, GPUs with driver, why meters of energy cannot be read (null:
    they can), and the files that differ from the commit. Unknown parts are absent. Never raises."""
    found: dict[str, Any] = {"platform": platform.platform(), "python": platform.python_version()}
    for name, get in (("packages", _packages), ("cpu", _cpu), ("memory_bytes", _memory_bytes), ("gpu", _gpu),
                      ("energy_unknown", _energy_unknown), ("changed_files", _changed_files)):  # fmt: skip
        with suppress(Exception):
            if (value := get()) is not None:
                found[name] = value
    return {**found, "commit": commit(PACKAGE.parent)}


def _packages() -> dict[str, str]:
    """Returns the versions of installed packages by name, from the names of their folders: to read all their metadata
    takes a second."""
    names = (name for path in reversed(sys.path) if os.path.isdir(path) for name in os.listdir(path))
    parts = (name.removesuffix(".dist-info").split("-") for name in names if name.endswith(".dist-info"))
    return dict(sorted((each[0].lower().replace("_", "-"), each[1]) for each in parts if len(each) == 2))


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any] | None:
    """Returns what Linux tells of the first CPU, the number of CPUs, and how their clock is governed."""
    if not cpuinfo.is_file():
        return None
    first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "model": told.get("model name") or platform.machine(), "microcode": told.get("microcode"),
        "flags": (told.get("flags") or told.get("Features") or "").split(), "num_cpus": os.cpu_count(),
        "governor": governor.read_text(encoding="utf-8").strip() if governor.is_file() else None,
    }  # fmt: skip


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gpu(driver: Path = Path("/proc/driver/nvidia/version")) -> dict[str, Any] | None:
    """Returns the names of CUDA devices, the version of CUDA that torch was built for, and the driver."""
    import torch

    if not torch.cuda.is_available():
        return None
    told = driver.read_text(encoding="utf-8").splitlines()[0] if driver.is_file() else None
    names = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return {"names": names, "cuda": torch.version.cuda, "driver": told}


def _energy_unknown() -> dict[str, str | None]:
    """Returns why the energy of the processor, and of GPUs if there are any, cannot be read."""
    import torch

    from specbench.models.meters import why_no_cpu_joules, why_no_gpu_joules

    devices = map(torch.device, (f"cuda:{place}" for place in range(torch.cuda.device_count())))
    of_gpus = [why_no_gpu_joules(device) for device in devices]
    return {"cpu": why_no_cpu_joules()} | ({"gpu": next(filter(None, of_gpus), None)} if of_gpus else {})


def _changed_files() -> dict[str, str] | None:
    """Returns a digest of each measured file that differs from the commit; None outside a checkout."""
    checkout = PACKAGE.parent
    if not (checkout / ".git").exists():
        return None
    changed = sorted(_git_status(checkout)[1])
    return {name: file_digest(checkout / name) if (checkout / name).is_file() else "gone" for name in changed}


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def asks_for_huge_pages() -> bool:
    """Returns whether torch asks for huge pages, and Linux gives them to programs that ask. They are then faster to
    read, so that rows with and without them are not compared."""
    asks = os.environ.get("THP_MEM_ALLOC_ENABLE") == "1"
    return asks and HUGE_PAGES.is_file() and "[madvise]" in HUGE_PAGES.read_text(encoding="utf-8")


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*models, platform.processor(), platform.machine()]), "cpu")


def _or_null(get: Callable[[], str | None]) -> str | None:
    try:
        return get()
    except Exception:
        return None
