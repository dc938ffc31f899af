"""`rope-exp generate`: text from a run's model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rope_exp.commands._parser import Parser, check_is_run
from rope_exp.decoder import Decoder
from rope_exp.errors import ConfigError
from rope_exp.load import end_of_text, load_run

# Number of tokens of padded prompts that are read at once.
PART = 512


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling the next token.

    Attributes:
        num_tokens: the maximum number of new tokens.
        temperature: divides the logits; 0: always take the likeliest token.
        top_p: sample among the likeliest tokens that together have this probability.
        seed: seed of the draws; each text has its own stream, whatever its neighbours.
    """

    num_tokens: int = 64
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0


def complete(
    run_dir: Path, texts: Sequence[str], sampling: Sampling, step: int | None = None
) -> list[str]:
    """Return the completion of each text by a run's model.

    Args:
        step: step of the checkpoint; None: the newest.
    Raises:
        RecordError: the folder is not a run, or does not record which token ends a document.
        CheckpointError: there is no such checkpoint.
        ConfigError: the run was trained on hidden tokens, and predicts no next one; or a text
            cannot be encoded in the tokens of generated data.
    """
    decoder, tokenizer = load_run(run_dir, step)
    end_id = end_of_text(run_dir, decoder)
    return generate(decoder, tokenizer, texts, end_id, sampling)


@torch.no_grad()
def generate(
    decoder: Decoder, tokenizer: Tokenizer, texts: Sequence[str], end_id: int, sampling: Sampling
) -> list[str]:
    """Return the completion of each text, without the text itself.

    Args:
        texts: of any lengths; shorter ones are padded on the left. Each begins a document.
        end_id: id of the token that ends a document.
    Raises:
        ConfigError: a text cannot be encoded in the tokens of generated data.
    """
    device = decoder.lm_head.weight.device
    prompts = [[end_id, *ids] for ids in _encoded(tokenizer, texts)]
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    padded = [[end_id] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    pads_B = torch.tensor(pads, device=device) if any(pads) else None

    streams = [torch.Generator().manual_seed(sampling.seed) for _ in prompts]
    cache = decoder.new_cache(pads_B)
    ids_BT = torch.tensor(padded, device=device)
    # Attention with padding holds the scores of all pairs, so padded prompts are read in parts.
    *before, ids_BT = torch.split(ids_BT, PART if any(pads) else longest, dim=1)
    for part_BT in before:
        decoder(part_BT, cache=cache)
    found: list[list[int]] = [[] for _ in prompts]
    is_done = [False] * len(prompts)
    for _ in range(sampling.num_tokens):
        logits_BV = decoder(ids_BT, cache=cache)[:, -1].float().cpu()
        probability_BV = distribution(logits_BV, sampling)
        chosen = [
            int(torch.multinomial(probability_V, 1, generator=stream))
            for probability_V, stream in zip(probability_BV, streams, strict=True)
        ]
        for row, token in enumerate(chosen):
            if not is_done[row] and token != end_id:
                found[row].append(token)
            is_done[row] |= token == end_id
        if all(is_done):
            break
        ids_BT = torch.tensor(chosen, device=device)[:, None]
    return [tokenizer.decode(tokens) for tokens in found]


def distribution(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities from which the next token is drawn."""
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits_BV.argmax(-1), logits_BV.shape[-1]).float()

    # Subtract the largest, in float64, so that no temperature makes two logits infinite.
    below_BV = (logits_BV - logits_BV.max(-1, keepdim=True).values).double()
    probability_BV = (below_BV / sampling.temperature).softmax(-1)
    sorted_BV, order_BV = probability_BV.sort(dim=-1, descending=True, stable=True)
    # The likeliest token always stays: the probability before it is 0.
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    kept_BV = torch.where(before_BV < sampling.top_p, sorted_BV, 0.0)
    nucleus_BV = torch.zeros_like(probability_BV).scatter(-1, order_BV, kept_BV)
    return nucleus_BV / nucleus_BV.sum(-1, keepdim=True)


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError("TEXT", ascii(text), "is no UTF-8") from None
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    except Exception as error:
        # The library raises a plain Exception if a small vocabulary has no token for a character.
        known = "".join(sorted(tokenizer.get_vocab()))
        raise ConfigError("TEXT", ..., f"must be of the run's tokens alone: {known}") from error


def main(words: list[str]) -> int:
    """Print a completion of each text by a run's model."""
    parser = Parser("generate", "Print what a run's model says after each text.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="each begins a document")
    parser.add_argument("--tokens", type=int, default=64, help="how many at most (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: the likeliest always (%(default)s)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        help="draw from the likeliest that together have this probability (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
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

    sampling = Sampling(asked.tokens, asked.temperature, asked.top_p, asked.seed)
    completions = complete(asked.folder, asked.texts, sampling, asked.step)
    for text, completion in zip(asked.texts, completions, strict=True):
        print(f"{text}{completion}", end="\n\n")
    return 0
