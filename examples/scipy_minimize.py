"""A likelihood fitted with SciPy: EveryO gives the value and the gradient, SciPy the minimiser.

Counts in 40 bins are Poisson: a falling exponential background under a Gaussian peak. The five
parameters are found by maximum likelihood, their errors from the Hessian, and both are compared
with the truth. Takes a second:  python examples/scipy_minimize.py
"""

import numpy as np
from scipy.optimize import minimize

import everyo as eo

TRUTH = {"background": 400.0, "slope": 0.8, "signal": 900.0, "position": 2.3, "width": 0.25}

edges = np.linspace(0.0, 5.0, 41)
centers, bin_width = (edges[:-1] + edges[1:]) / 2, edges[1] - edges[0]


def expected(theta):
    """The expected counts per bin, (40,), for the logarithms of the five parameters."""
    background, slope, signal, position, width = (eo.exp(theta[i]) for i in range(5))
    falling = background * eo.exp(-slope * centers)
    pull = (centers - position) / width
    peak = signal / (width * np.sqrt(2 * np.pi)) * eo.exp(-0.5 * pull * pull)
    return (falling + peak) * bin_width


def negative_log_likelihood(theta):
    """-log P(counts | theta), without the terms that do not depend on theta."""
    rate = expected(theta)
    return (rate - counts * eo.log(rate)).sum()


value_and_grad = eo.value_and_grad(negative_log_likelihood)


def objective(theta):
    """What SciPy wants: a float and an array of its five derivatives."""
    value, gradient = value_and_grad(eo.tensor(theta))
    return value.item(), gradient.numpy()


log_truth = np.log(list(TRUTH.values()))
counts = np.random.default_rng(7).poisson(expected(eo.tensor(log_truth)).numpy()).astype(np.float64)

start = np.log([100.0, 0.5, 100.0, 2.0, 0.5])
fit = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-4})

hessian = eo.hessian(negative_log_likelihood)(eo.tensor(fit.x)).numpy()
best = np.exp(fit.x)
errors = best * np.sqrt(np.diag(np.linalg.inv(hessian)))

print(f"{int(counts.sum())} events, {fit.nit} iterations, {fit.nfev} evaluations")
print(f"{'':12}{'truth':>10}{'fit':>10}{'error':>9}")
for name, true, value, error in zip(TRUTH, TRUTH.values(), best, errors, strict=True):
    print(f"{name:12}{true:10.3f}{value:10.3f}{error:9.3f}")

pulls = np.abs(best - list(TRUTH.values())) / errors
print(f"{(pulls < 3).sum()} of 5 parameters lie within 3 standard errors of the truth")
for center, count in zip(centers, counts, strict=True):
    print(f"{center:5.2f} {'#' * round(count / 4)}".rstrip())
