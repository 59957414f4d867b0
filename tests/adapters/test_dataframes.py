"""Tables of three libraries in, one Arrow table out."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import late

import calibrant
from calibrant import Predictions
from calibrant.adapters.dataframes import from_table, to_table
from calibrant.calibrators import TemperatureScaling  # type: ignore[attr-defined]
from calibrant.errors import InputError

pd = late("pandas")

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
        (
            {"columns": ["cat", "dog"], "label": "who", "kind": "probs"},
            r"labels among \['cat', 'dog'\], got \['a', 'b'\]",
        ),
    ]:
        with pytest.raises(InputError, match=text):
            from_table(table, **arguments)
    with pytest.raises(InputError, match="2 column names, got 1"):
        to_table(from_table(table, columns=["cat", "dog"], kind="probs"), columns=["cat"])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_a_frame_comes_back_with_its_rows_and_calibrated_columns(make: Any) -> None:
    pytest.importorskip("narwhals", reason="optional package 'narwhals' is not installed")
    columns = {
        "id": ["07", "03", "x"],
        "p_cat": [0.9, 0.3, 0.2],
        "p_dog": [0.1, 0.7, 0.8],
        "truth": ["cat", "dog", "dog"],
    }
    frame = make(columns)
    if make is pd.DataFrame:
        frame.index = [5, 2, 9]
    data = calibrant.read(frame)
    scaling = TemperatureScaling().fit([[3.0, 0.0]] * 10, [0] * 7 + [1] * 3)
    after = data.calibrated_by(scaling)
    assert isinstance(data, Predictions)
    assert data.class_names == ("cat", "dog")
    assert data.need_labels().tolist() == [0, 1, 1]
    back = after[[2, 0]].to_frame()
    assert type(back) is type(frame)
    assert list(getattr(back, "column_names", None) or back.columns) == [
        *columns,
        "p_cat_calibrated",
        "p_dog_calibrated",
    ]
    np.testing.assert_allclose(np.asarray(back["p_dog_calibrated"]), after.probs[[2, 0], 1])
    assert list(np.asarray(back["id"])) == ["x", "07"]
    if make is pd.DataFrame:
        assert back.index.tolist() == [9, 5]
        np.testing.assert_array_equal(back[list(columns)], frame.loc[[9, 5]])
    decided = after.to_frame(what="top", instead=True)
    assert list(np.asarray(decided["predicted"])) == ["cat", "dog", "dog"]
    assert "p_cat" not in (getattr(decided, "column_names", None) or list(decided.columns))
    assert Predictions.cat([data, data[:1]]).to_frame().shape[0] == 4
    assert Predictions.cat([data, calibrant.read(make(columns))]).frame is None
    with pytest.raises(InputError, match="new names of columns"):
        after.to_frame(suffix="")
    named = Predictions.from_probs([[0.2, 0.8], [0.6, 0.4]], ["dog", "cat"], class_names=["cat", "dog"])
    assert named.correct.tolist() == [True, True]
    assert named.to_frame().column_names[:2] == ["cat", "dog"]
    with pytest.raises(InputError, match="2 distinct class_names"):
        Predictions.from_probs([[0.2, 0.8]], class_names=["cat"])
