"""The workloads in EveryO: ordinary eager code, decorated."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import everyo as eo
from benchmarks.compiled import workloads as w
from everyo import nn

DEVICE = "cpu"  # set by `prepare`


def tensor(values: Any, **kwargs: Any) -> Any:
    """A tensor on the device of the run."""
    return eo.tensor(values, device=DEVICE, **kwargs)


class Step:
    """A compiled function on fixed arguments."""

    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args

    def __call__(self) -> Any:
        return self.function(*self.args)


def trained(model: Any, loss: Callable[..., Any], *inputs: Any) -> Step:
    """An Adam step of a model on fixed inputs."""
    model = model.to(DEVICE)
    if DEVICE != "cpu":
        inputs = tuple(tensor(a, dtype=a.dtype) if type(a) is np.ndarray else a for a in inputs)
    optimizer = eo.optim.Adam(model.parameters(), lr=w.LEARNING_RATE)

    @eo.compile
    def step(*given: Any) -> Any:
        optimizer.zero_grad()
        value = loss(model, *given)
        value.backward()
        optimizer.step()
        return value

    return Step(step, inputs)


def derived(loss: Callable[..., Any], *variables: Any) -> Step:
    """The value and the gradients of a function of some tensors."""

    @eo.compile
    def step(*given: Any) -> Any:
        for v in given:
            v.grad = None
        value = loss(*given)
        value.backward()
        return value

    return Step(step, variables)


def mlp(name: str) -> Step:
    batch, parameters = w.mlp(name)
    layers: list[Any] = []
    for i in range(0, len(parameters), 2):
        layer = nn.Linear(*parameters[i].shape)
        layer.weight.data[...] = parameters[i]
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    criterion = nn.CrossEntropyLoss()
    return trained(model, lambda m, x, y: criterion(m(x), y), tensor(batch.x), batch.y)


def gelu(name: str) -> Step:
    x = tensor(w.uniform(w.GELUS[name]), requires_grad=True)
    return derived(lambda x: eo.gelu(x, approximate="tanh").sum(), x)


def cross_entropy(name: str) -> Step:
    x = tensor(w.uniform(*w.ROWS[name]), requires_grad=True)
    y = w.labels(w.ROWS[name][1], w.ROWS[name][0])
    return derived(lambda x: nn.cross_entropy(x, y), x)


def layer_norm(name: str) -> Step:
    n, d = w.ROWS[name]
    x = tensor(w.uniform(n, d), requires_grad=True)
    layer = nn.LayerNorm(d).to(DEVICE)

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return layer(x).square().sum()

    return derived(loss, x, layer.weight, layer.bias)


def pendulum(name: str) -> Step:
    p = tensor(np.array([1.0, 0.1, 9.8], np.float32), requires_grad=True)

    def angle(p: Any) -> Any:
        theta, omega = tensor(1.0), tensor(0.0)
        for _ in range(w.PENDULUM[name]):
            omega = omega + 0.01 * (-p[2] / p[0] * eo.sin(theta) - p[1] * omega)
            theta = theta + 0.01 * omega
        return theta * theta

    return derived(angle, p)


def cnn(name: str) -> Step:
    model = nn.Sequential(
        nn.Conv2D(1, 8, 3, padding="same"), nn.ReLU(), nn.MaxPool2D(2),
        nn.Conv2D(8, 16, 3, padding="same"), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    return trained(
        model,
        lambda m, x, y: criterion(m(x), y),
        tensor(w.uniform(64, 8, 8, 1)),
        w.labels(10, 64),
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2D(64, 64, 3, padding="same")
        self.b = nn.Conv2D(64, 64, 3, padding="same")

    def forward(self, x: Any) -> Any:
        return eo.relu(x + self.b(eo.relu(self.a(x))))


def residual(name: str) -> Step:
    return trained(Residual(), lambda m, x: m(x).square().mean(), tensor(w.uniform(8, 28, 28, 64)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, mask: Any) -> Any:
        b, t, d = x.shape
        qkv = (
            self.qkv(self.norm_1(x))
            .reshape(b, t, 3, self.heads, d // self.heads)
            .transpose(2, 0, 3, 1, 4)
        )
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = q @ k.transpose(0, 1, 3, 2) * (1 / math.sqrt(d // self.heads)) + mask
        a = eo.softmax(scores, axis=-1) @ v
        x = x + self.out(a.transpose(0, 2, 1, 3).reshape(b, t, d))
        return x + self.down(eo.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, time: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(w.VOCABULARY, width)
        self.positions = nn.Parameter(np.zeros((time, width), np.float32))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, w.VOCABULARY, bias=False)
        self.mask = np.triu(np.full((time, time), -1e9, np.float32), 1)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def gpt(name: str) -> Step:
    batch, time, *rest = w.GPTS[name]
    ids = w.labels(w.VOCABULARY, batch, time)

    def loss(model: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x).reshape(-1, w.VOCABULARY), y)

    return trained(GPT(time, *rest), loss, ids, ids.reshape(-1))


def pinn(name: str) -> Step:
    model = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )

    def loss(m: Any, x: Any) -> Any:
        u, pullback = eo.vjp(m, x)
        g = pullback(np.ones(u.shape, np.float32))[0]
        gx = eo.grad(lambda x: eo.vjp(m, x)[1](np.ones(u.shape, np.float32))[0][:, 0].sum())(x)[
            :, 0
        ]
        return (g[:, 1] + u[:, 0] * g[:, 0] - 0.01 * gx).square().mean()

    return trained(model, loss, tensor(w.uniform(256, 2)))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, return_sequences=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x))


def lstm(name: str) -> Step:
    criterion = nn.CrossEntropyLoss()
    return trained(
        Sequence(),
        lambda m, x, y: criterion(m(x), y),
        tensor(w.uniform(32, 24, 16)),
        w.labels(10, 32),
    )


def softmax(values: Any) -> list[Any]:
    """The softmax of scalars, each a tensor of its own."""
    a, b, c, d = values
    largest = eo.maximum(eo.maximum(a, b), eo.maximum(c, d)).detach()
    powers = [eo.exp(v - largest) for v in values]
    total = powers[0] + powers[1] + powers[2] + powers[3]
    return [p / total for p in powers]


def article(name: str) -> Step:
    inputs = [tensor(v, requires_grad=True) for v in w.uniform(100)]
    return derived(lambda *x: w.article(x, w.ARTICLES[name], eo.softplus, softmax), *inputs)


MAKERS: dict[str, Callable[[str], Step]] = {
    **dict.fromkeys(w.MLPS, mlp), **dict.fromkeys(w.GELUS, gelu), "cross-entropy": cross_entropy,
    "layer-norm": layer_norm, "pendulum": pendulum, "cnn": cnn, "residual": residual,
    **dict.fromkeys(w.GPTS, gpt), "pinn": pinn, "lstm": lstm,
    **dict.fromkeys(w.ARTICLES, article),
}  # fmt: skip


def prepare(threads: int, device: str) -> None:
    """Choose threads and device."""
    global DEVICE
    DEVICE = device
    eo.set_num_threads(threads)


def products(step: Step) -> float:
    """Seconds that the matrix products of a step take alone, at the rate of a large product."""
    rows = step.function.explain(*step.args).rows
    flops = sum(row.flops for row in rows if row.name.startswith(("matmul", "convolution")))
    if not flops:
        return 0.0
    n = 1024
    a, out = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        times.append(time.perf_counter() - start)
    return flops * min(times) / (2 * n**3)


def wait(result: Any) -> Any:
    if DEVICE != "cpu":
        eo.cuda.backend().runtime(0).synchronize()
    return result


def make(name: str) -> Step | None:
    return MAKERS[name](name)
