"""TensorFlow 1's programs: the lectures' listing under `stratal.compat.tf1`, functions beside PyTorch's."""

import numpy as np
import pytest

import stratal as st
import stratal.compat.tf1 as tf
from stratal.base.errors import StratalError
from stratal.compat.tf1.examples.tutorials.mnist import input_data

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def _own_graph():
    tf.reset_default_graph()
    tf.set_random_seed(0)
    yield
    tf.reset_default_graph()


LISTING = """
# 1. Construct a graph representing the model.
x = tf.placeholder(tf.float32, [BATCH_SIZE, 784]) # Placeholder for input.
y = tf.placeholder(tf.float32, [BATCH_SIZE, 10])  # Placeholder for labels.

W_1 = tf.Variable(tf.random_uniform([784, 100])) # 784x100 weight matrix.
b_1 = tf.Variable(tf.zeros([100]))              # 100-element bias vector.
layer_1 = tf.nn.relu(tf.matmul(x, W_1) + b_1)    # Output of hidden layer.

W_2 = tf.Variable(tf.random_uniform([100, 10])) # 100x10 weight matrix.
b_2 = tf.Variable(tf.zeros([10]))              # 10-element bias vector.
layer_2 = tf.matmul(layer_1, W_2) + b_2         # Output of linear layer.

# 2. Add nodes that represent the optimization algorithm.
loss = tf.nn.softmax_cross_entropy_with_logits(layer_2, y)
train_op = tf.train.AdagradOptimizer(0.01).minimize(loss)

# 3. Execute the graph on batches of input data.
with tf.Session() as sess: # Connect to the TF runtime.
    sess.run(tf.initialize_all_variables()) # Randomly initialize weights.
    for step in range(NUM_STEPS): # Train iteratively for NUM_STEPS.
        x_data, y_data = ... # Load one batch of input data.
        sess.run(train_op, {x: x_data, y: y_data}) # Perform one training step.
"""


@pytest.mark.sampled(5)
@pytest.mark.row("B1")
def test_the_listing_of_the_lectures_runs_and_its_loss_falls():
    mnist = input_data.read_data_sets(one_hot=True)
    losses = []

    class Batches:
        """What the listing leaves out: loads a batch, and looks at the loss on the way."""

        def __iter__(self):
            fed = dict(
                zip((names["x"], names["y"]), mnist.train.next_batch(names["BATCH_SIZE"]), strict=True)
            )
            losses.append(names["sess"].run(names["loss"], fed).mean())
            return iter(fed.values())

    names = {"tf": tf, "BATCH_SIZE": 50, "NUM_STEPS": 60, "batch": Batches()}
    listing = LISTING.replace("= ... #", "= batch #")
    assert listing.count("batch #") == 1
    exec(compile(listing, "listing.py", "exec"), names)
    assert len(losses) == 60
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


@pytest.mark.row("B1")
def test_the_tutorial_of_softmax_regression_learns():
    mnist = input_data.read_data_sets("MNIST_data/", one_hot=True)
    x = tf.placeholder(tf.float32, [None, 784])
    W = tf.Variable(tf.zeros([784, 10]))
    b = tf.Variable(tf.zeros([10]))
    y = tf.nn.softmax(tf.matmul(x, W) + b)
    y_ = tf.placeholder(tf.float32, [None, 10])
    cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
    train_step = tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy)
    sess = tf.InteractiveSession()
    try:
        tf.global_variables_initializer().run()
        for _ in range(100):
            batch_xs, batch_ys = mnist.train.next_batch(100)
            sess.run(train_step, feed_dict={x: batch_xs, y_: batch_ys})
        correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))
        assert sess.run(accuracy, feed_dict={x: mnist.test.images, y_: mnist.test.labels}) > 0.85
        assert cross_entropy.eval({x: mnist.test.images, y_: mnist.test.labels}) < 1.0
    finally:
        sess.close()


@pytest.mark.sampled(4)
@pytest.mark.row("B1")
def test_a_small_convolutional_network_learns():
    mnist = input_data.read_data_sets(one_hot=True)
    x, y_ = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
    keep = tf.placeholder(tf.float32, [])
    image = tf.reshape(x, [-1, 28, 28, 1])
    W = tf.Variable(tf.truncated_normal([5, 5, 1, 8], stddev=0.1))
    b = tf.Variable(tf.constant(0.1, shape=[8]))
    h = tf.nn.relu(tf.nn.conv2d(image, W, strides=[1, 2, 2, 1], padding="SAME") + b)
    pooled = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    flat = tf.nn.dropout(tf.reshape(pooled, [-1, 7 * 7 * 8]), keep)
    logits = tf.matmul(flat, tf.Variable(tf.truncated_normal([7 * 7 * 8, 10], stddev=0.1)))
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=logits))
    step = tf.train.AdamOptimizer(1e-2).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = []
        for _ in range(30):
            images, labels = mnist.train.next_batch(32)
            losses.append(sess.run([loss, step], {x: images, y_: labels, keep: 0.8})[0])
    assert np.mean(losses[-5:]) < 0.5 * losses[0]


def _run(fetch, feeds=None):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetch, feeds)


# -- functions -----------------------------------------------------------------------------------------------
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
CASES = {
    "reduce_sum": (lambda x: tf.reduce_sum(x), X.sum()),
    "reduce_sum axes": (lambda x: tf.reduce_sum(x, [0, 1], keep_dims=True), X.sum(keepdims=True)),
    "reduce_mean": (lambda x: tf.reduce_mean(x, 1, keepdims=True), X.mean(1, keepdims=True)),
    "reduce_max": (lambda x: tf.reduce_max(x, reduction_indices=[0]), X.max(0)),
    "argmax": (lambda x: tf.argmax(x), X.argmax(0)),
    "argmax 1": (lambda x: tf.argmax(x, 1), X.argmax(1)),
    "argmin": (lambda x: tf.argmin(x, dimension=1), X.argmin(1)),
    "matmul": (lambda x: tf.matmul(x, x, transpose_b=True), X @ X.T),
    "matmul a": (lambda x: tf.matmul(x, x, transpose_a=True), X.T @ X),
    "cast": (lambda x: tf.cast(x > 0, "float"), (X > 0).astype(np.float32)),
    "cast int": (lambda x: tf.cast(x * 3, tf.int32), (X * 3).astype(np.int32)),
    "transpose": (lambda x: tf.transpose(x), X.T),
    "reshape": (lambda x: tf.reshape(x, [-1, 2]), X.reshape(-1, 2)),
    "concat": (lambda x: tf.concat([x, x], 1), np.concatenate([X, X], 1)),
    "stack": (lambda x: tf.stack([x, x], axis=1), np.stack([X, X], 1)),
    "gather": (lambda x: tf.gather(x, [2, 0]), X[[2, 0]]),
    "clip": (lambda x: tf.clip_by_value(x, -0.5, 0.5), X.clip(-0.5, 0.5)),
    "one_hot": (
        lambda x: tf.one_hot([1, 3, -1], 3) + 0 * x[0, :3],
        np.float32([[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
    ),
    "square name": (lambda x: tf.square(x, name="squares"), X**2),
    "where": (lambda x: tf.where(x > 0, x, tf.zeros_like(x)), np.where(X > 0, X, 0)),
    "fill": (lambda x: tf.fill([2, 2], 7.0) + 0 * x[0, :2], np.full((2, 2), 7.0, np.float32)),
    "l2_loss": (lambda x: tf.nn.l2_loss(x), (X**2).sum() / 2),
    "bias_add": (lambda x: tf.nn.bias_add(x, tf.ones([4])), X + 1),
    "floordiv": (lambda x: tf.floordiv(tf.constant([7, -7]), 2) + tf.cast(0 * x[0, :2], tf.int64), [3, -4]),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_mean_what_they_mean_in_tensorflow(case):
    function, expected = CASES[case]
    x = tf.placeholder(tf.float32, [None, 4])
    got = _run(function(x), {x: X})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert np.asarray(got).shape == np.shape(expected)


@pytest.mark.torch
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("size, reach, step", [(7, 3, 2), (8, 3, 2), (6, 2, 2), (5, 2, 1), (9, 5, 3)])
def test_images_are_padded_as_tensorflow_pads_them(padding, size, reach, step):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(size)
    image = rng.standard_normal((2, size, size, 3)).astype(np.float32)
    weight = rng.standard_normal((reach, reach, 3, 4)).astype(np.float32)
    x = tf.placeholder(tf.float32, [None, size, size, 3])
    window, steps = [1, reach, reach, 1], [1, step, step, 1]
    fetches = [
        tf.nn.conv2d(x, weight, steps, padding), tf.nn.max_pool(x, window, steps, padding),
        tf.nn.avg_pool(x, window, steps, padding),
    ]  # fmt: skip
    got = _run(fetches, {x: image})
    places = -(-size // step)  # TensorFlow's documented rule
    total = max((places - 1) * step + reach - size, 0) if padding == "SAME" else 0
    pads = (total // 2, total - total // 2) * 2
    functional = torch.nn.functional
    t = torch.tensor(image).permute(0, 3, 1, 2)
    w = torch.tensor(weight).permute(3, 2, 0, 1)
    ones = functional.pad(torch.ones_like(t), pads)
    expected = [
        functional.conv2d(functional.pad(t, pads), w, stride=step),
        functional.max_pool2d(functional.pad(t, pads, value=-float("inf")), reach, step),
        functional.avg_pool2d(functional.pad(t, pads), reach, step)
        / functional.avg_pool2d(ones, reach, step),
    ]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b.permute(0, 2, 3, 1).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.torch
def test_losses_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    classes = np.array([1, 0, 3])
    x = tf.placeholder(tf.float32, [3, 4])
    hot = np.eye(4, dtype=np.float32)[classes]
    got = _run(
        [
            tf.nn.softmax_cross_entropy_with_logits(labels=hot, logits=x),
            tf.nn.softmax_cross_entropy_with_logits(x, hot),
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=x),
            tf.nn.sigmoid_cross_entropy_with_logits(labels=hot, logits=x),
        ],
        {x: X},
    )
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(X), torch.tensor(classes), reduction="none"
    ).numpy()
    for value in got[:3]:
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(X), torch.tensor(hot), reduction="none"
    )
    np.testing.assert_allclose(got[3], bce.numpy(), rtol=1e-5)


def test_draws_have_the_moments_they_are_asked_for():
    shape = [200, 300]
    n, u, t, k = _run(
        [
            tf.random_normal(shape, 2.0, 3.0), tf.random_uniform(shape, -1, 1),
            tf.truncated_normal(shape, 0.0, 2.0), tf.random_uniform(shape, 3, 9, tf.int32),
        ]
    )  # fmt: skip
    assert abs(n.mean() - 2) < 0.05 and abs(n.std() - 3) < 0.05
    assert -1 <= u.min() < -0.99 and 0.99 < u.max() < 1
    assert (
        abs(t).max() <= 4 and abs(t.std() - 2 * 0.8796) < 0.02
    )  # the deviation of the truncated distribution
    assert (k.min(), k.max(), k.dtype) == (3, 8, np.int32)


def test_seeds_make_streams_of_their_own():
    def draws():
        tf.reset_default_graph()
        a = tf.random_uniform([4], seed=7)
        with tf.Session() as sess:
            return sess.run(a), sess.run(a)

    (first, second), (again, _) = draws(), draws()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


def test_dropout_keeps_a_share_and_scales_it():
    x = tf.ones([100, 100])
    kept = _run(tf.nn.dropout(x, 0.25))
    assert set(np.unique(kept)) == {0.0, 4.0}
    assert abs(kept.mean() - 1) < 0.1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tf.nn.conv2d(x, np.ones((3, 3, 1, 2), np.float32), [1, 1, 1, 1], "same"),
        lambda x: tf.nn.conv2d(x, np.ones((3, 3, 1, 2), np.float32), [1, 1], "SAME"),
        lambda x: tf.nn.max_pool(x, [2, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        lambda x: tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME", data_format="CHWN"),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(labels=x),
        lambda x: tf.nn.conv2d(x[0], np.ones((3, 3, 1, 2), np.float32), [1, 1, 1, 1], "SAME"),
        lambda x: tf.random_uniform([2], dtype=tf.int32),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(StratalError) as caught:
        call(tf.placeholder(tf.float32, [None, 4, 4, 1]))
    assert "where: test_compat_tf1.py" in str(caught.value)


def test_the_digits_come_in_batches_without_repeats():
    sets = input_data.read_data_sets()
    assert sum(s.num_examples for s in sets) == len(st.data.digits().labels)
    assert sets.train.images.shape[1] == 784 and sets.train.labels.ndim == 1
    seen = np.concatenate([sets.test.next_batch(10)[0] for _ in range(sets.test.num_examples // 10)])
    assert len(np.unique(seen, axis=0)) >= len(seen) - 1
