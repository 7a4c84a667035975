"""RunOptions: the options that all measuring commands have in common."""

from dataclasses import dataclass, fields

FLAGS = {"subsets": "subset", "overrides": "set"}  # fields with another name on the command line


@dataclass(frozen=True)
class RunOptions:
    """The models, data, amounts and conditions of a run as the user gives them, not yet validated.

    Options with the name of a RunSpec field have its meaning and default. `target`: None is the embedded target.
    `overrides`: KEY=VALUE pairs for the specs of tasks and methods. `threads`: CPU threads; None is 1 for the embedded
    target, else the library's default.
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
        """Returns these options as command-line arguments, without those that have their default."""
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
