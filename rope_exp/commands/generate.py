"""`rope-exp generate`: text from a run's model."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rope_exp.commands._parser import Parser, check_is_run
from rope_exp.decoder import Decoder
from rope_exp.errors import ConfigError
from rope_exp.load import end_of_text, load_run


@torch.no_grad()
def generate(
    decoder: Decoder,
    tokenizer: Tokenizer,
    text: str,
    end_id: int,
    *,
    num_tokens: int = 64,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
) -> str:
    """Return the completion of a text, without the text itself.

    Args:
        text: begins a document.
        end_id: id of the token that ends a document.
        num_tokens: the maximum number of new tokens.
        temperature, top_p: see `distribution`.
        seed: of the draws.
    Raises:
        ConfigError: the text cannot be encoded in the tokens of generated data; or the model was
            trained on hidden tokens, and predicts no next one.
    """
    device = decoder.lm_head.weight.device
    stream = torch.Generator().manual_seed(seed)
    cache = decoder.new_cache()
    ids_1T = torch.tensor([[end_id, *_encoded(tokenizer, text)]], device=device)
    found: list[int] = []
    while len(found) < num_tokens:
        logits_V = decoder(ids_1T, cache=cache)[0, -1].float().cpu()
        probability_V = distribution(logits_V, temperature, top_p)
        token = int(torch.multinomial(probability_V, 1, generator=stream))
        if token == end_id:
            break
        found.append(token)
        ids_1T = torch.tensor([[token]], device=device)
    return tokenizer.decode(found)


def distribution(logits_V: Tensor, temperature: float, top_p: float) -> Tensor:
    """Return the probabilities from which the next token is drawn.

    Args:
        temperature: divides the logits; 0: always take the likeliest token.
        top_p: sample among the likeliest tokens that together have this probability.
    """
    if temperature == 0:
        return torch.nn.functional.one_hot(logits_V.argmax(-1), logits_V.shape[-1]).float()

    # Subtract the largest, in float64, so that no temperature makes two logits infinite.
    below_V = (logits_V - logits_V.max(-1, keepdim=True).values).double()
    probability_V = (below_V / temperature).softmax(-1)
    sorted_V, order_V = probability_V.sort(dim=-1, descending=True, stable=True)
    # The likeliest token always stays: the probability before it is 0.
    before_V = sorted_V.cumsum(-1) - sorted_V
    kept_V = torch.where(before_V < top_p, sorted_V, 0.0)
    nucleus_V = torch.zeros_like(probability_V).scatter(-1, order_V, kept_V)
    return nucleus_V / nucleus_V.sum(-1, keepdim=True)


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
        return tokenizer.encode(text).ids
    except UnicodeEncodeError:
        raise ConfigError("TEXT", ascii(text), "is no UTF-8") from None
    except Exception as error:
        # The library raises a plain Exception if a small vocabulary has no token for a character.
        known = "".join(sorted(tokenizer.get_vocab()))
        raise ConfigError("TEXT", ..., f"must be of the run's tokens alone: {known}") from error


def main(words: list[str]) -> int:
    """Print a completion of each text by a run's model."""
    parser = Parser("generate", "Print what a run's model says after each text.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="each begins a document")
    for flag, kind, default, about in (
        ("--tokens", int, 64, "how many at most"),
        ("--temperature", float, 0.8, "0: the likeliest always"),
        ("--top-p", float, 0.95, "draw from the likeliest that together have this probability"),
        ("--seed", int, 0, "of the draws"),
    ):
        parser.add_argument(flag, type=kind, default=default, help=f"{about} (%(default)s)")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest otherwise")
    asked = parser.parse_args(words)

    for flag, value, holds, allowed in (
        ("--tokens", asked.tokens, asked.tokens >= 1, "must be at least 1"),
        ("--temperature", asked.temperature, asked.temperature >= 0, "must be 0 or above"),
        ("--top-p", asked.top_p, 0 < asked.top_p <= 1, "must be above 0 and at most 1"),
        ("--seed", asked.seed, 0 <= asked.seed < 2**63, "must be from 0, and below 2^63"),
    ):
        if not holds:
            raise ConfigError(flag, value, allowed)

    check_is_run(asked.folder)

    decoder, tokenizer = load_run(asked.folder, asked.step)
    end_id = end_of_text(asked.folder, decoder)
    for text in asked.texts:
        completion = generate(
            decoder,
            tokenizer,
            text,
            end_id,
            num_tokens=asked.tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=asked.seed,
        )
        print(f"{text}{completion}", end="\n\n")
    return 0
