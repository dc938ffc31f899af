"""Test of KILLS kill -9 of the dispatcher, a rank or all, at moments drawn by KILLS_SEED."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.runs import Trial, final, kill_the_tree, train

pytestmark = pytest.mark.torture

KILLS = int(os.environ.get("KILLS", "6"))
SEED = int(os.environ.get("KILLS_SEED", "0"))
KINDS = {
    "one process": (),
    "compiled": ("train.compile=true",),
    # A sum of three depends on its order, in which the first step could differ from later ones.
    "three processes": ("launch.num_processes=3", "train.global_batch_size=6"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_moments_it_is_the_same_run(
    whole: tuple[Path, list[str]], tmp_path: Path, kind: str
) -> None:
    """A kill falls anywhere: in the start, the preparation, a step, an evaluation or a save."""
    _, command = whole
    words = [*command, *KINDS[kind], "train.num_steps=2000", "train.save_every=7"]
    undisturbed = tmp_path / "undisturbed"
    done = train(*words, f"run.dir={undisturbed}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    words.append(f"data.cache_dir={tmp_path / 'cache'}")
    trial = Trial(command=tuple(words), folder=tmp_path / "run", undisturbed=undisturbed)
    rng = random.Random(f"{SEED} {kind}")
    for _ in range(KILLS):
        process = trial.start()
        # The first of these is a moment of the start, the second one of training.
        time.sleep(rng.choice((rng.uniform(0, 4), rng.uniform(4, 9))))
        ranks = trial.ranks()
        victim = rng.choice(("all", "the dispatcher", "one process"))
        if process.poll() is not None:
            break
        if victim == "all":
            kill_the_tree(process.pid)
        elif victim == "the dispatcher" or not ranks:
            process.kill()
        else:
            os.kill(rng.choice(ranks), signal.SIGKILL)
        process.communicate(timeout=90)
        print(f"{kind}: killed {victim} at row {trial.num_rows()}", flush=True)

    trial.assert_goes_on()
    assert final(trial.folder, "optimizer") == final(undisturbed, "optimizer")
