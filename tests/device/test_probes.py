"""What can be measured here is tried, not assumed, and what can't says why."""

import tempfile
from pathlib import Path

from attnbench.device import probes


def test_a_kernel_that_fails_says_how(monkeypatch):
    finding = probes._try_triton("neither", "it worked", {})
    assert not finding.available
    assert "KeyError: 'neither'" in finding.detail


def test_the_combination_that_is_known_to_fail_is_named(monkeypatch):
    """Triton 3.6's interpreter fails with numpy 2.4: the reason says what to change."""
    found = {"triton": "3.6.0", "numpy": "2.4.1"}
    monkeypatch.setattr(probes, "version_of", found.get)
    cause, fix = probes._known_cause("interpret")
    assert "needs numpy below 2.4" in cause
    assert fix == "pip install 'numpy<2.4'"
    assert probes._known_cause("compile") == ("", None)
    found["numpy"] = "2.3.5"
    assert probes._known_cause("interpret") == ("", None)


def test_probing_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    probes._try_triton("neither", "", {})
    assert list(Path(tmp_path).iterdir()) == []
