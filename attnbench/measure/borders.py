"""Where a block or a model passes into its mixers and out again, forward and backward. In: a module. Out: a
call of ``enter`` or ``leave`` at every border.

A layer keeps its mixers under the names ``mixer`` and ``cross``; whatever happens between the two borders of
one, projections and positions included, is the mixer's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

MIXER_NAMES = ("mixer", "cross")


def mixers_of(module: nn.Module) -> list[nn.Module]:
    """Return the mixers of every layer, the outermost where they are nested."""
    found: list[str] = []
    for name, _ in module.named_modules():
        inner = any(name.startswith(f"{outer}.") for outer in found)
        if name.rpartition(".")[2] in MIXER_NAMES and not inner:
            found.append(name)
    return [module.get_submodule(name) for name in found]


@contextmanager
def borders(module: nn.Module, enter: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    """Within the block, call ``enter`` and ``leave`` around the work of each mixer, in pairs.

    Forward that is around the mixer's ``forward``, recomputation by activation checkpointing included.
    Backward, hooks stand on its output and on views of its inputs: autograd runs what was recorded last first
    of all that is ready, so between the two runs this mixer's backward pass and nothing else.
    """
    mixers = mixers_of(module)
    for mixer in mixers:
        mixer.forward = _bordered(mixer.forward, enter, leave)
    try:
        yield
    finally:
        for mixer in mixers:
            del mixer.forward


def _bordered(
    forward: Callable[..., Any], enter: Callable[[], None], leave: Callable[[], None]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        on_the_way_back = False

        def enter_backward(_: Tensor) -> None:
            nonlocal on_the_way_back
            on_the_way_back = True
            enter()

        def leave_backward(_: Tensor) -> None:
            """Leave at the first of several inputs: by then all else that the mixer recorded has run."""
            nonlocal on_the_way_back
            if on_the_way_back:
                on_the_way_back = False
                leave()

        watched = False

        def watch(x: Tensor) -> Tensor:
            nonlocal watched
            if not (torch.is_grad_enabled() and x.requires_grad):
                return x
            watched = True
            view = x.view_as(x)
            view.register_hook(leave_backward)
            return view

        args, kwargs = tree_map_only(Tensor, watch, (args, kwargs))
        enter()
        try:
            y, state = forward(*args, **kwargs)
        finally:
            leave()
        if watched and y.requires_grad:
            y.register_hook(enter_backward)
        return y, state

    return run


def _nothing() -> None:
    """Take no note of a border."""


class Inside:
    """Whether the work of a mixer is going on: its methods are what ``borders`` calls."""

    def __init__(self, at_border: Callable[[], object] = _nothing) -> None:
        """Begin outside; ``at_border`` is called whenever inside becomes outside or the other way round."""
        self._depth = 0
        self._at_border = at_border

    def __bool__(self) -> bool:
        """Say whether somebody has entered and not left."""
        return self._depth > 0

    def enter(self) -> None:
        """Pass into a mixer."""
        if self._depth == 0:
            self._at_border()
        self._depth += 1

    def leave(self) -> None:
        """Pass out of it."""
        self._depth -= 1
        if self._depth == 0:
            self._at_border()
