"""Kinds of attention, one module each, with the interface of `base`; `build` constructs them."""
