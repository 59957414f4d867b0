"""The metrics against the committed test vectors."""

from typing import Any

import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.metrics import ACE, ECE, MCE, NLL, Brier, ClasswiseECE, Error, ranking

Vectors = dict[str, dict[str, Any]]
INTERPOLATED = "interpolated"


def from_probs(inputs: dict[str, Any]) -> Predictions:
    return Predictions.from_probs(torch.tensor(inputs["probs"], dtype=torch.float64), inputs["labels"])


def pairs(inputs: dict[str, Any]) -> Pairs:
    return Pairs.from_probs(torch.tensor(inputs["conf"], dtype=torch.float64), inputs["correct"])


@pytest.mark.parametrize("name", ["ece_fixture_bins10", "ece_fixture_bins15"])
def test_confidences_on_bin_edges(vectors: Vectors, name: str) -> None:
    entry = vectors[name]
    data, expected = from_probs(entry["inputs"]), entry["expected"]
    binning = EqualWidth(entry["inputs"]["n_bins"])
    assert ECE(binning)(data) == pytest.approx(expected["ece"], abs=1e-12)
    assert ECE(binning, norm=2)(data) == pytest.approx(expected["ece_l2"], abs=1e-12)
    assert MCE(binning)(data) == pytest.approx(expected["mce"], abs=1e-12)
    assert ACE(binning)(data) == pytest.approx(expected["ace_unweighted"], abs=1e-12)
    table = ECE(binning).table(data)
    filled = torch.nonzero(table.count)[:, 0].tolist()
    assert [str(b) for b in filled] == list(expected["bins_right_closed"])
    for b in filled:
        count, confidence, accuracy = expected["bins_right_closed"][str(b)]
        found = (int(table.count[b]), float(table.sum_p[b] / count), float(table.sum_y[b] / count))
        assert found == pytest.approx((count, confidence, accuracy), abs=1e-12)


def test_all_metrics_away_from_edges(vectors: Vectors) -> None:
    entry = vectors["metrics_edge_free_bins15"]
    data, expected = from_probs(entry["inputs"]), entry["expected"]
    found = {
        "ece": ECE(),
        "mce": MCE(),
        "ace_unweighted": ACE(),
        "ece_l2": ECE(norm=2),
        "classwise_ece": ClasswiseECE(),
        "adaece_array_split": ECE(EqualMass(15)),
        "adaece_mukhoti_interp": ECE(EqualMass(15, ties=INTERPOLATED)),
        "brier_sum": Brier(),
        "nll": NLL(),
        "error": Error(),
    }
    checked = [name for name in expected if name in found]
    assert len(checked) >= 7
    for name in checked:
        assert found[name](data) == pytest.approx(expected[name], abs=entry["tolerance"]["abs"]), name


@pytest.mark.parametrize("name", ["adaece_small", "adaece_30"])
def test_equal_mass_by_both_tie_rules(vectors: Vectors, name: str) -> None:
    entry = vectors[name]
    data, bins = pairs(entry["inputs"]), entry["inputs"]["n_bins"]
    assert ECE(EqualMass(bins))(data) == pytest.approx(entry["expected"]["exact_equal_mass"], abs=1e-12)
    papers = EqualMass(bins, ties=INTERPOLATED)
    assert ECE(papers)(data) == pytest.approx(entry["expected"]["mukhoti_interp"], abs=1e-12)
    if "mukhoti_edges" in entry["expected"]:
        assert papers.edges(data.p).tolist() == pytest.approx(entry["expected"]["mukhoti_edges"])


def test_perfect_and_degenerate_confidences(vectors: Vectors) -> None:
    entry = vectors["ece_perfect"]
    assert ECE()(pairs(entry["inputs"])) == pytest.approx(0, abs=1e-12)
    assert MCE()(pairs(entry["inputs"])) == pytest.approx(0, abs=1e-12)
    zero = vectors["ece_conf_zero_counts"]
    assert ECE(EqualWidth(10))(pairs(zero["inputs"])) == zero["expected"]["ece"]


def test_classwise_counts_absent_classes_and_zero_probabilities(vectors: Vectors) -> None:
    entry = vectors["classwise_ece_missing_class"]
    data = Predictions.from_logits(
        torch.tensor(entry["inputs"]["logits"], dtype=torch.float64), entry["inputs"]["labels"]
    )
    assert ClasswiseECE()(data) == pytest.approx(entry["expected"]["correct"], abs=1e-12)
    entry = vectors["classwise_ece_zero_prob"]
    assert ClasswiseECE()(from_probs(entry["inputs"])) == pytest.approx(entry["expected"]["correct"], abs=1e-12)


def test_brier(vectors: Vectors) -> None:
    entry = vectors["brier_values"]
    data = Predictions.from_probs(
        torch.tensor(entry["inputs"]["probs"], dtype=torch.float64), entry["inputs"]["target"]
    )
    assert Brier()(data) == pytest.approx(entry["expected"]["sum_over_classes"], abs=1e-12)
    assert Brier()(Predictions.from_probs([[0.0, 1.0]], [0])) == 2.0


def test_ood_auroc_counts_ties_as_one_half(vectors: Vectors) -> None:
    inputs = vectors["auroc_ood"]["inputs"]
    inside, outside = (torch.tensor(inputs[name], dtype=torch.float64) for name in ("entropy_in", "entropy_out"))
    assert ranking.roc_curve(outside, inside).area == vectors["auroc_ood"]["expected"]["auroc"]
