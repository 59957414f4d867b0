"""Data of the theory figures: Figures 1 to 7 of Komisarenko & Kull and Figure A.1 of Mukhoti et al."""

from collections.abc import Callable

from calibrant._core.check import check_choice
from calibrant._core.figure_numbers import FigureNumbers
from calibrant.theory._line_figures import (
    binary_fit_figure,
    bounds_figure,
    four_classes_figure,
    minimisers_figure,
    proper_part_figure,
    three_classes_figure,
)
from calibrant.theory._simplex_figures import arrows_figure, difference_figure, isolines_figure

__all__ = ["FIGURES", "figure_numbers"]

_MAKERS: dict[str, Callable[[], FigureNumbers]] = {
    "minimisers": minimisers_figure,
    "proper-part": proper_part_figure,
    "binary-fit": binary_fit_figure,
    "bounds": bounds_figure,
    "isolines": isolines_figure,
    "arrows": arrows_figure,
    "three-classes": three_classes_figure,
    "four-classes": four_classes_figure,
    "difference": difference_figure,
}
FIGURES = tuple(_MAKERS)


def figure_numbers(name: str) -> FigureNumbers:
    """Return the data of a figure, without drawing it.

    Args:
        name: One of ``FIGURES``: "minimisers", "proper-part", "binary-fit", "bounds", "isolines", "arrows",
            "three-classes", "four-classes", "difference".

    Returns:
        Its panels, caption and main numbers. Figures with fits take some seconds.

    Raises:
        InputError: If there is no figure of that name.

    Examples:
        >>> numbers = figure_numbers("bounds")
        >>> numbers.source, round(numbers.facts["tight_high_gamma_4"], 3)
        ('Komisarenko & Kull 2024, Figure 3', 0.218)

    References:
        Komisarenko & Kull 2024, Figures 1 to 7. Mukhoti et al. 2020, Figure A.1.
    """
    return _MAKERS[check_choice(name, name="figure", choices=FIGURES)]()
