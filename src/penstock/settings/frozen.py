"""What all settings are: frozen values, checked when they are made.

What is said of settings and options: the string under each field of a class.

It is read from the source when somebody asks. pydantic would do that for every class in every process, and
most processes show nobody what their settings mean.
"""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen", "as_text", "meanings"]


class Frozen(BaseModel):
    """A section of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def as_text(value: Any) -> Any:
    """YAML's numbers and booleans, the way Spark and sink URIs write them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """The text under each field that has one, by the field's name; classes say more than their bases."""
    bases = [
        each for each in reversed(model.__mro__) if issubclass(each, BaseModel) and each is not BaseModel
    ]
    return {name: text for each in bases for name, text in _said(each).items()}


def _said(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef), "the source of a class begins with it"
    said: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                said[name] = inspect.cleandoc(text)
    return said
