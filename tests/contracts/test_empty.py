"""A selection without rows is refused by whatever measures, in one sentence: an empty set must never look perfect."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from calibrant import Predictions, evaluate, functional, metrics, plot, statistics
from calibrant.errors import InputError

SENTENCE = r"expected at least one row for .+, got no rows; check how the rows were selected"
DATA = Predictions.from_logits([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5]], [0, 1, 1])
NONE = torch.zeros(3, dtype=torch.bool)
EMPTY: dict[str, Any] = {"predictions": DATA[NONE], "pairs": DATA.top_label()[NONE]}
# What takes data beside the metrics (of which check_metric asks it), each called with the empty selection.
MEASURES: dict[str, Callable[[Any], Any]] = {
    "ECE": metrics.ECE(),
    "interval": lambda data: statistics.interval(metrics.ECE(), data),
    "null_band": lambda data: statistics.null_band(metrics.ECE(), data),
    "bootstrap": lambda data: statistics.bootstrap(metrics.Accuracy(), data),
    "risk_coverage": metrics.risk_coverage,
    "panel": evaluate.panel,
    "default_metrics": evaluate.default_metrics,
    "compare": lambda data: evaluate.compare(data, data),
    "calibration_line": evaluate.calibration_line,
    "plot.reliability": plot.reliability,
    "plot.confidence_histogram": plot.confidence_histogram,
    "plot.risk_coverage": plot.risk_coverage,
    "CalibrationDisplay": lambda data: plot.CalibrationDisplay(data).plot(),
}
OF_ALL_CLASSES: dict[str, Callable[[Any], Any]] = {
    "ood_auroc": lambda data: metrics.ood_auroc(data, DATA),
    "ood_auroc, outside": lambda data: metrics.ood_auroc(DATA, data, score="confidence"),
    "ood_roc": lambda data: metrics.ood_roc(data, DATA),
    "entropy_rows": metrics.entropy_rows,
    "optimal_ece": evaluate.optimal_ece,
    "refinement": evaluate.refinement,
    "plot.classwise": plot.classwise,
}


@pytest.mark.parametrize("measure", [*MEASURES, *OF_ALL_CLASSES])
def test_every_measure_refuses_no_rows(measure: str) -> None:
    for kind in EMPTY if measure in MEASURES else ("predictions",):
        with pytest.raises(InputError, match=SENTENCE):
            (MEASURES | OF_ALL_CLASSES)[measure](EMPTY[kind])


@pytest.mark.parametrize("name", ["accuracy", "ace", "brier", "ece", "nll"])
def test_functions_of_logits_and_labels_refuse_no_rows(name: str) -> None:
    with pytest.raises(InputError, match="at least one row"):
        getattr(functional, name)(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
