"""Parse and render definitions as YAML or JSON, without loss. All faults are reported at once, with file, line and column."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from stepwell.errors import InvalidInput, LimitExceeded
from stepwell.flow.definition.checker import Finding, findings_of
from stepwell.flow.definition.document_reader import read_definition
from stepwell.flow.definition.document_writer import json_text, plain_definition, yaml_text
from stepwell.flow.definition.findings import Findings
from stepwell.flow.definition.node import Definition
from stepwell.flow.definition.outline import Path
from stepwell.flow.definition.source_text import MAX_CHARACTERS, DocumentReading, Mark, TooManyFaults, read_json, read_yaml

__all__ = ["Format", "parse", "render"]

Format = Literal["yaml", "json"]


def parse(
    text: str | bytes,
    *,
    source: str = "<text>",
    format: Format | None = None,
    steps: Collection[str] | None = None,
    workflows: Collection[str] | None = None,
    further: Callable[[Definition], Findings] | None = None,
) -> Definition:
    """Read a definition, check it, and return it.

    - ``text``: the definition, as YAML or JSON.
    - ``source``: the file name for messages.
    - ``format``: ``"yaml"`` or ``"json"``. By default a ``source`` that ends in ``.json`` and a text that begins with a brace are
      JSON.
    - ``steps``, ``workflows``: known names; any other name is then a fault. None accepts every name.
    - ``further``: another check, run only on a definition without faults.

    Raise ``InvalidDefinition`` with every fault as ``source:line:column``.
    """
    content = _decoded(text, source)
    reading = DocumentReading(source)
    definition = None
    try:
        read = read_json if (format or _guess(content, source)) == "json" else read_yaml
        document = read(content, reading)
        definition = read_definition(reading, document) if document is not None else None
        for finding in findings_of(definition, steps=steps, workflows=workflows) if definition is not None else ():
            if not reading.is_consequence(finding.path, finding.unknown):
                reading.fault(_mark_of(reading, finding), finding.message)
        for finding in further(definition) if further and definition is not None and not reading.problems else ():
            reading.fault(_mark_of(reading, finding), finding.message)
    except TooManyFaults:
        pass
    reading.finish()
    assert definition is not None, "what could not be read has a fault"  # noqa: S101 - for the type checker
    return definition


def render(definition: Definition, format: Format = "yaml") -> str:
    """Return the definition as a text from which ``parse`` reads an equal definition.

    - ``definition``: the definition.
    - ``format``: ``"yaml"`` or ``"json"``.
    """
    document = plain_definition(definition)
    return yaml_text(document) if format == "yaml" else json_text(document)


def _decoded(text: str | bytes, source: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise LimitExceeded(f"{source} has {len(text):,} characters; a definition has at most {MAX_CHARACTERS:,}")
    try:
        content = text if isinstance(text, str) else text.decode()
        content.encode()
    except UnicodeError as error:
        raise InvalidInput(f"{source} is not UTF-8 text: {error}") from None
    return content.removeprefix("\ufeff")


def _guess(text: str, source: str) -> Format:
    return "json" if source.endswith(".json") or text.lstrip().startswith("{") else "yaml"


def _mark_of(reading: DocumentReading, finding: Finding) -> Mark:
    """Return the position of a finding, or of the nearest enclosing part that has one."""
    path: Path = finding.path
    if finding.is_about_key and path in reading.key_marks:
        return reading.key_marks[path]
    while path and path not in reading.marks:
        path = path[:-1]
    located = reading.marks.get(path)
    if located is None:
        return Mark(1, 1)
    return located.place_in(finding.offset) if path == finding.path else located.mark
