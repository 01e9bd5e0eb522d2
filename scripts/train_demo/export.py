"""Writes a checkpoint in the released layout of BAGEL: bfloat16, the names and files of the release."""
import json
import pathlib

import safetensors.torch
import torch

import model as bagel


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def configs(sizes):
    llm = {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": sizes.hidden, "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate, "max_position_embeddings": 4096,
        "model_type": "qwen2", "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers, "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": bagel.EPS, "rope_theta": sizes.rope_theta, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": sizes.vocabulary}
    vit = {
        "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": sizes.vit_hidden, "image_size": bagel.PATCH_SIDE * bagel.PATCH,
        "intermediate_size": sizes.vit_intermediate, "layer_norm_eps": bagel.EPS,
        "model_type": "siglip_vision_model", "num_attention_heads": sizes.vit_heads,
        "num_channels": 3, "num_hidden_layers": sizes.vit_layers + 1,  # the release names one more
        "patch_size": bagel.PATCH}
    top = {
        "architectures": ["BagelForConditionalGeneration"], "model_type": "bagel",
        "visual_gen": True, "visual_und": True, "connector_act": "gelu_pytorch_tanh",
        "interpolate_pos": False, "latent_patch_size": 2, "max_latent_size": bagel.LATENT_SIDE,
        "vit_max_num_patch_per_side": bagel.PATCH_SIDE, "timestep_shift": 1.0,
        "vae_config": {"downsample": 8, "z_channels": 16}, "llm_config": llm, "vit_config": vit,
        "torch_dtype": "bfloat16"}
    return {"llm_config.json": llm, "vit_config.json": vit, "config.json": top}


def half(state):
    return {name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
            for name, tensor in state.items()}


def write(folder, model, vae):
    """`folder` holds the tokenizer already (vocabulary.train)."""
    folder = pathlib.Path(folder)
    safetensors.torch.save_file(half(model.state_dict()), folder / "ema.safetensors",
                                {"format": "pt"})
    safetensors.torch.save_file(half(vae.state_dict()), folder / "ae.safetensors",
                                {"format": "pt"})
    for name in ("ema.safetensors", "ae.safetensors"):
        (folder / name).chmod(0o644)
    for name, value in configs(model.sizes).items():
        write_json(folder / name, value)
