"""Image: a convolutional network with batch norm tells photographs of clothes apart, 28 by 28 pixels each.

Data: Fashion-MNIST, 60,000 images to learn from and 10,000 held out, where the Debian package
`dataset-fashion-mnist` puts them, or in the folder of the variable FASHION_MNIST.
"""

import gzip
import os
import sys
from pathlib import Path

import numpy as np

import stratal as st
from stratal import nn, optim

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def read(name, start):
    packed = (FOLDER / f"{name}-ubyte.gz").read_bytes()
    return np.frombuffer(gzip.decompress(packed), np.uint8, offset=start)


def photographs(part, count):
    images, labels = read(f"{part}-images-idx3", 16).reshape(-1, 1, 28, 28), read(f"{part}-labels-idx1", 8)
    return st.data.TensorDataset(images[:count], labels[:count].astype(np.int64))


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
    epochs = 2 if small else 6
    optimizer = optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=epochs * len(train))

    @st.compile
    def step(x, y):
        mirrored = st.where(st.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
        loss = nn.functional.cross_entropy(net(mirrored / 255), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    answer = st.compile(lambda x: net(x / 255))
    for epoch in range(epochs):
        net.train()
        accuracy = st.metrics.Accuracy("multiclass", num_classes=10)
        for x, y in train:
            loss = step(x, y)
            schedule.step()
        net.eval()
        with st.no_grad():
            for x, y in test:
                accuracy.update(answer(x), y)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {accuracy.compute():.1%} of held-out images right")
    return accuracy.compute()


if __name__ == "__main__":
    main(small="--small" in sys.argv)
