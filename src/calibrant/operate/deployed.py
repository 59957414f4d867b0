"""A calibrator followed by a decision rule, as one module and one file."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from torch import Tensor, nn

from calibrant._core.check import check_list_of, refuse
from calibrant._core.constraints import Kind, checked
from calibrant._core.files import read_sealed, reason_of, write_sealed
from calibrant._core.paths import as_path, shown
from calibrant.calibrators import Calibrator, load
from calibrant.errors import CalibrantError, FileFormatError
from calibrant.operate.abstain import Abstention, Accepted
from calibrant.operate.decide import CostRule
from calibrant.operate.rows import ClassScores

FORMAT = "calibrant-deployed-1"
Rule = CostRule | Abstention
_FIT = "fit it first (Identity() changes nothing)"
FittedCalibrator = Annotated[Calibrator, Kind(Calibrator, _FIT, "a fitted calibrator")]
MadeRule = Annotated[Rule, Kind((CostRule, Abstention), "make one of them", "a rule of thresholds or abstain")]


class Deployed(nn.Module):
    """A module that maps a model's logits to actions (−1 is abstaining): a calibrator followed by a decision rule.

    Args:
        calibrator: Fitted.
        rule: Made by ``thresholds`` or ``abstain``, on calibrated rows on which the calibrator was not fitted.

    Raises:
        InputError: If either is of another type, or their numbers of classes differ.

    Examples:
        >>> import torch
        >>> from calibrant.calibrators import TemperatureScaling
        >>> from calibrant.operate import thresholds
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> Deployed(TemperatureScaling().fit(z, y), thresholds([[0, 1], [9, 0]]))(z).tolist()
        [1, 1, 1, 1]
    """

    @checked
    def __init__(self, calibrator: FittedCalibrator, rule: MadeRule) -> None:
        super().__init__()
        if not calibrator.fitted:
            raise refuse("a fitted calibrator", type(calibrator).__name__, _FIT)
        needed = _classes_of(rule)
        if needed is not None and needed != int(calibrator.classes):
            raise refuse(f"a calibrator of {needed} classes, as the rule", f"{int(calibrator.classes)}", "pass its own")
        self.calibrator, self.rule = calibrator, rule

    def forward(self, logits: Tensor) -> Tensor:
        """Return the actions (N,) int64 for the model's ``logits`` (N, K); −1 where it abstains."""
        actions: Tensor = self.rule(self.calibrator(logits))
        return actions

    @checked
    def decide(self, predictions: ClassScores, features: Any = None) -> Tensor:
        """Return the actions (N,) for the model's uncalibrated predictions.

        Args:
            predictions: Predictions of the model; labels are not needed.
            features: (N,) groups, if the rule abstains by group.
        """
        calibrated = predictions.calibrated_by(self.calibrator, allow_fit_rows=True)
        if isinstance(self.rule, CostRule):
            if features is not None:
                raise refuse("no groups for a rule of costs", "features", "leave features out")
            return self.rule.decide(calibrated)
        return self.rule.decide(calibrated, features)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save calibrator and rule as one safetensors file, atomically.

        Raises:
            InputError: If ``path`` does not end in .safetensors.
        """
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / "calibrator.safetensors"
            self.calibrator.save(inner)
            content = np.frombuffer(inner.read_bytes(), dtype=np.uint8)
        metadata = {"format": FORMAT, "rule": json.dumps(_rule_as_data(self.rule), sort_keys=True, allow_nan=False)}
        write_sealed(path, {"calibrator": content}, metadata=metadata, what="a calibrator and rule")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, classes: list[type[Calibrator]] | None = None) -> Self:
        """Load a file written by ``save``.

        Args:
            path: The file.
            classes: Classes of calibrators not in ``calibrators.__all__``, as for ``calibrant.load``.

        Raises:
            FileFormatError: If the file is of another kind, or damaged.
        """
        known = (
            ()
            if classes is None
            else check_list_of(classes, type, name="classes", remedy="pass classes of calibrators")
        )
        place = as_path(path)
        arrays, metadata = read_sealed(place, format=FORMAT, what="a saved Deployed", former={"rule"})
        try:
            content, rule = arrays["calibrator"], _built(json.loads(metadata["rule"]))
            with tempfile.TemporaryDirectory() as folder:
                inner = Path(folder) / "calibrator.safetensors"
                inner.write_bytes(np.ascontiguousarray(content, dtype=np.uint8).tobytes())
                return cls(load(inner, classes=known), rule)
        except (CalibrantError, KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
            raise FileFormatError(
                "a whole calibrator and rule", f"a broken one in {shown(place)} ({reason_of(error)})", "save it again"
            ) from error


def _classes_of(rule: Rule) -> int | None:
    if isinstance(rule, CostRule):
        return len(rule.costs)
    return len(rule.parts) if rule.by == "class" else None


def _rule_as_data(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, CostRule):
        return {"type": "CostRule", "costs": rule.costs, "reject": rule.reject}
    found = rule.plain()
    return {"type": "Abstention", **{key: found[key] for key in ("parts", "by", "error", "confidence")}}


def _built(table: dict[str, Any]) -> Rule:
    kind = table.pop("type")
    if kind == "CostRule":
        return CostRule(table["costs"], reject=table["reject"])
    if kind != "Abstention":
        raise ValueError("no such rule")
    parts = table.pop("parts")  # in JSON a threshold that no row reaches is null
    levels = [math.inf if part["threshold"] is None else float(part["threshold"]) for part in parts]
    made = (Accepted(**part | {"threshold": level}) for part, level in zip(parts, levels, strict=True))
    return Abstention(tuple(made), **table)
