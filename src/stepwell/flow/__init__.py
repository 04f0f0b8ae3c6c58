"""What a workflow is: nodes, the builder, documents, templates, expressions, the checker and pictures."""

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
from stepwell.flow.check import check
from stepwell.flow.definition import Definition, DefinitionStatus
from stepwell.flow.document import parse, render
from stepwell.flow.drawing import draw_mermaid, draw_svg
from stepwell.flow.expression import Expression, expression
from stepwell.flow.failure import EvaluationFailed, MalformedExpression, MissingPath
from stepwell.flow.node import Keep, Node, Range
from stepwell.flow.outline import Outline, Place
from stepwell.flow.retry import Retry
from stepwell.flow.template import Template, template

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
    "deferred",
    "define",
    "draw_mermaid",
    "draw_svg",
    "each",
    "edge",
    "expression",
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
    "template",
    "throw",
    "validate",
    "wait",
    "when",
]
