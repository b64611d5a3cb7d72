"""Tables of which only the rows are pulled that a batch looks up: as if they were pulled whole, for less."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import DtypeError, JobClosed, OptionError, UnknownElement

torch = pytest.importorskip("torch")
nn = torch.nn

distribute = functools.partial(ps.torch.distribute, where="servers")

TRAIN = '''
import copy
import torch
from torch import nn

SIZES, WIDTH, STEPS = (6000, 300), 8, 6
RULES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, lr_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
}


class Words(nn.Module):
    """Two tables of which each step touches some rows, and a dense layer behind them."""

    def __init__(self, sparse=True):
        super().__init__()
        self.words = nn.Embedding(SIZES[0], WIDTH, sparse=sparse, padding_idx=0)
        self.bags = nn.EmbeddingBag(SIZES[1], WIDTH, sparse=sparse, mode="sum")
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, batch, with_bags):
        found = self.words(batch).sum(1)
        if with_bags:
            weights = torch.full((20,), 0.5)
            rows, offsets = batch.reshape(-1) % SIZES[1], torch.tensor([0, 3, 3, 9])
            found = found + self.bags(input=rows, offsets=offsets, per_sample_weights=weights)
        return self.out(found).squeeze(1)


def made(sparse=True):
    torch.manual_seed(3)
    return Words(sparse)


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randint(0, SIZES[0], (4, 5), generator=generator)
    # Some rows come in each step, and twice in a batch.
    batch[0, :] = torch.tensor([7, 7, 0, 5999, step])
    return batch


def loss_of(model, step, rank):
    return model(batch_of(step, rank), step % 3 != 2).square().mean()


def alone(name, size):
    """One process, on what all workers have: dense layers, as torch's Adam takes no sparse gradients."""
    model = made(sparse=False)
    optimizer = RULES[name](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(model, step, rank) / size).backward()
        optimizer.step()
    return model
'''


@pytest.mark.parametrize(("workers", "transport"), [(3, "auto"), (2, "tcp")])
def test_rows_that_are_looked_up_are_those_of_a_whole_pull_bit_for_bit(
    spawn_job: Any, workers: int, transport: str
) -> None:
    spawn_job(
        workers,
        TRAIN
        + """
few = ps.Filters(broadcast=ps.TopK(0.2))
with ps.init() as job:
    for name, rule in RULES.items():
        for overlap, check, more in (
            ("auto", True, {}), (1, False, {"filter": few}), (False, True, {"clip_norm": 0.5})
        ):
            pairs = []
            for tables in (False, True):
                model = made()
                model, optimizer = ps.torch.distribute(
                    model, rule(model.parameters()), where="servers", overlap=overlap, check=check,
                    sparse_pull=tables, **more,
                )
                pairs.append((model, optimizer))
            for step in range(STEPS):
                losses = []
                for model, optimizer in pairs:
                    optimizer.zero_grad()
                    loss = loss_of(model, step, job.rank)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                assert losses[0] == losses[1], (name, overlap, step)
                # Evaluated by one worker, on what it has not trained on.
                if job.rank == step % job.size:
                    with torch.no_grad():
                        found = [model(batch_of(step, 50), True) for model, _ in pairs]
                    assert torch.equal(*found)
            states = [model.state_dict() for model, _ in pairs]
            for what in states[0]:
                assert torch.equal(states[0][what], states[1][what]), (name, overlap, what)
            if not more:
                for got, expected in zip(states[1].values(), alone(name, job.size).parameters()):
                    torch.testing.assert_close(got, expected.detach(), rtol=2e-5, atol=2e-6)
            job.barrier()
    kept = pairs[1][0]
assert all(map(torch.equal, kept.parameters(), states[1].values())), "read before the job was left"
""",
        servers=2,
        options={"transport": transport, "chunk_bytes": "4KiB"},
    )


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
def test_out_of_step_nothing_is_lost_and_each_row_is_as_fresh_as_of_a_whole_pull(
    spawn_job: Any, consistency: str
) -> None:
    spawn_job(
        2,
        f"""
        import torch
        with ps.init() as job:
            model = torch.nn.Embedding(5000, 4, sparse=True)
            torch.nn.init.zeros_(model.weight)
            rule = torch.optim.SGD(model.parameters(), lr=1.0)
            model, optimizer = ps.torch.distribute(
                model, rule, consistency={consistency!r}, sparse_pull=True, reduce="sum"
            )
            for step in range(8):
                optimizer.zero_grad()
                batch = torch.tensor([step, 4999, 100 * job.rank, 4999])
                found = model(batch)
                # Its own steps are in what it reads, and what the others did up to the slack.
                assert torch.all(found[1] <= -2 * step), (step, found[1])
                if {consistency!r} == "ssp:2":
                    assert torch.all(found[1] <= -2 * (step + max(step - 2, 0)))
                assert torch.equal(model.weight[4999], found[1])
                found.sum().backward()
                optimizer.step()
            job.barrier()
            state = model.state_dict()["weight"]
            assert torch.all(state[4999] == -2 * 16)
            assert torch.all(state[1:8] == -2)
            assert state.sum() == -4 * 4 * 16
            job.barrier()
        """,
        options={"transport": "tcp"},
    )


def test_between_hosts_the_rows_of_the_next_batch_are_all_that_comes(spawn_job: Any) -> None:
    """Each worker looks up other rows than the other; Adam moves all of the table in each step."""
    first, _ = spawn_job(
        2,
        """
        import torch
        STEPS = 10
        with ps.init() as job:
            came = {}
            for name in ("SGD", "Adam"):
                for tables in (False, True):
                    model = torch.nn.Embedding(40_000, 16, sparse=True)
                    rule = getattr(torch.optim, name)(model.parameters(), lr=0.1)
                    model, optimizer = ps.torch.distribute(
                        model, rule, where="servers", sparse_pull=tables
                    )
                    job.barrier()
                    before = job.stats()["received_bytes"]
                    for step in range(STEPS):
                        draw = torch.Generator().manual_seed(step)
                        batch = torch.randint(0, 1000, (64,), generator=draw) + 20_000 * job.rank
                        optimizer.zero_grad()
                        model(batch).sum().backward()
                        optimizer.step()
                    came[f"{name} {tables}"] = (job.stats()["received_bytes"] - before) // STEPS
                    job.barrier()
            save(**came)
        """,
        options={"transport": "tcp"},
    )
    came = {name: int(first[name]) for name in first if " " in name}
    print(came)
    # Of 79 chunks 3 hold the rows of one worker, and 5 those of both.
    assert came["SGD True"] < came["SGD False"] / 2, came
    assert came["Adam True"] < 4 * 32 * 1024 + 10_000 < 40_000 * 16 * 4 < came["Adam False"], came


def table(job: ps.Job, rows: int = 50, *, lr: float = 1.0, **options: Any) -> Any:
    model = nn.Embedding(rows, 3, sparse=True)
    nn.init.constant_(model.weight, 1.0)
    options = {"sparse_pull": True, **options}
    return distribute(model, torch.optim.SGD(model.parameters(), lr=lr), job=job, **options)


def step(model: Any, optimizer: Any, *rows: int) -> None:
    optimizer.zero_grad()
    model(torch.tensor(rows)).sum().backward()
    optimizer.step()


def test_layers_that_are_named_are_pulled_by_rows_and_all_else_whole(job: ps.Job) -> None:
    parts = {"one": nn.Embedding(9, 2, sparse=True), "other": nn.Embedding(9, 2, sparse=True)}
    model = nn.ModuleDict({**parts, "out": nn.Linear(2, 1)})
    rule = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = distribute(model, rule, job=job, sparse_pull="other")
    rows = {shared.name: shared.reads_rows for shared in optimizer._everything}
    assert [name for name, one in rows.items() if one] == ["model/other.weight"]
    assert "rows read of ['other']" in repr(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model["out"](model["one"](torch.tensor([1])) + model["other"](torch.tensor([2]))).sum().backward()
        optimizer.step()
    assert torch.equal(model["one"].weight, model.state_dict()["one.weight"])
    assert not torch.equal(model["other"].weight, model.state_dict()["other.weight"])


def test_whoever_reads_the_table_whole_is_given_it(job: ps.Job) -> None:
    model, optimizer = table(job)
    whole = nn.Sequential(model)
    for _ in range(3):
        step(model, optimizer, 3, 4)
    expected = torch.ones(50, 3)
    expected[3:5] = -2
    assert not torch.equal(model.weight, expected)
    for state in (model.state_dict(), whole.state_dict()):
        assert torch.equal(next(iter(state.values())), expected)
    with optimizer.exact():
        assert torch.equal(model.weight, expected)
    assert torch.equal(copy.deepcopy(model).weight, expected)
    step(model, optimizer, 3)
    expected[3] -= 1
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded.weight, expected)
    # An ordinary layer, which asks nobody.
    loaded(torch.tensor([1])).sum().backward()
    step(model, optimizer, 3)
    optimizer.flush()
    job.close()
    expected[3] -= 1
    assert torch.equal(model.weight, expected)
    assert torch.equal(model(torch.tensor([3])), expected[3:4])


def test_in_one_step_rows_are_pulled_once_also_for_several_passes(job: ps.Job) -> None:
    model, optimizer = table(job, overlap=3)
    for number in range(3):
        optimizer.zero_grad()
        pulled = []
        for rows in ([1, 2], [2, 3], [3, 1]):
            before = job.stats()["pulled_bytes"]
            model(torch.tensor(rows)).sum().backward()
            pulled.append(job.stats()["pulled_bytes"] - before)
        assert pulled == [2 * 12, 12, 0]
        optimizer.step()
        assert torch.all(model.state_dict()["weight"][1:4] == 1 - 2 * (number + 1))
        before = job.stats()["pulled_bytes"]
        model(torch.empty(0, dtype=torch.int64))
        assert job.stats()["pulled_bytes"] == before


def test_a_graph_over_rows_that_were_read_holds_while_others_are_pulled(job: ps.Job) -> None:
    bags = nn.EmbeddingBag(20, 3, sparse=True, mode="sum")
    nn.init.constant_(bags.weight, 1.0)
    bags, optimizer = distribute(
        bags, torch.optim.SGD(bags.parameters(), lr=1.0), job=job, sparse_pull=True, overlap=False
    )
    # Whose gradients are of the rows that were read.
    weights = torch.tensor([[2.0, 3.0]], requires_grad=True)
    first = bags(torch.tensor([[1, 2]]), per_sample_weights=weights)
    second = bags(torch.tensor([[2, 5]]), per_sample_weights=weights)
    (first + second).sum().backward()
    optimizer.step()
    assert torch.all(bags.state_dict()["weight"][[1, 2, 5]] == torch.tensor([[-1.0], [-4.0], [-2.0]]))
    # A graph over what was read before the step is no more.
    later = bags(torch.tensor([[1, 2]]), per_sample_weights=weights)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        later.sum().backward()


@pytest.mark.parametrize("check", [True, False])
def test_rows_that_the_script_changes_are_noticed_and_published_if_they_are_whole(
    job: ps.Job, check: bool
) -> None:
    model, optimizer = table(job, check=check)
    step(model, optimizer, 3)
    model(torch.tensor([3, 8]))
    if check:
        with torch.no_grad():
            kept = model.weight[8].clone()
            model.weight.data[8, 1] = 9
        with pytest.raises(OptionError, match="changed outside of step"):
            optimizer.step()
        with torch.no_grad():
            model.weight[8] = kept
        optimizer.step()
    with pytest.raises(OptionError, match=r"lacks something of the servers' value.*rows of earlier") as error:
        optimizer.publish()
    assert "publish() inside `with optimizer.exact():`" in error.value.hint
    with optimizer.exact(), torch.no_grad():
        model.weight.clamp_(min=0.5)
        optimizer.publish()
    assert torch.equal(model.state_dict()["weight"].min(), torch.tensor(0.5))
    assert torch.all(model(torch.tensor([3])) == 0.5)
    model.load_state_dict({"weight": torch.arange(150.0).reshape(50, 3)})
    assert torch.equal(model(torch.tensor([49, 0]))[:, 0], torch.tensor([147.0, 0.0]))
    step(model, optimizer, 49)
    assert model.state_dict()["weight"][49, 0] == 146


def counted(weight: Any) -> None:
    weight.clamp_(min=0.5)


def uncounted(weight: Any) -> None:
    weight.data.clamp_(min=0.5)


def replaced(weight: Any) -> None:
    weight.data = weight.data.clamp(min=0.5)


@pytest.mark.parametrize("change", [counted, uncounted, replaced])
@pytest.mark.parametrize("who", ["layer", "ahead", "step", "exact", "copy", "close"])
def test_what_a_script_writes_into_a_table_is_refused_where_the_servers_rows_would_replace_it(
    change: Any, who: str
) -> None:
    with ps.init(deadline=20) as job:
        model, optimizer = table(job)
        step(model, optimizer, 3)
        step(model, optimizer, 3, 4)
        # Row 3 is 0 in the parameter, as it was pulled for the last step.
        with torch.no_grad():
            change(model.weight)
        held = model.weight.detach().clone()
        if who == "close":
            with pytest.warns(UserWarning, match="the script has written to `model/weight` since"):
                job.close()
            assert torch.equal(model.weight, held)
            return

        def loses() -> None:
            if who == "layer":
                model(torch.tensor([4, 3]))
            elif who == "ahead":
                optimizer.prefetch(model, torch.tensor([3]))
                model(torch.tensor([9]))
            elif who == "step":
                # Of what torch has not counted the step loses nothing: row 3 stays as it is.
                model(torch.tensor([4]) if change is counted else torch.tensor([3]))
                optimizer.step()
            elif who == "exact":
                with optimizer.exact():
                    pass
            else:
                copy.deepcopy(model)

        for _ in range(2):
            with pytest.raises(OptionError, match=r"`model\S*/?weight` was changed outside of step") as error:
                loses()
            assert torch.equal(model.weight[3], held[3])
        assert "puts back the servers' values" in error.value.hint
        model.load_state_dict(model.state_dict())
        for one in range(2):
            assert torch.all(model(torch.tensor([3])) == -1 - one)
            step(model, optimizer, 3)
        with optimizer.exact(), torch.no_grad():
            change(model.weight)
            optimizer.publish()
        assert torch.all(model(torch.tensor([3])) == 0.5)
        step(model, optimizer, 3)
        # An error in the block has what was changed there be replaced, as of a whole parameter.
        with pytest.raises(KeyError), optimizer.exact(), torch.no_grad():
            change(model.weight)
            raise KeyError
        assert torch.all(model(torch.tensor([3])) == -0.5)


def test_what_is_put_back_or_moved_bit_for_bit_is_no_change_of_a_table(job: ps.Job) -> None:
    model, optimizer = table(job)
    for number in range(3):
        optimizer.zero_grad()
        model(torch.tensor([3])).sum().backward()
        # As SAM does.
        with torch.no_grad():
            before = model.weight.clone()
            model.weight.add_(1)
            model(torch.tensor([3]))
            model.weight.copy_(before)
        optimizer.step()
        model.weight.data = model.weight.data.clone()
        assert torch.all(model(torch.tensor([3, 8])) == torch.tensor([[0.0 - number], [1.0]]))


def test_a_load_into_a_part_must_be_published_and_one_that_names_no_table_leaves_it(job: ps.Job) -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 2, sparse=True), "out": nn.Linear(2, 1)})
    nn.init.zeros_(model["words"].weight)
    rule = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = distribute(model, rule, job=job, sparse_pull=True)
    optimizer.zero_grad()
    model["words"](torch.tensor([2])).sum().backward()
    optimizer.step()
    # Of a table that nobody has read since the step, in the part, too.
    model["words"].load_state_dict({"weight": torch.ones(9, 2)})
    with pytest.raises(OptionError, match="changed outside of step"):
        optimizer.step()
    model.load_state_dict({"out.bias": torch.ones(1)}, strict=False)
    assert model["words"](torch.tensor([2])).tolist() == [[-1, -1]]
    assert model.state_dict()["words.weight"].sum() == -2
    assert model["out"].bias.item() == 1


def test_what_cannot_be_pulled_by_rows_is_refused_by_name(job: ps.Job) -> None:
    def model(**more: Any) -> Any:
        tables = {"words": nn.Embedding(9, 2, sparse=True), "dense": nn.Embedding(9, 2)}
        return nn.ModuleDict({**tables, "out": nn.Linear(2, 9), **more})

    for given, says in (
        ("out", "`out` is a Linear"),
        (["words", "nowhere"], "no `nowhere`"),
        ("dense", "`dense` has dense gradients"),
        ("words.weight", "no `words.weight`"),
        (3, "got 3"),
        ([2], r"got \[2\]"),
        (None, "got None"),
    ):
        one = model()
        with pytest.raises(OptionError, match=says):
            distribute(one, torch.optim.SGD(one.parameters(), lr=1.0), job=job, sparse_pull=given)
        # Nothing was distributed.
        distribute(one, torch.optim.SGD(one.parameters(), lr=1.0), job=job)
    for layer in (nn.Embedding, nn.EmbeddingBag):
        bounded = layer(9, 2, sparse=True, max_norm=1.0)
        for given in (True, "bounded"):
            one = model(bounded=bounded)
            with pytest.raises(OptionError, match="without max_norm for sparse_pull, `bounded` has one"):
                distribute(one, torch.optim.SGD(one.parameters(), lr=1.0), job=job, sparse_pull=given)
    tied = model()
    tied["out"].weight = tied["words"].weight
    with pytest.raises(OptionError, match="`out` has the same weight as a layer"):
        distribute(tied, torch.optim.SGD(tied.parameters(), lr=1.0), job=job, sparse_pull=True)
    none = nn.Linear(2, 2)
    with pytest.raises(OptionError, match="expected a layer with sparse=True"):
        distribute(none, torch.optim.SGD(none.parameters(), lr=1.0), job=job, sparse_pull=True)
    with pytest.raises(OptionError, match='no sparse_pull with where="gradients"'):
        ps.torch.distribute(model(), job=job, sparse_pull=True)


def test_a_layer_that_is_given_a_max_norm_later_is_refused_before_it_changes_a_row(job: ps.Job) -> None:
    model, _ = table(job)
    before = model(torch.tensor([3])).detach().clone()
    model.max_norm = 0.001
    with pytest.raises(OptionError, match="without max_norm for sparse_pull"):
        model(torch.tensor([3]))
    assert torch.equal(model.weight[3], before[0])


def test_a_row_that_there_is_not_and_a_table_that_is_used_otherwise_are_errors(job: ps.Job) -> None:
    model, optimizer = table(job)
    for rows in ([50], [-1], [3, 1000]):
        with pytest.raises(UnknownElement, match="expected indices from 0 to 49"):
            model(torch.tensor(rows))
    with pytest.raises(RuntimeError):
        model(torch.tensor([0.5]))
    step(model, optimizer, 1)
    optimizer.zero_grad()
    with pytest.raises(OptionError, match="used otherwise than by its layer"):
        model.weight.sum().backward()
    with pytest.raises(OptionError, match="used otherwise than by its layer"):
        optimizer.step()
    optimizer.zero_grad()
    step(model, optimizer, 1)


@pytest.mark.parametrize("overlap", ["auto", False])
@pytest.mark.parametrize("how", ["functional", "forward", "ahead"])
def test_a_sparse_gradient_of_rows_that_the_layer_did_not_pull_is_refused_before_anything_is_sent(
    job: ps.Job, how: str, overlap: Any
) -> None:
    words = nn.Embedding(9, 1, sparse=True)
    nn.init.ones_(words.weight)
    model = nn.ModuleDict({"dense": nn.Linear(1, 1), "words": words})
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = distribute(model, rule, job=job, sparse_pull=True, overlap=overlap)

    def otherwise(rows: Any) -> Any:
        if how == "ahead":
            optimizer.prefetch(model["words"], rows)
        if how == "forward":
            return model["words"].forward(rows)
        return nn.functional.embedding(rows, model["words"].weight, sparse=True)

    def loss(found: Any) -> Any:
        return model["dense"](found**2).sum()

    for _ in range(2):
        before = model.state_dict()
        refused = pytest.raises(OptionError, match=r"names row 3, which was not pulled")
        with refused as error:
            loss(otherwise(torch.tensor([3]))).backward()
        assert "call the layer, as layer(x)" in error.value.hint
        # Nor where the gradient is put there by hand, or the error was caught.
        with refused:
            optimizer.step()
        model["words"].weight.grad = torch.autograd.grad(
            loss(otherwise(torch.tensor([3]))), model["words"].weight
        )[0]
        with refused:
            optimizer.step()
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        # A gradient that is thrown away counts no more.
        optimizer.zero_grad()
        loss(model["words"](torch.tensor([3, 4]))).backward()
        # What the layer has pulled may be read otherwise.
        loss(otherwise(torch.tensor([4]))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_all_that_the_layer_may_be_used_for_goes_on_as_with_a_whole_table(job: ps.Job) -> None:
    class Both(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Embedding(20, 3, sparse=True, padding_idx=0)
            self.tied = nn.Embedding(20, 3, sparse=True)
            self.tied.weight = self.one.weight
            self.bags = nn.EmbeddingBag(20, 3, sparse=True, mode="sum")
            nn.init.constant_(self.one.weight, 0.5)
            nn.init.constant_(self.bags.weight, 0.25)

        def forward(self, rows: Any) -> Any:
            again = torch.utils.checkpoint.checkpoint(self.tied, rows + 1, use_reentrant=False)
            return (self.one(rows) * again).sum() + (self.bags(rows) ** 2).sum()

    pairs = []
    for rows in (False, True):
        model = Both()
        pairs.append(
            distribute(
                model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, sparse_pull=rows, overlap=False
            )
        )
    for model, optimizer in pairs:
        batches = [torch.tensor([[0, 3, 3]]), torch.tensor([[5, 0, 7]]), torch.tensor([[3, 1, 2]])]
        for number in range(3):
            optimizer.zero_grad(set_to_none=number != 1)
            if model is pairs[1][0]:
                optimizer.prefetch(model.bags, batches[0])
            for batch in batches:
                model(batch).backward()
            # A look at all between a forward and its backward pass.
            loss = model(batches[1])
            with optimizer.exact():
                pass
            loss.backward()
            optimizer.step()
        # A gradient that stays for one more step, a step of no rows, and one without a gradient.
        optimizer.step()
        optimizer.zero_grad()
        model(torch.zeros(0, 1, dtype=torch.int64)).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
    states = [model.state_dict() for model, _ in pairs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_rows_are_not_read_between_the_gradients_leaving_and_the_step(job: ps.Job) -> None:
    model, optimizer = table(job, overlap=1)
    step(model, optimizer, 1)
    optimizer.zero_grad()
    model(torch.tensor([1])).sum().backward()
    # What was read is there still.
    model(torch.tensor([1]))
    with pytest.raises(OptionError, match="before its gradient left for the servers"):
        model(torch.tensor([2]))
    with pytest.raises(OptionError, match="to be copied"):
        copy.deepcopy(model)
    optimizer.step()
    model(torch.tensor([2]))


def test_rows_that_were_not_read_before_a_job_failed_are_an_error() -> None:
    with pytest.raises(KeyError), ps.init() as job:
        model, optimizer = table(job)
        step(model, optimizer, 1)
        model(torch.tensor([1]))
        raise KeyError
    assert torch.all(model(torch.tensor([1])) == 0)
    with pytest.raises(JobClosed, match="before the job ended"):
        model(torch.tensor([2]))
    with pytest.warns(UserWarning, match="the job has ended"):
        model.state_dict()
    # A later job begins with what it holds.
    with ps.init() as other:
        model, optimizer = table_of(model, other)
        step(model, optimizer, 2)
        model(torch.tensor([2]))


def table_of(model: Any, job: ps.Job) -> Any:
    return distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), job=job, sparse_pull=True)


def test_rows_that_an_evaluation_in_inference_mode_reads_are_those_of_training(job: ps.Job) -> None:
    model, optimizer = table(job)
    for number in range(3):
        with torch.inference_mode():
            assert torch.all(model(torch.tensor([3, 9])) == torch.tensor([[1.0 - number], [1.0]]))
        step(model, optimizer, 3)
        with torch.inference_mode(), optimizer.exact():
            assert torch.all(model(torch.tensor([3])) == -number)
    assert torch.all(model.state_dict()["weight"][3] == -2)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_rows_that_were_asked_for_ahead_are_those_of_the_step(spawn_job: Any, transport: str) -> None:
    spawn_job(
        2,
        TRAIN
        + """
with ps.init() as job:
    pairs = []
    for tables in (False, ["words"]):
        model = made()
        rule = RULES["adam"](model.parameters())
        pairs.append(ps.torch.distribute(model, rule, where="servers", sparse_pull=tables))
    for step in range(STEPS):
        for number, (model, optimizer) in enumerate(pairs):
            optimizer.zero_grad()
            if number and step % 4:
                optimizer.prefetch(model.words, batch_of(step, job.rank))
            if number and step % 4 == 2:
                # Of what is asked for and not looked up nothing is kept.
                optimizer.prefetch(model.words, batch_of(step, 70))
            if number and step % 4 == 3:
                model(batch_of(step, 60), False)
            loss_of(model, step, job.rank).backward()
            optimizer.step()
            if number and step == 1:
                optimizer.prefetch(model.words, batch_of(step, 80))
                optimizer.flush()
                model.words(torch.tensor([3]))
        found = [model(batch_of(step, 50), True) for model, _ in pairs]
        assert torch.equal(*found), step
    for one, other in zip(*(model.state_dict().values() for model, _ in pairs)):
        assert torch.equal(one, other)
    job.barrier()
""",
        options={"transport": transport},
    )


def test_what_cannot_be_asked_for_ahead_is_refused(job: ps.Job) -> None:
    model, optimizer = table(job, overlap=1)
    step(model, optimizer, 1)
    other = nn.Embedding(9, 2, sparse=True)
    for given in (other, "words", None):
        with pytest.raises(OptionError, match="expected a layer of which rows are pulled"):
            optimizer.prefetch(given, torch.tensor([1]))
    for indices in ([1], torch.tensor([0.5])):
        with pytest.raises(DtypeError, match="whole numbers"):
            optimizer.prefetch(model, indices)
    with pytest.raises(UnknownElement):
        optimizer.prefetch(model, torch.tensor([50]))
    optimizer.zero_grad()
    model(torch.tensor([1])).sum().backward()
    optimizer.prefetch(model, torch.tensor([1]))
    with pytest.raises(OptionError, match="before its gradient left"):
        optimizer.prefetch(model, torch.tensor([2]))
    optimizer.step()
    optimizer.prefetch(model, torch.tensor([[2, 1], [1, 1]]))
    optimizer.step()
    optimizer.prefetch(model, torch.tensor([2]))
    job.close()
    assert torch.all(model(torch.tensor([1])) == -2)


def test_layers_of_a_compiled_model_pull_their_rows(job: ps.Job) -> None:
    words = nn.Sequential(nn.Embedding(50, 3, sparse=True), nn.Linear(3, 1))
    nn.init.constant_(words[0].weight, 1.0)
    words, optimizer = distribute(
        words, torch.optim.SGD(words.parameters(), lr=1.0), job=job, sparse_pull=True
    )
    compiled = torch.compile(words, backend="eager")
    for number in range(3):
        optimizer.zero_grad()
        compiled(torch.tensor([number, 7])).sum().backward()
        optimizer.step()
        with optimizer.exact():
            expected = words[0].weight[[7, number]].clone()
        compiled(torch.tensor([7, number]))
        assert torch.equal(words[0].weight[[7, number]], expected)


class Inside(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


def two_parts(job: ps.Job, **options: Any) -> Any:
    """A table whose row 2 the parameter lacks: it is -1 on the servers."""
    model = nn.ModuleDict({"words": nn.Embedding(9, 2, sparse=True), "out": nn.Linear(2, 1)})
    nn.init.zeros_(model["words"].weight)
    options = {"sparse_pull": True, **options}
    model, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), job=job, **options)
    model["words"](torch.tensor([2])).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_load_through_a_wrapper_that_names_no_table_leaves_it(job: ps.Job) -> None:
    model, _ = two_parts(job)
    Inside(model).load_state_dict({"model.out.bias": torch.full((1,), 3.0)}, strict=False)
    assert model.state_dict()["words.weight"].sum() == -2
    assert model["words"](torch.tensor([2])).tolist() == [[-1, -1]]
    assert model["out"].bias.item() == 3
    assert b"penstock" not in pickle.dumps(model)
    whole = {"model.words.weight": torch.ones(9, 2)}
    Inside(model).load_state_dict(whole, strict=False)
    assert torch.all(model.state_dict()["words.weight"] == 1)


def test_workers_load_through_a_wrapper_and_all_keep_the_table(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import torch
        from torch import nn
        with ps.init() as job:
            model = nn.ModuleDict({"words": nn.Embedding(9, 2, sparse=True), "out": nn.Linear(2, 1)})
            nn.init.zeros_(model["words"].weight)
            rule = torch.optim.SGD(model.parameters(), lr=1.0)
            model, optimizer = ps.torch.distribute(
                model, rule, where="servers", sparse_pull=True, reduce="sum"
            )
            holder = nn.Sequential(model)
            for _ in range(3):
                optimizer.zero_grad()
                # Each of them holds other rows of the last step.
                model["words"](torch.tensor([2 + job.rank])).sum().backward()
                optimizer.step()
                holder.load_state_dict({"0.out.bias": torch.ones(1)}, strict=False)
            state = model.state_dict()
            assert state["words.weight"][2:4].tolist() == [[-3, -3], [-3, -3]], state
            assert state["words.weight"].sum() == -12
            job.barrier()
        """,
    )


class LoadsItself(nn.ModuleDict):  # type: ignore[misc,name-defined]
    """Its class loads its own parameters, and calls no hook."""

    def _load_from_state_dict(self, *_: Any) -> None:
        pass


def test_a_class_that_calls_no_hook_before_a_load_keeps_the_table(job: ps.Job) -> None:
    model = LoadsItself({"words": nn.Embedding(9, 2, sparse=True), "out": nn.Linear(2, 1)})
    nn.init.zeros_(model["words"].weight)
    model, optimizer = table_of(model, job)
    model["words"](torch.tensor([2])).sum().backward()
    optimizer.step()
    model.load_state_dict({"out.bias": torch.ones(1)}, strict=False)
    assert model.state_dict()["words.weight"].sum() == -2
    model.load_state_dict({"words.weight": torch.ones(9, 2)}, strict=False)
    assert torch.all(model.state_dict()["words.weight"] == 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_load_into_a_compiled_model_that_names_no_table_leaves_it(job: ps.Job) -> None:
    model, _ = two_parts(job)
    compiled = torch.compile(model, backend="eager")
    part = {key: value for key, value in compiled.state_dict().items() if "words" not in key}
    compiled.load_state_dict(part, strict=False)
    assert model.state_dict()["words.weight"].sum() == -2


def test_what_a_load_leaves_alone_is_known_whatever_its_hooks_do(job: ps.Job) -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 2, sparse=True), "out": nn.Linear(2, 1)})
    nn.init.zeros_(model["words"].weight)
    model.register_load_state_dict_post_hook(lambda _, found: found.missing_keys.clear())
    rule = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = distribute(model, rule, job=job, sparse_pull=True)
    model["words"](torch.tensor([2])).sum().backward()
    optimizer.step()
    model.load_state_dict({"out.bias": torch.ones(1)}, strict=False)
    assert model.state_dict()["words.weight"].sum() == -2

    # A name of old that the layer's own hook knows.
    def renames(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        if f"{prefix}table" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}table")

    model["words"].register_load_state_dict_pre_hook(renames)
    step_of = model["words"](torch.tensor([2])).sum()
    step_of.backward()
    optimizer.step()
    model.load_state_dict({"words.table": torch.full((9, 2), 4.0)}, strict=False)
    assert torch.all(model.state_dict()["words.weight"] == 4)
    # A copy has none of our hooks, those before loads neither.
    copied = copy.deepcopy(model)
    copied.load_state_dict({"out.bias": torch.zeros(1)}, strict=False)
    assert "penstock" not in repr([vars(one) for one in copied.modules()])
    # What is refused is not loaded.
    optimizer.step()
    model["words"](torch.tensor([2])).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"words.weight": torch.ones(3, 2)}, strict=False)
    assert model.state_dict()["words.weight"][2, 0] != 4


class Shifted(nn.Embedding):  # type: ignore[misc,name-defined]
    def forward(self, indices: Any) -> Any:
        return super().forward(indices + 1)


def test_layers_that_read_other_rows_than_they_are_given_are_not_pulled_by_rows(job: ps.Job) -> None:
    model = nn.ModuleDict({"own": Shifted(9, 2, sparse=True), "words": nn.Embedding(9, 2, sparse=True)})
    replaced = nn.Embedding(9, 2, sparse=True)
    replaced.forward = lambda indices: nn.Embedding.forward(replaced, indices + 1)
    model["replaced"] = replaced
    for name in ("own", "replaced"):
        with pytest.raises(OptionError, match=f"`{name}`, .* has a forward of its own"):
            distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), job=job, sparse_pull=name)
    alone = Shifted(9, 2, sparse=True)
    with pytest.raises(OptionError, match=r"the model has none .but such with a forward of their own"):
        distribute(alone, torch.optim.SGD(alone.parameters(), lr=1.0), job=job, sparse_pull=True)
    for one in model.values():
        nn.init.zeros_(one.weight)
    model, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=1.0), job=job, sparse_pull=True
    )
    for number in range(3):
        # What is read is what was stepped.
        found = {name: one(torch.tensor([3])) for name, one in model.items()}
        assert all(torch.all(one == -number) for one in found.values()), found
        optimizer.zero_grad()
        sum(one.sum() for one in found.values()).backward()
        optimizer.step()
    model["words"].forward = lambda indices: nn.Embedding.forward(model["words"], indices + 1)
    with pytest.raises(OptionError, match="its forward was replaced"):
        model["words"](torch.tensor([3]))


def test_a_hook_behind_ours_that_may_change_indices_is_refused(job: ps.Job) -> None:
    def shifts(_: Any, given: Any) -> Any:
        return (given[0] + 1,)

    model = nn.Embedding(9, 2, sparse=True)
    nn.init.zeros_(model.weight)
    before = model.register_forward_pre_hook(shifts)
    model, optimizer = table_of(model, job)
    for number in range(3):
        assert torch.all(model(torch.tensor([3])) == -number)
        step(model, optimizer, 3)
    before.remove()
    handle = model.register_forward_pre_hook(shifts)
    with pytest.raises(OptionError, match="a forward pre-hook was registered on it after"):
        model(torch.tensor([3]))
    handle.remove()
    model.register_forward_pre_hook(shifts, prepend=True)
    assert torch.all(model(torch.tensor([3])) == -3)


def test_a_replica_is_refused_unless_the_table_is_whole(job: ps.Job) -> None:
    model = nn.Sequential(nn.Embedding(9, 2, sparse=True))
    nn.init.zeros_(model[0].weight)
    model, optimizer = table_of(model, job)
    step(model, optimizer, 3)
    # As nn.DataParallel makes them, of several devices.
    replica = model[0]._replicate_for_data_parallel()
    replica.weight = model[0].weight.detach().clone()
    with pytest.raises(OptionError, match=r"as in a replica of nn.DataParallel"):
        replica(torch.tensor([3]))
    with optimizer.exact():
        replica.weight = model[0].weight.detach().clone()
        assert torch.all(replica(torch.tensor([3])) == -1)


def test_a_weight_that_was_replaced_is_read_as_it_is(job: ps.Job) -> None:
    model = nn.Sequential(nn.Embedding(9, 2, sparse=True))
    nn.init.zeros_(model[0].weight)
    model, optimizer = table_of(model, job)
    step(model, optimizer, 3)
    # Over the same memory it is the table.
    named = {"0.weight": model[0].weight.detach()}
    assert torch.all(torch.func.functional_call(model, named, (torch.tensor([3]),)) == -1)
    bigger = nn.Parameter(torch.zeros(20, 2))
    model[0].weight = bigger
    model[0].num_embeddings = 20
    optimizer.add_param_group({"params": [bigger]})
    for number in range(3):
        assert torch.all(model(torch.tensor([15])) == -number)
        step(model, optimizer, 15)


@pytest.mark.parametrize("check", [True, False])
def test_a_table_that_was_copied_is_read_at_the_end_all_the_same(check: bool) -> None:
    with ps.init() as job:
        held_back = ps.Filters(broadcast=ps.DVF(0.5, decay=None))
        model, optimizer = table(job, lr=0.25, filter=held_back, check=check)
        step(model, optimizer, 3)
        copied = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        assert torch.all(copied.weight == 1)
    assert torch.all(model.weight[3] == 0.75)


def test_a_table_that_the_script_wrote_to_is_left_with_a_warning() -> None:
    with ps.init() as job:
        model, optimizer = table(job)
        step(model, optimizer, 3)
        with torch.no_grad():
            model.weight[7] = 5
        with pytest.warns(UserWarning, match="the script has written to `model/weight` since"):
            job.close()
    assert torch.all(model.weight[7] == 5)


def test_a_change_of_a_part_that_lacks_something_is_put_back_as_the_hint_says(job: ps.Job) -> None:
    for check in (True, False):
        model, optimizer = two_parts(job, check=check)
        optimizer.flush()
        # Of rows that were not read only a load is noticed.
        model["words"].load_state_dict({"weight": torch.ones(9, 2)})
        for refused in (optimizer.step, optimizer.publish):
            with pytest.raises(OptionError) as error:
                refused()
            assert "model.load_state_dict(model.state_dict())" in error.value.hint
        model.load_state_dict(model.state_dict())
        assert torch.all(model["words"](torch.tensor([2])) == -1)
        with optimizer.exact(), torch.no_grad():
            model["words"].weight.clamp_(min=-0.5)
            optimizer.publish()
        assert model.state_dict()["words.weight"].sum() == -1
        optimizer.step()


def test_tied_tables_are_read_once_for_a_state_and_share_it(job: ps.Job) -> None:
    first, second = nn.Embedding(900, 8, sparse=True), nn.Embedding(900, 8, sparse=True)
    second.weight = first.weight
    model = nn.ModuleDict({"first": first, "second": second, "alias": first})
    model, optimizer = distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        job=job,
        sparse_pull=True,
    )
    given: dict[str, Any] = {}
    for number in range(2):
        expected = model["first"](torch.tensor([3])).detach() - 1
        optimizer.zero_grad()
        model["first"](torch.tensor([3])).sum().backward()
        optimizer.step()
        before = job.stats()["pulled_bytes"]
        state = model.state_dict()
        assert job.stats()["pulled_bytes"] - before == 900 * 8 * 4
        assert len({one.data_ptr() for one in state.values()}) == 1
        for into in (state, given):
            model.state_dict(destination=into)
            assert torch.equal(into["second.weight"][3:4], expected), number


def test_a_layer_may_be_named_by_each_name_that_it_has(job: ps.Job) -> None:
    words = nn.Embedding(9, 2, sparse=True)
    model = nn.ModuleDict({"first": words, "alias": words})
    model, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=1.0), job=job, sparse_pull="alias"
    )
    assert [shared.reads_rows for shared in optimizer._everything] == [True]


def test_hooks_of_the_script_that_rename_and_convert_what_is_saved_have_all_of_it(job: ps.Job) -> None:
    def renames(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
        state[f"{prefix}table"] = state.pop(f"{prefix}weight")

    def halves(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].half()

    for hook, key in ((renames, "table"), (halves, "weight")):
        model = nn.Embedding(9, 2, sparse=True)
        nn.init.zeros_(model.weight)
        model.register_state_dict_post_hook(hook)
        model, optimizer = table_of(model, job)
        step(model, optimizer, 3)
        state = model.state_dict()
        assert list(state) == [key]
        assert torch.all(state[key][3] == -1)
        assert state[key].dtype is (torch.half if hook is halves else torch.float32)


def test_who_moves_parameters_is_said_where_there_are_none_but_tables(job: ps.Job) -> None:
    _, optimizer = table(job, propagation="auto")
    assert optimizer.propagation == "pull"
    assert "nothing to be broadcast" in repr(optimizer)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    _, optimizer = distribute(
        frozen, torch.optim.SGD(frozen.parameters(), lr=1.0), job=job, propagation="auto"
    )
    assert optimizer.propagation == "pull"


def test_workers_pull_rows_of_the_same_tables(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import torch
        with ps.init() as job:
            model = torch.nn.Embedding(9, 2, sparse=True)
            rule = torch.optim.SGD(model.parameters(), lr=1.0)
            try:
                ps.torch.distribute(
                    model, rule, where="servers", prefix="m", sparse_pull=job.rank == 0
                )
            except ps.exceptions.PenstockError as error:
                save(told=type(error).__name__)
                raise
        """,
        fails=True,
    )
    assert any(str(one["told"]) == "DeclarationConflict" for one in saved if "told" in one)
