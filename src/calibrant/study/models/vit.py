"""A small vision transformer, for images of 32×32 or 64×64 pixels."""

import torch
from torch import Tensor, nn


class ViT(nn.Module):
    """A vision transformer: patches with learned positions, blocks that normalise first, the mean over patches, one linear layer.

    The sizes are ours, between the smallest of the papers and what trains on a CPU.

    Args:
        classes: Number of classes K.
        image: Height and width of an image.
        patch: Height and width of a patch; pixels beyond the last whole patch are left out.
        width: Numbers of a patch.
        depth: Blocks of attention and two linear layers.
        heads: Heads of attention; ``width`` is a multiple of it.
        dropout: Dropout probability in the blocks.

    References:
        Dosovitskiy et al. 2021, Eqs. 1–4, with the mean over patches instead of a class token (Beyer et al. 2022).
    """

    def __init__(
        self,
        classes: int,
        image: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, K) of images (N, 3, H, W)."""
        rows = self.patches(images).flatten(2).transpose(1, 2)  # (N, patches, width)
        return self.classifier(self.blocks(rows + self.positions).mean(dim=1))
