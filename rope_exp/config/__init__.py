"""A run's configuration: types, ranges, identity, costs, and the border to Hydra."""
