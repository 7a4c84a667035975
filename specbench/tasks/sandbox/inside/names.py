"""The names that a test needs from a program, determined by the trusted sources alone."""

import ast
import symtable
from collections.abc import Collection


def wanted(test: str, defined: Collection[str], continued: str | None) -> list[str]:
    """Returns the global names that a test uses and that neither it nor `defined` has; if there is none, `continued`,
    the function that the program continues. Raises SyntaxError and ValueError for invalid Python."""
    used, own = set[str](), set[str]()
    top = symtable.symtable(test, "<test>", "exec")
    tables = [top]
    for table in tables:  # grows during the iteration
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is not top and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                own.add(symbol.get_name())
            if symbol.is_referenced():
                used.add(symbol.get_name())
    free = used - own
    return sorted(free - set(defined)) or sorted(free & {continued})


def mentioned(source: str) -> set[str]:
    """Returns all names in a source, including attributes."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def last_function(source: str) -> tuple[str | None, bool]:
    """Returns the function at the end of a source, and whether it lacks a body, which the program then supplies."""
    statements = ast.parse(source).body
    last = statements[-1] if statements else None
    if not isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef):
        return None, False
    return last.name, all(isinstance(part, ast.Pass) or _is_constant(part) for part in last.body)


def _is_constant(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
