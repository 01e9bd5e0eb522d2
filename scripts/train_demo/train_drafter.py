#!/usr/bin/env python3
"""Trains the drafter of the demo: it proposes several tokens at once of what the demo writes.

  scripts/train_demo/train_drafter.py --output build/demo_drafter

needs PyTorch 2.11, tokenizers and safetensors; two CPU cores are enough, `--device cuda` uses a GPU. The demo
first writes texts of its own, plans of pictures and of edits and answers, greedily, about scenes that its
training may have had; the drafter then learns what follows each of their tokens from the outputs of two of
the demo's layers. The folder is in the released layout: `--draft-model build/demo_drafter`.
"""
import argparse
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import safetensors.torch
    import tokenizers  # noqa: F401 (of vocabulary.py)
    import torch
    import torch.nn.functional as F
except ModuleNotFoundError as missing:
    sys.exit(f"train_drafter.py: the Python package {missing.name} is missing; needed are PyTorch 2.11, tokenizers "
             "and safetensors")

import autoencoder
import data
import drafter as dflash
import edits
import model as bagel
import render
import sampler
import sequence
import vocabulary
import world
from training import cosine, to_input

# What is written, and how many of 100 texts are of it.
KINDS = (("think", 50), ("think_edit", 25), ("understand", 20), ("think_understand", 5))
TOGETHER = 50  # texts that are written in one batch
LONGEST = 96  # tokens of a text
HELD_OUT = 10  # one in so many texts is not trained on
BLOCKS = 8  # of each text in a step
GAMMA = 4.0  # the weight of a draft falls with exp(-place / GAMMA): one counts only behind right ones


class Text:
    """What the model wrote, token by token, and what its layers gave on the way."""

    def __init__(self, ids, features):
        self.ids = ids  # bos first, then what was written, eos at the end
        self.features = features  # [rows of the context and of all ids but the last, width]


def read_model(folder, device):
    """(model, autoencoder, tokenizer)"""
    model, vae = bagel.Bagel(bagel.Sizes(vocabulary.PADDED)), autoencoder.Autoencoder()
    for module, name in ((model, "ema.safetensors"), (vae, "ae.safetensors")):
        module.load_state_dict({k: v.float() for k, v in safetensors.torch.load_file(folder / name).items()})
        module.to(device).eval().requires_grad_(False)
    return model, vae, vocabulary.Vocabulary(folder)


def ask(rng, kind, tokenizer, size):
    """(what the model is asked, the scene that it sees or None)"""
    sample = sequence.Sample(tokenizer)
    if kind == "think":
        spec, _ = world.sample_scene(rng, *size, layout=rng.choice(data.PAINTED[kind]))
        return sample.text(sequence.GEN_THINK_SYSTEM_PROMPT).text(world.caption(rng, spec)), None
    while True:
        scene = world.sample_scene(rng, *size, layout=rng.choice(world.LAYOUTS))[1]
        if "edit" not in kind:
            break
        edit = edits.sample_any(rng, scene, kinds=edits.LEARNED_KINDS)
        if edit is not None:
            break
    if kind == "think_edit":
        sample.text(sequence.GEN_THINK_SYSTEM_PROMPT).image("context").image("vit")
        return sample.text(edits.words(rng, edit)), scene
    if kind == "think_understand":
        sample.text(sequence.VLM_THINK_SYSTEM_PROMPT)
    return sample.image("vit").text(world.sample_any_question(rng, scene)[0]), scene


def order_of(sample, length, slots, count):
    """The rows of a sample as its cache has them: the rows of a picture between its two markers."""
    order = []
    of_segment = {sample.slots[name][1]: length + count * i for i, name in enumerate(slots)}
    for row, (_, _, segment, *_) in enumerate(sample.rows):
        order.append(row)
        first = of_segment.pop(segment, None)
        if first is not None:
            order.extend(range(first, first + count))
    return order


class Writer:
    """Runs the model layer by layer, keeping keys, values and the outputs of some layers."""

    def __init__(self, model, features):
        self.model, self.features = model, features
        self.layers = model.language_model.model.layers

    def forward(self, x, y, positions, mask, kept):
        """x and y [n, rows, hidden]: rows of both experts; kept: keys and values before them, of each
        layer, to which those of these rows are added. -> x at the end, features of all rows"""
        cos, sin = self.model.rope(positions)
        seen = []
        for i, layer in enumerate(self.layers):
            a = layer.self_attn
            parts = [a.project(layer.input_layernorm(x), ""),
                     a.project(layer.input_layernorm_moe_gen(y), "_moe_gen")]
            q, k, v = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(*parts))
            q, k = bagel.rotate(q, cos, sin), bagel.rotate(k, cos, sin)
            if i < len(kept):
                k, v = torch.cat([kept[i][0], k], dim=2), torch.cat([kept[i][1], v], dim=2)
                kept[i] = (k, v)
            else:
                kept.append((k, v))
            groups = a.heads // a.kv_heads
            mixed = F.scaled_dot_product_attention(q, k.repeat_interleave(groups, dim=1),
                                                   v.repeat_interleave(groups, dim=1), attn_mask=mask)
            mixed = mixed.transpose(1, 2).flatten(2)
            x, y = x + a.o_proj(mixed[:, :x.shape[1]]), y + a.o_proj_moe_gen(mixed[:, x.shape[1]:])
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            y = y + layer.mlp_moe_gen(layer.post_attention_layernorm_moe_gen(y))
            if i in self.features:
                seen.append(torch.cat([x, y], dim=1))
        return x, torch.cat(seen, dim=-1)

    def embed(self, batch, pictures, latents, h, w):
        m = self.model
        x = [m.language_model.model.embed_tokens(batch["ids"])]
        y = x[0][:, :0]
        if pictures is not None:
            ids = bagel.grid_ids(h, w, bagel.PATCH_SIDE, pictures.device)
            seen = m.vit_model["vision_model"](bagel.patchify(pictures), ids)
            hidden = m.connector["fc2"](F.gelu(m.connector["fc1"](seen), approximate="tanh"))
            x.append(hidden + m.vit_pos_embed.pos_embed[ids])
        if latents is not None:
            ids = bagel.grid_ids(h, w, bagel.LATENT_SIDE, latents.device)
            y = m.embed_latents(latents, torch.zeros(1, device=latents.device), ids)
        return torch.cat(x, dim=1), y

    @torch.no_grad()
    def write(self, samples, tokenizer, pictures, latents, h, w):
        device = next(self.model.parameters()).device
        slots = [name for name in sequence.SLOTS if name in samples[0].slots]
        batch = sampler.batch_of(samples, device, h, w)
        x, y = self.embed(batch, pictures, latents, h, w)
        rows, length = x.shape[1] + y.shape[1], batch["ids"].shape[1]
        kept = []
        _, context = self.forward(x, y, batch["positions"][:, :rows],
                                  batch["mask"][:, None, :rows, :rows], kept)
        orders = [order_of(s, length, slots, h * w) for s in samples]
        held = torch.zeros(len(samples), rows, dtype=torch.bool, device=device)
        for i, order in enumerate(orders):
            held[i, torch.tensor(order)] = True
        token = torch.full((len(samples),), tokenizer.bos, device=device)
        start = torch.tensor([s.position for s in samples], device=device)
        written, seen, ended = [token], [], torch.zeros(len(samples), dtype=torch.bool, device=device)
        for step in range(LONGEST):
            held = F.pad(held, (0, 1), value=True)
            x, features = self.forward(self.model.language_model.model.embed_tokens(token).unsqueeze(1),
                                       y[:, :0], (start + step).unsqueeze(1), held[:, None, None], kept)
            token = self.model.logits(x[:, 0]).argmax(dim=-1)
            written.append(token)
            seen.append(features[:, 0])
            ended |= token == tokenizer.eos
            if ended.all():
                break
        ids, seen = torch.stack(written, dim=1).tolist(), torch.stack(seen, dim=1)
        texts = []
        for i, order in enumerate(orders):
            if tokenizer.eos not in ids[i]:
                continue
            end = ids[i].index(tokenizer.eos)
            features = torch.cat([context[i, order], seen[i, :end]]).to("cpu", torch.bfloat16)
            texts.append(Text(ids[i][:end + 1], features))
        return texts


def write_texts(writer, vae, tokenizer, count, seed):
    rng, texts = random.Random(seed), []
    device = next(vae.parameters()).device
    kinds, weights = zip(*KINDS)
    while len(texts) < count:
        kind, size = rng.choices(kinds, weights)[0], world.picture_size(rng)
        asked = [ask(rng, kind, tokenizer, size) for _ in range(TOGETHER)]
        pictures = latents = None
        if kind != "think":
            rows = render.pack([scene for _, scene in asked]).to(device)
            pictures = to_input(render.render(rows, *size).round())
            if kind == "think_edit":
                latents = autoencoder.pack(vae.encode(pictures))
        texts += writer.write([sample for sample, _ in asked], tokenizer, pictures, latents,
                              size[1] // bagel.PATCH, size[0] // bagel.PATCH)
    return texts


def collate(texts, anchors, sizes, device):
    """Features, ids of the blocks, their labels and their first rows. `anchors`: of each text, as many."""
    rows = max(len(t.features) for t in texts)
    features = torch.stack([F.pad(t.features, (0, 0, 0, rows - len(t.features))) for t in texts])
    ids = torch.full((len(texts), len(anchors[0]), sizes.block), sizes.mask_id)
    labels = torch.full((len(texts), len(anchors[0]), sizes.block - 1), sequence.IGNORED)
    first = torch.zeros(len(texts), len(anchors[0]), dtype=torch.long)
    for i, text in enumerate(texts):
        for j, anchor in enumerate(anchors[i]):
            ids[i, j, 0] = text.ids[anchor]
            following = text.ids[anchor + 1:anchor + sizes.block]
            labels[i, j, :len(following)] = torch.tensor(following)
            first[i, j] = len(text.features) - (len(text.ids) - 1) + anchor
    return features.to(device).float(), ids.to(device), labels.to(device), first.to(device)


class Trainer:
    def __init__(self, model, sizes, device):
        self.embed, self.head = model.language_model.model.embed_tokens, model.language_model.lm_head
        self.sizes, self.device = sizes, device
        self.drafter = dflash.Drafter(sizes).to(device)

    def logits(self, features, ids, first):
        hidden = self.drafter(features, self.embed(ids), first)
        return self.head(hidden[:, :, 1:])

    def loss(self, texts, rng):
        anchors = [[rng.randrange(len(t.ids) - 1) for _ in range(BLOCKS)] for t in texts]
        features, ids, labels, first = collate(texts, anchors, self.sizes, self.device)
        logits = self.logits(features, ids, first)
        each = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none",
                               ignore_index=sequence.IGNORED).view_as(labels)
        weights = torch.exp(-torch.arange(self.sizes.block - 1, device=self.device) / GAMMA)
        weights = weights * (labels != sequence.IGNORED)
        return (each * weights).sum() / weights.sum()

    @torch.no_grad()
    def acceptance(self, texts):
        """Tokens a verification gives, on average: the accepted drafts and one more."""
        tokens = verifications = 0
        for text in texts:
            features, ids, labels, first = collate([text], [list(range(len(text.ids) - 1))], self.sizes,
                                                   self.device)
            right = self.logits(features, ids, first).argmax(dim=-1) == labels
            lengths = (right.long().cumprod(dim=-1).sum(dim=-1) + 1)[0].tolist()
            place = 0
            while place < len(lengths):
                verifications += 1
                place += lengths[place]
            tokens += len(text.ids) - 1
        return tokens / verifications

    def train(self, texts, held_out, args, began):
        rng = random.Random(args.seed)
        optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=args.rate, betas=(0.9, 0.98),
                                      weight_decay=0.01)
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = cosine(step, args.steps, args.rate, 50)
            loss = self.loss(rng.sample(texts, min(args.batch, len(texts))), rng)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % 250 == 0 or step + 1 == args.steps:
                print(f"step {step + 1} of {args.steps}: loss {loss.item():.3f}, "
                      f"{self.acceptance(held_out[:100]):.2f} tokens a verification of held-out texts, "
                      f"{time.monotonic() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    repository = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--checkpoint", type=pathlib.Path, default=repository / "stage_configs/demo/checkpoint",
                        help="folder of the demo's model (that of this repository)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/demo_drafter"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, default=4000, help="that the demo writes (4000)")
    parser.add_argument("--steps", type=int, default=2500, help="of training (2500)")
    parser.add_argument("--batch", type=int, default=32, help="texts of a step (32)")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not (args.checkpoint / "ema.safetensors").is_file():
        parser.error(f"--checkpoint: {args.checkpoint}: found no ema.safetensors, expected the demo's checkpoint")
    began = time.monotonic()
    torch.manual_seed(args.seed)
    model, vae, tokenizer = read_model(args.checkpoint, args.device)
    sizes = dflash.Sizes(hidden=model.sizes.hidden, target_layers=model.sizes.layers,
                         vocabulary=model.sizes.vocabulary, mask_id=model.sizes.vocabulary - 1)
    texts = write_texts(Writer(model, sizes.features), vae, tokenizer, args.texts, args.seed)
    print(f"{len(texts)} texts of {sum(len(t.ids) - 1 for t in texts) / len(texts):.1f} tokens, "
          f"{time.monotonic() - began:.0f} s", flush=True)
    trainer = Trainer(model, sizes, args.device)
    trainer.train([t for i, t in enumerate(texts) if i % HELD_OUT],
                  [t for i, t in enumerate(texts) if i % HELD_OUT == 0], args, began)
    dflash.write(args.output, trainer.drafter)
    return 0


if __name__ == "__main__":
    sys.exit(main())
