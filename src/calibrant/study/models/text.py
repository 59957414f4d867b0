"""Networks for text: convolutions over word indices, the Tree-LSTM over trees, and BERT over tokens."""

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
    """A network that computes features from word vectors (N, size, length), followed by a linear layer."""

    embedding: nn.Embedding

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of texts given as word indices (N, length)."""
        return super().forward(self.embedding(inputs).transpose(1, 2))


class DeepTextCNN(WordClassifier):
    """An eight-layer network as in Wang et al. (2021): an embedding, six convolutions with pooling, and a linear layer.

    The paper only states "8-layer 1D-CNN"; the default widths, kernel and pooling are Calibrant's own.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words; index 0 is padding.
        embedding: Size of a word's embedding.
        channels: Number of channels of every convolution.
        kernel: Kernel size in words, odd.
        pools: Kernel size of the max pooling after each of the six convolutions; 1 is no pooling.
        embedding_scale: Standard deviation of the initial embeddings. Batch normalisation cancels this scale in the forward
            pass, but at 1, PyTorch's default, Adam with learning rate 1e-3 hardly changes the embeddings.

    Examples:
        >>> texts = torch.zeros(2, 300, dtype=torch.int64)
        >>> DeepTextCNN(classes=20, vocabulary=100)(texts).shape
        torch.Size([2, 20])
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
    """Three convolutions with pooling and two linear layers over fixed word vectors.

    The network is the one in Mukhoti et al.'s code for 20 Newsgroups.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words; index 0 is padding.
        embedding: Size of a word's vector.
        channels: Number of channels of every convolution, and of the hidden linear layer.
        kernel: Kernel size in words, odd, for convolutions (without padding) and for max pooling (with stride 1).
        dropout: Dropout probability before the last layer.
        vectors: (vocabulary, embedding) word vectors, or None for random vectors. The vectors are not trained.

    Examples:
        >>> texts = torch.zeros(2, 300, dtype=torch.int64)
        >>> PooledTextCNN(classes=20, vocabulary=100)(texts).shape
        torch.Size([2, 20])

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
    """Return an embedding with initial ``vectors`` (vocabulary, embedding), or random ones if these are None."""
    found = nn.Embedding(vocabulary, embedding, **options)  # type: ignore[arg-type]
    if vectors is not None:
        found.weight.data.copy_(vectors)
    return found


class TreeLSTM(nn.Module):
    """Binary Tree-LSTM, which returns the logits of the nodes that a batch selects.

    All nodes of the same height are computed together, over all trees of the batch.

    Args:
        classes: Number of classes K.
        vocabulary: Number of words.
        embedding: Size of a word's embedding.
        hidden: Size of a node's hidden state.
        vectors: (vocabulary, embedding) initial embeddings, or None for random ones.
        output_gate: Whether inner nodes have an output gate. Mukhoti et al.'s code has none, and uses h = tanh(c).
        dropout: Dropout probability of the hidden state before the last layer; ½ in Mukhoti et al.'s code.

    Examples:
        >>> from calibrant.study.data.text import TreeSplit, build_tree, parse
        >>> tree = build_tree(parse("(3 (2 a) (3 film))"), index={"a": 1, "film": 2}, labels={2: 0, 3: 1})
        >>> batch, labels = TreeSplit([tree]).batch(torch.tensor([0]))
        >>> TreeLSTM(classes=2, vocabulary=3)(batch).shape
        torch.Size([1, 2])

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
        self.leaf = nn.Linear(embedding, 2 * hidden)  # a word's output gate and cell
        self.output_gate = output_gate
        if output_gate:
            self.node = nn.Linear(2 * hidden, 5 * hidden)  # input gate, two forget gates, output gate, update
        else:  # one layer with bias per child, as in the authors' code, so that weights are initialised for ``hidden`` inputs each
            self.left = nn.Linear(hidden, 4 * hidden)  # input gate, two forget gates, update
            self.right = nn.Linear(hidden, 4 * hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, batch: TreeBatch) -> Tensor:
        """Return the logits (M, K) of the M selected nodes."""
        gate, cell = self.leaf(self.embedding(batch.words)).chunk(2, dim=1)
        all_hidden, all_cells = torch.sigmoid(gate) * torch.tanh(cell), cell
        for left, right in batch.levels:  # indices into the nodes computed so far
            hidden, cell = self._compose(all_hidden[left], all_hidden[right], all_cells[left], all_cells[right])
            all_hidden, all_cells = torch.cat([all_hidden, hidden]), torch.cat([all_cells, cell])
        return self.classifier(self.dropout(all_hidden[batch.asked]))

    def _compose(self, left: Tensor, right: Tensor, left_cell: Tensor, right_cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states and cells (nodes, hidden) of nodes from those of their children."""
        if self.output_gate:
            i, f_left, f_right, o, u = self.node(torch.cat([left, right], dim=1)).chunk(5, dim=1)
        else:
            i, f_left, f_right, u = (self.left(left) + self.right(right)).chunk(4, dim=1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        cell = cell + torch.sigmoid(f_left) * left_cell + torch.sigmoid(f_right) * right_cell
        return (torch.sigmoid(o) * torch.tanh(cell) if self.output_gate else torch.tanh(cell)), cell


class BertClassifier(nn.Module):
    """A BERT encoder, followed by dropout and a linear layer on the pooled first token.

    Args:
        classes: Number of classes K.
        weights: A folder with a BERT model's ``config.json`` and ``model.safetensors``, or a name on the hub.
        vocabulary: Number of tokens that the data's tokenizer knows.
        padding: Id of the padding token, which no other token attends to.
        dropout: Dropout probability of the pooled output.

    Raises:
        MissingExtraError: If ``transformers`` is not installed.
        FileFormatError: If there are no such weights.
        InputError: If the data's tokenizer has more tokens than the weights.

    Examples:
        >>> model = BertClassifier(classes=20, weights="bert-base-uncased")  # doctest: +SKIP
        >>> model(torch.tensor([[101, 7592, 102]])).shape  # doctest: +SKIP
        torch.Size([1, 20])

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
        # the library raises many types of errors: for a missing folder, without a network, for broken files
        with error_boundary("a folder or name of BERT weights as safetensors", f"{weights!r}", "check it"):
            self.encoder = BertModel.from_pretrained(weights, local_files_only=local, use_safetensors=True)
        if vocabulary is not None and vocabulary > self.encoder.config.vocab_size:
            wanted = f"at most {self.encoder.config.vocab_size} tokens"
            raise InputError(wanted, f"{vocabulary} in the data", "use the tokenizer that belongs to the weights")
        self.padding = padding
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (N, K) of texts given as token ids (N, length)."""
        pooled = self.encoder(input_ids=ids, attention_mask=(ids != self.padding).long()).pooler_output
        return self.classifier(self.dropout(pooled))
