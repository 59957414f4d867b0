"""Every picture of every kind of report: nothing empty, ticks that are read, one scale before and after, series told apart."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from tests.conftest import late
from tests.report.kinds import KINDS

pytestmark = pytest.mark.slow
agg, colors, container = (late(f"matplotlib.{name}") for name in ("backends.backend_agg", "colors", "container"))


@pytest.fixture(scope="module")
def drawn(written: dict[str, tuple[str, list[Any]]]) -> dict[str, list[Any]]:
    """The figures of each kind of report."""
    return {kind: written[kind][1] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_no_axes_are_empty_and_ticks_can_be_read(kind: str, drawn: dict[str, list[Any]]) -> None:
    axes = [ax for figure in drawn[kind] for ax in figure.axes]
    assert len(axes) >= 2
    for ax in axes:
        (low, high), (bottom, top) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        lines = [xy for line in ax.get_lines() for xy in line.get_xydata()]
        bars = [(bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height()) for bar in ax.patches]
        dots = [xy for part in ax.collections for xy in np.asarray(part.get_offsets())]
        seen = {(x, y) for x, y in (*lines, *bars, *dots) if low <= x <= high and bottom <= y <= top}
        assert len(seen) >= 3
        assert ax.get_xlabel() or ax.get_ylabel()
        canvas = agg.FigureCanvasAgg(ax.figure)
        canvas.draw()
        for axis, place in ((ax.xaxis, 0), (ax.yaxis, 1)):
            shown = [one for one in axis.get_ticklabels() if one.get_text() and one.get_visible()]
            assert 2 <= len(shown) <= 40, "one a group or a claim, else a handful"
            assert min(one.get_fontsize() for one in shown) >= 7
            boxes = [one.get_window_extent(canvas.get_renderer()) for one in shown]
            boxes.sort(key=lambda box: box.min[place])
            assert all(left.max[place] <= right.min[place] + 1 for left, right in pairwise(boxes))


def linear(colour: str) -> np.ndarray:
    """Return sRGB "#rrggbb" as linear light."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Return linear sRGB as CIE L*a*b* (D65)."""
    m = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = m @ light / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira & Fernandes 2009, deuteranopia and protanopia at full severity, in linear light
SIMULATED = {
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}


def apart(a: str, b: str, matrix: np.ndarray) -> float:
    one, other = (lab(np.clip(matrix @ linear(c), 0, 1)) for c in (a, b))
    return float(np.linalg.norm(one - other))


def series_of(ax: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield colour, dash and marker of what a legend names, and colour and hatch of bars."""
    handles, _ = ax.get_legend_handles_labels()
    for one in (handle.lines[0] if isinstance(handle, container.ErrorbarContainer) else handle for handle in handles):
        if hasattr(one, "get_linestyle") and hasattr(one, "get_marker"):
            yield colors.to_hex(one.get_color()), str(one._unscaled_dash_pattern), one.get_marker()
        else:
            first = one.patches[0] if hasattr(one, "patches") else one
            yield colors.to_hex(np.atleast_2d(first.get_facecolor())[0]), first.get_hatch(), ""


@pytest.mark.parametrize("blind", SIMULATED)
def test_series_of_a_picture_are_told_apart_by_the_colour_blind(blind: str, drawn: dict[str, list[Any]]) -> None:
    """Colours differ by 10 (CIE 1976; about 2 is just seen), or dash or marker differ as well."""
    pairs = 0
    for ax in (ax for figures in drawn.values() for figure in figures for ax in figure.axes):
        for (one, *look), (other, *its) in combinations(series_of(ax), 2):
            assert look != its or apart(one, other, SIMULATED[blind]) > 10, (one, other, ax.get_title())
            pairs += 1
    assert pairs > 30
