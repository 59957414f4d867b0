"""The fence between fitting and judging: a hash a row, and what it says about data seen before."""

import warnings

import torch
from torch import Tensor

from calibrant._numerics import row_chunks
from calibrant.errors import DuplicateRowsWarning, LeakError

RUN = 32  # rows in fitting order that cannot be chance
_COLUMNS = 64  # columns that enter a hash: real logits that agree in 64 places to the bit are the same row


def hash_rows(logits: Tensor) -> Tensor:
    """Return one int64 hash (N,) of each row of ``logits`` (N, K) as float32 bits; from at most 64 columns, evenly spaced."""
    picked = logits[:, :: -(-logits.shape[1] // _COLUMNS)]
    odd = _odd_numbers(picked.shape[1]).to(logits.device)
    hashes = []
    for chunk in row_chunks(*picked.shape, device=picked.device):
        bits = (picked[chunk].float() + 0.0).contiguous().view(torch.int32).long()  # −0 is 0
        mixed = (bits * odd).sum(dim=1)
        hashes.append(mixed ^ (mixed >> 29))
    return torch.cat(hashes).cpu()


def check_not_fitted_on(logits: Tensor, fit_rows: Tensor) -> None:
    """Refuse ``logits`` (N, K) that hold 32 rows on end of the fitting data (hashes ``fit_rows``) in fitting order.

    Raises:
        LeakError: If they do. Rows that merely coincide give a ``DuplicateRowsWarning`` with their share.
    """
    rows = hash_rows(logits)
    known = torch.isin(rows, fit_rows)
    if not bool(known.any()):
        return
    run = torch.isin(_window_hashes(rows), _window_hashes(fit_rows))
    if bool(run.any()):
        raise LeakError(
            f"expected data that were not fitted on, got {RUN} or more rows of the fitting data in their order, from row "
            f"{int(torch.nonzero(_window_starts(rows))[torch.nonzero(run)[0]])}; judge on other data, or pass "
            "allow_fit_rows=True"
        )
    warnings.warn(
        f"expected data that were not fitted on, got {int(known.sum())} of {len(rows)} rows "
        f"({float(known.double().mean()):.2%}) that also occur in the fitting data; check that the splits are distinct",
        DuplicateRowsWarning,
        stacklevel=3,
    )


def _odd_numbers(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) * 2 + 1


def _window_starts(rows: Tensor) -> Tensor:
    """Return where (N − 31,) a window of 32 rows starts that are not all alike: equal rows have no order."""
    windows = rows.unfold(0, RUN, 1) if len(rows) >= RUN else rows.new_empty(0, RUN)
    return (windows != windows[:, :1]).any(dim=1)


def _window_hashes(rows: Tensor) -> Tensor:
    if len(rows) < RUN:
        return rows.new_empty(0)
    return (rows.unfold(0, RUN, 1) * _odd_numbers(RUN)).sum(dim=1)[_window_starts(rows)]
