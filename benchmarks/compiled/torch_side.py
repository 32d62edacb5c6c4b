"""The workloads in PyTorch, eager or through torch.compile."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.compiled import workloads as w

COMPILED = False  # set by the runner for the side "torch.compile"
DEVICE = "cpu"  # set by `prepare`

Step = Callable[[], Any]


def tensor(a: Any) -> torch.Tensor:
    return torch.from_numpy(a).to(DEVICE)


def trained(model: nn.Module, loss: Callable[..., Any], *inputs: torch.Tensor) -> Step:
    how = {"foreach": True} if DEVICE == "cpu" else {"fused": True}
    optimizer = torch.optim.Adam(model.parameters(), w.LEARNING_RATE, **how)

    def run(*given: torch.Tensor) -> torch.Tensor:
        return loss(model, *given)

    update = optimizer.step
    if COMPILED:
        torch._dynamo.reset()
        run, update = torch.compile(run), torch.compile(optimizer.step)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = run(*inputs)
        value.backward()
        update()
        return value

    return step


def derived(loss: Callable[..., Any], *variables: torch.Tensor) -> Step:
    for v in variables:
        v.requires_grad_()
    if COMPILED:
        torch._dynamo.reset()
        loss = torch.compile(loss)

    def step() -> torch.Tensor:
        for v in variables:
            v.grad = None
        value = loss(*variables)
        value.backward()
        return value

    return step


def mlp(name: str) -> Step:
    batch, parameters = w.mlp(name)
    layers: list[nn.Module] = []
    for i in range(0, len(parameters), 2):
        layer = nn.Linear(*parameters[i].shape)
        with torch.no_grad():
            layer.weight.copy_(tensor(parameters[i]).T)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    return trained(
        model, lambda m, x, y: F.cross_entropy(m(x), y), tensor(batch.x), tensor(batch.y)
    )


def gelu(name: str) -> Step:
    return derived(lambda x: F.gelu(x, approximate="tanh").sum(), tensor(w.uniform(w.GELUS[name])))


def cross_entropy(name: str) -> Step:
    y = tensor(w.labels(w.ROWS[name][1], w.ROWS[name][0]))
    return derived(lambda x: F.cross_entropy(x, y), tensor(w.uniform(*w.ROWS[name])))


def layer_norm(name: str) -> Step:
    n, d = w.ROWS[name]

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(x, (d,), weight, bias).square().sum()

    return derived(loss, tensor(w.uniform(n, d)), torch.ones(d), torch.zeros(d))


def pendulum(name: str) -> Step:
    def angle(p: Any) -> Any:
        theta, omega = torch.tensor(1.0), torch.tensor(0.0)
        for _ in range(w.PENDULUM[name]):
            omega = omega + 0.01 * (-p[2] / p[0] * torch.sin(theta) - p[1] * omega)
            theta = theta + 0.01 * omega
        return theta * theta

    return derived(angle, torch.tensor([1.0, 0.1, 9.8]))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.b(x)), 2).flatten(1))


def cnn(name: str) -> Step:
    x, y = tensor(w.uniform(64, 1, 8, 8)), tensor(w.labels(10, 64))
    return trained(CNN(), lambda m, x, y: F.cross_entropy(m(x), y), x, y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.b(F.relu(self.a(x))))


def residual(name: str) -> Step:
    return trained(Residual(), lambda m, x: m(x).square().mean(), tensor(w.uniform(8, 64, 28, 28)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, time: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(w.VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, w.VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(name: str) -> Step:
    batch, time, *rest = w.GPTS[name]
    ids = tensor(w.labels(w.VOCABULARY, batch, time))

    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).view(-1, w.VOCABULARY), y)

    return trained(GPT(time, *rest), loss, ids, ids.reshape(-1))


def pinn(name: str) -> Step | None:
    if COMPILED:
        return None  # torch.compile does not take gradients of gradients
    model = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )

    def loss(m: Any, x: Any) -> Any:
        x = x.requires_grad_()
        u = m(x)
        g = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        gx = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)[0][:, 0]
        return (g[:, 1] + u[:, 0] * g[:, 0] - 0.01 * gx).square().mean()

    return trained(model, loss, tensor(w.uniform(256, 2)))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(name: str) -> Step | None:
    if COMPILED:
        return None  # torch.compile leaves recurrent layers to eager mode
    x, y = tensor(w.uniform(32, 24, 16)), tensor(w.labels(10, 32))
    return trained(Sequence(), lambda m, x, y: F.cross_entropy(m(x), y), x, y)


def article(name: str) -> Step | None:
    if COMPILED:
        return None  # minutes to compile
    inputs = [torch.tensor(v) for v in w.uniform(100)]

    def softmax(values: Any) -> Any:
        return torch.softmax(torch.stack(values), 0).unbind()

    return derived(lambda *x: w.article(x, w.ARTICLES[name], F.softplus, softmax), *inputs)


MAKERS: dict[str, Callable[[str], Step | None]] = {
    **dict.fromkeys(w.MLPS, mlp), **dict.fromkeys(w.GELUS, gelu), "cross-entropy": cross_entropy,
    "layer-norm": layer_norm, "pendulum": pendulum, "cnn": cnn, "residual": residual,
    **dict.fromkeys(w.GPTS, gpt), "pinn": pinn, "lstm": lstm,
    **dict.fromkeys(w.ARTICLES, article),
}  # fmt: skip


def prepare(threads: int, device: str) -> None:
    """Choose threads and device; products of float32 are full float32 by default."""
    global DEVICE
    DEVICE = device
    torch.set_num_threads(threads)


def wait(result: Any) -> Any:
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return result


def make(name: str) -> Step | None:
    with torch.device(DEVICE):
        return MAKERS[name](name)
