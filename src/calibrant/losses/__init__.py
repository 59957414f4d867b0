"""Training objectives: one a file, each called as ``loss(logits, labels)``."""

from calibrant.losses.adafocal import AdaFocalLoss
from calibrant.losses.brier import BrierLoss
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.entropy_regularized import EntropyRegularizedLoss
from calibrant.losses.focal import FocalLoss
from calibrant.losses.inverse_focal import InverseFocalLoss
from calibrant.losses.label_smoothing import LabelSmoothingLoss
from calibrant.losses.lp_norm import LpNormLoss
from calibrant.losses.mmce import MMCELoss
from calibrant.losses.proper_focal import ProperFocalLoss
from calibrant.losses.sample_dependent_focal import SampleDependentFocalLoss
from calibrant.losses.scheduled_focal import ScheduledFocalLoss

__all__ = [
    "AdaFocalLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "EntropyRegularizedLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "LabelSmoothingLoss",
    "LpNormLoss",
    "MMCELoss",
    "ProperFocalLoss",
    "SampleDependentFocalLoss",
    "ScheduledFocalLoss",
]
