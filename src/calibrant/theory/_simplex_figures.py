"""Data of the theory figures on the simplex of three classes."""

import torch
from torch import Tensor

from calibrant._core.figure_numbers import Arrows, FigureNumbers, Heat, Isolines, floats, rows_of
from calibrant.scores import FocalScore, LogScore
from calibrant.theory.focal_map import focal_map
from calibrant.theory.proper_part import proper_part
from calibrant.theory.temperature_fit import nearest_temperature

_TRUTH = (0.55, 0.3, 0.15)
_PERCENTILES = (3.0, 12.0, 20.0)


def isolines_figure() -> FigureNumbers:
    """Return Figure 4: the expected loss of four proper losses around one true distribution."""
    rows = _grid(72, inside=True)
    truth = torch.tensor(_TRUTH, dtype=torch.float64)
    brier = (rows.square().sum(dim=1, keepdim=True) - 2 * rows + 1) @ truth
    risks = {
        "Brier score": brier,
        "cross-entropy": proper_part(LogScore(), rows.log()) @ truth,
        "proper part of focal, γ = 1": proper_part(FocalScore(1.0), rows.log()) @ truth,
        "proper part of focal, γ = 3": proper_part(FocalScore(3.0), rows.log()) @ truth,
    }
    panels = []
    largest = 0.0
    for title, risk in risks.items():
        levels = torch.quantile(risk, torch.tensor(_PERCENTILES, dtype=torch.float64) / 100)
        least = rows[risk.argmin()]
        panels.append(Isolines(title, rows_of(rows), floats(risk), _PERCENTILES, floats(levels), _TRUTH))
        largest = max(largest, float((least - truth).abs().max()))
    caption = (
        "Contours of the expected loss of a prediction where the true distribution is (0.55, 0.30, 0.15), the dot, at the 3rd, "
        "12th and 20th percentile over the simplex. All four losses are proper, so each has its minimum at the dot. The "
        "contours of the Brier score are circles, those of cross-entropy ovals; those of the proper part of focal loss are "
        "rounded triangles, more clearly for larger γ."
    )
    facts = {"largest_distance_of_a_minimum_on_the_grid": largest}
    return FigureNumbers("isolines", "Komisarenko & Kull 2024, Figure 4", caption, tuple(panels), facts)


def arrows_figure() -> FigureNumbers:
    """Return Figure 5: how the focal map and its nearest temperature scaling change a prediction."""
    starts = _grid(9)
    mapped, tempered, facts = [], [], {}
    for gamma in (1.0, 3.0):
        temperature = nearest_temperature(3, gamma)
        facts[f"nearest_T_gamma_{gamma:g}"] = temperature
        ends = focal_map(starts.log(), gamma).exp(), torch.softmax(starts.log() / temperature, dim=1)
        titles = f"focal map, γ = {gamma:g}", f"temperature, T = {temperature:.2f}"
        mapped.append(Arrows(titles[0], rows_of(starts), rows_of(ends[0])))
        tempered.append(Arrows(titles[1], rows_of(starts), rows_of(ends[1])))
    caption = (
        "Each arrow leads from a prediction to its image under the map. The nearest temperatures are "
        f"{facts['nearest_T_gamma_1']:.3f} and {facts['nearest_T_gamma_3']:.3f}; the printed 0.81 and 0.46 belong to "
        "γ = 0.5 and γ = 2."
    )
    panels = (*mapped, *tempered)
    return FigureNumbers("arrows", "Komisarenko & Kull 2024, Figure 5", caption, panels, facts)


def difference_figure() -> FigureNumbers:
    """Return Figure 7: the focal map's top probability minus that of its nearest temperature scaling."""
    rows = _grid(60)
    panels: list[Heat] = []
    facts: dict[str, float] = {}
    for gamma in (0.5, 2.0):
        temperature = nearest_temperature(3, gamma)
        change = focal_map(rows.log(), gamma).exp() - torch.softmax(rows.log() / temperature, dim=1)
        top = change.gather(1, rows.argmax(dim=1, keepdim=True))[:, 0]
        title = f"γ = {gamma:g}, T = {temperature:.3f}"
        panels.append(Heat(title, rows_of(rows), floats(top), "focal − temperature"))
        facts |= {f"lowest_gamma_{gamma:g}": float(top.min()), f"highest_gamma_{gamma:g}": float(top.max())}
    caption = (
        "The top probability after the focal map minus that after the nearest temperature scaling. Along the edges, "
        "where one probability is near 0, the focal map is more confident; between the centre and the corners it is less "
        "confident. (The printed title and caption have opposite signs; this is focal minus temperature.)"
    )
    return FigureNumbers("difference", "Komisarenko & Kull 2024, Figure 7", caption, tuple(panels), facts)


def _grid(steps: int, *, inside: bool = False) -> Tensor:
    """Return the rows (N, 3) of a triangular grid on the simplex, without its boundary if ``inside``."""
    i, j = torch.meshgrid(torch.arange(steps + 1), torch.arange(steps + 1), indexing="ij")
    kept = i + j <= steps
    counts = torch.stack([i[kept], j[kept], steps - i[kept] - j[kept]], dim=1).double()
    shift = 1 / 3 if inside else 0.0
    return (counts + shift) / (steps + 3 * shift)
