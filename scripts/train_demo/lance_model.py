"""Lance in the names and layout of Lance_3B_Video/model.safetensors, at the demo's size, for training.

Learned from bytedance/Lance @4baeee0 and Qwen2.5-VL of transformers 4.49. A batch is dense, as model.py's is: text
rows and rows of the vision tower go to the understanding expert, latent rows to the generation expert.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import auxiliary
import model as mot
import wan_autoencoder

MERGE, PATCH, TEMPORAL = 2, 14, 2  # of the vision tower: patches a side that become one row, pixels, frames
TABLE_SIDE = 64  # rows and columns of the latent position table
VIT_MEAN = (0.48145466, 0.4578275, 0.40821073)
VIT_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclasses.dataclass
class Sizes:
    vocabulary: int
    hidden: int = 160
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2  # values of 80 numbers: what is copied from a clip or a picture has 48 and its place
    intermediate: int = 224  # a multiple of 16, as fp8 products want it
    sections: tuple = (4, 8, 8)  # of a head's frequencies: those that turn with time, row and column
    # Frequencies are powers of two: the official code rounds them to bfloat16 in that mode, and no other.
    rope_theta: float = 1048576.0
    vit_hidden: int = 80
    vit_layers: int = 3
    vit_heads: int = 2
    vit_intermediate: int = 192

    @property
    def head_dim(self):
        return self.hidden // self.heads


def axis_table(width, places):
    """[places, width]: sines, then cosines."""
    omega = 10000 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    angles = torch.outer(places.double(), omega)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def latent_positions(width, grid, device):
    """float32 [t * h * w, width]: frame, row and column, a third each."""
    part = width // 3 // 2 * 2
    tables = [axis_table(size, torch.arange(count)) for size, count in zip((part, part, width - 2 * part), grid)]
    shapes = [(-1, 1, 1), (1, -1, 1), (1, 1, -1)]
    parts = [table.view(*shape, table.shape[1]).expand(*grid, -1) for table, shape in zip(tables, shapes)]
    return torch.cat(parts, dim=-1).flatten(0, 2).float().to(device)


class VitBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.vit_heads
        self.norm1, self.norm2 = mot.Norm(s.vit_hidden), mot.Norm(s.vit_hidden)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(s.vit_hidden, 3 * s.vit_hidden),
                                   "proj": nn.Linear(s.vit_hidden, s.vit_hidden)})
        self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(s.vit_hidden, s.vit_intermediate),
                                  "up_proj": nn.Linear(s.vit_hidden, s.vit_intermediate),
                                  "down_proj": nn.Linear(s.vit_intermediate, s.vit_hidden)})

    def forward(self, x, cos, sin):
        """[slices, patches, hidden]: every slice for itself."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.attn["qkv"](self.norm1(x)).chunk(3, dim=-1))
        q, k = mot.rotate(q.float(), cos, sin), mot.rotate(k.float(), cos, sin)
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v).transpose(1, 2).flatten(2)
        x = x + self.attn["proj"](mixed)
        y = self.norm2(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class Merger(nn.Module):
    def __init__(self, s):
        super().__init__()
        wide = MERGE * MERGE * s.vit_hidden
        self.ln_q = mot.Norm(s.vit_hidden)
        self.mlp = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, s.hidden))

    def forward(self, x):
        return self.mlp(self.ln_q(x).flatten(-2).unflatten(-1, (-1, self.mlp[0].in_features)))


class VisionTower(nn.Module):
    """All its blocks see a whole slice of two frames (fullatt_block_indexes names every one)."""

    def __init__(self, s):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv3d(3, s.vit_hidden, (TEMPORAL, PATCH, PATCH), bias=False)
        self.blocks = nn.ModuleList(VitBlock(s) for _ in range(s.vit_layers))
        self.merger = Merger(s)
        self.head_dim = s.vit_hidden // s.vit_heads

    def forward(self, clips):
        """[n, t, 3, H, W], normalised, an even t -> [n, t / 2 * H / 28 * W / 28, hidden]."""
        n, t, _, height, width = clips.shape
        side = MERGE * PATCH
        h, w = height // side, width // side
        x = clips.view(n, t // TEMPORAL, TEMPORAL, 3, h, MERGE, PATCH, w, MERGE, PATCH)
        x = x.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(n * (t // TEMPORAL), h * w * MERGE * MERGE, -1)
        x = F.linear(x, self.patch_embed.proj.weight.flatten(1))
        cos, sin = self.rope(h, w, x.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        merged = self.merger(x)
        return merged.view(n, -1, merged.shape[-1])

    def rope(self, h, w, device):
        rows = torch.arange(h * MERGE, device=device).view(h, 1, MERGE, 1).expand(h, w, MERGE, MERGE)
        columns = torch.arange(w * MERGE, device=device).view(1, w, 1, MERGE).expand(h, w, MERGE, MERGE)
        inverse = 10000.0 ** (-torch.arange(0, self.head_dim // 2, 2, device=device) / (self.head_dim // 2))
        angles = torch.cat([places.reshape(-1, 1) * inverse for places in (rows, columns)], dim=1).repeat(1, 2)
        return angles.cos(), angles.sin()


class Lance(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        s = self.sizes = sizes
        backbone = nn.Module()
        backbone.embed_tokens = nn.Embedding(s.vocabulary, s.hidden)
        backbone.layers = nn.ModuleList(mot.DecoderLayer(s) for _ in range(s.layers))
        backbone.norm, backbone.norm_moe_gen = mot.Norm(s.hidden), mot.Norm(s.hidden)
        self.language_model = nn.Module()
        self.language_model.model = backbone
        self.language_model.lm_head = nn.Linear(s.hidden, s.vocabulary, bias=False)
        self.time_embedder = mot.TimeEmbedder(s.hidden)
        self.vae2llm = nn.Linear(wan_autoencoder.LATENT, s.hidden)
        self.llm2vae = nn.Linear(s.hidden, wan_autoencoder.LATENT)
        self.vit_model = VisionTower(s)
        self.heads = auxiliary.Heads(s.hidden)  # of its training alone
        self.tables = {}
        axes = sum(([axis] * count for axis, count in enumerate(s.sections)), [])
        self.register_buffer("axes", torch.tensor(axes), persistent=False)
        self.apply(mot.Bagel.initialise)
        with torch.no_grad():
            self.vit_model.patch_embed.proj.weight.normal_(std=0.03)
            for layer in backbone.layers:  # the residual stream keeps its scale with depth
                for name in ("self_attn.o_proj", "self_attn.o_proj_moe_gen", "mlp.down_proj",
                             "mlp_moe_gen.down_proj"):
                    layer.get_submodule(name).weight.div_((2 * s.layers) ** 0.5)
            self.llm2vae.weight.zero_()

    def forward(self, batch, grid):
        """batch: what clip_sequence.lay_out makes of a list of samples, with `looked` [n, rows, hidden], what the vision tower
        makes of clips, `context` and `latent` [n, rows, 48], `time` [n, 1] and `given`, how many of the latent's first rows
        are no noise, each only where the samples have it. `grid` (t, h, w) of latents.

        Returns the hidden rows of texts [n, rows, hidden], the velocities [n, rows, 48] or None, and the rows of
        context and latents behind each layer."""
        text = self.language_model.model.embed_tokens(batch["ids"])
        seen, latents = [text], []
        if "looked" in batch:
            seen.append(batch["looked"])
        if "context" in batch:
            latents.append(self.embed_latents(batch["context"], grid))
        if "latent" in batch:
            latents.append(self.embed_latents(batch["latent"], grid, batch["time"], batch["given"]))
        x = torch.cat([part.to(text.dtype) for part in seen], dim=1)
        if latents:
            y = torch.cat(latents, dim=1).to(x.dtype)
        else:  # rows that nobody sees: one compiled layer serves all kinds of samples
            unseen = torch.zeros(len(x), mot.UNSEEN, wan_autoencoder.LATENT, device=text.device)
            y = self.embed_latents(unseen, (1, 1, mot.UNSEEN)).to(x.dtype)
        cos, sin = self.rope(batch["positions"])
        states = []
        for layer in self.language_model.model.layers:
            x, y = layer(x, y, cos, sin, batch["mask"])
            states.append(y)
        velocity = None
        if "latent" in batch:
            rows = y[:, -batch["latent"].shape[1]:]
            velocity = self.llm2vae(self.language_model.model.norm_moe_gen(rows))
        return x[:, :text.shape[1]], velocity, states

    def embed_latents(self, latent, grid, time=None, given=0):
        """`time` [n, 1]: of all rows but the first `given`; those, or all without it, are no noise."""
        key = (*grid, latent.device)
        if key not in self.tables:
            self.tables[key] = latent_positions(self.sizes.hidden, grid, latent.device)
        n, rows = latent.shape[:2]
        clean = self.time_embedder(torch.zeros(1, 1, device=latent.device))
        if time is None:
            times = clean
        else:
            times = torch.cat([clean.expand(n, given, -1), self.time_embedder(time).expand(-1, rows - given, -1)], dim=1)
        return self.vae2llm(latent) + times + self.tables[key]

    def logits(self, hidden):
        return self.language_model.lm_head(self.language_model.model.norm(hidden))

    def rope(self, positions):
        """[n, rows, 3] -> cos, sin [n, 1, rows, head_dim]."""
        dim = self.sizes.head_dim
        inverse = self.sizes.rope_theta ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
        angles = (positions[..., self.axes].float() * inverse).repeat(1, 1, 2).unsqueeze(1)
        return angles.cos(), angles.sin()
