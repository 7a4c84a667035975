"""Which names a test wants of a program: told by the trusted sources alone, never by the program."""

import ast
import symtable
from collections.abc import Collection


def wanted(test: str, defined: Collection[str], continued: str | None) -> list[str]:
    """The global names that a test uses and that neither it nor `defined` has; where there is none, `continued`, the
    function that the program goes on with. Raises SyntaxError and ValueError for what is not Python."""
    used, own = set[str](), set[str]()
    top = symtable.symtable(test, "<test>", "exec")
    tables = [top]
    for table in tables:  # grows while it is read
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
    """All names in a source, attributes included."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def last_function(source: str) -> tuple[str | None, bool]:
    """The function that a source ends with, and whether it lacks its body: it is there for the program to finish."""
    statements = ast.parse(source).body
    last = statements[-1] if statements else None
    if not isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef):
        return None, False
    return last.name, all(isinstance(part, ast.Pass) or _is_constant(part) for part in last.body)


def _is_constant(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
