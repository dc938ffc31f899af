"""`rope-exp generate`: text from a run's model."""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from tokenizers import Tokenizer
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from rope_exp.commands._parser import Parser
from rope_exp.decoder import Decoder
from rope_exp.errors import ConfigError
from rope_exp.identity import convert
from rope_exp.load import end_of_text, load_run
from rope_exp.sections import Count, Natural, NonNegative

_TOP_P = Annotated[float, Field(gt=0, le=1)]
# By the argument of `generate`: its default, its allowed values and its meaning.
_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "tokens": (64, Count, "how many at most"),
    "temperature": (0.8, NonNegative, "divides the logits; 0: the likeliest always"),
    "top_p": (0.95, _TOP_P, "draw among the likeliest of together this probability"),
    "seed": (0, Natural, "of the draws"),
}


@torch.no_grad()
def generate(
    decoder: Decoder,
    tokenizer: Tokenizer,
    text: str,
    end_id: int,
    *,
    tokens: int = 64,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
) -> str:
    """Return a model's completion of a text, without the text itself.

    Args:
        decoder: in eval mode, on any device.
        tokenizer: of the run.
        text: begins a document; it may be empty.
        end_id: the token that ends a document, and here precedes the text.
        tokens: the completion's length at most. It ends earlier where the model draws `end_id`.
        temperature: divides the logits; 0: always the likeliest token.
        top_p: the share of probability, above 0, that the likeliest tokens have together among
            which one is drawn.
        seed: of the draws. The same arguments give the same text.
    Raises:
        ConfigError: the text is no UTF-8, or the vocabulary cannot express it.
    """
    try:
        text.encode()
        ids = tokenizer.encode(text).ids
    except UnicodeEncodeError:
        raise ConfigError("TEXT", ascii(text), "is no UTF-8") from None
    except Exception as error:
        # The library raises a plain Exception if a small vocabulary has no token for a character.
        known = "".join(sorted(tokenizer.get_vocab()))
        raise ConfigError("TEXT", ..., f"must be of the run's tokens alone: {known}") from error

    stream = torch.Generator().manual_seed(seed)
    device = decoder.lm_head.weight.device
    cache = decoder.new_cache()
    ids_1T = torch.tensor([[end_id, *ids]], device=device)
    completion: list[int] = []
    while len(completion) < tokens:
        logits_1V = decoder(ids_1T, cache=cache)[:, -1].float().cpu()
        # So that the likeliest stays finite at the lowest temperature.
        logits_1V = (logits_1V - logits_1V.max()).double()
        token = int(logits_1V.argmax())
        if temperature:
            logits_1V = TemperatureLogitsWarper(temperature)(ids_1T, logits_1V)
            p_1V = TopPLogitsWarper(top_p)(ids_1T, logits_1V).softmax(-1)
            token = int(torch.multinomial(p_1V, 1, generator=stream))
        if token == end_id:
            break
        completion.append(token)
        ids_1T = torch.tensor([[token]], device=device)
    return tokenizer.decode(completion)


def main(argv: list[str]) -> int:
    """Print a completion of each text by a run's model."""
    parser = Parser("generate", "Print what a run's model says after each text.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="each begins a document")
    flags = {key: f"--{key.replace('_', '-')}" for key in _OPTIONS}
    for key, (default, _, about) in _OPTIONS.items():
        about += " (%(default)s)"
        parser.add_argument(flags[key], type=type(default), default=default, help=about)
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest otherwise")
    parser.add_trust_code()
    args = parser.parse_args(argv)
    options = {
        key: convert(allowed, getattr(args, key), flags[key])
        for key, (_, allowed, _) in _OPTIONS.items()
    }

    decoder, tokenizer = load_run(args.folder, args.step, trust_code=args.trust_code)
    end_id = end_of_text(args.folder, decoder)
    for text in args.texts:
        completion = generate(decoder, tokenizer, text, end_id, **options)
        print(f"{text}{completion}", end="\n\n")
    return 0
