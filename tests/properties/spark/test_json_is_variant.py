"""Any JSON document, as VARIANT, is the document that it was."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from penstock.columnar.variant import encode_json

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: "e" in repr(number))
    | st.text(st.characters(exclude_categories=["Cs"]))
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=70), inner)
    ),
    max_leaves=40,
)


@given(st.lists(DOCUMENTS, min_size=1))
def test_any_document_is_read_back(documents: list[Any]) -> None:
    encoded = encode_json(pa.array([json.dumps(document) for document in documents], pa.string()))
    encoded.validate(full=True)
    assert [VariantVal(**row).toPython() for row in encoded.to_pylist()] == documents
