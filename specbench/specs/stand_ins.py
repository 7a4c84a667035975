"""Which embedded model drafts until the one that a method names is there."""

from specbench.resources import EMBEDDED

STAND_INS = {
    "drafter-scdf": "drafter",
    "drafter-distill-task": "drafter",
    "drafter-distill-general": "drafter",
    "drafter-pretrain-finetune": "drafter",
}


def present(checkpoint: str) -> str:
    """The embedded model itself where it is a member of the family, else its stand-in; any other name as it is."""
    from specbench.demo.family import members

    name = checkpoint.removeprefix(EMBEDDED)
    if not checkpoint.startswith(EMBEDDED) or name in {member.name for member in members()}:
        return checkpoint
    return EMBEDDED + STAND_INS.get(name, name)
