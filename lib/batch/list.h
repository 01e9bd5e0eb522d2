// The list of `diptych batch`: .txt, .jsonl or .yaml, read strictly, nothing computed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/config/resolve.h"

namespace diptych {

struct BatchItem {
  std::size_t number = 0;  // place in the list, from 0
  std::string where;       // "list.jsonl:3"
  std::string id;          // as given (7 is "7"), else the number: "0003"
  std::string output;      // as given, a path below the output folder; "" = numbered
  std::vector<GivenValue> values;
  std::optional<std::string> prompt;  // these replace the defaults' ones
  std::map<MediaKind, std::vector<std::filesystem::path>> files;  // pictures, clips
  std::optional<std::vector<InputItem>> inputs;                   // instead of prompt and images
  std::string problem;   // why this item cannot run, as far as the types of its values tell
  bool has_keys = true;  // false: a line of a .txt
};

struct BatchList {
  std::vector<BatchItem> items;
  std::size_t skipped_lines = 0;  // empty ones, and comments of a .txt
  bool prompts_only = false;      // a .txt: every line is the prompt of an item
};

// "-" is stdin: JSON lines where its first character that is no blank is a {, else as a .txt.
// .txt: a prompt a line; empty lines and lines that begin with # are skipped. .jsonl: an object a
// line. .yaml, .yml: a list of maps, or a map with `items`. Keys are `id`, `output`, `prompt`,
// `image` and `video` (a path or a list of them), `inputs` (a list of {text: ...}, {image: ...} and
// {video: ...}), `size`, and every field of a request by its name or its flag's, with _ for -.
// Paths come out relative to the list's folder. Throws InputError "<file>:<line>: ..." for a broken
// file, an unknown, repeated or whole-batch key, an id that comes twice and an output outside of
// the folder; what is wrong with the value of another key is the item's `problem`. `fields`: those
// of the batch's family.
BatchList read_batch_list(const std::filesystem::path& file,
                          std::span<const Field> fields = all_fields());

// The item over the defaults (from resolve_sources()), its task settled. Origins of its own values
// begin with item.where. Throws InputError "<item.where>: ..." for a bad value, and one about a
// setting for inputs that do not fit the task.
Resolved resolve_item(const Resolved& defaults, const BatchItem& item);

// The key of an item for a setting ("cfg_scale" for --cfg-scale); nothing where items have none.
std::optional<std::string> item_key(const Setting& setting, std::span<const Field> fields);

}  // namespace diptych
