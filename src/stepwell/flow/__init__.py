"""What a workflow is: nodes, the builder, documents, templates, expressions, the checker and pictures.

Names are fetched from their modules when they are first used, so that ``import stepwell`` stays light.
"""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.flow.action import (
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
    from stepwell.flow.builder import (
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
    from stepwell.flow.checker import check
    from stepwell.flow.definition import Definition, DefinitionStatus
    from stepwell.flow.document import parse, render
    from stepwell.flow.drawing import draw_mermaid, draw_svg
    from stepwell.flow.expression import Expression, compile_expression
    from stepwell.flow.failure import EvaluationFailed, MalformedExpression, MissingPath
    from stepwell.flow.node import Keep, Node, Range
    from stepwell.flow.outline import Outline, Place
    from stepwell.flow.retry import Retry
    from stepwell.flow.template import Template, compile_template

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
    "action": (
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
    "builder": (
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
    "checker": ("check",),
    "definition": (
        "Definition",
        "DefinitionStatus",
    ),
    "document": (
        "parse",
        "render",
    ),
    "drawing": (
        "draw_mermaid",
        "draw_svg",
    ),
    "expression": (
        "Expression",
        "compile_expression",
    ),
    "failure": (
        "EvaluationFailed",
        "MalformedExpression",
        "MissingPath",
    ),
    "node": (
        "Keep",
        "Node",
        "Range",
    ),
    "outline": (
        "Outline",
        "Place",
    ),
    "retry": ("Retry",),
    "template": (
        "Template",
        "compile_template",
    ),
}

__getattr__ = fetching(__name__, _HOMES)
