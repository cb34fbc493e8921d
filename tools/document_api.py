"""Write docs/reference/api.md from the OpenAPI description of the HTTP API: `tools/document_api.py`."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from generated_pages import cell, settle
from penstock.api.app import described

HEAD = """# HTTP API

<!-- made of the code by tools/document_api.py -->

`penstock api` serves it, at `api.addr` ([configuration](../configuration.md#api)), with the pages at `/`;
`penstock up` runs it with the rest. The description in OpenAPI is at `/openapi.json`. Answers are JSON unless
a table says otherwise; timestamps are integers that may be above 2^53. Errors are problem details (RFC 9457):
`detail` is one line that says what is wrong and what to do.
"""
METHODS = ("get", "post", "put", "patch", "delete")


class Api:
    """The description, with its references followed."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self._tree = tree
        self._models: dict[str, Any] = tree.get("components", {}).get("schemas", {})

    def page(self) -> str:
        """All of it."""
        parts = [HEAD.strip(), *self._operations(), *self._shapes()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _operations(self) -> Iterator[str]:
        tag = None
        for path, methods in self._tree["paths"].items():
            for method in METHODS:
                if method not in methods:
                    continue
                operation = methods[method]
                found = operation.get("tags", ["more"])[0]
                if found != tag:
                    tag = found
                    yield f"## {tag.capitalize()}"
                yield self._operation(f"{method.upper()} {path}", operation)

    def _operation(self, name: str, operation: dict[str, Any]) -> str:
        said = operation.get("description") or operation.get("summary", "")
        parts = [f"### {name}", said.strip()]
        given = [self._parameter(each) for each in operation.get("parameters", [])]
        if given:
            parts.append("\n".join(["| given | in | type | meaning |", "|---|---|---|---|", *given]))
        body = operation.get("requestBody")
        if body:
            parts.append(f"Body: {self._content(body['content'])}")
        responses = operation.get("responses", {})
        good = [self._answer(*each) for each in responses.items() if _problem(each[1]) is None]
        parts.append("\n".join(["| answer | | what |", "|---|---|---|", *good]))
        bad = sorted(status for status, answer in responses.items() if _problem(answer))
        if bad:
            parts.append(f"Errors, as [ProblemDetails](#problemdetails): {', '.join(bad)}.")
        return "\n\n".join(part for part in parts if part)

    def _parameter(self, each: dict[str, Any]) -> str:
        schema = each.get("schema", {})
        needed = ", required" if each.get("required") and each["in"] != "path" else ""
        usual = f" (default `{schema['default']}`)" if schema.get("default") not in (None, "") else ""
        said = each.get("description") or schema.get("description", "")
        return (
            f"| `{each['name']}` | {each['in']}{needed} | {cell(self._type(schema))}{usual} | {cell(said)} |"
        )

    def _answer(self, status: str, answer: dict[str, Any]) -> str:
        said = answer.get("description", "")
        name = HTTPStatus(int(status)).phrase if status.isdigit() else ""
        said = "" if said in {"Successful Response", name} else said
        what = " ".join(filter(None, (cell(said), self._content(answer.get("content", {})))))
        return f"| {status} | {name} | {what} |"

    def _content(self, content: dict[str, Any]) -> str:
        kinds = [f"{self._type(each.get('schema', {}))} (`{kind}`)" for kind, each in content.items()]
        return cell(" or ".join(kinds))

    def _type(self, schema: dict[str, Any]) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                kinds = dict.fromkeys(self._type(each) for each in schema[several])
                return " or ".join(kinds)
        if "enum" in schema or "const" in schema:
            return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
        kind = schema.get("type")
        if kind == "array":
            return f"list of {self._type(schema.get('items', {}))}"
        more = schema.get("additionalProperties")
        if kind == "object" and isinstance(more, dict) and more:
            return f"object of {self._type(more)}"
        return "anything" if kind is None else str(kind)

    def _shapes(self) -> Iterator[str]:
        if self._models:
            yield "## Shapes"
        for name, model in sorted(self._models.items()):
            said = (model.get("description") or "").strip()
            rows = [
                f"| `{field}`{'' if field in model.get('required', ()) else ' (optional)'} "
                f"| {cell(self._type(schema))} | {cell(schema.get('description', ''))} |"
                for field, schema in model.get("properties", {}).items()
            ]
            table = ["| field | type | meaning |", "|---|---|---|", *rows] if rows else [self._type(model)]
            yield "\n\n".join(part for part in (f"### {name}", said, "\n".join(table)) if part)


def _problem(answer: dict[str, Any]) -> Any:
    """What an answer has that tells of an error; None when it is none."""
    return answer.get("content", {}).get("application/problem+json")


if __name__ == "__main__":
    settle("reference/api.md", Api(described()).page())
