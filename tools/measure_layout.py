"""Measure the layout of the code: `tools/measure_layout.py` prints tables, with `--json` a tree for scripts.

The tool parses the files under `src`; it imports none of them.

- Imports count at the top of a module, in functions, and under TYPE_CHECKING; the last are counted apart.
  `from a import b` imports the module `a.b` if it exists, else `a`.
- The product is everything but `penstock.testing` and `penstock.proto`.
- A module is single when exactly one product module imports it. An `__init__` counts as a module.
- Cycles of folders are inside one package, whose own modules are the folder `.`; cycles of modules are of the
  whole product. Both count imports under TYPE_CHECKING.
- "In" is the number of packages, but tests, that import a package; "out" is the number that it imports. A
  module beside the packages counts as a package.
- Median and 90th percentile of module lines exclude `__init__`; lines of a function include its decorators.
- Two classes at the top level of modules share a name also if one is private or in `penstock.testing`.

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
    """One module's import of another; `typing` when it is needed for types only."""

    importer: str
    imported: str
    typing: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One file with its lines, the lines of its functions, and its classes."""

    name: str
    path: Path
    is_init: bool
    lines: int
    functions: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def package(self) -> str:
        """The folder below the root package; for a module beside the folders, its own name."""
        first, *rest = self.name.split(".")
        return rest[0] if rest else first

    @property
    def folder(self) -> str:
        """Its folder inside the package; `.` for the package itself."""
        rest = self.name.split(".")[2:]
        if not self.is_init:
            rest = rest[:-1]
        return rest[0] if rest else _ROOT_FOLDER

    @property
    def is_product(self) -> bool:
        """Whether it is neither for tests nor generated."""
        return self.package not in _NOT_PRODUCT


@dataclass(frozen=True)
class Layout:
    """The modules by name, and the imports between them."""

    modules: Mapping[str, Module]
    imports: tuple[Import, ...]

    @property
    def product(self) -> list[Module]:
        """The modules that are neither for tests nor generated."""
        return [module for module in self.modules.values() if module.is_product]

    def arrows(self, *, typing: bool = True, product: bool = True) -> dict[str, set[str]]:
        """Return the imports of each module.

        Without `typing` imports for types are left out; without `product` other importers are included.
        """
        arrows: dict[str, set[str]] = {name: set() for name in self.modules}
        for item in self.imports:
            if product and not self.modules[item.importer].is_product:
                continue
            if typing or not item.typing:
                arrows[item.importer].add(item.imported)
        return arrows


@dataclass(frozen=True, slots=True)
class PackageMeasures:
    """The measures of one package."""

    files: int
    lines: int
    single: int
    folder_cycles: list[list[str]] = field(default_factory=list)
    module_cycles: list[list[str]] = field(default_factory=list)
    packages_in: list[str] = field(default_factory=list)
    packages_out: list[str] = field(default_factory=list)


# Read.


def read_layout(root: Path = ROOT) -> Layout:
    """Parse every module under `src`."""
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
            classes=tuple(_classes(tree)),
        )
        for name, (path, tree, lines) in trees.items()
    }
    imports = [
        Import(name, imported, typing)
        for name, (path, tree, _) in trees.items()
        for imported, typing in _imports(tree, name, modules, is_init=path.name == "__init__.py")
        if imported != name
    ]
    return Layout(modules, tuple(dict.fromkeys(imports)))


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _classes(tree: ast.Module) -> Iterator[str]:
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef):
            yield node.name


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the top-level statements of a module, also those under an `if` or a `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _top_level([*node.body, *handled, *node.orelse, *node.finalbody])


def _function_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield (node.end_lineno or first) - first + 1


def _imports(
    tree: ast.Module, name: str, modules: Mapping[str, Any], *, is_init: bool
) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a module imports, and whether for types only."""
    for node, typing in _import_statements(tree, typing=False):
        if isinstance(node, ast.Import):
            candidates = [(alias.name, "") for alias in node.names]
        else:
            base = _imported_from(node, name, is_init=is_init)
            candidates = [(f"{base}.{alias.name}", base) for alias in node.names]
        for first, second in candidates:
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
        for statement in node.body:
            yield from _import_statements(statement, typing=True)
        for statement in node.orelse:
            yield from _import_statements(statement, typing=typing)
        return
    for child in ast.iter_child_nodes(node):
        yield from _import_statements(child, typing=typing)


def _is_for_types(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


# Measure.


def single_importers(layout: Layout, *, typing: bool = True) -> dict[str, str]:
    """Return the product modules that exactly one product module imports, with that importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    for importer, found in layout.arrows(typing=typing).items():
        for imported in found:
            importers[imported].add(importer)
    return {
        imported: next(iter(found))
        for imported, found in sorted(importers.items())
        if len(found) == 1 and layout.modules[imported].is_product
    }


def module_cycles(layout: Layout, *, typing: bool = True) -> list[list[str]]:
    """Return the cycles of product modules that import each other, directly or indirectly."""
    return cycles({name: found for name, found in layout.arrows(typing=typing).items() if found})


def folder_cycles(layout: Layout, package: str, *, typing: bool = True) -> list[list[str]]:
    """Return the cycles of folders of a package; the package itself is the folder `.`."""
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, found in layout.arrows(typing=typing, product=False).items():
        for imported in found:
            one, other = layout.modules[importer], layout.modules[imported]
            if one.package != package or other.package != package:
                continue
            if one.folder != other.folder:
                graph[one.folder].add(other.folder)
    return cycles(graph)


def shared_class_names(layout: Layout) -> dict[str, list[str]]:
    """Return the names of several classes, with their modules. A leading underscore makes no other name."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in layout.modules.values():
        if module.package != GENERATED:
            for name in dict.fromkeys(module.classes):
                found[name.lstrip("_")].append(module.name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def package_measures(layout: Layout) -> dict[str, PackageMeasures]:
    """Return the measures of each package, and of the modules beside the packages."""
    single = single_importers(layout)
    inside = module_cycles(layout)
    coming: dict[str, set[str]] = defaultdict(set)
    going: dict[str, set[str]] = defaultdict(set)
    for importer, found in layout.arrows(product=False).items():
        one = layout.modules[importer].package
        for other in {layout.modules[imported].package for imported in found} - {one}:
            going[one].add(other)
            if one != TESTING:
                coming[other].add(one)
    members: dict[str, list[Module]] = defaultdict(list)
    for module in layout.modules.values():
        members[module.package].append(module)
    return {
        package: PackageMeasures(
            files=len(found),
            lines=sum(module.lines for module in found),
            single=sum(module.name in single for module in found),
            folder_cycles=folder_cycles(layout, package),
            module_cycles=[
                cycle for cycle in inside if {layout.modules[name].package for name in cycle} == {package}
            ],
            packages_in=sorted(coming[package]),
            packages_out=sorted(going[package]),
        )
        for package, found in sorted(
            members.items(), key=lambda item: -sum(module.lines for module in item[1])
        )
    }


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan's algorithm, iterative)."""
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
    """Return the median and the 90th percentile."""
    ordered = sorted(numbers)
    if len(ordered) < 2:
        return (ordered[0], ordered[0]) if ordered else (0, 0)
    return round(median(ordered)), round(quantiles(ordered, n=10, method="exclusive")[-1])


def measure(layout: Layout) -> dict[str, Any]:
    """Return all measures as a tree for JSON."""
    product = layout.product
    whole = [module for module in product if not module.is_init]
    lines = typical(module.lines for module in whole)
    functions = typical(count for module in product for count in module.functions)
    return {
        "all": {
            "files": len(layout.modules),
            "lines": sum(module.lines for module in layout.modules.values()),
        },
        "product": {
            "files": len(product),
            "lines": sum(module.lines for module in product),
            "modules": len(whole),
            "module_lines": {"median": lines[0], "p90": lines[1]},
            "functions": sum(len(module.functions) for module in product),
            "function_lines": {"median": functions[0], "p90": functions[1]},
        },
        "single": single_importers(layout),
        "single_at_run_time": len(single_importers(layout, typing=False)),
        "typing_imports": sum(item.typing for item in layout.imports),
        "module_cycles": module_cycles(layout),
        "module_cycles_at_run_time": module_cycles(layout, typing=False),
        "shared_class_names": shared_class_names(layout),
        "packages": {
            name: {key: getattr(found, key) for key in PackageMeasures.__slots__}
            for name, found in package_measures(layout).items()
        },
    }


# Print.


def render(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the measures as lines of Markdown."""
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
    for name, package in tree["packages"].items():
        folders = "; ".join(", ".join(cycle) for cycle in package["folder_cycles"]) or "none"
        modules = "; ".join(", ".join(cycle) for cycle in package["module_cycles"]) or "none"
        yield (
            f"| {name} | {package['files']} | {package['lines']:,} | {package['single']} | {folders}"
            f" | {modules} | {len(package['packages_in'])} | {len(package['packages_out'])} |"
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
    yield f"{len(tree['shared_class_names'])} class names are defined in several modules."
    yield from (f"  {name}: {', '.join(where)}" for name, where in tree["shared_class_names"].items())


def main() -> None:
    """Run the command."""
    arguments = argparse.ArgumentParser(description="Measure the layout of the code.")
    arguments.add_argument("--json", action="store_true", help="print JSON")
    arguments.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = arguments.parse_args()
    tree = measure(read_layout(options.root))
    text = json.dumps(tree, indent=1) if options.json else "\n".join(render(tree))
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
