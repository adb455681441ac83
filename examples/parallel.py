"""Data parallel: ranks read digits together, each training on its part of every batch.

`python examples/parallel.py` trains in one process, `stratal launch -n 4 examples/parallel.py` in four, on
the same batches: the losses agree. More than one process needs MPI: `pip install 'stratal[parallel]'`.
"""

import sys

import stratal as st
from stratal import nn, optim


def main(small=False):
    st.manual_seed(0)
    train, test = st.data.digits_split()
    train = st.data.DataLoader(
        train, batch_size=48, shuffle=True, drop_last=True, seed=0, shard=st.distributed.shard()
    )
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = optim.Adam(net.parameters(), lr=3e-3)

    def step(x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = st.compile(st.distributed.parallel(step, st.distributed.data()))
    for epoch in range(4 if small else 20):
        for x, y in train:
            loss = step(x, y)
        mean = st.distributed.all_reduce(loss, "mean")
        if st.distributed.rank() == 0:
            print(f"epoch {epoch + 1}: loss of the last batch {mean.item():.4f}", flush=True)

    images, labels = test.arrays
    with st.no_grad():
        accuracy = float((net(st.tensor(images)).argmax(1).numpy() == labels).mean())
    if st.distributed.rank() == 0:
        print(f"{st.distributed.world_size()} ranks read {accuracy:.1%} of the digits they have not seen")
    return accuracy


if __name__ == "__main__":
    main(small="--small" in sys.argv)
