"""Definitions of workflows: functions, declared nodes, documents, templates, expressions, checks and pictures.

A name is imported from its module when it is first used, so that ``import stepwell`` stays fast.
"""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.flow.definition.actions import (
        call,
        cancel_scope,
        http_request,
        log,
        map_data,
        script,
        set_variables,
        subworkflow,
        throw,
        validate,
    )
    from stepwell.flow.definition.builder import (
        approval,
        choice,
        deferred,
        define,
        each,
        edge,
        graph,
        loop,
        otherwise,
        parallel,
        scope,
        sequence,
        signal,
        wait,
        when,
    )
    from stepwell.flow.definition.checker import check
    from stepwell.flow.definition.document import parse, render
    from stepwell.flow.definition.node import Definition, DefinitionStatus, Keep, Node, Range
    from stepwell.flow.definition.outline import Outline, Place
    from stepwell.flow.drawing import draw_mermaid, draw_svg
    from stepwell.flow.language.errors import EvaluationFailed, MalformedExpression, MissingPath
    from stepwell.flow.language.expression import Expression, compile_expression
    from stepwell.flow.language.template import Template, compile_template
    from stepwell.flow.retry import Retry

__all__ = [
    "Definition",
    "DefinitionStatus",
    "EvaluationFailed",
    "Expression",
    "Keep",
    "MalformedExpression",
    "MissingPath",
    "Node",
    "Outline",
    "Place",
    "Range",
    "Retry",
    "Template",
    "approval",
    "call",
    "cancel_scope",
    "check",
    "choice",
    "compile_expression",
    "compile_template",
    "deferred",
    "define",
    "draw_mermaid",
    "draw_svg",
    "each",
    "edge",
    "graph",
    "http_request",
    "log",
    "loop",
    "map_data",
    "otherwise",
    "parallel",
    "parse",
    "render",
    "scope",
    "script",
    "sequence",
    "set_variables",
    "signal",
    "subworkflow",
    "throw",
    "validate",
    "wait",
    "when",
]

_HOMES = {
    "definition.actions": (
        "call",
        "cancel_scope",
        "http_request",
        "log",
        "map_data",
        "script",
        "set_variables",
        "subworkflow",
        "throw",
        "validate",
    ),
    "definition.builder": (
        "approval",
        "choice",
        "deferred",
        "define",
        "each",
        "edge",
        "graph",
        "loop",
        "otherwise",
        "parallel",
        "scope",
        "sequence",
        "signal",
        "wait",
        "when",
    ),
    "definition.checker": ("check",),
    "definition.document": (
        "parse",
        "render",
    ),
    "drawing": (
        "draw_mermaid",
        "draw_svg",
    ),
    "language.expression": (
        "Expression",
        "compile_expression",
    ),
    "language.errors": (
        "EvaluationFailed",
        "MalformedExpression",
        "MissingPath",
    ),
    "definition.node": (
        "Definition",
        "DefinitionStatus",
        "Keep",
        "Node",
        "Range",
    ),
    "definition.outline": (
        "Outline",
        "Place",
    ),
    "retry": ("Retry",),
    "language.template": (
        "Template",
        "compile_template",
    ),
}

__getattr__ = fetching(__name__, _HOMES)
