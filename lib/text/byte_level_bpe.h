// Byte-level BPE as Qwen2's slow tokenizer does it (transformers 4.49, Qwen2Tokenizer): form C,
// then added tokens (longest match at the leftmost place), then words, then merges. No tokens are
// put before or after the text.
//
// One file may disagree with HF's fast tokenizer: that one looks for added tokens before form C.
#pragma once

#include <filesystem>
#include <memory>

#include "lib/text/bpe_files.h"
#include "lib/text/tokenizer.h"

namespace diptych {

// From vocab.json, merges.txt and tokenizer_config.json in `folder`, or from tokenizer.json if
// vocab.json is not there. Throws InputError for files that are missing, broken or at odds,
// and for merges that were cut off.
std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::filesystem::path& folder);

// The same from tables already read.
std::unique_ptr<Tokenizer> make_byte_level_bpe(BpeTables tables);

// One token for each byte (ids 0..255 in the order of the byte alphabet), no merges, and the added
// tokens of Qwen2.5 with their ids (151643..151664): for models without a vocabulary. What such a
// model writes with the ids between is shown by number: " #29034".
std::unique_ptr<Tokenizer> byte_tokenizer();

}  // namespace diptych
