"""The demo's tokenizer: byte-level BPE as Qwen2.5 has it, with its added tokens, trained on captions."""
import json
import pathlib
import random

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

import edits
import sequence
import world

# Qwen2.5's: huggingface.co/Qwen/Qwen2.5-7B-Instruct, tokenizer.json
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
         "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
         "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
         "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>")
SPECIAL = 14  # the first so many are special, the others only added
MERGES = 552
PADDED = 832  # rows of the embedding table: 256 bytes, the merges, the added tokens, and two free


def corpus(rng, count=40000):
    for _ in range(count):
        width, height = world.picture_size(rng)
        spec, scene = world.sample_scene(rng, width, height)
        yield world.caption(rng, spec)
        yield " ".join((world.plan(scene), world.description(scene)))
        edit = edits.sample_any(rng, scene)
        if edit:
            yield edits.words(rng, edit)
        yield " ".join(world.sample_any_question(rng, scene))
    for _ in range(count // 40):
        yield sequence.VLM_THINK_SYSTEM_PROMPT
        yield sequence.GEN_THINK_SYSTEM_PROMPT
        yield " ".join(rng.choice(world.CHAT))


def train(folder, seed=1, lines=corpus, merges=MERGES):
    """Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json. `lines`: of a random.Random, what
    it is trained on."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(lines(random.Random(seed)), trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=sorted(alphabet), show_progress=False))
    tokenizer.add_special_tokens(list(ADDED[:SPECIAL]))
    tokenizer.add_tokens(list(ADDED[SPECIAL:]))
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tokenizer.model.save(str(folder))
    added = {str(tokenizer.token_to_id(token)): {
        "content": token, "lstrip": False, "normalized": False, "rstrip": False,
        "single_word": False, "special": i < SPECIAL} for i, token in enumerate(ADDED)}
    config = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": list(ADDED[1:SPECIAL]), "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 32768, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class Vocabulary:
    def __init__(self, folder, size=PADDED):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        self.bos, self.eos, self.image_start, self.image_end = (
            self.tokenizer.token_to_id(token)
            for token in ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"))
        self.size = size
        assert self.tokenizer.get_vocab_size() <= size
        self.cache = {}

    def encode(self, text):
        if text in (sequence.GEN_THINK_SYSTEM_PROMPT, sequence.VLM_THINK_SYSTEM_PROMPT):
            return self.encode_fixed(text)
        return self.tokenizer.encode(text).ids

    def encode_fixed(self, text):
        """One of a few texts that come again and again."""
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text).ids
        return self.cache[text]

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)
