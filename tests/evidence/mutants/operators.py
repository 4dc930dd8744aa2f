"""Creates mutants: modules with one small mistake in a function, such as ``<`` instead of ``<=``.

Strings, annotations and code outside functions, such as constants, fields and default values, do not change.
"""

import ast
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SKIPPED: Final = ("annotation", "returns", "type_params")


class Mistake(NamedTuple):
    """A possible mistake: the node of the syntax tree, and a function that changes the tree in place."""

    node: Any
    make: Callable[[], None]


class Mutant(NamedTuple):
    """A module with one mistake: the line number (starting at 1), the code before and after, and the syntax tree."""

    line: int
    change: str
    tree: ast.Module


def count_mutants(source: str) -> int:
    """Return the number of mutants of a module."""
    return sum(1 for _ in _mistakes(ast.parse(source)))


def mutant(source: str, number: int) -> Mutant:
    """Return the mutant of a module with the given number, starting at 0."""
    tree = ast.parse(source)
    node, make = next(itertools.islice(_mistakes(tree), number, None))
    before = ast.unparse(node)
    make()
    after = ast.unparse(ast.fix_missing_locations(node))
    if after == before:  # the change replaced the node itself
        after = {"break": "continue", "continue": "break"}.get(before, "removed")
    return Mutant(node.lineno, f"{_short(before)} -> {_short(after)}", ast.fix_missing_locations(tree))


def _short(code: str) -> str:
    return code.partition("\n")[0]


def _mistakes(tree: ast.AST, *, in_function: bool = False) -> Iterator[Mistake]:
    """Yield the possible mistakes in the order of the code. Apply only one of them to a tree."""
    if isinstance(tree, ast.JoinedStr):
        return
    is_function = isinstance(tree, ast.FunctionDef)
    if in_function or is_function:
        for node, make in _here(tree):
            yield Mistake(node, make)
    for field, value in ast.iter_fields(tree):
        if field in _SKIPPED or (is_function and field != "body"):
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.AST):
                yield from _mistakes(child, in_function=in_function or is_function)


def _here(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[], None]]]:
    """Yield the possible mistakes at a node, without its children."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other_op in _COMPARISONS[type(op)]:
                    yield node, partial(ops.__setitem__, i, other_op())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield node, partial(setattr, node, "op", _ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op, values=values):
            opposite = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, partial(setattr, node, "op", opposite)
            if len(values) > 2:
                for i in range(len(values)):
                    yield node, partial(values.__delitem__, i)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.UnaryOp(op=ast.USub()):
            yield node, partial(setattr, node, "op", ast.UAdd())
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):  # comparisons and negations have other mutants
                yield node, partial(setattr, node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=ifs):
            for i, condition in enumerate(ifs):
                yield condition, partial(ifs.__setitem__, i, ast.Constant(True))
        case ast.Constant(value=bool(value)):
            yield node, partial(setattr, node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, partial(setattr, node, "value", value + 1)
        # Skip `return False`, because callers usually treat `None` like `False`.
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield node, partial(setattr, node, "value", ast.Constant(None))
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield node, partial(setattr, node.func, "id", _CALLS[name])
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if not isinstance(body, list):  # the body of a lambda or of a conditional expression
            continue
        for i, statement in enumerate(body):
            replacement = _replacement(statement)
            if replacement is not None:
                yield statement, partial(body.__setitem__, i, replacement)


def _replacement(statement: ast.AST) -> ast.stmt | None:
    """Return the replacement of a statement, or ``None`` if it is not replaced."""
    match statement:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            return ast.copy_location(ast.Pass(), statement)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return ast.copy_location(ast.Pass(), statement)
        case ast.Continue():
            return ast.copy_location(ast.Break(), statement)
        case ast.Break():
            return ast.copy_location(ast.Continue(), statement)
    return None
