"""Tests of our Hydra launcher under a sweeper, and of another package's launcher."""

import json
import math
from pathlib import Path

from support.command import command, write
from support.configs import REPOSITORY

from rope_exp.files import read_json

# Like optuna's sweeper, this one launches several batches of jobs and reads their results.
STUB = """
import json
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class StubSweeper(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        self.folder = config.hydra.sweep.dir
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        swept = (("0.01", "nope"), ("1e38", "vo_rope"))
        pair = [[*arguments, f"optim.lr={lr}", f"pe={pe}"] for lr, pe in swept]
        jobs = [*self.launcher.launch(pair, initial_job_idx=1)]
        jobs += self.launcher.launch(pair[:1], initial_job_idx=1)
        told = [[job.status.name, str(job.return_value), job.cfg.pe.name] for job in jobs]
        Path(self.folder, "told.json").write_text(json.dumps(told))


target = {"_target_": "hydra_plugins.stub_sweeper.StubSweeper"}
ConfigStore.instance().store("stub", target, group="hydra/sweeper")
"""


def test_a_sweeper_gets_the_loss_of_every_job(tmp_path: Path, tiny_overrides: list[str]) -> None:
    """A run that diverged returns infinity, one that was done its loss. The files are kept."""
    write(tmp_path / "more" / "hydra_plugins" / "stub_sweeper.py", STUB)
    words = [word for word in tiny_overrides if "run.dir" not in word]
    words += ["run.dir=runs/${hydra:job.num}", "train.num_steps=2", "schedule.warmup_fraction=0"]
    path = f"{REPOSITORY}:{tmp_path / 'more'}"
    done = command("-m", "hydra/sweeper=stub", *words, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    assert "diverged" in done.stderr

    told = json.loads((tmp_path / "results/launcher/told.json").read_text())
    results = [read_json(tmp_path / f"runs/{number}/result.json") for number in (1, 2)]
    assert [status for status, _, _ in told] == ["COMPLETED"] * 3
    losses = [float(loss) for _, loss, _ in told]
    assert losses == [results[0]["val/loss"], math.inf, results[0]["val/loss"]]
    assert [name for _, _, name in told] == ["NoPE", "VO-RoPE", "NoPE"]
    assert {path.name for path in tmp_path.iterdir()} == {"more", "results", "runs"}
