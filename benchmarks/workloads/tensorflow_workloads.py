"""Training in TensorFlow: an MLP and a CNN in Keras, with a compiled step.

Initial weights and data come from NumPy, so they are the same on every device. A step uses plain gradient descent; see
:mod:`.torch_workloads` for the reason.
"""

from itertools import cycle
from typing import Any, Final

import numpy as np
import tensorflow as tf

from .steps import Steps, tensorflow_device

SEED: Final = 0
LEARNING_RATE: Final = 0.001
NUM_BATCHES: Final = 8
"""The number of batches in an epoch. Every epoch uses the same batches."""

_NUM_CLASSES: Final = 10


def mlp(size: int, device: str) -> Steps:
    """Return steps that train an MLP (784, 256, 256 and 10 units) on batches of ``size`` images of 28 x 28 pixels."""
    layers = tf.keras.layers
    return _training(
        [layers.Flatten(), layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(_NUM_CLASSES)],
        *(size, device),
    )


def cnn(size: int, device: str) -> Steps:
    """Return steps that train a CNN (2 convolutions and 2 poolings) on batches of ``size`` images of 28 x 28 pixels."""
    layers = tf.keras.layers
    convolutions = [
        *(layers.Conv2D(16, 3, padding="same", activation="relu"), layers.MaxPooling2D()),
        *(layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D()),
    ]
    return _training([*convolutions, layers.Flatten(), layers.Dense(_NUM_CLASSES)], size, device)


def _training(layers: list[Any], batch_size: int, device: str) -> Steps:
    where = tensorflow_device(device)
    # TensorFlow allows TF32 by default. Its rounding would make the losses differ from those on a CPU.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    rng = np.random.default_rng(SEED)
    samples = rng.standard_normal((NUM_BATCHES, batch_size, 28, 28, 1), dtype=np.float32)
    labels = rng.integers(_NUM_CLASSES, size=(NUM_BATCHES, batch_size))
    host = list(zip(samples, labels, strict=True))
    with tf.device(where):
        train = _trainer(layers, rng)
        there = [tuple(map(tf.constant, batch)) for batch in host]

    def step(batch: tuple[Any, Any]) -> Any:
        with tf.device(where):
            return train(*map(tf.convert_to_tensor, batch))  # convert_to_tensor copies arrays, but not tensors

    from_host, from_device = cycle(host), cycle(there)
    return Steps(
        with_transfers=lambda: step(next(from_host)),
        compute=lambda: step(next(from_device)),
        steps_per_epoch=NUM_BATCHES,
        dtype="float32",
        samples_per_step=batch_size,
    )


def _trainer(layers: list[Any], rng: np.random.Generator) -> Any:
    """Return a function that does one training step and returns its loss as a tensor."""
    model = tf.keras.Sequential([tf.keras.Input((28, 28, 1)), *layers])
    # Keras draws the initial weights on the device, so they would differ between devices.
    model.set_weights([_first_weights(rng, weights.shape) for weights in model.get_weights()])
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = model.trainable_variables
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    # A ``tf.function`` may create variables only when it is traced for the first time, so the optimizer's are created
    # here.
    optimizer.build(variables)

    def train(samples: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(samples, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return tf.function(train)


def _first_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return weights from PyTorch's default distribution, or zeros for a bias."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    bound = 1 / np.sqrt(np.prod(shape[:-1]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
