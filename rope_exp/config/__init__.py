"""Configuration of runs and campaigns: types, ranges, identity, costs and the border to Hydra."""
