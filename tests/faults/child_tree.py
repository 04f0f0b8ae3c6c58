"""A worker for a tree of children that all leave their traces in one file. Run by test_child_tree."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import stepwell
from stepwell import Stepwell, step, workflow

SIZE = 3
MOST = 3
"""The child_concurrency of the tree."""


def leave(folder: str, what: str) -> None:
    """Add a line that all processes see in the same order."""
    with (Path(folder) / "traces").open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


@step
async def trace(folder: str, name: str) -> str:
    leave(folder, f"+{name}")
    await asyncio.sleep(0.02)
    leave(folder, f"-{name}")
    return name


@workflow(name="tree.leaf")
async def leaf(given: list[str]) -> str:
    return await trace(*given)


@workflow(name="tree.branch")
async def branch(given: list[str]) -> list[str]:
    folder, name = given
    return await stepwell.map(leaf, [[folder, f"{name}.{number}"] for number in range(SIZE)])


@workflow(name="tree.root")
async def root(folder: str) -> list[list[str]]:
    return await stepwell.map(branch, [[folder, str(number)] for number in range(SIZE)])


def main(url: str, lease_seconds: str) -> None:
    """Work until the pipe is closed."""
    with Stepwell(url, lease_seconds=float(lease_seconds), concurrency=3):
        print("working", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
