"""Image: a small convolutional network learns to read handwritten digits.

Data: the 1,797 digits that come with Stratal, 8 by 8 pixels each; a fifth of them is held out.
"""

import sys

import stratal as st
from stratal import nn, optim


def main(small=False):
    st.manual_seed(0)
    train, test = (st.data.DataLoader(half, batch_size=64, shuffle=True) for half in st.data.digits_split())
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = optim.Adam(net.parameters(), lr=3e-3)

    @st.compile
    def step(x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(4 if small else 20):
        for x, y in train:
            loss = step(x, y)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    accuracy = st.metrics.Accuracy("multiclass", num_classes=10)
    with st.no_grad():
        for x, y in test:
            accuracy.update(net(x), y)
    print(f"of the digits it has not seen it reads {accuracy.compute():.1%}")
    return accuracy.compute()


if __name__ == "__main__":
    main(small="--small" in sys.argv)
