"""Sums over rows that metrics share."""

from typing import TypeGuard

from calibrant._kernel import top_bins
from calibrant.binning import LOOP_BINS, Binning, BinTable, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions


def table_for(binning: Binning, data: Data) -> BinTable:
    """Return the bin table of confidences and correct decisions; of predictions in bins of equal width it is made once."""
    if not isinstance(binning, EqualWidth) or not isinstance(data, Predictions):
        return binning.table(data.confidence, data.correct, weight=data.weights)
    if binning not in data.sums:
        if binning.bins <= LOOP_BINS and is_plain(data) and "statistics" not in vars(data):
            data.sums[binning] = BinTable.of_sums(top_bins(data.logits, data.need_labels(), binning.bins), len(data))
        else:
            data.sums[binning] = binning.table(data.confidence, data.correct, weight=data.weights)
    table: BinTable = data.sums[binning]
    return table


def is_plain(data: Data) -> TypeGuard[Predictions]:
    """Return whether sums of all rows of ``data`` follow from its logits and labels on the CPU alone."""
    if not isinstance(data, Predictions) or data.logits.device.type != "cpu":
        return False
    return data.given_probs is None and data.decision is None and data.weights is None
