"""The checker: find every fault of a definition that can be seen without running it, in one report.

It checks the types of fields, then each node alone, then names and references across the tree. ``kernel/soundness`` explores the
reachable states of a definition in addition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, cast

from stepwell.errors import InvalidDefinition, Problem, StepwellError
from stepwell.flow.definition.document_reader import MAX_DEPTH, read_definition
from stepwell.flow.definition.document_writer import plain_definition
from stepwell.flow.definition.findings import Finding, Findings, shown_path
from stepwell.flow.definition.node import CancelScopeNode, Definition, Graph, Subworkflow
from stepwell.flow.definition.outline import Outline, Path, Place, kind_word
from stepwell.flow.definition.reference_checks import reference_findings
from stepwell.flow.definition.source_text import DocumentReading, Located, Mark, TooManyFaults
from stepwell.flow.definition.structure_checks import Known, node_findings
from stepwell.model.ids import check_key

__all__ = ["MAX_NAME_BYTES", "Finding", "check", "checked", "findings_of"]

MAX_NAME_BYTES = 256
"""Half the length of a key: a run appends to node names, for example iteration numbers, to make keys."""

# Keys that the kernel builds from names. A node with such a name would collide with another node or with a token.
_ITERATION = re.compile(r"\[[0-9]+\]\Z")
_ATTEMPT = re.compile(r"#[0-9]+\Z")
_TOKEN_ROOT, _TOKEN_PREFIXES = "(root)", ("(after) ", "(undo) ")
_TOKEN_SLOTS = ("(loose)", "(undo)")
_ROOT_SCOPE = "root"


def check(
    definition: Definition, *, steps: Collection[str] | None = None, workflows: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """Return every fault of a definition with its path; an empty tuple if there is none.


    - ``definition``: the definition.
    - ``steps``, ``workflows``: known names; any other name is then a fault. None accepts every name.
    """
    try:
        found = list(_all_findings(definition, steps, workflows))
    except RecursionError:
        found = [Finding(("do",), f"nodes are nested more than {MAX_DEPTH} deep; move the inner ones to a subworkflow")]
    return tuple(Problem(InvalidDefinition.code, finding.message, shown_path(finding.path)) for finding in found)


def checked(definition: Definition, **known: Collection[str] | None) -> Definition:
    """Return the definition, or raise ``InvalidDefinition`` with every fault."""
    problems = check(definition, **known)
    if problems:
        raise InvalidDefinition(problems)
    return definition


def _all_findings(definition: Definition, steps: Collection[str] | None, workflows: Collection[str] | None) -> Findings:
    """Return the findings of a definition that was built in Python, whose types nothing has checked yet.

    It is written as plain data and read like a document, so that both have the same type checks.
    """
    paths: list[Path] = []
    reading = DocumentReading("")
    read = None
    with suppress(TooManyFaults):
        read = read_definition(reading, _located(plain_definition(definition), (), paths))
    for problem in reading.problems:
        line, offset = (int(part) for part in problem.where.rsplit(":", 2)[1:])
        yield Finding(paths[line], problem.message, offset)
    if read is not None:
        for finding in findings_of(read, steps=steps, workflows=workflows):
            if not reading.is_consequence(finding.path, finding.unknown):
                yield finding


def _located(value: Any, path: Path, paths: list[Path]) -> Located:
    """Return plain data as if it had been read, with the number of its path in place of a line."""
    mark = Mark(len(paths), 0)
    paths.append(path)
    if not isinstance(value, dict | list):
        return Located(mark, value, inner=0)
    located = Located.opened(mark, is_mapping=isinstance(value, dict))
    if isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            located.put(str(key), _located(part, (*path, str(key)), paths), mark)
    else:
        for index, part in enumerate(cast("list[Any]", value)):
            cast("list[Located]", located.items).append(_located(part, (*path, index), paths))
    located.close()
    return located


def findings_of(definition: Definition, *, steps: Collection[str] | None, workflows: Collection[str] | None) -> Findings:
    """Return the findings of a definition whose fields have the right types."""
    outline = Outline(definition)
    scopes = [place.name for place in outline if isinstance(place.node, CancelScopeNode)]
    yield from _name_findings(outline)
    known = Known(steps, workflows, [_ROOT_SCOPE, *scopes])
    for place in outline:
        yield from node_findings(place, known)
    yield from reference_findings(outline)


def _name_findings(outline: Outline) -> Findings:
    yield from _key_finding(outline.definition.name, "the name", ("name",))
    for place in outline.duplicates:
        given = place.node.name or place.slot
        first = outline[given]
        message = f"the name {given!r} is taken by another node, at {shown_path(first.path)}"
        yield Finding((*place.path, "name") if place.node.name else place.path, message)
    for place in outline:
        yield from _node_name_findings(place)
        yield from _slot_findings(place)
    for name in outline.definition.variables:
        yield from _key_finding(name, "the name of a variable", ("variables", name))
        if name.startswith("$"):
            yield Finding(("variables", name), f"variable {name!r} is Stepwell's own; choose a name that does not begin with $")
    for index, name in enumerate(outline.definition.grants):
        yield from _key_finding(name, "a workflow's name in grants", ("grants", index))


def _node_name_findings(place: Place) -> Findings:
    is_key = not place.node.name and place.parent is not None and isinstance(place.parent.node, Graph)
    path = place.path if is_key else (*place.path, "name" if place.node.name else kind_word(place.node))
    for message in _name_faults(place):
        yield Finding(path, message, is_about_key=is_key)


def _name_faults(place: Place) -> Iterator[str]:
    name, node = place.name, place.node
    size = len(name.encode(errors="surrogatepass"))
    if size > MAX_NAME_BYTES:
        yield f"the name of a node has at most {MAX_NAME_BYTES} bytes, since a run adds to it; this one has {size:,}"
    else:
        yield from _key_faults(name, "the name")
    if _ITERATION.search(name):
        yield f"the name {name!r} ends in a number in brackets, as only iterations do; choose another"
    if name == _TOKEN_ROOT or name.startswith(_TOKEN_PREFIXES):
        yield f"the name {name!r} is one that a run uses itself; choose another"
    if isinstance(node, Subworkflow) and _ATTEMPT.search(name):
        yield f"the name {name!r} ends in # and a number, as only further attempts of a subworkflow do; choose another"
    if isinstance(node, CancelScopeNode) and name == _ROOT_SCOPE:
        yield f"a scope cannot have the name {name!r}: that is the whole run"


def _slot_findings(place: Place) -> Iterator[Finding]:
    for slot, child in place.children.items():
        if not slot:
            yield Finding(child.path, "a branch or node needs a name", is_about_key=True)
        if slot in _TOKEN_SLOTS:
            yield Finding(child.path, f"the name {slot!r} is one that a run uses itself; choose another", is_about_key=True)


def _key_finding(name: str, what: str, path: Path) -> Iterator[Finding]:
    for message in _key_faults(name, what):
        yield Finding(path, message)


def _key_faults(name: str, what: str) -> Iterator[str]:
    try:
        check_key(name, what)
    except StepwellError as error:
        yield str(error.message)
