"""What the options say that every command has, and the well that they lead to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from stepwell.cli.screen import Screen
from stepwell.config import choose_url
from stepwell.errors import StoreUnavailable

if TYPE_CHECKING:
    from stepwell.app import Stepwell

__all__ = ["CliSettings", "settings"]


@dataclass
class CliSettings:
    """The global options. They may stand before or behind the command's name; what stands behind wins."""

    url: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    is_debug: bool = False
    modules: list[str] = field(default_factory=list[str])

    @property
    def screen(self) -> Screen:
        """Where to write."""
        return Screen.standard(is_json=self.is_json, is_quiet=self.is_quiet)

    def load_modules(self) -> list[ModuleType]:
        """Import the modules that were named, so that their workflows are known."""
        from stepwell.cli.source import import_source

        return [import_source(name) for name in self.modules]

    def check_place(self, url: str) -> None:
        """Refuse a SQLite file that is not there: to look for a run must not make an empty store where the name was mistyped."""
        if url.startswith("sqlite:"):
            from stepwell.stores.sqlite.connection import parse_url

            path = parse_url(url).path
            if not Path(path).exists():
                raise StoreUnavailable(
                    f"there is no store at {path!r} yet; correct the URL, or make it with stepwell migrate or the first run"
                )

    @contextmanager
    def open(self, *, worker: bool = False, creates: bool = False, **options: Any) -> Generator[Stepwell]:
        """The well, with the named modules imported first; it is closed at the end, whatever happens."""
        from stepwell.app import Stepwell

        if not creates:
            self.check_place(choose_url(self.url)[0])
        self.load_modules()
        with Stepwell(self.url, worker=worker, **options) as well:
            yield well


def settings() -> CliSettings:
    """The settings of the command that is running."""
    return click.get_current_context().ensure_object(CliSettings)
