"""Digests of source code, so that what was learned of a function is never used for another one.

A digest is of the source as Python understands it: layout, comments, decorators, annotations and the function's own
name do not count, the numbers and functions that it uses from around it do. It is a guard against forgetting, not
against malice.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from wavetune.errors import MappingError
from wavetune.mapping.kernel_mapping import KernelMapping

_CONSTANTS = (int, float, str, bytes, bool, type(None))
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def mapping_digest(mapping: KernelMapping) -> str:
    """Return ``sha256:`` and the digest of a mapping's functions and of what they use.

    Raises
    ------
    MappingError
        If one of them is no Python function.
    """
    parts: list[str] = []
    for role, function in mapping.functions():
        parts.append(f"{role}:")
        parts.extend(_describe(role, function, set()))
    return _digest(parts)


def function_digest(function: Any) -> str:
    """Return ``sha256:`` and the digest of a function, which may be wrapped by Triton's decorators.

    Raises
    ------
    MappingError
        If there is no Python function.
    """
    return _digest(list(_describe(str(getattr(function, "__name__", "function")), function, set())))


def check_functions(mapping: KernelMapping) -> None:
    """Check that a mapping has a digest, without reading source; raises `MappingError` as `mapping_digest` does."""
    for role, function in mapping.functions():
        _python_function(role, function)


def _python_function(name: str, function: Any) -> FunctionType:
    function = _unwrapped(function)
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__", function)
    if not isinstance(function, FunctionType):
        raise MappingError(f"{name} must be a function written in Python (def or lambda)")
    return function


def _digest(parts: list[str]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _unwrapped(value: Any) -> Any:
    """Return the function inside of a kernel of Triton (``fn``) or a cache (``__wrapped__``); else the value."""
    inner = value
    while not isinstance(inner, FunctionType) and (hasattr(inner, "fn") or hasattr(inner, "__wrapped__")):
        inner = inner.fn if hasattr(inner, "fn") else inner.__wrapped__
    return inner if isinstance(inner, FunctionType) else value


def _describe(name: str, function: Any, seen: set[CodeType]) -> Iterator[str]:
    """Yield the canonical source of a function, then that of the functions and constants it refers to."""
    function = _python_function(name, function)
    code = function.__code__
    if code in seen:
        return
    seen.add(code)
    yield _canonical_source(function)
    closure = dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    for used in sorted(_names(code)):
        value = _unwrapped(closure.get(used, function.__globals__.get(used)))
        if isinstance(value, _CONSTANTS) and used in (closure.keys() | function.__globals__.keys()):
            yield f"{used} = {value!r}"
        elif isinstance(value, FunctionType) and _package(value) == _package(function):
            # What another package computes, triton.cdiv say, is not the owner's to change.
            yield f"{used}:"
            yield from _describe(used, value, seen)


def _package(function: FunctionType) -> str:
    return str(function.__module__).partition(".")[0]


def _names(code: CodeType) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _canonical_source(function: FunctionType) -> str:
    try:
        lines, _ = inspect.findsource(function)
        candidates = [node for node in _functions_of("".join(lines)) if _is_source_of(node, function.__code__)]
    except (OSError, SyntaxError):
        candidates = []
    if not candidates:
        # Typed into a prompt, or the file has changed since: what is left is specific to this version of Python.
        code = function.__code__
        return f"bytecode of {sys.version_info[:2]}: {code.co_code.hex()} {_plain_constants(code)} {code.co_names}"
    return "\n".join(map(_canonical_text, candidates))


@lru_cache(maxsize=8)
def _functions_of(source: str) -> tuple[_Function, ...]:
    """Return the functions of a file, which is parsed once for all of them."""
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, _Function))


def _is_source_of(node: _Function, code: CodeType) -> bool:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if first != code.co_firstlineno or tuple(names) != code.co_varnames[: code.co_argcount]:
        return False
    if not isinstance(node, ast.Lambda):
        return code.co_name == node.name
    # Several lambdas may start on one line; the instructions say where the body of this one is.
    starts = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    return code.co_name == "<lambda>" and min(starts) >= (node.body.lineno, node.body.col_offset) <= max(starts) < (
        node.body.end_lineno or 0,
        node.body.end_col_offset or 0,
    )


def _canonical_text(node: _Function) -> str:
    arguments = ast.unparse(_without_annotations(node.args))
    if isinstance(node, ast.Lambda):
        return f"({arguments}) -> return {ast.unparse(node.body)}"
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    # One returning statement reads like a lambda.
    return f"({arguments}) -> " + "\n".join(ast.unparse(statement) for statement in body)


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return arguments


def _plain_constants(code: CodeType) -> tuple[object, ...]:
    return tuple(value for value in code.co_consts if isinstance(value, _CONSTANTS))
