"""A checker of docstrings: whether they say arguments, results and errors."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# No caller handles these: a broken invariant, a method that a subclass must have, the end of an
# iterator, the end of the process.
NOT_FOR_CALLERS = {"AssertionError", "NotImplementedError", "StopIteration", "SystemExit"}
# Fewer arguments are explained by their names and the summary.
LEAST_ARGUMENTS = 3


class Definition(NamedTuple):
    """A function, or a class with its __init__, and the docstring that describes it."""

    name: str
    function: ast.FunctionDef
    docstring: str
    is_class: bool = False

    @property
    def arguments(self) -> list[str]:
        """The names of its arguments, without self and cls."""
        args = self.function.args
        declared = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        names = [arg.arg for arg in declared if arg.arg not in ("self", "cls")]
        for variadic in (args.vararg, args.kwarg):
            if variadic is not None:
                names.append(variadic.arg)
        return names


def undocumented(paths: Iterable[Path]) -> list[str]:
    """Return what the docstrings of public definitions lack, a line for each definition.

    A definition with three arguments or more that another of the files uses must say:

    - Args, with each argument by name;
    - Returns, unless nothing is returned, or the summary begins with "Return" or "Yield";
    - Raises, with each class of errors that its own body raises.

    A function or method that a Protocol or a base class describes need not say it again.
    """
    trees = {}
    names_in = {}
    for path in paths:
        trees[path] = ast.parse(path.read_text(encoding="utf-8"))
        names_in[path] = names_used(trees[path])
    described = base_methods(trees.values())
    described_names = {method.name for method in described}

    incomplete = []
    for path, tree in trees.items():
        for definition in definitions(tree):
            name = definition.name
            is_used = any(name in names_in[other] for other in trees if other != path)
            is_repetition = name in described_names and definition.function not in described
            if len(definition.arguments) < LEAST_ARGUMENTS or not is_used or is_repetition:
                continue
            parts = list(lacking(definition))
            if parts:
                incomplete.append(f"{path.name}: {name} lacks {', '.join(parts)}")
    return incomplete


def names_used(tree: ast.Module) -> set[str]:
    """Return the names in a file's code; docstrings and comments do not count."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.name.rpartition(".")[2])
    return names


def base_methods(trees: Iterable[ast.Module]) -> set[ast.FunctionDef]:
    """Return the methods that describe others: those of Protocols and of base classes.

    A base class can override a method of its own base; that method describes nothing. Nor does an
    __init__: a subclass may have other arguments.
    """
    bases_of = {}
    methods_by_class: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases_of[node] = {last_name(base) for base in node.bases}
                names = methods_by_class.setdefault(node.name, set())
                names |= {method.name for method in methods_of(node)}

    base_names = set[str]().union(*bases_of.values())
    methods = set()
    for node, bases in bases_of.items():
        if node.name not in base_names and "Protocol" not in bases:
            continue
        inherited = {"__init__"}
        for base in bases:
            inherited |= methods_by_class.get(base, set())
        methods |= {method for method in methods_of(node) if method.name not in inherited}
    return methods


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the methods in a class's body."""
    return [method for method in node.body if isinstance(method, ast.FunctionDef)]


def last_name(expression: ast.expr) -> str:
    """Return the last part of a dotted name: Module of `nn.Module`."""
    return ast.unparse(expression).rpartition(".")[2]


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """Yield the functions, methods and classes of a file whose names are public."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        docstring = ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef):
            yield Definition(node.name, node, docstring)
            continue

        for method in methods_of(node):
            text = ast.get_docstring(method) or ""
            if method.name == "__init__":
                yield Definition(node.name, method, f"{docstring}\n{text}", is_class=True)
            # A module's forward is described by its class.
            elif not method.name.startswith("_") and method.name != "forward":
                yield Definition(method.name, method, text)


def lacking(definition: Definition) -> Iterator[str]:
    """Yield the parts that the docstring of a definition lacks."""
    docstring = definition.docstring
    args = section(docstring, "Args")
    if args is None:
        yield "Args"
    else:
        # A class may describe two arguments together: `num_in, num_out: ...`.
        heads = re.findall(r"^ +([^:\n]+):", args, re.MULTILINE)
        described = set(re.findall(r"\w+", " ".join(heads)))
        for name in definition.arguments:
            if name not in described:
                yield f"the argument {name}"

    hint = definition.function.returns
    returns_nothing = hint is None or ast.unparse(hint) in ("None", "NoReturn")
    says_returns = re.match("Returns? |Yields? ", docstring) or section(docstring, "Returns")
    if not (definition.is_class or returns_nothing or says_returns):
        yield "Returns"

    raises = section(docstring, "Raises") or ""
    for error in sorted(errors_raised(definition.function)):
        if error not in raises:
            yield f"Raises {error}"


def section(docstring: str, title: str) -> str | None:
    """Return the indented lines below `Args:` or the like; None if there is no such section."""
    match = re.search(rf"^{title}:\n((?: +.*\n?|\n)+)", docstring, re.MULTILINE)
    return match[1] if match else None


def errors_raised(function: ast.FunctionDef) -> set[str]:
    """Return the names of the classes of errors that a function's own statements raise."""
    errors = set()
    nodes = list[ast.AST](function.body)
    while nodes:
        node = nodes.pop()
        # Its inner functions raise when they are called.
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc
            if isinstance(raised, ast.Call):
                raised = raised.func
            name = last_name(raised)
            # A lower-case name is a function that makes the error, or an error that was caught.
            if name[0].isupper():
                errors.add(name)
    return errors - NOT_FOR_CALLERS
