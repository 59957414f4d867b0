"""The sums an accelerator makes by a matrix product are those of the counting on a CPU."""

import torch

from calibrant.binning import BinTable, EqualWidth, _device_sums


def test_product_sums_are_counting_sums() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5000, dtype=torch.float64, generator=generator)
    y = (torch.rand(5000, dtype=torch.float64, generator=generator) < p).double()
    index = EqualWidth(15).assign(p)
    count, sum_p, sum_y = _device_sums(index, p, y, 15)
    table = BinTable.from_pairs(index, p, y, bins=15)
    assert torch.equal(count, table.count)
    torch.testing.assert_close(sum_p, table.sum_p, rtol=1e-12, atol=0)
    assert torch.equal(sum_y, table.sum_y)
