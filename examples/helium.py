"""The helium atom by variational Monte Carlo: its energy with an error bar, the energy's gradient,
and better parameters.

    python examples/helium.py
    python examples/helium.py --samples 1000000 --final 100000000 --picture helium.png

In atomic units, with the electrons' distances r₁, r₂ from the nucleus and r₁₂ from each other,

    H = −½∇₁² − ½∇₂² − 2/r₁ − 2/r₂ + 1/r₁₂,  s = r₁ + r₂,  t = r₁ − r₂,  u = r₁₂
    ψ = exp(−ζ s) (1 + c₁ u + c₂ t² + c₃ u² + c₄ s² u + c₅ s³ u)

ψ is the best function of six terms of E. Hylleraas's kind: T. Koga, Journal of Chemical Physics 96
(1992), with the energy −2.903452763. The term c₁ u gives it a cusp where the electrons meet. The
exact energy is −2.903724377: C. Pekeris, Physical Review 115 (1959). What ψ cannot reach, 0.00027,
is the bias of the result; the error bar does not contain it.

A row is a sample of |ψ|², and its values are the local energy E_L = Hψ/ψ and O_k = ∂ ln ψ/∂p_k for
the six parameters p. Of one pass, their mean and covariance are all that is needed: the energy is
<E_L>, its gradient 2 cov(E_L, O_k), and

    p ← p − step · S⁻¹ cov(O, E_L),  S = cov(O, O)

goes downhill in the metric of the functions ψ themselves: S. Sorella, Physical Review Letters 80
(1998), stochastic reconfiguration. Among functions of this form, it is a step of exp(−step · H),
which leads to the ground state.

Samples are exact and independent, so the error bar is the textbook's, without a warm-up or a
correlation time: r₁ and r₂ are drawn from Gamma distributions, the cosine between them uniformly,
and a point is accepted with probability |ψ|²/(M q), where q is the density drawn from and M has a
closed form. docs/quantum-monte-carlo.md gives the reasons, and Metropolis's method, which more
electrons need. Random numbers are keyed by seed and row, and rows are summed in shards, so results
are the same on any number of ranks.

Results are compared with closed forms, with Gauss's quadrature, with NumPy, and with Koga's energy.
The picture needs
matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

Z = 2.0  # charge of the nucleus
EXACT, KOGA = -2.903724377, -2.903452763  # hartree
# the best product of two functions; C. Froese Fischer, "The Hartree-Fock Method for Atoms" (1977)
HARTREE_FOCK = -2.861680
SCREENED = Z - 5 / 16  # the best ζ of exp(−ζ s), whose energy is ζ² − 2Zζ + 5ζ/8
# of ζ, in the density drawn from: 30 % of the points are accepted for the best ψ; with 0.65 18 %,
# with 0.8 14 %
WIDTH = 0.72
# hartree⁻¹. Near the minimum a step multiplies errors by 1 − STEP · λ, for λ from 1.1 to 12.0
# hartree
STEP = 0.12
# samples of a check, and how many checks give the error bar of the gradient
CHECKED, RUNS = (
    20_000,
    12,
)
SHARDS = 24  # even parts for 1, 2, 3, 4, 6, 8, 12 and 24 ranks


@cuda.jit(device=True)
def draw_point(seed, i, attempt, rate):
    """Draws a point: r₁ and r₂ with density ½ rate³ r² exp(−rate r), and 1 − cos ϑ in (0, 2]
    uniformly.

    Args:
        seed: int; the random stream.
        i: int; the row.
        attempt: int; the number of points drawn before for this row.
        rate: float, 1/bohr.

    Returns:
        r₁, r₂, 1 − cos ϑ, and a number in [0, 1) to accept the point with.
    """
    a, b = synk.random.uniform2(seed, i, 4 * attempt)
    c, d = synk.random.uniform2(seed, i, 4 * attempt + 1)
    e, f = synk.random.uniform2(seed, i, 4 * attempt + 2)
    g, h = synk.random.uniform2(seed, i, 4 * attempt + 3)
    first = -math.log((1 - a) * (1 - b) * (1 - c)) / rate
    second = -math.log((1 - d) * (1 - e) * (1 - f)) / rate
    return first, second, 2 * (1 - g), h


@cuda.jit(device=True)
def polynomial(s, t, u, p):
    """Returns ψ exp(ζ s)."""
    return 1 + u * (p[1] + s * s * (p[4] + p[5] * s)) + p[2] * t * t + p[3] * u * u


@cuda.jit(device=True)
def local_energy(a, b, y, u, value, p):
    """Returns Hψ/ψ.

    The Laplacians of a function f(s, t, u) are those of Hylleraas, with u² − t² = 2 r₁ r₂ y and s²
    − u² = 2 r₁ r₂ (2 − y):

        ½∇₁² + ½∇₂² = f_ss + f_tt + f_uu + f_su s y/u + f_tu t (2 − y)/u + (s f_s − t f_t)/(r₁ r₂) +
        2 f_u/u

    Args:
        a: r₁; float, bohr.
        b: r₂; float, bohr.
        y: 1 − cos ϑ.
        u: r₁₂; float, bohr.
        value: the polynomial of ψ at this point.
        p: as for `sample`.
    """
    zeta, s, t = p[0], a + b, a - b
    by_s = (2 * p[4] + 3 * p[5] * s) * s * u  # derivatives of the polynomial
    by_u = p[1] + 2 * p[3] * u + (p[4] + p[5] * s) * s * s
    by_ss = (2 * p[4] + 6 * p[5] * s) * u
    by_su = (2 * p[4] + 3 * p[5] * s) * s
    second = by_ss - 2 * zeta * by_s + zeta * zeta * value + 2 * p[2] + 2 * p[3]
    mixed = (by_su - zeta * by_u) * s * y / u
    first = (s * (by_s - zeta * value) - 2 * p[2] * t * t) / (a * b) + 2 * by_u / u
    return -(second + mixed + first) / value - Z * s / (a * b) + 1 / u


@synk.expectation(covariance=True, broadcast=("p",))
def sample(i, seed, p):
    """Draws a sample of |ψ|², and returns its local energy, and the derivatives of ln ψ by ζ, c₁,
    …, c₅.

    Args:
        i: `synk.arange`; the row.
        seed: int; the random stream.
        p: float64, shape (8,): ζ, c₁, …, c₅, the rate of `draw_point`, and the bound of `bound`.
    """
    attempt = 0
    while True:
        a, b, y, chance = draw_point(seed, i, attempt, p[6])
        s, t = a + b, a - b
        u = math.sqrt(t * t + 2 * a * b * y)
        value = polynomial(s, t, u, p)
        if chance * p[7] < (value * math.exp((0.5 * p[6] - p[0]) * s)) ** 2:
            break
        attempt += 1
    energy = local_energy(a, b, y, u, value, p)
    return energy, -s, u / value, t * t / value, u * u / value, s * s * u / value, s**3 * u / value


def first(values: np.ndarray) -> float:
    """Returns the energy of the values of a sample."""
    return values[0]


def bound(parameters: np.ndarray, rate: float) -> float:
    """Returns M, a bound of (polynomial · exp(−δ s))² for δ = ζ − rate/2.

    As |t| ≤ u ≤ s, the polynomial is at most one in s with the coefficients' absolute values. Its
    product with exp(−δ s) is largest at 0, or where its derivative vanishes.
    """
    _, one, two, three, four, five = abs(parameters)
    upper = np.polynomial.Polynomial([1, one, two + three, four, five])
    delta = parameters[0] - rate / 2
    roots = (upper.deriv() - delta * upper).roots()
    candidates = np.append(roots.real[(abs(roots.imag) < 1e-6) & (roots.real > 0)], 0.0)
    return (1 + 1e-6) * (upper(candidates) * np.exp(-delta * candidates)).max() ** 2


def estimate(parameters: np.ndarray, samples: int, seed: int) -> synk.Estimate:
    """Returns the estimate of local energy and derivatives.

    Args:
        parameters: ζ, c₁, …, c₅.
        samples: number of rows.
        seed: the random stream.
    """
    rate = 2 * WIDTH * parameters[0]
    return sample(
        synk.arange(samples),
        seed,
        np.append(parameters, [rate, bound(parameters, rate)]),
        shards=SHARDS,
    )


def improved(parameters: np.ndarray, found: synk.Estimate) -> np.ndarray:
    """Returns the parameters after a step of stochastic reconfiguration."""
    covariance = found.covariance
    return parameters - STEP * np.linalg.solve(covariance[1:, 1:], covariance[1:, 0])


def optimise(samples: int, iterations: int, seed: int) -> tuple[np.ndarray, list[synk.Estimate]]:
    """Returns the parameters of each iteration, shape (iterations + 1, 6), and their estimates.

    Each iteration has its own seed: its parameters come from other samples than its energy, which
    is therefore unbiased.
    """
    parameters, found = [np.array([SCREENED, 0, 0, 0, 0, 0])], []
    for iteration in range(iterations):
        found.append(estimate(parameters[-1], samples, seed + iteration))
        parameters.append(improved(parameters[-1], found[-1]))
    return np.array(parameters), found


def integrated_energy(parameters: np.ndarray) -> float:
    """Returns <ψ|H|ψ>/<ψ|ψ> by Gauss's quadrature, which is exact for polynomials times exp(−2ζ s).

    With the volume element u (s² − t²) ds dt du on 0 ≤ t ≤ u ≤ s and derivatives of first order
    only, so independent of `local_energy`: E. Hylleraas, Zeitschrift für Physik 54 (1929).
    """
    zeta, c1, c2, c3, c4, c5 = parameters
    x, along = np.polynomial.laguerre.laggauss(12)
    y, across = np.polynomial.legendre.leggauss(12)
    s, ratio, other = np.meshgrid(x / (2 * zeta), (y + 1) / 2, (y + 1) / 2, indexing="ij")
    u, t = s * ratio, s * ratio * other
    weight = np.einsum("i,j,k->ijk", along, across, across) * s * u
    f = polynomial.py_func(s, t, u, parameters)
    f_s = (2 * c4 * s + 3 * c5 * s**2) * u - zeta * f
    f_t = 2 * c2 * t
    f_u = c1 + 2 * c3 * u + (c4 + c5 * s) * s**2
    kinetic = u * (s**2 - t**2) * (f_s**2 + f_t**2 + f_u**2)
    kinetic += 2 * s * (u**2 - t**2) * f_s * f_u + 2 * t * (s**2 - u**2) * f_t * f_u
    potential = (s**2 - t**2 - 4 * Z * s * u) * f**2
    return (weight * (kinetic + potential)).sum() / (weight * u * (s**2 - t**2) * f**2).sum()


def sample_with_numpy(samples: int, seed: int, p: np.ndarray) -> np.ndarray:
    """Returns what `sample` does for each row, shape (samples, 7), computed with NumPy."""
    values, left, attempt = np.empty((samples, 7)), np.arange(samples), 0
    while len(left):
        pairs = [synk.random.uniform2(seed, left, 4 * attempt + k) for k in range(4)]
        one, two, three, four, five, six, angle, chance = (
            number for pair in pairs for number in pair
        )
        a = -np.log((1 - one) * (1 - two) * (1 - three)) / p[6]
        b = -np.log((1 - four) * (1 - five) * (1 - six)) / p[6]
        s, t, y = a + b, a - b, 2 * (1 - angle)
        u = np.sqrt(t * t + 2 * a * b * y)
        value = polynomial.py_func(s, t, u, p)
        energy = local_energy.py_func(a, b, y, u, value, p)
        found = np.stack(
            [
                energy,
                -s,
                u / value,
                t * t / value,
                u * u / value,
                s * s * u / value,
                s**3 * u / value,
            ],
            axis=1,
        )
        accepted = chance * p[7] < (value * np.exp((0.5 * p[6] - p[0]) * s)) ** 2
        values[left[accepted]] = found[accepted]
        left, attempt = left[~accepted], attempt + 1
    return values


def check(samples: int, seed: int) -> None:
    """Checks samples against NumPy's, and energies and gradients against closed forms and
    quadrature.
    """
    general = np.array([1.8, 0.3, 0.1, -0.05, 0.02, -0.002])
    rate = 2 * WIDTH * general[0]
    values = sample_with_numpy(1000, seed, np.append(general, [rate, bound(general, rate)]))
    found = estimate(general, 1000, seed)
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.covariance, np.cov(values, rowvar=False), rtol=1e-7, atol=1e-9)

    shifts = 1e-5 * np.eye(6)
    slopes = [
        (integrated_energy(general + shift) - integrated_energy(general - shift)) / 2e-5
        for shift in shifts
    ]
    cases = [(general, integrated_energy(general), slopes)]
    for zeta in (1.5, SCREENED, 2.0):
        parameters, energy = np.array([zeta, 0, 0, 0, 0, 0]), zeta**2 - (2 * Z - 5 / 8) * zeta
        np.testing.assert_allclose(integrated_energy(parameters), energy, rtol=1e-12)
        cases.append((parameters, energy, [2 * zeta - (2 * Z - 5 / 8)]))
    for parameters, energy, slopes in cases:
        runs = [estimate(parameters, samples, seed + run) for run in range(RUNS)]
        whole, gradients = sum(runs), np.array([2 * run.covariance[0, 1:] for run in runs])
        compared("the energy", whole.mean[0], whole.stderr[0], energy)
        for k, slope in enumerate(slopes):
            gradient = synk.Estimate.from_values(gradients[:, k])
            compared(f"component {k} of the gradient", gradient.mean, gradient.stderr, slope)


def compared(name: str, mean: float, stderr: float, expected: float) -> None:
    """Raises `AssertionError` if a mean is further from what is expected than chance allows."""
    deviation = (mean - expected) / stderr
    assert abs(deviation) < 5, (
        f"{name} {mean:.6f} ± {stderr:.6f} is {deviation:.1f} standard errors from {expected:.6f}"
    )


def draw(found: list[synk.Estimate], integrated: np.ndarray, file: str) -> None:
    """Plots the energy of each iteration with its error bar, and below its distance from the
    least of this ψ.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    means, errors = (
        np.array([getattr(one, name)[0] for one in found]) for name in ("mean", "stderr")
    )
    iterations = np.arange(len(found))
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 7), layout="constrained")
    above.errorbar(
        iterations,
        means,
        errors,
        fmt="o",
        markersize=3,
        capsize=2,
        label="sampled, ± standard error",
    )
    for energy, label, style in (
        (HARTREE_FOCK, "Hartree and Fock", ":"),
        (KOGA, "the best ψ", "--"),
        (EXACT, "exact", "-"),
    ):
        above.axhline(energy, color="black", linestyle=style, linewidth=1, label=label)
    above.set(
        ylabel="energy / hartree",
        ylim=(EXACT - 0.003, HARTREE_FOCK + 0.016),
        title="The helium atom",
    )
    above.legend()
    below.semilogy(
        iterations,
        integrated[:-1] - KOGA,
        "o-",
        markersize=3,
        label="energy of the parameters, by quadrature",
    )
    below.semilogy(
        iterations, errors, "x", markersize=3, label="standard error of the sampled energy"
    )
    below.axhline(KOGA - EXACT, color="black", linewidth=1, label="bias of the best ψ")
    below.set(xlabel="iteration", ylabel="above the best ψ / hartree")
    below.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Optimises, and compares the energy with Koga's and the exact one."""
    parser = argparse.ArgumentParser(description="The helium atom by variational Monte Carlo.")
    parser.add_argument(
        "--samples", type=int, default=100_000, help="of each iteration (default: 100,000)"
    )
    parser.add_argument(
        "--iterations", type=int, default=40, help="steps of the parameters (default: 40)"
    )
    parser.add_argument(
        "--final",
        type=int,
        default=4_000_000,
        help="samples of the final energy (default: 4,000,000)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as helium.png"
    )
    args = parser.parse_args()
    if args.samples < 2000 or args.iterations < 20 or args.final < 2000:
        parser.error("--samples and --final must be at least 2000, and --iterations at least 20")

    with synk.fork(args.ranks, device=args.device) as world:
        check(min(args.samples, CHECKED), args.seed + args.iterations + 1)
        began = time.perf_counter()
        parameters, found = optimise(args.samples, args.iterations, args.seed)
        middle = time.perf_counter()
        final = estimate(parameters[-1], args.final, args.seed + args.iterations)
        ended = time.perf_counter()
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    integrated = np.array([integrated_energy(one) for one in parameters])
    print(
        f"{args.iterations} iterations of {args.samples:,} samples on {where} in "
        f"{middle - began:.2f} s: ",
        end="",
    )
    print(f"{(middle - began) / args.iterations * 1e3:.2f} ms each")
    print(
        f"{args.final:,} samples at the end in {ended - middle:.2f} s: "
        f"{args.final / (ended - middle):.2e} a second"
    )
    print("\niteration  energy          |gradient|   by quadrature")
    for k, one in enumerate(found):
        if k % 5 == 0:
            gradient = 2 * np.linalg.norm(one.covariance[0, 1:])
            print(f"{k:9d}  {one.propagate(first)!s:<14}  {gradient:10.4f}   {integrated[k]:.6f}")
    print("\nζ, c₁ … c₅:", " ".join(f"{one:.4f}" for one in parameters[-1]))
    print(f"energy        {final.propagate(first)}")
    print(
        f"  quadrature  {integrated[-1]:.6f}, "
        f"{(final.mean[0] - integrated[-1]) / final.stderr[0]:+.1f} standard errors off"
    )
    print(f"  best of ψ   {KOGA:.6f}, Koga's")
    print(f"  exact       {EXACT:.6f}, Pekeris's: {EXACT - KOGA:+.6f} from that, the bias of ψ")
    compared("the energy", final.mean[0], final.stderr[0], integrated[-1])
    assert KOGA - 1e-9 < integrated[-1] < KOGA + 1e-4, "the parameters are not the best ones"
    assert EXACT - 3 * final.stderr[0] < final.mean[0] < KOGA + 1e-4 + 3 * final.stderr[0], (
        "the energy is not helium's"
    )
    print("energy, gradients and parameters agree with the closed forms")
    if args.picture:
        draw(found, integrated, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
