"""A quick look at a model, in PyTorch: held-out prompts, edits and questions, judged as evaluate_demo
judges what the binary makes of them."""
import pathlib
import random
import sys

import torch

import autoencoder
import edits
import render
import sampler
import sequence
import world

SIDE = 192
ROWS = SIDE // 16


def held_out_specs(rng, things, count):
    """Specs whose scenes training never saw: of one thing, or with a pair that stands in no scene."""
    specs = []
    while len(specs) < count:
        spec, scene = world.sample_scene(rng, SIDE, SIDE, held_out=True)
        if len(scene.things) == things:
            specs.append(spec)
    return specs


def share(flags):
    return sum(flags) / max(1, len(flags))


def prompts(model, vae, tokenizer, judge, specs, rng, scale=4.0, think=False):
    def sample():
        started = sequence.Sample(tokenizer)
        return started.text(sequence.GEN_THINK_SYSTEM_PROMPT) if think else started

    told = [world.caption(rng, spec) for spec in specs]
    conditional = [sample().text(text) for text in told]
    if think:
        plans = sampler.write(model, tokenizer, conditional, ROWS, ROWS)
        conditional = [s.text(plan) for s, plan in zip(conditional, plans)]
    for s in conditional:
        s.image("latent")
    branches = [conditional, [sample().image("latent") for _ in specs]]
    latents = sampler.paint(model, branches, ROWS, ROWS, scale=scale)
    pictures = sampler.to_pictures(vae, latents, ROWS, ROWS).numpy()
    return share([not judge.judge_spec(p, spec) for p, spec in zip(pictures, specs)])


def edited(model, vae, tokenizer, judge, rng, count, device, think=False):
    chosen = []
    while len(chosen) < count:
        _, scene = world.sample_scene(rng, SIDE, SIDE, held_out=True, layout=rng.choice(world.LAYOUTS))
        edit = edits.sample_any(rng, scene, held_out=True)
        if edit is not None:
            chosen.append(edit)
    rows = render.pack([e.before for e in chosen]).to(device)
    pictures = render.render(rows, SIDE, SIDE).round() / 127.5 - 1
    asked = [edits.words(rng, e) for e in chosen]
    given = {"vit_pictures": pictures, "context": autoencoder.pack(vae.encode(pictures))}

    def start():
        started = sequence.Sample(tokenizer)
        return started.text(sequence.GEN_THINK_SYSTEM_PROMPT) if think else started

    conditional = [start().image("context").image("vit").text(words) for words in asked]
    if think:
        plans = sampler.write(model, tokenizer, conditional, ROWS, ROWS, given)
        conditional = [s.text(plan) for s, plan in zip(conditional, plans)]
    branches = [[s.image("latent") for s in conditional],
                [start().image("context").image("vit").image("latent") for _ in chosen],
                [start().text(words).image("latent") for words in asked]]
    latents = sampler.paint(model, branches, ROWS, ROWS, image_scale=2.0, interval=(0.0, 1.0), rows=given)
    painted = sampler.to_pictures(vae, latents, ROWS, ROWS).numpy()
    return share([not judge.judge_edit(p, e) for p, e in zip(painted, chosen)])


def answers(model, tokenizer, rng, count, device):
    scenes = [world.sample_scene(rng, SIDE, SIDE, held_out=rng.random() < 0.5,
                                 layout=rng.choice(world.LAYOUTS))[1] for _ in range(count)]
    asked = [world.sample_any_question(rng, scene) for scene in scenes]
    pictures = render.render(render.pack(scenes).to(device), SIDE, SIDE).round() / 127.5 - 1
    samples = [sequence.Sample(tokenizer).image("vit").text(question) for question, _ in asked]
    written = sampler.write(model, tokenizer, samples, ROWS, ROWS, {"vit_pictures": pictures}, most=40)
    return share([text == answer for text, (_, answer) in zip(written, asked)])


@torch.no_grad()
def run(model, vae, tokenizer, count):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "evaluate"))
    import judge  # where OpenCV is

    device, rng = next(model.parameters()).device, random.Random(7)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        told = {}
        for name, things in (("one", 1), ("two", 2), ("three", 3)):
            specs = held_out_specs(rng, things, count)
            told[name] = prompts(model, vae, tokenizer, judge, specs, rng)
            if things < 3:
                told[f"{name} without guidance"] = prompts(model, vae, tokenizer, judge, specs, rng, 1.0)
            else:
                told[f"{name} thought"] = prompts(model, vae, tokenizer, judge, specs, rng, think=True)
        for name, think in (("edits", False), ("edits thought", True)):  # of the same scenes
            told[name] = edited(model, vae, tokenizer, judge, random.Random(8), count, device, think)
        told["answers"] = answers(model, tokenizer, rng, count, device)
    return told
