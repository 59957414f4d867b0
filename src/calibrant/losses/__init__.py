"""Training losses, each called as ``loss(logits, labels)``. To write your own, subclass ``RowLoss`` or ``RowPenalty``."""

from calibrant.losses.adafocal import AdaFocalLoss
from calibrant.losses.aurc import AURCLoss
from calibrant.losses.binary import BinaryCrossEntropyLoss, BinaryFocalLoss, BinaryLabelSmoothingLoss, BinaryLoss
from calibrant.losses.bsce import BSCELoss
from calibrant.losses.cross_entropy import BrierLoss, CrossEntropyLoss, LabelSmoothingLoss
from calibrant.losses.dual_focal import DualFocalLoss
from calibrant.losses.focal import (
    FocalCalibrationLoss,
    FocalLoss,
    InverseFocalLoss,
    SampleDependentFocalLoss,
    ScheduledFocalLoss,
)
from calibrant.losses.fused import FusedLinearLoss
from calibrant.losses.loss import Loss, RowLoss, Weighted, WeightedNLL
from calibrant.losses.mdca import MDCALoss
from calibrant.losses.mmce import MMCELoss
from calibrant.losses.penalty import (
    ACLSLoss,
    BatchPenalty,
    EntropyRegularizedLoss,
    LpNormLoss,
    MarginLabelSmoothingLoss,
    Penalty,
    RowPenalty,
)
from calibrant.losses.proper_focal import ProperFocalLoss
from calibrant.losses.soft_binned_ece import SoftBinnedECELoss

__all__ = [
    "ACLSLoss",
    "AURCLoss",
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
    "FusedLinearLoss",
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
