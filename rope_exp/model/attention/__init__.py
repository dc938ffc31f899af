"""Kinds of attention: a module each, under the interface of `base`, built by `build`."""
