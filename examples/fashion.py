"""Image: a convolutional network with batch norm tells photographs of clothes apart (Fashion-MNIST)."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np

import stratal as st
from stratal import nn, optim

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))  # of Debian's package


def photographs(part, count):
    files = (FOLDER / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    images, labels = (np.frombuffer(gzip.decompress(f.read_bytes()), np.uint8) for f in files)
    return st.data.TensorDataset(images[16:].reshape(-1, 1, 28, 28)[:count], labels[8:][:count].astype(int))


def block(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())


def main(small=False):
    st.manual_seed(0)
    train = st.data.DataLoader(photographs("train", 6000 if small else None), batch_size=100, shuffle=True)
    test = st.data.DataLoader(photographs("t10k", 1000 if small else None), batch_size=500)
    net = nn.Sequential(
        block(1, 32), nn.MaxPool2d(2), block(32, 64), nn.MaxPool2d(2), block(64, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, (2 if small else 6) * len(train))

    @st.compile
    def step(x, y):
        mirrored = st.where(st.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
        loss = nn.functional.cross_entropy(net(mirrored / 255), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    answer = st.compile(lambda x: net(x / 255).argmax(1))
    for epoch in range(2 if small else 6):
        net.train()
        for x, y in train:
            loss = step(x, y)
            schedule.step()
        net.eval()
        right = np.mean([(answer(x) == y).numpy().mean() for x, y in test])
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {right:.1%} of held-out images right")
    return right


if __name__ == "__main__":
    main(small="--small" in sys.argv)
