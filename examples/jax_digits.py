"""
A JAX training script with optax, made distributed by two calls.

    penstock run --workers 2 examples/jax_digits.py

prints, from worker 0, an accuracy above 0.9 on handwritten digits that it has not seen.
"""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import penstock as ps


def start(key):
    one, two = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(one, (64, 64)) / 8, "b": jnp.zeros(64)},
        "out": {"w": jax.random.normal(two, (64, 10)) / 8, "b": jnp.zeros(10)},
    }


def scores(params, images):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()


def main() -> None:
    digits = load_digits()
    images, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    optimizer = optax.adam(0.01)

    @jax.jit
    def step(params, state, x, y):
        grads = ps.jax.average(jax.grad(loss)(params, x, y))
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    with ps.init() as job:
        params = ps.jax.broadcast(start(jax.random.key(job.rank)))
        state = optimizer.init(params)
        mine = slice(job.rank, 1500, job.size)  # this worker's share of the first 1500
        x, y = images[mine], labels[mine]
        for _ in range(20):
            for first in range(0, len(x), 50):
                params, state = step(params, state, x[first : first + 50], y[first : first + 50])
        if job.rank == 0:
            accuracy = (scores(params, images[1500:]).argmax(1) == labels[1500:]).mean()
            print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
