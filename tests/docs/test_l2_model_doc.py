"""`docs/l2-model.md` is true: its Python runs, and its links lead somewhere."""

import re
from pathlib import Path

import torch

from attnbench.contract.discovery import get_implementation
from attnbench.contract.problem import Problem

PAGE = Path(__file__).parents[2] / "docs" / "l2-model.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_its_python_runs():
    problem = Problem(seqlen_q=32, num_heads=1, head_dim=16)
    flash, tensors = get_implementation("triton-flash"), torch.randn(3, 1, 1, 32, 16)
    names = {
        "my_attention": lambda q, k, v: flash.attention(q, k, v, problem=problem),
        **dict(zip("qkv", tensors, strict=True)),
    }
    (source,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(compile(source, str(PAGE), "exec"), names)
    assert names["curve"].write_bytes(50 << 20) == 32 * 16 * 4 + 32 * 4


def test_links_lead_somewhere():
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert len(links) > 2
    assert [target for target in links if not (PAGE.parent / target).exists()] == []
