"""The position encodings of a model besides rotation: ours by their choice, and a user's own."""

from rope_exp.config import Architecture
from rope_exp.identity import chosen
from rope_exp.position._encoding import Position, Sizes


def encodings(architecture: Architecture, layer: int | None) -> dict[str, Position]:
    """Return the encodings at the input (layer None) or in a layer, by the names of modules."""
    model = architecture.model
    pe = architecture.pe
    sizes = Sizes(
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.features_per_head,
        model.num_hidden_layers,
        architecture.num_positions,
        architecture.causal,
        layer,
    )
    choices = {"own": "none" if pe.code is None else "own"}
    if layer is None:
        choices = {"added_positions": pe.input, "score_bias": pe.bias, **choices}
    made = {
        name: chosen("position", choice, "pe").make(pe, sizes)
        for name, choice in choices.items()
        if choice != "none"
    }
    return {name: encoding for name, encoding in made.items() if encoding is not None}
