"""Losses for training, each called as ``loss(logits, labels)``; subclass ``RowLoss`` or ``RowPenalty`` to write your own."""

from calibrant.losses.acls import ACLSLoss
from calibrant.losses.adafocal import AdaFocalLoss
from calibrant.losses.binary import BinaryLoss
from calibrant.losses.binary_cross_entropy import BinaryCrossEntropyLoss
from calibrant.losses.binary_focal import BinaryFocalLoss
from calibrant.losses.binary_label_smoothing import BinaryLabelSmoothingLoss
from calibrant.losses.brier import BrierLoss
from calibrant.losses.bsce import BSCELoss
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.dual_focal import DualFocalLoss
from calibrant.losses.entropy_regularized import EntropyRegularizedLoss
from calibrant.losses.focal import FocalLoss
from calibrant.losses.focal_calibration import FocalCalibrationLoss
from calibrant.losses.inverse_focal import InverseFocalLoss
from calibrant.losses.label_smoothing import LabelSmoothingLoss
from calibrant.losses.loss import Loss, RowLoss, WeightedNLL
from calibrant.losses.lp_norm import LpNormLoss
from calibrant.losses.margin_label_smoothing import MarginLabelSmoothingLoss
from calibrant.losses.mdca import MDCALoss
from calibrant.losses.mmce import MMCELoss
from calibrant.losses.penalty import BatchPenalty, Penalty, RowPenalty
from calibrant.losses.proper_focal import ProperFocalLoss
from calibrant.losses.sample_dependent_focal import SampleDependentFocalLoss
from calibrant.losses.scheduled_focal import ScheduledFocalLoss
from calibrant.losses.soft_binned_ece import SoftBinnedECELoss
from calibrant.losses.weighted import Weighted

__all__ = [
    "ACLSLoss",
    "AdaFocalLoss",
    "BSCELoss",
    "BatchPenalty",
    "BinaryCrossEntropyLoss",
    "BinaryFocalLoss",
    "BinaryLabelSmoothingLoss",
    "BinaryLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "EntropyRegularizedLoss",
    "FocalCalibrationLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "LabelSmoothingLoss",
    "Loss",
    "LpNormLoss",
    "MDCALoss",
    "MMCELoss",
    "MarginLabelSmoothingLoss",
    "Penalty",
    "ProperFocalLoss",
    "RowLoss",
    "RowPenalty",
    "SampleDependentFocalLoss",
    "ScheduledFocalLoss",
    "SoftBinnedECELoss",
    "Weighted",
    "WeightedNLL",
]
