"""The circumstances of a run: enough to understand a number, nothing private."""

import getpass
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from attnbench.device.environment import environment, git_revision, versions, without_home


def test_nothing_private_is_recorded(monkeypatch, tmp_path):
    home = tmp_path / "someone"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRITON_CACHE_DIR", f"{home}/cache")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    said = json.dumps([environment(), versions()])
    assert str(home) not in said
    assert "hunter2" not in said
    for private in {platform.node(), getpass.getuser()} - {"", "root"}:
        assert not re.search(rf"\b{re.escape(private)}\b", said)
    variables = environment()["variables"]
    assert variables["TRITON_CACHE_DIR"] == "~/cache"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "PATH" not in variables


def test_it_is_plain_data():
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["default_threads"] >= 1
    assert versions()["python"] == platform.python_version()
    assert versions()["torch"]


def test_the_home_folder_is_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann/")
    text = "in /home/ann/x.py and /home/ann, not /home/anna/y nor /home/ann-b"
    assert without_home(text) == "in ~/x.py and ~, not /home/anna/y nor /home/ann-b"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/x") == "/x"


def test_the_revision_of_a_work_tree(tmp_path, monkeypatch):
    # A repository around the test's own folder must not be found.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_revision(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_revision(tmp_path) is None  # no commit yet
    file = tmp_path / "kernel.py"
    file.write_text("1", encoding="ascii")
    git(tmp_path, "add", "kernel.py")
    git(tmp_path, "commit", "-qm", "first")
    clean = git_revision(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["modified"] is False
    file.write_text("2", encoding="ascii")
    (tmp_path / "new.py").touch()
    assert git_revision(tmp_path) == clean | {"modified": True}


def git(folder: Path, *arguments: str) -> None:
    identity = {
        f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, **identity})
