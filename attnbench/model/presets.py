"""Named Transformers, read from ``presets.toml``: a name in, a ``TransformerConfig`` out. Loads no torch."""

import dataclasses
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

from attnbench.contract.errors import UsageError, nearest
from attnbench.model.config import TransformerConfig

EXCHANGEABLE = (
    "mask",
    "max_seqlen",
    "rope_base",
    "rope_scaling",
    "scale",
    "checkpoint_activations",
    "cross_implementation",
)
"""Fields that may differ from what the weights were trained with: no weight has another shape for them."""


@cache
def _tables() -> dict[str, dict[str, object]]:
    return tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))


def preset_names() -> list[str]:
    """The names of all presets, in the order of the file."""
    return list(_tables())


def preset_source(name: str) -> str:
    """Where the numbers of a preset come from."""
    return str(_table(name)["source"])


def preset_weights(name: str) -> Path | None:
    """The file with a preset's trained weights; None for a preset whose weights are drawn."""
    file = _table(name).get("weights")
    return None if file is None else Path(str(files(__package__).joinpath("data", str(file))))


def load_preset(name: str) -> TransformerConfig:
    """The config of a preset; raises ``UsageError`` with the nearest name for one that does not exist."""
    fields = {key: value for key, value in _table(name).items() if key not in ("source", "weights")}
    return TransformerConfig(**fields)  # type: ignore[arg-type]  # checked by TransformerConfig itself


def require_trained_form(preset: str, config: TransformerConfig) -> None:
    """Refuse a config that the weights of ``preset`` do not belong to; without such weights, none.

    Raises:
        UsageError: every field that differs and is not among ``EXCHANGEABLE``.
    """
    if preset_weights(preset) is None:
        return
    trained = load_preset(preset)
    changed = [
        f"{field.name} = {getattr(config, field.name)!r} (trained with {getattr(trained, field.name)!r})"
        for field in dataclasses.fields(config)
        if field.name not in EXCHANGEABLE and getattr(config, field.name) != getattr(trained, field.name)
    ]
    if changed:
        raise UsageError(
            f"preset {preset!r} has trained weights, which do not fit {', '.join(changed)}; what may change: "
            f"{', '.join(EXCHANGEABLE)}; a config instead of a name has its weights drawn"
        )


def _table(name: str) -> dict[str, object]:
    tables = _tables()
    if name not in tables:
        raise UsageError(f"no preset {name!r}{nearest(name, list(tables))}; there are {', '.join(tables)}")
    return tables[name]
