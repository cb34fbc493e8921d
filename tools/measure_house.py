"""Measure how the code is laid out: `tools/measure_house.py` prints it for people, `--json` for scripts.

Everything is read from the syntax of the files under `src`; nothing is imported.

- A module imports another one wherever it says so: at the top, in a function, or for types only, which is
  told apart. `from a import b` imports the module `a.b` if there is one, else `a`.
- Product is everything but `penstock.testing` and `penstock.proto`.
- A module is single when exactly one product module imports it; a package's `__init__` is one of these.
- Cycles of folders are those inside a package, whose own modules are the folder `.`; cycles of modules are
  those of the whole product. Both count imports for types.
- In and out are how many packages import a package, tests' apart, and how many it imports. A module beside
  the packages is a package of its own.
- Median and 90th percentile of a module's lines leave `__init__` out; a function's lines have its decorators.
- A public class stands at the top of a module, and its name has no underscore in front.

`--root` measures another copy of the repository.
"""

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parent.parent
TESTING, GENERATED = "testing", "proto"
_NOT_PRODUCT = frozenset({TESTING, GENERATED})
_ROOT_FOLDER = "."


@dataclass(frozen=True, slots=True)
class Import:
    """One module's import of another; `typing` when no line of it needs that at run time."""

    importer: str
    imported: str
    typing: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One file; `package` is the folder below the root package, or the module's own name beside them."""

    name: str
    path: Path
    is_init: bool
    lines: int
    functions: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def package(self) -> str:
        """What it belongs to: `penstock.sink.work` to sink; the root's `__init__` to the root."""
        first, *rest = self.name.split(".")
        return rest[0] if rest else first

    @property
    def folder(self) -> str:
        """Its folder inside the package; `.` is the package's own."""
        rest = self.name.split(".")[2:]
        if not self.is_init:
            rest = rest[:-1]
        return rest[0] if rest else _ROOT_FOLDER

    @property
    def is_product(self) -> bool:
        """It is neither for tests nor made by a compiler."""
        return self.package not in _NOT_PRODUCT


@dataclass(frozen=True)
class House:
    """Modules by name, and who imports whom."""

    modules: Mapping[str, Module]
    imports: tuple[Import, ...]

    @property
    def product(self) -> list[Module]:
        """Modules without those for tests and those that a compiler made."""
        return [module for module in self.modules.values() if module.is_product]

    def arrows(self, *, typing: bool = True, product: bool = True) -> dict[str, set[str]]:
        """Whom each module imports; without imports for types, or with all importers, if told so."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for each in self.imports:
            if product and not self.modules[each.importer].is_product:
                continue
            if typing or not each.typing:
                found[each.importer].add(each.imported)
        return found


@dataclass(frozen=True, slots=True)
class PackageMeasures:
    """A row of the table."""

    files: int
    lines: int
    single: int
    folder_cycles: list[list[str]] = field(default_factory=list)
    module_cycles: list[list[str]] = field(default_factory=list)
    packages_in: list[str] = field(default_factory=list)
    packages_out: list[str] = field(default_factory=list)


# Read.


def read_house(root: Path = ROOT) -> House:
    """Read every module under `src`."""
    source = root / "src"
    trees: dict[str, tuple[Path, ast.Module, int]] = {}
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        trees[_module_name(path.relative_to(source))] = (path, ast.parse(text), len(text.splitlines()))
    modules = {
        name: Module(
            name=name,
            path=path.relative_to(root),
            is_init=path.name == "__init__.py",
            lines=lines,
            functions=tuple(_function_lines(tree)),
            classes=tuple(_public_classes(tree)),
        )
        for name, (path, tree, lines) in trees.items()
    }
    imports = [
        Import(name, imported, typing)
        for name, (path, tree, _) in trees.items()
        for imported, typing in _imports(tree, name, modules, is_init=path.name == "__init__.py")
        if imported != name
    ]
    return House(modules, tuple(dict.fromkeys(imports)))


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _public_classes(tree: ast.Module) -> Iterator[str]:
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """What a module defines, also under an `if` or a `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [each for handler in node.handlers for each in handler.body]
            yield from _top_level([*node.body, *handled, *node.orelse, *node.finalbody])


def _function_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield (node.end_lineno or first) - first + 1


def _imports(
    tree: ast.Module, name: str, modules: Mapping[str, Any], *, is_init: bool
) -> Iterator[tuple[str, bool]]:
    """The modules that one names, and whether for types only."""
    for node, typing in _import_statements(tree, typing=False):
        if isinstance(node, ast.Import):
            wanted = [(each.name, "") for each in node.names]
        else:
            base = _imported_from(node, name, is_init=is_init)
            wanted = [(f"{base}.{each.name}", base) for each in node.names]
        for first, second in wanted:
            found = first if first in modules else second
            if found in modules:
                yield found, typing


def _imported_from(node: ast.ImportFrom, name: str, *, is_init: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    above = node.level - 1 if is_init else node.level
    return ".".join([*parts[: len(parts) - above], *([node.module] if node.module else [])])


def _import_statements(node: ast.AST, *, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, typing
        return
    if isinstance(node, ast.If) and _is_for_types(node.test):
        for each in node.body:
            yield from _import_statements(each, typing=True)
        for each in node.orelse:
            yield from _import_statements(each, typing=typing)
        return
    for child in ast.iter_child_nodes(node):
        yield from _import_statements(child, typing=typing)


def _is_for_types(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


# Measure.


def single_importers(house: House, *, typing: bool = True) -> dict[str, str]:
    """Product modules that exactly one product module imports, with that one."""
    importers: dict[str, set[str]] = defaultdict(set)
    for importer, found in house.arrows(typing=typing).items():
        for imported in found:
            importers[imported].add(importer)
    return {
        imported: next(iter(found))
        for imported, found in sorted(importers.items())
        if len(found) == 1 and house.modules[imported].is_product
    }


def module_cycles(house: House, *, typing: bool = True) -> list[list[str]]:
    """Product modules that import each other, directly or round a corner."""
    return cycles({name: found for name, found in house.arrows(typing=typing).items() if found})


def folder_cycles(house: House, package: str, *, typing: bool = True) -> list[list[str]]:
    """Folders of a package that import each other; its root, with `__init__`, is one of them."""
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, found in house.arrows(typing=typing, product=False).items():
        for imported in found:
            one, other = house.modules[importer], house.modules[imported]
            if one.package != package or other.package != package:
                continue
            if one.folder != other.folder:
                graph[one.folder].add(other.folder)
    return cycles(graph)


def shared_class_names(house: House) -> dict[str, list[str]]:
    """Public classes of one name in several product modules, with those modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in house.product:
        for name in dict.fromkeys(module.classes):
            found[name].append(module.name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def package_measures(house: House) -> dict[str, PackageMeasures]:
    """The table's rows: folders, and the modules beside them under their own names."""
    single = single_importers(house)
    inside = module_cycles(house)
    coming: dict[str, set[str]] = defaultdict(set)
    going: dict[str, set[str]] = defaultdict(set)
    for importer, found in house.arrows(product=False).items():
        one = house.modules[importer].package
        for other in {house.modules[imported].package for imported in found} - {one}:
            going[one].add(other)
            if one != TESTING:
                coming[other].add(one)
    members: dict[str, list[Module]] = defaultdict(list)
    for module in house.modules.values():
        members[module.package].append(module)
    return {
        package: PackageMeasures(
            files=len(found),
            lines=sum(module.lines for module in found),
            single=sum(module.name in single for module in found),
            folder_cycles=folder_cycles(house, package),
            module_cycles=[
                cycle for cycle in inside if {house.modules[name].package for name in cycle} == {package}
            ],
            packages_in=sorted(coming[package]),
            packages_out=sorted(going[package]),
        )
        for package, found in sorted(members.items(), key=lambda item: -sum(each.lines for each in item[1]))
    }


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node: Tarjan's algorithm, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for start in sorted(graph):
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, others = work[-1]
            other = next(others, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
            elif other not in index:
                index[other] = low[other] = len(index)
                stack.append(other)
                on_stack.add(other)
                work.append((other, iter(sorted(graph.get(other, ())))))
            elif other in on_stack:
                low[node] = min(low[node], index[other])
    return sorted(found)


def typical(numbers: Iterable[int]) -> tuple[int, int]:
    """Median and 90th percentile."""
    given = sorted(numbers)
    if len(given) < 2:
        return (given[0], given[0]) if given else (0, 0)
    return round(median(given)), round(quantiles(given, n=10, method="exclusive")[-1])


def measures(house: House) -> dict[str, Any]:
    """Everything, as a tree for JSON."""
    product = house.product
    whole = [module for module in product if not module.is_init]
    lines, functions = typical(each.lines for each in whole), typical(n for m in product for n in m.functions)
    return {
        "all": {"files": len(house.modules), "lines": sum(each.lines for each in house.modules.values())},
        "product": {
            "files": len(product),
            "lines": sum(each.lines for each in product),
            "modules": len(whole),
            "module_lines": {"median": lines[0], "p90": lines[1]},
            "functions": sum(len(each.functions) for each in product),
            "function_lines": {"median": functions[0], "p90": functions[1]},
        },
        "single": single_importers(house),
        "single_at_run_time": len(single_importers(house, typing=False)),
        "typing_imports": sum(each.typing for each in house.imports),
        "module_cycles": module_cycles(house),
        "module_cycles_at_run_time": module_cycles(house, typing=False),
        "shared_class_names": shared_class_names(house),
        "packages": {
            name: {key: getattr(found, key) for key in PackageMeasures.__slots__}
            for name, found in package_measures(house).items()
        },
    }


# Print.


def shown(tree: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people."""
    product = tree["product"]
    lines, functions = product["module_lines"], product["function_lines"]
    yield f"{tree['all']['files']} files with {tree['all']['lines']:,} lines under src."
    yield (
        f"Without {TESTING} and {GENERATED}: {product['files']} files with {product['lines']:,} lines,"
        f" {product['modules']} of them not __init__:"
        f" median {lines['median']} lines, 90th percentile {lines['p90']};"
        f" functions {functions['median']} and {functions['p90']} lines."
    )
    yield ""
    yield "| package | files | lines | single | cycles of folders | cycles of modules | in | out |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, each in tree["packages"].items():
        folders = "; ".join(", ".join(cycle) for cycle in each["folder_cycles"]) or "none"
        modules = "; ".join(", ".join(cycle) for cycle in each["module_cycles"]) or "none"
        yield (
            f"| {name} | {each['files']} | {each['lines']:,} | {each['single']} | {folders} | {modules}"
            f" | {len(each['packages_in'])} | {len(each['packages_out'])} |"
        )
    yield ""
    yield (
        f"{len(tree['single'])} product modules have one product importer"
        f" ({tree['single_at_run_time']} without the {tree['typing_imports']} imports for types only)."
    )
    yield (
        f"{len(tree['module_cycles'])} cycles of modules"
        f" ({len(tree['module_cycles_at_run_time'])} without imports for types only)."
    )
    yield from (f"  {', '.join(cycle)}" for cycle in tree["module_cycles"])
    yield f"{len(tree['shared_class_names'])} public class names stand in several modules."
    yield from (f"  {name}: {', '.join(where)}" for name, where in tree["shared_class_names"].items())


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description="Measure how the code is laid out.")
    arguments.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_argument("--root", type=Path, default=ROOT, help="the repository")
    given = arguments.parse_args()
    tree = measures(read_house(given.root))
    text = json.dumps(tree, indent=1) if given.json else "\n".join(shown(tree))
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
