"""Tune a TensorFlow classifier of handwritten digits on fractions of a GPU if there is one, else on CPUs."""

from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tune_policies import CpuPolicy, GpuMemoryPolicy, run

POLICY = GpuMemoryPolicy(gpu_memory="4GiB") | CpuPolicy(cpus=1)


def train_digits(config):
    import tensorflow as tf  # imported here, because the driver does not need it

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images.astype("float32") / 16, labels, random_state=0)
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(config["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

    for _ in range(5):
        model.fit(x, y, batch_size=64, epochs=4, verbose=0)
        accuracy = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
        tune.report({"accuracy": accuracy})


def main(storage_path=None):
    return run(
        train_digits,
        POLICY,
        config={"lr": tune.grid_search([1e-3, 1e-2])},
        metric="accuracy",
        mode="max",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(f"best accuracy: {main().best_result['accuracy']:.3f}")
