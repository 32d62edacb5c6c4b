"""The workloads in JAX: jitted, state donated."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compiled import workloads as w

Step = Callable[[], Any]
tree = jax.tree_util.tree_map


def trained(parameters: Any, loss: Callable[..., Any], *inputs: Any) -> Step:
    @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def update(p: Any, m: Any, v: Any, t: Any, *given: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, *given)
        t = t + 1
        m = tree(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = tree(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        a, b = 1 - 0.9**t, 1 - 0.999**t
        p = tree(lambda x, y, z: x - w.LEARNING_RATE * (y / a) / (jnp.sqrt(z / b) + 1e-8), p, m, v)
        return p, m, v, t, value

    state = [
        parameters,
        tree(jnp.zeros_like, parameters),
        tree(jnp.zeros_like, parameters),
        jnp.float32(0),
    ]

    def step() -> Any:
        *state[:], value = update(*state, *inputs)
        return value

    return step


def derived(loss: Callable[..., Any], *variables: Any) -> Step:
    both = jax.jit(jax.value_and_grad(loss, tuple(range(len(variables)))))
    return lambda: both(*variables)


def entropy(z: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1))


def mlp(name: str) -> Step:
    batch, parameters = w.mlp(name)

    def loss(p: Any, x: Any, y: Any) -> Any:
        for i in range(0, len(p), 2):
            x = x @ p[i] + p[i + 1]
            if i < len(p) - 2:
                x = jax.nn.relu(x)
        return entropy(x, y)

    return trained(
        [jnp.asarray(p) for p in parameters], loss, jnp.asarray(batch.x), jnp.asarray(batch.y)
    )


def gelu(name: str) -> Step:
    return derived(
        lambda x: jax.nn.gelu(x, approximate=True).sum(), jnp.asarray(w.uniform(w.GELUS[name]))
    )


def cross_entropy(name: str) -> Step:
    y = jnp.asarray(w.labels(w.ROWS[name][1], w.ROWS[name][0]))
    return derived(lambda x: entropy(x, y), jnp.asarray(w.uniform(*w.ROWS[name])))


def norm(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * weight + bias


def layer_norm(name: str) -> Step:
    n, d = w.ROWS[name]
    return derived(
        lambda x, a, b: (norm(x, a, b) ** 2).sum(),
        jnp.asarray(w.uniform(n, d)),
        jnp.ones(d),
        jnp.zeros(d),
    )


def pendulum(name: str) -> Step:
    def angle(p: Any) -> Any:
        theta, omega = jnp.float32(1.0), jnp.float32(0.0)
        for _ in range(w.PENDULUM[name]):
            omega = omega + 0.01 * (-p[2] / p[0] * jnp.sin(theta) - p[1] * omega)
            theta = theta + 0.01 * omega
        return theta * theta

    return derived(angle, jnp.asarray([1.0, 0.1, 9.8]))


def conv(x: Any, weight: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [jnp.asarray(w.normal(*s, seed=i)) for i, s in enumerate(shapes)]


def cnn(name: str) -> Step:
    def loss(p: Any, x: Any, y: Any) -> Any:
        x = pool(jax.nn.relu(conv(x, p[0]) + p[1]))
        x = pool(jax.nn.relu(conv(x, p[2]) + p[3]))
        return entropy(x.reshape(64, -1) @ p[4] + p[5], y)

    parameters = arrays((3, 3, 1, 8), (8,), (3, 3, 8, 16), (16,), (64, 10), (10,))
    return trained(
        parameters, loss, jnp.asarray(w.uniform(64, 8, 8, 1)), jnp.asarray(w.labels(10, 64))
    )


def residual(name: str) -> Step:
    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(jax.nn.relu(x + conv(jax.nn.relu(conv(x, p[0]) + p[1]), p[2]) + p[3]) ** 2)

    parameters = arrays((3, 3, 64, 64), (64,), (3, 3, 64, 64), (64,))
    return trained(parameters, loss, jnp.asarray(w.uniform(8, 28, 28, 64)))


def gpt(name: str) -> Step:
    batch, time, d, heads, layers = w.GPTS[name]
    mask = jnp.tril(jnp.ones((time, time), bool))

    def affine(n: int, m: int) -> tuple[Any, Any]:
        return jnp.asarray(w.normal(n, m)), jnp.zeros(m)

    def block() -> dict[str, Any]:
        scale = (jnp.ones(d), jnp.zeros(d))
        return {"n1": scale, "n2": tree(jnp.copy, scale), "qkv": affine(d, 3 * d),
                "out": affine(d, d), "up": affine(d, 4 * d), "down": affine(4 * d, d)}  # fmt: skip

    parameters = {
        "tokens": jnp.asarray(w.normal(w.VOCABULARY, d)), "positions": jnp.zeros((time, d)),
        "norm": (jnp.ones(d), jnp.zeros(d)), "head": jnp.asarray(w.normal(d, w.VOCABULARY)),
        "blocks": [block() for _ in range(layers)],
    }  # fmt: skip

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = p["tokens"][x] + p["positions"]
        for b in p["blocks"]:
            qkv = norm(x, *b["n1"]) @ b["qkv"][0] + b["qkv"][1]
            q, k, v = qkv.reshape(batch, time, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
            a = (
                jax.nn.softmax(jnp.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(d // heads), -1e9))
                @ v
            )
            x = x + a.transpose(0, 2, 1, 3).reshape(batch, time, d) @ b["out"][0] + b["out"][1]
            h = jax.nn.gelu(norm(x, *b["n2"]) @ b["up"][0] + b["up"][1], approximate=True)
            x = x + h @ b["down"][0] + b["down"][1]
        return entropy((norm(x, *p["norm"]) @ p["head"]).reshape(-1, w.VOCABULARY), y)

    ids = jnp.asarray(w.labels(w.VOCABULARY, batch, time))
    return trained(parameters, loss, ids, ids.reshape(-1))


def pinn(name: str) -> Step:
    def net(p: Any, x: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3]) @ p[4] + p[5])[0]

    def loss(p: Any, points: Any) -> Any:
        def residue(x: Any) -> Any:
            g, h = jax.grad(net, 1)(p, x), jax.hessian(net, 1)(p, x)
            return g[1] + net(p, x) * g[0] - 0.01 * h[0, 0]

        return jnp.mean(jax.vmap(residue)(points) ** 2)

    parameters = arrays((2, 32), (32,), (32, 32), (32,), (32, 1), (1,))
    return trained(parameters, loss, jnp.asarray(w.uniform(256, 2)))


def lstm(name: str) -> Step:
    def loss(p: Any, x: Any, y: Any) -> Any:
        def cell(state: Any, now: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(now @ p[0] + h @ p[1] + p[2], 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((32, 32))
        (h, _), _ = jax.lax.scan(cell, (zero, zero), x.transpose(1, 0, 2))
        return entropy(h @ p[3] + p[4], y)

    parameters = arrays((16, 128), (32, 128), (128,), (32, 10), (10,))
    return trained(
        parameters, loss, jnp.asarray(w.uniform(32, 24, 16)), jnp.asarray(w.labels(10, 32))
    )


def article(name: str) -> Step | None:
    return None  # a minute to compile for every thousand operations


MAKERS: dict[str, Callable[[str], Step | None]] = {
    **dict.fromkeys(w.MLPS, mlp), **dict.fromkeys(w.GELUS, gelu), "cross-entropy": cross_entropy,
    "layer-norm": layer_norm, "pendulum": pendulum, "cnn": cnn, "residual": residual,
    **dict.fromkeys(w.GPTS, gpt), "pinn": pinn, "lstm": lstm,
    **dict.fromkeys(w.ARTICLES, article),
}  # fmt: skip


def prepare(threads: int, device: str) -> None:
    """JAX takes its number of threads from the affinity of the process, which the runner sets.
    On a GPU its products of float32 are full float32 only if asked."""
    if device != "cpu":
        jax.config.update("jax_default_matmul_precision", "float32")
        jax.config.update("jax_platforms", device)


def wait(result: Any) -> Any:
    return jax.block_until_ready(result)


def make(name: str) -> Step | None:
    return MAKERS[name](name)
