"""specs.json: what a run's rows are of, read back with the same meaning."""

from types import SimpleNamespace

import pytest

from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.records.folder import read_method_specs, read_methods, read_tasks, write_specs
from specbench.specs.catalogue import load_method, load_task, method_names, task_names, versioned_name, with_overrides


def test_every_task_and_method_has_its_digest_when_it_is_read_back(tmp_path):
    tasks, methods = [load_task(name) for name in task_names()], [load_method(name) for name in method_names()]
    tasks, methods = with_overrides(tasks, methods, ["generation.max_new_tokens=7"])
    endless = load_method("fsd").model_copy(update={"name": "endless"})
    endless.verification.options["threshold"] = float("inf")
    methods.append(endless)
    write_specs(tmp_path, SimpleNamespace(tasks=tasks, methods=methods))
    found = [*read_tasks(tmp_path), *read_method_specs(tmp_path)]
    assert [versioned_name(each) for each in found] == [versioned_name(each) for each in (*tasks, *methods)]
    assert [each.named for each in read_methods(tmp_path).values()] == [versioned_name(each) for each in methods]
    assert str(builtin_dir("tasks")) not in (tmp_path / "specs.json").read_text(), "of which machine it is, is not told"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tasks": [3], "methods": []}'])
def test_a_broken_file_is_a_user_error(tmp_path, content):
    (tmp_path / "specs.json").write_text(content)
    with pytest.raises(ConfigError, match=r"specs\.json"):
        read_tasks(tmp_path)
