"""Convolutional networks over word indices, for 20 Newsgroups."""

from itertools import pairwise

from torch import Tensor, nn

__all__ = ["DeepTextCNN", "PooledTextCNN"]


class DeepTextCNN(nn.Module):
    """Eight layers as in Wang et al. (2021): embedding, six convolutions with pooling after each pair, one linear layer.

    The paper says "8-layer 1D-CNN" and no more; widths and kernel are ours, and options.

    Args:
        classes: K.
        vocabulary: Words, index 0 being padding.
        embedding: Numbers a word.
        channels: Channels of every convolution.
        kernel: Words a convolution sees, odd.
    """

    def __init__(
        self, classes: int, vocabulary: int, embedding: int = 100, channels: int = 128, kernel: int = 5
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(pairwise([embedding, *[channels] * 6])):
            layers += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.BatchNorm1d(after), nn.ReLU()]
            if index % 2:
                layers.append(nn.MaxPool1d(4))
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (N, K) of word indices (N, length)."""
        return self.classifier(self.features(self.embedding(words).transpose(1, 2)))


class PooledTextCNN(nn.Module):
    """Three convolutions and global max pooling, as the code of Mukhoti et al. has for 20 Newsgroups.

    Args:
        classes: K.
        vocabulary: Words, index 0 being padding.
        embedding: Numbers a word.
        channels: Channels of every convolution.
        kernel: Words a convolution sees, odd.
        dropout: Share of features dropped before the last layer.
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
