"""Networks of the studies, constructed from the sizes of the data (``classes``, ``inputs`` …) and options of their own.

The last layer is called ``classifier`` in all of them, so that the trajectory can follow its norm.
"""

from calibrant.study.models.bert import BertClassifier
from calibrant.study.models.convnets import VGG, DenseNet, SmallCNN, WideResNet
from calibrant.study.models.mlp import MLP
from calibrant.study.models.resnet import ResNet, ThinResNet
from calibrant.study.models.text import DeepTextCNN, PooledTextCNN
from calibrant.study.models.tree_lstm import TreeLSTM

__all__ = [
    "MLP",
    "VGG",
    "BertClassifier",
    "DeepTextCNN",
    "DenseNet",
    "PooledTextCNN",
    "ResNet",
    "SmallCNN",
    "ThinResNet",
    "TreeLSTM",
    "WideResNet",
]
