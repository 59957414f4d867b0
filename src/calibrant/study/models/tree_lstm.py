"""Binary constituency Tree-LSTM, computed level by level over all trees of a batch."""

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.study.data._trees import TreeBatch

__all__ = ["TreeLSTM"]


class TreeLSTM(nn.Module):
    """N-ary Tree-LSTM with two children; logits of the nodes that a batch asks for.

    All nodes of one height, over all trees of the batch, are computed together.

    Args:
        classes: K.
        vocabulary: Words.
        embedding: Numbers a word.
        hidden: Numbers a node.
        vectors: (vocabulary, embedding) first values of the embedding, or None for random ones.

    Raises:
        InputError: If ``vectors`` have another shape.

    References:
        Tai, Socher, Manning 2015, Eqs. 9–14.
    """

    def __init__(
        self, classes: int, vocabulary: int, embedding: int = 100, hidden: int = 120, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        if vectors is not None and vectors.shape != (vocabulary, embedding):
            raise InputError(
                f"expected word vectors of {embedding} numbers, got {vectors.shape[1]}; set embedding to that"
            )
        self.embedding = nn.Embedding(vocabulary, embedding)
        if vectors is not None:
            self.embedding.weight.data.copy_(vectors)
        self.leaf = nn.Linear(embedding, 2 * hidden)  # output gate and cell of a word
        self.node = nn.Linear(2 * hidden, 5 * hidden)  # input gate, two forget gates, output gate, update
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, batch: TreeBatch) -> Tensor:
        """Return logits (nodes asked for, K)."""
        gate, cell = self.leaf(self.embedding(batch.words)).chunk(2, dim=1)
        all_hidden, all_cells = torch.sigmoid(gate) * torch.tanh(cell), cell
        for left, right in batch.levels:  # indices into the nodes computed so far
            inputs = torch.cat([all_hidden[left], all_hidden[right]], dim=1)
            i, f_left, f_right, o, u = self.node(inputs).chunk(5, dim=1)
            cell = torch.sigmoid(i) * torch.tanh(u)
            cell = cell + torch.sigmoid(f_left) * all_cells[left] + torch.sigmoid(f_right) * all_cells[right]
            all_hidden = torch.cat([all_hidden, torch.sigmoid(o) * torch.tanh(cell)])
            all_cells = torch.cat([all_cells, cell])
        return self.classifier(all_hidden[batch.asked])
