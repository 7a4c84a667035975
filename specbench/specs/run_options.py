"""The options that the commands that measure have in common."""

from dataclasses import dataclass, fields

FLAGS = {"subsets": "subset", "overrides": "set"}  # options whose name on the command line is another one


@dataclass(frozen=True)
class RunOptions:
    """The models, data, amounts and conditions of a run, as a user gives them: nothing is checked yet.

    Options with the name of a field of RunSpec have its meaning and default. `target`: the embedded one when None.
    `overrides`: KEY=VALUE, for the specs of the tasks and methods. `threads`: of the CPU; the library's choice when
    None, and 1 for the embedded target.
    """

    subsets: tuple[str, ...] | None = None
    target: str | None = None
    drafter: str | None = None
    target_revision: str | None = None
    drafter_revision: str | None = None
    data: str | None = None
    limit: int | None = None
    subsets_per_task: int | None = None
    repeats: int = 1
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    engine: str = "auto"
    chat: str = "auto"
    threads: int | None = None
    overrides: tuple[str, ...] = ()
    allow_code_execution: bool = False

    def words(self) -> list[str]:
        """Returns the words of a command line that give these options; those that have their default are left out."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            flag = "--" + FLAGS.get(field.name, field.name).replace("_", "-")
            if field.name == "overrides":
                words += [word for override in value for word in (flag, override)]
            elif value is True:
                words.append(flag)
            else:
                words += [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
        return words
