"""`specbench.plugin` is all that code outside the package imports, and it is cheap to import."""

import re
import subprocess
import sys
from pathlib import Path

import specbench.plugin

CHECKOUT = Path(__file__).resolve().parents[1]
IMPORT = re.compile(r"^\s*(?:from|import) (specbench\b[\w.]*)(?: import (.*))?", re.M)
PUBLIC = {"specbench", "specbench.plugin"}


def examples() -> dict[str, str]:
    """The skeletons, the Python blocks of all pages, and the modules of the tests' plug-in packages, by name."""
    files = [*(CHECKOUT / "specbench/cli/skeletons").rglob("*.py")]
    found = {str(file): file.read_text(encoding="utf-8") for file in files}
    for page in [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]:
        found[str(page)] = "\n".join(
            re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        )
    for module in re.findall(r"'''\n(.*?)'''", (CHECKOUT / "tests/test_plugins.py").read_text(encoding="utf-8"), re.S):
        found[f"tests/test_plugins.py {module[:40]!r}"] = module
    return found


def test_skeletons_and_examples_import_only_the_public_surface() -> None:
    imported = {(name, module) for name, text in examples().items() for module, _ in IMPORT.findall(text)}
    assert {module for _, module in imported} == PUBLIC, sorted(pair for pair in imported if pair[1] not in PUBLIC)


def test_every_public_name_exists_and_is_in_the_docstring() -> None:
    assert sorted(specbench.plugin.__all__, key=str.lower) == sorted(set(specbench.plugin.__all__), key=str.lower)
    for name in specbench.plugin.__all__:
        assert getattr(specbench.plugin, name) is not None
    described = set(re.findall(r"\w+", specbench.plugin.__doc__ or ""))
    assert set(specbench.plugin.__all__) - described <= {"Registry"}


def test_importing_it_imports_no_other_module_of_the_package() -> None:
    program = (
        "import sys, specbench.plugin\n"
        "print(sorted(name for name in sys.modules if name.startswith(('specbench', 'torch', 'pydantic'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['specbench', 'specbench.built_in', 'specbench.plugin']"
