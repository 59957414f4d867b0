"""Studies: the papers' experiments as recipes, run on one machine or several, stored and resumable.

Training stores predictions and a trajectory; every table and figure is computed from them.
"""

from calibrant.study.agreement import Agreement, agreements, printed_beside
from calibrant.study.describe import Choice, describe
from calibrant.study.load import load_study, presets
from calibrant.study.preflight import check_study
from calibrant.study.recipe import (
    Cell,
    Claim,
    FigureSpec,
    Objective,
    Published,
    Recipe,
    Setting,
    Study,
    Training,
)
from calibrant.study.run import Step, execute, run_study
from calibrant.study.store import Run, Store
from calibrant.study.tables import (
    Measured,
    Summary,
    Verdict,
    collect,
    measures_needed,
    record_of,
    rows,
    summarise,
    verdicts_on,
)
from calibrant.study.template import write_template
from calibrant.study.train import Outcome, training

__all__ = [
    "Agreement",
    "Cell",
    "Choice",
    "Claim",
    "FigureSpec",
    "Measured",
    "Objective",
    "Outcome",
    "Published",
    "Recipe",
    "Run",
    "Setting",
    "Step",
    "Store",
    "Study",
    "Summary",
    "Training",
    "Verdict",
    "agreements",
    "check_study",
    "collect",
    "describe",
    "execute",
    "load_study",
    "measures_needed",
    "presets",
    "printed_beside",
    "record_of",
    "rows",
    "run_study",
    "summarise",
    "training",
    "verdicts_on",
    "write_template",
]
