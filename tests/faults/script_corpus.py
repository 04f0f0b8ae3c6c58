"""Hostile scripts, each with its expected refusal: attempts to get out, to stay, to fill memory and to reach others."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ESCAPES", "MEMORY", "RUNAWAYS", "Payload"]


class Payload(NamedTuple):
    """A script and what its run must say."""

    code: str
    refusal: str
    """A regular expression that the failure, or the output as a text, must have in it."""


_NIL_GLOBALS = (
    "io", "debug", "package", "require", "load", "loadstring", "loadfile", "dofile", "collectgarbage", "coroutine", "python",
    "setfenv", "getfenv", "newproxy", "jit", "ffi", "bit32", "unpack", "module", "arg",
)  # fmt: skip
_CALLS = (
    "io.open('/etc/passwd')", "io.popen('id')", "io.lines('/etc/passwd')", "io.write('x')", "io.stdout:write('x')",
    "debug.getregistry()", "debug.getinfo(1)", "debug.getmetatable('')", "debug.sethook()", "debug.getupvalue(print, 1)",
    "debug.setmetatable('', {})", "debug.upvaluejoin(print, 1, print, 1)", "debug.traceback()",
    "package.loadlib('libc.so.6', 'system')", "package.loaded.os.execute('id')", "package.searchers[2]('x')", "package.cpath:len()",
    "require('io')", "require('os').execute('id')", "require('debug')",
    "load('return 1')()", "load(string.rep('x', 10))", "loadstring('return 1')()", "loadfile('/etc/passwd')",
    "dofile('/etc/passwd')",
    "collectgarbage('collect')", "coroutine.create(print)", "coroutine.wrap(print)()", "coroutine.yield('done', 1)",
    "coroutine.running()", "coroutine.close(nil)",
    "os.execute('id')", "os.remove('/etc/passwd')", "os.rename('/a', '/b')", "os.tmpname()", "os.exit()", "os.setlocale('C')",
    "python.eval('1')", "python.builtins.open('/etc/passwd')", "python.as_attrgetter({})", "python.as_function(print)",
    "python.iter({})", "python.set_overflow_handler(print)", "python.args()", "python.none",
    "string.dump(print)", "(''):dump()", "setfenv(1, {})", "getfenv(1)", "newproxy(true)", "jit.off()", "ffi.cdef('')",
    "table.foreach({}, print)", "math.huge()",
)  # fmt: skip


def _asking(function: str, more: str = "") -> str:
    """Return a script whose workflow asks a function, as a step."""
    return (
        f"return Workflow.sequential{{name = 'w', steps = {{{{name = 'f', type = 'custom', execute = {function}}}}}{more}}}"
        ":execute().output"
    )


def _looping(condition: str, more: str = "") -> str:
    """Return a script whose loop asks a condition, or computes Lua code from a text."""
    body = "{name = 'f', type = 'custom', execute = function() return 1 end}"
    return f"return Workflow.loop{{name = 'w', max_iterations = 3, condition = {condition}, body = {body}{more}}}:execute().output"


ESCAPES: tuple[Payload, ...] = (
    *(Payload(f"return type({name})", "^'nil'$") for name in _NIL_GLOBALS),
    *(Payload(f"return {code}", "attempt to (index|call) a (nil|number) value") for code in _CALLS),
    # Metatables of texts and of Stepwell's own tables.
    Payload("return getmetatable('')", "^False$"),
    Payload("return getmetatable('').__index", "attempt to index a boolean value"),
    Payload("setmetatable('', {})", "bad argument #1"),
    Payload("return getmetatable(State)", "^False$"),
    Payload("setmetatable(State, {})", "cannot be changed"),
    Payload("State.get = print", "State cannot be changed"),
    Payload("rawset(State, 'get', print)", "cannot be changed"),
    Payload("rawset(string, 'rep', print)", "cannot be changed"),
    Payload("string.format = print", "string cannot be changed"),
    Payload("os.execute = print", "os cannot be changed"),
    Payload("workflow.name = 'other'", "workflow cannot be changed"),
    Payload("workflow.state.get = print", "workflow.state cannot be changed"),
    Payload("null.x = 1", "null cannot be changed"),
    Payload("table.insert(State, 1)", "State cannot be changed"),
    Payload("for _, member in pairs(string) do if member == nil then return 1 end end return rawget(string, 'rep')", "^None$"),
    # Replaced functions, which what runs below must not call.
    Payload("_G.pairs, _G.next, _G.type = nil, nil, nil return {1, a = nil}", r"^\[1\]$"),
    Payload("_ENV = {} return 5", "^5$"),
    Payload("_G.error = function() end State.get()", "InvalidInput"),
    Payload("_G.xpcall = nil _G.pcall = nil error('x')", "script:1: x"),
    Payload("local t = setmetatable({}, {__index = function() error('seen') end}) return t", r"^\{\}$"),
    Payload("return setmetatable({}, {__pairs = function() error('seen') end})", r"^\{\}$"),
    Payload("return setmetatable({1}, {__len = function() error('seen') end})", r"^\[1\]$"),
    Payload("return setmetatable({}, {__eq = function() error('seen') end})", r"^\{\}$"),
    Payload("return setmetatable({}, {__tostring = function() return {} end})", r"^\{\}$"),
    Payload("error(setmetatable({}, {__tostring = function() error('again') end}))", "again|error in error handling"),
    Payload("error(setmetatable({}, {__index = function() error('seen') end}))", "table"),
    Payload("setmetatable({}, {__gc = function() while true do end end})", "'__gc' is not allowed"),
    Payload("local meta = {} setmetatable({}, meta) meta.__gc = function() while true do end end return 1", "^1$"),
    # Addresses and bytecode.
    Payload("return tostring({})", "^'table'$"),
    Payload("return tostring(print)", "^'function'$"),
    Payload("return string.format('%s', {})", "^'table'$"),
    Payload("return string.format('%p', {})", "'%p' is not allowed"),
    Payload("return string.format('%%%-10p', {})", "'%p' is not allowed"),
    Payload("\x1bLua", "not written correctly"),
    # Values that are none.
    Payload("State.set('k', function() end)", "a function cannot be stored"),
    Payload("State.set('k', print)", "a function cannot be stored"),
    Payload("State.set(print, 1)", "a function cannot be stored"),
    Payload("State.set('k', {[{}] = 1})", "has the key a table"),
    Payload("local t = {} for i = 1, 1000 do t = {t} end State.set('k', t)", "nested more than"),
    Payload("State.set('k', string.rep('x', 300000))", "value_bytes"),
    Payload("State.set('k', '\\xed\\xa0\\x80')", "not UTF-8"),
    Payload("State.set('k', math.huge)", "infinite"),
    # Scopes and names of others.
    Payload("return State.load('global', '')", "state key"),
    Payload("State.save('', 'k', 1)", "a scope"),
    Payload("State.save('x\\0y', 'k', 1)", "a scope"),
    Payload("return State.load('workflow:' .. string.rep('x', 600), 'k')", "key_bytes"),
    Payload("return State.load('custom:other/../default', 'k')", "^None$"),
    Payload("return State.load('inbox:1', 'k')", "^None$"),
    Payload("Tool.execute('stepwell.http_request', {url = 'http://127.0.0.1:1/'})", "AddressRefused"),
    Payload("Tool.execute('stepwell.http_request', {url = 'http://169.254.169.254/latest'})", "AddressRefused"),
    Payload("Tool.execute('stepwell.http_request', {url = 'file:///etc/passwd'})", "InvalidInput"),
    Payload("Tool.execute('os.system', {command = 'id'})", "there is no tool"),
    Payload("Tool.execute('__import__')", "there is no tool"),
    Payload("Workflow.get('../x'):execute()", "attempt to index a nil value"),
    Payload("return Workflow.sequential{name = 'x', steps = {{tool = '__class__'}}}:execute{}.output", "InvalidDefinition"),
    Payload(
        "Workflow.sequential{name = string.rep('x', 600), steps = {{tool = 'x'}}}", "InvalidDefinition|InvalidInput|LimitExceeded"
    ),
    Payload(
        "Workflow.conditional{name = 'c', condition = '__import__(\"os\")', then_branch = {{tool = 'x'}}}", "InvalidDefinition"
    ),
    # Functions that a workflow asks, and Lua code in texts.
    Payload(_asking("function() return type(load) .. type(io) .. type(debug) .. type(require) end"), "^'nilnilnilnil'$"),
    Payload(_asking("function() return os.execute('id') end"), "attempt to call a nil value"),
    Payload(_asking("function() return coroutine.yield('done', 1) end"), "attempt to index a nil value"),
    Payload(_asking("function() return print end"), "a function cannot be stored"),
    Payload(_asking("function() local t = {} t.t = t return t end"), "contains itself"),
    Payload(_asking("function() error(setmetatable({}, {__tostring = function() error('again') end})) end"), "cannot be shown"),
    Payload(_asking("function() error({message = {}}) end"), "failed: table"),
    Payload(_asking("function() pcall = nil; error = nil; type = nil; pairs = nil; _G.rawget = nil return 7 end"), "^7$"),
    Payload(_asking("function() _G.Workflow = nil; _G.State = nil; _ENV = {} return 7 end"), "^7$"),
    Payload(_asking("function(context) return getmetatable(context) end"), "^None$"),
    Payload(_asking("function(context) context.steps = nil; context.state = print; context.input = nil return 7 end"), "^7$"),
    Payload(_asking("function() State.get = print return 1 end"), "State cannot be changed"),
    Payload(_asking("function() Tool.execute('os.system', {command = 'id'}) end"), "there is no tool"),
    Payload(_asking("function() return State.load('workflow:other', 'k') end"), "cannot reach the state"),
    Payload(_asking("{['$function'] = 99}"), "no such function"),
    Payload(_asking("{['$function'] = -1}"), "no such function"),
    Payload(_asking("{['$function'] = 'print'}"), "custom with a function as its execute"),
    Payload(_asking("function() return 1 end", ", name = '$ask'"), "^1$"),
    Payload(
        "return Workflow.sequential{name = 'w', steps = {{tool = 'script.function', input = {as = 'step'}}}}:execute().output",
        "InvalidDefinition",
    ),
    Payload(
        "return Workflow.sequential{name = 'w', steps = {{tool = 'script.function', input = {as = 'x', ['function'] = 1}},"
        "{name = 'f', type = 'custom', execute = function() return 1 end}}}:execute().output",
        "InvalidDefinition",
    ),
    Payload(
        "local made made = Workflow.sequential{name = 'w', steps = {{name = 'f', type = 'custom', execute = function() "
        "return made:execute().output end}}} return made:execute().output",
        "stack overflow|nested|script_",
    ),
    Payload(_asking("function() local function f() return f() + 1 end return f() end"), "stack overflow|script_memory_bytes"),
    Payload(_asking("function() return ('x'):rep(1e9) end"), "more than 1048576 bytes"),
    Payload(
        _asking("function() return table.sort({3, 2, 1}, function() State.get('x') end) end"), "yield across a C-call boundary"
    ),
    Payload(_looping("function() State.set('k', 1) error('no') end"), "failed: script:1: no"),
    Payload(_looping("'state.x == load(\"return 1\")()'"), "attempt to call a nil value"),
    Payload(_looping("'\\27Lua state.x ~= 1'"), "InvalidDefinition"),
    Payload(_looping("'state.x == 1 end os.execute(\"id\") if true then return true'"), "InvalidDefinition"),
    Payload(_looping("'state.x == nil and io.open(\"/etc/passwd\")'"), "attempt to index a nil value"),
    Payload(
        _looping("'iteration < 1'", ", state_update = [[ if body_success then state.x = print end ]]"),
        "a function cannot be stored",
    ),
    Payload(
        _looping("'iteration < 1'", ", state_update = [[ if body_success then State.set = print end ]]"), "State cannot be changed"
    ),
    Payload(
        _looping("'iteration < 1'", ", state_update = [[ if body_success then state = print end ]]"), "a function cannot be stored"
    ),
    Payload(_looping("'iteration < 1'", ", state_update = [[ if body_success then state['$x'] = 1 end ]]"), "Stepwell's own"),
    Payload(_looping("'iteration < 1'", ", state_update = [[ if body_success then _G = nil; _ENV = {} end ]]"), r"^\[1\]$"),
    # Stacks.
    Payload("local function f() return f() + 1 end f()", "stack overflow|script_memory_bytes"),
    Payload("local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x", "loop"),
    Payload("return string.rep('(', 300)", "^'\\({300}'$"),
    Payload("local s = string.rep('a', 70000) return s:find('b')", "longer than 65536"),
    Payload("return ('a'):find(string.rep('a?', 200))", "longer than 256"),
    Payload("return ('x'):rep(1e9)", "more than 1048576 bytes"),
    Payload("return table.unpack({}, 1, 1e8)", "too many results"),
    Payload("table.sort({3, 2, 1}, function() State.get('x') end)", "yield across a C-call boundary"),
)
"""Scripts that try to reach what they must not have. None of them takes long."""

RUNAWAYS: tuple[str, ...] = (
    "while true do end",
    "while true do pcall(function() while true do end end) end",
    "pcall(function() while true do end end) return 1",
    "local function f() return f() end f()",
    "local x <close> = setmetatable({}, {__close = function() while true do end end})",
    "table.sort({3, 2, 1}, function() while true do end end)",
    "string.gsub('a', '.', function() while true do end end)",
    "return setmetatable({}, {__index = function() while true do end end}).x",
    "return (('a'):rep(10000)):find('.-.-.-.-b$')",
    "return (('a'):rep(60000)):match('.-.-.-b')",
    "goto again ::again:: goto again",
    "for i = 1, math.huge do end",
    "print(setmetatable({}, {__tostring = function() while true do end end}))",
    "error(setmetatable({}, {__tostring = function() while true do end end}))",
    "local n = 0 while true do n = n + #tostring(n) end",
    _asking("function() while true do end end"),
    _asking("function() while true do pcall(function() while true do end end) end end"),
    _asking("function() error(setmetatable({}, {__tostring = function() while true do end end})) end"),
    _asking("function() return 1 end", ", on_complete = function() while true do end end"),
    _asking("function() error('x') end", ", on_error = function() while true do end end"),
    _looping("function() while true do end end"),
    _looping("'state.x == (function() while true do end end)()'"),
    _looping("'iteration < 1'", ", state_update = [[ while true do end ]]"),
)
"""Scripts that never end, each in another way."""

MEMORY: tuple[str, ...] = (
    "local t = {} while true do t[#t + 1] = ('x'):rep(100000) .. #t end",
    "local s = 'x' while true do s = s .. s end",
    "local t = {} for i = 1, 1e9 do t[i] = function() return i end end",
    "local t = {} for i = 1, 1e9 do t[i] = {} end",
    "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1000000) .. #t end) if #t > 1e6 then break end end",
    "return string.pack('c1000000000', 'x')",
    _asking("function() local t = {} while true do t[#t + 1] = ('x'):rep(100000) .. #t end end"),
    _looping("'iteration < 1'", ", state_update = [[ local s = 'x' while true do s = s .. s end ]]"),
    "return (('x'):rep(60000)):gsub('.', ('y'):rep(1000000))",
    "local t = {} t[1] = table.pack(table.unpack(t, 1, 900000)) for i = 2, 1e6 do t[i] = table.pack(table.unpack(t, 1, 200)) end",
)
"""Scripts that take memory without end."""
