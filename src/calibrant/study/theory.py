"""Computes the numbers in Figures 1 to 7 of Komisarenko & Kull (2024) and in Figure A.1 of Mukhoti et al. (2020)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from calibrant.scores import FocalScore, LogScore
from calibrant.study.panels import Arrows, Drawing, Heat, Isolines, Line, Plot
from calibrant.theory import (
    SLOPE_BOUND_LIMIT,
    TemperatureFit,
    fit_temperatures,
    focal_logit,
    focal_map,
    inverse_calibration_map,
    measured_temperature_bounds,
    nearest_temperature,
    proper_part,
    temperature_bounds,
)

_PRINTED_LINES = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}  # Komisarenko & Kull §3.2, §3.3: slope, intercept
_PRINTED_ERRORS = {2: 1e-3, 4: 0.08}
_STEPS = {2: 4, 3: 4, 4: 2}  # number of values of γ per unit, for each number of classes


def proper_part_figure() -> Drawing:
    """Return Figure 1: focal loss, its proper part and cross-entropy, and the binary calibration map."""
    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    rows = torch.stack([p, 1 - p], dim=1).log()
    curves = [Line("cross-entropy", p, -p.log(), group=0)]
    for group, gamma in enumerate((0.5, 3.0), start=1):
        score = FocalScore(gamma)
        focal, proper = score.value(rows[:, 0], rows[:, 1]), proper_part(score, rows)[:, 0]
        curves.append(Line(f"focal, γ = {gamma:g}", p, focal, style="dashed", group=group))
        curves.append(Line(f"its proper part, γ = {gamma:g}", p, proper, group=group))
    q = torch.linspace(0, 1, 201, dtype=torch.float64)
    maps = [
        Line(f"γ = {gamma:g}".replace("-", "−"), q, _binary_map(q, gamma), group=group)
        for gamma, group in ((-0.5, 3), (0.5, 1), (1.0, 4), (3.0, 2), (5.0, 5))
    ]
    panels = (
        Plot("loss of the true class", "predicted probability p", "loss", tuple(curves), top=3.0),
        Plot("focal calibration map", "predicted q", "calibrated p", tuple(maps), diagonal=1.0),
    )
    caption = (
        "Focal loss equals a proper loss applied after a map that raises confidence. Left: for p < ½ the proper part is lower "
        "than focal loss, for p > ½ higher. Right: that map in two classes; γ < 0 lowers confidence."
    )
    return Drawing("proper-part", "Komisarenko & Kull 2024, Figure 1", caption, panels)


def binary_fit_figure() -> Drawing:
    """Return Figure 2: the nearest temperature for each γ, the map on the logit scale, and the largest difference."""
    fit = _fitted_temperatures(2)
    s = torch.linspace(-4, 4, 161, dtype=torch.float64)
    curves, facts = [], {}
    for group, (gamma, printed) in enumerate(((0.5, 0.76), (3.0, 0.36))):
        nearest = 1 / fit.inverse_temperatures[fit.gammas.index(gamma)]
        curves += [
            Line(f"focal map, γ = {gamma:g}", s, focal_logit(s, gamma), group=group),
            Line(f"nearest T = {nearest:.2f}", s, s / nearest, style="dashed", group=group),
            Line(f"printed T = {printed}", s, s / printed, style="dotted", group=group),
        ]
        facts[f"nearest_T_gamma_{gamma:g}"] = nearest
    panels = (_line_panel(fit), Plot("logit scale", "logit of q", "logit of p", tuple(curves)), _error_panel(fit))
    caption = (
        "In two classes the focal map differs from temperature scaling by about 0.001. The printed line agrees within "
        f"rounding; the printed error bound of 1e-3 is exceeded (largest here {max(fit.errors):.2e}). The printed "
        f"T = 0.36 for γ = 3 belongs to γ near 2: the nearest is {facts['nearest_T_gamma_3']:.3f}."
    )
    return Drawing("binary-fit", "Komisarenko & Kull 2024, Figure 2", caption, panels, facts=facts | _line_facts(fit))


def bounds_figure() -> Drawing:
    """Return Figure 3: the proven and measured temperatures that bound the binary map, and the width of these bounds."""
    gammas = [step / 10 for step in range(1, 101)]
    some = gammas[4::5]
    tight_gammas = [gamma for gamma in gammas if gamma <= SLOPE_BOUND_LIMIT]
    proven = [temperature_bounds(gamma) for gamma in gammas]
    tight = [temperature_bounds(gamma, tight=True) for gamma in tight_gammas]
    measured = [measured_temperature_bounds(gamma, step=0.01) for gamma in some]
    series = [
        ("Prop. 3 corrected", gammas, proven, "dashed", 0),
        ("1/κ(γ), to γ = 5.635", tight_gammas, tight, "solid", 2),
        ("measured, |s| ≤ 20", some, measured, "none", 1),
    ]
    sides = [
        Line(f"upper: {name}", x, [bounds.high for bounds in found], style=style, group=group)
        for name, x, found, style, group in series
    ]
    sides += [
        Line("lower: 1/(γ + 1)", gammas, [bounds.low for bounds in proven], style="solid", group=0),
        Line("", some, [bounds.low for bounds in measured], style="none", group=1),
    ]
    widths = [
        Line(name, x, [bounds.width for bounds in found], style=style, group=group)
        for name, x, found, style, group in series
    ]
    at_4, found_4 = temperature_bounds(4.0), measured_temperature_bounds(4.0)
    facts = {
        "proven_low_gamma_4": at_4.low,
        "proven_high_gamma_4": at_4.high,
        "tight_high_gamma_4": temperature_bounds(4.0, tight=True).high,
        "measured_low_gamma_4": found_4.low,
        "measured_high_gamma_4": found_4.high,
        "slope_bound_limit": SLOPE_BOUND_LIMIT,
    }
    panels = (
        Plot("temperatures that bound the map", "γ", "T", sides, log=True),
        Plot("width of the bounds", "γ", "upper T − lower T", widths),
    )
    caption = (
        "Temperatures that bound the binary map. Proposition 3 is printed with the logit divided by γ + 1 where it must be "
        "multiplied. The upper bound can be tightened to 1/κ(γ), κ the slope of the map at 0, for γ ≤ 5.635 only. "
        f"At γ = 4: {at_4.low:.3f} to {at_4.high:.3f} proven, {found_4.low:.4f} to {found_4.high:.4f} measured "
        "(printed: 0.206 to 0.218; 0.206 belongs to |s| of about 11)."
    )
    return Drawing("bounds", "Komisarenko & Kull 2024, Figure 3", caption, panels, facts=facts)


def _several_classes_figure(classes: Literal[3, 4]) -> Drawing:
    """Return Figure 6, the nearest temperature for three classes, or a figure for four classes (§3.3).

    The printed line for four classes does not reproduce.
    """
    fit = _fitted_temperatures(classes)
    slope, intercept = fit.line()
    error, gamma = max(zip(fit.errors, fit.gammas, strict=True))
    largest = f"{100 * error:.1f} % at γ = {gamma:g}"
    caption = {
        3: "In three classes the line reproduces as printed, but the focal map is not a temperature scaling: they differ by up to "
        f"{largest}.",
        4: f"In four classes the line is {slope:.3f} γ + {intercept:.3f}. The printed 0.47 γ + 0.85 and its error of up to "
        f"8 % do not reproduce: the difference reaches {largest}, and a finer grid of logits does not change it.",
    }[classes]
    name = {3: "three-classes", 4: "four-classes"}[classes]
    source = f"Komisarenko & Kull 2024, {'Figure 6' if classes == 3 else '§3.3 (no figure)'}"
    return Drawing(name, source, caption, (_line_panel(fit), _error_panel(fit)), facts=_line_facts(fit))


def minimisers_figure() -> Drawing:
    """Return Figure A.1 of Mukhoti et al.: the minimiser of the expected focal loss as a function of the true probability."""
    inside = torch.sigmoid(torch.linspace(-16, 16, 257, dtype=torch.float64))  # the curves are steep at both ends
    ends = torch.tensor([0.0, 0.8, 1.0], dtype=torch.float64)
    eta = torch.sort(torch.cat([inside, ends])).values
    rows = torch.stack([eta, 1 - eta], dim=1).log()
    curves, facts = [], {}
    for group, gamma in enumerate((0.0, 1.0, 2.0, 3.0, 5.0)):
        q = inverse_calibration_map(FocalScore(gamma), rows).exp()[:, 0]
        label = "γ = 0: cross-entropy" if gamma == 0 else f"γ = {gamma:g}"
        curves.append(Line(label, eta, q, group=group))
        facts[f"minimiser_eta_0.8_gamma_{gamma:g}"] = float(q[eta == 0.8])
    title = "minimiser of the expected focal loss"
    panel = Plot(title, "true probability η", "minimiser q", tuple(curves))
    caption = (
        "The probability that minimises the expected focal loss where the true probability is η: the larger γ, the nearer "
        f"to one half. At η = 0.8 and γ = 2 it is {facts['minimiser_eta_0.8_gamma_2']:.3f}."
    )
    return Drawing("minimisers", "Mukhoti et al. 2020, Figure A.1", caption, (panel,), facts=facts)


def _binary_map(q: Tensor, gamma: float) -> Tensor:
    """Return the focal calibration map of two classes at probabilities ``q``, including 0 and 1."""
    inside = q.clamp(1e-300, 1 - 1e-16)
    return torch.where((q > 0) & (q < 1), torch.sigmoid(focal_logit(torch.logit(inside), gamma)), q)


def _fitted_temperatures(classes: Literal[2, 3, 4]) -> TemperatureFit:
    """Return the nearest temperatures for γ from 0 to 10."""
    steps = _STEPS[classes]
    return fit_temperatures(classes, [i / steps for i in range(10 * steps + 1)])


def _line_panel(fit: TemperatureFit) -> Plot:
    """Return a plot of the nearest 1/T over γ, with the line fitted here and the printed one."""
    lines = [Line("nearest 1/T", fit.gammas, fit.inverse_temperatures, style="none", group=0)]
    named = (fit.line(), "fitted here", "solid"), (_PRINTED_LINES[fit.classes], "printed", "dashed")
    for group, ((slope, intercept), origin, style) in enumerate(named):
        ends = [intercept, 10 * slope + intercept]
        label = f"{origin}: {slope:.2f} γ + {intercept:.2f}"
        lines.append(Line(label, [0.0, 10.0], ends, style=style, group=group))
    return Plot(f"nearest temperature, K = {fit.classes}", "γ", "1/T", lines)


def _error_panel(fit: TemperatureFit) -> Plot:
    """Return a plot over γ of the largest difference between the focal map and the nearest temperature scaling."""
    curves = [Line("at the nearest T", fit.gammas, fit.errors, group=0)]
    if printed := _PRINTED_ERRORS.get(fit.classes):
        curves.append(Line(f"printed: up to {printed:g}", [0.0, 10.0], [printed, printed], style="dashed", group=1))
    return Plot(f"largest difference, K = {fit.classes}", "γ", "probability", curves)


def _line_facts(fit: TemperatureFit) -> dict[str, float]:
    """Return the fitted line, the printed line and the largest difference as numbers by name."""
    slope, intercept = fit.line()
    printed, worst = _PRINTED_LINES[fit.classes], max(fit.errors)
    facts = {"slope": slope, "intercept": intercept, "printed_slope": printed[0], "printed_intercept": printed[1]}
    return facts | {"largest_error": worst, "at_gamma": fit.gammas[fit.errors.index(worst)]}


_TRUTH = (0.55, 0.3, 0.15)
_PERCENTILES = (3.0, 12.0, 20.0)


def isolines_figure() -> Drawing:
    """Return Figure 4: contours of the expected loss for four proper losses, around one true distribution."""
    rows = _grid(72, inside=True)
    truth = torch.tensor(_TRUTH, dtype=torch.float64)
    brier = (rows.square().sum(dim=1, keepdim=True) - 2 * rows + 1) @ truth
    risks = {
        "Brier score": brier,
        "cross-entropy": proper_part(LogScore(), rows.log()) @ truth,
        "proper part of focal, γ = 1": proper_part(FocalScore(1.0), rows.log()) @ truth,
        "proper part of focal, γ = 3": proper_part(FocalScore(3.0), rows.log()) @ truth,
    }
    panels, distances = [], []
    for title, risk in risks.items():
        levels = torch.quantile(risk, torch.tensor(_PERCENTILES, dtype=torch.float64) / 100)
        panels.append(Isolines(title, rows, risk, dict(zip(_PERCENTILES, levels.tolist(), strict=True)), truth))
        distances.append(float((rows[risk.argmin()] - truth).abs().max()))
    caption = (
        "Contours of the expected loss of a prediction where the true distribution is (0.55, 0.30, 0.15), the dot, at the 3rd, "
        "12th and 20th percentile over the simplex. All four losses are proper, so each has its minimum at the dot. The "
        "contours of the Brier score are circles, those of cross-entropy ovals; those of the proper part of focal loss are "
        "rounded triangles, more clearly for larger γ."
    )
    facts = {"largest_distance_of_a_minimum_on_the_grid": max(distances)}
    return Drawing("isolines", "Komisarenko & Kull 2024, Figure 4", caption, panels, facts=facts)


def arrows_figure() -> Drawing:
    """Return Figure 5: how the focal map and its nearest temperature scaling change a prediction."""
    starts = _grid(9)
    mapped, tempered, facts = [], [], {}
    for gamma in (1.0, 3.0):
        temperature = nearest_temperature(3, gamma)
        facts[f"nearest_T_gamma_{gamma:g}"] = temperature
        mapped.append(Arrows(f"focal map, γ = {gamma:g}", starts, focal_map(starts.log(), gamma).exp()))
        scaled = torch.softmax(starts.log() / temperature, dim=1)
        tempered.append(Arrows(f"temperature, T = {temperature:.2f}", starts, scaled))
    caption = (
        "Each arrow leads from a prediction to its image under the map. The nearest temperatures are "
        f"{facts['nearest_T_gamma_1']:.3f} and {facts['nearest_T_gamma_3']:.3f}; the printed 0.81 and 0.46 belong to "
        "γ = 0.5 and γ = 2."
    )
    return Drawing("arrows", "Komisarenko & Kull 2024, Figure 5", caption, (*mapped, *tempered), facts=facts)


def difference_figure() -> Drawing:
    """Return Figure 7: the focal map's top probability minus that of its nearest temperature scaling."""
    rows = _grid(60)
    panels, facts = [], dict[str, float]()
    for gamma in (0.5, 2.0):
        temperature = nearest_temperature(3, gamma)
        change = focal_map(rows.log(), gamma).exp() - torch.softmax(rows.log() / temperature, dim=1)
        top = change.gather(1, rows.argmax(dim=1, keepdim=True))[:, 0]
        title = f"γ = {gamma:g}, T = {temperature:.3f}"
        panels.append(Heat(title, rows, top, "focal − temperature"))
        facts |= {f"lowest_gamma_{gamma:g}": float(top.min()), f"highest_gamma_{gamma:g}": float(top.max())}
    caption = (
        "The top probability after the focal map minus that after the nearest temperature scaling. Along the edges, "
        "where one probability is near 0, the focal map is more confident; between the centre and the corners it is less "
        "confident. (The printed title and caption have opposite signs; this is focal minus temperature.)"
    )
    return Drawing("difference", "Komisarenko & Kull 2024, Figure 7", caption, panels, facts=facts)


def _grid(steps: int, *, inside: bool = False) -> Tensor:
    """Return the rows (N, 3) of a triangular grid on the simplex, without its boundary if ``inside``."""
    i, j = torch.meshgrid(torch.arange(steps + 1), torch.arange(steps + 1), indexing="ij")
    kept = i + j <= steps
    counts = torch.stack([i[kept], j[kept], steps - i[kept] - j[kept]], dim=1).double()
    shift = 1 / 3 if inside else 0.0
    return (counts + shift) / (steps + 3 * shift)


# Maps each name to the function that computes the figure. Figures with fits take several seconds.
FIGURES: dict[str, Callable[[], Drawing]] = {
    "minimisers": minimisers_figure,
    "proper-part": proper_part_figure,
    "binary-fit": binary_fit_figure,
    "bounds": bounds_figure,
    "isolines": isolines_figure,
    "arrows": arrows_figure,
    "three-classes": partial(_several_classes_figure, 3),
    "four-classes": partial(_several_classes_figure, 4),
    "difference": difference_figure,
}
