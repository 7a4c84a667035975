"""The tracer of tools/way.py; tests/test_imports.py follows a run to its first pass with it."""

from pathlib import Path

from tools.way import ROOT, layers, way

PACKAGE = {
    "__init__.py": "",
    "cli.py": "from specbench.core import low\n\ndef main():\n    low.down()\n\ndef high():\n    pass\n",
    "core/__init__.py": "",
    "core/low.py": (
        "from specbench.core.imported import made\n\ndef down():\n    beside()\n    from specbench.cli import high\n"
        "    high()\n    high()\n\ndef beside():\n    pass\n"
    ),
    "core/imported.py": "def make():\n    return 1\n\nmade = make()\n",
}


def test_files_that_are_entered_and_calls_into_a_higher_layer(tmp_path: Path) -> None:
    """Not a file of which functions are called only while it is imported, and not a call twice."""
    for name, text in PACKAGE.items():
        file = tmp_path / "specbench" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "contributing.md").write_text("# Layers\n\ncli > core\n", encoding="utf-8")
    found = way(tmp_path, tmp_path, [], up_to_pass=False)
    assert found == {"files": ["cli.py", "core/low.py"], "upwards": ["core/low.py -> cli.py: high"], "frames": []}


def test_the_layers_of_this_checkout() -> None:
    found = layers(ROOT)
    assert found["core"] == 0 and found["cli"] == max(found.values())
    assert found["core"] < found["records"] < found["results"]
