"""Train a Keras model on two GPUs if available, else on one GPU, else on two CPUs.

With two workers, `model.fit` requires the package tf_keras.
"""

import ray.train
from sklearn.datasets import load_digits

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_tensorflow_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


def train_on_worker(config):
    import tensorflow as tf  # imported here, after the worker has selected Keras 2 as `tf.keras`
    from ray.train.tensorflow.keras import ReportCheckpointCallback

    images, labels = load_digits(return_X_y=True)
    tf.keras.utils.set_random_seed(0)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
        )
        optimizer = tf.keras.optimizers.Adam(config["lr"])
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images / 16, labels, batch_size=64, epochs=4, verbose=0, callbacks=[ReportCheckpointCallback()])


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    return build_tensorflow_trainer(
        train_on_worker, plan=POLICY, train_loop_config={"lr": 3e-3}, run_config=run_config
    ).fit()


if __name__ == "__main__":
    print(f"training accuracy: {main().metrics['accuracy']:.3f}")
