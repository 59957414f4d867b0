"""Weights and features beside predictions: kept by every operation, in files and in streams, and refused where they do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import BinaryPairs, Predictions, load_predictions, save_predictions
from calibrant.adapters.dataframes import from_table, to_table
from calibrant.calibrators import TemperatureScaling, VectorScaling
from calibrant.errors import FileFormatError, InputError
from calibrant.metrics import ECE, NLL, Accuracy, Brier, ClasswiseECE
from calibrant.plot import temperature_path
from calibrant.scale import evaluate_streamed, fit_streamed

KINDS = ("frequency", "sampling")


def sample(kind: str | None = "sampling", rows: int = 60) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=generator) * 2
    labels = torch.multinomial((logits * 0.6).softmax(dim=1), 1, generator=generator)[:, 0]
    weights = torch.randint(0, 4, (rows,), generator=generator) * (1 if kind == "frequency" else 0.35)
    features = {"region": np.array(["north", "süd"])[np.arange(rows) % 2], "age": torch.arange(rows) * 1.5}
    return Predictions.from_logits(
        logits, labels, groups=torch.arange(rows) // 2, weights=None if kind is None else weights, weight_kind=kind,
        features=features,
    )  # fmt: skip


def same(a: Any, b: Any) -> None:
    assert torch.equal(a.weights, b.weights)
    assert a.weight_kind == b.weight_kind
    assert list(a.features["region"]) == list(b.features["region"])
    assert torch.equal(a.features["age"], b.features["age"])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_what_lies_beside_them(kind: str) -> None:
    data = sample(kind)
    assert data.weight_kind == kind
    assert data.weights.dtype == (torch.int64 if kind == "frequency" else torch.float64)
    same(Predictions.cat([data[:20], data[20:]]), data)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    assert list(data[order].features["region"]) == list(np.asarray(data.features["region"])[order.numpy()])  # type: ignore[index]
    same(data.calibrated_by(TemperatureScaling().fit(2 * torch.eye(3), torch.tensor([0, 1, 0]))), data)
    same(data.top_label(), data)
    same(data.one_vs_rest(1), data)
    same(data.top_label()[:], data)
    assert f"{kind} weights" in repr(data)
    assert "features region·age" in repr(data)


def test_positions_of_one_sample_share_its_weight() -> None:
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[0, 1, -1, 2], [2, -1, 0, 1]])
    data = Predictions.from_logits(
        logits, labels, ignore_index=-1, weights=[1, 5], weight_kind="frequency", features={"site": ["a", "b"]}
    )
    assert data.weights.tolist() == [1, 1, 1, 5, 5, 5]
    assert list(data.features["site"]) == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["npz", "parquet", "safetensors"])
def test_files_keep_them(tmp_path: Path, suffix: str, kind: str) -> None:
    data, path = sample(kind), tmp_path / f"data.{suffix}"
    save_predictions(path, {"all": data})
    found = load_predictions(path)
    assert isinstance(found, Predictions)
    assert torch.equal(found.logits, data.logits)
    same(found, data)
    if suffix != "parquet":
        save_predictions(path, {"val": data, "test": data[:30]})
        same(load_predictions(path, "val"), data)


def test_pairs_in_files_keep_them(tmp_path: Path) -> None:
    made = BinaryPairs.from_top_label(
        [0.9, 0.6, 0.7],
        [0, 1, 1],
        [0, 1, 0],
        weights=[1.5, 0.0, 2.0],
        weight_kind="sampling",
        features={"x": [1, 2, 3]},
    )
    save_predictions(tmp_path / "a.npz", {"test": made})
    found = load_predictions(tmp_path / "a.npz", ignore_index=1)
    assert found.weights.tolist() == [1.5, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_give_the_answer_of_memory(tmp_path: Path, kind: str) -> None:
    data = sample(kind, rows=90)
    for number, part in enumerate((data[:30], data[30:50], data[50:])):
        save_predictions(tmp_path / f"{number}.parquet", {"all": part})
    metrics = [Accuracy(), NLL(), Brier(), ECE(), ClasswiseECE()]
    for figure, metric in zip(evaluate_streamed(tmp_path, metrics=metrics), metrics, strict=True):
        assert figure.value == pytest.approx(metric(data), rel=1e-12)
    assert data.weights is not None
    for streamed, inside in ((TemperatureScaling(), TemperatureScaling()), (VectorScaling(), VectorScaling())):
        fit_streamed(streamed, tmp_path)
        inside.fit(data)
        z = data.logits
        assert torch.allclose(streamed(z), inside(z), atol=1e-6)
        other = type(inside)().fit(data.logits, data.labels)
        assert not torch.allclose(other(z), inside(z), atol=1e-3)


def test_a_fit_takes_the_weights_of_predictions() -> None:
    counted = sample("frequency")
    assert counted.weights is not None
    repeated = counted[torch.repeat_interleave(torch.arange(60), counted.weights)]
    plain = Predictions.from_logits(repeated.logits, repeated.labels)
    assert TemperatureScaling().fit(counted).temperature == pytest.approx(
        TemperatureScaling().fit(plain).temperature, rel=1e-6
    )
    one = sample("sampling")
    other = Predictions.from_logits(one.logits, one.labels, weights=one.weights * 1e5, weight_kind="sampling")
    first, second = VectorScaling().fit(one), VectorScaling().fit(other)
    assert torch.allclose(first.scale, second.scale, atol=1e-7)


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"weights": [1.0, 2.0]}, 'pass weight_kind="frequency" for counts of repeated rows, or "sampling"'),
        ({"weight_kind": "sampling"}, "expected weights beside weight_kind, got none"),
        ({"weights": [1.0, 2.0], "weight_kind": "survey"}, "expected weight_kind to be one of 'frequency', 'sampling'"),
        ({"weights": [1.0], "weight_kind": "sampling"}, r"expected weights of shape \(2,\), got shape \(1,\)"),
        ({"weights": [1.0, -2.0], "weight_kind": "sampling"}, "got -2 in row 1; leave out rows that must not count"),
        ({"weights": [1.0, float("nan")], "weight_kind": "sampling"}, "finite weights ≥ 0, got nan in row 1"),
        ({"weights": [0, 0], "weight_kind": "frequency"}, "expected a positive weight, got 2 weights of 0"),
        ({"weights": [1.5, 2], "weight_kind": "frequency"}, "got 1.5 in row 0; pass counts, or weight_kind"),
        (
            {"weights": [1e300, 1.0], "weight_kind": "sampling"},
            "divide them by their mean: their scale does not matter",
        ),
        ({"weights": [2**53, 1], "weight_kind": "frequency"}, "with a sum below 2⁵³"),
        ({"features": [1, 2]}, "expected features as a dict of name → column"),
        ({"features": {"a": [1, 2, 3]}}, r"expected the feature 'a' of shape \(2,\), got shape \(3,\)"),
        ({"features": {"a": [None, "x"]}}, "give missing entries a name of their own"),
        ({"features": {3: [1, 2]}}, "expected the name of a feature as text, got 3"),
    ],
)
def test_what_does_not_fit_is_refused(beside: dict[str, Any], words: str) -> None:
    for make in (
        lambda: Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0], **beside),
        lambda: Predictions.from_binary_probs([0.4, 0.9], [0, 1], **beside),
        lambda: BinaryPairs.from_probs([0.4, 0.9], [0, 1], **beside),
    ):
        with pytest.raises(InputError, match=words):
            make()


def test_parts_that_differ_are_refused() -> None:
    data = sample()
    for other, words in (
        (sample("frequency"), "expected the same weight_kind in all parts"),
        (sample(None), "expected the same weight_kind"),
        (Predictions.from_logits(data.logits, data.labels, groups=data.groups, weights=data.weights, weight_kind="sampling"),
         "features in all parts"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            Predictions.cat([data, other])


def test_rows_without_weight_measure_nothing() -> None:
    data = sample()
    assert data.weights is not None
    with pytest.raises(InputError, match="expected at least one row of positive weight for Accuracy"):
        Accuracy()(data[data.weights == 0])


def test_what_does_not_honour_weights_refuses_them() -> None:
    with pytest.raises(
        InputError, match="expected rows without weights for a picture or a report, got sampling weights"
    ):
        temperature_path(sample())


def test_a_file_with_both_kinds_of_weights_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", logits=2 * np.eye(2), labels=[0, 1], frequency_weights=[1, 1], sampling_weights=[1.0, 1.0]
    )
    with pytest.raises(
        FileFormatError, match="expected one array of each meaning, got frequency_weights and sampling_weights"
    ):
        load_predictions(tmp_path / "a.npz")


def test_tables_keep_them() -> None:
    import pyarrow as pa

    table = pa.table(
        {"a": [0.9, 0.2], "b": [0.1, 0.8], "y": [0, 0], "w": [2, 3], "site": ["n", "s"], "age": [31.5, 60.0]}
    )
    data = from_table(
        table,
        columns=["a", "b"],
        label="y",
        kind="probs",
        weight="w",
        weight_kind="frequency",
        features=["site", "age"],
    )
    assert (data.weights.tolist(), list(data.features["site"]), data.features["age"].tolist()) == (
        [2, 3],
        ["n", "s"],
        [31.5, 60],
    )
    back = to_table(data)
    assert back["frequency_weights"].to_pylist() == [2, 3]
    assert back["site"].to_pylist() == ["n", "s"]
    with pytest.raises(InputError, match=r"expected columns \['nowhere'\]"):
        from_table(table, columns=["a", "b"], kind="probs", features=["nowhere"])
    with pytest.raises(InputError, match="pass weight_kind"):
        from_table(table, columns=["a", "b"], kind="probs", weight="w")


def test_a_name_that_is_missing_is_refused_and_not_called_nan() -> None:
    for entry in (float("nan"), 3):
        with pytest.raises(InputError, match=r"names and .*give missing entries a name of their own"):
            Predictions.from_logits([[1.0, 0.0], [0.0, 1.0]], features={"site": ["a", entry]}, unchecked_kind=True)


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1.0, -2.0], "≥ 0, got -2 in row 1; leave out that row"), ([0.0, 0.0], "got 2 weights of 0; check")],
)
def test_weights_of_a_fit_that_are_refused_are_named(weights: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TemperatureScaling().fit(2 * torch.eye(2), torch.tensor([0, 1]), sample_weight=torch.tensor(weights))


def test_columns_of_any_dtype_of_tensors_are_read_or_refused() -> None:
    def made(column: Any, name: str = "features") -> Predictions:
        beside: dict[str, Any] = {name: {"age": column} if name == "features" else column}
        return Predictions.from_logits(2 * torch.eye(2), **beside)

    features = made(torch.tensor([1.5, 2.0], dtype=torch.bfloat16)).features
    assert features["age"].tolist() == [1.5, 2.0]
    with pytest.raises(InputError, match="groups as integers or names"):
        made(torch.ones(2, dtype=torch.bfloat16), "groups")
    with pytest.raises(InputError, match="with values"):
        made(torch.ones(2, device="meta"))
    with pytest.raises(InputError, match="dense"):
        made(torch.ones(2).to_sparse())
    with pytest.raises(InputError, match="below 2⁶³"):
        made(np.array([1, 2**63 + 3], dtype=np.uint64))
