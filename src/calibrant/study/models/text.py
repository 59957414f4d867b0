"""Networks of texts: convolutions over word indices, the Tree-LSTM over trees, BERT over tokens."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant._files import error_boundary
from calibrant.errors import InputError, optional
from calibrant.study.data.text import TreeBatch
from calibrant.study.models.images import Classifier


class WordClassifier(Classifier):
    """Features of the vectors (N, size, length) of words, then one linear layer."""

    embedding: nn.Embedding

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (N, K) of word indices (N, length)."""
        return super().forward(self.embedding(inputs).transpose(1, 2))


class DeepTextCNN(WordClassifier):
    """Eight layers as in Wang et al. (2021): embedding, six convolutions with pooling, one linear layer.

    The paper only states "8-layer 1D-CNN"; the defaults of widths, kernel and pooling are ours.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words; index 0 is padding.
        embedding: int of a word's embedding.
        channels: Number of channels of every convolution.
        kernel: Kernel size in words, odd.
        pools: Kernel size of the max pooling after each of the six convolutions; 1 is none.
        embedding_scale: Standard deviation of the initial embeddings; batch normalisation cancels it in the forward pass,
            but at 1, torch's default, Adam with rate 1e-3 changes them little.
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
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight *= embedding_scale
        layers: list[nn.Module] = []
        for pool, (before, after) in zip(pools, pairwise([embedding, *[channels] * 6]), strict=True):
            layers += [nn.Conv1d(before, after, kernel, padding=kernel // 2), nn.BatchNorm1d(after), nn.ReLU()]
            if pool > 1:
                layers.append(nn.MaxPool1d(pool))
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)


class PooledTextCNN(WordClassifier):
    """Three convolutions with pooling and two linear layers over fixed word vectors, as in Mukhoti et al.'s code for 20 Newsgroups.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words; index 0 is padding.
        embedding: int of a word's vector.
        channels: Number of channels of every convolution, and of the hidden linear layer.
        kernel: Kernel size in words, of convolutions (without padding) and of max pooling (with stride 1), odd.
        dropout: Dropout probability before the last layer.
        vectors: (vocabulary, embedding) word vectors, or None for random ones; neither are trained.

    References:
        Mukhoti et al. 2020, code (branch nlp): 247,316 trained parameters for 20 classes.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        embedding: int = 100,
        channels: int = 128,
        kernel: int = 5,
        dropout: float = 0.0,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embedding = word_vectors(vocabulary, embedding, vectors, padding_idx=0).requires_grad_(False)
        layers: list[nn.Module] = []
        for before in (embedding, channels, channels):
            layers += [nn.Conv1d(before, channels, kernel), nn.ReLU(), nn.MaxPool1d(kernel, stride=1)]
        layers[-1] = nn.AdaptiveMaxPool1d(1)  # the last pooling is over the whole text
        hidden = [nn.Linear(channels, channels), nn.ReLU(), nn.Dropout(dropout)]
        self.features = nn.Sequential(*layers, nn.Flatten(), *hidden)
        self.classifier = nn.Linear(channels, classes)


def word_vectors(vocabulary: int, embedding: int, vectors: Tensor | None, **options: int) -> nn.Embedding:
    """Return an embedding that begins with ``vectors`` (vocabulary, embedding), or at random if there are none."""
    found = nn.Embedding(vocabulary, embedding, **options)  # type: ignore[arg-type]
    if vectors is not None:
        found.weight.data.copy_(vectors)
    return found


class TreeLSTM(nn.Module):
    """N-ary Tree-LSTM with two children, which returns the logits of the nodes that a batch selects.

    All nodes of one height, over all trees of the batch, are computed together.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words.
        embedding: int of a word's embedding.
        hidden: int of a node's hidden state.
        vectors: (vocabulary, embedding) initial embeddings, or None for random ones.
        output_gate: Whether inner nodes have an output gate; in Mukhoti et al.'s code h = tanh(c) instead.
        dropout: Dropout probability of the hidden state before the last layer; ½ in that code.

    References:
        Tai, Socher, Manning 2015, Eqs. 9–14; Mukhoti et al. 2020, code (branch nlp), treeLSTM/model.py.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        embedding: int = 100,
        hidden: int = 120,
        vectors: Tensor | None = None,
        output_gate: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = word_vectors(vocabulary, embedding, vectors)
        self.leaf = nn.Linear(embedding, 2 * hidden)  # output gate and cell of a word
        self.output_gate = output_gate
        if output_gate:
            self.node = nn.Linear(2 * hidden, 5 * hidden)  # input gate, two forget gates, output gate, update
        else:  # one layer with bias per child, as in the authors' code, so that weights are initialised for ``hidden`` inputs
            self.left = nn.Linear(hidden, 4 * hidden)  # input gate, two forget gates, update
            self.right = nn.Linear(hidden, 4 * hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, batch: TreeBatch) -> Tensor:
        """Return logits (selected nodes, K)."""
        gate, cell = self.leaf(self.embedding(batch.words)).chunk(2, dim=1)
        all_hidden, all_cells = torch.sigmoid(gate) * torch.tanh(cell), cell
        for left, right in batch.levels:  # indices into the nodes computed so far
            hidden, cell = self._compose(all_hidden[left], all_hidden[right], all_cells[left], all_cells[right])
            all_hidden, all_cells = torch.cat([all_hidden, hidden]), torch.cat([all_cells, cell])
        return self.classifier(self.dropout(all_hidden[batch.asked]))

    def _compose(self, left: Tensor, right: Tensor, left_cell: Tensor, right_cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states and cells (nodes, hidden) of nodes from those of their children."""
        if self.output_gate:
            i, f_left, f_right, o, u = self.node(torch.cat([left, right], dim=1)).chunk(5, dim=1)
        else:
            i, f_left, f_right, u = (self.left(left) + self.right(right)).chunk(4, dim=1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        cell = cell + torch.sigmoid(f_left) * left_cell + torch.sigmoid(f_right) * right_cell
        return (torch.sigmoid(o) * torch.tanh(cell) if self.output_gate else torch.tanh(cell)), cell


class BertClassifier(nn.Module):
    """A BERT encoder whose pooled first token goes through dropout and one linear layer.

    Args:
        classes: Number of classes K.
        weights: A folder with a BERT's ``config.json`` and ``model.safetensors``, or a name on the hub.
        vocabulary: Number of tokens of the data's tokenizer.
        padding: Id of the padding token, which no other token attends to.
        dropout: Dropout probability of the pooled output.

    Raises:
        MissingExtraError: If ``transformers`` is not installed.
        FileFormatError: If there are no such weights.
        InputError: If the data have more tokens than the weights.

    References:
        Devlin et al. 2019. BERT-base without the last layer has 109,482,240 parameters.
    """

    def __init__(
        self, classes: int, weights: str, vocabulary: int | None = None, padding: int = 0, dropout: float = 0.1
    ) -> None:
        super().__init__()
        with optional("transformers", extra="transformers"):
            from transformers import BertModel
        local = Path(weights).is_dir()
        # no folder, no network, broken files: the library raises many kinds
        with error_boundary("a folder or a name of BERT's weights as safetensors", f"{weights!r}", "check it"):
            self.encoder = BertModel.from_pretrained(weights, local_files_only=local, use_safetensors=True)
        if vocabulary is not None and vocabulary > self.encoder.config.vocab_size:
            wanted = f"at most {self.encoder.config.vocab_size} tokens"
            raise InputError(wanted, f"{vocabulary} in the data", "use the tokenizer that belongs to the weights")
        self.padding = padding
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (N, K) of token ids (N, length)."""
        pooled = self.encoder(input_ids=ids, attention_mask=(ids != self.padding).long()).pooler_output
        return self.classifier(self.dropout(pooled))
