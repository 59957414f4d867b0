"""Bins: edges, ties, dropped rows, sums that merge, and the sketch by value."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import InputError


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 15, 49, 100, 1000, 20_000])
def test_equal_width_is_a_search_on_and_beside_every_edge(bins: int) -> None:
    edges = np.arange(bins + 1) / bins
    around = [edges, np.nextafter(edges, 0), np.nextafter(edges, 1), edges + 1e-7, edges - 1e-7]
    p = np.unique(np.concatenate([*around, np.linspace(0, 1, 999)]))
    p = p[(p >= 0) & (p <= 1)]
    # what lies above an edge by rounding alone lies on it
    expected = np.clip(np.searchsorted(edges + 2**-24, p, "left") - 1, 0, bins - 1)
    assert EqualWidth(bins).assign(torch.from_numpy(p)).tolist() == expected.tolist()


@pytest.mark.parametrize("bins", [7, 10, 15, 100])
def test_edges_rounded_to_float32_stay_in_their_bins(bins: int) -> None:
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    assert torch.equal(EqualWidth(bins).assign(edges.float()), EqualWidth(bins).assign(edges))
    assert EqualWidth(bins).assign(edges + 1e-7).tolist() == [*range(bins), bins - 1]


def test_the_first_bin_holds_0_and_the_last_1() -> None:
    assert EqualWidth(15).assign(torch.tensor([0.0, 1.0])).tolist() == [0, 14]
    assert EqualWidth(3).edges(torch.zeros(1)).tolist() == [0.0, 1 / 3, 2 / 3, 1.0]


def test_equal_mass_keeps_ties_in_the_bin_of_their_first_row() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        bins, p = int(rng.integers(1, 21)), rng.integers(0, 13, size=rng.integers(1, 61)) / 12
        ranked = np.sort(p)
        part = np.concatenate([np.full(len(chunk), b) for b, chunk in enumerate(np.array_split(ranked, bins))])
        expected = [int(part[np.searchsorted(ranked, value, "left")]) for value in p]
        assert EqualMass(bins).assign(torch.from_numpy(p)).tolist() == expected


def test_equal_mass_sizes_are_those_of_array_split() -> None:
    p = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(EqualMass(7).assign(p), minlength=7).tolist()
    assert counts == [len(part) for part in np.array_split(np.arange(100), 7)]
    assert EqualMass(3).edges(torch.tensor([0.1, 0.2, 0.9])).tolist() == pytest.approx([0.0, 0.1, 0.2, 1.0])


def test_interpolated_edges_drop_the_least_confident_row() -> None:
    p = torch.tensor([0.2, 0.5, 0.7, 0.9], dtype=torch.float64)
    assert EqualMass(2, ties="interpolated").assign(p)[0] == -1
    table = EqualMass(2, ties="interpolated").table(torch.ones(5), torch.zeros(5))
    assert (int(table.count.sum()), table.total, table.error()) == (0, 5, 0.0)
    assert EqualMass(2).table(torch.ones(5), torch.zeros(5)).error() == 1.0


def test_interpolated_edges_are_numpys() -> None:
    p = np.sort(np.random.default_rng(0).random(37))
    expected = np.interp(np.linspace(0, 37, 16), np.arange(37), p)
    assert EqualMass(15, ties="interpolated").edges(torch.from_numpy(p)).tolist() == pytest.approx(expected.tolist())


def test_tables_add_split_and_refuse_other_bins() -> None:
    p, y = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0, 1, 1])
    whole = EqualWidth(5).table(p, y)
    parts = EqualWidth(5).table(p[:1], y[:1]) + EqualWidth(5).table(p[1:], y[1:])
    assert (whole.count.tolist(), whole.sum_p.tolist(), whole.total) == (parts.count.tolist(), parts.sum_p.tolist(), 3)
    assert [one.count.tolist() for one in EqualWidth(6).table(p, y).parts(3)] == [[1, 0], [1, 0], [0, 1]]
    with pytest.raises(InputError, match="the same number of bins, got 5 and 4"):
        _ = whole + EqualWidth(4).table(p, y)


@pytest.mark.parametrize("make", [lambda: EqualWidth(0), lambda: EqualMass(1.5), lambda: EqualMass(3, ties="split")])
def test_bad_bins_are_refused(make: object) -> None:
    with pytest.raises(InputError, match=r"expected (bins|ties)"):
        make()


def test_sums_over_a_million_rows_are_exact_to_1e_12() -> None:
    import math

    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1_000_000, generator=generator, dtype=torch.float64)
    table = EqualWidth(1).table(p, torch.zeros(1_000_000))
    assert float(table.sum_p) == pytest.approx(math.fsum(p.tolist()), rel=1e-12)


def test_equal_mass_keeps_what_rounding_tells_apart_together() -> None:
    """Confidences that went through log and exp differ by an ulp; split, a calibrated binning would show an error."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.tensor([0.3, 0.55, 0.7, 0.9], dtype=torch.float64)[torch.randint(4, (999,), generator=generator)]
    noisy = steps + 2e-16 * torch.randint(-2, 3, (999,), generator=generator)
    assert len(noisy.unique()) > 4
    for bins in (2, 5, 15, 2000):
        binning = EqualMass(bins)
        assert torch.equal(binning.assign(noisy), binning.assign(steps))
    # nor does the rounding of a million cumulated weights move an edge
    many = torch.rand(1_000_000, generator=generator, dtype=torch.float64)
    alike = torch.full_like(many, 0.1)
    assert torch.equal(EqualMass(16).assign(many, weight=alike), EqualMass(16).assign(many))


def test_rounding_in_an_empty_bin_is_no_gap() -> None:
    table = EqualWidth(2).table(torch.tensor([0.9, 0.8]).double(), torch.tensor([1.0, 1.0]).double())
    simulated = replace(table, sum_y=torch.tensor([[1e-9, 2.0], [-1e-9, 2.0]], dtype=torch.float64))
    assert torch.allclose(simulated.gap, torch.tensor([0.0, -0.15], dtype=torch.float64))
