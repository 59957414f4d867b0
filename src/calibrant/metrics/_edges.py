"""Confidences for bins with fixed edges: next to an edge PyTorch recomputes them, so that bins do not depend on compiled loops."""

from torch import Tensor

from calibrant._data import Data
from calibrant._kernels import cpu, reference
from calibrant.binning import Binning, BinTable, EqualWidth
from calibrant.predictions import Predictions

_MOST_BINS = 1000
_MARGIN = 1e-6  # relative; compiled loops and PyTorch are each within 2e-7 of the exact confidence


def table_for(binning: Binning, data: Data) -> BinTable:
    """Return the bin table of confidences and correct decisions, in one pass over the rows' sums where these suffice."""
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
    """Return the rows' sums if they suffice for a table of ``binning``: few bins of equal width, no weights, no decision; or None."""
    if not isinstance(binning, EqualWidth) or binning.bins > _MOST_BINS or not isinstance(data, Predictions):
        return None
    if data.given_probs is not None or data.decision is not None or data.weights is not None:
        return None
    return data.float32_sums


def confidence_for(binning: Binning, data: Data) -> Tensor:
    """Return the confidences (N,) of ``data``, recomputed by PyTorch where rounding could put them in another bin."""
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
    p = p.clone()  # data caches the original
    if data.decision is None:
        p[near] = sums.reciprocal_()
    else:
        decided = logits.gather(1, data.decision[near, None])[:, 0]
        p[near] = (decided.double() - top.double()).exp() / sums
    return p
