"""Tables of three libraries in, one Arrow table out."""

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from calibrant.adapters.dataframes import from_table, to_table
from calibrant.errors import InputError

pl = pytest.importorskip("polars", reason="optional package 'polars' is not installed")

DATA = {"cat": [0.7, 0.2], "dog": [0.3, 0.8], "truth": ["dog", "dog"], "who": ["a", "b"]}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_every_kind_of_table_reads_the_same(make: Any) -> None:
    data = from_table(make(DATA), columns=["cat", "dog"], label="truth", group="who", kind="probs")
    assert data.confidence.tolist() == [0.7, 0.8]
    assert data.correct.tolist() == [False, True]
    assert data.groups is not None
    back = to_table(data, columns=["cat", "dog"])
    assert back.to_pydict() == {
        "cat": [0.7, 0.2], "dog": [0.3, 0.8], "predicted": [0, 1], "confidence": [0.7, 0.8], "label": [1, 1]
    }  # fmt: skip
    assert back.to_pandas().shape == (2, 5)
    assert pl.from_arrow(back).shape == (2, 5)


def test_misnamed_columns_kinds_and_labels() -> None:
    table = pa.table(DATA)
    for arguments, text in [
        ({"columns": ["cat", "cow"]}, r"columns \['cow'\], got only"),
        ({"columns": ["cat", "dog"], "kind": "p"}, "one of 'logits', 'probs'"),
        (
            {"columns": ["cat", "dog"], "label": "who", "kind": "probs"},
            r"labels among \['cat', 'dog'\], got \['a', 'b'\]",
        ),
    ]:
        with pytest.raises(InputError, match=text):
            from_table(table, **arguments)
    with pytest.raises(InputError, match="2 column names, got 1"):
        to_table(from_table(table, columns=["cat", "dog"], kind="probs"), columns=["cat"])
