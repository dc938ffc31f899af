"""Tests that a mistake is one sentence, which names the key and its value and gives the reason."""

import pytest
from support.refused import refused

from rope_exp.compose import compose_runs, run_config
from rope_exp.config import RESERVED, RunConfig
from rope_exp.errors import ConfigError

# Each line is a command line, the beginning of the sentence, and further words of it.
MISTAKES = r"""
pe=nosuch | pe=nosuch: there is no such choice; choose one of alibi, fox, fox_vo, k_rope |
+experiment=../../elsewhere | experiment |
hydra/launcher=nosuch | hydra/launcher=nosuch: there is no such choice | choose one of basic
pe=null | config: |
experiment=nine | experiment: nothing is chosen there yet |

train.num_stepz=1 | train.num_stepz: there is no such key; did you mean train.num_steps? |
modl=1b | modl: there is no such key; did you mean model? |
lr=0.1 | lr: there is no such key; did you mean optim.lr? |
+campaign=example | campaign: there is no such key |
+pe._target_=os.system | pe._target_: there is no such key |
schedule.decay_fraction=0.1 | schedule.decay_fraction: there is no such key |
+seed=1 | seed: is a key already; leave out the + |

novalue | novalue: cannot be read as key=value |
run.group=bench | run.group=bench: must be none of README.md, bench, | results/ has them
run.dir=~nosuchuser/x | run.dir: cannot be read as key=value; special characters need quotes |
seed=0,1 | seed: several values make a sweep |
hydra.run.dir=a,b | hydra.run.dir: several values make a sweep |
seed=??? | seed: |
seed=${nosuch} | seed: |

pe.rotate=[x] | pe.rotate=["x"]: must be 'q', 'k', 'v' or 'o' |
pe.rotate=[q,q] | pe.rotate=["q", "q"]: must name each site at most once |
pe.rotate=q | pe.rotate=q: must be a valid array |
pe.base=1 | pe.base=1: must be greater than 1 |
pe.layers=[0,2] | pe.layers=[0, 2]: must be 0 or 1 |
init_weights=abc | init_weights=abc: must match pattern |
seed=-1 | seed=-1: must be greater than or equal to 0 |
train.num_steps=abc | train.num_steps=abc: must be a valid integer |
train.compile=maybe | train.compile=maybe: must be a valid boolean, or must be 'auto' |
optim.lr=nan | optim.lr=NaN: | finite number
optim.betas=[0.9,1.0] | optim.betas=[0.9, 1.0]: must be less than 1 |
optim.betas=[0.9] | optim.betas.1: is missing |
schedule.name=linear | schedule.name=linear: must be one of cosine, wsd |
attn.kind=linaer | attn.kind=linaer: must be one of softmax, decay, latent, linear |
data.kind=hub2 | data.kind=hub2: must be one of stdlib, files, hub, addition |
data.kind=hub2 data.max_tokens=1000 | data.kind=hub2: must be one of stdlib, files, hub |
train.objective=mlm2 | train.objective=mlm2: must be one of causal, regression, mlm |
tokenizer.vocab_size=10 | tokenizer.vocab_size=10: must be greater than or equal to 257 |
train.stages=[[512]] | train.stages=[[512]]: must list [length, steps] or |
train.stages=[512,500] | train.stages=[512, 500]: must be a valid array |
train.stages=[[512,0]] | train.stages=[[512, 0]]: must be greater than or equal to 1 |

pe.fraction=0.01 | pe.fraction=0.01: leaves no pair |
train.stages=[[256,490],[1024,10]] pe.start=16777000 | pe.start=16777000: | not exact in float32
data.random_start=16777000 | data.random_start=16777000: | not exact in float32
pe.layers=[0,0,0,0,1] | pe.layers=[0, 0, 0, 0, 1]: reaches none of the layers |
pe=sinusoidal model.hidden_size=33 model.head_dim=8 | model.hidden_size=33: must be even |
pe=nope pe.trainable=true | pe.trainable=true: needs pe.rotate |
pe.base_vo=100 | pe.base_vo=100.0: needs v or o in pe.rotate |
pe.input_scale=2 | pe.input_scale=2.0: needs pe.input=sinusoidal |
model.window_layers=[1,0] | model.window_layers=[1, 0]: needs model.window |

model.num_attention_heads=6 | model.num_attention_heads=6: must divide model.hidden_size=128 |
model.num_attention_heads=128 | model.num_attention_heads=128: leaves heads | must be even
model.num_key_value_heads=3 | model.num_key_value_heads=3: must divide | attention_heads=2
model.head_dim=7 | model.head_dim=7: leaves heads | must be even
model.match_params=1000 | model.match_params=1000: cannot be met within 0.1 % |
model.match_params=2000000000 | model.match_params=2000000000: cannot be met: | above 1,048,576
train.stages=[[512,200]] | train.num_steps=500: must be the 200 of train.stages |
train.stages=[[1000,500]] | train.stages=[[1000, 500]]: sequences of 1000 do not divide the 4096 tokens |
tracker.name=tensorbord | tracker.name=tensorbord: must be one of none, | trackio
schedule=wsd schedule.warmup_fraction=0.9 | schedule.warmup_fraction=0.9: warm-up and decay exceed |

attn=mla pe=vo_rope | pe.rotate=["v", "o"]: v and o cannot rotate | attn=mla_vo (attn.value_rope=true) has
attn=decay | pe.rotate= | neither queries nor keys
attn=linear model.window=8 | model.window=8: attn.kind=linear keeps a state |
attn=decay pe=vo_rope data.document_mask=true | data.document_mask=true: | keeps a state
attn=mla model.head_dim=32 | model.head_dim=32: attn.kind=latent has sizes of its own |
attn=shared_s2 model.num_key_value_heads=1 | model.num_key_value_heads=1: | must equal model.num_attention_heads=2
attn=shared_s2 attn.groups=3 | attn.groups=3: must divide |
attn=linear model.token_shift=true | model.token_shift=true: attn.kind=linear has none; attn=softmax has |
attn=decay pe=vo_rope attn.gamma=learned model.num_attention_heads=64 model.hidden_size=256 | attn.gamma=learned: | too near 1 to be learned in more than 59

data=files | data.path=null: must be set for data=files |
data.sample_by=line | data.sample_by=line: is for data=files or hub alone |
data=files data.path=x data.text_column='' | data.text_column=: must be set for data=files |
tokenizer=bytes tokenizer.revision=a | tokenizer.revision=a: needs tokenizer.path |
tokenizer.train_bytes=null | tokenizer.train_bytes=null: must be set |
tokenizer=bytes tokenizer.vocab_size=512 | tokenizer.vocab_size=512: must be set for tokenizer.kind=bpe |
tokenizer=pretrained | tokenizer.path=null: must be set for tokenizer.kind=pretrained |
tokenizer=task | tokenizer.kind=task: | such as data=addition
data=addition tokenizer=bytes | tokenizer.kind=bytes: must be task for generated data |
data=addition train.seq_len=32 | train.seq_len=32: must be at least 33 |
data=addition data.path=x | data.path=x: is for data=files or hub alone |
data=copy data.order=reversed | data.order=reversed: is for data=addition alone |
data=copy train.seq_len=256 train.stages=[[256,400],[512,100]] | train.stages= | data=copy has rows of one length; leave null
train.objective=regression | train.objective=regression: is for data=spikes alone |
train.objective=regression pe.bias=alibi | train.objective=regression: is for data=spikes alone |
train.objective=other model.window=8 | train.objective=other: must be one of causal, regression |
data=spikes attn=linear | train.objective=regression: | goes one way alone
data=spikes model.window=8 | model.window=8: needs train.objective=causal |
data=spikes pe=alibi | pe.bias=alibi: data=spikes predicts numbers, not tokens |
data=spikes pe=learned | pe.input=learned: | between whole ones
train.objective=mlm attn=linear | train.objective=mlm: looks both ways, and the state that attn |
data=copy train.probes=[windows] | train.probes=["windows"]: | alone
train.probes=[answers] | train.probes=["answers"]: |
train.probes=[nosuch] | train.probes=nosuch: must be one of ablation, answers |
"""  # noqa: E501
LINES = [line for line in MISTAKES.splitlines() if line]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition(" |")[0])
def test_a_mistake_is_one_sentence(line: str) -> None:
    words, beginning, *reasons = (part.strip() for part in line.split(" |"))
    with refused(*reasons, by=ConfigError) as sentence:
        run_config(words.split())
    assert sentence[0].startswith(beginning)
    assert sentence[0].isprintable()


NOT_TEXT = {
    "run.dir": ["a\0b", "~nosuchuser/x", ""],
    "pe.name": ["a" * 300, "\U0001f600", "a\nb", "a\0b", "../a", "a/b", "", "a\u202eb"],
}


@pytest.mark.parametrize("key", NOT_TEXT)
def test_a_path_or_name_that_cannot_be_is_refused(key: str) -> None:
    group, name = key.split(".")
    for text in NOT_TEXT[key]:
        with refused(f"{key}="):
            RunConfig.from_dict({group: {name: text}})


@pytest.mark.parametrize("group", RESERVED)
def test_a_group_named_like_a_file_of_results_is_refused(group: str) -> None:
    """Only where a run is composed: the folder of an older run with such a group stays readable."""
    with refused(f"run.group={group}: must be none of", by=ConfigError):
        run_config([f"run.group={group}"])
    assert RunConfig.from_dict({"run": {"group": group}}).group == group


def test_a_default_group_has_no_longer_name_than_a_given_one() -> None:
    """Its parts may be as long as any name; the hash at its end tells groups apart."""
    config = run_config([f"data.name={'d' * 64}"])
    assert config.group == f"nano-{'d' * 50}-{config.group_sha256[:8]}"
    assert config.replace("run", group=config.group).group == config.group


@pytest.mark.parametrize("prefix", ["", "+"])
def test_the_value_of_an_unknown_key_is_not_shown(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracker.api_key: ") as error:
        run_config([f"{prefix}tracker.api_key=hunter2"])
    assert "hunter2" not in str(error.value)


def test_a_sweep_that_matches_nothing_is_refused() -> None:
    with refused("pe", "the sweep is empty"):
        compose_runs(["pe=glob(zz*)"], multirun=True)
