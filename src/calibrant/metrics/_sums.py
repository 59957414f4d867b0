"""Sums over rows by the compiled loops, and what they share between metrics."""

from dataclasses import dataclass
from typing import TypeGuard

from calibrant._kernels import cpu, reference
from calibrant.binning import LOOP_BINS, Binning, BinTable, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions

_MARGIN = 1e-6  # relative; the loop's float32 exponentials are within 2e-7 of the exact confidence


def table_for(binning: Binning, data: Data) -> BinTable:
    """Return the bin table of confidences and correct decisions; of predictions in bins of equal width it is made once."""
    if not isinstance(binning, EqualWidth) or not isinstance(data, Predictions):
        return binning.table(data.confidence, data.correct, weight=data.weights)
    if binning not in data.sums:
        if binning.bins <= LOOP_BINS and summed_by_loops(data):
            data.sums[binning] = _plain_table(binning, data)
        else:
            data.sums[binning] = binning.table(data.confidence, data.correct, weight=data.weights)
    table: BinTable = data.sums[binning]
    return table


def _plain_table(binning: EqualWidth, data: Predictions) -> BinTable:
    labels = data.need_labels()
    sums, near = cpu.top_bins(data.logits, labels, binning.bins, margin=_MARGIN)
    table = BinTable.of_sums(sums, len(data) - near.shape[0])
    if near.shape[0] == 0:
        return table
    # next to an edge PyTorch decides, so that bins do not depend on the loops
    logits = data.logits[near]
    p = reference.exp_sums(logits, logits.amax(dim=1)).reciprocal_()
    rest = binning.table(p, logits.argmax(dim=1) == labels[near])
    return table + rest


def summed_by_loops(data: Data) -> TypeGuard[Predictions]:
    """Return whether sums of all rows of ``data`` follow from its logits and labels, by the compiled loops."""
    return (
        isinstance(data, Predictions)
        and data.given_probs is None
        and data.decision is None
        and data.weights is None
        and cpu.serves(data.logits)
    )


@dataclass(frozen=True)
class Scores:
    """Sums over all rows: of −log p of the label, of the Brier score, and of right decisions."""

    nll: float
    brier: float
    hits: int


def plain_scores(data: Data) -> Scores | None:
    """Return the sums of the scores if ``data`` are plain predictions, in one pass, which is not made twice; else None."""
    if not summed_by_loops(data):
        return None
    if Scores not in data.sums:
        data.sums[Scores] = Scores(*cpu.score_sums(data.logits, data.need_labels()))
    scores: Scores = data.sums[Scores]
    return scores
