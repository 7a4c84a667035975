"""The page of engines: every side is measured on every prompt, and what is measured is what the page says."""

import re

import pytest
import torch

from tests.support import tiny
from tools.engines import __main__ as script
from tools.engines import compiling, methods, products

SLOW, FAST = [(10, 1.0)] * 12, [(10, 0.25)] * 12


@pytest.fixture
def measured(monkeypatch, made):
    """Lines whose compiled passes are left as they are."""
    prompts = methods.embedded_prompts
    monkeypatch.setattr(methods, "embedded_prompts", lambda *arguments: prompts(*arguments)[:3])
    return list(methods.lines(("ar", "sd", "fsd", "slem"), per_language=1, max_new_tokens=12))


@pytest.mark.slow
def test_every_side_is_measured_on_every_prompt_and_lossless_ones_agree(measured):
    assert [line.method for line in measured] == ["ar", "sd", "fsd", "slem"]
    assert [line.transformers is None for line in measured] == [False, False, True, False]
    for line in measured:
        sides = [line.eager, line.compiled, *([line.transformers] if line.transformers else [])]
        assert [len(side) for side in sides] == [3] * len(sides)
        assert line.num_equal == 3
        assert line.transformers is None or [n for n, _ in line.transformers] == [n for n, _ in line.eager]
        assert len(line.cells()) == len(methods.HEAD)


def test_the_page_says_what_was_measured(monkeypatch):
    lines = [
        methods.Line("ar", SLOW, FAST, SLOW, 12, ("2.0 %", "6.0 %")),
        methods.Line("fsd", FAST, FAST, None, 11, ("3.0 %", "7.0 %")),
    ]
    monkeypatch.setattr(compiling, "starts", lambda: [95.4, 12.3])
    monkeypatch.setattr(script, "said", lambda module, *words: f"said by {module} {' '.join(words)}")
    page = "".join(script.page(lines))
    assert re.search(r"The figures are of commit ([0-9a-f]{7}|unknown)\. ", page)
    assert "| ar | 10.0 | 40.0 | 10.0 | 4.00 [4.00, 4.00] | 4.00 [4.00, 4.00] | 12 of 12 | 2.0 % | 6.0 % |" in page
    assert "| fsd | 40.0 | 40.0 | – | 1.00 [1.00, 1.00] | – | 11 of 12 | 3.0 % | 7.0 % |" in page
    assert "| fsd | 4.00 [4.00, 4.00] | 1.00 [1.00, 1.00] | – |" in page
    assert "took 95 s at a first start, and 12 s at a second one" in " ".join(page.split())
    for engine in ("eager", "compiled"):
        assert f"said by specbench roofline {' '.join(script.PAIR)} --engine {engine}" in page


def test_a_command_that_fails_ends_the_script():
    with pytest.raises(script.subprocess.CalledProcessError):
        script.said("json.tool", "missing.json")


@pytest.mark.slow
def test_bare_products_are_those_of_every_linear_layer():
    network = tiny.network(num_hidden_layers=1)
    linear = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    torch.manual_seed(0)
    inputs = [torch.randn(3, module.in_features) for module in linear]
    for make in products.KINDS.values():
        torch.manual_seed(0)
        found = make(network, 3)()
        assert len(found) == len(linear) == 8
        for module, given, own in zip(linear, inputs, found, strict=True):
            torch.testing.assert_close(own, torch.nn.functional.linear(given, module.weight), rtol=1e-4, atol=1e-5)


def test_a_line_has_the_ratio_of_the_pairs_and_not_of_the_medians():
    """The machine is three times as slow in the second turn, and in the third for one token alone."""
    found = {("pass", 1): [0.001, 0.003, 0.003], ("pass", 6): [0.002, 0.006, 0.002], ("calls", 0): [0.0001] * 3}
    calls, one, six = products.lines(found)
    assert calls == "calls      0 tokens: 0.100 ms, at least 0.100"
    assert one == "pass       1 tokens: 3.000 ms, at least 1.000"
    assert six == "pass       6 tokens: 2.000 ms, at least 2.000, 2.00 [0.67, 2.00] of one"
