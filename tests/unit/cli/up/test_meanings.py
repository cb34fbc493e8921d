"""What is said of settings is the string under each field."""

from pydantic import BaseModel

from penstock.settings.frozen import field_texts


class Base(BaseModel):
    """A section."""

    first: int = 1
    """What it means,
    in two lines."""
    second: str = ""
    """Of the base."""


class Section(Base):
    """A section that says more."""

    second: str = "2"
    """Of the class."""
    silent: bool = True
    last: tuple[int, ...] = ()
    """The last one."""

    def method(self) -> None:
        """Not about a field."""


def test_the_string_under_a_field_is_what_it_means() -> None:
    said = field_texts(Section)
    assert said == {
        "first": "What it means,\nin two lines.",
        "second": "Of the class.",
        "last": "The last one.",
    }
