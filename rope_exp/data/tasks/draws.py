"""Random numbers of generated data: a pure function of (seed, stream, index).

They are computed from the raw words of a Philox counter generator (Salmon et al. 2011), which numpy
keeps stable over its versions, unlike the distributions of `Generator`. The key is (seed, stream)
and the counter's second word is the index, so each index has 2^66 words of its own. Whole numbers
are the same on every machine; normals are too, up to the last bits of its logarithm and cosine.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray


class Draws:
    """The random numbers of one index, in the order of the calls.

    Args:
        seed: of the data set, 0 to 2^64 - 1.
        stream: a name, such as "copying train"; different names give independent numbers.
        index: of the row, 0 to 2^64 - 1.
    """

    def __init__(self, seed: int, stream: str, index: int) -> None:
        digest = hashlib.sha256(stream.encode()).digest()
        key = np.array([seed, int.from_bytes(digest[:8])], dtype=np.uint64)
        counter = np.array([0, int(index), 0, 0], dtype=np.uint64)
        self._bits = np.random.Philox(key=key, counter=counter)

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to bound - 1.

        The remainder of a 64-bit word is biased by a factor of 1 + bound / 2^64 at most, which is
        5e-10 for ten digits.
        """
        return int(self._bits.random_raw()) % bound

    def many_below(self, bound: int, count: int) -> NDArray[np.int64]:
        """Return `count` whole numbers from 0 to bound - 1, as `below` does."""
        return (self._bits.random_raw(count) % np.uint64(bound)).astype(np.int64)

    def order(self, count: int) -> NDArray[np.int64]:
        """Return a permutation of 0..count-1, the one that sorts `count` words."""
        return np.argsort(self._bits.random_raw(count), kind="stable")

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers in [0, 1), multiples of 2^-53."""
        whole = self._bits.random_raw(count) >> np.uint64(11)
        return whole.astype(np.float64) * 2.0**-53

    def exponentials(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers of density exp(-x), by the inverse of 1 - exp(-x)."""
        return -np.log1p(-self.uniforms(count))

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers of mean 0 and variance 1 (Box and Muller 1958, the cosines)."""
        radius = np.sqrt(2 * self.exponentials(count))
        return radius * np.cos(2 * np.pi * self.uniforms(count))
