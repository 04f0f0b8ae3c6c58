"""Run the quick tests on every Python that Stepwell supports and this machine has: `make pythons`.

Each version gets an environment of its own, `.venv-pythons/3.12`, with the versions of `locks/dev.txt`. An interpreter is looked
for on `PATH` and among those of uv and pyenv; where there is none, uv is asked to install one. The last lines say what was found
and what passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "VERSIONS", "candidates", "find_python", "main"]

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = ["-q", "-n", "2", "--dist", "worksteal", "--stores", "memory", "tests/unit", "tests/conformance", "tests/acceptance"]
_PROGRAM = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"


def candidates(version: str) -> Iterator[str]:
    """Yield commands that may be an interpreter of a version, such as ``3.12``."""
    for place in (shutil.which(f"python{version}"), shutil.which("python3"), sys.executable):
        if place is not None:
            yield place
    for each in sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*/bin/python")):
        yield str(each)
    yield from _uv(version, "find", "--no-project", "--no-python-downloads")


def _uv(version: str, command: str, *options: str) -> list[str]:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, "python", command, *options, version], capture_output=True, text=True, check=False, timeout=600)
    return [done.stdout.strip()] if done.returncode == 0 and done.stdout.strip() else []


def _install(version: str) -> bool:
    """Ask uv to install a version; return whether it could."""
    uv = Path(sys.executable).with_name("uv")
    return subprocess.run([uv, "python", "install", "-q", version], capture_output=True, check=False, timeout=600).returncode == 0


def find_python(version: str) -> str | None:
    """Return the path of an interpreter of a version that runs, or None. A shim of pyenv is found, and may not run."""
    for candidate in candidates(version):
        done = subprocess.run([candidate, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=60)
        found, _, path = done.stdout.strip().partition(" ")
        if done.returncode == 0 and found == version:
            return path
    return None


def _environment(version: str, python: str) -> Path:
    """Return the interpreter of a version's environment, which is made or brought up to date."""
    folder = ROOT / ".venv-pythons" / version
    inside = folder / "bin" / "python"
    stamp, lock = folder / ".installed", ROOT / "locks" / "dev.txt"
    if not stamp.exists() or stamp.stat().st_mtime < max(lock.stat().st_mtime, (ROOT / "pyproject.toml").stat().st_mtime):
        pip = [inside, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", lock], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
        stamp.touch()
    return inside


def main(versions: list[str]) -> int:
    """Test each version; return 1 if one that was found fails."""
    results: dict[str, str] = {}
    for version in versions or VERSIONS:
        python = find_python(version) or (find_python(version) if _install(version) else None)
        if python is None:
            results[version] = "not on this machine, and uv could not bring it"
            continue
        print(f"==> Python {version}: {python}", flush=True)
        command = [_environment(version, python), "-m", "pytest", *TESTS]
        done = subprocess.run(command, cwd=ROOT, check=False)
        results[version] = "passed" if done.returncode == 0 else f"FAILED, exit code {done.returncode}"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return int(any(each.startswith("FAILED") for each in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
