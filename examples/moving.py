"""Video: a network of 3-d convolutions watches a digit cross the picture: which is it, and where does it go?

Data: the digits that come with Stratal, moved by a pixel a frame; those of the test were never seen.
"""

import sys

import numpy as np

import stratal as st
from stratal import nn, optim

WAYS = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])  # right, left, down, up


def clips(images, rng):
    """Return a clip [1, 8 frames, 16, 16] of each image [1, 8, 8], and the number of its way."""
    ways = rng.integers(0, len(WAYS), len(images))
    start = np.where(WAYS[ways] == 0, rng.integers(0, 9, (len(images), 2)), np.where(WAYS[ways] < 0, 8, 0))
    frames = np.zeros((len(images), 1, 8, 16, 16), np.float32)
    for clip, image, place, way in zip(frames, images, start, WAYS[ways], strict=True):
        for t in range(8):
            y, x = place + t * way
            clip[:, t, y : y + 8, x : x + 8] = image
    return frames, ways


def main(small=False):
    st.manual_seed(0)
    rng = np.random.default_rng(0)
    train, test = st.data.digits_split()
    train = st.data.DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    net = nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(1024, 14),
    )  # fmt: skip
    optimizer = optim.Adam(net.parameters(), lr=2e-3)

    @st.compile
    def step(frames, ways, digits):
        loss = sum(map(nn.functional.cross_entropy, net(frames).split([10, 4], 1), (digits, ways)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(3 if small else 25):
        for images, digits in train:
            loss = step(*clips(images.numpy(), rng), digits)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    frames, ways = clips(test.arrays[0], rng)
    digits, directions = (scores.argmax(1).numpy() for scores in net(st.tensor(frames)).split([10, 4], 1))
    digit, way = (digits == test.arrays[1]).mean(), (directions == ways).mean()
    print(f"of digits it has not seen it reads {digit:.1%}, and sees {way:.1%} go the right way")
    return digit, way


if __name__ == "__main__":
    main(small="--small" in sys.argv)
