"""Confidences for bins of fixed edges: beside an edge PyTorch's path decides, so that no bin depends on compiled loops."""

from torch import Tensor

from calibrant._data import Data
from calibrant._kernels import cpu, reference
from calibrant.binning import Binning, BinTable, EqualWidth
from calibrant.predictions import Predictions

_MOST_BINS = 1000
_MARGIN = 1e-6  # relative; each path is within 2e-7 of the exact confidence


def table_for(binning: Binning, data: Data) -> BinTable:
    """Return the bin table of confidences and correct decisions: in one pass over the sums of rows where nothing else is needed."""
    sums = _plain_sums(binning, data)
    if sums is None or not isinstance(data, Predictions):
        return binning.table(confidence_for(binning, data), data.correct, weight=data.weights)
    labels = data.need_labels()
    count, sum_p, sum_y, near = cpu.top_bins(sums, labels, binning.edges(sums.others), margin=_MARGIN)
    if near.shape[0] == 0:
        return BinTable(count, sum_p, sum_y, total=len(data))
    p = reference.exp_sums(data.logits[near], sums.top[near]).reciprocal_()
    rest = binning.table(p, sums.best[near] == labels[near])
    return BinTable(count + rest.count, sum_p + rest.sum_p, sum_y + rest.sum_y, total=len(data))


def _plain_sums(binning: Binning, data: Data) -> cpu.RowStatistics | None:
    """Return the sums of rows if a table of ``binning`` follows from them: few bins of equal width, no weights, no decision."""
    if not isinstance(binning, EqualWidth) or binning.bins > _MOST_BINS or not isinstance(data, Predictions):
        return None
    if data.given_probs is not None or data.decision is not None or data.weights is not None:
        return None
    return data.float32_sums


def confidence_for(binning: Binning, data: Data) -> Tensor:
    """Return the confidences (N,) of ``data``, computed by PyTorch where an edge of ``binning`` lies within their rounding."""
    p = data.confidence
    if not isinstance(binning, EqualWidth) or not isinstance(data, Predictions):
        return p
    if data.given_probs is not None or data.float32_sums is None:
        return p
    near = cpu.near_edges(p, binning.bins, margin=_MARGIN)
    if near.shape[0] == 0:
        return p
    logits, top = data.logits[near], data.row_max[near]
    sums = reference.exp_sums(logits, top)
    p = p.clone()  # what data keeps stays as it is
    if data.decision is None:
        p[near] = sums.reciprocal_()
    else:
        decided = logits.gather(1, data.decision[near, None])[:, 0]
        p[near] = (decided.double() - top.double()).exp() / sums
    return p
