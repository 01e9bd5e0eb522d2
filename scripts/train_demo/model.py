"""BAGEL in the names and layout of ema.safetensors, at the demo's size, for training.

Learned from ByteDance-Seed/Bagel @056b5fd, modeling/bagel/*.py. A batch is dense here: text rows and
rows of the vision transformer go to the understanding expert, latent rows to the generation expert,
and a mask says who sees whom, so that rows may stand in any order (sequence.py).
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

PATCH = 16  # pixels: of a latent row as of a patch of the vision transformer
LATENT_SIDE = 16  # rows and columns of the latent position table: pictures of up to 256 pixels
PATCH_SIDE = 19  # of the patches'; scales the official 980-pixel limit to 256 pixels and more
EPS = 1e-6
UNSEEN = 8  # latent rows of samples that have none


@dataclasses.dataclass
class Sizes:
    vocabulary: int
    hidden: int = 192
    layers: int = 6
    heads: int = 6
    kv_heads: int = 3
    intermediate: int = 336  # a multiple of 16, as fp8 products want it
    vit_hidden: int = 128
    vit_layers: int = 3
    vit_heads: int = 4
    vit_intermediate: int = 320
    rope_theta: float = 10000.0

    @property
    def head_dim(self):
        return self.hidden // self.heads


def sincos_table(width, side):
    """[side * side, width]: sines and cosines of the column, then of the row."""
    omega = 10000 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.outer(torch.arange(side, dtype=torch.float64), omega)
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    columns = axis.unsqueeze(0).expand(side, side, -1)
    rows = axis.unsqueeze(1).expand(side, side, -1)
    return torch.cat([columns, rows], dim=-1).reshape(side * side, width).float()


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * self.weight


class Mlp(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SelfAttention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads, s.kv_heads, s.head_dim
        for expert in ("", "_moe_gen"):
            width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
            self.add_module(f"q_proj{expert}", nn.Linear(s.hidden, width))
            self.add_module(f"k_proj{expert}", nn.Linear(s.hidden, kv_width))
            self.add_module(f"v_proj{expert}", nn.Linear(s.hidden, kv_width))
            self.add_module(f"o_proj{expert}", nn.Linear(width, s.hidden, bias=False))
            self.add_module(f"q_norm{expert}", Norm(s.head_dim))
            self.add_module(f"k_norm{expert}", Norm(s.head_dim))

    def project(self, h, expert):
        def of(name, heads):
            return getattr(self, name + expert)(h).unflatten(-1, (heads, self.head_dim))

        q = getattr(self, "q_norm" + expert)(of("q_proj", self.heads))
        k = getattr(self, "k_norm" + expert)(of("k_proj", self.kv_heads))
        return q, k, of("v_proj", self.kv_heads)

    def forward(self, text, latent, cos, sin, mask):
        parts = [self.project(text, ""), self.project(latent, "_moe_gen")]
        q, k, v = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(*parts))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.heads // self.kv_heads
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        mixed = attend(q.to(v.dtype), k.to(v.dtype), v, mask).transpose(1, 2).flatten(2)
        split = text.shape[1]
        return self.o_proj(mixed[:, :split]), self.o_proj_moe_gen(mixed[:, split:])


def attend(q, k, v, mask):
    """[n, heads, rows, head_dim]. `mask`: what is added to the products; or of the first rows alone, with columns for
    the queries of the others and for all keys, which do the same there by their products: kernels that take no mask
    serve those, and no mask of all rows is written."""
    if isinstance(mask, torch.Tensor):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
    mask, hidden, hides = mask
    scale, dim, first = q.shape[-1] ** -0.5, q.shape[-1], mask.shape[1]
    text = F.scaled_dot_product_attention(q[:, :, :first], k, v, attn_mask=mask.unsqueeze(1), scale=scale)
    wide = torch.cat([q[:, :, first:], hidden.expand(*q.shape[:2], *hidden.shape)], dim=-1)
    keys = torch.cat([k, hides.unsqueeze(1).expand(-1, k.shape[1], -1, -1)], dim=-1)
    others = F.scaled_dot_product_attention(wide, keys, F.pad(v, (0, hides.shape[-1])), scale=scale)
    return torch.cat([text, others[..., :dim]], dim=2)


def rotate(x, cos, sin):
    """Rotary positions, the two halves of a head turned against each other."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class DecoderLayer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.self_attn = SelfAttention(s)
        for expert in ("", "_moe_gen"):
            self.add_module(f"input_layernorm{expert}", Norm(s.hidden))
            self.add_module(f"post_attention_layernorm{expert}", Norm(s.hidden))
            self.add_module(f"mlp{expert}", Mlp(s.hidden, s.intermediate))

    def forward(self, text, latent, cos, sin, mask):
        a, b = self.self_attn(self.input_layernorm(text), self.input_layernorm_moe_gen(latent), cos,
                              sin, mask)
        text, latent = text + a, latent + b
        text = text + self.mlp(self.post_attention_layernorm(text))
        latent = latent + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(latent))
        return text, latent


class Table(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        self.pos_embed = nn.Parameter(sincos_table(width, side))


class TimeEmbedder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, t):
        freq = torch.exp(-math.log(10000) * torch.arange(128, device=t.device) / 128)
        angles = t.unsqueeze(-1) * freq
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))


class VitLayer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.vit_heads
        self.layer_norm1 = nn.LayerNorm(s.vit_hidden, eps=EPS)
        self.layer_norm2 = nn.LayerNorm(s.vit_hidden, eps=EPS)
        self.self_attn = nn.ModuleDict({name: nn.Linear(s.vit_hidden, s.vit_hidden)
                                        for name in ("q_proj", "k_proj", "v_proj", "out_proj")})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(s.vit_hidden, s.vit_intermediate),
                                  "fc2": nn.Linear(s.vit_intermediate, s.vit_hidden)})

    def forward(self, x):
        h = self.layer_norm1(x)
        q, k, v = (self.self_attn[name](h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for name in ("q_proj", "k_proj", "v_proj"))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.self_attn["out_proj"](h)
        h = F.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh")
        return x + self.mlp["fc2"](h)


class VisionTransformer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embeddings = nn.ModuleDict({
            "patch_embedding": nn.Linear(3 * PATCH * PATCH, s.vit_hidden),
            "position_embedding": nn.Embedding(PATCH_SIDE ** 2, s.vit_hidden)})
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(VitLayer(s) for _ in range(s.vit_layers))})
        self.post_layernorm = nn.LayerNorm(s.vit_hidden, eps=EPS)

    def forward(self, patches, ids):
        x = self.embeddings["patch_embedding"](patches) + self.embeddings["position_embedding"](ids)
        for layer in self.encoder["layers"]:
            x = layer(x)
        return self.post_layernorm(x)


def patchify(pictures):
    """[n, 3, H, W] -> [n, patches, 768], columns (row, column, channel)."""
    n, _, height, width = pictures.shape
    x = pictures.view(n, 3, height // PATCH, PATCH, width // PATCH, PATCH)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 3 * PATCH * PATCH)


def grid_ids(h, w, side, device):
    rows = torch.arange(h, device=device).unsqueeze(1) * side
    return (rows + torch.arange(w, device=device)).flatten()


class Bagel(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        s = self.sizes = sizes
        backbone = nn.Module()
        backbone.embed_tokens = nn.Embedding(s.vocabulary, s.hidden)
        backbone.layers = nn.ModuleList(DecoderLayer(s) for _ in range(s.layers))
        backbone.norm, backbone.norm_moe_gen = Norm(s.hidden), Norm(s.hidden)
        self.language_model = nn.Module()
        self.language_model.model = backbone
        self.language_model.lm_head = nn.Linear(s.hidden, s.vocabulary, bias=False)
        self.time_embedder = TimeEmbedder(s.hidden)
        self.vae2llm, self.llm2vae = nn.Linear(64, s.hidden), nn.Linear(s.hidden, 64)
        self.latent_pos_embed = Table(s.hidden, LATENT_SIDE)
        self.vit_pos_embed = Table(s.hidden, PATCH_SIDE)
        self.connector = nn.ModuleDict({"fc1": nn.Linear(s.vit_hidden, s.hidden),
                                        "fc2": nn.Linear(s.hidden, s.hidden)})
        self.vit_model = nn.ModuleDict({"vision_model": VisionTransformer(s)})
        self.apply(self.initialise)
        with torch.no_grad():
            for layer in backbone.layers:  # the residual stream keeps its scale with depth
                for name in ("self_attn.o_proj", "self_attn.o_proj_moe_gen", "mlp.down_proj",
                             "mlp_moe_gen.down_proj"):
                    layer.get_submodule(name).weight.div_((2 * s.layers) ** 0.5)
            self.llm2vae.weight.zero_()

    @staticmethod
    def initialise(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=min(0.05, module.in_features ** -0.5))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, batch, h, w):
        """batch: what sequence.py makes of a list of samples, with the pictures of it:
        vit_pictures [n, 3, H, W], context [n, rows, 64] and latent [n, rows, 64], time [n], each
        only where the samples have it.

        Returns the hidden rows of texts [n, rows, hidden] and the velocities [n, rows, 64] or None."""
        device = batch["ids"].device
        text = self.language_model.model.embed_tokens(batch["ids"])
        seen, latents = [text], []
        if "vit_pictures" in batch:
            features = self.vit_model["vision_model"](patchify(batch["vit_pictures"]),
                                                      grid_ids(h, w, PATCH_SIDE, device))
            hidden = self.connector["fc2"](F.gelu(self.connector["fc1"](features), approximate="tanh"))
            seen.append(hidden + self.vit_pos_embed.pos_embed[grid_ids(h, w, PATCH_SIDE, device)])
        ids = grid_ids(h, w, LATENT_SIDE, device)
        if "context" in batch:
            clean = torch.zeros(1, device=device)
            latents.append(self.embed_latents(batch["context"], clean, ids))
        if "latent" in batch:
            latents.append(self.embed_latents(batch["latent"], batch["time"], ids))
        x = torch.cat([part.to(text.dtype) for part in seen], dim=1)
        if not latents:  # rows that nobody sees: one compiled layer serves all kinds of samples
            unseen = torch.zeros(len(x), UNSEEN, 64, device=device)
            latents.append(self.embed_latents(unseen, torch.zeros(1, device=device), ids[:UNSEEN]))
        y = torch.cat(latents, dim=1).to(x.dtype)
        cos, sin = self.rope(batch["positions"])
        for layer in self.language_model.model.layers:
            x, y = layer(x, y, cos, sin, batch["mask"])
        velocity = None
        if "latent" in batch:
            rows = y[:, -batch["latent"].shape[1]:]
            velocity = self.llm2vae(self.language_model.model.norm_moe_gen(rows))
        return x[:, :text.shape[1]], velocity

    def embed_latents(self, latent, time, ids):
        return self.vae2llm(latent) + self.time_embedder(time).unsqueeze(1) + \
            self.latent_pos_embed.pos_embed[ids]

    def logits(self, hidden):
        return self.language_model.lm_head(self.language_model.model.norm(hidden))

    def rope(self, positions):
        """[n, rows] -> cos, sin [n, 1, rows, head_dim]."""
        dim = self.sizes.head_dim
        inverse = self.sizes.rope_theta ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
        angles = (positions.unsqueeze(-1).float() * inverse).repeat(1, 1, 2).unsqueeze(1)
        return angles.cos(), angles.sin()
