"""A power law plus white noise, fitted to mean squares in bins."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, polygamma

from headscape.tree import IntArray
from headscape.wavelets.paraproduct import FloatArray

__all__ = ["PowerLaw"]

MISFIT = 0.15
"""Spread of log2 energy that no number of coefficients averages away: keeps the finest bins from deciding alone."""
STEPS = 60
"""Steps of the fit with noise."""
FEWEST = 6
"""Bins the signal must dominate to be distinguished from noise."""


class PowerLaw:
    """Mean squares that fall with a volume: log2 energy of a bin = a + 2 sum_i alpha_i v_i, or that beside white noise.

    What is fitted are the parameters (a, alpha_1, ..), and log2 sigma^2 behind them where there is noise: then the
    energy is 2^(a + 2 sum_i alpha_i v_i) + sigma^2 noise^2. Many draws are fitted at a time, one per row.

    Parameters
    ----------
    volume
        (n_bins, n_exponents): v, the log2 of the volumes.
    n
        (n_bins,): how many squares each mean is of.
    noise
        (n_bins,): root mean square that noise of standard deviation 1 has in each bin.
    """

    def __init__(self, volume: FloatArray, n: IntArray, noise: FloatArray) -> None:
        # the log of a mean of n squares is low by this and spreads by that, for normal coefficients
        self._bias = (digamma(n / 2) - np.log(n / 2)) / np.log(2)
        self.weight = 1 / (polygamma(1, n / 2) / np.log(2) ** 2 + MISFIT**2)
        self._design = np.column_stack([np.ones(len(volume)), 2 * volume])
        self._noise = 2 * np.log2(noise)

    def _parts(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log2 energy of the signal and of the noise."""
        return parameters[:, :-1] @ self._design.T, parameters[:, -1:] + self._noise

    def signal_share(self, parameters: FloatArray) -> FloatArray:
        """Share of the signal in the energy of each bin."""
        signal, noise = self._parts(parameters)
        return np.asarray(np.exp2(signal - np.logaddexp2(signal, noise)))

    def cost(self, y: FloatArray, parameters: FloatArray) -> FloatArray:
        """Weighted sum of squared errors, of each draw."""
        plain = parameters.shape[1] == self._design.shape[1]
        model = parameters @ self._design.T if plain else np.logaddexp2(*self._parts(parameters))
        return np.asarray(np.nansum(self.weight * (y - self._bias - model) ** 2, axis=1))

    def fit(self, y: FloatArray, start: FloatArray | None = None, steps: int = STEPS) -> FloatArray:
        """Fit (n_draws, n_bins), NaN left out: without noise, or with noise from `start` (1 or n_draws, n_parameters).

        With noise by Levenberg-Marquardt steps; a step that makes things worse is not taken.
        """
        known = np.isfinite(y)
        weight, target = self.weight * known, np.where(known, y - self._bias, 0.0)
        if start is None:
            H = np.einsum("db,bi,bj->dij", weight, self._design, self._design)
            return _solved(H, (weight * target) @ self._design)
        parameters = np.repeat(start, len(y) // len(start), axis=0)
        damping = np.full(len(y), 1e-2)
        cost = self.cost(y, parameters)
        for _ in range(steps):
            share = self.signal_share(parameters)[:, :, None]
            J = np.concatenate([share * self._design, 1 - share], axis=2)
            WJ = weight[:, :, None] * J
            H = WJ.transpose(0, 2, 1) @ J
            diagonal = np.einsum("dii->di", H)
            diagonal += damping[:, None] * diagonal + 1e-9
            error = target - np.logaddexp2(*self._parts(parameters))
            tried = parameters + _solved(H, np.einsum("db,dbi->di", error, WJ))
            now = self.cost(y, tried)
            better = now < cost
            parameters[better], cost[better] = tried[better], now[better]
            damping = np.where(better, damping / 3, damping * 4)
        return parameters

    def choose(self, y: FloatArray, noise: str) -> FloatArray:
        """Fit one set of bins with or without noise, or as the information criterion says."""
        plain = self.fit(y)
        if noise == "none" or (noise == "auto" and y.shape[1] < FEWEST):
            return plain
        level = np.min(y - self._noise)  # noise alone cannot be more than this
        starts = [np.column_stack([plain, [[level + below]]]) for below in (-1.0, -5.0)]
        white = min((self.fit(y, start) for start in starts), key=lambda found: float(self.cost(y, found)[0]))
        if noise == "white":
            return white
        if (self.signal_share(white) >= 0.5).sum() < FEWEST:  # noise alone: its own slope says so, about -1/2
            return plain
        # a fit as good as the spread allows needs no noise to explain it
        n = y.shape[1]
        errors = [max(float(self.cost(y, found)[0]) / n, 1.0) for found in (plain, white)]
        return white if n * np.log(errors[0] / errors[1]) > np.log(n) else plain


def _solved(H: FloatArray, right: FloatArray) -> FloatArray:
    """Solve many small systems; the least-norm solution where one is singular (all volumes of an axis alike)."""
    return np.asarray(np.linalg.pinv(H, hermitian=True) @ right[:, :, None])[:, :, 0]
