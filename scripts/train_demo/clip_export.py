"""Writes a checkpoint in the released layout of Lance, with the weights of clips alone: bfloat16, the names and
files of the release."""
import pathlib

import safetensors.torch
import torch

import export
import lance_model as lance


def configs(sizes, tokenizer):
    """`tokenizer`: see vocabulary.py."""
    def number(token):
        return tokenizer.tokenizer.token_to_id(token)

    vision = {
        "depth": sizes.vit_layers, "hidden_act": "silu", "hidden_size": sizes.vit_hidden,
        "intermediate_size": sizes.vit_intermediate, "num_heads": sizes.vit_heads, "in_channels": 3,
        "in_chans": 3, "out_hidden_size": sizes.hidden, "patch_size": lance.PATCH,
        "spatial_merge_size": lance.MERGE, "spatial_patch_size": lance.PATCH, "window_size": 112,
        "fullatt_block_indexes": list(range(sizes.vit_layers)), "tokens_per_second": 2,
        "temporal_patch_size": lance.TEMPORAL}
    llm = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
        "bos_token_id": number("<|endoftext|>"), "eos_token_id": number("<|im_end|>"),
        "vision_start_token_id": number("<|vision_start|>"), "vision_end_token_id": number("<|vision_end|>"),
        "vision_token_id": number("<|vision_pad|>"), "image_token_id": number("<|image_pad|>"),
        "video_token_id": number("<|video_pad|>"), "hidden_act": "silu", "hidden_size": sizes.hidden,
        "initializer_range": 0.02, "intermediate_size": sizes.intermediate, "max_position_embeddings": 4096,
        "model_type": "qwen2_5_vl", "num_attention_heads": sizes.heads, "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads, "rms_norm_eps": 1e-6, "rope_theta": sizes.rope_theta,
        "rope_scaling": {"type": "mrope", "mrope_section": list(sizes.sections)}, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vision_config": vision,
        "vocab_size": sizes.vocabulary}
    return llm, {**vision, "model_type": "qwen2_5_vl"}


def files_of(folder):
    """(backbone, vision tower) of a checkpoint."""
    return folder / "Lance_3B_Video" / "model.safetensors", folder / "Qwen2.5-VL-ViT" / "vit.safetensors"


def read(folder, model):
    """What `write` wrote of it into the model, whose heads, which no checkpoint has, stay as they are."""
    backbone, tower = (safetensors.torch.load_file(path) for path in files_of(folder))
    found = {**backbone, **{"vit_model." + name: tensor for name, tensor in tower.items()}}
    heads = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("heads.")}
    model.load_state_dict({**heads, **found})


def write(folder, model, vae, tokenizer):
    """`folder`/Lance_3B_Video holds the tokenizer already."""
    folder = pathlib.Path(folder)
    backbone_file, tower_file = files_of(folder)
    llm, vit = backbone_file.parent, tower_file.parent
    vit.mkdir(parents=True, exist_ok=True)
    state = export.half(model.state_dict())
    tower = {name.removeprefix("vit_model."): t for name, t in state.items() if name.startswith("vit_model.")}
    backbone = {name: t for name, t in state.items() if not name.startswith(("vit_model.", "heads."))}
    safetensors.torch.save_file(backbone, backbone_file, {"format": "pt"})
    safetensors.torch.save_file(tower, tower_file, {"format": "pt"})
    torch.save(export.half(vae.state_dict()), folder / "Wan2.2_VAE.pth")
    llm_config, vit_config = configs(model.sizes, tokenizer)
    export.write_json(llm / "llm_config.json", llm_config)
    export.write_json(vit / "config.json", vit_config)
    export.write_json(folder / "config.json", {"model_name": "Lance", "checkpoint_directories": [
        "Lance_3B_Video", "Qwen2.5-VL-ViT"]})
    for path in (backbone_file, tower_file, folder / "Wan2.2_VAE.pth"):
        path.chmod(0o644)
