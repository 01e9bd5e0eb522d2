"""A DFlash drafter in the names and layout of the released ones, at the demo's size, for training.

Learned from z-lab/dflash @44947fb, dflash/model.py. Positions count rows of the context: a picture has
one for each of its rows, although the model has them all at one.
"""
import dataclasses
import json
import pathlib

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import export
import model as bagel


@dataclasses.dataclass
class Sizes:
    hidden: int
    target_layers: int
    vocabulary: int
    mask_id: int  # an id without a text
    features: tuple = (1, 3)  # layers of the model whose outputs the drafter sees
    layers: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 128
    block: int = 8  # one token that is known, and the drafts behind it
    rope_theta: float = 10000.0


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm, self.k_norm = bagel.Norm(s.head_dim), bagel.Norm(s.head_dim)

    def keys(self, x, turn):
        k, v = (p(x).unflatten(-1, (self.s.kv_heads, -1)) for p in (self.k_proj, self.v_proj))
        return bagel.rotate(self.k_norm(k).transpose(1, 2), *turn), v.transpose(1, 2)

    def forward(self, x, context, turn, context_turn, mask):
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.s.heads, -1))).transpose(1, 2)
        pairs = zip(self.keys(context, context_turn), self.keys(x, turn))
        k, v = (torch.cat(pair, dim=2).repeat_interleave(self.s.heads // self.s.kv_heads, dim=1)
                for pair in pairs)
        mixed = F.scaled_dot_product_attention(bagel.rotate(q, *turn), k, v, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.self_attn = Attention(s)
        self.mlp = bagel.Mlp(s.hidden, s.intermediate)
        self.input_layernorm, self.post_attention_layernorm = bagel.Norm(s.hidden), bagel.Norm(s.hidden)

    def forward(self, x, *seen):
        x = x + self.self_attn(self.input_layernorm(x), *seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        s = self.sizes = sizes
        self.fc = nn.Linear(len(s.features) * s.hidden, s.hidden, bias=False)
        self.hidden_norm, self.norm = bagel.Norm(s.hidden), bagel.Norm(s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))

    def forward(self, features, blocks, anchors):
        """features [n, rows, width]: of all rows; blocks [n, count, block, hidden]: the embeddings of
        several blocks of each text, which do not see each other; anchors [n, count]: their first rows.

        Returns the blocks' rows behind the norm, [n, count, block, hidden]."""
        n, count, block, _ = blocks.shape
        context = self.hidden_norm(self.fc(features))
        rows = torch.arange(context.shape[1], device=context.device)
        places = (anchors.unsqueeze(-1) + torch.arange(block, device=context.device)).flatten(1)
        number = torch.arange(count, device=context.device).repeat_interleave(block)
        before = rows < anchors.repeat_interleave(block, dim=1).unsqueeze(-1)
        own = (number.unsqueeze(1) == number).expand(n, -1, -1)
        mask = torch.cat([before, own], dim=2).unsqueeze(1)
        turn, context_turn = self.rope(places), self.rope(rows.unsqueeze(0))
        x = blocks.flatten(1, 2)
        for layer in self.layers:
            x = layer(x, context, turn, context_turn, mask)
        return self.norm(x).unflatten(1, (count, block))

    def rope(self, positions):
        dim = self.sizes.head_dim
        inverse = self.sizes.rope_theta ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
        angles = (positions.unsqueeze(-1).float() * inverse).repeat(1, 1, 2).unsqueeze(1)
        return angles.cos(), angles.sin()


def config(s):
    return {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "block_size": s.block,
        "dflash_config": {"mask_token_id": s.mask_id, "target_layer_ids": list(s.features)},
        "head_dim": s.head_dim, "hidden_act": "silu", "hidden_size": s.hidden,
        "intermediate_size": s.intermediate, "layer_types": ["full_attention"] * s.layers,
        "max_position_embeddings": 4096, "model_type": "qwen3", "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers, "num_key_value_heads": s.kv_heads,
        "num_target_layers": s.target_layers, "rms_norm_eps": bagel.EPS, "rope_scaling": None,
        "rope_theta": s.rope_theta, "sliding_window": None, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": s.vocabulary}


def write(folder, drafter):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    safetensors.torch.save_file(export.half(drafter.state_dict()), file, {"format": "pt"})
    file.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config(drafter.sizes), indent=2) + "\n")
