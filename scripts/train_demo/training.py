"""What both demos are trained with: the clock, the processes, the optimiser, steps as CUDA graphs."""
import datetime
import json
import math
import os
import signal
import time

import torch
import torch.distributed as dist

EMA = 0.998
UNLIMITED = 1e6  # minutes


class Clock:
    def __init__(self, minutes):
        self.started = time.monotonic()
        self.deadline = self.started + 60 * minutes

    def end_at_sigterm(self):
        """As when the time is up; for a loop that asks `over`."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "deadline", 0))

    def over(self):
        return time.monotonic() > self.deadline

    def seconds(self):
        return time.monotonic() - self.started


class Group:
    """The processes, a GPU each, that torchrun started for one training; without it, one alone."""

    def __init__(self, device):
        self.rank, self.size = (int(os.environ.get(name, default)) for name, default in
                                (("RANK", 0), ("WORLD_SIZE", 1)))
        self.device = torch.device(device)
        if self.size > 1:
            on_gpus = self.device.type == "cuda"
            if on_gpus:
                self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(self.device)
            # They wait while the first one trains the autoencoder.
            dist.init_process_group("nccl" if on_gpus else "gloo", timeout=datetime.timedelta(hours=2),
                                    device_id=self.device if on_gpus else None)

    def sum(self, tensor):
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag):
        """Is it so in any of them? Waits for all."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0) if self.size > 1 else flag

    def in_turn(self, prepare):
        """What it returns: of the first process, which leaves files, and then of the others, which find them."""
        prepared = prepare() if self.rank == 0 else None
        self.any(False)
        return prepared if self.rank == 0 else prepare()


class Log:
    """The first process's alone: where `path` is None, nothing is told."""

    def __init__(self, path):
        self.path = path

    def __call__(self, **values):
        if not self.path:
            return
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()})
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def cosine(step, steps, peak, warmup):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / (steps - warmup))))


def trapezoid(step, warmup, done, level=2 / 3):
    """Up, level until so much is done, then down to 0; before that nothing depends on how long it will be.
    `done`: the share that lies behind."""
    return min((step + 1) / warmup, 1, (1 - done) / (1 - level))


def leave_signals(_):
    """A signal to all processes of a job is for the trainer, which keeps its state first. A worker that it does
    not end then ends by itself after a minute."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: signal.alarm(60))


def as_made(sample):
    return sample


def loader(dataset, first, workers):
    return iter(torch.utils.data.DataLoader(
        dataset, batch_size=None, sampler=range(first, len(dataset)), num_workers=workers, worker_init_fn=leave_signals,
        prefetch_factor=4 if workers else None, timeout=600 if workers else 0, pin_memory=False, collate_fn=as_made))


def to_input(pictures):
    return pictures / 127.5 - 1


def mixed(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def sample_times(n, device):
    """Mostly where layouts form: logit-normal, shifted towards noise; some uniform."""
    u = torch.sigmoid(torch.randn(n, device=device))
    t = 2 * u / (1 + u)
    return torch.where(torch.rand(n, device=device) < 0.2, torch.rand(n, device=device), t)


def pinned(tensor, device):
    """In page-locked memory where a GPU is to read it: a copy from elsewhere would wait for its work."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Flat:
    """Parameters and gradients of a model as views of one tensor each: one launch for what would be
    hundreds. The matrices inside layers come first, those of one shape behind each other."""

    def __init__(self, model):
        named = dict(model.named_parameters())
        inner = sorted((name for name, p in named.items() if ".layers." in name and p.dim() == 2),
                       key=lambda name: tuple(named[name].shape))
        order = inner + [name for name in named if name not in set(inner)]
        self.names, self.stacks, end = [], [], 0
        for name in order:
            shape = named[name].shape
            self.names.append((name, end, shape))
            end += -(-shape.numel() // 64) * 64  # kernels like aligned tensors
            if name in inner and self.stacks and self.stacks[-1][2] == shape:
                self.stacks[-1][1] = end
            elif name in inner:
                self.stacks.append([end - shape.numel(), end, shape])
        self.inner = self.stacks[-1][1]  # where the matrices of layers end
        assert all(shape.numel() % 64 == 0 for _, _, shape in self.stacks)
        device = next(model.parameters()).device
        self.values = torch.zeros(end, device=device)
        self.grad = torch.zeros(end, device=device)
        self.parameters = [named[name] for name in order]
        self.grads = list(self.named(self.grad).values())
        for p, view in zip(self.parameters, self.named(self.values).values()):
            view.copy_(p.data)
            p.data = view

    def named(self, values):
        return {name: values[place:place + shape.numel()].view(shape)
                for name, place, shape in self.names}

    def differentiate(self, loss):
        """Into `grad`, with few launches; zero for parameters that took no part."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self.grad.zero_()
        pairs = [(view, g) for view, g in zip(self.grads, found) if g is not None]
        torch._foreach_copy_([view for view, _ in pairs], [g for _, g in pairs])


def orthogonal(matrices):
    """The nearest orthogonal matrices, roughly, to a stack [n, rows, columns] of them: Newton-Schulz
    as in KellerJordan/Muon @857d1ad, muon.py."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


def nesterov(grads, momentum):
    """Muon's: the gradients, led on by their moving average `momentum`, which is brought up to date."""
    momentum.lerp_(grads, 0.05)
    return grads.lerp(momentum, 0.95)


class Muon:
    """KellerJordan/Muon @857d1ad for kernels of convolutions: those of a shape together, [out, all else] each."""

    def __init__(self, parameters, rate):
        """`rate`: a tensor, read at each step."""
        self.rate, self.groups = rate, []
        shapes = {}
        for p in parameters:
            shapes.setdefault(p.flatten(1).shape, []).append(p)
        for (rows, columns), group in shapes.items():
            momentum = torch.zeros(len(group), rows, columns, device=group[0].device)
            self.groups.append((group, momentum, max(1, rows / columns) ** 0.5))

    @torch.no_grad()
    def step(self):
        for group, momentum, scale in self.groups:
            grads = torch.stack([p.grad.flatten(1) for p in group])
            steps = orthogonal(nesterov(grads, momentum)) * (self.rate * scale)
            torch._foreach_sub_(group, [step.view_as(p) for step, p in zip(steps, group)])


class Training:
    """The model with all that its training remembers. Matrices inside layers are trained by Muon
    (KellerJordan/Muon @857d1ad), all else by Adam."""

    def __init__(self, model, group):
        device = group.device
        self.model, self.flat, self.step, self.group = model, Flat(model), 0, group
        self.ema = self.flat.values.clone()
        self.momentum = torch.zeros_like(self.flat.values[:self.flat.inner])
        self.others = torch.nn.Parameter(self.flat.values[self.flat.inner:])
        self.others.grad = self.flat.grad[self.flat.inner:]
        self.rates = torch.zeros(3, device=device)  # of Adam, of Muon, of the average
        self.optimizer = torch.optim.Adam([self.others], lr=self.rates[0], betas=(0.9, 0.98), fused=True,
                                          capturable=device.type == "cuda")
        self.skipped = torch.zeros((), device=device)
        self.before, self.begun = 0.0, None  # seconds: of earlier pieces; when the first step began

    def done(self, steps, limit, seconds):
        """The share of the training that lies behind, by its steps or by its time, whichever is more: that of the
        first process, for all of them."""
        share = 0.0
        if self.group.rank == 0 and self.begun is not None:
            share = max(self.step / steps, (self.before + seconds - self.begun) / max(1, limit - self.begun))
        return self.group.sum(torch.tensor(share, device=self.group.device)).item() if self.group.size > 1 else share

    def set_rates(self, rate, inner_rate):
        """For the next step; on the GPU, where a CUDA graph finds them."""
        average = 1 - min(EMA, (1 + self.step) / (10 + self.step))
        rates = torch.tensor([rate, inner_rate, average])
        self.rates.copy_(pinned(rates, self.rates.device), non_blocking=True)

    @torch.no_grad()
    def update(self, loss):
        flat = self.flat
        _, inner_rate, average = self.rates
        flat.differentiate(loss)
        self.group.sum(flat.grad).mul_(1 / self.group.size)
        norm = flat.grad.norm()
        # Gradients that are not finite count as none; known on the GPU, without waiting for it.
        self.skipped += ~norm.isfinite()
        flat.grad.copy_(torch.where(norm.isfinite(), flat.grad * (1 / (norm + 1e-6)).clamp(max=1), 0.0))
        ahead = nesterov(flat.grad[:flat.inner], self.momentum)
        flat.values[:flat.inner].mul_(1 - 0.01 * inner_rate)  # weight decay
        for first, last, (rows, columns) in flat.stacks:
            step = orthogonal(ahead[first:last].view(-1, rows, columns)).flatten()
            flat.values[first:last].sub_(step * (inner_rate * max(1, rows / columns) ** 0.5))
        self.optimizer.step()
        self.ema.lerp_(flat.values, average)

    def save(self, path, seconds):
        """Averages and moments in half precision: only a piece of training begins with them."""
        if self.group.rank > 0:
            return
        moments = {k: v.to(torch.bfloat16) if k.startswith("exp_avg") else v
                   for k, v in self.optimizer.state[self.others].items()}
        partial = path.with_suffix(".partial")
        torch.save({"step": self.step, "seconds": self.before + seconds, "begun": self.begun,
                    "values": self.flat.values, "moments": moments, "momentum": self.momentum.to(torch.bfloat16),
                    "ema": self.ema.to(torch.bfloat16)}, partial)
        os.replace(partial, path)

    def load(self, path):
        state = torch.load(path, map_location=self.ema.device)
        self.step, self.before, self.begun = state["step"], state.get("seconds", 0.0), state.get("begun")
        self.flat.values.copy_(state["values"])
        self.ema.copy_(state["ema"])
        self.momentum.copy_(state["momentum"])
        self.optimizer.state[self.others] = {
            k: v.float() if k.startswith("exp_avg") else v for k, v in state["moments"].items()}

    def averaged(self, device):
        trained = type(self.model)(self.model.sizes).to(device)
        trained.load_state_dict({k: v.clone() for k, v in self.flat.named(self.ema).items()})
        return trained.eval().requires_grad_(False)


class Tally:
    """Sums per kind of sample, fetched from the GPU only when they are told. `shares`: names of what follows the five
    that all have, two numbers each, of which the first is told as a share of the second."""

    def __init__(self, device, kinds, shares=()):
        self.shares = shares
        self.sums = {kind: torch.zeros(5 + 2 * len(shares), device=device, dtype=torch.float64) for kind in kinds}

    def tell(self):
        told = {}
        for kind, sums in self.sums.items():
            squares, values, entropy, tokens, right, *more = sums.tolist()
            if values:
                told[f"{kind} mse"] = squares / values
            if tokens:
                told[f"{kind} ce"], told[f"{kind} right"] = entropy / tokens, right / tokens
            for name, part, whole in zip(self.shares, more[::2], more[1::2]):
                if whole:
                    told[f"{kind} {name}"] = part / whole
            sums.zero_()
        return told


class Replayed:
    """`work(key, inputs)` on the GPU, as CUDA graphs: launching its kernels from Python takes longer
    than they do. Each key's inputs have shapes of their own, and so a graph of its own, recorded at
    its third use, when kernels have been compiled and chosen. The graphs share their memory: one
    runs at a time, and what outlives it is written to tensors from outside."""

    def __init__(self, work, device, recorded):
        self.work, self.device, self.recorded = work, device, recorded
        self.inputs, self.uses, self.graphs, self.memory = {}, {}, {}, None

    def __call__(self, key, inputs):
        own = self.inputs.get(key)
        if own is None:
            own = self.inputs[key] = {name: torch.empty_like(value, device=self.device)
                                      for name, value in inputs.items()}
        for name, value in inputs.items():
            own[name].copy_(pinned(value, self.device), non_blocking=True)
        self.uses[key] = self.uses.get(key, 0) + 1
        if self.recorded and self.uses[key] == 3:
            self.graphs[key] = torch.cuda.CUDAGraph()
            # Threads of NCCL may ask for their events meanwhile.
            with torch.cuda.graph(self.graphs[key], pool=self.memory, capture_error_mode="thread_local"):
                self.work(key, own)
            self.memory = self.graphs[key].pool()
        if key in self.graphs:
            self.graphs[key].replay()
        else:
            self.work(key, own)
