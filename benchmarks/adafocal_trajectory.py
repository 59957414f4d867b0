"""Record how AdaFocal's γ move while a small network learns the digits: writes tests/fixtures/adafocal_digits.npz.

The setting is chosen so that within 24 epochs bins change sign and others reach both ends of the range: a high rate,
few bins. The tests follow the record from the stored validation predictions alone.
"""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from calibrant import Predictions
from calibrant.losses import AdaFocalLoss

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "adafocal_digits.npz"
EPOCHS, TRAIN, VALIDATION, BATCH, NOISE = 24, 400, 200, 32, 0.22
RATE, BINS = 4.0, 10


def main() -> None:
    """Train, and write the validation logits, labels, γ and edges of every epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    images += NOISE * torch.randn(images.shape, generator=generator)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=generator)
    train, validation = order[:TRAIN], order[TRAIN : TRAIN + VALIDATION]
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = AdaFocalLoss(BINS, RATE)
    logits, gammas, edges = [], [], []
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(TRAIN, generator=generator)].split(BATCH):
            optimiser.zero_grad()
            loss(model(images[batch]), labels[batch]).backward()
            optimiser.step()
        with torch.no_grad():
            logits.append(model(images[validation]))
        loss.update(Predictions.from_logits(logits[-1], labels[validation]))
        gammas.append(loss.gammas.clone())
        edges.append(loss.edges.clone())
    np.savez_compressed(
        TARGET,
        logits=torch.stack(logits).numpy(),
        labels=labels[validation].numpy(),
        gammas=torch.stack(gammas).numpy(),
        edges=torch.stack(edges).numpy(),
    )
    print(f"wrote {TARGET.name}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
