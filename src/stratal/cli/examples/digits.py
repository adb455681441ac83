"""A small convolutional network that learns to read handwritten digits: what `stratal demo` trains.

Run it by itself with `python -m stratal.cli.examples.digits`; copy it to start your own.
"""

import stratal as st
from stratal import nn, optim

BATCH = 64
EPOCHS = 12


class Net(nn.Module):
    """Two convolutions, batch norm, dropout, one linear layer: about ten thousand parameters."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv1(x)))
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2)
        return self.fc(self.drop(x.reshape(x.shape[0], -1)))


class Training:
    """A network, its optimizer and the step that trains it on one batch."""

    def __init__(self, seed=0, epochs=EPOCHS):
        st.manual_seed(seed)
        self.train, self.test = st.data.digits_split()
        self.loader = st.data.DataLoader(self.train, BATCH, shuffle=True, drop_last=True, seed=seed)
        self.epochs = epochs
        self.net = Net()
        self.optimizer = optim.Adam(self.net.parameters(), lr=3e-3)
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * len(self.loader))
        self.step = st.compile(self.train_step)
        self.scores = st.compile(self.score)

    def train_step(self, x, y):
        """Forward, backward and update; returns the loss and how many answers were right."""
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss, (scores.argmax(1) == y).sum()

    def score(self, x):
        return self.net(x)

    def accuracy(self):
        """Return the share of held-out digits that are read right."""
        images, labels = self.test.arrays
        self.net.eval()
        with st.no_grad():
            answers = self.scores(st.tensor(images)).argmax(1).numpy()
        self.net.train()
        return float((answers == labels).mean())


def main():
    training = Training()
    for epoch in range(training.epochs):
        for x, y in training.loader:
            loss, _ = training.step(x, y)
            training.schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {training.accuracy():.4f}")


if __name__ == "__main__":
    main()
