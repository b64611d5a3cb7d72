"""
Accelerate, the Trainer of transformers, and Lightning under torchrun: with gradients through the job they
train to what they do by themselves, with their own sharding, accumulation, clipping and checkpoints.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from groups import Group

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"NOT INSTALLED: pip install {' '.join(missing)}")


START = """
import json, os, sys
import torch
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
torch.set_num_threads(1)
import penstock as ps
job = ps.init()

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))

generator = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(64, 6, generator=generator), torch.randn(64, 3, generator=generator)
)

def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()

def say(**found):
    # One file a rank: their lines would run into each other.
    with open(f"{sys.argv[1]}/{job.rank}.json", "w") as file:
        json.dump({**found, "iterations": job.iteration}, file)
"""

ACCELERATE = """
from accelerate import Accelerator

def train(shared):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    if shared:
        ps.torch.accelerate.share(accelerator)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(2)
    batches = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for epoch in range(2):
        for x, y in batches:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    return flat(model)

say(theirs=train(False), ours=train(True))
"""

TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

words = torch.randint(50, (64, 8), generator=generator)
rows = [{"input_ids": row, "labels": row} for row in words]

def train(shared):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    folder = f"{sys.argv[1]}/{shared}"
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=1e-2, save_steps=4, report_to=[], disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    if shared:
        ps.torch.accelerate.share(trainer.accelerator)
    trainer.train()
    return flat(model), sorted(os.listdir(folder))

theirs, _ = train(False)
ours, saved = train(True)
say(theirs=theirs, ours=ours, saved=saved)
"""

LIGHTNING = """
import lightning.pytorch as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

def train(strategy):
    module = Module()
    torch.manual_seed(2)
    trainer = pl.Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, accumulate_grad_batches=2,
        gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    return flat(module)

theirs = train(pl.strategies.DDPStrategy())
say(theirs=theirs, ours=train(ps.torch.lightning.Strategy()))
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ACCELERATE, id="accelerate", marks=needs("accelerate")),
        pytest.param(TRANSFORMERS, id="transformers", marks=needs("transformers", "accelerate")),
        pytest.param(LIGHTNING, id="lightning", marks=needs("lightning")),
    ],
)
def test_a_framework_trains_to_the_same_parameters_with_gradients_through_the_job(
    program: str, group: Group, script, tmp_path
) -> None:
    path = script(START + program)
    done = group.run(["torchrun", "--standalone", "--nproc-per-node", "2", path, str(tmp_path)])
    assert done.code == 0, done
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for found in ranks:
        assert found["ours"] == pytest.approx(found["theirs"], abs=1e-6)
        assert found["ours"] == ranks[0]["ours"]
        # 64 rows, two workers, batches of four, a step every two: four steps an epoch, one exchange each.
        assert found["iterations"] == 8
        assert found.get("saved", ["checkpoint-4", "checkpoint-8"]) == ["checkpoint-4", "checkpoint-8"]


@needs("accelerate")
def test_what_an_accelerator_cannot_share_is_refused_with_what_to_do(job: ps.Job) -> None:
    from accelerate import Accelerator

    with pytest.raises(
        OptionError, match=r"expected an accelerate\.Accelerator, got builtins\.object"
    ) as raised:
        ps.torch.accelerate.share(object(), job)
    assert "trainer.accelerator" in raised.value.hint
    accelerator = Accelerator(cpu=True)
    assert ps.torch.accelerate.share(accelerator, job) is accelerator
    with pytest.raises(OptionError, match="shares gradients through the job already"):
        ps.torch.accelerate.share(accelerator, job)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(OptionError, match="has prepared a model already"):
        ps.torch.accelerate.share(accelerator, job)


@needs("lightning")
def test_a_strategy_with_a_hook_of_its_own_refuses_another() -> None:
    with pytest.raises(OptionError, match="expected no ddp_comm_hook"):
        ps.torch.lightning.Strategy(ddp_comm_hook=print)
