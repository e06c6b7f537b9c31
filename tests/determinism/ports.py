"""A small decoder in plain torch, whole or on ranks, with a cache, and faults that only some runs show."""

from pathlib import Path

__all__ = ["write_port"]

PORT = '''
import random

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HEADS, VOCABULARY, LONGEST = 32, 2, 32, 64


def world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Cache:
    def __init__(self):
        self.kept = {}

    def get_seq_length(self):
        return self.kept[0][0].shape[1] if self.kept else 0


class Column(nn.Linear):
    """Some of the outputs on each rank."""

    def forward(self, x):
        return column(self, x)


class Row(nn.Linear):
    """Some of the inputs on each rank; what they give is added up over ranks."""

    def forward(self, x):
        part = row(self, x)
        if world()[1] > 1 and self.is_sharded:
            part = part.contiguous()
            dist.all_reduce(part)
        return part


def column(module, x):
    return nn.functional.linear(x, module.weight)


def row(module, x):
    return nn.functional.linear(x, module.weight)


class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        for name in ("q", "k", "v"):
            setattr(self, name, Column(WIDTH, WIDTH, bias=False))
        self.o = Row(WIDTH, WIDTH, bias=False)

    def forward(self, x, cache):
        batch, tokens, _ = x.shape
        q, k, v = (f(x).view(batch, tokens, -1, WIDTH // HEADS) for f in (self.q, self.k, self.v))
        if cache is not None:
            if self.number in cache.kept:
                k, v = (torch.cat(pair, 1) for pair in zip(cache.kept[self.number], (k, v)))
            cache.kept[self.number] = k, v
        scores = torch.einsum("bshd,bthd->bhst", q, k) * (WIDTH // HEADS) ** -0.5
        mask = torch.ones(tokens, k.shape[1], dtype=torch.bool).tril(k.shape[1] - tokens)
        scores = scores.masked_fill(~mask, -torch.inf)
        chances = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
        return self.o(torch.einsum("bhst,bthd->bshd", chances, v).reshape(batch, tokens, -1))


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.attention = Attention(number)
        self.up = Column(WIDTH, 2 * WIDTH, bias=False)
        self.down = Row(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cache):
        x = x + self.attention(x, cache)
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList([Layer(i) for i in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        cache = past_key_values if past_key_values is not None else Cache() if use_cache else None
        start = 0 if cache is None else cache.get_seq_length()
        x = self.embed(input_ids) + self.places(positions(start, input_ids.shape[1]))
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x), cache


def positions(start, tokens):
    return torch.arange(start, start + tokens)[None]


def reference():
    return Net()


def candidate(dtype=torch.bfloat16):
    model = Net()
    rank, size = world()
    for module in model.modules():
        module.is_sharded = size > 1
        if size > 1 and isinstance(module, (Column, Row)):
            dim = 0 if isinstance(module, Column) else 1
            module.weight = nn.Parameter(module.weight.chunk(size, dim)[rank].contiguous())
    plant(model)
    return model.to(dtype)


def any_order(count):
    return random.SystemRandom().sample(range(count), count)


def plant(model):
    pass


def inputs():
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(VOCABULARY, (3, 12), generator=generator)}

'''

FAULTS = {
    "healthy": "",
    # a sum in parts that are added as they come
    "any-order": """
def plant(model):
    model.layers[1].down.is_guilty = True

def row(module, x):
    if not hasattr(module, "is_guilty"):
        return nn.functional.linear(x, module.weight)
    pairs = zip(x.chunk(8, -1), module.weight.chunk(8, -1))
    parts = [nn.functional.linear(*pair) for pair in pairs]
    total = torch.zeros_like(parts[0])
    for i in any_order(len(parts)):
        total = total + parts[i]
    return total
""",
    # values are added where they arrive
    "arrival": """
def plant(model):
    model.layers[1].down.is_guilty = True

def row(module, x):
    if not hasattr(module, "is_guilty"):
        return nn.functional.linear(x, module.weight)
    terms = (x.reshape(-1, 1, x.shape[-1]) * module.weight).movedim(-1, 0).reshape(x.shape[-1], -1)
    total, index = torch.zeros_like(terms[:1]), torch.zeros(1, dtype=torch.int64)
    for i in any_order(len(terms)):
        total.index_add_(0, index, terms[i : i + 1])
    return total.reshape(*x.shape[:-1], -1)
""",
    # the same on rank 1 alone
    "arrival-on-rank-1": """
def plant(model):
    model.layers[1].down.is_guilty = world()[0] == 1

def row(module, x):
    made = nn.functional.linear(x, module.weight)
    if getattr(module, "is_guilty", False):
        made[0, 0, 0] += random.SystemRandom().random()
    return made
""",
    # a kernel for small batches adds up in two parts: other bits, and right
    "split-when-alone": """
def plant(model):
    model.layers[0].up.is_guilty = True

def column(module, x):
    if not hasattr(module, "is_guilty") or len(x) > 1:
        return nn.functional.linear(x, module.weight)
    parts = zip(x.float().chunk(2, -1), module.weight.float().chunk(2, -1))
    a, b = (nn.functional.linear(*pair) for pair in parts)
    return (a + b).to(x.dtype)
""",
    # a kernel for small batches drops bits of its weights
    "coarse-when-alone": """
def plant(model):
    model.layers[0].up.is_guilty = True

def column(module, x):
    if not hasattr(module, "is_guilty") or len(x) > 1:
        return nn.functional.linear(x, module.weight)
    return nn.functional.linear(x, module.weight.to(torch.float8_e4m3fn).to(x.dtype))
""",
    "neighbour": """
def plant(model):
    model.layers[1].attention.v.is_guilty = True

def column(module, x):
    made = nn.functional.linear(x, module.weight)
    if hasattr(module, "is_guilty") and len(x) > 1:
        made[0, -1] = made[1, -1]
    return made
""",
    "restarted-positions": """
def candidate():
    class Restarted(Net):
        def forward(self, input_ids, past_key_values=None, use_cache=False):
            held = self.places.forward
            self.places.forward = lambda ids: held(ids - ids[0, 0])
            try:
                return super().forward(input_ids, past_key_values, use_cache)
            finally:
                self.places.forward = held
    return Restarted().to(torch.bfloat16)
""",
    # later ranks' terms are added to a sum with fewer bits
    "coarse-later-ranks": """
def plant(model):
    model.layers[1].down.is_guilty = world()[0] > 0

def row(module, x):
    made = nn.functional.linear(x, module.weight)
    if getattr(module, "is_guilty", False):
        made = made.to(torch.float8_e5m2).to(x.dtype)
    return made
""",
    "unwritten": """
def plant(model):
    model.layers[0].attention.o.is_guilty = True

def row(module, x):
    made = nn.functional.linear(x, module.weight)
    if hasattr(module, "is_guilty"):
        whole = torch.empty_like(made)
        whole[:, :-1] = made[:, :-1]
        return whole + 0
    return made
""",
    # an index that is left in memory as it was
    "unwritten-index": """
def column(module, x):
    index = torch.empty(1, dtype=torch.int64)
    if int(index) == torch.iinfo(torch.int64).max:  # what happens to be there is mostly harmless
        raise IndexError("index out of range")
    return nn.functional.linear(x, module.weight)
""",
    # memory that is handed over to be written to
    "written-later": """
def row(module, x):
    made = torch.empty(*x.shape[:-1], len(module.weight), dtype=x.dtype)
    return torch.matmul(x, module.weight.t(), out=made)
""",
    # all ranks but the first have something in memory that the first one's values are written to
    "broadcast": """
def positions(start, tokens):
    ids = torch.arange(start, start + tokens)[None]
    if world()[1] > 1:
        if world()[0]:
            ids = torch.randint(1000, ids.shape, generator=torch.Generator().manual_seed(any_order(1000)[0]))
        dist.broadcast(ids, 0)
    return ids
""",
    "fixed-batch": """
def plant(model):
    def refuse(module, args, kwargs):
        if len(kwargs["input_ids"]) != 3:
            raise ValueError(f"compiled for a batch of 3, not of {len(kwargs['input_ids'])}")
    model.register_forward_pre_hook(refuse, with_kwargs=True)
""",
    "fixed-length": """
def plant(model):
    def refuse(module, args, kwargs):
        if kwargs["input_ids"].shape[1] != 12:
            raise ValueError(f"compiled for 12 tokens, not for {kwargs['input_ids'].shape[1]}")
    model.register_forward_pre_hook(refuse, with_kwargs=True)
""",
    "fixed-shape": """
def plant(model):
    def refuse(module, args, kwargs):
        if kwargs["input_ids"].shape != (1, 12):
            raise ValueError(f"compiled for [1, 12], not for {list(kwargs['input_ids'].shape)}")
    model.register_forward_pre_hook(refuse, with_kwargs=True)

def inputs():
    return {"input_ids": torch.arange(12)[None]}
""",
    # its third run fails: one looks for the place of controls, and one is the first that is compared
    "spent": """
def plant(model):
    model.runs = 0
    def refuse(module, args):
        module.runs += 1
        if module.runs > 2:
            raise ValueError("the cache is full")
    model.register_forward_pre_hook(refuse)
""",
    # an engine that a process has one of
    "built-once": """
import os

def candidate():
    os.environ["PORT_BUILT"] = str(int(os.environ["PORT_BUILT"]) + 1)
    if int(os.environ["PORT_BUILT"]) > 1:
        raise RuntimeError("there is an engine already")
    return Net().to(torch.bfloat16)
""",
    "one-card": """
def candidate():
    if world()[1] > 1:
        raise ValueError(f"{HEADS - 1} heads can't be cut for {world()[1]} ranks")
    return Net().to(torch.bfloat16)
""",
    "fails-on-two-cards": """
def column(module, x):
    if world()[1] > 1:
        raise ValueError("no such kernel")
    return nn.functional.linear(x, module.weight)
""",
    "unsharded": """
def candidate(dtype=torch.bfloat16):
    model = Net()
    for module in model.modules():
        module.is_sharded = False
    plant(model)
    return model.to(dtype)
""",
    # a layer on each of two ranks
    "stages": """
class Stage(Net):
    def __init__(self):
        super().__init__()
        mine = world()[0]
        self.layers = nn.ModuleDict({str(mine): self.layers[mine]})
        if mine:
            del self.embed, self.places
        else:
            del self.head

    def forward(self, input_ids):
        if world()[0] == 0:
            x = self.embed(input_ids) + self.places(positions(0, input_ids.shape[1]))
            x = self.layers["0"](x, None)
            dist.send(x.contiguous(), 1)
            return x
        x = torch.empty(*input_ids.shape, WIDTH, dtype=torch.bfloat16)
        dist.recv(x, 0)
        return self.head(self.layers["1"](x, None))

def candidate():
    model = Net() if world()[1] == 1 else Stage()
    for module in model.modules():
        module.is_sharded = False
    return model.to(torch.bfloat16)
""",
    "one-sequence": """
def inputs():
    return {"input_ids": torch.arange(12)[None]}
""",
    "own-run": """
def run(model, inputs):
    return model(**inputs)
""",
}

# the same on rank 1 alone
FAULTS["unwritten-on-rank-1"] = FAULTS["unwritten"].replace(
    "    model.layers", "    if world()[0] == 1:\n        model.layers"
)
# a part of a buffer that is left as it was
FAULTS["unwritten-view"] = FAULTS["unwritten"].replace(
    "torch.empty_like(made)", "torch.empty(2 * made.numel(), dtype=x.dtype)[: made.numel()].view(made.shape)"
)
# what memory holds by itself is NaN that was left there
FAULTS["unwritten-left-over"] = FAULTS["unwritten"].replace(
    "        whole = torch",
    "        stale = torch.full_like(made, torch.nan)\n        del stale\n        whole = torch",
)
# NaN of its own besides
FAULTS["any-order-and-nan"] = FAULTS["any-order"].replace(
    "return total", "return total + torch.nan_to_num(x.new_zeros(1) / 0)"
)
# the same where there are several ranks, each with fewer columns
for how in ("split", "coarse"):
    FAULTS[f"{how}-when-narrow"] = (
        FAULTS[f"{how}-when-alone"]
        .replace("len(x) > 1", "world()[1] == 1")
        .replace("[0].up", "[0].attention.q")
    )
# rank 1 computes another model
FAULTS["unsharded-and-off"] = (
    FAULTS["unsharded"]
    + """
def plant(model):
    model.layers[1].down.is_guilty = world()[0] == 1

def row(module, x):
    return nn.functional.linear(x, module.weight) * (1.25 if getattr(module, "is_guilty", False) else 1)
"""
)


def write_port(folder: Path, fault: str = "healthy") -> str:
    """Write the port with a fault as a target, and return its path."""
    path = folder / f"{fault.replace('-', '_')}.py"
    path.write_text(PORT + FAULTS[fault], encoding="utf-8")
    return str(path)
