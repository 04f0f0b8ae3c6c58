"""``doctor``, which checks an installation and its store, and ``completion``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import NamedTuple

import click
from click.shell_completion import get_completion_class

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.main import command
from stepwell.cli.options import CliSettings, settings
from stepwell.cli.output import printable
from stepwell.clock import SystemClock
from stepwell.config import choose_url, without_secrets
from stepwell.contract.store import Store
from stepwell.errors import StepwellError
from stepwell.model.commit import StateBatch
from stepwell.model.limits import Limits

__all__ = [
    "completion",
    "doctor",
]


_SKEW_MS = 1_000
"""A larger difference makes logs hard to read. Durable times are not affected, since they are made from the store's clock."""


class DoctorFinding(NamedTuple):
    """One check of the doctor."""

    name: str
    state: str
    """``ok``, ``warning`` or ``error``."""
    text: str


@command("doctor")
def doctor() -> None:
    """Check Python, versions, and whether the store is reachable, readable, writable and durable. Exits with 6 if not."""
    given = settings()
    findings = [*_installation(), _sqlite(), *_store_findings(given)]
    if given.is_json:
        given.screen.json({"is_ok": _is_ok(findings), "findings": [each._asdict() for each in findings]})
    else:
        colours = {"ok": "green", "warning": "yellow", "error": "red"}
        for each in findings:
            sign = given.screen.paint(colours[each.state], each.state.ljust(7))
            given.screen.write(f"{sign}  {each.name.ljust(10)}  {printable(each.text)}")
    sys.exit(ExitCode.DONE if _is_ok(findings) else ExitCode.UNREACHABLE)


def _is_ok(findings: list[DoctorFinding]) -> bool:
    return all(each.state != "error" for each in findings)


def _installation() -> Iterator[DoctorFinding]:
    yield DoctorFinding("python", "ok", f"{platform.python_version()} ({platform.python_implementation()}, {platform.system()})")
    yield DoctorFinding("stepwell", "ok", metadata.version("stepwell"))
    for name, extra in (("apsw", ""), ("msgspec", ""), ("psycopg", "postgres"), ("redis", "redis")):
        try:
            yield DoctorFinding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            hint = f"not installed; for its stores: pip install 'stepwell[{extra}]'"
            yield DoctorFinding(name, "ok", hint) if extra else DoctorFinding(name, "error", "not installed; pip install stepwell")


def _sqlite() -> DoctorFinding:
    import apsw

    from stepwell.stores.sqlite.connection import journal_mode

    version = apsw.sqlite_lib_version()
    mode = journal_mode(version)
    if mode == "wal":
        return DoctorFinding("sqlite", "ok", f"{version}, with a write-ahead log")
    return DoctorFinding("sqlite", "warning", f"{version} can lose a write-ahead log, so none is used; upgrade apsw")


def _store_findings(given: CliSettings) -> Iterator[DoctorFinding]:
    from stepwell.stores.url import store_of

    url, origin = choose_url(given.url)
    yield DoctorFinding("url", "ok", f"{without_secrets(url)} (from {origin})")
    try:
        given.check_place(url)
        store = store_of(url, SystemClock(), Limits())
        store.open()
    except StepwellError as error:
        yield DoctorFinding("store", "error", str(error))
        return
    try:
        yield from _open_store_findings(store)
    finally:
        store.close()


def _open_store_findings(store: Store) -> Iterator[DoctorFinding]:
    yield DoctorFinding("schema", "ok", "is that of this version")
    yield _tried("read", store.check)
    yield _tried("write", lambda: store.write([StateBatch(())]))
    durability = store.durability()
    yield DoctorFinding("durability", "ok" if durability.level == "full" else "warning", f"{durability.level}: {durability.reason}")
    skew = store.now_ms() - SystemClock().now_ms()
    is_near = abs(skew) <= _SKEW_MS
    advice = (
        "" if is_near else "; Stepwell goes by the store's, but logs and other programs here show this one: synchronize it (NTP)"
    )
    yield DoctorFinding("clock", "ok" if is_near else "warning", f"the store's is {skew:+} ms from this machine's{advice}")


def _tried(name: str, work: Callable[[], object]) -> DoctorFinding:
    try:
        work()
    except StepwellError as error:
        return DoctorFinding(name, "error", str(error))
    return DoctorFinding(name, "ok", "works")


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell. Use it as `source <(stepwell completion bash)`."""
    given, kind = settings(), get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert kind is not None, "the choice has only shells that click knows"  # noqa: S101 - for the type checker
    source = kind(root, {}, "stepwell", "_STEPWELL_COMPLETE").source()
    if given.is_json:
        given.screen.json({"shell": shell, "script": source})
    else:
        given.screen.write(source)
