"""The models of a comparison, each loaded once."""

from dataclasses import dataclass, field

from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model


@dataclass
class Loader:
    """Models by name and revision, each loaded once, all as the target is."""

    device: str
    dtype: str
    _loaded: dict[tuple[str, str | None], CausalLM] = field(default_factory=dict)

    def load(self, name: str, revision: str | None = None) -> CausalLM:
        """The model, as it was when a run recorded this revision. Raises ConfigError where it is another one now."""
        if (name, revision) not in self._loaded:
            is_commit = revision is not None and not revision.startswith("local-")
            model = load_model(name, revision=revision if is_commit else None, dtype=self.dtype, device=self.device)
            if revision is not None and model.revision != revision:
                raise ConfigError(
                    f"model '{name}' is not what the run measured ({model.revision} now, {revision} then): give back "
                    "its files, or measure again"
                )
            self._loaded[name, revision] = model
        return self._loaded[name, revision]
