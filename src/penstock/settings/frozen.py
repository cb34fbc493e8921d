"""The base class of all settings, and the texts of their fields.

The text of a field is the string under it in its class. `field_texts` reads it from the source on demand;
pydantic would read it for every class in every process, and most processes never show these texts.
"""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen", "as_text", "field_texts"]


class Frozen(BaseModel):
    """A section of the settings: a frozen value, checked when it is made. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def as_text(value: Any) -> Any:
    """Return YAML's numbers and booleans as Spark and sink URIs write them, other values unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the text under each field that has one, by field name. A subclass overrides its bases."""
    classes = [
        base for base in reversed(model.__mro__) if issubclass(base, BaseModel) and base is not BaseModel
    ]
    return {name: text for model in classes for name, text in _class_texts(model).items()}


def _class_texts(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef), "the source of a class begins with it"
    texts: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts
