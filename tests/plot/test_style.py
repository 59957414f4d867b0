"""The colours of all figures are told apart by readers who see fewer of them, and stand out on the report's paper."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from calibrant.plot.style import COLOURS, LIGHT

# Machado, Oliveira & Fernandes 2009, deficiencies at full severity, in linear light
SIMULATED = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    """Return sRGB "#rrggbb" as linear light."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Return linear sRGB as CIE L*a*b* (D65)."""
    x = TO_XYZ @ light / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", SIMULATED)
def test_any_two_colours_are_told_apart_by_the_colour_blind(kind: str) -> None:
    for pair in (*combinations(COLOURS, 2), (LIGHT.good, LIGHT.bad)):
        one, other = (lab(np.clip(np.array(SIMULATED[kind]) @ linear(colour), 0, 1)) for colour in pair)
        assert np.linalg.norm(one - other) > 10, pair  # CIE 1976, of which about 2 is just seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_on_the_report(scheme: str) -> None:
    """WCAG 2.2: a ratio of 4.5 for text, 3 for marks."""
    css = (files("calibrant.report") / "templates" / "report.css").read_text(encoding="utf-8")
    colours = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{.*?\}", css, re.S)]
    found = colours[["light", "dark"].index(scheme)]
    light = {name: float(TO_XYZ[1] @ linear(colour)) + 0.05 for name, colour in found.items()}
    for ground in ("paper", "raised"):
        for name, least in (("ink", 4.5), ("faint", 4.5), ("good", 3), ("bad", 3)):
            assert max(light[name], light[ground]) / min(light[name], light[ground]) >= least, (name, ground)
