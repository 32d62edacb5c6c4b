"""A network that solves a differential equation: Burgers' equation, whose steep wave is known.

    u_t + u u_x = v u_xx,  -1 <= x <= 1,  0 <= t <= 1,   u = (1 - tanh((x + 1/4 - t/2) / (4 v))) / 2

The network u(x, t) is never shown the solution between the edges: it is trained until the equation
holds at random points. That takes second derivatives inside the loss, and the gradient of those by
the weights; the whole step is one compiled program. Under a minute:  python examples/pinn.py
"""

import time

import numpy as np

import everyo as eo

VISCOSITY, STEPS, POINTS = 0.05, 3000, 512


def exact(x, t):
    """The travelling wave."""
    return 0.5 * (1 - np.tanh((x + 0.25 - 0.5 * t) / (4 * VISCOSITY)))


model = eo.Sequential(
    eo.Linear(2, 32, initializer="xavier_normal", seed=0),
    eo.Tanh(),
    eo.Linear(32, 32, initializer="xavier_normal", seed=1),
    eo.Tanh(),
    eo.Linear(32, 1, initializer="xavier_normal", seed=2),
)


def u(x, t):
    """The network as a function of two arrays."""
    return model(eo.stack([x, t], axis=1))[:, 0]


def derivative(function, argument):
    """The derivative of a function of (x, t) by one of them, point by point; a function again."""
    return eo.grad(lambda x, t: function(x, t).sum(), argument)


u_x, u_t = derivative(u, 0), derivative(u, 1)
u_xx = derivative(u_x, 0)

optimizer = eo.Adam(model.parameters())


@eo.compile
def train_step(x, t, edge_x, edge_t, edge_u):
    """One step: how far the equation is from holding inside, and the values from those at edges."""
    optimizer.zero_grad()
    residual = u_t(x, t) + u(x, t) * u_x(x, t) - VISCOSITY * u_xx(x, t)
    misfit = u(edge_x, edge_t) - edge_u
    loss = residual.square().mean() + 20 * misfit.square().mean()
    loss.backward()
    optimizer.step()
    return loss


rng = np.random.default_rng(3)
began = time.perf_counter()
for step in range(1, STEPS + 1):
    optimizer.lr = 0.01 * 0.5 * (1 + np.cos(np.pi * step / STEPS)) + 1e-5
    x, t = rng.uniform(-1, 1, POINTS), rng.uniform(0, 1, POINTS)
    side = rng.integers(0, 3, 192)  # the beginning, the left and the right edge
    edge_x = np.select([side == 0, side == 1], [rng.uniform(-1, 1, 192), -1.0], 1.0)
    edge_t = np.where(side == 0, 0.0, rng.uniform(0, 1, 192))
    batch = (x, t, edge_x, edge_t, exact(edge_x, edge_t))
    loss = train_step(*(eo.tensor(part.astype(np.float32)) for part in batch))
    if step % 500 == 0:
        print(f"Step {step}/{STEPS}  loss={loss.item():.2e}  {time.perf_counter() - began:.1f} s")

grid = np.meshgrid(np.linspace(-1, 1, 101), np.linspace(0, 1, 51))
x, t = (axis.ravel().astype(np.float32) for axis in grid)
with eo.no_grad():
    found = u(eo.tensor(x), eo.tensor(t)).numpy()

print("u over x at the end, * the network, o the solution where they are apart:")
for height in np.linspace(1, 0, 11):
    end = t == 1
    by_network, known = (np.abs(v[end][::2] - height) <= 0.05 for v in (found, exact(x, t)))
    marks = np.where(by_network, "*", np.where(known, "o", " "))
    print(f"  {height:.1f} |{''.join(marks)}")

error = np.linalg.norm(found - exact(x, t)) / np.linalg.norm(exact(x, t))
print(f"Relative error {error:.2%}: the solution is met to {100 * (1 - error):.2f}%")
