"""Binary trees with labelled nodes: a parser, and batches that a network computes level by level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import FileFormatError

CPU = torch.device("cpu")
Node = list[Any]  # [label, word] or [label, left, right]


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree in the order of computation: leaves first, then inner nodes by height; the root is the last.

    Args:
        words: (leaves,) int64 word indices.
        children: (inner nodes, 2) int64 positions of the children in that order.
        heights: (inner nodes,) int64, from 1.
        labels: (nodes,) int64; −1 for nodes without one.
    """

    words: Tensor
    children: Tensor
    heights: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """A batch of trees in the order of computation.

    Args:
        words: (leaves of all trees,) int64.
        levels: For each height, the positions of left and of right children among the nodes computed so far.
        asked: (M,) int64 positions of the nodes whose logits are requested.
    """

    words: Tensor
    levels: list[tuple[Tensor, Tensor]]
    asked: Tensor


@dataclass(frozen=True, eq=False)
class TreeSplit:
    """Trees of one split, for training on all labelled nodes and evaluation at the roots.

    Args:
        trees: N trees.
        device: Device of the batches.
        decided: Classes among which a prediction is decided; () for all.
    """

    trees: Sequence[Tree]
    device: torch.device = CPU
    decided: tuple[int, ...] = ()

    @property
    def labels(self) -> Tensor:
        """(N,) int64 labels of the roots."""
        return torch.stack([tree.labels[-1] for tree in self.trees]).to(self.device)

    def __len__(self) -> int:
        return len(self.trees)

    def to(self, device: torch.device) -> "TreeSplit":
        """Return the split with batches on ``device``."""
        return replace(self, device=device)

    def batch(self, rows: Tensor, *, training: bool = False) -> tuple[TreeBatch, Tensor]:
        """Return the trees ``rows`` with the labels of all labelled nodes for training, else of the roots."""
        trees = [self.trees[row] for row in rows.tolist()]
        leaves = sum(len(tree.words) for tree in trees)
        places = _places(trees, leaves)
        tops = max((int(tree.heights.max()) for tree in trees if len(tree.heights)), default=0)
        children = torch.cat([places[i][tree.children] for i, tree in enumerate(trees)])  # (inner nodes, 2)
        heights = torch.cat([tree.heights for tree in trees])
        levels = []
        for height in range(1, tops + 1):
            pair = children[heights == height].to(self.device)
            levels.append((pair[:, 0], pair[:, 1]))
        asked, labels = [], []
        for place, tree in zip(places, trees, strict=True):
            chosen = torch.nonzero(tree.labels >= 0)[:, 0] if training else torch.tensor([len(tree.labels) - 1])
            asked.append(place[chosen])
            labels.append(tree.labels[chosen])
        words = torch.cat([tree.words for tree in trees]).to(self.device)
        return TreeBatch(words, levels, torch.cat(asked).to(self.device)), torch.cat(labels).to(self.device)


def _places(trees: Sequence[Tree], leaves: int) -> list[Tensor]:
    """Return the positions (nodes,) of each tree's nodes in the batch: all leaves, then height by height."""
    heights = torch.cat([tree.heights for tree in trees])
    order = torch.argsort(heights, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) + leaves
    places, leaf, inner = [], 0, 0
    for tree in trees:
        n, m = len(tree.words), len(tree.heights)
        places.append(torch.cat([torch.arange(leaf, leaf + n), rank[inner : inner + m]]))
        leaf, inner = leaf + n, inner + m
    return places


def parse(line: str) -> Node:
    """Return a bracketed tree, ``(3 (2 a) (3 b))``, as nested lists.

    Raises:
        FileFormatError: If brackets do not match, or a node does not have a label and a word or two children.
    """
    spaced = line.strip().replace("(", " ( ").replace(")", " ) ")
    tokens = [token for token in spaced.split(" ") if token]  # not split(): a word may contain a no-break space
    stack: list[list[object]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")" and len(stack) > 1:
            node = stack.pop()
            if len(node) not in (2, 3) or not str(node[0]).isdigit():
                raise FileFormatError("'(label word)' or '(label left right)'", f"{line[:60]!r}", "see the format")
            stack[-1].append([int(str(node[0])), *node[1:]])
        else:
            stack[-1].append(token)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise FileFormatError("one tree per line", f"{line[:60]!r}", "see the Penn Treebank format")
    return stack[0][0]


def build(root: Node, *, index: dict[str, int], labels: dict[int, int]) -> Tree:
    """Return a parsed tree in the order of computation.

    Args:
        root: The result of ``parse``.
        index: Word → its index; 0 for all others.
        labels: Label in the file → class; −1 for all others.
    """
    leaves: list[tuple[int, int]] = []
    inner: list[tuple[int, tuple[int, int], int]] = []  # height, children as ±(place + 1): leaves +, inner −; label

    def walk(node: Node) -> tuple[int, int]:
        if len(node) == 2:
            leaves.append((index.get(str(node[1]), 0), labels.get(int(str(node[0])), -1)))
            return 0, len(leaves)
        (left_height, left), (right_height, right) = walk(node[1]), walk(node[2])
        height = 1 + max(left_height, right_height)
        inner.append((height, (left, right), labels.get(int(str(node[0])), -1)))
        return height, -len(inner)

    walk(root)
    order = sorted(range(len(inner)), key=lambda i: inner[i][0])
    place = {-(i + 1): len(leaves) + new for new, i in enumerate(order)} | {i + 1: i for i in range(len(leaves))}
    return Tree(
        words=torch.tensor([word for word, _ in leaves]),
        children=torch.tensor([[place[child] for child in inner[i][1]] for i in order]).reshape(-1, 2).long(),
        heights=torch.tensor([inner[i][0] for i in order], dtype=torch.int64),
        labels=torch.tensor([label for _, label in leaves] + [inner[i][2] for i in order]),
    )
