"""Scaling that depends on columns of the data: ``FeatureScaling`` uses numbers, ``GroupScaling`` uses categories.

Both methods compute softmax(s z + e). The slope s and the biases e of a row are linear in a design vector made from its columns. The
first entry of this vector is 1; all coefficients except those of the first entry are shrunk to 0.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_number, refuse
from calibrant._core.newton import convex_fit
from calibrant.calibrators.affine import centre_rows, logit_squares
from calibrant.calibrators.base import Certified, check_label_logits, keep_excluded, lift_excluded
from calibrant.calibrators.folds import fold_by_scores
from calibrant.calibrators.temperature import PRIOR, fit_log_temperature
from calibrant.data.record import Column, Features, check_column
from calibrant.rows import Batch, RowSource

_STRENGTHS = (300.0, 30.0, 3.0, 0.3)  # strengths among which cross-fitting chooses
_EVIDENCE = 2.0  # groups get their own parameters if the held-out gain exceeds this many standard errors
_MOST_BIASES = 50  # groups have biases up to this number of classes, and only temperatures with more classes
_MOST_PARAMETERS = 1024
# ridge, in rows, on the slope and the bias of the mean row, as in PlattScaling; it gives separable data a finite optimum
_SETTLES = 1e-3


def feature_names(calibrator: object) -> list[str]:
    """Return the names of the columns that a calibrator uses, from its argument or else from its fit; empty if it uses none."""
    if not isinstance(calibrator, _ByDesign) or not calibrator.needs_features:
        return []
    return sorted(calibrator.columns or calibrator._known)


class _ByDesign(Certified):
    """softmax((X a) ∘ z + X B), where ``_design`` computes X (n, F) from named columns; the first column of X is 1.

    A calibrator that was fitted on rows without columns needs no columns.
    """

    needs_features = True
    shows: ClassVar[tuple[str, ...]] = ("temperature",)

    slopes: Tensor
    biases: Tensor
    _known: dict[str, list[str]]
    names: Tensor  # {column: its categories} as the bytes of a JSON text, because buffers hold numbers

    def __init__(self, columns: Sequence[str] | None) -> None:
        super().__init__()
        if columns is not None and (isinstance(columns, str) or not columns or len(set(columns)) < len(columns)):
            raise refuse("columns as a list of distinct names", repr(columns), 'write ["region", "sex"]')
        self.columns = None if columns is None else tuple(columns)

    @abstractmethod
    def _design(self, features: Features, rows: int) -> Tensor:
        """Return X (n, F), float64, for the known columns."""

    @property
    def temperature(self) -> float:
        """The T of a row with mean features, or of a row in no group; NaN before ``fit``."""
        return 1 / float(self.slopes[0]) if self.fitted and float(self.slopes[0]) else math.nan

    def _know(self, columns: dict[str, list[str]]) -> None:
        self.names = torch.tensor(list(json.dumps(columns).encode()), dtype=torch.uint8)
        self._known = columns

    def _update_facts(self) -> None:
        self._known = json.loads(bytes(self.names.tolist()) or b"{}")
        self.needs_features = bool(self._known) or not self.fitted

    def _transform(self, logits: Tensor, *features: Features) -> Tensor:
        if self.needs_features and not features:
            remedy = "pass calibrator(logits, features), or predictions.calibrated_by(calibrator)"
            raise refuse(f"the features that {type(self).__name__} was fitted on", "none", remedy)
        design = self._design(features[0] if features else {}, logits.shape[0]).to(self.slopes.device)
        slope, bias = design @ self.slopes[:, None], design @ self.biases
        return keep_excluded(lift_excluded(logits) * slope.to(logits.dtype) + bias.to(logits.dtype), logits)


def _column(features: Features, name: str, rows: int) -> Column:
    if name not in features:
        got = ", ".join(map(repr, sorted(features))) or "none"
        raise refuse(f"the feature {name!r}", got, f"pass it by this name (in a file: feature:{name})")
    return check_column(features[name], name=f"the feature {name!r}", rows=rows)


def _losses_at(theta: Tensor, x: Tensor, design: Tensor, labels: Tensor, directions: Tensor) -> Tensor:
    """Return the log-loss (n,) for slopes and biases θ (F, 1 + B), with the biases along directions (B, K)."""
    own = design @ theta
    log_p = torch.log_softmax(own[:, :1] * x + own[:, 1:] @ directions, dim=1)
    return -log_p.gather(1, labels[:, None])[:, 0]


def _fit_table(
    rows: tuple[Tensor, ...],
    weights: Tensor,
    strength: float,
    centre: Tensor,
    start: Tensor | None = None,
    tolerance: float = 1e-10,
) -> tuple[Tensor, float]:
    """Return the θ (F, 1 + B) that minimises the mean log-loss of ``rows`` + Σ ridge (θ − centre)² / mass, and the certificate.

    The ridge is ``strength``, except for the first slope, which is hardly shrunk.
    """
    ridge = torch.full_like(centre, strength)
    ridge[0, 0] = _SETTLES
    start = centre if start is None else start

    def loss(theta: Tensor) -> Tensor:
        table = theta.view_as(centre)
        return (weights @ _losses_at(table, *rows) + (ridge * (table - centre).square()).sum()) / weights.sum()

    theta, gradient = convex_fit(loss, start.reshape(-1), tolerance=tolerance)
    return theta.view_as(centre), gradient


class FeatureScaling(_ByDesign):
    """Scaling whose slope and bias are linear in the numeric features f of a row: softmax(s(f) · z + e(f) · 1[class 1]).

    The slope is s = a₀ + Σ a_j f_j, and the bias is e = b₀ + Σ b_j f_j. With two classes, this is a logistic regression of the
    label on the log-odds, the features and their products. It can combine several scores of a language model's answer, such as
    the mean log-probability and the length, into one probability. With more classes, there is no bias, and each row has its own
    temperature 1 / s. Features are standardised on the fitting rows and clipped to their range there. The penalty
    ridge / N · Σ (a_j² + b_j²) is added to the mean log-loss. The fit is convex and ends with a gradient certificate. A slope
    can be negative if the features show that the model's order is wrong.

    Args:
        columns: Names of numeric features; None uses all numeric columns.
        ridge: Strength > 0, in rows, of the shrinkage towards no dependence on the features.

    Attributes:
        temperature: 1 / a₀.
        slopes: a₀, and a_j per standard deviation of each feature (1 + C,).
        biases: b₀ and b_j, in the column of class 1 (1 + C, K); zeros with more than two classes.
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.zeros(400, 2)
        >>> length = torch.arange(400) % 2
        >>> y = torch.cat(
        ...     [torch.zeros(200), length[200:]]
        ... ).long()  # half of the long answers are right, and no short ones
        >>> data = Predictions.from_logits(z, y, features={"length": length}, unchecked_kind=True)
        >>> fitted = FeatureScaling(["length"], ridge=0.01).fit(data)
        >>> data.calibrated_by(fitted, allow_fit_rows=True).probs[-2:, 1].round(decimals=2)
        tensor([0.0000, 0.5000], dtype=torch.float64)

    References:
        Cox 1958, Two Further Applications of a Model for Binary Regression (slope and intercept); Joy et al. 2023, Sample-dependent
        Adaptive Temperature Scaling (a temperature by features of the row).
    """

    center: Tensor
    spread: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self, columns: Sequence[str] | None = None, *, ridge: float = 1.0) -> None:
        super().__init__(columns)
        self.ridge = check_number(ridge, name="ridge", low=0, open_low=True)

    def _fit(self, rows: RowSource) -> None:
        batch = rows.gathered(why="FeatureScaling")
        check_label_logits(batch)
        numbers = sorted(name for name, column in batch.features.items() if isinstance(column, Tensor))
        self._know({name: [] for name in (numbers if self.columns is None else self.columns)})
        table, mass = self._table(batch.features, len(batch)).to(rows.device), rows.mass
        self.center = batch.row_weights @ table / mass
        spread = (batch.row_weights @ (table - self.center).square() / mass).sqrt()
        self.lowest, self.highest = table.amin(dim=0), table.amax(dim=0)
        flat = spread <= 1e-9 * torch.maximum(self.lowest.abs(), self.highest.abs())  # constant up to rounding
        self.spread = torch.where(flat, 1.0, spread)
        size = math.sqrt(float(logit_squares(batch)) / mass) or 1.0  # the scale of the logits
        design = self._design(batch.features, len(batch))
        # two classes have one bias, on class 1
        directions = torch.eye(rows.classes, dtype=torch.float64, device=rows.device)[[1] if rows.classes == 2 else []]
        centre = table.new_zeros(design.shape[1], 1 + len(directions))
        centre[0, 0] = size  # the slope that leaves the logits unchanged
        inputs = centre_rows(batch.logits) / size, design, batch.labels, directions
        # the search starts at the uniform distribution, where the curvature is largest
        theta, gradient = _fit_table(inputs, batch.row_weights, self.ridge, centre, torch.zeros_like(centre))
        self.slopes, self.biases = theta[:, 0] / size, theta[:, 1:] @ directions
        self.certificate = torch.tensor(gradient, dtype=torch.float64)

    def _table(self, features: Features, rows: int) -> Tensor:
        table = torch.empty(rows, len(self._known), dtype=torch.float64, device="cpu")
        for at, name in enumerate(self._known):
            column = _column(features, name, rows)
            if not isinstance(column, Tensor):
                raise refuse(f"numbers in the feature {name!r}", "names", "use GroupScaling for names")
            if not bool(torch.isfinite(column).all()):
                raise refuse(f"finite numbers in the feature {name!r}", "NaN or inf", "drop or fill those rows")
            table[:, at] = column
        return table

    def _design(self, features: Features, rows: int) -> Tensor:
        table = self._table(features, rows).to(self.center.device)
        held = torch.minimum(torch.maximum(table, self.lowest), self.highest)
        return torch.cat([table.new_ones(rows, 1), (held - self.center) / self.spread], dim=1)


class GroupScaling(_ByDesign):
    """A temperature and biases for each group of rows, partially pooled: softmax((u + Σ u_g) x + v + Σ v_g) with x = z / T.

    The sums run over the groups g that a row belongs to. Groups are the categories (whole numbers or names) in the feature
    columns; a row belongs to one group per column, and the effects of these groups add up. T is fitted first, on all rows, with
    a normal prior of standard deviation ½ on log T. One convex fit then determines u, v, u_g and v_g, with the penalty
    strength / N · Σ (‖v‖² + u_g² + ‖v_g‖²) added to the mean log-loss, so that a group with few rows stays close to the fit on
    all rows. A slope can be negative. With more than 50 classes, there are no biases.

    By default, the strength is chosen among four values by five-fold cross-fitted log-loss. If its gain over the temperature
    alone does not exceed two standard errors, only the temperature is used (``strength_used`` is inf). A row's fold depends
    only on its content, and rows of one cluster share a fold.

    A category that did not occur in the fitting data is calibrated as a row in no group; rows without features raise an error.

    Args:
        columns: Names of the feature columns; None uses all columns.
        strength: Ridge strength > 0; None chooses it by cross-fitted log-loss.

    Attributes:
        strength_used: The ridge strength of the fit; inf if no group has its own parameters.
        temperature: T / u, the temperature of rows in no group.
        groups: The (column, category) of each group, in the order of slopes and biases.
        slopes: u / T, and u_g / T for each group (1 + G,).
        biases: v, and v_g for each group (1 + G, K).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.tensor([[2.0, 0.0]]).repeat(400, 1)
        >>> y = [0] * 180 + [1] * 20 + [0] * 120 + [1] * 80
        >>> data = Predictions.from_logits(z, y, features={"site": ["a"] * 200 + ["b"] * 200})
        >>> data.calibrated_by(GroupScaling(strength=1.0).fit(data), allow_fit_rows=True).probs[[0, -1], 0]
        tensor([0.8973, 0.6027], dtype=torch.float64)

    References:
        Gelman & Hill 2007, chapter 12 (partial pooling); Hébert-Johnson et al. 2018 (multicalibration).
    """

    shows = ("temperature", "strength_used")

    used: Tensor

    def __init__(self, columns: Sequence[str] | None = None, *, strength: float | None = None) -> None:
        super().__init__(columns)
        self.strength = None if strength is None else check_number(strength, name="strength", low=0, open_low=True)

    @property
    def strength_used(self) -> float:
        """The ridge strength of the fit; NaN before ``fit``."""
        return float(self.used) if self.fitted else math.nan

    @property
    def groups(self) -> list[tuple[str, str]]:
        """The column and category of each group."""
        return [(name, value) for name, values in self._known.items() for value in values]

    def _fit(self, rows: RowSource) -> None:
        batch, classes, device = rows.gathered(why="GroupScaling"), rows.classes, rows.device
        check_label_logits(batch)
        names = self.columns or tuple(batch.features)
        self._know({name: np.unique(_entries_as_text(batch.features, name, len(batch))).tolist() for name in names})
        biased = classes <= _MOST_BIASES
        parameters = (1 + len(self.groups)) * (1 + classes * biased)
        if parameters > _MOST_PARAMETERS:
            got = f"{len(self.groups)} groups and {parameters:,} parameters"
            raise refuse(f"at most {_MOST_PARAMETERS} parameters", got, "leave out columns, or merge categories")
        slope = math.exp(-fit_log_temperature(rows, prior=PRIOR)[0])
        directions = torch.eye(classes if biased else 0, classes, dtype=torch.float64, device=device)
        design = self._design(batch.features, len(batch)).to(device)
        inputs = lift_excluded(batch.logits.double()) * slope, design, batch.labels, directions
        centre = torch.zeros(design.shape[1], 1 + len(directions), dtype=torch.float64, device=device)
        centre[0, 0] = 1  # the temperature fitted on all rows
        used = self.strength or (self._choose_strength(inputs, centre, batch) if self._known else math.inf)
        theta, gradient = centre, 0.0
        if math.isfinite(used):
            theta, gradient = _fit_table(inputs, batch.row_weights, used, centre)
        self.slopes, self.biases = theta[:, 0] * slope, theta[:, 1:] @ directions
        self.used, self.certificate = torch.tensor([used, gradient], dtype=torch.float64)

    def _choose_strength(self, inputs: tuple[Tensor, ...], centre: Tensor, batch: Batch) -> float:
        """Return the strength with the lowest cross-fitted log-loss, or inf if its gain is below two standard errors."""
        *columns, directions = inputs
        weights, fold = batch.row_weights, fold_by_scores(batch, 5, self._codes(batch.features, len(batch)))
        gains = torch.zeros(len(_STRENGTHS), len(fold), dtype=torch.float64, device=fold.device)
        for k in range(5):
            out, rest = fold == k, fold != k
            held, fitting = ((*(one[rows] for one in columns), directions) for rows in (out, rest))
            plain, theta = _losses_at(centre, *held), centre
            for at, strength in enumerate(_STRENGTHS):  # from the strongest, whose solution lies near the start
                theta, _ = _fit_table(fitting, weights[rest], strength, centre, theta, tolerance=1e-6)
                gains[at, out] = plain - _losses_at(theta, *held)
        sums, mass = gains @ weights, weights.sum()
        best = int(sums.argmax())
        error = (weights @ (gains[best] - sums[best] / mass).square()).sqrt()
        return _STRENGTHS[best] if float(sums[best]) > _EVIDENCE * float(error) else math.inf

    def _codes(self, features: Features, rows: int) -> Tensor:
        """Return the index (n, C) of each row's category in each column; a new category gets the number of known categories."""
        codes = []
        for name, values in self._known.items():
            entries, known = _entries_as_text(features, name, rows), np.asarray(values)
            at = np.searchsorted(known, entries).clip(max=len(known) - 1)
            codes.append(torch.from_numpy(np.where(known[at] == entries, at, len(known))))
        return torch.stack(codes, dim=1) if codes else torch.empty(rows, 0, dtype=torch.int64, device="cpu")

    def _design(self, features: Features, rows: int) -> Tensor:
        sizes, codes = map(len, self._known.values()), self._codes(features, rows).unbind(dim=1)
        members = [torch.arange(size, device="cpu") == code[:, None] for code, size in zip(codes, sizes, strict=True)]
        return torch.cat([torch.ones(rows, 1, device="cpu"), *members], dim=1).double()


def _entries_as_text(features: Features, name: str, rows: int) -> np.ndarray:
    """Return the entries (N,) of a column as text; numbers must be whole."""
    column = _column(features, name, rows)
    if not isinstance(column, Tensor):
        return column
    if not torch.equal(column.double(), column.double().round()):
        remedy = "cut the column into bins, as numpy.digitize(values, edges) does"
        raise refuse(f"categories in the feature {name!r}", "numbers that are not whole", remedy)
    return column.long().cpu().numpy().astype(str)
