"""A row by itself: its metrics by name."""

import pytest

from specbench.core.errors import ConfigError
from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row


def test_a_name_that_no_metric_has_is_an_error_with_the_nearest_one() -> None:
    for ask in (row().value, row().metric):
        with pytest.raises(ConfigError, match=r"^row .*: no metric 'speed_up': did you mean 'speedup'\?") as raised:
            ask("speed_up")
        assert "`specbench list metrics`" in str(raised.value)
        with pytest.raises(ConfigError, match=r"no metric 'nosuch'"):
            ask("nosuch")


@pytest.mark.parametrize("name", ["tree_nodes", "accuracy", "accuracy_difference", "polite", "polite_ar"])
def test_a_metric_that_this_row_lacks_is_none(name: str) -> None:
    """Of a score that nothing declares here, too, such as that of a plug-in which made the row elsewhere."""
    bare = row(quality="polite", metrics={})
    assert bare.value(name) is None and bare.metric(name) == Estimate() and not bare.has(name)
    assert bare.metric(None) == bare.metric("") == Estimate()
    assert row(quality="polite", metrics={"polite_ar": Estimate(value=0.5)}).value("polite_ar") == 0.5
