"""Networks of the studies, constructed from the sizes of the data (``classes``, ``inputs`` …) and options of their own.

The last layer is called ``classifier`` in all of them, so that the trajectory can follow its norm.
"""

from calibrant.study.models.images import MLP, VGG, DenseNet, ResNet, ThinResNet, ViT, WideResNet
from calibrant.study.models.text import BertClassifier, DeepTextCNN, PooledTextCNN, TreeLSTM

__all__ = [
    "MLP",
    "VGG",
    "BertClassifier",
    "DeepTextCNN",
    "DenseNet",
    "PooledTextCNN",
    "ResNet",
    "ThinResNet",
    "TreeLSTM",
    "ViT",
    "WideResNet",
]
