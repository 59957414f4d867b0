"""Studies describe the papers' experiments as recipes that can be run on one or several machines, and resumed.

Each training run stores its predictions and its measurements over the epochs. Every table and figure is computed from these.
"""

from calibrant.study.load import load_study, presets
from calibrant.study.measures import Run
from calibrant.study.recipe import Claim, FigureSpec, Objective, Printed, Recipe, Setting, Study, Training
from calibrant.study.store import Store
from calibrant.study.tables import collect
from calibrant.study.train import training

__all__ = [
    "Claim",
    "FigureSpec",
    "Objective",
    "Printed",
    "Recipe",
    "Run",
    "Setting",
    "Store",
    "Study",
    "Training",
    "collect",
    "load_study",
    "presets",
    "training",
]
