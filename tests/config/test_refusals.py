"""Tests that a mistake is one sentence, which names the key and its value and gives the reason."""

import shlex

import pytest
from support.refused import refused

from rope_exp.compose import compose_jobs, run_config
from rope_exp.errors import ConfigError

# Each line is a command line, the beginning of the sentence, and further words of it.
MISTAKES = r"""
pe=nosuch | pe=nosuch: there is no such choice; choose one of alibi, fox, fox_vo, k_rope |
pe=vo_rop | pe=vo_rop: there is no such choice; did you mean vo_rope? |
+experiment=nin | experiment=nin: there is no such choice; did you mean nine? |
+experiment=../../elsewhere | experiment |
+experiment=nosuch | experiment=nosuch | on_gpu, rates, retrieval, seeds, sequel, sequel_mini
model=nano2 | model=nano2: there is no such choice; did you mean nano? |
hydra/launcher=nosuch | hydra/launcher=nosuch: this plugin of Hydra is not installed |
pe=null | pe=null: must be the name of a choice |
experiment=nine | experiment: nothing is chosen there yet; did you mean +experiment= |

train.foo=1 | train.foo: there is no such key |
train.num_stepz=1 | train.num_stepz: there is no such key; did you mean train.num_steps? |
modl=1b | modl: there is no such key; did you mean model? |
lr=0.1 | lr: there is no such key; did you mean optim.lr? |
++nosuch.key=1 | nosuch: there is no such key |
+pe._target_=os.system | pe._target_: there is no such key |
schedule.decay_fraction=0.1 | schedule.decay_fraction: there is no such key |
attn=mla attn.groups=2 | attn.groups: there is no such key |
+seed=1 | seed: is a key already; leave out the + |

novalue | override=novalue: is not of the form key=value |
= | override==: is not of the form |
seed=0,1 | seed: several values make a sweep |
seed=??? | seed: |
seed=${nosuch} | seed: |
seed= | seed=: |
run.dir=~nosuchuser/x | run.dir: its value cannot be read |

pe.rotate=[x] | pe.rotate=["x"]: must be a list of some of q, k, v, o |
pe.rotate=[q,q] | pe.rotate=["q", "q"]: must be a list of some of q, k, v, o, each at most once |
pe.rotate=q | pe.rotate=q: must be a list |
pe.rotate=null | pe.rotate=null: |
pe.rotate={a:1} | pe.rotate: |
pe.rotate=[[[[[[[[[[[[q]]]]]]]]]]]] | pe.rotate= |
pe.base=1 | pe.base=1: must be greater than 1 |
pe.name=../up | pe.name=../up: | letters, digits
init_weights=abc | init_weights=abc: must be 64 hexadecimal digits |
seed=-1 | seed=-1: must be greater than or equal to 0 |
seed=1e400 | seed=Infinity: |
train.num_steps=abc | train.num_steps=abc: must be a whole number |
train.num_steps=0 | train.num_steps=0: must be greater than or equal to 1 |
train.global_batch_size=0 | train.global_batch_size=0: must be greater than or equal to 1 |
train.precision=fp8 | train.precision=fp8: must be 'auto', 'bf16' or 'fp32' |
train.compile=maybe | train.compile=maybe: must be true or false, or 'auto' |
optim.lr=nan | optim.lr=NaN: | finite number
optim.betas=[0.9,1.0] | optim.betas=[0.9, 1.0]: must be less than 1 |
optim.betas=[0.9] | optim.betas=[0.9]: has too few values |
schedule.name=linear | schedule.name=linear: must be one of cosine, wsd |
attn.kind=linaer | attn.kind=linaer: must be one of softmax, decay, latent, linear |
attn=mla attn.rope_dim=7 | attn.rope_dim=7: must be a multiple of 2 |
attn=decay pe=vo_rope attn.gamma=1.5 | attn.gamma=1.5: | less than 1
model.num_hidden_layers=1000000000 | model.num_hidden_layers=1000000000: |
tokenizer.vocab_size=10 | tokenizer.vocab_size=10: must be greater than or equal to 257 |
tokenizer.vocab_size=99999999999 | tokenizer.vocab_size=99999999999: | equal to 16777216
data=spikes data.period=0 | data.period=0: must be greater than 0 |
train.stages=[[512]] | train.stages=[[512]]: must be a list of stages, each [length, steps] or |
train.stages=[[512,500,1,1]] | train.stages=[[512, 500, 1, 1]]: must be a list of stages |
train.stages=[512,500] | train.stages=[512, 500]: must be a list of stages |
train.stages=[] | train.stages=[]: must be a list of stages |
train.stages=[[512,0]] | train.stages=[[512, 0]]: must be a list of stages |

pe.fraction=0.01 | pe.fraction=0.01: leaves no pair |
pe=qkvo_rope pe.fraction_vo=0.01 | pe.fraction_vo=0.01: leaves no pair |
pe.start=16777000 | pe.start=16777000: | not exact in float32
pe.start=16777216 | pe.start=16777216: |
train.seq_len=100000000 | pe.start=0: |
train.stages=[[256,490],[1024,10]] pe.start=16777000 | pe.start=16777000: |
data.random_start=16777000 | data.random_start=16777000: | not exact in float32
pe.layers=[0,0,0,0,1] | pe.layers=[0, 0, 0, 0, 1]: reaches none of the 4 layers |
pe=qkvo_rope pe.layers_vo=[0,1] model.num_hidden_layers=1 | pe.layers_vo= | reaches none
pe=sinusoidal model.hidden_size=33 model.head_dim=8 | model.hidden_size=33: must be even |
pe=nope pe.trainable=true | pe.trainable=true: needs at least one site in pe.rotate |
pe.base_vo=100 | pe.base_vo=100.0: needs v or o in pe.rotate |
pe.fraction_vo=0.5 | pe.fraction_vo=0.5: needs v or o |
pe.layers_vo=[1,0] | pe.layers_vo=[1, 0]: needs v or o |
pe.trainable_scope=head | pe.trainable_scope=head: needs pe.trainable |
pe.trainable_lr=2 | pe.trainable_lr=2.0: needs pe.trainable |
pe.input_scale=2 | pe.input_scale=2.0: needs pe.input=sinusoidal |
model.window_layers=[1,0] | model.window_layers=[1, 0]: needs model.window |

model.num_attention_heads=6 | model.num_attention_heads=6: must divide model.hidden_size=128 |
model.num_attention_heads=128 | model.num_attention_heads=128: leaves heads | must be even
model.num_key_value_heads=3 | model.num_key_value_heads=3: must divide | attention_heads=2
model.head_dim=7 | model.head_dim=7: leaves heads | must be even
model.match_params=1000 | model.match_params=1000: cannot be met within 0.1 % |
model.match_params=2000000 tokenizer=pretrained tokenizer.path=x | model.match_params=2000000: | vocabulary whose size is known
train.stages=[[512,200]] | train.num_steps=500: must be the 200 steps of train.stages |
train.stages=[[1000,500]] | train.stages=[[1000, 500]]: sequences of 1000 do not divide the 4096 tokens | [1000,500,4]
train.stages=[[9999,500]] | train.stages=[[9999, 500]]: | do not divide | [9999,500,1]
schedule=wsd schedule.warmup_fraction=0.9 | schedule.warmup_fraction=0.9: warm-up and decay exceed |

attn=mla pe=vo_rope | pe.rotate=["v", "o"]: | attn=mla_vo (attn.value_rope=true) has
attn=mla pe=v_rope | pe.rotate=["v"]: | v must not stand there
attn=shared_s3 pe=qkvo_rope | pe.rotate= | v and o must not stand there
attn=decay | pe.rotate= | neither queries nor keys
attn=linear model.window=8 | model.window=8: attn.kind=linear keeps a state |
attn=retention model.window=8 | model.window=8: attn.kind=retention keeps a state |
attn=linear data.document_mask=true | data.document_mask=true: attn.kind=linear keeps a state |
attn=decay pe=vo_rope data.document_mask=true | data.document_mask=true: | keeps a state
attn=mla model.head_dim=32 | model.head_dim=32: attn.kind=latent has sizes of its own |
attn=mla pe.fraction=0.5 | pe.fraction=0.5: attn.kind=latent has sizes of its own |
attn=shared_s2 model.num_key_value_heads=1 | model.num_key_value_heads=1: | no such heads
attn=shared_s2 attn.groups=3 | attn.groups=3: must divide |
attn=linear model.token_shift=true | model.token_shift=true: attn.kind=linear has none; attn=softmax has |
attn=retention model.token_shift=true | model.token_shift=true: attn.kind=retention has none |
attn=decay pe=vo_rope model.token_shift=true | model.token_shift=true: attn.kind=decay has none |
attn=mla model.token_shift=true | model.token_shift=true: attn.kind=latent has none |
attn=shared_s2 model.token_shift=true | model.token_shift=true: attn.kind=shared has none |
attn=decay pe=vo_rope attn.gamma=learned model.num_attention_heads=64 model.hidden_size=256 | attn.gamma=learned: | too near 1 to be learned in more than 59

data=files | data.path=null: must name the corpus |
data.sample_by=line | data.sample_by=line: is for data=files or hub alone |
data=files data.path=x data.revision=a | data.revision=a: is for data=hub alone |
data=files data.path=x data.text_column='' | data.text_column=: must name the column |
tokenizer=bytes tokenizer.revision=a | tokenizer.revision=a: is for tokenizer=pretrained alone |
tokenizer.train_bytes=null | tokenizer.train_bytes=null: must be set |
tokenizer=bytes tokenizer.vocab_size=512 | tokenizer.vocab_size=512: is given by tokenizer=bytes |
tokenizer=pretrained | tokenizer.path=null: must be set for tokenizer=pretrained |
tokenizer=task | tokenizer.kind=task: | such as data=addition
data=addition tokenizer=bytes | tokenizer.kind=bytes: | leave out tokenizer=...
data=addition train.seq_len=32 | train.seq_len=32: must be at least 33 |
data=addition data.path=x | data.path=x: | no other has a path
data=copy data.order=reversed | data.order=reversed: is for data=addition alone |
data=addition data.period=0.1 | data.period=0.1: is for data=spikes alone |
data=retrieval data.max_tokens=9 | data.max_tokens=9: is for data=stdlib or files or hub alone |
data=copy train.seq_len=256 train.stages=[[256,400],[512,100]] | train.stages= | data=copy has rows of one length; leave null
data=copy train.objective=regression | train.objective=regression: must be causal |
data=copy train.objective=mlm | train.objective=mlm: must be causal for data=copy |
data=spikes train.objective=causal | train.objective=causal: must be regression |
train.objective=regression | train.objective=regression: is for data=spikes alone |
data=spikes attn=linear | train.objective=regression: | goes one way alone
data=spikes model.window=8 | model.window=8: needs train.objective=causal; regression looks both ways |
data=spikes model.token_shift=true | model.token_shift=true: | regression looks both ways
data=spikes model.tie_word_embeddings=true | model.tie_word_embeddings=true: | not tokens
data=spikes pe=alibi | pe.bias=alibi: data=spikes predicts numbers, not tokens |
data=spikes pe=learned | pe.input=learned: | between whole ones
train.objective=mlm attn=linear | train.objective=mlm: looks both ways, and the state that attn |
train.objective=mlm attn=retention | train.objective=mlm: | attn.kind=retention keeps goes one way
train.objective=mlm attn=decay pe=vo_rope | train.objective=mlm: | attn.kind=decay keeps
train.objective=mlm model.window=8 | model.window=8: | mlm looks both ways
train.objective=mlm model.token_shift=true | model.token_shift=true: needs train.objective=causal; mlm |
data=copy train.probes=[windows] | train.probes=["windows"]: |
train.probes=[answers] | train.probes=["answers"]: |
train.probes=[floors] | train.probes=["floors"]: |
"""  # noqa: E501
LINES = [line for line in MISTAKES.splitlines() if line]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition(" |")[0])
def test_a_mistake_is_one_sentence(line: str) -> None:
    words, beginning, *reasons = (part.strip() for part in line.split(" |"))
    with refused(*reasons, by=ConfigError) as sentence:
        run_config(shlex.split(words) if "'" in words else words.split())
    assert sentence[0].startswith(beginning)
    assert sentence[0].isprintable()


LONG = {
    "seed=" + "9" * 5000: "seed: its value cannot be read",
    "optim.lr=" + "9" * 400: "optim.lr=9",
    "pe.rotate=" + "[" * 3000 + "]" * 3000: "pe.rotate: its value cannot be read",
    "run.group=" + "a" * 300: "run.group=",
    "run.group='a\\nb'": "run.group=",
}


@pytest.mark.parametrize(("word", "beginning"), LONG.items(), ids=LONG.values())
def test_an_absurd_value_is_one_sentence(word: str, beginning: str) -> None:
    with refused(by=ConfigError) as sentence:
        run_config([word])
    assert sentence[0].startswith(beginning)
    assert sentence[0].isprintable()


SECRETS = ["tracker.api_key=hunter2", "+tracker.api_key=hunter2", "tracker.api_key=~hunter2"]


@pytest.mark.parametrize("override", SECRETS)
def test_the_value_of_an_unknown_key_is_not_shown(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracker.api_key: ") as error:
        run_config([override])
    assert "hunter2" not in str(error.value)


def test_a_sweep_that_matches_nothing_is_refused() -> None:
    with refused("pe", "the sweep is empty"):
        compose_jobs(["pe=glob(zz*)"], multirun=True)
