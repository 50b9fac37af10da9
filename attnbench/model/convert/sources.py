"""Where a Hugging Face model comes from: memory, or a folder of JSON and safetensors. In: either. Out: its
settings, the name of its class, and its tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from attnbench.contract.errors import UsageError, nearest
from attnbench.model.state_dicts import PICKLED, read_safetensors, refuse_pickle

T = TypeVar("T")
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Settings:
    """The fields of a ``config.json``, and where they came from."""

    fields: Mapping[str, Any]
    where: str

    def get(self, name: str, default: T) -> T:
        """A field, or ``default`` where it is absent or null; beside a boolean default it must be one."""
        value: T | None = self.fields.get(name)
        if value is not None and isinstance(default, bool) and not isinstance(value, bool):
            raise UsageError(f"{self.where}: {name} must be true or false, not {value!r}")
        return default if value is None else value

    def choose(self, name: str, default: str, choices: Mapping[str, T]) -> T:
        """The one of ``choices`` that a field names."""
        given: object = self.get(name, default)
        if not isinstance(given, str) or given not in choices:
            raise UsageError(
                f"{self.where}: {name} {given!r} is none of {', '.join(choices)}"
                f"{nearest(str(given), choices)}"
            )
        return choices[given]

    def need(self, name: str) -> Any:
        """A field that must be there."""
        if self.fields.get(name) is None:
            raise UsageError(f"{self.where}: the config has no {name}")
        return self.fields[name]

    def refuse(self, name: str, *, unless: object, why: str) -> None:
        """Raise ``UsageError`` where a field is there and not ``unless``, for which ``why`` is the reason."""
        if self.get(name, unless) != unless:
            raise UsageError(f"{self.where}: {name} = {self.fields[name]!r} cannot be carried over: {why}")


@dataclass(frozen=True)
class Source:
    """A model to be converted."""

    settings: Settings
    class_name: str
    tensors: Mapping[str, Tensor]


def read_source(model_or_folder: nn.Module | str | Path) -> Source:
    """What is needed of a model in memory or of a folder; transformers is not imported.

    Raises:
        UsageError: neither a model of Hugging Face nor a folder, files that are missing, pickles, no JSON, or
            quantised weights.
    """
    if isinstance(model_or_folder, nn.Module):
        source = _from_memory(model_or_folder)
    elif isinstance(model_or_folder, str | Path):
        source = _from_folder(Path(model_or_folder))
    else:
        raise UsageError(
            f"model_or_folder: a model of Hugging Face or a folder, not {type(model_or_folder).__name__}"
        )
    source.settings.refuse("quantization_config", unless=None, why="quantised weights are not unpacked")
    return source


def _from_memory(model: nn.Module) -> Source:
    name = type(model).__name__
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    if to_dict is None:
        raise UsageError(
            f"model_or_folder: {name} has no config of Hugging Face; from_torch takes modules of torch.nn"
        )
    return Source(Settings(to_dict(), name), name, model.state_dict())


def _from_folder(folder: Path) -> Source:
    refuse_pickle(folder)
    if not folder.is_dir():
        raise UsageError(
            f"model_or_folder: {str(folder)!r} is no folder; nothing is downloaded: write one with "
            "save_pretrained(folder)"
        )
    settings = Settings(_read_json(folder / "config.json"), str(folder))
    classes: Any = settings.get("architectures", [])
    if not isinstance(classes, list) or len(classes) != 1:
        raise UsageError(f"{folder}: architectures in config.json must name one class, not {classes!r}")
    return Source(settings, str(classes[0]), _read_tensors(folder))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"{path.parent}: has no {path.name}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}: no JSON ({error})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: a table of fields is needed, not {type(found).__name__}")
    return found


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / _INDEX).is_file():
        return _read_shards(folder)
    if (folder / _WHOLE).is_file():
        return read_safetensors(folder / _WHOLE)[1]
    pickled = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICKLED)
    if pickled:
        refuse_pickle(pickled[0])
    raise UsageError(f"{folder}: has neither {_WHOLE} nor {_INDEX}")


def _read_shards(folder: Path) -> dict[str, Tensor]:
    """The tensors that the index names, each from its own file."""
    index = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UsageError(f"{folder / _INDEX}: weight_map must name a file for each weight")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(index.values())):
        if name in ("", "..") or Path(name).name != name:
            raise UsageError(f"{folder / _INDEX}: {name!r} is no file of the folder")
        tensors |= read_safetensors(folder / name)[1]
    lacking = sorted(set(index) - set(tensors))
    if lacking:
        raise UsageError(f"{folder / _INDEX}: named but in no file: {', '.join(lacking)}")
    return tensors
