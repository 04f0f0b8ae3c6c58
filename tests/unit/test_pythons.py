"""The search for interpreters: only one that runs and has the version counts."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from tools.pythons import VERSIONS, find_python

HERE = "{}.{}".format(*sys.version_info)


def test_running_interpreter_is_found_by_its_version():
    found = find_python(HERE)
    assert found is not None
    assert Path(found).exists()


def test_shim_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_python("9.9") is None


def test_classifiers_name_no_version_that_is_not_looked_for():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)) <= set(VERSIONS)
