"""Convolutional networks over word indices, for 20 Newsgroups."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from calibrant._core.check import check_number
from calibrant.study.models._sizes import check_odd, check_sizes, check_widths

__all__ = ["DeepTextCNN", "PooledTextCNN"]


class DeepTextCNN(nn.Module):
    """Eight layers as in Wang et al. (2021): embedding, six convolutions with pooling, one linear layer.

    The paper only states "8-layer 1D-CNN"; the defaults of widths, kernel and pooling are ours.

    Args:
        classes: K.
        vocabulary: Number of words; index 0 is padding.
        embedding: Size of a word's embedding.
        channels: Number of channels of every convolution.
        kernel: Kernel size in words, odd.
        pools: Kernel size of the max pooling after each of the six convolutions; 1 is none.
        embedding_scale: Standard deviation of the initial embeddings; batch normalisation cancels it in the forward pass,
            but at 1, torch's default, Adam with rate 1e-3 changes them little.

    Raises:
        InputError: If a size is not an integer ≥ 1, or ``pools`` are not six.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        embedding: int = 100,
        channels: int = 128,
        kernel: int = 5,
        pools: Sequence[int] = (1, 4, 1, 4, 1, 4),
        embedding_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_sizes(classes=classes, vocabulary=vocabulary, embedding=embedding, channels=channels)
        check_odd(kernel, name="kernel")
        scale = check_number(embedding_scale, name="embedding_scale", low=0)
        pools = check_widths(pools, name="pools", count=6)
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight *= scale
        layers: list[nn.Module] = []
        for pool, (before, after) in zip(pools, pairwise([embedding, *[channels] * 6]), strict=True):
            layers += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.BatchNorm1d(after), nn.ReLU()]
            if pool > 1:
                layers.append(nn.MaxPool1d(pool))
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (N, K) of word indices (N, length)."""
        return self.classifier(self.features(self.embedding(words).transpose(1, 2)))


class PooledTextCNN(nn.Module):
    """Three convolutions and global max pooling, as in Mukhoti et al.'s code for 20 Newsgroups.

    Args:
        classes: K.
        vocabulary: Number of words; index 0 is padding.
        embedding: Size of a word's embedding.
        channels: Number of channels of every convolution.
        kernel: Kernel size in words, odd.
        dropout: Dropout probability before the last layer.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        embedding: int = 100,
        channels: int = 128,
        kernel: int = 5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(classes=classes, vocabulary=vocabulary, embedding=embedding, channels=channels)
        check_odd(kernel, name="kernel")
        check_number(dropout, name="dropout", low=0, high=1)
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.features = nn.Sequential(
            nn.Conv1d(embedding, channels, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool1d(5),
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool1d(5),
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.classifier = nn.Linear(channels, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (N, K) of word indices (N, length)."""
        return self.classifier(self.features(self.embedding(words).transpose(1, 2)))
