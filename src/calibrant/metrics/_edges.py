"""Confidences for bins of fixed edges: beside an edge PyTorch's path decides, so that no bin depends on compiled loops."""

from torch import Tensor

from calibrant._data import Data
from calibrant._kernels import cpu, reference
from calibrant.binning import Binning, EqualWidth
from calibrant.predictions import Predictions

_MARGIN = 1e-6  # relative; each path is within 2e-7 of the exact confidence


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
