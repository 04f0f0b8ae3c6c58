"""The README as a newcomer uses it: from the wheel, each block alone, each program and each shell line twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, Block, blocks_of

from stepwell import Stepwell

README = ROOT / "README.md"
BLOCKS = {f"{block.language} at line {block.line}": block for block in blocks_of(README)}
PROGRAMS = [block for block in BLOCKS.values() if block.language == "python"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has nothing but the wheel of this project and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("stepwell-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPWELL", "REDIS_URL", "PYTHON"))}
    path = os.pathsep.join([str(folder / "site" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"PYTHONPATH": str(folder / "site"), "PATH": path}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_each_block_of_the_readme_runs_alone_and_twice(block: Block, installed: dict[str, str], tmp_path: Path):
    """In a folder of its own; shell lines have the programs there, and nothing that these have left."""
    if block.language != "python":
        for program in PROGRAMS:
            _commands(program, tmp_path)
    for command in _commands(block, tmp_path):
        for _ in range(2):
            done = subprocess.run(
                command, shell=True, check=False, cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"line {program.line}")
def test_importing_a_program_of_the_readme_starts_nothing(program: Block, installed: dict[str, str], tmp_path: Path):
    (command,) = _commands(program, tmp_path)
    before = sorted(tmp_path.iterdir())
    name = command.split()[1].removesuffix(".py")
    subprocess.run([sys.executable, "-B", "-c", f"import {name}"], cwd=tmp_path, env=installed, check=True, timeout=60)
    assert sorted(tmp_path.iterdir()) == before


def test_first_program_is_killed_and_run_again_and_charges_once(installed: dict[str, str], tmp_path: Path):
    (command,) = _commands(PROGRAMS[0], tmp_path)
    program = [sys.executable, "-u", *command.split()[1:]]
    with subprocess.Popen(program, cwd=tmp_path, env=installed, stdout=subprocess.PIPE, text=True) as killed:
        with Stepwell(f"sqlite:///{tmp_path}/shop.db", worker=False) as well:
            while not well.executions.list() or well.run("order-7").status() in {"PENDING", "RUNNING"}:
                threading.Event().wait(0.02)
        killed.kill()
        before, _ = killed.communicate(timeout=30)
    again = subprocess.run(program, cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=120, check=True)
    assert (before + again.stdout).count("charging") == 1
    assert again.stdout.splitlines()[-1].startswith("the lamp is paid: order-7:charge")


def test_readme_uses_the_installed_package(installed: dict[str, str], tmp_path: Path):
    code = "import stepwell; print(stepwell.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=installed, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(installed["PYTHONPATH"])


def test_wheel_has_all_pages_and_a_readme_without_links_into_the_repository(installed: dict[str, str]):
    site = Path(installed["PYTHONPATH"])
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(site / "stepwell" / "docs") for path in (site / "stepwell" / "docs").rglob("*.*")} == pages
    [metadata] = site.glob("stepwell-*.dist-info/METADATA")
    shown = metadata.read_text(encoding="utf-8").partition("\n\n")[2]
    assert "| Install, concepts in five minutes |" in shown
    assert [target for target in re.findall(r"\[[^\]]*\]\(([^)]*)\)", shown) if "://" not in target] == []
    assert [block.code for block in blocks_of(README)] == re.findall(r"^```[^\n]*\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL)


def _commands(block: Block, folder: Path) -> list[str]:
    """The commands of a block; a program is written to the file that its first line names."""
    if block.language == "python":
        name = block.code.split("\n", 1)[0].removeprefix("# ")
        assert name.endswith(".py"), f"line {block.line} of the README: a program's first line names its file"
        (folder / name).write_text(block.code, encoding="utf-8")
        return [f"python {name}"]
    # What installs Stepwell needs a registry, and the targets of make have tests of their own.
    return [line for line in block.code.splitlines() if not line.startswith(("pip install", "make "))]
