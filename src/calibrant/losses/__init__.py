"""Training objectives: one a file, each called as ``loss(logits, labels)``."""

from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.focal import FocalLoss
from calibrant.losses.label_smoothing import LabelSmoothingLoss

__all__ = ["CrossEntropyLoss", "FocalLoss", "LabelSmoothingLoss"]
