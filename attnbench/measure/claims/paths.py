"""How many steps lie between positions. In: an implementation, lengths. Out: exponents of path lengths in n.

Both are read off the graph that autograd keeps, whose nodes are the operations: its longest chain is what has
to be done one after the other, and its shortest way from the last output to the first input is the path that
a gradient has to survive.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.contract.discovery import get_implementation
from attnbench.contract.masks import Full
from attnbench.contract.mixers import MixerConfig
from attnbench.model.mixer import AttentionMixer

from .growth import secant

DIM = 16


def path_growth(*, implementation: str, n: Sequence[int]) -> dict[str, float]:
    """Return powers of n, from the first length to the second: ``attention_steps``, ``recurrent_steps`` of
    the longest chain, ``attention_path`` and ``recurrent_path`` of the way between the ends.
    """
    config = MixerConfig(
        dim=DIM, num_heads=2, num_kv_heads=2, head_dim=DIM // 2, mask=Full(), max_seqlen=max(n)
    )
    mixer, cell = AttentionMixer(config, get_implementation(implementation)), nn.RNNCell(DIM, DIM)

    def attending(tokens: Sequence[Tensor]) -> Tensor:
        y: Tensor = mixer(torch.stack(list(tokens), dim=1))[0]
        return y[:, -1]

    def recurring(tokens: Sequence[Tensor]) -> Tensor:
        state = torch.zeros(1, DIM)
        for token in tokens:
            state = cell(token, state)
        return state

    found = {}
    for name, read in (("attention", attending), ("recurrent", recurring)):
        (steps, path), (more_steps, longer_path) = (_lengths(read, length) for length in n)
        found[f"{name}_steps"] = secant((n[0], steps), (n[1], more_steps))
        found[f"{name}_path"] = secant((n[0], path), (n[1], longer_path))
    return found


def _lengths(read: Callable[[Sequence[Tensor]], Tensor], n: int) -> tuple[int, int]:
    """Return the longest chain behind the last output, and its shortest way to the first token."""
    tokens = [torch.randn(1, DIM, requires_grad=True) for _ in range(n)]
    end = read(tokens).grad_fn
    return longest_chain(end), shortest_way(end, tokens[0])


def longest_chain(end: Any) -> int:
    """Return how many nodes the longest chain that ends here has."""
    depth: dict[Any, int] = {}
    stack = [end]
    while stack:
        node = stack[-1]
        before = [one for one, _ in node.next_functions if one is not None]
        waiting = [one for one in before if one not in depth]
        if waiting:
            stack += waiting
        else:
            depth[node] = 1 + max((depth[one] for one in before), default=0)
            stack.pop()
    return depth[end]


def shortest_way(end: Any, leaf: Tensor) -> int:
    """Return how many nodes lie on the shortest way from here to a leaf, that of the leaf included.

    Raises:
        ValueError: there is none.
    """
    queue, met = deque([(end, 1)]), {end}
    while queue:
        node, steps = queue.popleft()
        if getattr(node, "variable", None) is leaf:
            return steps
        for one, _ in node.next_functions:
            if one is not None and one not in met:
                met.add(one)
                queue.append((one, steps + 1))
    raise ValueError("the output does not depend on the leaf")
