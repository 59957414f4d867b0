"""The studies' networks, which are constructed from the sizes of the data (``classes``, ``inputs`` …) and their own options.

The last layer of each network is called ``classifier``, so that the trajectory can record its norm.
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
