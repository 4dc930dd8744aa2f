"""A script that uses a GPU with one framework, and prints the memory that its allocator reserves, as JSON.

The script keeps the memory until its standard input is closed, so that the parent process can read the memory use that
the driver reports. The computations load the same libraries as training does. CUDA loads each kernel at its first use,
so PyTorch trains a small model, with and without mixed precision. The script imports nothing from its package, so it
starts quickly.
"""

import json
import os
import sys


def use_torch() -> dict[str, object]:
    """Use PyTorch, and return its version and the memory that its allocator reserves, in bytes."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.BatchNorm2d(64),
        nn.Flatten(2),
        nn.TransformerEncoderLayer(1024, 8, 1024, batch_first=True),
        nn.Flatten(),
        nn.Linear(64 * 1024, 10),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(8, 3, 34, 34, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
    for is_mixed in (False, True):
        with torch.autocast("cuda", torch.float16, enabled=is_mixed):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.cuda.synchronize()
    return {"version": torch.__version__, "reserved_bytes": torch.cuda.memory_reserved()}


def use_tensorflow() -> dict[str, object]:
    """Use TensorFlow, which reserves its whole limit at the start, and return its version and this limit in bytes."""
    import tensorflow as tf

    megabytes = 512
    (device,) = tf.config.list_physical_devices("GPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)])
    image, kernel = tf.random.normal((8, 64, 64, 3)), tf.Variable(tf.random.normal((3, 3, 3, 16)))
    matrix = tf.Variable(tf.random.normal((512, 512)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME")))
        loss += tf.reduce_sum(matrix @ matrix)
    for gradient in tape.gradient(loss, [kernel, matrix]):
        # This call waits until the GPU has computed the gradient.
        gradient.numpy()
    return {"version": tf.__version__, "reserved_bytes": megabytes * 2**20}


def use_jax() -> dict[str, object]:
    """Use JAX, which preallocates its whole limit, and return its version and this limit in bytes."""
    # JAX does not start if the fraction is set under its old and its new name.
    os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)
    os.environ |= {"XLA_CLIENT_MEM_FRACTION": "0.05", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    import jax
    import jax.numpy as jnp

    def loss(image: jax.Array, kernel: jax.Array, matrix: jax.Array) -> jax.Array:
        convolved = jax.lax.conv(image, kernel, (1, 1), "SAME")
        return jnp.maximum(convolved, 0).sum() + (matrix @ matrix).sum()

    arrays = jnp.ones((8, 3, 64, 64)), jnp.ones((16, 3, 3, 3)), jnp.ones((512, 512))
    jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays))
    (device,) = jax.devices("gpu")
    return {"version": jax.__version__, "reserved_bytes": device.memory_stats()["bytes_limit"]}


def use_cupy() -> dict[str, object]:
    """Use CuPy, and return its version and the memory that its pool reserves, in bytes."""
    import cupy

    matrix = cupy.random.standard_normal((512, 512), dtype=cupy.float32)
    cupy.maximum(matrix @ matrix, 0).sum()
    cupy.linalg.inv(matrix)
    cupy.fft.fft2(matrix)
    cupy.cuda.Device().synchronize()
    return {"version": cupy.__version__, "reserved_bytes": cupy.get_default_memory_pool().total_bytes()}


USES = {"torch": use_torch, "tensorflow": use_tensorflow, "jax": use_jax, "cupy": use_cupy}


if __name__ == "__main__":
    print(json.dumps(USES[sys.argv[1]]()), flush=True)
    sys.stdin.read()
