"""Memory, stream and workers give the same interval and limit if calibrated, of every metric that is a sum."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.scale.conftest import in_parts

from calibrant import Predictions, save_predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.evaluate import panel
from calibrant.metrics import (
    ACE,
    ECE,
    MCE,
    NLL,
    Accuracy,
    Brier,
    ClasswiseECE,
    DebiasedECE,
    Error,
    SumMetric,
    TopLabelECE,
    classwise,
)
from calibrant.scale import evaluate_streamed, processes, rows
from calibrant.scale.execute import Executor
from calibrant.statistics import means

MEANS: list[SumMetric[Any]] = [Accuracy(), NLL(), Brier(), Error()]
ERRORS: list[SumMetric[Any]] = [
    ECE(), ECE(norm=2), MCE(), ACE(), DebiasedECE(), TopLabelECE(), ClasswiseECE(EqualWidth(7)),
    ECE(EqualMass()), MCE(EqualMass(10)), DebiasedECE(EqualMass()), ClasswiseECE(EqualMass(5)),
]  # fmt: skip
DRAWS = 60  # the same ones are compared, however many
WITH_INTERVAL = {"Accuracy", "NLL", "Brier", "Error", "ECE", "TopLabelECE", "ClasswiseECE"}


def sample(classes: int, *, weighted: bool, grouped: bool, rows: int = 1000) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(rows, classes, generator=generator)
    wrong = torch.rand(rows, generator=generator) < 0.2
    labels = torch.where(wrong, (z.argmax(dim=1) + 1) % classes, z.argmax(dim=1))
    beside: dict[str, Any] = {}
    if weighted:
        beside = {"weights": torch.randint(0, 4, (rows,), generator=generator) / 3}  # some rows do not count
    if grouped:  # each has rows in every file
        beside["groups"] = 7 * torch.randint(0, 60, (rows,), generator=generator) - 5
    return Predictions.from_logits(z, labels, **beside)


def figures_of(row: Any) -> list[float | None]:
    return [row.value, row.low, row.high, row.null_high, row.null_mean]


def need_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.metric == other.metric
        mine, theirs = figures_of(one), figures_of(other)
        assert [x is None for x in mine] == [x is None for x in theirs], one.metric
        numbers = [[x for x in figures if x is not None] for figures in (mine, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-9), one.metric


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    pool = processes(2)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("classes", "weighted", "grouped"),
    [(3, weighted, grouped) for weighted in (False, True) for grouped in (False, True)]
    + [(2, False, False), (2, True, True)],
)
def test_memory_stream_and_workers_agree(
    classes: int, weighted: bool, grouped: bool, tmp_path: Path, workers: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sample(classes, weighted=weighted, grouped=grouped)
    folder, metrics = in_parts(data, tmp_path), MEANS + ERRORS
    expected = panel(data, metrics=metrics, draws=DRAWS)
    assert [row.low is not None for row in expected if "Debiased" not in row.metric] == [
        type(metric).__name__ in WITH_INTERVAL and metric != ECE(norm=2)
        for metric in metrics
        if not isinstance(metric, DebiasedECE)
    ]
    assert [row.null_high is not None for row in expected] == [metric in ERRORS for metric in metrics]
    need_equal(evaluate_streamed(folder, metrics=metrics, draws=DRAWS, executor=workers), expected)
    monkeypatch.setattr(rows, "PIECE_BYTES", 100 * classes * 4)  # several pieces a file
    need_equal(evaluate_streamed(folder, metrics=metrics, draws=DRAWS), expected)
    assert {figure.low for figure in evaluate_streamed(folder, metrics=metrics, draws=0)} == {None}


def test_few_wrong_decisions_have_the_bounds_of_memory(tmp_path: Path) -> None:
    data = sample(3, weighted=False, grouped=False)
    data = data[torch.cat([torch.nonzero(data.correct)[:, 0], torch.nonzero(~data.correct)[:5, 0]])]
    need_equal(
        evaluate_streamed(in_parts(data, tmp_path)), panel(data, metrics=[*MEANS[:3], ECE(), MCE(), ClasswiseECE()])
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_of_late_rows_are_drawn_alike(weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sample(4, weighted=weighted, grouped=False, rows=2500)
    metric, many = ClasswiseECE(), 1000
    before = metric.null_draws(data, draws=many, seed=0)
    monkeypatch.setattr(classwise, "_WHOLE", 512)
    monkeypatch.setattr(classwise, "_BLOCK", 128)  # so that pieces and blocks end at different rows
    monkeypatch.setattr(rows, "PIECE_BYTES", 100 * 4 * 4)
    after = metric.null_draws(data, draws=many, seed=0)
    # the same distribution: the means are within three standard errors, the spreads within a tenth
    error = float((before.var() / many + after.var() / many).sqrt())
    assert abs(float(before.mean() - after.mean())) < 3 * error
    assert float(after.std() / before.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(before, after)
    need_equal(
        evaluate_streamed(in_parts(data, tmp_path), metrics=[metric], draws=DRAWS),
        panel(data, metrics=[metric], draws=DRAWS),
    )


def test_labels_are_drawn_as_often_as_their_probabilities_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classwise, "_WHOLE", 256)
    monkeypatch.setattr(classwise, "_BLOCK", 16)
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).expand(1024, 3)
    data = Predictions.from_probs(p, [0] * 1024)
    drawn = ClasswiseECE().no_labels(data, 2000)
    ClasswiseECE()._draw(data, start=0, seed=3, drawn=drawn)
    drawn = drawn.double()
    filled = drawn[:, drawn.sum(dim=0) > 0]  # one bin of each class
    assert filled.sum(dim=1).tolist() == [1024.0] * 2000
    # about the exact mean, since draws that share a set of labels share its error
    off = filled - 1024 * p[0]
    expected = 1024 * (torch.diag(p[0]) - torch.outer(p[0], p[0]))
    assert torch.allclose(off.T @ off / 2000, expected, rtol=0.15)
    assert float(off.mean(dim=0).abs().max()) < 0.25 * 1024**0.5 * 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_too_many_groups_are_refused_and_the_values_stay(
    weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "MOST_SUMS", 800)  # 60 groups of 15 bins are more
    data = sample(3, weighted=weighted, grouped=True)
    metrics = [Accuracy(), ECE()]
    accuracy, ece = evaluate_streamed(in_parts(data, tmp_path), metrics=metrics)
    assert ece.value == pytest.approx(ECE()(data), rel=1e-12)
    assert (ece.low, ece.null_high) == (None, None)
    assert accuracy.low is not None
    with pytest.raises(means.NoIntervalError, match=r"at most 53 groups for the uncertainty of ECE\(.*got more"):
        ECE().interval(data)


def test_of_files_with_and_without_groups_the_units_are_not_known(tmp_path: Path) -> None:
    data = sample(3, weighted=False, grouped=True)
    save_predictions(tmp_path / "a.parquet", {"all": data[:400]})
    save_predictions(tmp_path / "b.parquet", {"all": sample(3, weighted=False, grouped=False)[400:]})
    for figure in evaluate_streamed(tmp_path):
        assert figure.value > 0
        assert figures_of(figure)[1:] == [None] * 4


def test_bins_of_very_many_classes_have_a_value_and_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classwise, "_DENSE_BYTES", 8 * 1000 * 44)
    data = sample(3, weighted=False, grouped=False)
    figure = evaluate_streamed(in_parts(data, tmp_path), metrics=[ClasswiseECE()])[0]
    assert figures_of(figure) == [pytest.approx(ClasswiseECE()(data)), None, None, None, None]
