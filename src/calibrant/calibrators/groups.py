"""Scaling by columns beside the logits: ``FeatureScaling`` by numbers, ``GroupScaling`` by categories.

Both are softmax(s x + e): slope s and biases e of a row are a design, of ones and what its columns say, times a table of
coefficients, of which all but the first line are shrunk to 0.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count, check_number, refuse, shown
from calibrant.calibrators.affine import centre_rows, logit_squares
from calibrant.calibrators.base import Calibrator, Certified
from calibrant.calibrators.chunks import check_label_logits, keep_excluded, lift_excluded
from calibrant.calibrators.convex import convex_fit
from calibrant.calibrators.folds import fold_by_scores
from calibrant.calibrators.temperature import fit_temperature
from calibrant.data.record import Column, Features, check_column
from calibrant.rows import Batch, RowSource

_STRENGTHS = (0.3, 3.0, 30.0, 300.0)  # of which cross-fitting chooses
_EVIDENCE = 2.0  # standard errors of its gain on rows held out, from which groups get parameters of their own
_MOST_BIASES = 50  # classes, up to which a group has biases unless it is said otherwise
_MOST_PARAMETERS = 1024
_PRIOR = 0.5  # standard deviation of log T of the fit for all rows
# rows of prior on the slope and the bias of the mean row, as in PlattScaling: it keeps separable data finite
_SETTLES = 1e-3


@dataclass(frozen=True)
class KnownColumn:
    """A column of the fitting rows.

    Args:
        name: Of the column.
        values: Its categories as text, ascending; none of a column of numbers.
    """

    name: str
    values: tuple[str, ...] = ()

    def codes(self, features: Features, rows: int) -> Tensor:
        """Return the code (N,) of each entry, and the number of categories for those that are none of them."""
        entries, known = _categories(features, self.name, rows), np.asarray(self.values)
        place = np.searchsorted(known, entries).clip(max=len(known) - 1)
        return torch.from_numpy(np.where(known[place] == entries, place, len(known)))

    def numbers(self, features: Features, rows: int) -> Tensor:
        """Return the column (N,) in float64.

        Raises:
            InputError: If it is missing, of names, of another length, or not finite.
        """
        column = _column(features, self.name, rows)
        if not isinstance(column, Tensor):
            raise refuse(f"numbers in the feature {self.name!r}", "names", "GroupScaling goes by names")
        if not bool(torch.isfinite(column).all()):
            raise refuse(f"finite numbers in the feature {self.name!r}", "NaN or inf", "drop those rows, or fill it")
        return column.double()


def _column(features: Features, name: str, rows: int) -> Column:
    if not isinstance(features, Mapping):
        raise refuse("features as a dict of name → column", shown(features), 'pass a dict such as {"region": regions}')
    if name not in features:
        got = ", ".join(map(repr, sorted(features))) or "none"
        raise refuse(f"the feature {name!r}", got, f"pass it by this name (in a file: feature:{name})")
    column = check_column(features[name], name=f"the feature {name!r}")
    if len(column) != rows:
        raise refuse(f"features of {rows} rows", str(len(column)), "pass the features of the same rows")
    return column


def _categories(features: Features, name: str, rows: int) -> Any:
    """Return the entries (N,) as text; numbers must be whole."""
    column = _column(features, name, rows)
    if not isinstance(column, Tensor):
        return column
    if not torch.equal(column.double(), column.double().round()):
        remedy = "cut the column into bins, as numpy.digitize(values, edges) does"
        raise refuse(f"categories in the feature {name!r}", "numbers that are not whole", remedy)
    return column.long().cpu().numpy().astype(str)


class ByFeatures(Calibrator):
    """A calibrator that goes by columns beside the rows' logits, ``calibrator(logits, features)``; it takes rows in memory.

    Its argument ``columns`` names them, None all that the fit has. Fitted on rows without any it needs none.
    """

    needs_features = True
    _known: tuple[Any, ...] = ()

    @abstractmethod
    def _learned_columns(self) -> tuple[Any, ...]:
        """Return the columns that the buffers hold, each with a ``name``; none before ``fit``."""

    def _update_facts(self) -> None:
        self._known = self._learned_columns()
        self.needs_features = bool(self._known) or not self.fitted

    def _transform(self, logits: Tensor) -> Tensor:
        if self.needs_features:
            remedy = "pass calibrator(logits, features), or predictions.calibrated_by(calibrator)"
            raise refuse(f"the features that {type(self).__name__} was fitted on", "none", remedy)
        return self._transform_with(logits, None)


def feature_names(calibrator: Calibrator) -> list[str]:
    """Return the names of the columns that a calibrator goes by: those that were named, else those of the fit."""
    if not isinstance(calibrator, ByFeatures) or not calibrator.needs_features:
        return []
    return sorted(calibrator.config()["columns"] or (one.name for one in calibrator._known))


class _ByDesign(Certified, ByFeatures):
    """softmax((X a) ∘ z + X B), X (n, F) what ``_design`` makes of the columns, its first column ones."""

    slopes: Tensor
    biases: Tensor
    names: Tensor

    def __init__(self, columns: Sequence[str] | None) -> None:
        super().__init__()
        if columns is not None and (isinstance(columns, str) or not columns or len(set(columns)) < len(columns)):
            raise refuse("columns as a list of distinct names", shown(columns), 'write ["region", "sex"]')
        self.columns = None if columns is None else tuple(columns)

    @abstractmethod
    def _design(self, features: Features, rows: int) -> Tensor:
        """Return X (n, F) float64 of the known columns."""

    @property
    def temperature(self) -> float:
        """T of a row with the mean features, or of no group; NaN before ``fit``."""
        return 1 / float(self.slopes[0]) if self.fitted and float(self.slopes[0]) else math.nan

    def _learned_columns(self) -> tuple[KnownColumn, ...]:
        table = json.loads(bytes(self.names.to(torch.uint8).cpu().tolist()) or b"[]")
        return tuple(KnownColumn(name, tuple(values)) for name, values in table)

    def _know(self, columns: Sequence[KnownColumn], device: torch.device) -> None:
        table = json.dumps([(one.name, one.values) for one in columns]).encode()  # bytes, as buffers are numbers
        self.names = torch.tensor(list(table), dtype=torch.uint8, device=device)
        self._known = self._learned_columns()

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        design = self._design(features or {}, logits.shape[0]).to(self.slopes.device)
        slope, bias = (design @ part for part in (self.slopes[:, None], self.biases))
        return keep_excluded(lift_excluded(logits) * slope.to(logits.dtype) + bias.to(logits.dtype), logits)


@dataclass(frozen=True)
class _Rows:
    """Rows of a fit: inputs (n, K), design (n, F), labels and weights (n,), and the biases' directions (B, K)."""

    x: Tensor
    design: Tensor
    labels: Tensor
    weights: Tensor
    directions: Tensor

    def where(self, rows: Tensor) -> "_Rows":
        return _Rows(self.x[rows], self.design[rows], self.labels[rows], self.weights[rows], self.directions)

    def losses(self, theta: Tensor) -> Tensor:
        """Return the log-loss (n,) at the slopes and biases θ (F · (1 + B),)."""
        own = self.design @ theta.view(self.design.shape[1], -1)
        log_p = torch.log_softmax(own[:, :1] * self.x + own[:, 1:] @ self.directions, dim=1)
        return -log_p.gather(1, self.labels[:, None])[:, 0]

    def objective(self, ridge: Tensor, centre: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean log-loss + Σ ridge (θ − centre)² / mass as a function of θ."""
        mass = self.weights.sum()
        return lambda theta: (self.weights @ self.losses(theta) + ridge @ (theta - centre).square()) / mass


class FeatureScaling(_ByDesign):
    """softmax(s(f) · z + e(f) · 1[class 1]): slope s = a₀ + Σ a_j f_j and bias e = b₀ + Σ b_j f_j by numeric features f of a row.

    With two classes it is a logistic regression of the label on the log-odds, the features and their products: several scores of
    one answer, such as the mean log-probability and the length of a language model's, become one probability. With more
    classes each row has a temperature of its own, 1 / s. Features are standardised on the fitting rows and held
    within the range they had there. ridge / N · Σ (a_j² + b_j²) is added to the mean log-loss. The fit is convex and ends with a
    gradient certificate. Where the features say that the model's order is wrong, a slope may be negative.

    Args:
        columns: Names of numeric features; None takes all columns of numbers.
        ridge: Strength of the shrinkage to no dependence on the features, in rows, > 0.
        bias: Whether there is a bias; None: with two classes. Only two classes can have one.

    Attributes:
        temperature: 1 / a₀.
        slopes: (1 + C,) a₀, and a_j per standard deviation of each feature.
        biases: (1 + C, K) b₀ and b_j, in the column of class 1; zeros without a bias.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.zeros(400, 2)
        >>> length = torch.arange(400) % 2
        >>> y = torch.cat(
        ...     [torch.zeros(200), length[200:]]
        ... ).long()  # half of the long answers are right, and no short one
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

    def __init__(self, columns: Sequence[str] | None = None, *, ridge: float = 1.0, bias: bool | None = None) -> None:
        super().__init__(columns)
        self.ridge = check_number(ridge, name="ridge", low=0, open_low=True)
        self.bias = bias

    def learned(self) -> str:
        """Return the temperature at the mean features, and their names."""
        return f"temperature={self.temperature:.4g}, features {', '.join(one.name for one in self._known) or 'none'}"

    def _fit(self, rows: RowSource) -> None:
        batch, device = rows.gathered(why="FeatureScaling"), rows.device
        check_label_logits(batch)
        biased = rows.classes == 2 if self.bias is None else self.bias
        if biased and rows.classes != 2:
            raise refuse("two classes for a bias by features", f"{rows.classes}", "pass bias=False, or leave it out")
        numbers = sorted(name for name, column in batch.features.items() if isinstance(column, Tensor))
        known = [KnownColumn(name) for name in (numbers if self.columns is None else self.columns)]
        self._know(known, device)
        table, mass = self._table(batch.features, len(batch)).to(device), rows.mass
        self.center = batch.row_weights @ table / mass
        spread = (batch.row_weights @ (table - self.center).square() / mass).sqrt()
        self.lowest, self.highest = table.amin(dim=0), table.amax(dim=0)
        flat = spread <= 1e-9 * torch.maximum(self.lowest.abs(), self.highest.abs())  # constant but for rounding
        self.spread = torch.where(flat, 1.0, spread)
        size = math.sqrt(float(logit_squares(batch)) / mass) or 1.0  # of the logits: it brings them near 1
        directions = torch.eye(rows.classes, dtype=torch.float64, device=device)[1 : 1 + biased]
        fitting = _Rows(
            centre_rows(batch.logits) / size, self._standardised(table), batch.labels, batch.row_weights, directions
        )
        centre = torch.zeros(1 + len(known), 1 + len(directions), dtype=torch.float64, device=device)
        ridge = torch.full_like(centre, self.ridge)
        ridge[0], centre[0, 0] = _SETTLES, size  # the slope that changes nothing
        # from the uniform distribution, where the curvature is largest
        loss = fitting.objective(ridge.view(-1), centre.view(-1))
        theta, gradient = convex_fit(loss, torch.zeros_like(centre).view(-1))
        found = theta.view_as(centre)
        self.slopes, self.biases = found[:, 0] / size, found[:, 1:] @ directions
        self._certify(gradient, device)

    def _table(self, features: Features, rows: int) -> Tensor:
        columns = [one.numbers(features, rows) for one in self._known]
        return torch.stack(columns, dim=1) if columns else torch.zeros(rows, 0, dtype=torch.float64)

    def _standardised(self, table: Tensor) -> Tensor:
        """Return (n, 1 + C): ones, and the standardised features, held within the range of the fit."""
        held = torch.minimum(torch.maximum(table, self.lowest), self.highest)
        return torch.cat([table.new_ones(table.shape[0], 1), (held - self.center) / self.spread], dim=1)

    def _design(self, features: Features, rows: int) -> Tensor:
        return self._standardised(self._table(features, rows).to(self.center.device))


@dataclass(frozen=True)
class GroupFit:
    """What one group's rows are scaled by, if they belong to no other group.

    Args:
        column: The feature.
        value: Its category.
        temperature: Of the group's rows; +inf where the slope is 0.
        bias: (K,) added to the tempered logits.
    """

    column: str
    value: str
    temperature: float
    bias: tuple[float, ...]


class GroupScaling(_ByDesign):
    """softmax((u + Σ u_g) x + v + Σ v_g), x = z / T, over the groups g of a row: a temperature and biases a group, partially pooled.

    Groups are the categories of the feature columns, whole numbers or names; a row belongs to one of each column, whose parts add up.
    T is fitted on all rows first, with a normal prior of log T of standard deviation ½. Then one convex fit gives u, which is free,
    and v, u_g and v_g, of which strength / N · Σ (‖v‖² + u_g² + ‖v_g‖²) is added to the mean log-loss, so that a group of few rows
    stays near the fit of all. The strength is the one of four with the least cross-fitted log-loss; where none gains more than two
    standard errors of its gain on the temperature alone, that is the answer (``strength_used`` is inf). A slope may be negative.

    Rows of a category that the fit has not seen get the fit of all rows; rows without features are refused.

    Args:
        columns: Names of the feature columns; None takes all.
        strength: Of the ridge, > 0, or None to choose it by cross-fitted log-loss.
        bias: Whether each group has biases beside its temperature; None: with up to 50 classes.
        folds: Of the choice, ≥ 2; a row's fold depends on its content alone, and rows of one cluster share it.

    Attributes:
        strength_used: The strength of the fit; inf where no group has parameters of its own.
        temperature: Of rows of no group: T / u.
        slopes: (1 + G,) u / T, and u_g / T of each group.
        biases: (1 + G, K) v, and v_g of each group.
        groups: One ``GroupFit`` a group.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

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

    used: Tensor

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        *,
        strength: float | None = None,
        bias: bool | None = None,
        folds: int = 5,
    ) -> None:
        super().__init__(columns)
        self.strength = None if strength is None else check_number(strength, name="strength", low=0, open_low=True)
        self.bias = bias
        self.folds = check_count(folds, name="folds", low=2)

    @property
    def strength_used(self) -> float:
        """The strength of the fit; NaN before ``fit``."""
        return float(self.used) if self.fitted else math.nan

    @property
    def groups(self) -> tuple[GroupFit, ...]:
        """What each group's rows are scaled by."""
        names = [(one.name, value) for one in self._known for value in one.values]
        slopes, biases = ((part[0] + part[1:]).tolist() for part in (self.slopes, self.biases))
        found = zip(names, slopes, biases, strict=True)
        return tuple(GroupFit(*name, 1 / s if s else math.inf, tuple(b)) for name, s, b in found)

    def learned(self) -> str:
        """Return the global temperature, and how many groups have parameters of their own."""
        groups = len(self.slopes) - 1
        return f"temperature={self.temperature:.4g}, {groups} groups, strength_used={self.strength_used:g}"

    def _fit(self, rows: RowSource) -> None:
        batch, classes, device = rows.gathered(why="GroupScaling"), rows.classes, rows.device
        check_label_logits(batch)
        names = self.columns or tuple(batch.features)
        entries = [(name, _categories(batch.features, name, len(batch))) for name in names]
        self._know([KnownColumn(name, tuple(np.unique(values).tolist())) for name, values in entries], device)
        biased = classes <= _MOST_BIASES if self.bias is None else self.bias
        lines = 1 + sum(len(one.values) for one in self._known)
        if lines * (1 + classes * biased) > _MOST_PARAMETERS:
            remedy = "leave out columns, or pass bias=False for a temperature a group alone"
            got = f"{lines - 1} groups and {lines * (1 + classes * biased):,} parameters"
            raise refuse(f"at most {_MOST_PARAMETERS} parameters", got, remedy)
        slope = 1 / fit_temperature(rows, _PRIOR)
        directions = torch.eye(classes if biased else 0, classes, dtype=torch.float64, device=device)
        x, design = lift_excluded(batch.logits.double()) * slope, self._design(batch.features, len(batch)).to(device)
        fitting = _Rows(x, design, batch.labels, batch.row_weights, directions)
        centre = torch.zeros(lines, 1 + len(directions), dtype=torch.float64, device=device)
        centre[0, 0] = 1  # the temperature of all rows
        used = self.strength or (self._chosen(fitting, centre, batch) if self._known else math.inf)
        theta, gradient = _pooled(fitting, centre, used, centre)
        self.slopes, self.biases = theta[:, 0] * slope, theta[:, 1:] @ directions
        self.used = torch.tensor(used, dtype=torch.float64, device=device)
        self._certify(gradient, device)

    def _chosen(self, rows: _Rows, centre: Tensor, batch: Batch) -> float:
        """Return the strength with the least cross-fitted log-loss, or inf where it gains less than two standard errors."""
        fold = fold_by_scores(batch, self.folds, self._codes(batch.features, len(batch)))
        gains = torch.zeros(len(_STRENGTHS), len(fold), dtype=torch.float64, device=fold.device)
        for k in range(self.folds):
            held, rest = rows.where(fold == k), rows.where(fold != k)
            theta, _ = _pooled(rest, centre, math.inf, centre)
            plain = held.losses(theta.view(-1))
            for at in reversed(range(len(_STRENGTHS))):  # from the strongest, which lies near the start
                theta, _ = _pooled(rest, centre, _STRENGTHS[at], theta, tolerance=1e-6)
                gains[at, fold == k] = plain - held.losses(theta.view(-1))
        sums, mass = gains @ rows.weights, rows.weights.sum()
        best = int(sums.argmax())
        error = (rows.weights @ (gains[best] - sums[best] / mass).square()).sqrt()
        return _STRENGTHS[best] if float(sums[best]) > _EVIDENCE * float(error) else math.inf

    def _codes(self, features: Features, rows: int) -> Tensor:
        """Return the category (n, C) of each row in each known column."""
        return torch.stack([one.codes(features, rows) for one in self._known], dim=1)

    def _design(self, features: Features, rows: int) -> Tensor:
        one = torch.nn.functional.one_hot
        codes = [(known.codes(features, rows), len(known.values)) for known in self._known]
        members = [one(code, size + 1)[:, :size].double() for code, size in codes]  # a new category is none
        return torch.cat([torch.ones(rows, 1, dtype=torch.float64), *members], dim=1)


def _pooled(
    rows: _Rows, centre: Tensor, strength: float, start: Tensor, *, tolerance: float = 1e-10
) -> tuple[Tensor, float]:
    """Return slopes and biases (1 + G, 1 + B) and the certificate: all but the first slope are shrunk by ``strength``."""
    if math.isinf(strength):
        return centre, 0.0
    ridge = torch.full_like(centre, strength)
    ridge[0, 0] = _SETTLES
    loss = rows.objective(ridge.view(-1), centre.view(-1))
    theta, gradient = convex_fit(loss, start.reshape(-1), tolerance=tolerance)
    return theta.view_as(centre), gradient
