"""Graph: two members of a karate club take sides; a graph network tells where the other 32 will go.

Data: W. Zachary, "An information flow model for conflict and fission in small groups", 1977: who met whom
outside of the club, and which of its two teachers, member 0 or member 33, each followed when it split.
"""

import sys

import numpy as np

import stratal as st
from stratal import nn, optim

FRIENDS = """1:0 2:0,1 3:0,1,2 4:0 5:0 6:0,4,5 7:0,1,2,3 8:0,2 9:2 10:0,4,5 11:0 12:0,3 13:0,1,2,3 16:5,6
17:0,1 19:0,1 21:0,1 25:23,24 27:2,23,24 28:2 29:23,26 30:1,8 31:0,24,25,28 32:2,8,14,15,18,20,22,23,29,30,31
33:8,9,13,14,15,18,19,20,22,23,26,27,28,29,30,31,32"""
PAIRS = [(int(a), int(b)) for a, others in (x.split(":") for x in FRIENDS.split()) for b in others.split(",")]
BOTH_WAYS = np.array([*PAIRS, *((b, a) for a, b in PAIRS), *((a, a) for a in range(34))])  # and to oneself
SOURCE, TARGET = st.tensor(BOTH_WAYS.T)
DEGREE = st.bincount(TARGET).float()
WEIGHT = (DEGREE[SOURCE] * DEGREE[TARGET]).rsqrt().unsqueeze(1)
SECOND_CLUB = [9, 14, 15, 18, 20, *range(22, 34)]


class GraphConvolution(nn.Linear):
    """Each node hears a mean of its neighbours and itself, transformed. See: Kipf and Welling, 2017."""

    def forward(self, x):
        messages = super().forward(x)[SOURCE] * WEIGHT
        return st.zeros(len(x), self.out_features).index_add(0, TARGET, messages)


def main(small=False):
    st.manual_seed(0)
    net = nn.Sequential(GraphConvolution(34, 16), nn.Tanh(), GraphConvolution(16, 2))
    optimizer = optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    members, teachers, clubs = st.eye(34), st.tensor([0, 33]), st.tensor([0, 1])

    @st.compile
    def step():
        scores = net(members)
        loss = nn.functional.cross_entropy(scores[teachers], clubs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, scores.argmax(1)

    for epoch in range(1, (20 if small else 60) + 1):
        loss, answers = step()
        right = (answers.numpy() == np.isin(np.arange(34), SECOND_CLUB)).sum()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, {right} of 34 are where they went")
    return right / 34


if __name__ == "__main__":
    main(small="--small" in sys.argv)
