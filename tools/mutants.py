"""Mutation run: put small mistakes into `model/` and `stores/`, one at a time, and see whether the nearest tests notice.

`make mutants` takes a random sample; `make mutants MUTANTS_ARGS="--count 50 --seed 7 --only stores/redis"` another. Each mistake is
made in a scratch copy of the project, where the tests nearest to its file run until one fails. One JSON line for each mistake goes
to standard output, with `caught` or `survived`, and progress to standard error. What survives is either a missing test, or a
mistake that changes nothing; `docs/design/0022-mutation-run.md` argues the latter.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

__all__ = ["Mutant", "mutants_of", "stages_of"]

ROOT = Path(__file__).parent.parent
_SOURCE = Path("src/stepwell")
_PARTS = ("model", "stores")
_TEST_SECONDS = 100
"""A single test that takes longer hangs, so the mistake is noticed."""
_MOST_SECONDS = 300.0
"""Tests that take longer altogether say nothing about a mistake: the machine is too busy."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: the bytes of a file from `start` to `end` are replaced."""

    path: str
    line: int
    what: str
    start: int
    end: int
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mistakes that can be made in a file, by its suffix."""
    if path.endswith(".py"):
        return list(_PythonMutants(path, source).find())
    patterns = _SQL if path.endswith(".sql") else _LUA if path.endswith(".lua") else ()
    return list(_text_mutants(path, source, patterns))


# Python.

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "*"}
_QUIET = re.compile(r"^(log|warnings)\.|^fault\(|^fault_after_commit\(|^super\(\).__init__\(\)")
"""Calls that no behaviour depends on: log lines, and the fault points, which have a test of their own."""


class _PythonMutants:
    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find(self) -> Iterator[Mutant]:
        yield from self._inside(ast.parse(self._source))

    def _inside(self, node: ast.AST) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if self._is_skipped(child, node):
                continue
            yield from self._at(child)
            yield from self._inside(child)

    def _is_skipped(self, node: ast.AST, parent: ast.AST) -> bool:
        """Annotations, layouts of records and messages are no behaviour, and sizes in capitals are tuning: one more is as right."""
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.FunctionDef) and node.name == "__repr__"):
            return True
        if isinstance(parent, ast.Module | ast.ClassDef) and isinstance(node, ast.Assign):
            return all(isinstance(target, ast.Name) and target.id.isupper() for target in node.targets) or _is_named_all(node)
        if isinstance(parent, ast.ClassDef) and isinstance(node, ast.keyword):
            return True  # how a record is laid out
        if isinstance(node, ast.Raise):
            return True  # dropped as a whole by `_at` of its function's body
        is_annotation = isinstance(parent, ast.AnnAssign | ast.arg) and node is parent.annotation
        return is_annotation or (isinstance(parent, ast.FunctionDef) and (node is parent.returns or node in parent.decorator_list))

    def _at(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield self._between(left, right, f" {_COMPARISONS[type(op)]} ", "comparison")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                yield self._between(left, right, f" {_OPERATORS[type(op)]} ", "operator")
            case ast.BoolOp(op=op, values=[first, second, *_]):
                yield self._between(first, second, " or " if isinstance(op, ast.And) else " and ", "and/or")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replaced(node, self._text(operand), "not dropped")
            case ast.IfExp(test=test) | ast.If(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield self._replaced(test, f"(not ({self._text(test)}))", "condition turned round")
            case ast.Constant(value=bool() as value):
                yield self._replaced(node, str(not value), "constant")
            case ast.Constant(value=int() as value):
                yield self._replaced(node, str(value + 1), "constant")
            case _:
                pass
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(body, list) and not isinstance(node, ast.ClassDef):
                yield from (self._replaced(each, "pass", "statement dropped") for each in body if self._is_droppable(each))

    def _is_droppable(self, node: object) -> bool:
        match node:
            case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign() | ast.Raise():
                return not _QUIET.match(self._text(node))
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                return True
            case _:
                return False

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replaced(self, node: ast.AST, after: str, what: str) -> Mutant:
        assert isinstance(node, ast.expr | ast.stmt)
        return Mutant(self._path, node.lineno, what, *self._span(node), after)

    def _between(self, left: ast.expr, right: ast.expr, after: str, what: str) -> Mutant:
        """Replace the operator between two operands; brackets around them stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end].decode()
        head, tail = re.match(r"[\s)]*", between), re.search(r"[\s(]*$", between)
        assert head is not None
        assert tail is not None
        return Mutant(self._path, left.end_lineno or 0, what, start, end, head[0].rstrip(" ") + after + tail[0].lstrip(" "))


def _is_named_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


# SQL and Lua, by the line.

_ORDER = ((r" <= ", " < "), (r" < ", " <= "), (r" >= ", " > "), (r" > ", " >= "), (r" \+ 1\b", " + 2"), (r" - 1\b", " - 2"))
_SQL = (
    *_ORDER,
    (r"(?<![<>!:]) = (?!ANY)", " <> "),
    (r" <> ", " = "),
    (r" AND (?!.*\bBETWEEN\b)", " OR "),
    (r" OR ", " AND "),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bNOT (?!NULL|EXISTS|MATERIALIZED)", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r" DESC\b", ""),
    (r"\bmax\(", "min("),
)
_LUA = (
    *_ORDER,
    (r" == ", " ~= "),
    (r" ~= ", " == "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r"\bnot ", ""),
    (r"^\s*(redis\.call\([^()]*(\([^()]*\))?[^()]*\))$", ""),
    (r"\bmath\.max\(", "math.min("),
    (r"\bmath\.min\(", "math.max("),
)


def _text_mutants(path: str, source: bytes, patterns: tuple[tuple[str, str], ...]) -> Iterator[Mutant]:
    start = 0
    for number, line in enumerate(source.decode().splitlines(keepends=True), 1):
        code = line.split("--", 1)[0].rstrip("\n")
        for pattern, after in patterns if not _is_schema(code) else ():
            for found in re.finditer(pattern, code):
                at = start + len(line[: found.start()].encode())
                yield Mutant(path, number, f"{found[0].strip()!r} to {after.strip()!r}", at, at + len(found[0].encode()), after)
        start += len(line.encode())


def _is_schema(code: str) -> bool:
    """Whether a line declares something: what a column or an index is has no run of its own."""
    return bool(re.match(r"\s*(CREATE (TABLE|INDEX|UNIQUE|SEQUENCE)|\w+ +(text|bigint|bytea|boolean|INTEGER|TEXT|BLOB)\b)", code))


# Tests.


def stages_of(path: str, root: Path = ROOT) -> list[list[str]]:
    """Return the runs of pytest for a file, the nearest tests first; each is a list of arguments."""
    parts = Path(path).relative_to(_SOURCE).parts
    if parts[0] == "model" or len(parts) == 2:
        module = ".".join(("stepwell", *parts)).removesuffix(".py").removesuffix(".__init__")
        own = [each for each in _importers(module, root) if not each.startswith("tests/conformance")]
        units = {str(each.relative_to(root)) for each in (root / "tests/unit").glob("test_*.py")} - {"tests/unit/test_mutants.py"}
        near = [[*own, "--stores", "memory"]] if own else []
        near.append([*sorted(units - {*own}), "--stores", "memory"])
        return [*near, ["tests/conformance", "--stores", "memory,sqlite"], ["tests/acceptance/test_transaction.py", *_QUEUE_TESTS]]
    store = parts[1]
    own = sorted(str(each.relative_to(root)) for each in (root / "tests/integration").glob(f"test_{store}*.py"))
    near = ["tests/unit/test_memory_due.py"] if store == "memory" else own
    return [["tests/conformance", "--stores", store], [*near, "--stores", store]]


_QUEUE_TESTS = ("tests/acceptance/test_queue.py", "tests/acceptance/test_history.py", "--stores", "memory")


def _importers(module: str, root: Path) -> list[str]:
    pattern = re.compile(rf"\b{re.escape(module)}\b")
    found = (each for folder in ("unit", "acceptance") for each in (root / "tests" / folder).rglob("test_*.py"))
    return sorted(str(each.relative_to(root)) for each in found if pattern.search(each.read_text(encoding="utf-8")))


# The run.


class _Scratch:
    """A copy of the project in which mistakes are made and tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self._sound: set[str] = set()
        """Tests that are known to pass without a mistake."""
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)

    def try_out(self, mutant: Mutant) -> tuple[str, str]:
        """Return `caught`, `survived` or `no answer`, and the test that failed."""
        file = self.root / mutant.path
        source = file.read_bytes()
        try:
            file.write_bytes(mutant.applied(source))
            code, output, stores = self._run_stages(mutant.path)
        finally:
            file.write_bytes(source)
        if not code:
            return ("survived" if code == 0 else "no answer"), ""
        found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, re.MULTILINE)
        if found is None or "::" not in found[1]:
            return "caught", output.strip()[-200:]  # nothing can be imported
        return ("caught" if self._passes(found[1], stores) else "no answer"), found[1]

    def _run_stages(self, path: str) -> tuple[int | None, str, list[str]]:
        """Run the tests of a file until one fails; return the code, the output and the option that chose the stores."""
        ends, code, output, stage = monotonic() + _MOST_SECONDS, 0, "", list[str]()
        for stage in stages_of(path, self.root):
            code, output = self._run(stage, ends - monotonic())
            if code != 0:
                break
        return code, output, stage[stage.index("--stores") :]

    def _passes(self, test: str, stores: list[str]) -> bool:
        """Return whether a test passes without a mistake: one that does not says nothing."""
        if test not in self._sound and self._run([test, *stores], _MOST_SECONDS)[0] == 0:
            self._sound.add(test)
        return test in self._sound

    def _run(self, stage: list[str], seconds: float) -> tuple[int | None, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        options = [
            "-x",
            "-q",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            f"--timeout={_TEST_SECONDS}",
            "--hypothesis-profile=mutants",
        ]
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *stage],
            cwd=self.root,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = tests.communicate(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            tests.send_signal(signal.SIGINT)  # pytest ends the servers that it started
            try:
                tests.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(tests.pid, signal.SIGKILL)
                tests.communicate()
            return None, ""
        return tests.returncode, output


def _all_mutants(only: str) -> list[Mutant]:
    found: list[Mutant] = []
    for part in _PARTS:
        for file in sorted((ROOT / _SOURCE / part).rglob("*")):
            path = str(file.relative_to(ROOT))
            if file.suffix in (".py", ".sql", ".lua") and only in path:
                found += mutants_of(path, file.read_bytes())
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="make mutants", description="Put small mistakes into model/ and stores/, and run the tests."
    )
    parser.add_argument("--count", type=int, default=40, help="how many mistakes to try (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default: 1)")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--minutes", type=float, default=30, help="begin no more mistakes after so long (default: 30)")
    parser.add_argument("--at", default="", metavar="PATH:LINE", help="all mistakes of one line, in place of a sample")
    given = parser.parse_args()
    mutants = _all_mutants(given.at.rpartition(":")[0] or given.only)
    total = len(mutants)
    if given.at:
        mutants = [each for each in mutants if each.line == int(given.at.rpartition(":")[2])]
    else:
        mutants = random.Random(given.seed).sample(mutants, min(given.count, total))
    began, results = monotonic(), list[str]()
    with tempfile.TemporaryDirectory(prefix="stepwell-mutants-") as folder:
        scratch = _Scratch(Path(folder))
        for number, mutant in enumerate(mutants, 1):
            if monotonic() - began > given.minutes * 60:
                break
            start = monotonic()
            result, test = scratch.try_out(mutant)
            results.append(result)
            source = (scratch.root / mutant.path).read_bytes()
            before = source[mutant.start : mutant.end].decode()
            facts = {**asdict(mutant), "before": before, "result": result, "test": test, "seconds": round(monotonic() - start, 1)}
            print(json.dumps({key: value for key, value in facts.items() if key not in ("start", "end")}), flush=True)
            print(f"{number}/{len(mutants)}  {result:14}  {mutant.path}:{mutant.line}  {mutant.what}", file=sys.stderr, flush=True)
    counts = {name.replace(" ", "_"): results.count(name) for name in ("caught", "survived", "no answer")}
    print(json.dumps({"of": total, "tried": len(results), **counts}))


if __name__ == "__main__":
    _main()
