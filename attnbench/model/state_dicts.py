"""Weights into modules and out of files: state dicts checked whole, safetensors, never pickle.

A pickle can run code when it is read; safetensors holds numbers alone.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from attnbench.contract.errors import UsageError

from .mixer import AttentionMixer

PICKLED = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
"""Endings of files that hold pickles."""


@torch.no_grad()
def load_weights(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Copy a state dict into a module, all of it or nothing; values are cast to the module's dtype.

    A parameter with several names (tied or shared) is satisfied by any of them. Parts that an implementation
    brings of its own (``….core.*``) may be left out together: they stay as they were drawn.

    Raises:
        UsageError: keys that are missing, extra, misshaped, no floating-point tensors, or unlike where they
            name one parameter. All are listed, and nothing has been loaded.
    """
    wanted = module.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in wanted.items():
        same.setdefault(id(tensor), []).append(name)
    own = _own_parts(module)
    optional = set() if any(name in state_dict for name in own) else own
    missing, misshaped, unlike = [], [], []
    chosen: list[tuple[Tensor, Tensor]] = []
    for names in same.values():
        present = [name for name in names if name in state_dict]
        if not present:
            missing += [] if names[0] in optional else [names[0]]
            continue
        misfits = _misfits(state_dict, present, wanted[names[0]])
        misshaped += misfits
        if misfits:
            continue
        first = state_dict[present[0]]
        unlike += [f"{present[0]} and {name}" for name in present[1:] if not equal(first, state_dict[name])]
        chosen.append((wanted[names[0]], first))
    problems = {
        "missing": missing,
        "extra": [name for name in state_dict if name not in wanted],
        "misshaped": misshaped,
        "one parameter here but not there": unlike,
    }
    found = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if found:
        raise UsageError(f"state_dict: {'; '.join(found)}; nothing was loaded")
    for parameter, tensor in chosen:
        parameter.copy_(tensor)


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; those that share their memory are not read."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    shared = a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and not a.is_meta
    return shared or torch.equal(a, b.to(a.device))


def _own_parts(module: nn.Module) -> set[str]:
    """Names of the parameters that an implementation brought: they belong to no architecture."""
    return {
        f"{place}.core.{name}".removeprefix(".")
        for place, part in module.named_modules()
        if isinstance(part, AttentionMixer) and part.core is not None
        for name in part.core
    }


def _misfits(state_dict: Mapping[str, Tensor], names: Iterable[str], wanted: Tensor) -> list[str]:
    found = []
    for name in names:
        tensor = state_dict[name]
        if not isinstance(tensor, Tensor) or tensor.is_floating_point() != wanted.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            found.append(f"{name} is {str(kind).removeprefix('torch.')}, not floating-point")
        elif tensor.shape != wanted.shape:
            found.append(f"{name} is {list(tensor.shape)}, not {list(wanted.shape)}")
    return found


def read_safetensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of one safetensors file, on the CPU.

    Raises:
        UsageError: no such file, a pickle, or no safetensors inside.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"path: a file is needed, not {path!r}")
    refuse_pickle(path)
    if Path(path).is_dir():
        raise UsageError(f"{path}: a folder, and a safetensors file is needed")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            return metadata, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping: it cannot be iterated
    except SafetensorError as error:
        raise UsageError(f"{path}: no safetensors file ({error})") from None


def refuse_pickle(path: str | Path) -> None:
    """Raise ``UsageError`` for a file that holds pickled weights, saying what to do."""
    if Path(path).suffix.lower() in PICKLED:
        raise UsageError(
            f"{path}: a pickle can run code when it is read, so it is not; where you trust it, load it into "
            "its own model and write that as safetensors (save_pretrained, safetensors.torch.save_model)"
        )
