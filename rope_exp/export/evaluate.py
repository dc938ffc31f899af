"""Evaluation of a run's or an exported model by lm-evaluation-harness (pip install lm-eval).

The model is loaded here and handed over, so no other copy of it can be evaluated; afterwards the
hash of its weights is compared with that of the file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from rope_exp.export.configuration_rope_exp import RopeExpConfig
from rope_exp.export.modeling_rope_exp import RopeExpForCausalLM
from rope_exp.export.own_code import OWN_FILE
from rope_exp.export.write import opened
from rope_exp.model.decoder import weights_sha256
from rope_exp.run.folder import CONFIG
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import read_json


def evaluate(
    folder: Path,
    tasks: Sequence[str],
    include: Path | None = None,
    *,
    limit: int | None = None,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Return lm-evaluation-harness's results, with the hash of the weights that it evaluated.

    Args:
        folder: of a run, or of an exported model.
        tasks: the harness's names.
        include: a folder of further tasks, as YAML files.
        limit: evaluate only so many examples of each task; None: all.
    Raises:
        ConfigError: the harness is not installed or knows no such task, or the model looks both
            ways.
        RecordError, CheckpointError: the folder is no run, or has no checkpoint.
    """
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        allowed = "needs lm-evaluation-harness: `pip install lm-eval`"
        raise ConfigError("evaluate", ..., allowed) from None

    class Harness(HFLM):
        # The usual 256 tokens leave a short model no room for a question.
        @property
        def max_gen_toks(self) -> int:
            return min(256, self.max_length // 2)

    if include is not None and not include.is_dir():
        raise ConfigError("--include", str(include), "there is no such folder")
    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = sorted(set(tasks) - set(manager.all_tasks))
    if unknown:
        raise ConfigError("--tasks", unknown[0], "the harness knows no such task; see --include")

    model, tokenizer, saved = loaded(folder)
    harness = Harness(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_length=model.config.max_position_embeddings,
        device=str(model.device),
    )
    expected = weights_sha256(saved)
    found: dict[str, Any] = lm_eval.simple_evaluate(
        harness, tasks=list(tasks), task_manager=manager, limit=limit, log_samples=False
    )
    evaluated = weights_sha256({name: harness.model.state_dict()[name] for name in saved})
    assert evaluated == expected, "the harness has evaluated other weights"
    return {**found, "weights_sha256": evaluated, "model": type(model).__name__}


def table(found: dict[str, Any]) -> str:
    """Return the harness's table, and the hash of the weights."""
    from lm_eval.utils import make_table

    return f"{make_table(found)}\n{found['model']}, weights {found['weights_sha256']}"


def loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, dict[str, Tensor]]:
    """Return a folder's model, its tokenizer, and the weights as they are saved.

    Raises:
        ConfigError: it holds neither a run nor an export, or an export with a class of the user's.
        RecordError, CheckpointError: the folder is no run, or has no checkpoint.
    """
    if (folder / CONFIG).exists():
        run = opened(folder)
        _check_causal(run.model)
        return run.model, run.tokenizer, run.weights

    if not (folder / "config.json").exists():
        raise ConfigError("FOLDER", str(folder), "holds no run and no exported model")
    if (folder / f"{OWN_FILE}.py").exists():
        allowed = "has a position encoding of its own, whose file is not run here; give the run"
        raise ConfigError("FOLDER", str(folder), allowed)
    # Our class is here already: code that lies in a folder is not run.
    is_ours = read_json(folder / "config.json").get("model_type") == RopeExpConfig.model_type
    kind = RopeExpForCausalLM if is_ours else AutoModelForCausalLM
    model = kind.from_pretrained(folder).eval()
    _check_causal(model)
    found = {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    if not found:
        raise ConfigError("FOLDER", str(folder), "holds no weights as safetensors")
    if model.config.tie_word_embeddings:
        # safetensors keeps one name of a tensor that has two.
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return model, PreTrainedTokenizerFast.from_pretrained(folder), found


def _check_causal(model: PreTrainedModel) -> None:
    if not getattr(model.config, "is_causal", True):
        raise ConfigError(
            "train.objective", "mlm", "predicts no next token; the harness asks for it"
        )
