"""Tabular: a perceptron tells malignant from benign tumours by 30 measurements of their cells.

Data: 569 patients (Breast Cancer Wisconsin), with scikit-learn (`pip install scikit-learn`); a quarter is
held out.
"""

import sys

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import stratal as st
from stratal import nn, optim


def main(small=False):
    st.manual_seed(0)
    table, benign = load_breast_cancer(return_X_y=True)
    x, x_test, y, y_test = train_test_split(table, benign, test_size=0.25, stratify=benign, random_state=0)
    scale = StandardScaler().fit(x)
    train = st.data.TensorDataset(scale.transform(x).astype("float32"), y.astype("float32"))
    train = st.data.DataLoader(train, batch_size=32, shuffle=True)

    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)

    @st.compile
    def step(x, y):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(10 if small else 40):
        for batch in train:
            loss = step(*batch)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    net.eval()
    with st.no_grad():
        chances = st.sigmoid(net(st.tensor(scale.transform(x_test)).float()))
    accuracy = st.metrics.Accuracy("binary")(chances, y_test)
    area = st.metrics.AUROC()(chances, y_test)
    print(
        f"of the patients it has not seen it tells {accuracy:.1%} right; area under the ROC curve {area:.3f}"
    )
    return accuracy


if __name__ == "__main__":
    main(small="--small" in sys.argv)
