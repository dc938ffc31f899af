"""Seeds in words."""

from collections.abc import Iterable

from rope_exp.table import span


def spell_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as text: `seeds 0 to 4`, `seed 3`."""
    found = sorted(set(seeds))
    if len(found) < 2:
        return f"seed {found[0]}" if found else "no seed"
    is_range = len(found) > 2 and found[-1] - found[0] == len(found) - 1
    return f"seeds {span(found) if is_range else ', '.join(map(str, found))}"
